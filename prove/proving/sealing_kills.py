"""`kill -9` of the process that seals, while it builds wide stripes; another gateway keeps serving.

Tests that prove/wide names let processes die at the other steps.
"""

import json
import random
import subprocess
import time

from . import rows
from .cluster import Cluster
from .sealing import add_verified
from .sealing_cluster import SMALL, wait_for_fewer
from .sealing_objects import BUCKET, Objects, Reading

# Objects for each kill, of some two or three wide stripes, and the minimum and maximum seconds that the command works before the kill: no
# kill may find everything sealed.
OBJECTS_A_KILL, WORKS_S = 800, (0.1, 1.0)
# Maximum seconds until a wide stripe is begun.
BEGUN_S = 300


def prove_kills(ledger, folder, kills):
    """Packs, then kills the sealing process again and again, and finally lets it seal the rest."""
    objects, chance = Objects(2, OBJECTS_A_KILL * kills), random.Random(kills)
    with Cluster(folder, gateways=2, sites=SMALL.sites, racks=SMALL.racks) as cluster:
        cluster.run("bucket", "create", BUCKET, "--profile", f"packed {SMALL.narrow}", "--pack", "1MiB", "--cold-profile", SMALL.profile,
                    "--cold-after", "1s", "--dir", cluster.gateway)
        objects.put_all(cluster)
        cluster.run("pack", "run", BUCKET, "--now", "--quiet", "--dir", cluster.gateway, timeout_s=3_600)
        command = ["pack", "run", BUCKET, "--cold", "--quiet", "--json", "--dir", cluster.folder / "id" / "gateway2"]
        with Reading(objects, cluster.client(1)) as reading:
            left = [kill_while_sealing(cluster, command, chance.uniform(*WORKS_S)) for _ in range(kills)]
        report = json.loads(cluster.run(*command, timeout_s=3_600))["report"]["sealed"][0][1]
        wait_for_fewer(lambda: half_made(cluster))
        ledger.record("kills while partitions are sealed", {"half made": left, "report": report})
        add_kills(ledger, cluster, left, report)
        wrong = objects.wrong(cluster)
        ledger.add("   every object is byte-equal afterwards, and reads by another gateway meanwhile were right",
                   f"{len(wrong)} of {len(objects.names)} wrong, {reading}", not wrong and reading.is_right(), "0 wrong, 0 of some")
        add_verified(ledger, cluster, "after them")


def kill_while_sealing(cluster, command, pause_s):
    """Runs the command on the second gateway, and kills the gateway after a while, when a wide stripe is being built.

    Returns the number of half-built wide stripes right after the kill.
    """
    running = subprocess.Popen([cluster.program, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(pause_s)
        until = time.monotonic() + BEGUN_S
        while running.poll() is None and rows.newest_state(cluster) != rows.BUILDING and time.monotonic() < until:
            pass
        cluster.kill("gateway2")
    finally:
        running.kill()
        running.wait()
    left = half_made(cluster)
    cluster.restart("gateway2")
    cluster.await_that(lambda: cluster.status(2) and cluster.client(2).send("GET", "/").status == 200, "the second gateway answers again")
    return left


def half_made(cluster):
    """Counts wide stripes whose parities are not yet durable, or that are being aborted."""
    states = rows.wide_states(cluster)
    return states[rows.BUILDING] + states[rows.ABORTING]


def add_kills(ledger, cluster, left, report):
    met, remain = sum(count > 0 for count in left), half_made(cluster)
    ledger.add(f"{len(left)} times kill -9 of the process that seals: kills that left a wide stripe half made, by the rows of stripes",
               f"{met}", 2 * met >= len(left) > 0, "half at least", f"{sum(left)} wide stripes in all")
    ledger.add("   wide stripes that are half made in the end, and stripes that are sealed", f"{remain}, {report['sealed_stripes']}",
               remain == 0 and report["sealed_stripes"] > 0, "0, > 0", f"{report['half_sealed']} sealed in part, {report['waiting']} partitions wait, "
               f"{report['given_up']} given up by the last run")
