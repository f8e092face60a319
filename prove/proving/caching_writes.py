"""Memory of a server's cache while clients put objects of mixed sizes and get them again."""

import http.client
import random
from concurrent.futures import ThreadPoolExecutor

from .bodies import numbered
from .caching_store import BOUND_MIB, BUCKET, MIB, SIZES, Churn, Memory
from .meanwhile import Meanwhile
from .s3 import S3Error

# MiB of a client's objects of one size; further puts replace them. The objects of all clients are three times the bound.
PER_SIZE_MIB = 40
# How an answer ends that is cut off.
CUT = (http.client.IncompleteRead, ConnectionResetError)


class Volatile(Memory):
    """A server with a bucket whose objects are in memory only."""

    name = "volatile"
    puts = "puts into a bucket in memory only"

    def make_bucket(self):
        self.run("bucket", "create", "--volatile", BUCKET)


class Cached(Memory):
    """A server that also caches what is written to its disks."""

    name = "cache-writes"
    puts = "puts with --cache-writes"

    def command(self):
        return [*super().command(), "--cache-writes"]

    def make_bucket(self):
        self.client().make_bucket(BUCKET)


class Writes(Churn):
    """Random puts and gets of objects of mixed sizes, while a process's memory is watched."""

    def begin(self):
        self.store.make_bucket()
        return [Writer(self.store, number) for number in range(4)]

    def total(self, what):
        return sum(getattr(client, what) for client in self.clients)


class Writer(Meanwhile):
    """One of the clients. Each step puts an object and gets one of those that this client has put."""

    def __init__(self, store, number):
        super().__init__()
        self.client, self.draw, self.number = store.client(), random.Random(number), number
        # Objects in memory only may be evicted, and refused where there is no room.
        self.may_lose = isinstance(store, Volatile)
        self.keys, self.put_bytes, self.refused, self.lost = [], 0, 0, 0

    def step(self):
        kib = self.draw.choice(SIZES)
        key = f"{self.number}/{kib}/{self.draw.randrange(max(1, min(400, PER_SIZE_MIB * 1024 // kib)))}"
        try:
            self.client.put(BUCKET, key, body_of(key))
            self.put_bytes += kib * 1024
            self.keys.append(key)
        except S3Error as error:
            if not self.may_lose or error.status != 503:
                raise
            self.refused += 1
        if self.keys:
            self.get(self.draw.choice(self.keys))

    def get(self, key):
        try:
            if self.client.get(BUCKET, key) != body_of(key):
                raise ValueError(f"{key} is not what was put")
        except (S3Error, *CUT) as error:
            # An object in memory only may be evicted before it is read, or while it is.
            if not self.may_lose or getattr(error, "status", 404) != 404:
                raise
            self.lost += 1


def body_of(key):
    kib = int(key.split("/")[1])
    return numbered(random.Random(key).randbytes(min(kib, 64) * 1024), kib * 1024)


def prove_written_memory(ledger, folder, seconds):
    """Runs the churn with objects in memory only, and with those that are on disks too, at the same time."""
    stores = [kind(folder / kind.name, BOUND_MIB) for kind in (Volatile, Cached)]
    with ThreadPoolExecutor(len(stores)) as together:
        churns = list(together.map(lambda store: Writes(store).measure(seconds), stores))
    bound = BOUND_MIB * MIB
    for churn in churns:
        ledger.add(f"resident memory of a server beyond that with an empty cache before the load, over the bound of {BOUND_MIB} MiB, {seconds} s of "
                   f"{churn.store.puts} and gets, of mixed sizes",
                   f"{churn.beyond_idle():.2f} ({churn.most / MIB:.0f} MiB at most, {churn.idle / MIB:.0f} before)", churn.beyond_idle() <= 1.05, "≤ 1.05")
        [counts] = churn.cache["sites"]
        ledger.add("   what its cache counts at the end, over its bound", f"{counts['charged_bytes'] / bound:.3f}",
                   counts["charged_bytes"] <= bound, "≤ 1", f"{counts['splits']} splits")
        ledger.add("   splits that were evicted: more was put than fits", f"{counts['evicted_data']}", counts["evicted_data"] > 0, "> 0",
                   f"{churn.total('put_bytes') / MIB:.0f} MiB put; {churn.total('refused')} puts refused for room, {churn.total('lost')} gets of evicted objects")
    clients = [client for churn in churns for client in churn.clients]
    ledger.add("answers of these churns that were not the bytes that were put, or failed, by client", "; ".join(map(str, clients)),
               all(client.is_right() for client in clients), "each 0 of some")
