"""Clusters in racks whose data is sealed, and what is counted of them: bytes that cross racks, rows, chunks, garbage.

Racks are network namespaces. What crosses them is counted by their links, in both directions.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from . import hosts, rows
from .sealing_objects import Reading

# A site that is silent for so long is repaired.
REPAIR_AFTER = "20s"
PATIENCE_S = 1_200


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


class RackedCluster(hosts.Hosts):
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
        self.run("bucket", "create", bucket, "--profile", f"{layout}{self.shape.narrow}", *flags, "--dir", self.gateway)

    def let_age(self, bucket):
        """Until now the store's service would have sealed what is cold by itself."""
        self.run("bucket", "set", bucket, "--cold-profile", self.shape.profile, "--cold-after", "1s", "--dir", self.gateway)

    def pack(self, bucket, *flags):
        done = self.run("pack", "run", bucket, "--json", "--quiet", *flags, "--dir", self.gateway, timeout_s=3600)
        return json.loads(done)["report"]


class Kept:
    """What sealing leaves as it is: rows of a bucket's objects, of blocks and of parts, and data chunks as stripes' rows name them."""

    def __init__(self, cluster, bucket):
        self.rows = rows.revisions(cluster, rows.OBJECTS + bucket.encode() + b"\0", rows.BLOCKS, rows.PARTS)
        self.chunks = rows.data_chunks(cluster, cluster.shape.narrow_k)
        self.moved = cluster.moved()


class Beside:
    """Bytes that cross racks whether anything is sealed or not: in a second at rest, and further ones for each read. Both are measured for
    `seconds`."""

    def __init__(self, cluster, objects, seconds):
        self.cluster, self.seconds = cluster, seconds
        with Reading(objects, cluster.client(2)):
            time.sleep(2)  # Connections are open then.
        self.a_second = self.count()
        with Reading(objects, cluster.client(2)) as reading:
            total, reads = self.count() * self.seconds, reading.done
        self.a_read = (total - self.a_second * self.seconds) / max(1, reads)

    def count(self):
        """Bytes in a second from now on."""
        began, crossed = time.monotonic(), self.cluster.crossing()
        time.sleep(self.seconds)
        return (self.cluster.crossing() - crossed) / (time.monotonic() - began)


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
        if deadline is None:
            # Only from now on: the more was packed, the longer its garbage takes.
            before, deadline = cluster.payload(), time.monotonic() + PATIENCE_S
        time.sleep(15)
        now = cluster.payload()
        # A chunk that has moved is there twice until its old place is garbage, and removed.
        if now == before and not cluster.count_rows(rows.GARBAGE):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"sites have not come to rest within {PATIENCE_S} s after the garbage was gone")
        before = now
