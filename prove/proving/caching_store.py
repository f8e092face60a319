"""The memory tier of a real store: what it takes, what a hit costs, how often a block is filled."""

import os
import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from .claims import spread
from .cluster import Cluster
from .load import bench_binary
from .load import run as load
from .servers import CLOCK_TICKS_PER_S, Striate
from .s3 import Client

MIB = 1 << 20
BUCKET = "cached"
BOUND_MIB = 256
BLOCK_KIB = 4_096
# Sizes of the churn, in KiB.
SIZES = [1, 20, 64, 300, 1_024, 4_096, 10_240]


def resident_bytes(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmRSS in /proc")


class Churn:
    """Reads of random objects of mixed sizes from a server, more than its cache holds, while its memory is watched."""

    def __init__(self, folder, mib):
        self.server = Striate(folder, environment={"STRIATE_CACHE_MIB": str(mib)})
        self.most, self.wrong = 0, 0

    def measure(self, seconds):
        with self.server:
            self.idle = resident_bytes(self.server.process.pid)
            self.fill()
            stop = threading.Event()
            readers = [threading.Thread(target=self.read, args=(number, stop)) for number in range(4)]
            [reader.start() for reader in readers]
            ends = time.monotonic() + seconds
            while time.monotonic() < ends:
                self.most = max(self.most, resident_bytes(self.server.process.pid))
                time.sleep(0.1)
            stop.set()
            [reader.join() for reader in readers]
            self.cache = self.server.status().get("cache")
        return self

    def fill(self):
        client = self.server.client()
        client.make_bucket(BUCKET)
        self.bodies = {}
        for kib in SIZES:
            for number in range(max(8, min(400, 120 * 1024 // kib))):
                key = f"{kib}/{number}"
                self.bodies[key] = random.Random(key).randbytes(min(kib, 64) * 1024)
                client.put(BUCKET, key, self.body(key, kib))

    def blocks(self):
        return sum(-(-int(key.partition("/")[0]) // BLOCK_KIB) for key in self.bodies)

    def body(self, key, kib):
        return (self.bodies[key] * (kib // min(kib, 64)))[:kib * 1024]

    def read(self, number, stop):
        client, draw = self.server.client(), random.Random(number)
        keys = list(self.bodies)
        while not stop.is_set():
            key = draw.choice(keys)
            if client.get(BUCKET, key) != self.body(key, int(key.partition("/")[0])):
                self.wrong += 1


def prove_memory(ledger, folder, seconds):
    """The same churn without a cache and with one, at the same time."""
    with ThreadPoolExecutor(2) as both:
        without, with_cache = both.map(lambda mib: Churn(folder / f"churn-{mib}", mib).measure(seconds), (0, BOUND_MIB))
    bound = BOUND_MIB * MIB
    over = (with_cache.most - without.most) / bound
    ledger.add(f"resident memory beyond that of the same load without a cache, over the bound of {BOUND_MIB} MiB, {seconds} s of churn of mixed "
               "sizes", f"{over:.2f} ({with_cache.most / MIB:.0f} and {without.most / MIB:.0f} MiB at most)", over <= 1.05, "≤ 1.05")
    [site] = with_cache.cache["sites"]
    ledger.add("what the cache counts at the end, over its bound", f"{site['charged_bytes'] / bound:.3f}",
               site["charged_bytes"] <= bound, "≤ 1", f"{site['splits']} splits; {with_cache.cache['fills']} fills")
    refills = with_cache.cache["fills"] / with_cache.blocks()
    hits = with_cache.cache["cached_bytes"] / sum(entry["bytes"] for entry in with_cache.cache["reads"])
    ledger.add("fills over the blocks that there are: what was evicted is filled again", f"{refills:.1f}", refills > 1, "> 1",
               f"{hits:.2f} of the bytes came from memory")
    ledger.add("answers of the churn that were not the bytes that were put", f"{without.wrong + with_cache.wrong}",
               without.wrong + with_cache.wrong == 0, "0")


def prove_one_fill(ledger, folder):
    """64 clients at once on a cold object of one block."""
    with Striate(folder / "fill", environment={"STRIATE_CACHE_MIB": "64"}) as server:
        client = server.client()
        client.make_bucket(BUCKET)
        rounds = []
        for number in range(5):
            body = os.urandom(4 * MIB)
            client.put(BUCKET, f"cold-{number}", body)
            before = server.status()["cache"]
            barrier, wrong = threading.Barrier(64), []

            def read():
                own = server.client()
                barrier.wait()
                if own.get(BUCKET, f"cold-{number}") != body:
                    wrong.append(number)

            readers = [threading.Thread(target=read) for _ in range(64)]
            [reader.start() for reader in readers]
            [reader.join() for reader in readers]
            time.sleep(0.5)
            after = server.status()["cache"]
            rounds.append((after["fills"] - before["fills"], served(after, "miss") - served(before, "miss"), len(wrong)))
        fills, misses, wrong = zip(*rounds)
        ledger.add("fills of a cold block that 64 clients read at once", f"{max(fills)} at most, over {len(rounds)} rounds",
                   max(fills) == 1 and not any(wrong), "1, all bytes right")
        ledger.add("   reads of it from the disks, of the 64", f"{statistics.median(misses):.0f} in the median, {max(misses)} at most")


def served(cache, how):
    return next(entry["reads"] for entry in cache["reads"] if entry["how"] == how)


class Tier:
    """A cluster with some memory sites, as a server whose processor time is that of all its gateways, sites and memory sites."""

    name = "cluster"

    def __init__(self, folder, memory_sites):
        self.cluster = Cluster(folder, gateways=1, memory_sites=memory_sites, memory_mib=512)

    def __enter__(self):
        self.cluster.__enter__()
        self.endpoint, self.credentials = self.cluster.endpoints()[0], self.cluster.credentials
        return self

    def __exit__(self, *reason):
        self.cluster.__exit__(*reason)

    def client(self):
        return Client(self.endpoint, self.credentials)

    def cpu_ms(self):
        def of(process):
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()
            return (int(fields[11]) + int(fields[12])) * 1000 / CLOCK_TICKS_PER_S

        return sum(of(process) for name, process in self.cluster.running if not name.startswith(("etcd", "control")))

    def medium_read_bytes(self):
        return 0


def warm(tier, rounds=20):
    """Reads everything until a round finds all of it in memory."""
    for _ in range(rounds):
        before = tier.cluster.status()["cache"]
        load(tier, BUCKET, "get", 10 * MIB, ops=16, objects=8, clients=2)
        after = tier.cluster.status()["cache"]
        if all(served(after, how) == served(before, how) for how in ("miss", "partial", "bypass")):
            return
        time.sleep(1)
    raise RuntimeError(f"not all is in memory after {rounds} rounds: {after['reads']}")


def prove_hits(ledger, folder, rounds):
    """Processor time of hits, of blocks in splits on ten memory sites beside whole ones on one."""
    assert bench_binary().exists()
    with Tier(folder / "coded", 10) as coded, Tier(folder / "whole", 1) as whole:
        cost = {}
        for tier in (coded, whole):
            tier.client().make_bucket(BUCKET)
            load(tier, BUCKET, "put", 10 * MIB, ops=8, objects=8, clients=2)
            tier.cluster.wait_until(lambda: len(tier.cluster.status()["cache"]["sites"]) > 0)
            warm(tier)
        for _ in range(rounds):
            for name, tier in (("coded", coded), ("whole", whole)):
                before = tier.cluster.status()["cache"]
                figures = load(tier, BUCKET, "get", 10 * MIB, ops=60, objects=8, clients=2)
                after = tier.cluster.status()["cache"]
                hits = served(after, "hit") - served(before, "hit")
                total = sum(entry["reads"] for entry in after["reads"]) - sum(entry["reads"] for entry in before["reads"])
                cost.setdefault(name, []).append(figures["cpu_ms_per_operation"])
                cost.setdefault(f"{name} hits", []).append(hits / max(1, total))
        ratios = [one / two for one, two in zip(cost["coded"], cost["whole"])]
        ledger.add("processor time of a hit of 10 MiB in splits on ten memory sites, over that of whole blocks on one, gateway and sites together",
                   f"{statistics.median(ratios):.2f} ({statistics.median(cost['coded']):.1f} and {statistics.median(cost['whole']):.1f} ms)",
                   statistics.median(ratios) <= 1.5, "≤ 1.5", f"{spread(ratios)} over {rounds} rounds")
        least = min(cost["coded hits"] + cost["whole hits"])
        ledger.add("   the share of these reads that were hits, at least", f"{least:.2f}", least >= 0.95, "≥ 0.95")
