"""How often a cold block is fetched from MinIO when clients of two gateways read it at once."""

import os
import re
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from .caching_fences import Cached
from .caching_store import AT_ONCE, BLOCK_KIB
from .servers import MinIO

BUCKET = "fetched"
# Rounds with objects that no gateway knows, and as many with objects that both know.
ROUNDS = 3
GETS = re.compile(r'^minio_api_requests_total\{[^}]*name="GetObject"[^}]*\} (\S+)$', re.MULTILINE)


class Counted(MinIO):
    """A MinIO that tells how many GETs of objects it has answered."""

    def __init__(self, base):
        super().__init__(base, directories=4, environment={"MINIO_PROMETHEUS_AUTH_TYPE": "public"})

    def gets(self):
        with urllib.request.urlopen(f"{self.endpoint}/minio/metrics/v3/api/requests", timeout=10) as answer:
            return sum(int(float(count)) for count in GETS.findall(answer.read().decode()))


class Rush:
    """All clients read a cold object of one block at once, half of them through each gateway."""

    def __init__(self, origin, cluster, key):
        self.origin, self.cluster, self.key, self.body = origin, cluster, key, os.urandom(BLOCK_KIB * 1024)
        origin.client().put(BUCKET, key, self.body)

    def make_known(self):
        """Has both gateways know the object, but none of its bytes."""
        for gateway in self.cluster.gateways:
            self.cluster.client(gateway).expect("HEAD", f"/{BUCKET}/{self.key}")

    def measure(self, pool):
        before, barrier = self.counts(), threading.Barrier(AT_ONCE, timeout=60)

        def read(number):
            client = self.cluster.client(1 + number % len(self.cluster.gateways))
            barrier.wait()
            return client.get(BUCKET, self.key) == self.body

        self.right = sum(pool.map(read, range(AT_ONCE)))
        self.fills, self.gets = (after - then for then, after in zip(before, self.counts_after(before)))
        return self

    def counts(self):
        """Returns the fills of both gateways and the GETs that MinIO has answered so far."""
        return sum(self.cluster.status(gateway)["cache"]["fills"] for gateway in self.cluster.gateways), self.origin.gets()

    def counts_after(self, before):
        """Returns the counts once they include a fill and have stopped changing."""
        deadline, last = time.monotonic() + 30, None
        while time.monotonic() < deadline:
            now = self.counts()
            if now == last and now[0] > before[0]:
                return now
            last = now
            time.sleep(0.5)
        raise RuntimeError(f"no fill of {self.key} is counted after 30 s: {before} and {now}")


def prove_one_fetch(ledger, folder):
    """Has 64 clients read a cold block through two gateways at once, and counts its fills, and its GETs at the origin."""
    with Counted(folder / "minio") as origin, Cached(folder / "cluster", origin) as cluster, ThreadPoolExecutor(AT_ONCE) as pool:
        cluster.await_that(lambda: all(len(cluster.status(gateway)["cache"]["sites"]) == len(cluster.memory_sites) for gateway in cluster.gateways),
                           "all gateways know the memory sites")
        cluster.make_bucket(BUCKET)
        unknown = [Rush(origin, cluster, f"unknown-{number}").measure(pool) for number in range(ROUNDS)]
        known = [Rush(origin, cluster, f"known-{number}") for number in range(ROUNDS)]
        for rush in known:
            rush.make_known()
            rush.measure(pool)
    rushes, at_once = unknown + known, f"{AT_ONCE} clients of two gateways read at once"
    right = min(rush.right for rush in rushes)
    ledger.add(f"fills of a cold block of {BLOCK_KIB >> 10} MiB at MinIO that {at_once}",
               f"{max(rush.fills for rush in rushes)} at most, over {len(rushes)} rounds",
               all(rush.fills == 1 and rush.right == AT_ONCE for rush in rushes), "1, all bytes right", f"{right} of {AT_ONCE} right at least")
    for what, of_kind, most, bar in (("both gateways know, but nothing of its bytes", known, 1, "1"),
                                     ("no gateway knows: each asks for it and its first block in one request", unknown, len(cluster.gateways), "1 or 2")):
        gets = [rush.gets for rush in of_kind]
        ledger.add(f"   GETs that MinIO answered, of an object that {what}", f"{max(gets)} at most, over {len(gets)} rounds",
                   min(gets) >= 1 and max(gets) <= most, bar, f"{min(gets)}–{max(gets)}")
