"""A real store of small objects, split beside packed: the cost of a GET, the metadata, the index and a repair.

Two servers, one after the other, get the same objects; one of them packs them (`striate pack run --now`). Cold means that the page
cache was dropped. Disk reads come from the disk's own counters.
"""

import json
import os
import shutil
import statistics
import threading
import time
from pathlib import Path

from .compare import drop_caches
from .load import run as load
from .servers import Striate

BUCKET = "small"
KIB = 1 << 10
# Sizes in KiB, each equally often.
SIZES = [1, 2, 4, 8, 16, 32, 64]
GETS = 4_000
PUT_CLIENTS = 32
GRACE_S = 60


def prefix(kib):
    return f"{kib:02}k-"


def device_reads(path):
    """Returns the number of reads that the disk under `path` has completed, by its own counter."""
    number = os.stat(path).st_dev
    fields = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}/stat").read_text().split()
    return int(fields[0])


def chunks_of(status):
    return sum(site["capacity"]["chunks"] for site in status["sites"])


class Side:
    """One server with all objects."""

    def __init__(self, folder, pack):
        # Objects are packed only by command.
        self.server = Striate(folder, environment={"STRIATE_PACK": "off"})
        self.pack = pack
        self.figures = {}

    def measure(self, count):
        """Measures all figures of `count` objects."""
        with self.server:
            self.fill(count)
            self.settle()
            for name, cold in (("cold", True), ("warm", False)):
                self.figures[name] = self.get(count, cold)
            self.figures["repair"] = self.repair()

    def fill(self, count):
        self.server.client().make_bucket(BUCKET)
        for kib in SIZES:
            share = count // len(SIZES)
            load(self.server, BUCKET, "put", kib * KIB, ops=share, objects=share, prefix=prefix(kib), clients=PUT_CLIENTS)
        if self.pack:
            self.server.run("pack", "run", BUCKET, "--now", "--quiet", timeout_s=7200)
            self.wait_for_space(count)
        status = self.server.status()
        self.figures["chunks"] = chunks_of(status)
        self.figures["rows"], self.figures["metadata_bytes"] = self.metadata()
        self.figures["packed"] = status["packing"]["figures"]["live_objects"]

    def metadata(self):
        """Returns the number of metadata rows, and the bytes of their keys and values."""
        archive = self.server.base / "metadata.jsonl"
        self.server.run("admin", "meta", "export", archive, timeout_s=7200)
        rows = size = 0
        with open(archive) as lines:
            for line in lines:
                row = json.loads(line)
                if "k" in row:
                    rows, size = rows + 1, size + (len(row["k"]) + len(row["v"])) // 2
        archive.unlink()
        return rows, size

    def wait_for_space(self, count):
        """Waits for the removal of the objects' old chunks, which remain as garbage for a minute."""
        deadline = time.monotonic() + GRACE_S + count / 500
        while chunks_of(self.server.status()) > count / 10 and time.monotonic() < deadline:
            time.sleep(2)

    def settle(self, deadline_s=180):
        """Waits for three seconds with fewer than 30 disk reads.

        Released space is compacted in the background, and those reads are not a GET's.
        """
        deadline = time.monotonic() + deadline_s
        while time.monotonic() < deadline:
            drop_caches()
            before = device_reads(self.server.base)
            time.sleep(3)
            if device_reads(self.server.base) < before + 30:
                return

    def get(self, count, cold):
        """Measures the processor time and disk reads of a GET, and GETs a second, over all sizes."""
        share, cpu, rates, reads = count // len(SIZES), [], [], 0
        for kib in SIZES:
            if cold:
                drop_caches()
            before = device_reads(self.server.base)
            operations = min(GETS // len(SIZES), share) if cold else GETS // len(SIZES)
            found = load(self.server, BUCKET, "get", kib * KIB, ops=operations, objects=share, prefix=prefix(kib), clients=4)
            reads += (device_reads(self.server.base) - before) / operations
            cpu.append(found["cpu_ms_per_operation"])
            rates.append(found["operations"] / found["seconds"])
        return {"cpu_ms": statistics.fmean(cpu), "disk_reads": reads / len(SIZES), "gets_per_s": statistics.harmonic_mean(rates)}

    def repair(self):
        """Repairs a lost directory; returns the seconds, the chunks left and the transactions.

        A chunk costs two transactions: one opens an entry in its stripe's record, the other closes it.
        """
        self.server.wipe(0)
        time.sleep(1.5)  # the server notices
        self.server.directories[0].mkdir(parents=True, exist_ok=True)
        self.server.run("disk", "replace", self.server.directories[0])
        began = time.monotonic()
        report = json.loads(self.server.run("heal", "--json", "--quiet", timeout_s=7200, check=False))["report"]
        seconds = time.monotonic() - began
        return {"seconds": seconds, "left": report["left"], "transactions": 2 * report["progress"]["chunks"]}


def prove_store(ledger, folder, count):
    """Adds the claims on a store of `count` objects."""
    split, packed = (Side(folder / name, pack=name == "packed") for name in ("split", "packed"))
    for side in (split, packed):
        side.measure(count)
        # The disk need not hold both at once.
        shutil.rmtree(side.server.base)
    ledger.note(f"{count} objects; {packed.figures['packed']} of them packed")
    ledger.record("packed_store", {"objects": count, "split": split.figures, "packed": packed.figures})
    ours, theirs = packed.figures, split.figures
    of = f"{count} objects of 1 to 64 KiB"
    ledger.add(f"disk reads of a cold GET, {of}, packed",
               f"{ours['cold']['disk_reads']:.2f}; split {theirs['cold']['disk_reads']:.2f}",
               ours["cold"]["disk_reads"] <= 1.2, "≤ 1.2, by the disk's own counter")
    for name in ("cold", "warm"):
        one, other = ours[name], theirs[name]
        ledger.add(f"processor time of a {name} GET, packed over split",
                   f"{one['cpu_ms'] / other['cpu_ms']:.2f} ({one['cpu_ms']:.3f} ms and {other['cpu_ms']:.3f} ms)")
        ledger.add(f"{name} GETs a second of four clients, packed over split",
                   f"{one['gets_per_s'] / other['gets_per_s']:.2f} ({one['gets_per_s']:.0f} and {other['gets_per_s']:.0f})")
    share = ours["chunks"] / theirs["chunks"]
    ledger.add("chunks, and so entries of the index, packed over split",
               f"{share:.3f} ({ours['chunks']} and {theirs['chunks']})", share <= 0.1, "≤ 0.1")
    ledger.add("metadata for an object: rows, and bytes of their keys and values",
               f"{ours['rows'] / count:.2f} and {ours['metadata_bytes'] / count:.0f} packed, {theirs['rows'] / count:.2f} and "
               f"{theirs['metadata_bytes'] / count:.0f} split")
    seconds = ours["repair"]["seconds"] / theirs["repair"]["seconds"]
    ledger.add("repair of a lost directory, time packed over split",
               f"{seconds:.2f} ({ours['repair']['seconds']:.1f} s and {theirs['repair']['seconds']:.1f} s)",
               ours["repair"]["left"] == 0 and seconds <= 1, "whole, and no slower")
    transactions = [side["repair"]["transactions"] for side in (ours, theirs)]
    ledger.add("the same, transactions", f"{transactions[0] / transactions[1]:.3f} ({transactions[0]} and {transactions[1]})",
               transactions[0] <= 0.1 * transactions[1], "≤ 0.1")


def prove_pace(ledger, folder, count):
    """Measures the speed of packing, alone and beside writes, and its effect on clients."""
    with Striate(folder / "pace", environment={"STRIATE_PACK": "off", "STRIATE_PACK_AFTER": "1s"}) as server:
        server.client().make_bucket(BUCKET)
        rate = put(server, "a-", count)
        packed = pack(server)
        pace = packed["objects"] / packed["seconds"]
        ledger.add("packing when nothing else runs, over the PUT rate of the same store, objects of 16 KiB",
                   f"{pace / rate:.2f} ({pace:.0f} and {rate:.0f} objects a second; {packed['objects']} packed)",
                   pace >= 2 * rate, "≥ 2")
        switched = packed["objects"] / (packed["switching_us"] / 1e6)
        ledger.add("the switch of the rows alone, objects a second", f"{switched:.0f}", switched >= 10_000, "≥ 10,000")
        prove_keeping_up(ledger, server, count)
        prove_beside(ledger, server, count)


def put(server, prefix, count):
    """Puts objects of 16 KiB; returns objects a second."""
    done = load(server, BUCKET, "put", 16 * KIB, ops=count, objects=count, prefix=prefix, clients=PUT_CLIENTS)
    return done["operations"] / done["seconds"]


def pack(server):
    """Packs everything; returns the progress and the seconds that it took."""
    began = time.monotonic()
    answer = json.loads(server.run("pack", "run", BUCKET, "--now", "--quiet", "--json", timeout_s=7200, check=False))
    return {"seconds": time.monotonic() - began, **answer["report"]["progress"]["packed"]}


def prove_keeping_up(ledger, server, count):
    """Proves that packing keeps up with writes: the backlog must not grow."""
    put(server, "b-", count)
    packed = {}
    packing = threading.Thread(target=lambda: packed.update(pack(server)))
    packing.start()
    rate = put(server, "c-", count)
    packing.join()
    pace = packed["objects"] / packed["seconds"]
    ledger.add("packing beside writing at full speed (`pack run`), over the PUT rate at that time", f"{pace / rate:.2f} "
               f"({pace:.0f} and {rate:.0f} objects a second)", pace >= rate, "≥ 1")


def prove_beside(ledger, server, count):
    """Measures what readers of packed objects notice of the packing service at its default pace."""

    def gets(seconds):
        return load(server, BUCKET, "get", 16 * KIB, seconds=seconds, objects=count, prefix="a-", clients=4)["p99_ms"]

    def objects_packed():
        return server.status()["packing"]["objects_packed"]

    put(server, "d-", 3 * count)
    alone, before = gets(10), objects_packed()
    server.run("bucket", "set", BUCKET, "--pack", "auto")
    deadline = time.monotonic() + 120
    while objects_packed() == before:
        if time.monotonic() > deadline:
            raise RuntimeError("the service packs nothing")
        time.sleep(0.2)
    began = objects_packed()
    # With busy processors the service packs one group each minute.
    beside, ended = gets(75), objects_packed()
    server.run("bucket", "set", BUCKET, "--pack", "off")
    time.sleep(5)
    alone = min(alone, gets(10))
    ledger.add("p99 of GETs of 16 KiB beside packing at its default pace, over that without",
               f"{beside / alone:.2f} ({beside:.2f} and {alone:.2f} ms; {ended - began} objects packed meanwhile)",
               beside <= 1.25 * alone and ended > began, "≤ 1.25")
