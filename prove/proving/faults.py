"""Loss of processes, directories and bits while sixteen clients read and write."""

import random
import time

from .files import replace_and_heal, verify_is_clean
from .torture import BUCKET, Torturer


class Faults:
    def __init__(self, ledger, server, full):
        self.ledger, self.server, self.full = ledger, server, full
        self.torture = Torturer(server)

    def prove(self):
        self.server.run("bucket", "create", "--profile", "rs(4,2)", BUCKET)
        self.torture.keep(64)
        self.load_for(4)
        self.kill_repeatedly(20 if self.full else 5)
        self.wipe_one_then_another()
        self.wipe_again_after_heal()
        self.flip_bits((1, 5))
        self.flip_bits((0, 2))
        self.lose_too_many()
        missed = self.server.missed_by_wipes
        self.ledger.note(f"files that the server made under rm -rf: {', '.join(missed) or 'none'}")

    def load_for(self, seconds):
        self.torture.start()
        time.sleep(seconds)
        self.torture.stop()

    def everything_reads(self, what):
        """Claims that every acknowledged object reads back, byte for byte."""
        readable, unreadable = self.torture.read_everything()
        violations = self.torture.violations
        text = f"{readable} of {readable + unreadable} keys read, {len(violations)} wrong"
        if violations:
            text += f", first: {violations[0]}"
        self.ledger.add(f"every acknowledged object reads back: {what}", text, not unreadable and not violations, "all, 0 wrong")

    def kill_repeatedly(self, times):
        chance = random.Random(1)
        before, _ = self.torture.snapshot()
        restarts = []
        for _ in range(times):
            self.torture.start()
            time.sleep(chance.uniform(0.8, 2.5))
            self.server.kill()
            started = time.monotonic()
            self.server.start()
            restarts.append(time.monotonic() - started)
            self.torture.stop()
        after, _ = self.torture.snapshot()
        self.everything_reads(f"kill -9 {times} times under load ({after['put'] - before['put']} writes acknowledged)")
        self.ledger.add("ready again after kill -9", f"{max(restarts):.1f} s at most")

    def wipe_one_then_another(self):
        self.torture.start()
        time.sleep(1)
        self.server.wipe(0)
        time.sleep(1.5)  # both sides notice
        before, _ = self.torture.snapshot()
        time.sleep(3)
        after, failures = self.torture.snapshot()
        written = after["put"] - before["put"]
        self.ledger.add("writes go on (in debt) with 1 of 6 directories wiped", f"{written} acknowledged in 3 s",
                        written > 0, "> 0")
        self.server.wipe(1)
        time.sleep(1.5)
        self.refuse_writes()
        self.torture.stop()
        self.everything_reads("2 of 6 directories wiped under load")

    def refuse_writes(self):
        """Claims that writes fail with a clean 503 when 4 sites are left, fewer than k + 1 = 5."""
        client = self.server.client(timeout_s=30)
        answer = client.send("PUT", f"/{BUCKET}/refused", body=b"x" * 2_000_000)
        client.close()
        self.ledger.add("writes with fewer than k+1 sites fail cleanly", f"{answer.status} {answer.code}",
                        answer.status == 503, "503")
        reads_before = self.torture.snapshot()[0]["get"]
        time.sleep(2)
        reads = self.torture.snapshot()[0]["get"] - reads_before
        self.ledger.add("reads go on with 2 of 6 directories wiped", f"{reads} in 2 s", reads > 0, "> 0")

    def wipe_again_after_heal(self):
        self.torture.start()
        told = replace_and_heal(self.server, 0, 1)
        self.torture.stop()
        # A missing chunk is debt until it is rebuilt: only without debt may r further directories be lost.
        debt = self.server.status()["debt_stripes"]
        self.ledger.add("one heal under load leaves no debt", f"{debt} stripes in debt; {told.splitlines()[0]}",
                        debt == 0, "0")
        self.server.wipe(3, 4)
        self.everything_reads("after replace and heal under load, another 2 wiped")
        replace_and_heal(self.server, 3, 4)
        self.everything_reads("and healed again")

    def flip_bits(self, indices):
        """Flips one bit in every 64 KiB or so of the chunk segments of r directories, under load."""
        self.torture.start()
        time.sleep(1)
        flipped = sum(flip_in(segment) for index in indices for segment in segments(self.server.directories[index]))
        time.sleep(2)
        self.torture.stop()
        self.everything_reads(f"{flipped} bits flipped in 2 of 6 directories under load")
        found = not verify_is_clean(self.server)
        healed = self.server.run("heal", "--quiet", timeout_s=3600, check=False)
        clean = verify_is_clean(self.server)
        text = f"found: {found}, whole afterwards: {clean}"
        if not clean:
            verified = self.server.run("verify", "--quiet", timeout_s=3600, check=False)
            text += f"; heal said: {' '.join(healed.split())[:400]}; verify said: {' '.join(verified.split())[:400]}"
        self.ledger.add("verify finds flipped bits, heal repairs them", text, found and clean, "both")

    def lose_too_many(self):
        """Takes r + 1 directories away and returns them: errors meanwhile, nothing deleted, and everything reads afterwards."""
        self.server.stop()
        away = []
        for directory in self.server.directories[:3]:
            aside = directory.with_name(directory.name + ".away")
            directory.rename(aside)
            away.append((aside, directory))
        self.start_without(away)
        for aside, directory in away:
            if directory.exists():  # the server may have created a replacement
                directory.rename(directory.with_name(directory.name + ".made"))
            aside.rename(directory)
        self.server.start()
        self.everything_reads("after 3 of 6 directories were gone and returned")

    def start_without(self, away):
        names = [str(directory) for _, directory in away]
        try:
            self.server.start(timeout_s=10)
        except RuntimeError as refusal:
            told = str(refusal)
            named = all(name in told for name in names)
            self.ledger.add("with 3 of 6 directories gone the server names what is missing",
                            "it refuses to start and names them" if named else f"it says: {told[-300:]}", named, "names them")
            return
        readable, unreadable = self.torture.read_everything()
        self.server.stop()
        wrong = len(self.torture.violations)
        self.ledger.add("with 3 of 6 directories gone reads are refused, never wrong",
                        f"{unreadable} refused, {readable} read, {wrong} wrong", wrong == 0 and unreadable > 0, "0 wrong")


def segments(directory):
    """Yields the files of a directory that hold chunks."""
    for path in sorted((directory / ".striate" / "chunks").rglob("*")):
        if path.is_file() and path.stat().st_size > 65_536:
            yield path


def flip_in(path, every=65_536):
    chance = random.Random(str(path))
    flips = 0
    with open(path, "r+b") as file:
        size = path.stat().st_size
        for start in range(0, size, every):
            place = start + chance.randrange(min(every, size - start))
            file.seek(place)
            byte = file.read(1)
            if not byte:
                continue
            file.seek(place)
            file.write(bytes([byte[0] ^ (1 << chance.randrange(8))]))
            flips += 1
    return flips


def prove_faults(ledger, server, full):
    Faults(ledger, server, full).prove()
