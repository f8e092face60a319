"""Effect of movement on response times in the lab, as published and improved, and its cost."""

import json
import statistics
from pathlib import Path

from .claims import spread
from .plans import Experiment

# λ of EC-Store's Table II.
TABLE_2 = {"EC": 43.0, "EC+LB": 22.8, "EC+C": 31.1, "EC+C+M": 24.5, "EC+C+M+LB": 19.8, "EC+C+M, improved": None}
# Scale of the short runs: the divisor of phases and blocks.
SHORT = {"ec-store-ycsb-p": 300, "ec-store-failures-p": 400, "ec-store-wikipedia-p": 1000, "movement-scrambled-p": 150,
         "movement-sweeps-p": 1000}
MOVED = "EC+C+M"
# The default read plans with blocks in groups of eight, the default, and in a bucket with a group of 1; and the short run's seeds of
# each, more where movement changes less.
DEFAULTS = {"default": 3, "default, ungrouped": 1}
IMPROVED = "EC+C+M, improved"
# Names of each parameter's runs, for values other than the paper's.
SWEEPS = {
    "interval (5,000 requests)": ("500 requests", "2,000 requests", "20,000 requests"),
    "reports (every 10 s)": ("reports every second", "reports every 60 s"),
    "k (2)": (f"{MOVED}, RS(4,2)",),
}
FULL_SWEEPS = {
    "reports, further": ("reports every 5 s",),
    "k (2), further": (f"{MOVED}, RS(8,3)",),
    "w2 (3)": tuple(f"w2 = {w2}" for w2 in (0, 1, 10, 30, 100, 300)),
    "candidates (32)": ("8 candidates", "128 candidates"),
}


def response_mean(run):
    return run["response"]["mean_ms"]


def retrieval(run):
    return run["retrieve_ms"]


def imbalance(run):
    return run["imbalance_over_mean"]


def last_imbalance(run):
    return run["last_imbalance"]


class Moving(Experiment):
    """An experiment with movers."""

    def __init__(self, ledger, laboratory, name, *arguments, **options):
        scale = () if laboratory.full or name not in SHORT else ("--scale", SHORT[name])
        super().__init__(ledger, laboratory, name, *scale, *arguments, **options)
        for policy, runs in self.runs.items():
            if runs[0].get("moved"):
                ledger.note(f"   {policy}: {self.mean_of(policy, 'chunks'):,.0f} chunks moved in the measured phase, "
                            f"{self.mean_of(policy, 'evaluated'):,.0f} candidates evaluated, "
                            f"{100 * self.search_share(policy):.0f}% of a core")

    def mean_of(self, policy, key):
        return statistics.mean(run["moved"][1][key] for run in self.runs[policy])

    def search_share(self, policy):
        return self.mean_of(policy, "search_s") / self.results["measured_s"]

    def moved_share(self, policy):
        """Returns the bytes moved for each byte that the sites read."""
        return statistics.mean(run["moved"][1]["bytes"] / sum(run["site_bytes"]) for run in self.runs[policy])

    def retrieve(self, of, over, paper=None):
        self.claim(f"{self.label()}, retrieval{told(paper)}", of, over, retrieval, 0, None)

    def stated_imbalance(self, name):
        found = [imbalance(run) for run in self.runs[name]]
        self.ledger.add(f"Table II, λ over the mean: {name}{told(TABLE_2[name])}", f"{statistics.mean(found):.1f}",
                        spread=spread(found))

    def label(self):
        return self.results["title"].partition(", calibration")[0]


def told(paper):
    return f" (paper {paper})" if paper else ""


def prove_published(ledger, laboratory):
    p = Moving(ledger, laboratory, "ec-store-ycsb-p", seeds=1,
               policies=("EC", "EC+LB", "EC+C", MOVED, IMPROVED, "EC+C+M+LB"))
    p.mean(MOVED, "EC", 0.70)
    p.mean(IMPROVED, "EC")
    p.mean("EC+C", "EC")
    p.mean("EC+C+M+LB", "EC")
    p.retrieve(MOVED, "EC+LB", paper=0.70)
    p.retrieve("EC+C+M+LB", "EC+LB", paper=0.60)
    p.p99(MOVED, "EC+LB", 1.0)
    prove_half(p)
    prove_4a(p)
    for name in TABLE_2:
        p.stated_imbalance(name)
    prove_failures(ledger, laboratory)
    prove_wikipedia(ledger, laboratory)
    prove_sweeps(ledger, laboratory)
    if laboratory.full:
        prove_sizes(ledger, laboratory)


def prove_half(experiment):
    """States how much of the gain comes from the cost model."""
    mean = {name: statistics.mean(map(response_mean, runs)) for name, runs in experiment.runs.items()}
    share = (mean["EC"] - mean["EC+C"]) / (mean["EC"] - mean[MOVED])
    experiment.ledger.add(f"{experiment.label()}: of what EC+C+M gains, EC+C's part (paper: 15 of 40)", f"{share:.2f}")


def prove_4a(experiment):
    """Compares the end of the measurement with its start: Figure 4a's mean after the change of skew."""
    def fall(run):
        points = [point for point in run["over_time_ms"] if point is not None]
        few = max(1, len(points) // 4)
        return statistics.mean(points[-few:]) / statistics.mean(points[:few])

    for name, bar in ((MOVED, 1.0), ("EC+C", None)):
        falls = [fall(run) for run in experiment.runs[name]]
        got = statistics.mean(falls)
        experiment.ledger.add(f"4a: {name}, last quarter of the measurement / first", f"{got:.3f}",
                              got < bar if bar else None, f"< {bar}" if bar else "", spread(falls))


def prove_failures(ledger, laboratory):
    names = [MOVED, *(f"{policy}, {failed} down" for failed in (1, 2) for policy in ("EC", MOVED))]
    f = Moving(ledger, laboratory, "ec-store-failures-p", seeds=1, policies=names)
    for count, paper in ((1, 1), (2, 5)):
        failed = f"{MOVED}, {count} down"
        more = [response_mean(down) - response_mean(up) for down, up in zip(f.runs[failed], f.runs[MOVED])]
        ledger.add(f"4f: {failed}, more than with none, ms (paper: about {paper})", f"{statistics.mean(more):.2f}")
        f.claim("4f, mean", failed, f"EC, {count} down", response_mean, 0, 0.70)


def prove_wikipedia(ledger, laboratory):
    w = Moving(ledger, laboratory, "ec-store-wikipedia-p", seeds=1,
               policies=("EC", "EC+LB", "EC+C", MOVED, "EC+C+M+LB"))
    w.retrieve(MOVED, "EC", paper=0.60)
    w.retrieve(MOVED, "EC+LB", paper=0.83)
    w.retrieve("EC+C+M+LB", MOVED, paper=0.85)
    prove_half(w)


def prove_sizes(ledger, laboratory):
    for name in ("ec-store-ycsb-p-10k", "ec-store-ycsb-p-1m"):
        sizes = Moving(ledger, laboratory, name)
        sizes.mean(MOVED, "EC", 0.70)
        sizes.retrieve(MOVED, "EC", paper=0.5 if name.endswith("1m") else None)


def prove_sweeps(ledger, laboratory):
    sweeps = SWEEPS | FULL_SWEEPS if laboratory.full else SWEEPS
    swept = [name for names in sweeps.values() for name in names]
    baselines = {name: name.replace(MOVED, "EC") if "RS(" in name else "EC" for name in (MOVED, *swept)}
    s = Moving(ledger, laboratory, "movement-sweeps-p", seeds=1,
               policies=list(dict.fromkeys((*baselines.values(), *baselines))))
    s.claim("sweeps, mean, as published", MOVED, "EC", response_mean, 0, None)
    for parameter, names in sweeps.items():
        for name in names:
            s.claim(f"sweep of {parameter}, mean", name, baselines[name], response_mean, 0, None)


def prove_improved(ledger, laboratory, trace):
    for default, seeds in DEFAULTS.items():
        prove_moved(Moving(ledger, laboratory, "movement-scrambled-p", seeds=seeds, policies=beside(default)), default)
    if trace is None:
        ledger.add("LLM trace, mean: default + movement / default", "not run: name the file with --trace", False, "≤ 0.9")
        return
    file = Path(__file__).parents[2] / "lab" / "experiments" / "movement-trace-p.toml"
    policies = [policy for default in DEFAULTS for policy in beside(default)]
    llm = Moving(ledger, laboratory, "movement-trace-p", "--trace", trace, seeds=1, file=file, policies=policies)
    for default in DEFAULTS:
        prove_moved(llm, default)


def beside(default):
    return default, f"{default} + movement"


def prove_moved(experiment, default):
    _, moved = beside(default)
    experiment.mean(moved, default, 0.9)
    experiment.p99(moved, default)
    experiment.imbalance(moved, default, 1.0)
    # Runs that end with their operations have no last quarter.
    if all("last_imbalance" in run for run in experiment.runs[moved]):
        experiment.claim(f"{experiment.label()}, λ in the last quarter", moved, default, last_imbalance, 0, None)
    share = experiment.moved_share(moved)
    experiment.ledger.add(f"{experiment.label()}, {moved}: bytes moved for each byte read", f"{100 * share:.2f}%",
                          share <= 0.0105, "≤ 1%, and the last chunk")


def prove_resources(ledger, laboratory):
    out = laboratory.folder / "table-3"
    laboratory.run("figure", "table-3", "--out", out)
    table = json.loads((out / "ec-store-table-3.json").read_text())
    for row in table["table"]:
        ledger.add(f"Table III, {row['component']}: {row['resource']} (paper {row['paper']})", row["ours"])
    found = table["found"]
    share = found["mover_bytes_per_s"] / found["chunk_bytes_per_s"]
    ledger.add("moved as published, of the bytes read", f"{100 * share:.4f}%", share < 0.001, "< 0.1%")
    space = found["services"] * found["statistics_bytes"] / (2 * found["blocks"] * found["block_len"])
    ledger.add("memory of all statistics, of the space that the data take", f"{100 * space:.4f}%", space <= 0.003, "≤ 0.3%")
