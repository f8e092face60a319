"""Striate beside MinIO: the same loads on the same disk, in alternating rounds.

Both servers run on six fresh directories with two parities, and both acknowledge only durable writes. While one is loaded the other
is idle. Every figure of a claim is a ratio within one round; the claim is about the median of the rounds.

An uncounted pass over the objects precedes a warm GET. Both servers write past the page cache, and the cold GETs of the round before
have emptied it: without this pass the second server would read from the disk.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from . import load
from .claims import median, spread
from .folders import fresh_folder
from .servers import MinIO, Striate

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"10 KiB": 10 * KIB, "100 KiB": 100 * KIB, "1 MiB": MIB, "10 MiB": 10 * MIB}
BUCKET = "compare"
# At least this many times MinIO's operations per second.
RATE_BARS = {
    "get": {"10 KiB": 1.5, "100 KiB": 1.5, "1 MiB": 1.5, "10 MiB": 1.0},
    "put": {"10 KiB": 3.0, "100 KiB": 3.0, "1 MiB": 1.2, "10 MiB": 1.0},
}
# At most this share of MinIO's CPU time per operation.
GET_CPU_BARS = {"10 KiB": 0.5, "100 KiB": 0.5, "1 MiB": 0.5}
MEMORY_BAR = 0.25
DISK_BARS = {"10 KiB": 2.5}
# Measurements of a size in each round (default 1): one load of large objects has too few operations for a tail.
TURNS = {"1 MiB": 2, "10 MiB": 2}


@dataclass
class Extent:
    """The extent of a run."""

    rounds: int
    seconds: float
    objects: dict  # size name → number of objects written and read

    @classmethod
    def short(cls):
        return cls(3, 2.0, {"10 KiB": 4000, "100 KiB": 2000, "1 MiB": 300, "10 MiB": 96})

    @classmethod
    def full(cls):
        return cls(7, 5.0, {name: 10**9 // size for name, size in SIZES.items()})


def drop_caches():
    """Empties the page cache; returns False if that is not allowed."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3\n")
        return True
    except OSError:
        return False


class Comparison:
    def __init__(self, ledger, servers, extent):
        self.ledger, self.servers, self.extent = ledger, servers, extent
        self.rounds = {}  # (operation, size name) → list of {server name: figures}
        self.disk = {}  # (server name, size name) → bytes on disk per byte

    def fill(self):
        """Writes the objects that GETs read, and measures their size on disk."""
        for name, size in SIZES.items():
            count = self.extent.objects[name]
            for server in self.servers:
                before = server.disk_bytes()
                load.run(server, BUCKET, "put", size, ops=count, prefix=f"fill-{size}-")
                self.disk[server.name, name] = (server.disk_bytes() - before) / (count * size)
            self.ledger.note(f"filled with {count} objects of {name}")

    def measure(self, cold_possible):
        operations = ["put", "get", "get cold"] if cold_possible else ["put", "get"]
        for number in range(self.extent.rounds):
            for name in SIZES:
                for turn in range(TURNS.get(name, 1)):
                    order = self.servers if (number + turn) % 2 == 0 else self.servers[::-1]
                    for operation in operations:
                        self.one_round(f"{number}-{turn}", name, operation, order)
            self.ledger.note(f"round {number + 1} of {self.extent.rounds} done")

    def one_round(self, label, name, operation, order):
        figures = {}
        for server in order:
            os.sync()  # neither server pays for the other's dirty pages
            if operation == "get":
                self.read_all(server, name)
            if operation == "get cold":
                drop_caches()
            figures[server.name] = self.one_load(server, label, name, operation)
        self.rounds.setdefault((operation, name), []).append(figures)

    def read_all(self, server, name, seconds=None):
        """Reads every object once or, given `seconds`, in cycles for that long."""
        size, objects = SIZES[name], self.extent.objects[name]
        once = None if seconds else objects
        return load.run(server, BUCKET, "get", size, seconds=seconds, ops=once, objects=objects,
                        prefix=f"fill-{size}-")

    def one_load(self, server, label, name, operation):
        size, seconds = SIZES[name], self.extent.seconds
        if operation == "put":
            return load.run(server, BUCKET, "put", size, seconds=seconds, prefix=f"round-{label}-{size}-")
        # A second cycle of a cold GET would be warm.
        return self.read_all(server, name, seconds if operation == "get" else None)

    def middle(self, operation, name, server, figure):
        return median([figures[server][figure] for figures in self.rounds[operation, name]])

    def ratios(self, operation, name, figure):
        return [figures["striate"][figure] / max(1e-9, figures["minio"][figure])
                for figures in self.rounds[operation, name]]

    def table(self):
        """Prints the figures of both servers."""
        self.ledger.note("operation, size: server operations/s, p50 ms, p99 ms, server CPU ms per operation")
        for operation, name in self.rounds:
            for server in self.servers:
                values = [self.middle(operation, name, server.name, figure)
                          for figure in ("operations_per_s", "p50_ms", "p99_ms", "cpu_ms_per_operation")]
                rate, p50, p99, cpu = values
                self.ledger.note(f"{operation} {name}: {server.name} {rate:.0f}, {p50:.1f}, {p99:.1f}, {cpu:.2f}")
        for name in SIZES if ("get cold", "10 MiB") in self.rounds else ():
            for server in self.servers:
                read = self.middle("get cold", name, server.name, "medium_bytes_per_byte")
                self.ledger.note(f"get cold {name}: {server.name} read {read:.2f} bytes from the disk for each that it sent")
        for server in self.servers:
            disk = ", ".join(f"{name} {self.disk[server.name, name]:.2f}" for name in SIZES)
            memory = server.peak_memory_bytes() / MIB
            self.ledger.note(f"{server.name}: peak memory {memory:.0f} MiB; bytes on disk per byte: {disk}")

    def claim(self):
        for (operation, name) in self.rounds:
            self.claim_rate(operation, name)
        for (operation, name) in self.rounds:
            self.claim_p99(operation, name)
        for (operation, name) in self.rounds:
            self.claim_cpu(operation, name)
        self.claim_memory()
        self.claim_disk()

    def claim_rate(self, operation, name):
        ratios = self.ratios(operation, name, "operations_per_s")
        bar = RATE_BARS[operation.split()[0]][name]
        ours, theirs = (self.middle(operation, name, server, "operations_per_s") for server in ("striate", "minio"))
        self.ledger.add(f"{operation.upper()} {name}: operations/s over MinIO's", bar=f"≥ {bar} ×",
                        measured=f"{median(ratios):.2f} × ({ours:.0f} against {theirs:.0f})", spread=spread(ratios),
                        holds=median(ratios) >= bar)

    def claim_p99(self, operation, name):
        ratios = self.ratios(operation, name, "p99_ms")
        ours, theirs = (self.middle(operation, name, server, "p99_ms") for server in ("striate", "minio"))
        self.ledger.add(f"{operation.upper()} {name}: p99 over MinIO's", bar="≤ 1 ×",
                        measured=f"{median(ratios):.2f} × ({ours:.1f} against {theirs:.1f} ms)", spread=spread(ratios),
                        holds=median(ratios) <= 1.0)

    def claim_cpu(self, operation, name):
        ratios = self.ratios(operation, name, "cpu_ms_per_operation")
        bar = GET_CPU_BARS.get(name) if operation.startswith("get") else None
        ours, theirs = (self.middle(operation, name, server, "cpu_ms_per_operation") for server in ("striate", "minio"))
        self.ledger.add(f"{operation.upper()} {name}: server CPU per operation over MinIO's",
                        bar=f"≤ {bar} ×" if bar else "",
                        measured=f"{median(ratios):.2f} × ({ours:.2f} against {theirs:.2f} ms)", spread=spread(ratios),
                        holds=median(ratios) <= bar if bar else None)

    def claim_memory(self):
        ours, theirs = (server.peak_memory_bytes() for server in self.servers)
        self.ledger.add("peak resident memory over MinIO's", bar=f"≤ {MEMORY_BAR} ×",
                        measured=f"{ours / theirs:.2f} × ({ours / MIB:.0f} against {theirs / MIB:.0f} MiB)",
                        holds=ours <= MEMORY_BAR * theirs)

    def claim_disk(self):
        for name, size in SIZES.items():
            ours, theirs = self.disk["striate", name], self.disk["minio", name]
            bar = DISK_BARS.get(name)
            written = self.extent.objects[name] * size / 1e9
            self.ledger.add(f"bytes on disk per byte at {name} (after {written:.2f} GB)",
                            bar=f"≤ {bar}" if bar else "", measured=f"{ours:.2f} (MinIO {theirs:.2f})",
                            holds=ours <= bar if bar else None)


def compare(ledger, extent, only=None, base=None):
    """Runs the whole comparison; `only` restricts it to one server's figures, without claims."""
    with fresh_folder("striate-compare-", base) as folder:
        kinds = {"striate": Striate, "minio": MinIO}
        servers = [kind(Path(folder) / name) for name, kind in kinds.items() if only in (None, name)]
        try:
            for server in servers:
                server.start()
                server.client().make_bucket(BUCKET)
            cold_possible = drop_caches()
            if not cold_possible:
                ledger.note("not root: the page cache cannot be dropped, so cold GETs are NOT measured")
            comparison = Comparison(ledger, servers, extent)
            comparison.fill()
            comparison.measure(cold_possible)
            comparison.table()
            ledger.record("compare", {
                "rounds": {f"{operation} {name}": rounds for (operation, name), rounds in comparison.rounds.items()},
                "disk": {f"{server} {name}": ratio for (server, name), ratio in comparison.disk.items()},
            })
            if only is None:
                comparison.claim()
        finally:
            for server in servers:
                server.stop()
