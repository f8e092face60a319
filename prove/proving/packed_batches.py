"""Batch reads of packed objects: the benefit of one plan for the whole query, and how near plans are to the optimum."""

import json
import statistics
import subprocess
import tempfile
from pathlib import Path

from .claims import spread
from .load import bench_binary

# Promised maximum of the ratio to least marginal load first (LMLF), for the mean and the 99th percentile. LMLF may count a request's
# cost in D or not: the bar compares with the variant that reads faster on the placement.
BARS = {
    ("lrc(6,2,2)", "exact", "one plan"): (0.80, 0.75),
    ("rs(6,3)", "exact", "one plan"): (0.80, 0.75),
    ("lrc(6,2,2)", "exact", "one plan, with copies"): (0.70, 0.60),
    ("rs(6,3)", "exact", "one plan, with copies"): (0.70, 0.60),
    ("lrc(6,2,2)", "pushed", "one plan"): (0.85, 0.85),
    ("rs(6,3)", "pushed", "one plan"): (0.88, 0.90),
}


def prove_batches(ledger, laboratory):
    """Measures queries of 10 to 20 packed objects, on placements that played no part in choosing w."""
    placements = 8 if laboratory.full else 4
    tables = json.loads(laboratory.run("packed-batches", "--placements", placements, "--json"))
    ledger.record("packed batches", tables)
    for table in tables:
        code, state = table["code"], table["state"]
        rows = {row["policy"]: row for row in table["policies"]}
        normal, least = rows["normal"], rows["LMLF"]
        variant = rows["LMLF, D without the request"]
        ledger.note(f"{code}, state {state}, hottest site at {table['load']:g} under normal reads, w = {table['load_weight']:g}: mean "
                    f"{normal['mean_ms']:.2f} ms normal, {least['mean_ms']:.2f} ms LMLF, {rows['one plan']['mean_ms']:.2f} ms one plan; "
                    f"sites work {rows['one plan']['work']:.2f} times as much as under normal reads")
        if state == "pushed":
            ledger.note(f"   {rows['one plan']['pushes_per_s']:,.0f} pushes a second from all sites to all gateways")
        for policy in ("one plan", "one plan, with copies"):
            bars = BARS.get((code, state, policy), (None, None))
            for what, key, bar in (("mean", "mean_over_lmlf", bars[0]), ("p99", "p99_over_lmlf", bars[1])):
                ratios = [ours / min(1, other) for ours, other in zip(rows[policy][key], variant[key])]
                ratio = statistics.mean(ratios)
                ledger.add(f"{code}, state {state}, {policy} / LMLF per object, {what}", f"{ratio:.3f}",
                           None if bar is None else ratio <= bar, "" if bar is None else f"≤ {bar:.2f}",
                           f"{spread(ratios)} over {len(ratios)} placements")


def prove_planner(ledger, laboratory):
    """Measures the planner's time, and compares its plans with HiGHS's optima."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "claims.jsonl"
        command = [bench_binary(), "plan", "--packed", "--out", out, *(["--full"] if laboratory.full else [])]
        done = subprocess.run(command, capture_output=True, text=True)
        if not out.exists():
            raise RuntimeError(f"striate-bench plan --packed: {done.stderr.strip()[-500:]}")
        for line in out.read_text().splitlines():
            claim = json.loads(line)
            holds = {"holds": True, "stated": None}.get(claim["verdict"], False)
            ledger.add(claim["claim"], f"{claim['measured']:.2f}", holds, claim["bar"] if holds is not None else "",
                       claim["spread"])
