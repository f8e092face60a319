"""`kill -9` during packing, repacking, overwriting and deleting: acknowledged objects survive, and deleted ones stay deleted."""

import random
import time

from .meanwhile import Meanwhile
from .servers import Striate
from .torture import BUCKET, Bodies, Torturer

KIB = 1 << 10
# n / k of rs(4,2), the default code on six directories.
OVERHEAD = 1.5
GRACE_S = 240


class SmallBodies(Bodies):
    """Bodies of 4 to 48 KiB, small enough to be packed."""

    def body(self, key, version):
        chance = random.Random(f"{self.seed} {key} {version}")
        size = chance.randrange(4 * KIB, 48 * KIB)
        start = chance.randrange(len(self.pool) - size)
        return f"{key} {version}\n".encode() + self.pool[start:start + size]


class Packing(Meanwhile):
    """Packs, repacks and releases continuously while the server runs."""

    pause_s = 0.2

    def __init__(self, server):
        super().__init__()
        self.server, self.packed = server, 0

    def step(self):
        # The command fails if the server is killed meanwhile.
        self.server.run("pack", "run", BUCKET, "--now", "--quiet", check=False)
        self.packed += self.server.last_status == 0


def prove_kills(ledger, folder, kills):
    """Kills the server `kills` times and adds the claims."""
    chance = random.Random(kills)
    server = Striate(folder / "kills", environment={"STRIATE_PACK": "1MiB", "STRIATE_PACK_AFTER": "1s"})
    server.start()
    server.client().make_bucket(BUCKET)
    torturer = Torturer(server, seed=33)
    torturer.bodies = SmallBodies(33)
    torturer.start()
    with Packing(server) as packing:
        for _ in range(kills):
            time.sleep(chance.uniform(0.3, 1.8))
            server.kill()
            server.start()
    torturer.stop()
    readable, unreadable = torturer.read_everything()
    figures = server.status()["packing"]["figures"]
    ledger.record("packed_kills", {"kills": kills, "counts": torturer.counts, "packs": packing.packed, "figures": figures})
    ledger.add(f"{kills} times kill -9 during pack, repack, overwrite and delete: every acknowledged object is byte-equal, and "
               "what was deleted stays so",
               f"{readable} keys read, {unreadable} not, {len(torturer.violations)} wrong {torturer.violations[:1]}",
               unreadable == 0 and not torturer.violations, "all read, none wrong",
               f"{torturer.counts}; {packing.packed} runs of packing ended, {figures['live_objects']} objects are packed")
    prove_space(ledger, server, torturer, chance)
    server.stop()


def prove_space(ledger, server, torturer, chance):
    """Deletes 80% of the objects at random and waits until their space is released."""
    client, live = server.client(), 0
    for key, record in sorted(torturer.records.items()):
        if record.acknowledged is None and not record.uncertain:
            continue
        if chance.random() < 0.8:
            torturer.delete(client, key, record)
    for key in sorted(torturer.records):
        answer = client.send("GET", f"/{BUCKET}/{key}")
        live += len(answer.body) if answer.status == 200 else 0
    deadline = time.monotonic() + GRACE_S
    while True:
        server.run("pack", "run", BUCKET, "--now", "--quiet")
        status = server.status()
        payload = sum(site["capacity"]["payload_bytes"] for site in status["sites"])
        share = payload / (live * OVERHEAD)
        if share <= 1.1 or time.monotonic() > deadline:
            break
        time.sleep(10)
    ledger.add("after deleting 80% at random the chunks hold, over live × code", f"{share:.3f}", share <= 1.1, "≤ 1.1",
               f"{live} bytes live, {payload} in chunks")
    found = server.run("verify", check=False)
    orphans = [line for line in found.splitlines() if "no metadata names" in line or "orphan" in line.lower()]
    ledger.add("verify finds no damage and no orphans after the grace", "; ".join(orphans) or found.strip().splitlines()[-1],
               server.last_status == 0, "exit status 0")
