"""Packed objects on real processes with modelled media: Normal, LMLF-PW2 and the store's default in the order of the laboratory."""

import json
import statistics

from .claims import spread

ORDER = ["adaptive", "lmlf-pw2", "normal(2s)"]


def prove_reality(ledger, laboratory):
    """Runs one round with a Reed–Solomon code; with `full`, three rounds, and an LRC too."""
    for profile in ("packed rs(4,2)", "packed lrc(6,2,2)")[:2 if laboratory.full else 1]:
        rounds = 3 if laboratory.full else 1
        shown = json.loads(laboratory.run("packed-reality", "--profile", profile, "--rounds", rounds, "--dir", laboratory.folder,
                                          "--json"))
        ledger.record(f"packed reality, {profile}", shown)
        for what in ("mean", "p99"):
            means = {policy: [row[f"{what}_ms"] for row in shown if row["policy"] == policy] for policy in ORDER}
            told = ", ".join(f"{policy} {statistics.mean(means[policy]):.1f} ms" for policy in ORDER)
            falls = all(statistics.mean(means[a]) < statistics.mean(means[b]) for a, b in zip(ORDER, ORDER[1:]))
            ratios = [ours / theirs for ours, theirs in zip(means["adaptive"], means["lmlf-pw2"])]
            ledger.add(f"{profile} on processes of sites, hottest site at 0.8 under normal reads, {what}", told,
                       falls if what == "mean" else None, "default < LMLF-PW2 < Normal" if what == "mean" else "",
                       f"default over LMLF-PW2 {spread(ratios)} over {rounds} rounds")
