"""What status and health checks say, and whether it is so: grown racks, losses, a dead engine, pulled disks."""

import os
import time

from .cluster import Cluster
from .mend_hanging import fetch
from .servers import Striate, free_port

BUCKET = "status"
OBJECTS = 12
WITHIN_S = 2.0
PATIENCE_S = 60


def prove_status(ledger, folder, full):
    prove_pulled_disks(ledger, folder / "server")
    layouts = [("one site to one of three racks of two", ["a"]), ("a rack of eight to three racks of two", ["d"] * 8)]
    for number, (what, racks) in enumerate(layouts if full else layouts[1:]):
        prove_grown(ledger, folder / f"grown{number}", what, racks)
    prove_engine(ledger, folder / "engine")


def prove_pulled_disks(ledger, folder):
    """Pulls disks one after the other, and compares what status promises with what can be read."""
    with Striate(folder, directories=6) as server:
        client = server.client()
        client.make_bucket(BUCKET)
        for number in range(OBJECTS):
            client.put(BUCKET, f"key{number}", os.urandom(200_000))
        claimed = "all is well" in server.run("status", check=False)
        ledger.add("“all is well” is not said while six directories share one disk (C 14)", "said" if claimed else "not said",
                   not claimed, "not said")
        said, right = [], True
        for pulled in range(4):
            if pulled:
                directory = server.directories[-pulled]  # the first ones have the metadata's mirrors
                directory.rename(directory.with_name(directory.name + ".pulled"))
                began = time.monotonic()
                wanted = 200 if pulled == 1 else 503  # rs(4,2) writes with five of six
                state = wait_for(lambda: fetch(server.console + "/health/ready")[0] == wanted)
                whole = wait_for(lambda: fetch(server.endpoint + "/minio/health/cluster")[0] == 503)
                if pulled < 3:
                    ledger.add(f"with {pulled} of 6 disks pulled, ready and cluster say what is so (C 3)",
                               f"ready {wanted} and cluster 503 after {time.monotonic() - began:.1f} s",
                               state and whole and time.monotonic() - began <= WITHIN_S, f"≤ {WITHIN_S:.0f} s")
            losses = server.status().get("losses") or {"sites_left": "not said", "refused": None}
            said.append(losses["sites_left"])
            right &= (losses["refused"] is not None) == (not writes(client))
        ledger.add("status says how many more disks may be lost, and that writes are refused, as disks are pulled one by one (C 7)",
                   f"{said}, {'as it is' if right else 'not as it is'}", right and said == [2, 1, 0, None], "[2, 1, 0, None]")
        text = server.run("status", check=False)
        missing = [words for words in ["new objects are refused", "more disks are lost", "no place to be rebuilt"] if words not in text]
        ledger.add("with three of six gone it says that writes are refused, that data may be lost, and that there is no place to rebuild (C 7)",
                   f"{len(missing)} missing {missing}" if missing else "all three", not missing, "all three")


def prove_grown(ledger, folder, what, racks):
    """Adds sites to a cluster with objects, and kills a rack of it."""
    with Cluster(folder, sites=6, racks=3, gateways=1) as cluster:
        client = cluster.client()
        client.make_bucket(BUCKET)
        bodies = {f"old{number}": os.urandom(150_000) for number in range(OBJECTS)}
        for key, body in bodies.items():
            client.put(BUCKET, key, body)
        before = cluster.status()["profile"]
        add_sites(cluster, racks)
        cluster.await_that(lambda: len(cluster.status()["sites"]) == 6 + len(racks), "the new sites", PATIENCE_S)
        status = cluster.status()
        stored = 0
        for number in range(OBJECTS):
            bodies[f"new{number}"] = os.urandom(150_000)
            stored += put_answers(client, f"new{number}", bodies[f"new{number}"])
        ledger.add(f"{what} leaves the default profile, and writes go on (B F3, C 1)",
                   f"{before} is {status['profile']}, {stored} of {OBJECTS} written", status["profile"] == before and stored == OBJECTS,
                   f"{before}, all")
        promised = (status.get("losses") or {}).get("racks_left")
        # The rack that has grown, or one of the old ones beside a rack of eight.
        for name in ["site1", "site4", *(["site7"] if racks == ["a"] else [])]:
            cluster.kill(name)
        readable = sum(answers_with(client, key, body) for key, body in bodies.items())
        ledger.add(f"{what}: as many racks may be lost as status says; one is lost, and all is read (C 1)",
                   f"{promised} promised, {readable} of {len(bodies)} read", promised == 1 and readable == len(bodies), "1, all")


def add_sites(cluster, racks):
    identity = cluster.folder / "id" / "site7"
    cluster.striate("admin", "certificate", "site", "site7", "--authority", cluster.folder / "ca", "--to", identity)
    data = [argument for number, _ in enumerate(racks) for argument in ("--data", cluster.folder / "sites" / f"new{number}")]
    cluster.spawn_striate("site7", "site", *data, "--rack", racks[0], "--address", f"127.0.0.1:{free_port()}")


def prove_engine(ledger, folder):
    with Cluster(folder, engine="postgres", sites=3, racks=3, gateways=1) as cluster:
        console = f"http://{cluster.at('console1')}"
        s3 = cluster.endpoints()[0]
        checks = {"ready": console + "/health/ready", "cluster": console + "/health/cluster", "S3's cluster": s3 + "/minio/health/cluster"}
        before = {name: fetch(url)[0] for name, url in checks.items()}
        cluster.kill("postgres")
        began = time.monotonic()
        told = wait_for(lambda: all(fetch(url)[0] == 503 for url in checks.values()))
        took = time.monotonic() - began
        ledger.add("with PostgreSQL dead, ready and cluster say so (C 3)", f"{set(before.values())} before, 503 after {took:.1f} s",
                   told and set(before.values()) == {200} and took <= WITHIN_S, f"≤ {WITHIN_S:.0f} s")
        warnings = cluster.status()["warnings"]
        named = any("metadata" in warning for warning in warnings)
        ledger.add("and status says so (C 10)", "; ".join(warnings) or "nothing", named, "a warning")


def wait_for(is_so):
    """Returns whether a condition held within the patience of a proof."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        if is_so():
            return True
        time.sleep(0.02)
    return False


def answers_with(client, key, body):
    answer = client.send("GET", f"/{BUCKET}/{key}")
    return answer.status == 200 and answer.body == body


def put_answers(client, key, body):
    try:
        return client.send("PUT", f"/{BUCKET}/{key}", body=body).status == 200
    except OSError:  # refused before the body was sent
        client.close()
        return False


def writes(client):
    return put_answers(client, "another", bytes(100_000))
