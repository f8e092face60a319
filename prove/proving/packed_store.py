"""A real store of small objects, split beside packed: what a GET, the metadata, the index and a repair cost.

Two servers on directories of their own get the same objects; in one of them they are packed (`striate pack run --now`).
Cold means that the page cache was dropped; the disk's reads are those that its own counters show.
"""

import os
import statistics
import threading
import time
from pathlib import Path

from .compare import drop_caches
from .load import run as load
from .servers import Striate

BUCKET = "small"
KIB = 1 << 10
# 1 to 64 KiB, each size equally often.
SIZES = [1, 2, 4, 8, 16, 24, 32, 48, 64]
GETS = 4_000
PUT_CLIENTS = 32


def prefix(kib):
    return f"{kib:02}k-"


def device_reads(path):
    """Reads that the disk under `path` has completed, by its own counter."""
    number = os.stat(path).st_dev
    fields = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat").read_text().split()
    return int(fields[0])


class Side:
    """One server with all objects."""

    def __init__(self, folder, pack):
        # Nothing is packed but by command.
        self.server = Striate(folder, environment={"STRIATE_PACK": "off"})
        self.pack = pack
        self.figures = {}

    def fill(self, count):
        self.server.client().make_bucket(BUCKET)
        for kib in SIZES:
            share = count // len(SIZES)
            load(self.server, BUCKET, "put", kib * KIB, ops=share, objects=share, prefix=prefix(kib), clients=PUT_CLIENTS)
        if self.pack:
            self.server.run("pack", "run", BUCKET, "--now", "--quiet", timeout_s=7200)
        status = self.server.status()
        self.figures["chunks"] = sum(site["capacity"]["chunks"] for site in status["sites"])
        self.figures["metadata_bytes"] = status["mirrors"][0]["bytes"]
        self.figures["packed"] = status["packing"]["figures"]["live_objects"]

    def get(self, count, cold):
        """Processor time and disk reads of a GET, over all sizes."""
        share, cpu, reads = count // len(SIZES), [], 0
        for kib in SIZES:
            if cold:
                drop_caches()
            before = device_reads(self.server.base)
            operations = min(GETS // len(SIZES), share) if cold else GETS // len(SIZES)
            found = load(self.server, BUCKET, "get", kib * KIB, ops=operations, objects=share, prefix=prefix(kib), clients=4)
            reads += (device_reads(self.server.base) - before) / operations
            cpu.append(found["cpu_ms_per_operation"])
        return {"cpu_ms": statistics.fmean(cpu), "disk_reads": reads / len(SIZES)}

    def repair(self):
        """Seconds and chunks of the repair of a lost directory."""
        self.server.wipe(0)
        began = time.monotonic()
        self.server.run("heal", timeout_s=7200)
        status = self.server.status()
        return {"seconds": time.monotonic() - began, "left": status["debt_stripes"]}


def prove_store(ledger, folder, count):
    """Adds the claims on a store of `count` objects."""
    split, packed = Side(folder / "split", pack=False), Side(folder / "packed", pack=True)
    with split.server, packed.server:
        for side in (split, packed):
            side.fill(count)
        ledger.note(f"{count} objects; {packed.figures['packed']} of them packed")
        for name, cold in (("cold", True), ("warm", False)):
            for side in (split, packed):
                side.figures[name] = side.get(count, cold)
        for side in (split, packed):
            side.figures["repair"] = side.repair()
    ledger.record("packed_store", {"objects": count, "split": split.figures, "packed": packed.figures})
    ours, theirs = packed.figures, split.figures
    of = f"{count} objects of 1 to 64 KiB"
    ledger.add(f"disk reads of a cold GET, {of}, packed",
               f"{ours['cold']['disk_reads']:.2f}; split {theirs['cold']['disk_reads']:.2f}",
               ours["cold"]["disk_reads"] <= 1.2, "≤ 1.2, by the disk's own counter")
    for name in ("cold", "warm"):
        ratio = ours[name]["cpu_ms"] / theirs[name]["cpu_ms"]
        ledger.add(f"processor time of a {name} GET, packed over split",
                     f"{ratio:.2f} ({ours[name]['cpu_ms']:.3f} ms and {theirs[name]['cpu_ms']:.3f} ms)")
    share = ours["chunks"] / theirs["chunks"]
    ledger.add("chunks, and so entries of the index, packed over split",
               f"{share:.3f} ({ours['chunks']} and {theirs['chunks']})", share <= 0.1, "≤ 0.1")
    ledger.add("metadata for an object",
                 f"{ours['metadata_bytes'] / count:.0f} bytes packed, {theirs['metadata_bytes'] / count:.0f} split")
    seconds = ours["repair"]["seconds"] / theirs["repair"]["seconds"]
    ledger.add("repair of a lost directory, time packed over split",
               f"{seconds:.2f} ({ours['repair']['seconds']:.1f} s and {theirs['repair']['seconds']:.1f} s)",
               ours["repair"]["left"] == 0 and seconds <= 1, "whole, and no slower")


def prove_pace(ledger, folder, count):
    """How fast packing is beside writing, and what clients notice of it."""
    size = 16 * KIB
    with Striate(folder / "pace", environment={"STRIATE_PACK": "off"}) as server:
        server.client().make_bucket(BUCKET)
        put = load(server, BUCKET, "put", size, ops=count, objects=count, prefix="a-", clients=PUT_CLIENTS)
        began = time.monotonic()
        server.run("pack", "run", BUCKET, "--now", "--quiet", timeout_s=7200)
        packed = server.status()["packing"]["figures"]["live_objects"]
        pace = packed / (time.monotonic() - began)
        rate = put["operations"] / put["seconds"]
        ledger.add("packing when nothing else runs, over the PUT rate of the same store, objects of 16 KiB",
                   f"{pace / rate:.2f} ({pace:.0f} and {rate:.0f} objects a second; {packed} packed)", pace >= 2 * rate, "≥ 2")
        alone = load(server, BUCKET, "get", size, seconds=10, objects=count, prefix="a-", clients=4)
        load(server, BUCKET, "put", size, ops=count, objects=count, prefix="b-", clients=PUT_CLIENTS)
        packing = threading.Thread(target=server.run, args=("pack", "run", BUCKET, "--now", "--quiet"),
                                   kwargs={"timeout_s": 7200, "check": False})
        packing.start()
        beside = load(server, BUCKET, "get", size, seconds=10, objects=count, prefix="a-", clients=4)
        packing.join()
        p99 = beside["p99_ms"] / alone["p99_ms"]
        ledger.add("p99 of GETs of 16 KiB beside packing at full pace (`pack run`), over that without",
                   f"{p99:.2f} ({beside['p99_ms']:.2f} and {alone['p99_ms']:.2f} ms)",
                   p99 <= 1.25, "≤ 1.25")
