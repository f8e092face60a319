"""Ageing of a bucket on real processes: packed objects are sealed into wide stripes, read while racks are away, and repaired.

Racks are network namespaces. What crosses them is counted by their links, in both directions.
"""

import json
import os
import random
import subprocess
import threading
import time
from pathlib import Path

from . import hosts, tending
from .cluster import Cluster
from .servers import striate_binary

MIB = 1 << 20
BUCKET = "archive"
RACKS, SITES = 6, 30
# Two groups of five data chunks and a local parity in two racks of three each, and two global parities in a fifth rack.
PROFILE, N, K = "wide(10,5,3)", 14, 10
NARROW, PARTITION = "rs(4,2)", MIB
# Chunks that cross racks for one wide stripe sealed: one for each local parity, and of each of four racks one for each global one.
SEALING_CHUNKS = 10
# Frames, acknowledgements and what processes tell each other meanwhile.
FRAMING = 1.10
# A site that is silent for so long is repaired.
REPAIR_AFTER = "20s"
PATIENCE_S = 400


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

    def __init__(self, folder):
        os.environ["STRIATE_REPAIR_AFTER"] = REPAIR_AFTER
        super().__init__(folder, racks=RACKS, gateways=2, sites=SITES)

    def crossing(self):
        """Bytes that have left racks, all together."""
        return sum(int(Path(f"/sys/class/net/{self.bridge}{rack}/statistics/rx_bytes").read_text()) for rack in self.racks)

    def prepare_bucket(self):
        self.run("bucket", "create", BUCKET, "--profile", f"packed {NARROW}", "--pack", "1MiB", "--cold-profile", PROFILE, "--cold-after", "1s",
                 "--dir", self.folder / "id" / "gateway1")

    def pack(self, *flags):
        return json.loads(self.run("pack", "run", BUCKET, "--json", "--quiet", *flags, "--dir", self.folder / "id" / "gateway1", timeout_s=900))["report"]

    def payload(self):
        return sum(site["capacity"]["payload_bytes"] for site in self.status()["sites"])


class Objects:
    """Objects of 4 to 60 KiB, each told from its name."""

    def __init__(self, seed, count):
        self.pool = random.Random(seed).randbytes(MIB)
        self.names = [f"folder{number % 7}/object{number:06}" for number in range(count)]

    def body(self, name):
        chance = random.Random(name)
        size = chance.randrange(4 << 10, 60 << 10)
        start = chance.randrange(len(self.pool) - size)
        return name.encode() + self.pool[start:start + size]

    def put(self, client):
        for name in self.names:
            answer = client.send("PUT", f"/{BUCKET}/{name}", body=self.body(name))
            if answer.status != 200:
                raise RuntimeError(f"PUT {name}: {answer.status} {answer.body[:200]}")

    def wrong(self, client):
        """Names whose bytes are not what they should be."""
        return [name for name in self.names if client.send("GET", f"/{BUCKET}/{name}").body != self.body(name)]


class Reading:
    """Reads at random while something else happens, and counts what is wrong."""

    def __init__(self, objects, client):
        self.objects, self.client, self.stopping = objects, client, threading.Event()
        self.read, self.wrong = 0, []
        self.thread = threading.Thread(target=self.work, daemon=True)

    def work(self):
        chance = random.Random(5)
        while not self.stopping.is_set():
            name = chance.choice(self.objects.names)
            answer = self.client.send("GET", f"/{BUCKET}/{name}")
            self.read += 1
            if answer.body != self.objects.body(name):
                self.wrong.append((name, answer.status))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join()


def prove_ageing(ledger, folder, full):
    why_not = hosts.missing()
    if why_not:
        ledger.note(f"not run: {why_not}")
        return
    objects = Objects(1, 20_000 if full else 4_000)
    size = f"{len(objects.names):,} objects"
    with Racks(folder) as cluster:
        client = cluster.client()
        cluster.prepare_bucket()
        objects.put(client)
        packed = cluster.pack("--now")["progress"]["packed"]
        ledger.note(f"{packed['objects']} objects in {packed['groups']} groups")
        wait_for_garbage(cluster)
        before = cluster.payload()
        with Reading(objects, cluster.client(2)) as reading:
            crossed = cluster.crossing()
            reads = reading.read
            report = cluster.pack("--cold")["sealed"][0][1]
            crossed = cluster.crossing() - crossed
            reads = reading.read - reads
        sealed = report["sealed"]
        ledger.record("ageing", report)
        ledger.add(f"{size} age: wide stripes sealed, given up, and reads meanwhile that were wrong",
                   f"{sealed}, {report['given_up']}, {len(reading.wrong)} of {reading.read} {reading.wrong[:1]}",
                   sealed > 0 and report["given_up"] == 0 and not reading.wrong, "> 0, 0, 0",
                   f"{report['sealed_stripes']} groups sealed, {report['half_sealed']} in part, {report['waiting']} partitions wait")
        # Reads answered meanwhile cross racks too: those of the gateway's own rack aside.
        answers = reads * 34_000
        ratio = (crossed - answers) / (sealed * SEALING_CHUNKS * PARTITION)
        ledger.add("bytes across racks for each wide stripe sealed, over the trees' (reads meanwhile taken off)", f"{ratio:.3f}",
                   0.95 <= ratio <= FRAMING * 1.1, f"0.95 to {FRAMING * 1.1:.2f}", f"{crossed / MIB:.0f} MiB in all")
        wait_for_garbage(cluster)
        after = cluster.payload()
        narrow = packed["groups"] - report["sealed_stripes"]
        expected = sealed * N * PARTITION + (report["waiting"] + 2 * narrow) * PARTITION
        rest = before - packed["groups"] * 6 * PARTITION
        ledger.add("bytes on disks after sealing, over those of the codes", f"{(after - rest) / expected:.3f}", abs((after - rest) / expected - 1) < 0.02,
                   "0.98 to 1.02", f"{before / MIB:.0f} MiB before, {after / MIB:.0f} after, {rest / MIB:.1f} of objects that are not packed")
        wrong = objects.wrong(cluster.client())
        ledger.add("every byte after sealing", f"{len(wrong)} of {len(objects.names)} wrong", not wrong, "0 wrong")
        prove_losses(ledger, cluster, objects)


def wait_for_garbage(cluster):
    """Until what nothing names has been removed."""
    last = None
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        now = cluster.payload()
        if now == last:
            return
        last = now
        time.sleep(75)


def prove_losses(ledger, cluster, objects):
    """A site is away, and repaired by the store itself; another is emptied."""
    cluster.kill("site3")
    time.sleep(3)
    wrong = objects.wrong(cluster.client())
    ledger.add("reads with a site away, its members computed in their wide stripes", f"{len(wrong)} of {len(objects.names)} wrong", not wrong, "0 wrong")
    crossed = cluster.crossing()
    whole = cluster.wait_until(lambda: tending.is_whole(cluster), PATIENCE_S)
    ledger.add("the store repairs what the site had: every chunk is verified", "whole" if whole is not None else "not whole", whole is not None, "whole",
               f"{(cluster.crossing() - crossed) / MIB:.0f} MiB across racks")
    drained = tending.number_of(cluster, "site4")
    had = tending.chunks(cluster, drained)
    cluster.run("admin", "site", "drain", drained, "--control", cluster.at("control"), "--identity", cluster.folder / "id" / "admin")
    took = cluster.wait_until(lambda: tending.chunks(cluster, drained) == 0, PATIENCE_S)
    ledger.add("a site that drains is emptied, its members with their copies", f"{tending.chunks(cluster, drained)} of {had} chunks left", took is not None, "0")
    wrong = objects.wrong(cluster.client())
    ledger.add("every byte after both", f"{len(wrong)} of {len(objects.names)} wrong", not wrong, "0 wrong")


def prove_kills(ledger, folder, kills):
    """Kills the process that seals, at random moments."""
    objects = Objects(2, 1_500)
    chance = random.Random(kills)
    with Cluster(folder, gateways=2, sites=SITES, racks=RACKS) as cluster:
        cluster.run("bucket", "create", BUCKET, "--profile", f"packed {NARROW}", "--pack", "1MiB", "--cold-profile", PROFILE, "--cold-after", "1s",
                    "--dir", cluster.folder / "id" / "gateway1")
        objects.put(cluster.client())
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
        wrong = objects.wrong(cluster.client())
        ledger.add(f"{kills} times kill -9 of the process that packs and seals: every object is byte-equal", f"{len(wrong)} of {len(objects.names)} wrong",
                   not wrong, "0 wrong", f"{report['sealed_stripes']} groups sealed, {report['half_sealed']} in part, {report['waiting']} wait")
        verify = cluster.run("verify", "--quiet", "--dir", cluster.folder / "id" / "gateway1", timeout_s=900)
        ledger.add("verify finds no damage after them", verify.strip().splitlines()[-1], True, "exit status 0")
