"""Capacity of memory that survives the loss of a process: a bucket in several memory sites, with a parity, beside Redis with a replica.

Both are given blocks, once until the first eviction and once half more than they can keep, so that they evict the least recently used.
Then every block is read and compared, one process is killed (a memory site; or Redis's primary, whose replica then serves the reads),
and every block is read again. The figure is the bytes of blocks that are right after the kill, over the resident memory, just before
it, of the processes that keep them.

The bars are arithmetic. A block in k splits and r parities takes (k + r) / k of its bytes, and one in Redis with a replica takes 2. So
Striate holds 2 k / (k + r) times as much, less `OVERHEAD` for a process's other memory and for unevenly filled sites.
"""

import os
import random
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from dataclasses import dataclass

from .claims import median, spread
from .cluster import Cluster
from .processes import resident_bytes
from .servers import free_port

MIB = 1 << 20
BUCKET = "kv-parity"
SITES, SITE_MIB = 6, 256
REDIS_MIB = SITES * SITE_MIB // 2
OVERHEAD = 0.15
OVERFILL = 1.5
# Bytes stored between two waits for Redis's replica and checks for evictions.
STEP_BYTES = 8 * MIB
UNTIL_EVICTION, OVERFILLED = "until something is evicted", "half more than fits"


@dataclass
class Shape:
    """Blocks of `kib` KiB in `k` splits: of the default size or, if given, of `split_kib` KiB."""

    kib: int
    k: int
    split_kib: int | None = None
    parities: int = 1

    @property
    def factor(self):
        """Capacity as a multiple of what Redis with a replica holds in the same memory."""
        return 2 * self.k / (self.k + self.parities)

    def __str__(self):
        size = f"{self.kib} KiB" if self.kib < 1024 else f"{self.kib >> 10} MiB"
        cut = f" (--cache-split-kib {self.split_kib})" if self.split_kib else ""
        return f"blocks of {size} as rs({self.k},{self.parities}){cut}"


SHAPES = [Shape(4096, 4), Shape(256, 1), Shape(256, 4, split_kib=64)]


class Blocks:
    """Half more blocks than fit, each with different bytes."""

    def __init__(self, shape):
        self.size = shape.kib << 10
        self.count = int(OVERFILL * max(1, shape.factor) * REDIS_MIB * MIB / self.size)
        self.random = random.Random(shape.kib).randbytes(MIB + self.size)

    def of(self, number):
        start = number * 7919 % MIB
        return self.random[start:start + self.size]

    def put(self, put, step):
        """Stores blocks in order until `step`, called every few MiB, returns True. Returns the number stored."""
        for number in range(self.count):
            put(f"block-{number}", self.of(number))
            if (number + 1) % max(1, STEP_BYTES // self.size) == 0 and step():
                return number + 1
        return self.count

    def right(self, get, count):
        """Counts how many of the first `count` blocks read back as stored. A missing block does not count; wrong bytes are an error."""
        right = 0
        for number in range(count):
            data = get(f"block-{number}")
            if data is not None and data != self.of(number):
                raise RuntimeError(f"block {number} was read wrong")
            right += data is not None
        return right


@dataclass
class Held:
    """Numbers of blocks that one side stored, and held before and after the kill, and its resident memory in bytes."""

    put: int
    before: int
    after: int
    resident: int
    beside: int  # resident memory of its other processes

    def share(self, blocks, with_others=False):
        """Returns bytes held after the kill per resident byte of the processes that keep blocks, or of all processes."""
        return self.after * blocks.size / (self.resident + (self.beside if with_others else 0))


def coded(folder, shape, blocks, filling):
    """Measures a cluster of memory sites, one of which is killed."""
    if shape.split_kib:
        os.environ["STRIATE_CACHE_SPLIT_KIB"] = str(shape.split_kib)
    try:
        with Cluster(folder, gateways=1, sites=3, memory_sites=SITES, memory_mib=SITE_MIB) as cluster:
            cluster.await_memory()
            cluster.run("bucket", "create", "--dir", folder / "id" / "gateway1", "--volatile", "--parities", shape.parities, BUCKET)
            client = cluster.client()

            def has_evicted():
                return any(site["evicted_data"] + site["evicted_parities"] for site in cluster.status()["cache"]["sites"])

            def get(key):
                answer = client.send("GET", f"/{BUCKET}/{key}")
                if answer.status not in (200, 404, 503):
                    raise RuntimeError(f"{key}: {answer.status} {answer.body[:200]!r}")
                return answer.body if answer.status == 200 else None

            put = blocks.put(lambda key, data: client.put(BUCKET, key, data), lambda: filling == UNTIL_EVICTION and has_evicted())
            before = blocks.right(get, put)
            resident = {name: resident_bytes(process.pid) for name, process in cluster.running}
            cluster.kill("memory1")
            after = blocks.right(get, put)
            of_memory = sum(size for name, size in resident.items() if name.startswith("memory"))
            return Held(put, before, after, of_memory, sum(resident.values()) - of_memory)
    finally:
        os.environ.pop("STRIATE_CACHE_SPLIT_KIB", None)


class Redis:
    """One Redis process and a connection to it."""

    def __init__(self, folder, mib, *options):
        self.port = free_port()
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "", "--appendonly", "no",
             "--maxmemory", f"{mib}mb", "--maxmemory-policy", "allkeys-lru", *map(str, options)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )
        self.socket = self.connect()
        self.stream = self.socket.makefile("rb")

    def connect(self):
        deadline = time.monotonic() + 20
        while True:
            try:
                return socket.create_connection(("127.0.0.1", self.port), 60)
            except OSError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise
                time.sleep(0.02)

    def ask(self, *words):
        """Sends one command and returns its answer: a number, bytes, or None."""
        words = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))
        line = self.stream.readline()
        if line[:1] == b"$":
            length = int(line[1:])
            return None if length < 0 else self.stream.read(length + 2)[:-2]
        if line[:1] == b"-" or not line:
            raise RuntimeError(f"Redis: {line.decode() or 'has gone'}")
        return int(line[1:]) if line[:1] == b":" else line[1:].strip()

    def kill(self):
        self.socket.close()
        self.process.kill()
        self.process.wait()


@contextmanager
def primary_and_replica(folder):
    if shutil.which("redis-server") is None:
        raise RuntimeError("there is no redis-server: apt-get install redis-server")
    primary = Redis(folder, REDIS_MIB)
    try:
        replica = Redis(folder, REDIS_MIB, "--replicaof", "127.0.0.1", primary.port)
        try:
            deadline = time.monotonic() + 30
            while b"master_link_status:up" not in replica.ask("INFO", "replication"):
                if time.monotonic() > deadline:
                    raise RuntimeError("the replica did not connect")
                time.sleep(0.05)
            yield primary, replica
        finally:
            replica.kill()
    finally:
        primary.kill()


def copied(folder, blocks, filling):
    """Measures Redis and its replica; the primary is killed."""
    with primary_and_replica(folder) as (primary, replica):

        def settled():
            primary.ask("WAIT", 1, 10_000)
            return filling == UNTIL_EVICTION and b"evicted_keys:0" not in primary.ask("INFO", "stats")

        put = blocks.put(lambda key, data: primary.ask("SET", key, data), settled)
        settled()
        before = blocks.right(lambda key: primary.ask("GET", key), put)
        for one in (primary, replica):
            one.ask("MEMORY", "PURGE")
        resident = sum(resident_bytes(one.process.pid) for one in (primary, replica))
        primary.kill()
        return Held(put, before, blocks.right(lambda key: replica.ask("GET", key), put), resident, 0)


def rounds_of(ledger, folder, shape, blocks, filling, rounds):
    """Returns what both sides held in each round."""
    found = []
    for number in range(rounds):
        sides = {"striate": lambda place: coded(place, shape, blocks, filling), "redis": lambda place: copied(place, blocks, filling)}
        held = {}
        for name in list(sides)[::1 if number % 2 else -1]:
            place = folder / name
            place.mkdir(parents=True)
            held[name] = sides[name](place)
            shutil.rmtree(place, ignore_errors=True)
        found.append(held)
        ledger.note(f"{shape}, {filling}: " + "; ".join(
            f"{name} {one.put} put, {one.before} right, {one.after} after the kill, {one.resident / MIB:.0f} MiB resident"
            f"{f' ({one.beside / MIB:.0f} in its other processes)' if one.beside else ''}" for name, one in held.items()))
    ledger.record(f"{shape}, {filling}", [{name: vars(one) for name, one in held.items()} for held in found])
    return found


def measure(ledger, folder, shape, filling, rounds):
    blocks, bar = Blocks(shape), (1 - OVERHEAD) * shape.factor
    found = rounds_of(ledger, folder, shape, blocks, filling, rounds)
    ratios = [held["striate"].share(blocks) / held["redis"].share(blocks) for held in found]
    each = {name: median([held[name].share(blocks) for held in found]) for name in ("striate", "redis")}
    ledger.add(f"{shape}, {filling}: bytes held after the loss of a process, per resident byte, over Redis with a replica",
               f"{median(ratios):.2f} × ({each['striate']:.2f} and {each['redis']:.2f})", median(ratios) >= bar,
               f"≥ {bar:.2f}: {1 - OVERHEAD:.2f} × 2·{shape.k} / {shape.k + shape.parities}", spread(ratios))
    ratios = [held["striate"].share(blocks, with_others=True) / held["redis"].share(blocks, with_others=True) for held in found]
    ledger.add("   the same with the memory of all processes: gateway, sites on disk, control and etcd too", f"{median(ratios):.2f} ×", spread=spread(ratios))
    lost = [held["striate"].before - held["striate"].after for held in found]
    ledger.add("   blocks that Striate's memory sites held before the kill and not after it",
               f"{max(lost)} of {max(held['striate'].before for held in found)} at most")


def prove_capacity(ledger, folder, rounds):
    ledger.note(f"{SITES} memory sites of {SITE_MIB} MiB; Redis and its replica, {REDIS_MIB} MiB each")
    for shape in SHAPES:
        for filling in (UNTIL_EVICTION, OVERFILLED):
            measure(ledger, folder, shape, filling, rounds)
