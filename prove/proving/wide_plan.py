"""ECWide's computed figures of codes, printed by `striate-lab wide-codes`: Tables 3 to 6, Figs. 2 and 3.

`striate plan wide`, the users' command, must print the same for the paper's cluster.
"""

import json
import subprocess

from .servers import striate_binary

# The number of values in each table and figure, and their tolerance.
EXPECTED = {"Table 3": (4, "exact"), "Table 4": (6, "exact, as rounded"), "Fig. 2": (6, "exact, as rounded"), "Fig. 3": (6, "exact"),
            "Table 5": (18, "within 0.5%"), "Table 6": (18, "within 0.5%")}
# Tables that are summarised by ratio to the paper's.
MTTDLS = ("Table 5", "Table 6")
# Codes of `striate plan wide`, and its default setting.
SCHEMES, AS_DEFAULT = {"rs": "RS", "topology": "TL", "combined": "CL"}, "1/λ = 4 years"


def prove_plan(ledger, laboratory):
    figures = json.loads(laboratory.run("wide-codes", "--json"))
    ledger.record("wide codes", figures)
    for name, (count, bar) in EXPECTED.items():
        of_name = [figure for figure in figures if figure["name"] == name]
        if name in MTTDLS:
            add_mttdls(ledger, name, of_name, count, bar)
        else:
            add_values(ledger, name, of_name, count, bar)
    add_command(ledger, figures)


def holds(figure):
    """Returns whether a figure matches the paper's. A code other than the paper's has no value."""
    return figure["value"] is not None and abs(figure["value"] - figure["paper"]) <= figure["tolerated"]


def add_values(ledger, name, figures, count, bar):
    values = [f"{figure['code']}: {figure['what']} {figure['value']:.5g} (paper {figure['paper']:.5g})" for figure in figures if holds(figure)]
    missed = [f"{figure['code']}: {figure['what']} {figure['value']} (paper {figure['paper']})" for figure in figures if not holds(figure)]
    ledger.add(f"{name}: values as the paper's", f"{len(values)} of {count}", len(values) == count and not missed, bar, "; ".join(missed or values))


def add_mttdls(ledger, name, figures, count, bar):
    ratios = {f"{figure['code']}, {figure['what']}": (figure["value"] or 0) / figure["paper"] for figure in figures}
    worst = max(ratios, key=lambda cell: abs(ratios[cell] - 1))
    ledger.add(f"{name}: mean times to data loss over the paper's, {len(figures)} of its {count} cells, the worst", f"{ratios[worst]:.4f}",
               len(figures) == count and all(map(holds, figures)), bar, f"{min(ratios.values()):.4f}–{max(ratios.values()):.4f}; the worst is {worst}")


def add_command(ledger, figures):
    """Checks `striate plan wide` for the paper's 400 nodes. Its Azure-LRC differs from the paper's: it has the redundancy asked for."""
    done = subprocess.run([str(striate_binary()), "plan", "wide", "--k", "128", "--f", "4", "--redundancy", "1.063", "--racks", "50",
                           "--sites-per-rack", "8", "--json"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr or done.stdout)
    rows = [row for row in json.loads(done.stdout)["codes"] if row["scheme"] in SCHEMES]
    expected = {figure["code"]: figure["value"] for figure in figures if figure["name"] == "Table 5" and AS_DEFAULT in figure["what"]}
    same = [row["code"] for row in rows if row["mttdl_years"] == expected.get(f"{row['code']} {SCHEMES[row['scheme']]}")]
    ledger.add("striate plan wide: RS, TL and CL of k = 128 with the mean time to data loss of Table 5", f"{len(same)} of {len(SCHEMES)}",
               len(same) == len(SCHEMES), "all", ", ".join(same))
