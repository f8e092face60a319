"""Full disks: a store on a small disk takes writes again after deletes, and says before that it fills."""

import hashlib
import os
import random
import time
from pathlib import Path

from . import loops
from .servers import Striate
from .waiting import seconds_until

MIB = 1 << 20
GIB = 1 << 30
BUCKET = "full"
OBJECT = MIB
# Rounds of one second each in which the space of deleted objects has to come back.
ROUNDS = 180


def prove_full(ledger, folder, full):
    if not loops.are_available():
        ledger.skip(f"full disks of a fixed size: {loops.NEEDS_ROOT}")
        return
    prove_recovery(ledger, Path(folder) / "one", GIB)
    if full:
        prove_recovery(ledger, Path(folder) / "thirty", 30 * GIB)


def prove_recovery(ledger, folder, size):
    folder.mkdir(parents=True)
    name = f"{size / GIB:.0f} GiB"
    with loops.LoopDisk(folder / "disk.img", folder / "disk1", size) as disk, Striate(folder, directories=1) as server:
        if size == GIB:
            prove_freshness(ledger, server, disk)
        contents = Contents(server, size)
        warned_at = contents.fill(disk)
        refused = contents.put_status(0)
        deleted = contents.delete_two_fifths()
        rounds = contents.rounds_until_writable()
        ledger.add(f"A disk of {name}, written full, takes writes again after two fifths of its objects were deleted (C 2)",
                   "never" if rounds is None else f"after {rounds} rounds of a second", refused != 200 and rounds is not None,
                   f"within {ROUNDS} rounds")
        fitted = contents.refill(deleted) if rounds is not None else 0
        ledger.add(f"… and of the bytes deleted on {name} at least four fifths can be written again (C 2)",
                   f"{fitted} of {deleted} MiB", fitted * 5 >= deleted * 4, "at least 80 %")
        wrong = contents.count_wrong()
        ledger.add(f"… and all that was not deleted on {name} reads back", f"{wrong} of {len(contents.hashes)} wrong", wrong == 0, "0 wrong")
        ledger.add(f"Status warns before a disk of {name} is full (C 12)",
                   "never" if warned_at is None else f"at {warned_at:.0%} full", warned_at is not None and warned_at < 0.95, "below 95 % full")


def prove_freshness(ledger, server, disk):
    """What others write to the disk, and remove from it, shows without a write of the store."""
    path = disk.path / "foreign"
    path.write_bytes(bytes(512 * MIB))
    os.sync()
    taken = seconds_until(lambda: server.status()["capacity"]["free_bytes"] < disk.size // 2)
    path.unlink()
    given = seconds_until(lambda: server.status()["capacity"]["free_bytes"] > disk.size // 2)
    took = [taken, given]
    ledger.add("Status follows within five seconds what others write to a disk and remove from it, without a write (C 12)",
               ", ".join("never" if seconds is None else f"{seconds:.1f} s" for seconds in took),
               all(seconds is not None and seconds <= 5 for seconds in took), "≤ 5 s each")


class Contents:
    """The objects of one store, by their hashes."""

    def __init__(self, server, size):
        self.server, self.client = server, server.client()
        self.client.make_bucket(BUCKET)
        self.hashes = {}
        self.random = random.Random(size)
        self.step = max(1, size // GIB)  # objects of a MiB in a key's turn between two looks at the status

    def put_status(self, number):
        body = self.random.randbytes(OBJECT)
        key = f"{number:06}"
        try:
            status = self.client.send("PUT", f"/{BUCKET}/{key}", body=body).status
        except OSError:
            return 0  # refused before the body was sent
        if status == 200:
            self.hashes[key] = hashlib.sha256(body).digest()
        return status

    def fill(self, disk):
        """Writes until a put is refused; returns how full the disk was when status first warned of it."""
        warned_at, number = None, 0
        while True:
            number += 1
            if self.put_status(number) != 200:
                return warned_at
            if warned_at is None and number % (16 * self.step) == 0:
                warnings = " ".join(self.server.status()["warnings"])
                if "full" in warnings:
                    warned_at = 1 - disk.free_bytes() / disk.size

    def delete_two_fifths(self):
        gone = [key for number, key in enumerate(sorted(self.hashes)) if number % 5 < 2]
        for key in gone:
            self.client.expect("DELETE", f"/{BUCKET}/{key}")
            del self.hashes[key]
        return len(gone)

    def rounds_until_writable(self):
        """Returns the rounds until eight puts in a row succeed, or None."""
        for number in range(ROUNDS):
            if all(self.put_status(900_000 + number * 8 + put) == 200 for put in range(8)):
                return number
            time.sleep(1)
        return None

    def refill(self, deleted):
        """Writes as much as was deleted, waiting for compaction; returns the MiB that fitted."""
        written, refused = 8, 0
        while written < deleted and refused < ROUNDS:
            if self.put_status(950_000 + written) == 200:
                written += 1
            else:
                refused += 1
                time.sleep(1)
        return written

    def count_wrong(self):
        read = lambda key: hashlib.sha256(self.client.send("GET", f"/{BUCKET}/{key}").body).digest()
        return sum(read(key) != wanted for key, wanted in self.hashes.items())
