"""Ageing of two buckets on real processes: small objects, packed, and large ones are sealed into wide stripes, read while a site is away,
repaired, deleted in part and made narrow again.

Racks are network namespaces. What crosses them is counted by their links, in both directions.
"""

import json
import os
import random
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from . import hosts, rows, tending
from .meanwhile import Meanwhile

MIB = 1 << 20
BUCKET, LARGE, OTHERS = "archive", "media", "others"
PARTITION = MIB
# Bytes of a read while something else happens.
PIECE = 16 << 10


@dataclass(frozen=True)
class Shape:
    """A cluster, the code that data is written under, and the wide one that it is sealed into."""

    racks: int
    profile: str
    n: int
    k: int
    # Chunks that cross racks for one wide stripe sealed: one for each local parity from each other rack of its group, and of each rack
    # with data one for each global parity.
    sealing_chunks: int
    narrow: str
    narrow_k: int
    narrow_r: int

    @property
    def sites(self):
        return 5 * self.racks


# Two groups of five data chunks and a local parity in two racks of three each, and two global parities in a fifth rack.
SMALL = Shape(6, "wide(10,5,3)", 14, 10, 10, "rs(4,2)", 4, 2)
# Three groups of fourteen data chunks, three racks of four and one of two and the local parity each; three globals.
STATED = Shape(13, "wide(42,15,4)", 48, 42, 42, "rs(6,3)", 6, 3)
# Links carry so much more than chunks: of frames of 1,514 bytes 66 are headers, every second one is acknowledged by 66 more, and there are
# TLS records, requests and rows of metadata.
FRAMING = 1.10
# For so long is measured what crosses racks besides sealing.
BESIDE_S = 20
# What a dead process left is found and removed within.
LEFTOVERS_S = 300
# A site that is silent for so long is repaired.
REPAIR_AFTER = "20s"
PATIENCE_S = 1_200


class Racks(hosts.Hosts):
    """Sites in racks of their own network; everything else in the first."""

    def __init__(self, folder, shape):
        os.environ["STRIATE_REPAIR_AFTER"] = REPAIR_AFTER
        self.shape = shape
        super().__init__(folder, racks=shape.racks, gateways=2, sites=shape.sites)

    def crossing(self):
        """Bytes that have left racks, all together."""
        return sum(int(Path(f"/sys/class/net/{self.bridge}{rack}/statistics/rx_bytes").read_text()) for rack in self.racks)

    def moved(self):
        """Chunks that were moved to level sites or for readers."""
        movement = self.status().get("movement") or {}
        return sum(movement.get(kind, {}).get("chunks", 0) for kind in ("levelling", "optimising"))

    def prepare_bucket(self, bucket, layout, *flags):
        self.run("bucket", "create", bucket, "--profile", f"{layout}{self.shape.narrow}", "--cold-profile", self.shape.profile, "--cold-after", "1s", *flags,
                 "--dir", self.gateway)

    def pack(self, bucket, *flags):
        done = self.run("pack", "run", bucket, "--json", "--quiet", *flags, "--dir", self.gateway, timeout_s=3600)
        return json.loads(done)["report"]

    def payload(self):
        """Bytes of all chunks."""
        return sum(site["capacity"]["payload_bytes"] for site in self.status()["sites"])


class Objects:
    """Objects of 4 to 60 KiB, each told from its name."""

    bucket = BUCKET
    # Every object has more bytes.
    least = 4 << 10

    def __init__(self, seed, count):
        self.pool = random.Random(seed).randbytes(MIB)
        self.names = [f"folder{number % 7}/object{number:06}" for number in range(count)]

    def body(self, name):
        chance = random.Random(name)
        size = chance.randrange(4 << 10, 60 << 10)
        start = chance.randrange(len(self.pool) - size)
        return name.encode() + self.pool[start:start + size]

    def size(self):
        return sum(len(self.body(name)) for name in self.names)

    def path(self, name):
        return f"/{self.bucket}/{name}"

    def put(self, client, name):
        client.expect("PUT", self.path(name), body=self.body(name))

    def put_all(self, cluster):
        cluster.each(self.put, self.names)

    def delete(self, cluster, names):
        """They are gone for good."""
        cluster.each(lambda client, name: client.expect("DELETE", self.path(name)), names)
        gone = set(names)
        self.names = [name for name in self.names if name not in gone]

    def wrong(self, cluster):
        """Names whose bytes are not what they should be."""
        are_wrong = cluster.each(lambda client, name: client.send("GET", self.path(name)).body != self.body(name), self.names)
        return [name for name, is_wrong in zip(self.names, are_wrong) if is_wrong]


class LargeObjects(Objects):
    """Objects of three blocks, of so many that their blocks have rows of their own, and in parts of five blocks."""

    bucket = LARGE

    def __init__(self, seed, count, block):
        super().__init__(seed, 0)
        kinds = ["blocks", "blocks", "blocks", "segment", "parts"]
        self.names = [f"{kinds[number % len(kinds)]}/{number:05}" for number in range(count)]
        self.block, self.least = block, 3 * block

    def blocks(self, name):
        return {"blocks": 3, "segment": 9, "parts": 11}[name.split("/")[0]]

    def body(self, name):
        chance = random.Random(name)
        mibs = self.blocks(name) * self.block // MIB
        starts = [chance.randrange(MIB) for _ in range(mibs)]
        return b"".join(self.pool[start:] + self.pool[:start] for start in starts)

    def size(self):
        return sum(self.blocks(name) for name in self.names) * self.block

    def put(self, client, name):
        body = self.body(name)
        if name.startswith("parts"):
            part = 5 * self.block
            self.upload(client, name, [body[start:start + part] for start in range(0, len(body), part)])
        else:
            client.expect("PUT", self.path(name), body=body)

    def encode_anew(self, cluster, profile):
        """Copies each onto itself under a profile."""
        def copy(client, name):
            headers = {"x-amz-copy-source": self.path(name), "x-striate-profile": profile}
            answer = client.expect("PUT", self.path(name), headers=headers)
            if b"CopyObjectResult" not in answer.body:
                raise RuntimeError(f"{name} was not copied: {answer.body[:300]!r}")

        cluster.each(copy, self.names)

    def upload(self, client, name, parts):
        answer = client.expect("POST", self.path(name), query=[("uploads", "")])
        upload = answer.body.decode().split("<UploadId>")[1].split("<")[0]
        done = []
        for number, part in enumerate(parts, 1):
            query = [("partNumber", str(number)), ("uploadId", upload)]
            etag = client.expect("PUT", self.path(name), query=query, body=part).headers["etag"]
            done.append(f"<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>")
        whole = f"<CompleteMultipartUpload>{''.join(done)}</CompleteMultipartUpload>"
        client.expect("POST", self.path(name), query=[("uploadId", upload)], body=whole.encode())


class OtherObjects(Objects):
    """Objects of a bucket that does not age."""

    bucket = OTHERS


class Reading(Meanwhile):
    """Reads at random, and compares."""

    # With pauses and in pieces, so that reads do not outweigh what sealing sends.
    pause_s = 0.02

    def __init__(self, objects, client):
        super().__init__()
        self.objects, self.client, self.chance = objects, client, random.Random(5)

    def step(self):
        name, first = self.chance.choice(self.objects.names), self.chance.randrange(self.objects.least)
        answer = self.client.send("GET", self.objects.path(name), headers={"range": f"bytes={first}-{first + PIECE - 1}"})
        if answer.body != self.objects.body(name)[first:first + PIECE]:
            raise ValueError(f"{name} is not what it was, {answer.status}")


class Written(Meanwhile):
    """Writes objects beside those that there are."""

    pause_s = 0.5

    def __init__(self, objects, client):
        super().__init__()
        self.objects, self.client = objects, client

    def step(self):
        name = f"meanwhile/{len(self.objects.names):05}"
        self.objects.put(self.client, name)
        self.objects.names.append(name)


def prove_ageing(ledger, folder, full):
    if hosts.are_missing(ledger):
        return
    # In chunks of 1 MiB and 512 KiB: 10 GiB, a tenth in small objects. Short: 230 MiB, half in small objects, 1 MiB and 256 KiB.
    block = (3 if full else 1) * MIB
    small, large = (Objects(1, 32_000), LargeObjects(2, 530, block)) if full else (Objects(1, 4_000), LargeObjects(2, 24, block))
    others = OtherObjects(3, 0)
    with Racks(folder, STATED if full else SMALL) as cluster:
        cluster.prepare_bucket(BUCKET, "packed ", "--pack", "1MiB")
        cluster.prepare_bucket(LARGE, "", "--pack", "off", "--block-kib", block >> 10)
        cluster.run("bucket", "create", OTHERS, "--profile", cluster.shape.narrow, "--pack", "off", "--dir", cluster.gateway)
        for objects in (small, large):
            objects.put_all(cluster)
        packed = cluster.pack(BUCKET, "--now")["progress"]["packed"]
        ledger.note(f"{packed['objects']} objects in {packed['groups']} groups")
        prove_sealing(ledger, cluster, small, packed["groups"], PARTITION)
        prove_sealing(ledger, cluster, large, large.size() // block, block // cluster.shape.narrow_k)
        prove_losses(ledger, cluster, [small, large], others)
        prove_deletes(ledger, cluster, [small, large], others)
        prove_back(ledger, cluster, small, large)


class Kept:
    """What sealing leaves as it is: rows of a bucket's objects, of blocks and of parts, and data chunks as stripes' rows name them."""

    def __init__(self, cluster, bucket):
        self.rows = rows.revisions(cluster, rows.OBJECTS + bucket.encode() + b"\0", rows.BLOCKS, rows.PARTS)
        self.chunks = rows.data_chunks(cluster, cluster.shape.narrow_k)
        self.moved = cluster.moved()

    def compare(self, ledger, after, objects):
        """Claims that `after` is the same."""
        written = [key for key in self.rows.keys() | after.rows.keys() if self.rows.get(key) != after.rows.get(key)]
        others = [chunk for chunk, file in self.chunks.items() if after.chunks.get(chunk) != file]
        moved, count = after.moved - self.moved, len(objects.names)
        ledger.add("sealing writes no row of an object, a block or a part, and no data chunk: rows of another revision in etcd, and data chunks of which "
                   "stripes' rows name another site, generation or content", f"{len(written)} of {len(self.rows)}, {len(others)} of {len(self.chunks)}",
                   not written and len(others) <= moved and len(self.rows) >= count and len(self.chunks) > 0,
                   f"0 of at least {count}, and 0 beside chunks that were moved", f"{moved} were moved to level sites or for readers")


class Beside:
    """Bytes that cross racks whether anything is sealed or not: in a second at rest, and further ones for each read."""

    def __init__(self, cluster, objects):
        self.cluster = cluster
        with Reading(objects, cluster.client(2)):
            time.sleep(2)  # Connections are open then.
        self.a_second = self.count()
        with Reading(objects, cluster.client(2)) as reading:
            total, reads = self.count() * BESIDE_S, reading.done
        self.a_read = (total - self.a_second * BESIDE_S) / max(1, reads)

    def count(self):
        """Bytes in a second from now on."""
        began, crossed = time.monotonic(), self.cluster.crossing()
        time.sleep(BESIDE_S)
        return (self.cluster.crossing() - crossed) / (time.monotonic() - began)


def prove_sealing(ledger, cluster, objects, stripes, chunk):
    """Seals a bucket of `stripes` narrow stripes of chunks of `chunk` bytes while it is read. Others write later: here bytes are counted."""
    wait_for_garbage(cluster)
    beside, before, kept = Beside(cluster, objects), cluster.payload(), Kept(cluster, objects.bucket)
    with Reading(objects, cluster.client(2)) as reading:
        began, crossed = time.monotonic(), cluster.crossing()
        report = cluster.pack(objects.bucket, "--cold")["sealed"][0][1]
        crossed, seconds, reads = cluster.crossing() - crossed, time.monotonic() - began, reading.done
    ledger.record(f"ageing {objects.bucket}", report)
    sealed = report["sealed"]
    ledger.add(f"{len(objects.names):,} objects, {objects.size() / MIB:,.0f} MiB, of {objects.bucket} age: wide stripes sealed, given up, and reads "
               "meanwhile that were wrong", f"{sealed}, {report['given_up']}, {reading}",
               sealed > 0 and report["given_up"] == 0 and reading.is_right(), "> 0, 0, 0 of some",
               f"{report['sealed_stripes']} of {stripes} stripes sealed, {report['half_sealed']} in part, {report['waiting']} partitions wait")
    at_rest, of_reads = beside.a_second * seconds, beside.a_read * reads
    ratio = (crossed - at_rest - of_reads) / max(1, sealed * cluster.shape.sealing_chunks * chunk)
    ledger.add("bytes across racks for each wide stripe sealed, over the trees' (less what processes send at rest and for reads, as measured before)",
               f"{ratio:.3f}", 0.99 <= ratio <= FRAMING, f"0.99 to {FRAMING:.2f}",
               f"{crossed / MIB:.0f} MiB in all, {at_rest / MIB:.1f} of them at rest in {seconds:.0f} s and {of_reads / MIB:.1f} of {reads} reads")
    wait_for_garbage(cluster)
    kept.compare(ledger, Kept(cluster, objects.bucket), objects)
    add_bytes(ledger, cluster, report, stripes, chunk, before)
    wrong = objects.wrong(cluster)
    ledger.add("every byte after sealing", f"{len(wrong)} of {len(objects.names)} wrong", not wrong, "0 wrong")


def add_bytes(ledger, cluster, report, stripes, chunk, before):
    """Bytes of chunks that are not the wide stripes' are taken off: of others, of partitions that wait, and of narrow parities that remain."""
    shape, after = cluster.shape, cluster.payload()
    others = before - stripes * (shape.narrow_k + shape.narrow_r) * chunk
    waiting, narrow = report["waiting"] * chunk, (stripes - report["sealed_stripes"]) * shape.narrow_r * chunk
    ratio = (after - others - waiting - narrow) / max(1, report["sealed"] * shape.n * chunk)
    ledger.add("bytes of chunks in wide stripes after sealing, over those of the code", f"{ratio:.3f}", abs(ratio - 1) < 0.02, "0.98 to 1.02",
               f"{before / MIB:.0f} MiB of chunks before, {after / MIB:.0f} after: {others / MIB:.1f} of others, {waiting / MIB:.1f} in partitions that wait, "
               f"{narrow / MIB:.1f} in parities of stripes that are not sealed or in part")


def prove_deletes(ledger, cluster, all_objects, others):
    """A third of what is sealed is deleted: its space comes back. Meanwhile the rest is read, and another bucket is written."""
    wait_for_garbage(cluster)
    before, lived = cluster.payload(), sum(objects.size() for objects in all_objects)
    replaced = 0
    for objects in all_objects:
        objects.delete(cluster, objects.names[: len(objects.names) // 3])
    with Reading(all_objects[0], cluster.client(2)) as reading, Written(others, cluster.client(1)) as writing:
        # What is rewritten by the first run may take places of dead members in the second.
        for objects in all_objects * 2:
            replaced += cluster.pack(objects.bucket, "--now", "--cold")["sealed"][0][1]["replaced"]
    add_written(ledger, cluster, others, writing, "a third is deleted")
    wait_for_garbage(cluster)
    after, lives = cluster.payload(), sum(objects.size() for objects in all_objects)
    ratio = (after / lives) / (before / lived)
    ledger.add("a third is deleted: bytes of chunks for each living byte, over those before", f"{ratio:.3f}", ratio <= 1.1, "<= 1.10",
               f"{before / MIB:.0f} MiB before, {after / MIB:.0f} after, {replaced} dead members replaced or holes filled")
    wrong = [name for objects in all_objects for name in objects.wrong(cluster)]
    ledger.add("every byte that is left, and reads meanwhile", f"{len(wrong)} wrong, {reading}", not wrong and reading.is_right(), "0 wrong, 0 of some")


def add_written(ledger, cluster, others, writing, when, may_fail=False):
    """What was written meanwhile is as it was written; then it is deleted, so that bytes of chunks are those of what ages."""
    wrong, count = others.wrong(cluster), len(others.names)
    ledger.add(f"{when}: objects of another bucket that were written meanwhile and are not what they should be, and writes that failed",
               f"{len(wrong)} of {count}, {writing}", count > 0 and not wrong and (may_fail or not writing.wrong),
               "0 of some" + ("" if may_fail else ", none failed"))
    others.delete(cluster, list(others.names))


def prove_back(ledger, cluster, small, large):
    """From wide back to narrow while others are written: packed objects by `pack undo`; large ones, which that leaves alone, by copies onto
    themselves under the narrow profile. Then nothing is in wide stripes any more."""
    for objects in (small, large):
        cluster.run("bucket", "set", objects.bucket, "--keep-cold-as-it-is", "--dir", cluster.gateway)
    packed = rows.count_packed(cluster, BUCKET)
    with Written(small, cluster.client(2)) as writing:
        done = cluster.run("pack", "undo", BUCKET, "--quiet", "--json", "--dir", cluster.gateway, timeout_s=3600)
        large.encode_anew(cluster, cluster.shape.narrow)
    report = json.loads(done)["report"]["progress"]
    left = rows.count_packed(cluster, BUCKET)
    ledger.add("pack undo, under writes: objects that are split again, that it could not, and that are packed afterwards",
               f"{report['objects']} of {packed}, {report['failed']}, {left}", report["objects"] == packed > 0 and report["failed"] == left == 0,
               "all, 0, 0", f"{report['overtaken']} were changed meanwhile")
    ledger.add("   writes meanwhile that failed", f"{writing}", writing.is_right(), "0 of some")
    before = rows.count_wide(cluster)
    left = wait_for_fewer(lambda: rows.count_wide(cluster), 10)
    ledger.add("wide stripes that are left when all objects are narrow again, by the rows of stripes", f"{left} of {before}", left == 0, "0")
    wait_for_garbage(cluster)
    for objects in (small, large):
        wrong = objects.wrong(cluster)
        ledger.add(f"back to narrow: every byte of {objects.bucket}", f"{len(wrong)} of {len(objects.names)} wrong", not wrong, "0 wrong")
    add_verified(ledger, cluster, "after all this")


def add_verified(ledger, cluster, when):
    """What `striate verify` finds. What processes left that died is removed when their leases have ended, so it is asked more than once."""
    reports = []

    def is_clean():
        done = subprocess.run([cluster.program, "verify", "--json", "--quiet", "--dir", str(cluster.gateway)], capture_output=True, text=True, timeout=3_600)
        report = json.loads(done.stdout)["report"]
        report["found"] = [report["progress"]["damaged"], *(report[name] for name in ("unknown", "orphans", "unexplained"))]
        reports.append(report)
        return done.returncode == 0 and not any(report["found"])

    clean = cluster.wait_until(is_clean, LEFTOVERS_S)
    if not reports:
        raise RuntimeError("verify did not answer")
    progress = reports[-1]["progress"]
    ledger.add(f"verify {when}: chunks that are damaged or missing, are on sites that do not answer, are named by nothing, are newer than the metadata",
               ", ".join(map(str, reports[-1]["found"])), clean is not None and progress["chunks"] > 0, "0, 0, 0, 0",
               f"{progress['chunks']} good chunks of {progress['stripes']} stripes; asked {len(reports)} times {reports[-1]['examples'][:1] or ''}".strip())


def wait_for_fewer(count, pause_s=1):
    """Waits as long as they become fewer, and answers how many are left."""
    least, since = count(), time.monotonic()
    while least and time.monotonic() - since < PATIENCE_S:
        time.sleep(pause_s)
        left = count()
        if left < least:
            least, since = left, time.monotonic()
    return least


def wait_for_garbage(cluster):
    """Until what nothing names has been removed, no chunk is on its way to level sites, and sites have said so."""
    before = deadline = None
    while True:
        left = wait_for_fewer(lambda: cluster.count_rows(rows.GARBAGE))
        if left:
            raise RuntimeError(f"{left} rows of garbage are left, and have not become fewer for {PATIENCE_S} s")
        # Only from now on: the more was packed, the longer its garbage takes.
        deadline = deadline or time.monotonic() + PATIENCE_S
        time.sleep(15)
        now = cluster.payload()
        # A chunk that has moved is there twice until its old place is garbage, and removed.
        if now == before and not cluster.count_rows(rows.GARBAGE):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"sites have not come to rest within {PATIENCE_S} s after the garbage was gone")
        before = now


def prove_losses(ledger, cluster, all_objects, others):
    """A site is away, and repaired by the store itself; another is emptied. Meanwhile another bucket is written."""
    with Written(others, cluster.client(2)) as writing:
        lose_and_drain(ledger, cluster, all_objects)
    # A client tries again what fails while a site dies.
    add_written(ledger, cluster, others, writing, "a site is lost and another emptied", may_fail=True)


def lose_and_drain(ledger, cluster, all_objects):
    count = sum(len(objects.names) for objects in all_objects)

    def wrong_of_all():
        return [name for objects in all_objects for name in objects.wrong(cluster)]

    cluster.kill("site3")
    time.sleep(3)
    wrong = wrong_of_all()
    ledger.add("reads with a site away, its members computed in their wide stripes", f"{len(wrong)} of {count} wrong", not wrong, "0 wrong")
    crossed = cluster.crossing()
    whole = cluster.wait_until(lambda: tending.is_whole(cluster), PATIENCE_S)
    ledger.add("the store repairs what the site had: every chunk is verified", "whole" if whole is not None else "not whole", whole is not None, "whole",
               f"{(cluster.crossing() - crossed) / MIB:.0f} MiB across racks")
    # It comes back, and what it had is removed there.
    cluster.restart("site3")
    drained = tending.number_of(cluster, "site4")
    had = tending.chunks(cluster, drained)
    cluster.run("admin", "site", "drain", drained, "--control", cluster.at("control"), "--identity", cluster.folder / "id" / "admin")
    took = cluster.wait_until(lambda: tending.chunks(cluster, drained) == 0, PATIENCE_S)
    ledger.add("a site that drains is emptied, its members with their copies", f"{tending.chunks(cluster, drained)} of {had} chunks left", took is not None, "0")
    wrong = wrong_of_all()
    ledger.add("every byte after both", f"{len(wrong)} of {count} wrong", not wrong, "0 wrong")
