"""Coded splits beside whole blocks and copies (selective replication), on processes whose memory sites have their own slow cards.

Each memory site is a process in its own network namespace, behind a link of 200 Mbit/s in both directions. The rest of the cluster
shares a namespace with a fast link. A second part measures the block size from which splits pay off, also with links that are faster
than this machine's processors.
"""

import json
import os
import statistics
import subprocess

from . import hosts
from .claims import spread
from .servers import striate_binary

MIB = 1 << 20
BUCKET = "hot"
SITES, RATE = 8, "200mbit"
# Objects are one block of 4 MiB each: 25 reads a second use half of what all cards can send.
OBJECTS, SIZE, READS_PER_S = 60, "4MiB", 25


# Blocks cut into four splits, beside whole ones: (the cards' rate, the block in KiB, reads a second). The reads use half of what slow
# cards can send; with fast cards, they use only a part of this machine's processors.
CROSSOVER = [("200mbit", 256, 300), ("200mbit", 1_024, 100), ("200mbit", 4_096, READS_PER_S),
             ("10gbit", 256, 100), ("10gbit", 1_024, 60), ("10gbit", 4_096, READS_PER_S)]


class Cards(hosts.Hosts):
    """Memory sites behind links of one rate, each in its own namespace; all other processes share one."""

    def __init__(self, folder, rate=RATE):
        self.rate = rate
        super().__init__(folder, racks=SITES + 1, gateways=1, sites=3, memory_sites=SITES, memory_mib=64)

    def rack(self, name):
        number = int("".join(filter(str.isdigit, name)) or 1)
        return self.racks[number] if name.startswith("memory") else self.racks[0]

    def join(self):
        super().join()
        for rack in self.racks:
            rate = "10gbit" if rack == self.racks[0] else self.rate
            shape = ("root", "tbf", "rate", rate, "burst", hosts.BURST if rate == RATE else "4mb", "latency", "400ms")
            hosts.run("tc", "qdisc", "replace", "dev", f"{self.bridge}{rack}", *shape)
            hosts.run("tc", "-n", self.space(rack), "qdisc", "replace", "dev", f"up{rack}", *shape)


def read(cluster, seconds, load=False, size=SIZE, rate=READS_PER_S):
    """Reads by Zipf 0.9 at a rate; returns the generator's figures and the imbalance λ of what the memory sites sent meanwhile."""
    report = cluster.folder / "bench.json"
    command = [striate_binary(), "bench", "--endpoint", cluster.endpoints()[0], "--bucket", BUCKET, "--workload", "ycsb-c", "--objects", OBJECTS,
               "--size", size, "--zipf", "0.9", "--quiet", "--json", report]
    command += ["--load", "--duration", "0"] if load else ["--rate", rate, "--duration", seconds]
    environment = {**os.environ, "AWS_ACCESS_KEY_ID": cluster.credentials.access_key,
                   "AWS_SECRET_ACCESS_KEY": cluster.credentials.secret_key}
    before = sent(cluster)
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(done.stderr[-800:] + done.stdout[-400:])
    if load:
        return None
    row = next(row for row in json.loads(report.read_text())["operations"] if row["operation"] == "read")
    loads = [now - then for then, now in zip(before, sent(cluster))]
    response = row["response_ms"]
    return {"mean": response["mean"], "median": response["p50"], "p99": response["p99"],
            "lambda": 100 * (max(loads) / statistics.mean(loads) - 1), "failed": sum(error["count"] for error in row["errors"])}


def sent(cluster):
    return [site["read_bytes"] for site in cluster.status()["cache"]["sites"]]


def measure(folder, split_kib, seconds, cards=RATE, warm=25, **what):
    os.environ["STRIATE_CACHE_SPLIT_KIB"] = str(split_kib)
    try:
        with Cards(folder, cards) as cluster:
            cluster.await_memory()
            cluster.client().make_bucket(BUCKET)
            read(cluster, 0, load=True, **what)
            read(cluster, warm, **what)
            return read(cluster, seconds, **what)
    finally:
        del os.environ["STRIATE_CACHE_SPLIT_KIB"]


def prove_reality(ledger, folder, full):
    if hosts.are_missing(ledger):
        return
    rounds, figures = (5 if full else 2), {}
    for number in range(rounds):
        kinds = [("coded", 1_024), ("whole", 0)]
        for name, split_kib in kinds[::1 if number % 2 else -1]:
            figures.setdefault(name, []).append(measure(folder / f"{name}-{number}", split_kib, 40 if full else 20))
    failed = sum(run["failed"] for runs in figures.values() for run in runs)
    ledger.add(f"reads of {OBJECTS} blocks of {SIZE} by Zipf 0.9 from {SITES} memory sites behind {RATE} each that failed", f"{failed}", failed == 0, "0")
    for key in ("mean", "median", "p99", "lambda"):
        coded, whole = ([run[key] for run in figures[name]] for name in ("coded", "whole"))
        ratios = [theirs / max(1e-9, ours) for ours, theirs in zip(coded, whole)]
        unit = "%" if key == "lambda" else " ms"
        ledger.add(f"{key} of whole blocks and copies over that of splits and parities, on processes",
                   f"{statistics.median(ratios):.2f} ({statistics.median(whole):.0f}{unit} and {statistics.median(coded):.0f}{unit})",
                   statistics.median(ratios) > 1, "> 1: the order of the laboratory", f"{spread(ratios)} over {rounds} rounds")
    if full:
        prove_crossover(ledger, folder)


def prove_crossover(ledger, folder):
    """Measures on this machine the size from which a block is better read as splits (EC-Cache, section 7.1)."""
    for cards, kib, rate in CROSSOVER:
        ratios = {"mean": [], "p99": []}
        for number in range(2):
            runs = {}
            kinds = [("coded", kib // 4), ("whole", 0)]
            for name, split_kib in kinds[::1 if number % 2 else -1]:
                runs[name] = measure(folder / f"{cards}-{kib}-{name}-{number}", split_kib, 15, cards, warm=10, size=f"{kib}KiB", rate=rate)
            for key, values in ratios.items():
                values.append(runs["whole"][key] / runs["coded"][key])
        ledger.add(f"whole blocks of {kib} KiB over four splits of {kib // 4} KiB each, cards of {cards}: mean, p99",
                      ", ".join(f"{statistics.median(values):.2f} ({spread(values)})" for values in ratios.values()))
