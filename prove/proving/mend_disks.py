"""Disks that come back, and disks that come and go by command, while a server runs and is used."""

import hashlib
import random
import shutil
import threading
import time
from pathlib import Path

from . import loops
from .servers import Striate
from .waiting import seconds_until

BUCKET = "disks"
# Bound for a disk to be used again, and for a drain of a few MiB, in seconds. Rebuilding elsewhere begins after 15 minutes.
BACK_WITHIN_S = 60
EMPTY_WITHIN_S = 180


def prove_disks(ledger, folder, full):
    folder = Path(folder)
    prove_return(ledger, folder / "return")
    prove_copies(ledger, folder / "copies")
    if loops.are_available():
        prove_remount(ledger, folder / "remount")
    else:
        ledger.skip(f"a disk that is unmounted and mounted again: {loops.NEEDS_ROOT}")
    prove_leaving(ledger, folder / "leaving", 300 if full else 60)


class Listed(Striate):
    """A server whose command names each directory."""

    def command(self):
        program, server, _, *options = super().command()
        return [program, server, *map(str, self.directories), *options]


class Load:
    """Puts and gets beside what is proved; keeps the hash of what was acknowledged."""

    def __init__(self, server, first=40):
        self.server, self.hashes, self.errors, self.done = server, {}, [], 0
        self.random = random.Random(7)
        self.client = server.client(timeout_s=30)
        self.client.make_bucket(BUCKET)
        for number in range(first):
            self.put(f"first/{number}")
        self.thread = None

    def put(self, key):
        body = self.random.randbytes(self.random.choice([100, 20_000, 300_000]))
        answer = self.client.send("PUT", f"/{BUCKET}/{key}", body=body)
        if answer.status == 200:
            self.hashes[key] = hashlib.sha256(body).digest()
        return answer.status

    def is_right(self, key):
        answer = self.client.send("GET", f"/{BUCKET}/{key}")
        return answer.status == 200 and hashlib.sha256(answer.body).digest() == self.hashes[key]

    def count_wrong(self):
        return sum(not self.is_right(key) for key in list(self.hashes))

    def __enter__(self):
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.run)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ends.set()
        self.thread.join()

    def run(self):
        while not self.ends.is_set():
            self.done += 1
            key = f"beside/{self.done}"
            try:
                status = self.put(key)
                if status != 200:
                    self.errors.append(f"PUT {status}")
                elif not self.is_right(key):
                    self.errors.append("GET differs")
            except OSError as error:
                self.errors.append(repr(error))
            time.sleep(0.02)


def site_of(server, number):
    return next(site for site in server.status()["sites"] if site["address"].endswith(f"/disk{number}"))


def text_of(seconds):
    return "never" if seconds is None else f"{seconds:.1f} s"


def is_ok(server, number):
    return site_of(server, number)["state"] == "ok"


def prove_return(ledger, folder):
    """A directory is moved away and back under load."""
    with Striate(folder) as server:
        load = Load(server)
        with load:
            disk, away = server.directories[4], folder / "away"
            disk.rename(away)
            noticed = seconds_until(lambda: not is_ok(server, 5), 30)
            reason = site_of(server, 5).get("reason", "")
            before = load.done
            seconds_until(lambda: load.done >= before + 20, 30)
            away.rename(disk)
            back = seconds_until(lambda: is_ok(server, 5), BACK_WITHIN_S)
        ledger.add("A disk that is pulled by mv and returned is used again while the server runs (C 6)",
                   f"noticed after {text_of(noticed)}, used again after {text_of(back)}", noticed is not None and back is not None,
                   f"without a restart, within {BACK_WITHIN_S} s")
        ledger.add("… and the load beside it sees no error and reads all that was acknowledged (C 6)",
                   f"{len(load.errors)} errors of {load.done} rounds, {(wrong := load.count_wrong())} wrong",
                   not load.errors and wrong == 0, "0 errors, 0 wrong")
        ledger.add("… while it is away status says that it is taken back when it returns (C 6)", reason[:120],
                   "taken back" in reason, "the reason says so")
        whole = seconds_until(lambda: server.run("status", check=False) and server.last_status == 0, 120)
        ledger.add("… and afterwards status returns 0 (C 6)", text_of(whole), whole is not None, "within 120 s")


def prove_copies(ledger, folder):
    """An older copy in the place of a disk is refused, and the disk itself is taken back; no text leads to wiping it."""
    with Striate(folder) as server:
        load = Load(server)
        disk, copy, original = server.directories[2], folder / "copy", folder / "original"
        # The admin socket is no part of a copy.
        shutil.copytree(disk, copy, ignore=shutil.ignore_patterns("*.sock", "*.new"))
        for number in range(40):
            load.put(f"later/{number}")
        disk.rename(original)
        seconds_until(lambda: not is_ok(server, 3), 30)
        copy.rename(disk)
        refused = seconds_until(lambda: "older copy" in server.log_tail(20_000), BACK_WITHIN_S)
        ledger.add("A copy of a disk from before the last writes is refused (C 6)",
                   f"refused after {text_of(refused)}, its state is {(state := site_of(server, 3)['state'])}",
                   refused is not None and state != "ok", "refused, not ok")
        advice = server.run("disk", "replace", disk, check=False)
        ledger.add("`disk replace` of a directory with a disk of this store changes nothing and does not say to empty it (C 6)",
                   advice.strip()[:160], server.last_status != 0 and "do not empty it" in advice and (disk / ".striate").is_dir(), "refused")
        disk.rename(folder / "refused")
        original.rename(disk)
        back = seconds_until(lambda: is_ok(server, 3), BACK_WITHIN_S)
        ledger.add("… and the disk itself is taken back (C 6)", text_of(back), back is not None, f"within {BACK_WITHIN_S} s")
        ledger.add("… with all that was acknowledged", f"{(wrong := load.count_wrong())} of {len(load.hashes)} wrong", wrong == 0, "0 wrong")


def prove_remount(ledger, folder):
    """A mounted disk is unmounted lazily and mounted again."""
    folder.mkdir(parents=True)
    with loops.LoopDisk(folder / "disk2.img", folder / "disk2", 512 << 20) as disk, Striate(folder) as server:
        load = Load(server)
        with load:
            disk.unmount(lazy=True)
            noticed = seconds_until(lambda: not is_ok(server, 2), 30)
            empty = not list(disk.path.iterdir())
            disk.mount()
            back = seconds_until(lambda: is_ok(server, 2), BACK_WITHIN_S)
        ledger.add("A disk that is unmounted and mounted again is used again while the server runs (C 6)",
                   f"noticed after {text_of(noticed)}, used again after {text_of(back)}", noticed is not None and back is not None,
                   f"within {BACK_WITHIN_S} s")
        ledger.add("… and nothing was written into the empty mount point", "empty" if empty else "not empty", empty, "empty")
        ledger.add("… and the load beside it sees no error and reads all that was acknowledged",
                   f"{len(load.errors)} errors of {load.done} rounds, {(wrong := load.count_wrong())} wrong",
                   not load.errors and wrong == 0, "0 errors, 0 wrong")
        server.stop()


def prove_leaving(ledger, folder, first):
    """Disks are added, drained and removed under load; the server then starts without the removed one."""
    with Listed(folder, directories=7) as server:
        load = Load(server, first)
        with load:
            new = folder / "disk8"
            new.mkdir()
            server.run("disk", "add", new)
            added = seconds_until(lambda: is_ok(server, 8), 30)
            server.directories.append(new)
            began = time.monotonic()
            drained = server.run("disk", "drain", server.directories[1], check=False, timeout_s=EMPTY_WITHIN_S)
            took, is_drained = time.monotonic() - began, server.last_status == 0
            removed = server.run("disk", "remove", server.directories[1], check=False)
            is_removed = server.last_status == 0
        ledger.add("`disk add` admits a directory while the server runs (C 8)", text_of(added), added is not None, "used within 30 s")
        ledger.add("`disk drain` empties a disk while the server runs (A F2, C 8)", f"{took:.0f} s: {drained.strip()[-80:]}", is_drained,
                   f"within {EMPTY_WITHIN_S} s")
        ledger.add("`disk remove` takes it out of the store (C 8)", removed.strip()[:120], is_removed, "accepted")
        ledger.add("… and the load beside it sees no error and reads all that was acknowledged (C 8)",
                   f"{len(load.errors)} errors of {load.done} rounds ({', '.join(sorted(set(load.errors)))[:80]}), {(wrong := load.count_wrong())} wrong",
                   not load.errors and wrong == 0, "0 errors, 0 wrong")
        quiet = seconds_until(lambda: server.run("status", check=False) and server.last_status == 0, 60)
        ledger.add("… and a removed disk no longer makes status return 1 (C 8)", text_of(quiet), quiet is not None, "returns 0 within 60 s")
        refuse_too_few(ledger, server)
        server.stop()
        gone = server.directories.pop(1)
        shutil.rmtree(gone)
        server.start()
        load.client.close()
        ledger.add("… and the server starts without it, with all that was acknowledged (C 8)",
                   f"{(wrong := load.count_wrong())} of {len(load.hashes)} wrong, status returns {server.run('status', check=False) and server.last_status}",
                   wrong == 0 and server.last_status == 0, "0 wrong, returns 0")


def refuse_too_few(ledger, server):
    """Drains one disk after the other until too few would be left."""
    refusals = []
    for directory in server.directories:
        answer = server.run("disk", "drain", "--no-wait", directory, check=False)
        if server.last_status != 0:
            refusals.append(answer)
    for directory in server.directories:
        server.run("disk", "resume", directory, check=False)
    named = [answer for answer in refusals if "needs" in answer and "disks" in answer]
    ledger.add("A drain that would leave fewer disks than a profile needs is refused, and says why (C 8)",
               (named or refusals or ["none refused"])[-1].strip()[:160], bool(named), "refused with the profile's need")
