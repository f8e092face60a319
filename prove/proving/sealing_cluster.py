"""Clusters in racks whose data is sealed, and their counts: bytes that cross racks, rows, chunks, garbage.

Racks are network namespaces. Their links count the bytes that leave racks.
"""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from . import hosts, rows
from .sealing_objects import Reading

# Silence after which a site is repaired.
REPAIR_AFTER = "20s"
PATIENCE_S = 1_200


@dataclass(frozen=True)
class Shape:
    """A cluster, the code of new data, and the wide code into which it is sealed."""

    racks: int
    profile: str
    n: int
    k: int
    # Chunks that cross racks to seal one wide stripe: for each local parity one from each other rack of its group, and for each global
    # parity one from each rack with data.
    sealing_chunks: int
    narrow: str
    narrow_k: int
    narrow_r: int

    @property
    def sites(self):
        return 5 * self.racks


# Two groups of five data chunks and a local parity, each group in two racks of three chunks; two global parities in a fifth rack.
SMALL = Shape(6, "wide(10,5,3)", 14, 10, 10, "rs(4,2)", 4, 2)
# Two groups of fifteen data chunks, each in three racks of four and one of three and the local parity; one of twelve in three racks of
# four, its local parity beside the three global ones in a twelfth rack.
STATED = Shape(13, "wide(42,15,4)", 48, 42, 42, "rs(6,3)", 6, 3)


class RackedCluster(hosts.Hosts):
    """A cluster with its sites in racks that have their own networks."""

    def __init__(self, folder, shape):
        os.environ["STRIATE_REPAIR_AFTER"] = REPAIR_AFTER
        self.shape = shape
        super().__init__(folder, racks=shape.racks, gateways=2, sites=shape.sites)

    def crossing(self):
        """Returns the total bytes that have left racks."""
        return sum(int(Path(f"/sys/class/net/{self.bridge}{rack}/statistics/rx_bytes").read_text()) for rack in self.racks)

    def moved(self):
        """Returns the number of chunks moved to balance sites or to speed up reads."""
        movement = self.status().get("movement") or {}
        return sum(movement.get(kind, {}).get("chunks", 0) for kind in ("levelling", "optimising"))

    def prepare_bucket(self, bucket, layout, *flags):
        self.run("bucket", "create", bucket, "--profile", f"{layout}{self.shape.narrow}", *flags, "--dir", self.gateway)

    def let_age(self, bucket):
        """Gives the bucket its cold profile. Earlier, the store's service would have sealed cold data automatically."""
        self.run("bucket", "set", bucket, "--cold-profile", self.shape.profile, "--cold-after", "1s", "--dir", self.gateway)

    def pack(self, bucket, *flags):
        done = self.run("pack", "run", bucket, "--json", "--quiet", *flags, "--dir", self.gateway, timeout_s=3600)
        return json.loads(done)["report"]


class Kept:
    """State that sealing must not change: rows of a bucket's objects, of blocks and of parts, and data chunks as named by stripes' rows."""

    def __init__(self, cluster, bucket):
        self.rows = rows.revisions(cluster, rows.OBJECTS + bucket.encode() + b"\0", rows.BLOCKS, rows.PARTS)
        self.chunks = rows.data_chunks(cluster, cluster.shape.narrow_k)
        self.moved = cluster.moved()


class Beside:
    """Bytes that cross racks without sealing: per second at rest, and per read. Each is measured for `seconds`."""

    def __init__(self, cluster, objects, seconds):
        self.cluster, self.seconds = cluster, seconds
        with Reading(objects, cluster.client(2)):
            time.sleep(2)  # until connections are open
        self.a_second = self.count()
        with Reading(objects, cluster.client(2)) as reading:
            total, reads = self.count() * self.seconds, reading.done
        self.a_read = (total - self.a_second * self.seconds) / max(1, reads)

    def count(self):
        """Measures bytes a second from now on."""
        began, crossed = time.monotonic(), self.cluster.crossing()
        time.sleep(self.seconds)
        return (self.cluster.crossing() - crossed) / (time.monotonic() - began)


def wait_for_fewer(count, pause_s=1):
    """Waits as long as the count keeps falling, and returns how many are left."""
    least, since = count(), time.monotonic()
    while least and time.monotonic() - since < PATIENCE_S:
        time.sleep(pause_s)
        left = count()
        if left < least:
            least, since = left, time.monotonic()
    return least


def wait_for_garbage(cluster):
    """Waits until garbage is removed, no chunk is moving to balance sites, and sites have reported this."""
    before = deadline = None
    while True:
        left = wait_for_fewer(lambda: cluster.count_rows(rows.GARBAGE))
        if left:
            raise RuntimeError(f"{left} rows of garbage are left, and have not become fewer for {PATIENCE_S} s")
        if deadline is None:
            # The deadline starts now: the more was packed, the longer its garbage takes.
            before, deadline = cluster.payload(), time.monotonic() + PATIENCE_S
        time.sleep(15)
        now = cluster.payload()
        # A moved chunk exists twice until its old copy becomes garbage and is removed.
        if now == before and not cluster.count_rows(rows.GARBAGE):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"sites have not come to rest within {PATIENCE_S} s after the garbage was gone")
        before = now
