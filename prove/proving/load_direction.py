"""Opt Lazy's tables: the ℓ2 and ℓ∞ programs of Hu et al., solved by Striate's own solver and by HiGHS."""

import json
import subprocess
from pathlib import Path

from . import ROOT, TOOLS
from .laboratory import Laboratory

# Relative tolerance of F: the solvers' promise, plus what HiGHS's tolerances leave.
TOLERANCE = {"squares": 1e-5, "maximum": 2e-5}
NAMES = {"squares": "ℓ2", "maximum": "ℓ∞"}
# Bar for a table of 90 nodes and 2,004 partitions with one degraded read.
MOST_MS = 100.0
PAPER_SIZE = "90 nodes, 2004 partitions"
PYTHON = TOOLS / "highs" / "bin" / "python"


def value_of(instance, shares, norm):
    """Returns F of the shares, and by how much they violate Eq. 3 to 5."""
    totals = [queue for queue, _ in instance["nodes"]]
    broken = 0.0
    for (demand, options), of_options in zip(instance["partitions"], shares):
        broken = max(broken, abs(sum(of_options) - 1), -min(of_options))
        for option, share in zip(options, of_options):
            for node in option:
                totals[node] += demand * share
    rates = [rate for _, rate in instance["nodes"]]
    if norm == "squares":
        return sum(total * total / rate / 2 for total, rate in zip(totals, rates)), broken
    return max(total / rate for total, rate in zip(totals, rates)), broken


def prove_tables(ledger, folder):
    """Compares F of our shares with HiGHS's: several sizes, both codes, one degraded read and all, equal and unequal nodes."""
    problems = Path(folder) / "load-direction-problems.json"
    Laboratory(folder, False).run("directing", "--write-problems", problems)
    solved = json.loads(problems.read_text())
    if not PYTHON.exists():
        ledger.add("load direction tables beside HiGHS", "not run: `tools/install.sh highs` first", False, "the same F")
        return
    done = subprocess.run([PYTHON, ROOT / "prove" / "proving" / "highs_tables.py", problems], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"HiGHS: {done.stderr.strip()[-500:]}")
    reference = [json.loads(line) for line in done.stdout.splitlines()]
    for norm in ("squares", "maximum"):
        claim_values(ledger, norm, solved, reference)
        claim_times(ledger, norm, solved)
    ledger.record("load direction tables", [
        {"name": of["instance"]["name"], **{norm: {"value": of[norm]["value"], "ms": of[norm]["ms"], "highs": by[norm]}
                                            for norm in NAMES}} for of, by in zip(solved, reference)])


def claim_values(ledger, norm, solved, reference):
    errors, wrong, gaps, proved = [], [], [], 0
    for of, by in zip(solved, reference):
        value, broken = value_of(of["instance"], of[norm]["shares"], norm)
        if by[norm] is None:
            gaps.append(1 - of[norm]["lower_bound"] / value)
            continue
        least = by[norm]["value"]
        proved += by[norm]["is_optimal"]
        errors.append(value / least - 1)
        # Neither above nor below HiGHS's optimum, with valid shares and a true lower bound.
        fits = abs(errors[-1]) <= TOLERANCE[norm] and of[norm]["lower_bound"] <= least * (1 + 1e-6)
        if not fits or broken > 1e-9 or not by[norm]["is_optimal"]:
            wrong.append(f"{of['instance']['name']}: {errors[-1]:+.1e}, shares off by {broken:.0e}")
    ledger.add(f"tables of 12 to 90 nodes and 24 to 2,004 partitions, F by the {NAMES[norm]} norm: own shares / HiGHS − 1",
               f"at most {max(map(abs, errors)):.1e}", not wrong, f"≤ {TOLERANCE[norm]:.0e}",
               f"{len(errors)} tables, {proved} proved by HiGHS; {min(errors):+.0e} to {max(errors):+.0e}")
    for line in wrong:
        ledger.note(line)
    if gaps:
        ledger.add(f"the same with all degraded reads of 2,004 partitions, too large for HiGHS' {NAMES[norm]}: own bound on F",
                   f"within {max(gaps):.1e}", max(gaps) <= TOLERANCE[norm], f"≤ {TOLERANCE[norm]:.0e}", f"{len(gaps)} tables")


def claim_times(ledger, norm, solved):
    of_size = [of for of in solved if PAPER_SIZE in of["instance"]["name"]]
    one = [of[norm]["ms"] for of in of_size if "one degraded" in of["instance"]["name"]]
    every = [of[norm]["ms"] for of in of_size if "all degraded" in of["instance"]["name"]]
    ledger.add(f"the same, 90 nodes × 2,004 partitions, one degraded read: time of the {NAMES[norm]} table", f"{max(one):.1f} ms",
               max(one) <= MOST_MS, f"≤ {MOST_MS:.0f} ms", f"{min(one):.1f}–{max(one):.1f}, least of five rounds each")
    ledger.add(f"with all degraded reads: time of the {NAMES[norm]} table", f"{max(every):.1f} ms",
               spread=f"{min(every):.1f}–{max(every):.1f}")
