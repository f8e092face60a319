"""The lab's claims, each taken from the output of `striate-lab`."""

import json
import math
import os
import re
import resource
import statistics
import subprocess
from pathlib import Path

from .claims import spread
from .servers import lab_binary

EXPERIMENT = "ec-store-ycsb-p"
# The experiment's policies that plan nothing.
AT_RANDOM = ("R", "EC", "EC+LB", "EC+LB, cancelled", "R, least loaded")
SPEED_LINE = re.compile(r"(\d+) sites, .*: ([\d.]+) million chunk reads a minute .*built in ([\d.]+) s, peak memory (\d+) MiB")
CLEAN = re.compile(r"(\d+) seeds clean, (\d+) broken")
FOUND = re.compile(r"found after (\d+) seeds?, (\w+) is broken")
# Planted defects, by their names in `striate-lab faults --mutation`.
MUTATIONS = ["skip-fsync", "delete-before-commit", "wrong-checksum-scope", "write-quorum-off-by-one",
             "clean-up-after-unknown-outcome", "collector-ignores-live-upload", "condition-outside-transaction",
             "stale-mirror-wins", "recovery-stops-at-hole", "record-cache", "forget-generation",
             "acknowledge-by-count"]
# Planted defects of the packing protocol.
PACKING_MUTATIONS = ["switch-without-version", "switch-forgets-garbage", "born-unmarked", "death-unmarked",
                     "overwrite-releases", "settle-blindly", "release-on-mark", "release-leaves-mark",
                     "swap-without-comparing", "copy-dropped-but-named"]
# Planted defects of the memory tier.
CACHE_MUTATIONS = ["stale-cache"]
# Two-sided 95% quantiles of Student's t, by the number of seeds.
STUDENT_T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}


class Laboratory:
    """Runs `striate-lab …` and keeps its files in a folder."""

    def __init__(self, folder, full):
        self.folder, self.full = Path(folder), full

    def run(self, *arguments):
        done = subprocess.run([lab_binary(), *map(str, arguments)], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"striate-lab {' '.join(map(str, arguments))}: {done.stderr.strip()[-500:]}")
        return done.stdout

    def experiment(self, out, *arguments, name=EXPERIMENT, stem=None, cells=None):
        """Runs a built-in experiment, or a file with the stem `stem`, into folder `out`, and returns its results.

        Runs already in the folder `cells` are not repeated.
        """
        out = self.folder / out
        self.run("run", "--experiment", name, "--out", out, "--cells", cells or out / "cells", *arguments)
        return json.loads((out / f"{stem or name}.json").read_text())


def traces(results):
    return {(policy["name"], run["seed"]): run["trace"] for policy in results["policies"] for run in policy["seeds"]}


def prove_determinism(ledger, laboratory):
    short = ("--scale", 2000, "--seeds", 2)
    first = traces(laboratory.experiment("one", *short))
    again = traces(laboratory.experiment("two", *short, "--jobs", 2))
    events = sum(int(trace.split(" over ")[1].split()[0]) for trace in first.values())
    same = sum(first[run] == again[run] for run in first)
    ledger.add("the same runs in two processes, alone and two at a time: equal hashes of all events",
               f"{same} of {len(first)} runs, {events:,} events", same == len(first), "all")
    by_policy = {}
    for (policy, _), trace in first.items():
        by_policy.setdefault(policy, []).append(trace)
    differ = sum(len(set(of_seeds)) == len(of_seeds) for of_seeds in by_policy.values())
    ledger.add("two seeds of a policy: different hashes", f"{differ} of {len(by_policy)} policies",
               differ == len(by_policy), "all")


def prove_speed(ledger, laboratory):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    rounds = [SPEED_LINE.findall(laboratory.run("speed", "--blocks", 1_000_000, "--length", 3)) for _ in range(2)]
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    for index, bar in ((0, 3.0), (1, None)):
        sites = rounds[0][index][0]
        speeds = [float(lines[index][1]) for lines in rounds]
        ledger.add(f"chunk reads a minute of real time, one core, {sites} sites, EC, millions",
                   f"{max(speeds):.2f}", max(speeds) >= bar if bar else None, f"≥ {bar}" if bar else "", spread(speeds))
    memory = max(int(lines[1][3]) for lines in rounds)
    ledger.add("memory of 1,000 sites with 1,000,000 blocks", f"{memory} MiB", memory < 4096, "< 4 GiB")
    ledger.note(f"{cpu:.0f} s of processor time; a load average of {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


def prove_reality(ledger, laboratory):
    out = laboratory.folder / "reality"
    length, rounds = (120, 3) if laboratory.full else (15, 3)
    cases = [argument for name in ("R", "EC", "EC+LB") for argument in ("--case", name)]
    laboratory.run("reality", *cases, "--length", length, "--rounds", rounds, "--lab-seeds", 20, "--out", out,
                   "--dir", laboratory.folder)
    for case in json.loads((out / "reality.json").read_text()):
        name = f"{case['name']}, calibration {case['calibration']}, {case['sites']} sites, {case['clients']} clients"
        for what, key, bar in (("mean", "mean", 0.10), ("p99", "p99", 0.20)):
            error, real, lab = (case[f"{key}_error"], case["real"][f"{key}_ms"], case["lab"][f"{key}_ms"])
            ledger.add(f"{name}: {what}, lab / real − 1", f"{error:+.1%}", abs(error) <= bar, f"within {bar:.0%}",
                       f"{lab:.2f} and {real:.2f} ms; {case['lab']['count']:,} and {case['real']['count']:,} requests")
        shares = case["processors"]
        way = case["way"]
        ledger.note(f"{name}: measured between processes and taken by the lab: {way['round_trip_ms']:.2f} ms there and "
                    f"back, {way['card_bytes_per_s'] / 1e6:.0f} MB/s")
        ledger.note(f"{name}: sites and clients took {shares['own_share']:.0%} of the processors, "
                    f"{shares['own_ms_per_operation']:.2f} ms for each request; others took {shares['other_share']:.0%}")
    ledger.record("reality", json.loads((out / "reality.json").read_text()))


def interval(values):
    """Returns the mean and half the width of its 95% confidence interval."""
    few = len(values) not in STUDENT_T
    half = float("nan") if few else STUDENT_T[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return statistics.mean(values), half


def percentile(run, percent):
    return dict(map(tuple, run["response"]["percentiles_ms"]))[percent]


def prove_ec_store(ledger, laboratory):
    scale = () if laboratory.full else ("--scale", 150)
    only = [argument for policy in AT_RANDOM for argument in ("--policy", policy)]
    results = laboratory.experiment("ec-store", *scale, "--seeds", 5, "--jobs", os.cpu_count(), *only)
    runs = {policy["name"]: policy["seeds"] for policy in results["policies"]}
    fewest = min(run["response"]["count"] for of_policy in runs.values() for run in of_policy)
    ledger.add("requests of each run after the warm-up, 5 seeds", f"at least {fewest:,}", fewest >= 20_000, "≥ 20,000")
    ledger.note(f"scale 1/{results['scale']:g}: {results['blocks']:,} blocks, {results['measured_s']:g} s of virtual time")

    def ratio(of, over, value):
        return interval([value(a) / value(b) for a, b in zip(runs[of], runs[over])])

    def mean(run):
        return run["response"]["mean_ms"]

    def claim_ratio(claim, of, over, value, low, high):
        got, half = ratio(of, over, value)
        bar = None if high is None else low <= got <= high
        text = "" if high is None else (f"{low}–{high}" if low else f"< {high:g}")
        ledger.add(claim, f"{got:.3f}", bar, text, f"± {half:.3f} over 5 seeds")

    claim_ratio("R / EC, mean response time (the fit of P; paper 0.75)", "R", "EC", mean, 0, None)
    claim_ratio("EC+LB / EC, mean response time", "EC+LB", "EC", mean, 0.75, 0.95)
    claim_ratio("EC+LB cancelled / EC, mean response time", "EC+LB, cancelled", "EC", mean, 0, None)
    claim_ratio("R least loaded / EC, mean response time", "R, least loaded", "EC", mean, 0, None)
    for percent in (95.0, 99.0):
        def tail(run, percent=percent):
            return percentile(run, percent)
        claim_ratio(f"4c's tails: R / EC, p{percent:g}", "R", "EC", tail, 0, 1.0)
        claim_ratio(f"4c's tails: EC+LB / EC, p{percent:g}", "EC+LB", "EC", tail, 0, 1.0)
        claim_ratio(f"4c's tails: EC+LB cancelled / EC, p{percent:g}", "EC+LB, cancelled", "EC", tail, 0, None)
    prove_table_2(ledger, runs)
    ledger.record("ec-store", {name: [{key: run[key] for key in ("seed", "response", "imbalance_over_mean",
                                                                 "imbalance_over_oracle")} for run in of_policy]
                               for name, of_policy in runs.items()})


def prove_table_2(ledger, runs):
    """Claims the order of Table II's λ, over the actual mean: compares means over the seeds, and states the differences' intervals."""
    def imbalance(name):
        return [run["imbalance_over_mean"] for run in runs[name]]

    def order(above, below, bar=True):
        mean_above, mean_below = statistics.mean(imbalance(above)), statistics.mean(imbalance(below))
        _, half = interval([a - b for a, b in zip(imbalance(above), imbalance(below))])
        ledger.add(f"Table II, λ over the mean: {above} above {below}", f"{mean_above:.1f} and {mean_below:.1f}",
                   mean_above > mean_below if bar else None, f"{above} > {below}" if bar else "",
                   f"difference ± {half:.1f} over 5 seeds")

    order("R", "EC")
    order("EC", "EC+LB")
    order("EC", "EC+LB, cancelled", bar=False)


# The line about wide stripes, which a fifth of the seeds have.
SEALED = re.compile(r"^(wide stripes: .*)$", re.MULTILINE)


def prove_faults(ledger, laboratory, seeds=None, mutations=tuple(MUTATIONS)):
    prove_campaign(ledger, laboratory, "the store as it is, under random faults", seeds or (320 if laboratory.full else 30))
    prove_mutations(ledger, laboratory, mutations, 200)


def prove_campaign(ledger, laboratory, claim, wanted, *options, every=1):
    """Runs `wanted` seeds of which none may break an invariant. `options` select about one seed of `every`.

    Returns the number of clean seeds and what was printed; None if a seed broke one.
    """
    bar = f"{wanted:,} seeds, no invariant broken"
    try:
        outcome = laboratory.run("faults", *options, "--seeds", math.ceil(every * wanted))
    except RuntimeError as error:
        ledger.add(claim, str(error)[-300:], False, bar)
        return None
    clean, broken = map(int, CLEAN.search(outcome).groups())
    sealed = SEALED.search(outcome)
    ledger.add(claim, f"{clean:,} seeds clean, {broken} broken", broken == 0 and clean >= wanted, bar, sealed[1] if sealed else "")
    return clean, outcome


def prove_mutations(ledger, laboratory, mutations, seeds, *options):
    for mutation in mutations:
        try:
            found = FOUND.search(laboratory.run("faults", "--mutation", mutation, "--seeds", seeds, *options))
            verdict, holds = (f"found after {found[1]} seeds, by {found[2]}", True) if found else ("no verdict", False)
        except RuntimeError as error:
            verdict, holds = str(error)[-300:], False
        ledger.add(f"planted: {mutation}", verdict, holds, f"found within {seeds:,} seeds")
