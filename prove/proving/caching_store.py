"""The memory tier of a real store: its memory, the cost of a hit, and how often a block is filled."""

import os
import random
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from .bodies import numbered
from .claims import spread
from .cluster import Cluster
from .load import bench_binary
from .load import run as load
from .meanwhile import Meanwhile
from .processes import cpu_ms, resident_bytes
from .s3 import Client
from .servers import Striate

MIB = 1 << 20
BUCKET = "cached"
BOUND_MIB = 256
BLOCK_KIB = 4_096
# Number of clients that read a cold block at once.
AT_ONCE = 64
# Sizes of blocks in KiB, and what objects of 10 MiB are cut into by them.
BLOCKS = {BLOCK_KIB: "blocks of 4, 4 and 2 MiB (k = 4, 4, 2)", 10_240: "one block (k = 10)"}
# Rounds of reads until all is in memory: a fill that finds others on their way is given up.
WARMING_ROUNDS = 20
# Sizes of the objects of the churn, in KiB.
SIZES = [1, 20, 64, 300, 1_024, 4_096, 10_240]


class Memory(Striate):
    """A server with `mib` MiB of memory for blocks; 0 for none."""

    def __init__(self, folder, mib):
        super().__init__(folder, environment={"STRIATE_CACHE_MIB": str(mib)})

    def watched(self):
        """Returns the id of the process whose memory is bounded."""
        return self.process.pid

    def cache(self):
        return self.status().get("cache")


class Churn:
    """Random reads of objects of mixed sizes, more than the store's cache holds, while a process's memory is watched."""

    def __init__(self, store):
        self.store, self.most = store, 0

    def measure(self, seconds):
        with self.store as store:
            self.idle = resident_bytes(store.watched())
            self.clients = self.begin()
            with ExitStack() as working:
                [working.enter_context(client) for client in self.clients]
                ends = time.monotonic() + seconds
                while time.monotonic() < ends:
                    self.most = max(self.most, resident_bytes(store.watched()))
                    time.sleep(0.1)
            self.cache = store.cache()
        return self

    def begin(self):
        """Fills the store and returns the clients."""
        self.fill()
        return [Reader(self, number) for number in range(4)]

    def fill(self):
        client = self.store.client()
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
        return numbered(self.bodies[key], kib * 1024)

    def refills(self):
        """Returns fills per block of the data set."""
        return self.cache["fills"] / self.blocks()

    def beyond_idle(self):
        return (self.most - self.idle) / (BOUND_MIB * MIB)


class Reader(Meanwhile):
    """One of the churn's clients."""

    def __init__(self, churn, number):
        super().__init__()
        self.churn, self.client, self.draw, self.keys = churn, churn.store.client(), random.Random(number), list(churn.bodies)

    def step(self):
        key = self.draw.choice(self.keys)
        if self.client.get(BUCKET, key) != self.churn.body(key, int(key.partition("/")[0])):
            raise ValueError(f"{key} is not what was put")


def prove_memory(ledger, folder, seconds):
    """Runs the same churn without a cache, with one, and with a memory site of a cluster, all at the same time."""
    stores = [Memory(folder / "without", 0), Memory(folder / "with", BOUND_MIB), Tier(folder / "site", 1, BOUND_MIB)]
    with ThreadPoolExecutor(len(stores)) as together:
        without, with_cache, site = together.map(lambda store: Churn(store).measure(seconds), stores)
    bound, what = BOUND_MIB * MIB, f"the bound of {BOUND_MIB} MiB, {seconds} s of churn of mixed sizes"
    over = (with_cache.most - without.most) / bound
    ledger.add(f"resident memory beyond that of the same load without a cache, over {what}",
               f"{over:.2f} ({with_cache.most / MIB:.0f} and {without.most / MIB:.0f} MiB at most)", over <= 1.05, "≤ 1.05")
    for name, churn in (("a server", with_cache), ("a memory site", site)):
        ledger.add(f"resident memory of {name} beyond that with an empty cache before the load, over {what}",
                   f"{churn.beyond_idle():.2f} ({churn.most / MIB:.0f} MiB at most, {churn.idle / MIB:.0f} before)", churn.beyond_idle() <= 1.05, "≤ 1.05")
        [counts] = churn.cache["sites"]
        ledger.add("   what its cache counts at the end, over its bound", f"{counts['charged_bytes'] / bound:.3f}",
                   counts["charged_bytes"] <= bound, "≤ 1", f"{counts['splits']} splits; {churn.cache['fills']} fills")
        hits = churn.cache["cached_bytes"] / sum(entry["bytes"] for entry in churn.cache["reads"])
        ledger.add("   fills over the blocks that there are: what was evicted is filled again", f"{churn.refills():.1f}", churn.refills() > 1, "> 1",
                   f"{hits:.2f} of the bytes came from memory")
    clients = [client for churn in (without, with_cache, site) for client in churn.clients]
    ledger.add("answers of the churns that were not the bytes that were put, or failed, by client", "; ".join(map(str, clients)),
               all(client.is_right() for client in clients), "each 0 of some")


def prove_one_fill(ledger, folder):
    """Has 64 clients read a cold object of one block at once, and counts its fills."""
    with Striate(folder / "fill", environment={"STRIATE_CACHE_MIB": "64"}) as server, ThreadPoolExecutor(AT_ONCE) as pool:
        client = server.client()
        client.make_bucket(BUCKET)
        rounds = []
        for number in range(5):
            body, key = os.urandom(4 * MIB), f"cold-{number}"
            client.put(BUCKET, key, body)
            before, barrier = server.status()["cache"], threading.Barrier(AT_ONCE, timeout=60)

            def read(_):
                own = server.client()
                barrier.wait()
                return own.get(BUCKET, key) == body

            right = sum(pool.map(read, range(AT_ONCE)))
            after = counted(server, before)
            rounds.append((after["fills"] - before["fills"], served(after, "miss") - served(before, "miss"), right))
        fills, misses, right = zip(*rounds)
        ledger.add(f"fills of a cold block that {AT_ONCE} clients read at once", f"{max(fills)} at most, over {len(rounds)} rounds",
                   set(fills) == {1} and set(right) == {AT_ONCE}, "1, all bytes right", f"{min(right)} of {AT_ONCE} right at least")
        ledger.add(f"   reads of it from the disks, of the {AT_ONCE}", f"{statistics.median(misses):.0f} in the median, {max(misses)} at most")


def counted(server, before):
    """Returns the cache's figures once they include all reads and a fill, and have stopped changing."""
    def figures(cache):
        return cache["fills"], sum(entry["reads"] for entry in cache["reads"])

    deadline, last = time.monotonic() + 30, None
    while time.monotonic() < deadline:
        now = server.status()["cache"]
        is_all = now["fills"] > before["fills"] and figures(now)[1] >= figures(before)[1] + AT_ONCE
        if is_all and figures(now) == last:
            return now
        last = figures(now)
        time.sleep(0.5)
    raise RuntimeError(f"{AT_ONCE} reads and a fill are not counted after 30 s: {before} and {now}")


def served(cache, how):
    return next(entry["reads"] for entry in cache["reads"] if entry["how"] == how)


class Tier:
    """A cluster with memory sites, presented as a server whose processor time is that of all gateways, sites and memory sites."""

    name = "cluster"

    def __init__(self, folder, memory_sites, memory_mib=512):
        self.cluster = Cluster(folder, gateways=1, memory_sites=memory_sites, memory_mib=memory_mib)

    def __enter__(self):
        self.cluster.__enter__()
        try:
            self.cluster.await_memory()
        except BaseException:
            self.cluster.__exit__()
            raise
        self.endpoint, self.credentials = self.cluster.endpoints()[0], self.cluster.credentials
        return self

    def __exit__(self, *reason):
        self.cluster.__exit__(*reason)

    def client(self):
        return Client(self.endpoint, self.credentials)

    def watched(self):
        return self.cluster.process("memory1").pid

    def cache(self):
        return self.cluster.status()["cache"]

    def cpu_ms(self):
        return sum(cpu_ms(process.pid) for name, process in self.cluster.running if not name.startswith(("etcd", "control")))

    def medium_read_bytes(self):
        return 0


def warm(tier, bucket, kib):
    """Writes objects of 10 MiB in blocks of `kib` KiB, and reads everything until a whole round is served from memory."""
    tier.cluster.run("bucket", "create", "--block-kib", kib, "--dir", tier.cluster.gateway, bucket)
    load(tier, bucket, "put", 10 * MIB, ops=8, objects=8, clients=2)
    for _ in range(WARMING_ROUNDS):
        before = tier.cache()
        load(tier, bucket, "get", 10 * MIB, ops=16, objects=8, clients=2)
        after = tier.cache()
        if all(served(after, how) == served(before, how) for how in ("miss", "partial", "bypass")):
            return
        time.sleep(1)
    raise RuntimeError(f"not all is in memory after {WARMING_ROUNDS} rounds: {after['reads']}")


def prove_hits(ledger, folder, rounds):
    """Compares the processor time of hits: blocks in splits on ten memory sites, and whole blocks on one."""
    if not bench_binary().exists():
        raise RuntimeError(f"there is no {bench_binary()}: `make prove-cache` builds it, or name it by STRIATE_BENCH")
    with Tier(folder / "coded", 10) as coded, Tier(folder / "whole", 1) as whole:
        for kib, blocks in BLOCKS.items():
            compare_hits(ledger, {"coded": coded, "whole": whole}, kib, blocks, rounds)


def compare_hits(ledger, tiers, kib, blocks, rounds):
    bucket, cost = f"{BUCKET}-{kib}", {}
    with ThreadPoolExecutor(len(tiers)) as together:
        list(together.map(lambda tier: warm(tier, bucket, kib), tiers.values()))
    for _ in range(rounds):
        for name, tier in tiers.items():
            before = tier.cache()
            figures = load(tier, bucket, "get", 10 * MIB, ops=60, objects=8, clients=2)
            after = tier.cache()
            hits = served(after, "hit") - served(before, "hit")
            total = sum(entry["reads"] for entry in after["reads"]) - sum(entry["reads"] for entry in before["reads"])
            cost.setdefault(name, []).append(figures["cpu_ms_per_operation"])
            cost.setdefault(f"{name} hits", []).append(hits / max(1, total))
    ratios = [one / two for one, two in zip(cost["coded"], cost["whole"])]
    ledger.add(f"processor time of a hit of 10 MiB, {blocks}, in splits on ten memory sites, over that of whole blocks on one, gateway and sites together",
               f"{statistics.median(ratios):.2f} ({statistics.median(cost['coded']):.1f} and {statistics.median(cost['whole']):.1f} ms)",
               statistics.median(ratios) <= 1.5, "≤ 1.5", f"{spread(ratios)} over {rounds} rounds")
    least = min(cost["coded hits"] + cost["whole hits"])
    ledger.add("   the share of these reads that were hits, at least", f"{least:.2f}", least >= 0.95, "≥ 0.95")
