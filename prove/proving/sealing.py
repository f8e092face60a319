"""Ageing of a bucket on real processes: packed objects are sealed into wide stripes, read while racks are away, and repaired.

Racks are network namespaces. What crosses them is counted by their links, in both directions.
"""

import itertools
import json
import os
import random
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from . import hosts, tending
from .cluster import Cluster
from .servers import striate_binary

MIB = 1 << 20
BUCKET, LARGE = "archive", "media"
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
# Frames, acknowledgements and what processes tell each other meanwhile.
FRAMING = 1.10
# A site that is silent for so long is repaired.
REPAIR_AFTER = "20s"
PATIENCE_S = 1_200
# Clients that write, read or delete everything together.
CLIENTS = 8


def prove_plan(ledger):
    """ECWide's Table 5 at 1/lambda = 4 years, as `striate plan wide` prints it for the paper's 400 sites."""
    done = subprocess.run([striate_binary(), "plan", "wide", "--k", "128", "--f", "4", "--redundancy", "1.063", "--racks", "50", "--sites-per-rack", "8",
                           "--json"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr or done.stdout)
    codes = {row["scheme"]: row for row in json.loads(done.stdout)["codes"]}
    ledger.record("plan wide", codes)
    for scheme, years in {"rs": 1.53e7, "topology": 4.64e7, "combined": 1.82e8}.items():
        row = codes[scheme]
        ratio = row["mttdl_years"] / years
        ledger.add(f"mean time to data loss of {row['code']} over the paper's", f"{ratio:.4f}", abs(ratio - 1) < 0.005, "within 0.5%",
                   f"{row['mean_repair_chunks']:.2f} chunks across racks a repair")


class Racks(hosts.Hosts):
    """Sites in racks of their own network; everything else in the first."""

    def __init__(self, folder, shape):
        os.environ["STRIATE_REPAIR_AFTER"] = REPAIR_AFTER
        self.shape = shape
        super().__init__(folder, racks=shape.racks, gateways=2, sites=shape.sites)

    def crossing(self):
        """Bytes that have left racks, all together."""
        return sum(int(Path(f"/sys/class/net/{self.bridge}{rack}/statistics/rx_bytes").read_text()) for rack in self.racks)

    def prepare_bucket(self, bucket, layout, *flags):
        self.run("bucket", "create", bucket, "--profile", f"{layout}{self.shape.narrow}", "--cold-profile", self.shape.profile, "--cold-after", "1s", *flags,
                 "--dir", self.folder / "id" / "gateway1")

    def pack(self, bucket, *flags):
        done = self.run("pack", "run", bucket, "--json", "--quiet", *flags, "--dir", self.folder / "id" / "gateway1", timeout_s=3600)
        return json.loads(done)["report"]

    def each(self, work, items):
        """What `work` answers for each item, with a client of one of several threads."""
        of_thread, turns = threading.local(), itertools.count()

        def one(item):
            if not hasattr(of_thread, "client"):
                of_thread.client = self.client(1 + next(turns) % 2, timeout_s=300)
            return work(of_thread.client, item)

        with ThreadPoolExecutor(CLIENTS) as threads:
            return list(threads.map(one, items))

    def payload(self):
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


class Reading:
    """Reads at random while something else happens, and counts what is wrong."""

    def __init__(self, objects, client):
        self.objects, self.client, self.stopping = objects, client, threading.Event()
        self.read, self.bytes, self.wrong = 0, 0, []
        self.thread = threading.Thread(target=self.work, daemon=True)

    def work(self):
        chance = random.Random(5)
        while not self.stopping.is_set():
            name = chance.choice(self.objects.names)
            # Pieces, so that reads do not outweigh what sealing sends.
            first = chance.randrange(self.objects.least)
            answer = self.client.send("GET", self.objects.path(name), headers={"range": f"bytes={first}-{first + PIECE - 1}"})
            self.read += 1
            self.bytes += len(answer.body)
            if answer.body != self.objects.body(name)[first:first + PIECE]:
                self.wrong.append((name, answer.status))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join()


class Written(Reading):
    """Objects that are written meanwhile, beside those that age."""

    def work(self):
        number = 0
        while not self.stopping.is_set():
            name = f"meanwhile/{number:05}"
            self.objects.put(self.client, name)
            self.objects.names.append(name)
            number += 1
            time.sleep(0.1)


def prove_ageing(ledger, folder, full):
    why_not = hosts.missing()
    if why_not:
        ledger.note(f"not run: {why_not}")
        return
    # In chunks of 1 MiB and 512 KiB: 10 GiB, a tenth in small objects. Short: 230 MiB, half in small objects, 1 MiB and 256 KiB.
    block = (3 if full else 1) * MIB
    small, large = (Objects(1, 32_000), LargeObjects(2, 530, block)) if full else (Objects(1, 4_000), LargeObjects(2, 24, block))
    with Racks(folder, STATED if full else SMALL) as cluster:
        cluster.prepare_bucket(BUCKET, "packed ", "--pack", "1MiB")
        cluster.prepare_bucket(LARGE, "", "--pack", "off", "--block-kib", block >> 10)
        for objects in (small, large):
            objects.put_all(cluster)
        packed = cluster.pack(BUCKET, "--now")["progress"]["packed"]
        ledger.note(f"{packed['objects']} objects in {packed['groups']} groups")
        prove_sealing(ledger, cluster, small, packed["groups"], PARTITION)
        prove_sealing(ledger, cluster, large, large.size() // block, block // cluster.shape.narrow_k)
        prove_losses(ledger, cluster, [small, large])
        prove_deletes(ledger, cluster, [small, large])
        prove_back(ledger, cluster, small)


def prove_sealing(ledger, cluster, objects, stripes, chunk):
    """Seals a bucket of `stripes` narrow stripes of chunks of `chunk` bytes while it is read, and another is written."""
    shape, what = cluster.shape, f"{len(objects.names):,} objects, {objects.size() / MIB:,.0f} MiB, of {objects.bucket}"
    wait_for_garbage(cluster)
    before = cluster.payload()
    with Reading(objects, cluster.client(2)) as reading:
        crossed, read = cluster.crossing(), reading.bytes
        report = cluster.pack(objects.bucket, "--cold")["sealed"][0][1]
        crossed, read = cluster.crossing() - crossed, reading.bytes - read
    sealed = report["sealed"]
    ledger.record(f"ageing {objects.bucket}", report)
    ledger.add(f"{what} age: wide stripes sealed, given up, and reads meanwhile that were wrong",
               f"{sealed}, {report['given_up']}, {len(reading.wrong)} of {reading.read} {reading.wrong[:1]}",
               sealed > 0 and report["given_up"] == 0 and not reading.wrong, "> 0, 0, 0",
               f"{report['sealed_stripes']} of {stripes} stripes sealed, {report['half_sealed']} in part, {report['waiting']} partitions wait")
    # Bytes that are read come from any rack to the gateway's, and leave that for the client.
    ratio = (crossed - (2 - 1 / shape.racks) * read) / (sealed * shape.sealing_chunks * chunk)
    ledger.add("bytes across racks for each wide stripe sealed, over the trees' (reads meanwhile taken off)", f"{ratio:.3f}",
               0.95 <= ratio <= FRAMING * 1.1, f"0.95 to {FRAMING * 1.1:.2f}", f"{crossed / MIB:.0f} MiB in all")
    wait_for_garbage(cluster)
    after = cluster.payload()
    narrow = stripes - report["sealed_stripes"]
    expected = (sealed * shape.n + report["waiting"] + shape.narrow_r * narrow) * chunk
    rest = before - stripes * (shape.narrow_k + shape.narrow_r) * chunk
    ratio = (after - rest) / expected
    ledger.add("bytes on disks after sealing, over those of the codes", f"{ratio:.3f}", abs(ratio - 1) < 0.02, "0.98 to 1.02",
               f"{before / MIB:.0f} MiB before, {after / MIB:.0f} after, {rest / MIB:.1f} of others")
    wrong = objects.wrong(cluster)
    ledger.add("every byte after sealing", f"{len(wrong)} of {len(objects.names)} wrong", not wrong, "0 wrong")


def prove_deletes(ledger, cluster, all_objects):
    """A third of what is sealed is deleted: its space comes back."""
    wait_for_garbage(cluster)
    before, lived = cluster.payload(), sum(objects.size() for objects in all_objects)
    replaced = 0
    for objects in all_objects:
        objects.delete(cluster, objects.names[: len(objects.names) // 3])
    with Reading(all_objects[0], cluster.client(2)) as reading:
        # What is rewritten by the first run may take places of dead members in the second.
        for objects in all_objects * 2:
            replaced += cluster.pack(objects.bucket, "--now", "--cold")["sealed"][0][1]["replaced"]
    wait_for_garbage(cluster)
    after, lives = cluster.payload(), sum(objects.size() for objects in all_objects)
    ratio = (after / lives) / (before / lived)
    ledger.add("a third is deleted: bytes on disks for each living byte, over those before", f"{ratio:.3f}", ratio <= 1.1, "<= 1.10",
               f"{before / MIB:.0f} MiB before, {after / MIB:.0f} after, {replaced} dead members replaced or holes filled")
    wrong = [name for objects in all_objects for name in objects.wrong(cluster)] + reading.wrong
    ledger.add("every byte that is left, and reads meanwhile", f"{len(wrong)} wrong of {reading.read} and the rest", not wrong, "0 wrong")


def prove_back(ledger, cluster, objects):
    """From wide back to split, while others are written."""
    cluster.run("bucket", "set", objects.bucket, "--keep-cold-as-it-is", "--dir", cluster.folder / "id" / "gateway1")
    with Written(objects, cluster.client(2)):
        cluster.run("pack", "undo", objects.bucket, "--quiet", "--dir", cluster.folder / "id" / "gateway1", timeout_s=3600)
    wrong = objects.wrong(cluster)
    ledger.add("back to split under writes: every byte", f"{len(wrong)} of {len(objects.names)} wrong", not wrong, "0 wrong")
    verify = cluster.run("verify", "--quiet", "--dir", cluster.folder / "id" / "gateway1", timeout_s=900)
    ledger.add("verify finds no damage after all this", verify.strip().splitlines()[-1], True, "exit status 0")


def wait_for_garbage(cluster):
    """Until what nothing names has been removed, and sites have said so."""
    least, since = cluster.count_rows(b"g/"), time.monotonic()
    while least:
        time.sleep(1)
        left = cluster.count_rows(b"g/")
        if left < least:
            least, since = left, time.monotonic()
        if time.monotonic() - since > PATIENCE_S:
            raise RuntimeError(f"{left} rows of garbage are left, and have not become fewer for {PATIENCE_S} s")
    time.sleep(15)


def prove_losses(ledger, cluster, all_objects):
    """A site is away, and repaired by the store itself; another is emptied."""
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


def prove_kills(ledger, folder, kills):
    """Kills the process that seals, at random moments."""
    objects = Objects(2, 1_500)
    chance = random.Random(kills)
    with Cluster(folder, gateways=2, sites=SMALL.sites, racks=SMALL.racks) as cluster:
        cluster.run("bucket", "create", BUCKET, "--profile", f"packed {SMALL.narrow}", "--pack", "1MiB", "--cold-profile", SMALL.profile,
                    "--cold-after", "1s", "--dir", cluster.folder / "id" / "gateway1")
        client = cluster.client()
        for name in objects.names:
            objects.put(client, name)
        command = ["pack", "run", BUCKET, "--now", "--cold", "--quiet", "--json", "--dir", cluster.folder / "id" / "gateway2"]
        for _ in range(kills):
            running = subprocess.Popen([cluster.program, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0.2, 3.0))
            cluster.kill("gateway2")
            running.wait()
            cluster.restart("gateway2")
            cluster.wait_until(lambda: cluster.client(2).send("GET", f"/{BUCKET}/{objects.names[0]}").status == 200)
        time.sleep(30)
        done = cluster.run(*command, timeout_s=900)
        report = json.loads(done)["report"]["sealed"][0][1]
        wrong = objects.wrong(cluster)
        ledger.add(f"{kills} times kill -9 of the process that packs and seals: every object is byte-equal", f"{len(wrong)} of {len(objects.names)} wrong",
                   not wrong, "0 wrong", f"{report['sealed_stripes']} groups sealed, {report['half_sealed']} in part, {report['waiting']} wait")
        verify = cluster.run("verify", "--quiet", "--dir", cluster.folder / "id" / "gateway1", timeout_s=900)
        ledger.add("verify finds no damage after them", verify.strip().splitlines()[-1], True, "exit status 0")
