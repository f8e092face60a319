"""Concurrent clients read and write a bucket of another store through two caching gateways while processes are killed.

Their answers must fit one order.
"""

import os
import time

from .cluster import Cluster
from .history import KEYS, drive
from .servers import Striate
from .stale import StaleProxy

BUCKET = "judged"


class Cached(Cluster):
    """Two gateways and three memory sites in front of another store. The first gateway also caches writes."""

    def __init__(self, folder, origin):
        super().__init__(folder, gateways=2, sites=3, racks=3, memory_sites=3, memory_mib=64)
        self.origin = origin

    def spawn(self, name, *command):
        super().spawn(name, *command, *(["--cache-writes"] if name == "gateway1" else []))

    def make_bucket(self, name):
        for variable, value in (("ACCESS_KEY", self.origin.credentials.access_key), ("SECRET_KEY", self.origin.credentials.secret_key)):
            os.environ[f"STRIATE_ORIGIN_{variable}"] = value
        self.origin.client().make_bucket(name)
        self.run("bucket", "create", "--dir", self.folder / "id" / "gateway1", "--origin", f"s3://{name}",
                 "--origin-endpoint", self.origin.endpoint, "--ttl", "10m", name)


def prove_fences(ledger, folder, full):
    operations = 40_000 if full else 6_000
    with Striate(folder / "origin", directories=3) as origin, Cached(folder / "cluster", origin) as cluster:
        cluster.await_memory()
        judge_kills(ledger, folder, cluster, origin, operations)
        judge_planted(ledger, folder, cluster)


def judge_kills(ledger, folder, cluster, origin, operations):
    cluster.make_bucket(BUCKET)
    kills = []

    def kill(history):
        memory = [name for name, _ in cluster.running if name.startswith("memory")]
        for number in range(6):
            victim = ["gateway2", *memory, "origin"][number % (2 + len(memory))]
            deadline = time.monotonic() + 60
            while history.operations < operations * (number + 1) / 8 and time.monotonic() < deadline:
                time.sleep(0.05)
            if victim == "origin":
                origin.kill()
                time.sleep(0.5)
                origin.start()
            else:
                cluster.kill(victim)
                time.sleep(0.5)
                cluster.restart(victim)
            kills.append(victim)

    history = drive(cluster.endpoints(), cluster.credentials, BUCKET, folder / "history.jsonl", operations=operations, clients=12,
                    timeout_s=20, during=kill)
    verdict = history.judge()
    statuses = [cluster.status(gateway) for gateway in cluster.gateways]
    served = [{entry["how"]: entry["reads"] for entry in status["cache"]["reads"]} for status in statuses]
    ledger.add(f"keys whose histories fit no order, of {len(KEYS)}: {history.operations} operations through two caching gateways, "
               f"kills of {', '.join(kills)}", f"{len(verdict['illegal'])} illegal, {len(verdict['undecided'])} undecided",
               verdict["illegal"] == [] and verdict["undecided"] == [], "0 and 0",
               f"{history.unknown} outcomes unknown; the gateways' reads since they began: {served}")
    hits, cached = sum(reads["hit"] for reads in served), statuses[0]["origins"]["cached_writes"]
    ledger.add("   hits of both gateways among these reads, and writes that were cached", f"{hits}, {cached}", min(hits, cached) > 0,
               "> 0, or nothing was judged")
    lost = [key for key, digest in history.kept.items() if not is_kept(origin, key, digest)]
    ledger.add("acknowledged objects that nobody touched again and that the origin does not have", f"{len(lost)} of {len(history.kept)}",
               not lost and len(history.kept) > 0, "0 of some")


def is_kept(origin, key, digest):
    answer = origin.client().send("HEAD", f"/{BUCKET}/{key}")
    return answer.status == 200 and answer.headers["etag"].strip('"') == digest


def judge_planted(ledger, folder, cluster):
    """Checks that the judge finds a gateway that answers from its own memory, like a cache that ignores fences."""
    cluster.make_bucket("planted")
    with StaleProxy(cluster.endpoints()[1]) as proxy:
        history = drive([cluster.endpoints()[0], proxy.endpoint], cluster.credentials, "planted", folder / "planted.jsonl",
                        operations=1_500, clients=12, timeout_s=20)
    illegal = history.judge()["illegal"]
    ledger.add("keys whose histories fit no order when one of the two answers reads again for 0.3 s", f"{len(illegal)}", bool(illegal), "> 0: found")
