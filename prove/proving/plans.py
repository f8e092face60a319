"""The claims about read plans: the planner's cost, and the plans' effect on response times in the lab."""

import json
import os
import subprocess
import tempfile
from pathlib import Path

from .claims import spread
from .laboratory import interval, percentile
from .load import bench_binary

# The LLM service's trace beside a checkout, if it exists.
TRACE = Path(__file__).resolve().parents[3] / "shared" / "data" / "llm-kvcache-first-half.csv.gz"

# The bar where the default need only stay ahead.
SAME_ORDER = 1.0
# The strongest simple policies.
RIVALS = ("EC+LB, cancelled", "R, least loaded")


def prove_planner(ledger, laboratory):
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "claims.jsonl"
        command = [bench_binary(), "plan", "--out", out, *(["--full"] if laboratory.full else [])]
        done = subprocess.run(command, capture_output=True, text=True)
        if not out.exists():
            raise RuntimeError(f"striate-bench plan: {done.stderr.strip()[-500:]}")
        for line in out.read_text().splitlines():
            claim = json.loads(line)
            holds = {"holds": True, "stated": None}.get(claim["verdict"], False)
            bar = claim["bar"] if holds is not None else ""
            ledger.add(claim["claim"], f"{claim['measured']:.2f}", holds, bar, claim["spread"])


class Experiment:
    """The results of an experiment, and claims about ratios of its policies."""

    def __init__(self, ledger, laboratory, name, *arguments, seeds=5, file=None, policies=()):
        self.ledger = ledger
        if laboratory.full:
            seeds, policies = 5, ()
        only = [argument for policy in policies for argument in ("--policy", policy)]
        out = f"{name}, {seeds} seeds, {'; '.join(policies) or 'all'}"
        self.results = laboratory.experiment(out, "--jobs", os.cpu_count(), "--seeds", seeds, *only, *arguments,
                                             name=file or name, stem=name, cells=laboratory.folder / "cells")
        self.runs = {policy["name"]: policy["seeds"] for policy in self.results["policies"]}
        counts = [run["response"]["count"] for of_policy in self.runs.values() for run in of_policy]
        ledger.note(f"{name}: calibration {self.results['calibration']}, scale 1/{self.results['scale']:g}, "
                    f"{self.results['blocks']:,} blocks; {min(counts):,} to {max(counts):,} requests a run, "
                    f"{min(map(len, self.runs.values()))} seeds")
        for policy, of_policy in self.runs.items():
            means = [run["response"]["mean_ms"] for run in of_policy]
            tails = [percentile(run, 99.0) for run in of_policy]
            sites = sum(run["sites_per_operation"] for run in of_policy) / len(of_policy)
            ledger.note(f"   {policy}: mean {sum(means) / len(means):.2f} ms, p99 {sum(tails) / len(tails):.1f} ms, "
                        f"{sites:.1f} sites a request")
        ledger.record(out, self.runs_without_detail())

    def runs_without_detail(self):
        kept = ("seed", "response", "retrieve_ms", "imbalance_over_mean", "last_imbalance", "sites_per_operation",
                "read_amplification", "hedged_chunks", "extra_chunks", "cached_plans", "over_time_ms", "moved")
        return {name: [{key: run[key] for key in kept if key in run} for run in of_policy]
                for name, of_policy in self.runs.items()}

    def ratio(self, of, over, value):
        return interval([value(a) / value(b) for a, b in zip(self.runs[of], self.runs[over])])

    def claim(self, what, of, over, value, low, high):
        got, half = self.ratio(of, over, value)
        holds = None if high is None else low <= got <= high
        bar = "" if high is None else f"{low}–{high}" if low else f"≤ {high}"
        seeds = len(self.runs[of])
        told = f"± {half:.3f} over {seeds} seeds" if seeds > 1 else "one seed"
        self.ledger.add(f"{what}: {of} / {over}", f"{got:.3f}", holds, bar, told)

    def mean(self, of, over, high=None, low=0):
        self.claim(f"{self.label()}, mean", of, over, lambda run: run["response"]["mean_ms"], low, high)

    def p99(self, of, over, high=None):
        self.claim(f"{self.label()}, p99", of, over, lambda run: percentile(run, 99.0), 0, high)

    def imbalance(self, of, over, high=None):
        self.claim(f"{self.label()}, λ over the mean", of, over, lambda run: run["imbalance_over_mean"], 0, high)

    def label(self):
        return self.results["title"].removeprefix("Read plans, ")


def prove_p(ledger, laboratory):
    p = Experiment(ledger, laboratory, "plans-p", policies=("R", "EC", "EC+C", "default"))
    p.mean("EC+C", "EC", 0.90, low=0.80)
    shares = [run["cached_plans"] / run["response"]["count"] for run in p.runs["EC+C"]]
    ledger.add("plans that the published cache served (paper: 90%)", f"{100 * sum(shares) / len(shares):.0f}%",
               spread=spread([100 * share for share in shares]))
    p.mean("default", "EC", 0.45)
    p.mean("default", "R", 0.6)
    p.p99("default", "EC", 0.25)
    p.p99("default", "R", 0.3)
    p.imbalance("default", "EC", 0.5)
    # Existing runs are not repeated.
    p = Experiment(ledger, laboratory, "plans-p", seeds=3,
                   policies=("EC", "default", "default, RS(4,2)", "default, ungrouped"))
    p.mean("default, RS(4,2)", "EC", 0.6)
    p.mean("default, ungrouped", "EC", SAME_ORDER)
    p.p99("default, ungrouped", "EC", SAME_ORDER)
    p = Experiment(ledger, laboratory, "plans-p", seeds=2, policies=("default", *RIVALS))
    beside(p, RIVALS)
    if laboratory.full:
        p.mean("EC+C+LB", "EC")
        p.mean("EC+C, scaled probes", "EC")
        beside(p, ["cost model, fresh loads"])


def prove_a(ledger, laboratory):
    a = Experiment(ledger, laboratory, "plans-a", policies=("EC", "default"))
    a.mean("default", "EC", 0.50)
    a.p99("default", "EC", 0.25)
    a.imbalance("default", "EC", 0.5)
    a = Experiment(ledger, laboratory, "plans-a", seeds=3, policies=("EC", "default", "default, RS(4,2)"))
    a.mean("default, RS(4,2)", "EC", 0.6)
    a = Experiment(ledger, laboratory, "plans-a", seeds=2, policies=("default", *RIVALS))
    beside(a, RIVALS)
    if laboratory.full:
        a.mean("EC+C", "EC")
        a.mean("default, ungrouped", "EC")
        a.p99("default, ungrouped", "EC")
        beside(a, ["R"])


def beside(experiment, rivals):
    for rival in rivals:
        experiment.mean("default", rival)
        experiment.p99("default", rival)


def prove_robust(ledger, laboratory):
    robust = Experiment(ledger, laboratory, "plans-robust-p", seeds=2)
    robust.mean("default, scrambled", "EC, scrambled", SAME_ORDER)
    robust.p99("default, scrambled", "EC, scrambled", SAME_ORDER)
    for failed in ("1 failed", "2 failed"):
        robust.mean(f"default, {failed}", f"EC, {failed}", SAME_ORDER)
        robust.mean(f"default, {failed}", f"R, {failed}", SAME_ORDER)
        robust.p99(f"default, {failed}", f"EC, {failed}", SAME_ORDER)


def prove_others(ledger, laboratory):
    prove_size(ledger, laboratory, "plans-p-10k")
    many = Experiment(ledger, laboratory, "plans-98-p", seeds=1)
    many.mean("default", "EC", 0.45)
    many.p99("default", "EC", 0.25)
    none = ("EC, none slow", "default, none slow")
    idle = Experiment(ledger, laboratory, "plans-slow-p", seeds=2, policies=none)
    idle.mean("default, none slow", "EC, none slow", 0.8)
    models = ("3 times", "12 times", "for 1 s", "every 3 s")
    others = [f"{policy}, {model}" for model in models for policy in ("EC", "default")]
    slow = Experiment(ledger, laboratory, "plans-slow-p", seeds=1, policies=others)
    for model in models:
        slow.mean(f"default, {model}", f"EC, {model}")
        slow.p99(f"default, {model}", f"EC, {model}")
    prove_size(ledger, laboratory, "plans-p-1m")
    wikipedia = Experiment(ledger, laboratory, "plans-wikipedia-p", seeds=2, policies=("EC", "default"))
    wikipedia.mean("default", "EC", 0.8)
    wikipedia.p99("default", "EC", 0.5)


def prove_size(ledger, laboratory, name):
    sizes = Experiment(ledger, laboratory, name, seeds=2)
    sizes.mean("default", "EC", SAME_ORDER)
    sizes.mean("default", "R", SAME_ORDER)
    sizes.p99("default", "EC", SAME_ORDER)


def prove_trace(ledger, laboratory, trace):
    if trace is None:
        ledger.add("LLM trace, mean: default / EC", "not run: name the file with --trace", False, "≤ 0.5")
        return
    file = Path(__file__).parents[2] / "lab" / "experiments" / "plans-trace-p.toml"
    llm = Experiment(ledger, laboratory, "plans-trace-p", "--trace", trace, seeds=3, file=file,
                     policies=("EC", "default"))
    llm.mean("default", "EC", 0.5)
    llm.p99("default", "EC")


def prove_reality(ledger, laboratory):
    out = laboratory.folder / "plans-reality"
    length, rounds = (60, 3) if laboratory.full else (10, 2)
    cases = [argument for name in ("R", "EC", "default") for argument in ("--case", name)]
    laboratory.run("reality", *cases, "--calibration", "P", "--length", length, "--rounds", rounds,
                   "--lab-seeds", 5, "--out", out, "--dir", laboratory.folder)
    real = {case["name"]: case["real"] for case in json.loads((out / "reality.json").read_text())}
    for key, name in (("mean_ms", "mean"), ("p99_ms", "p99")):
        values = [real[case][key] for case in ("default", "R", "EC")]
        ledger.add(f"{name} on real processes with modelled media: default, R, EC",
                   ", ".join(f"{value:.2f} ms" for value in values), values == sorted(values), "in this order")
    ledger.record("reality", {name: {key: value for key, value in figures.items() if key != "cdf"}
                              for name, figures in real.items()})


def prove_python(ledger, laboratory):
    from .batches import Extent, compare

    compare(ledger, Extent(15, 5.0, 4000) if laboratory.full else Extent(5, 2.0, 1000), None)
