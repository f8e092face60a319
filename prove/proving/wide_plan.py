"""ECWide's Tables 5 and 6 as `striate plan wide` prints them for the paper's 400 sites."""

import json
import subprocess

from .servers import striate_binary

# Years, for 1/lambda of 2, 4 and 10 years at 1 Gb/s, and for 0.5, 1 and 10 Gb/s at 4 years; and with which redundancy the command
# compares the code. It knows (16,12,6) Azure-LRC, the sixth, by the three losses that it tolerates. The paper counts four, and so does the
# unit test of crates/plan/src/reliability.rs that has all six.
PAPER = {
    ("rs", "(16,12)"): (12, 1.5, [2.47e11, 7.87e12, 7.66e14], [3.96e12, 7.87e12, 7.83e13]),
    ("rs", "(132,128)"): (128, 1.063, [6.33e5, 1.53e7, 1.20e9], [1.01e7, 1.53e7, 1.09e8]),
    ("topology", "(132,128,33)"): (128, 1.063, [1.61e6, 4.64e7, 4.24e9], [2.57e7, 4.64e7, 4.20e8]),
    ("lrc", "(140,128,15)"): (128, 1.094, [2.06e6, 6.20e7, 5.82e9], [3.29e7, 6.20e7, 5.85e8]),
    ("combined", "(136,128,27,34)"): (128, 1.063, [5.82e6, 1.82e8, 1.75e10], [9.30e7, 1.82e8, 1.78e9]),
}
TABLES = {5: [("--mttf", years) for years in (2, 4, 10)], 6: [("--bandwidth", rate) for rate in (0.5, 1, 10)]}
# Of the paper's figures, which have three digits.
WITHIN = 0.005


def plan(k, redundancy, parameter):
    """The codes of the command, by scheme."""
    done = subprocess.run(list(map(str, [striate_binary(), "plan", "wide", "--k", k, "--f", 4, "--redundancy", redundancy, "--racks", 50,
                                         "--sites-per-rack", 8, *parameter, "--json"])), capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr or done.stdout)
    return {row["scheme"]: row for row in json.loads(done.stdout)["codes"]}


def prove_plan(ledger):
    found = {}
    for number, parameters in TABLES.items():
        ratios = {}
        for (scheme, code), (k, redundancy, *years) in PAPER.items():
            for parameter, of_paper in zip(parameters, years[number - 5]):
                row = plan(k, redundancy, parameter)[scheme]
                if row["code"] != code:
                    raise RuntimeError(f"plan wide compares {row['code']}, not {code}")
                ratios[f"{code} {' '.join(map(str, parameter))}"] = row["mttdl_years"] / of_paper
        found[number] = ratios
        worst = max(ratios, key=lambda cell: abs(ratios[cell] - 1))
        ledger.add(f"Table {number}: mean times to data loss over the paper's, {len(ratios)} of its 18 cells, the worst", f"{ratios[worst]:.4f}",
                   all(abs(ratio - 1) < WITHIN for ratio in ratios.values()), f"within {WITHIN:.1%}",
                   f"{min(ratios.values()):.4f}–{max(ratios.values()):.4f}; the worst is {worst}")
    ledger.record("plan wide", found)
