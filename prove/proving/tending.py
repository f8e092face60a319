"""Automatic repair and rebalancing on real processes: a site dies and is rebuilt, a new one fills up, one is emptied."""

import hashlib
import json
import os
import random
import subprocess
import time

from .cluster import Cluster
from .meanwhile import Clients
from .servers import free_port

BUCKET = "tended"
SITES, PROFILE = 8, "rs(4,2)"
SIZES = (20_000, 150_000, 1 << 20, 5 << 20)
REPAIR_AFTER = "10s"
OBJECTS = 400  # about 700 MB
PATIENCE_S = 240


class Load(Clients):
    """Clients that write objects of their own, up to a limit, and read any object, until they are stopped.

    Records the MD5 of every acknowledged object.
    """

    def __init__(self, cluster):
        super().__init__(cluster)
        self.written, self.wrong, self.failed, self.reads = {}, [], 0, 0

    def work(self, number):
        generator, count = random.Random(number), 0
        client = self.cluster.client(gateway=1 + number % len(self.cluster.gateways))
        while not self.stopping.is_set():
            try:
                if not self.written or (len(self.written) < OBJECTS and generator.random() < 0.3):
                    body = generator.randbytes(generator.choice(SIZES))
                    client.put(BUCKET, f"{number}/{count}", body)
                    with self.lock:
                        self.written[f"{number}/{count}"] = hashlib.md5(body).hexdigest()
                    count += 1
                else:
                    self.check(client, generator.choice(list(self.written)))
            except Exception:  # noqa: BLE001 - whatever a client may meet while a site dies
                self.failed += 1
                time.sleep(0.05)
            time.sleep(0.05)

    def check(self, client, key):
        got = hashlib.md5(client.get(BUCKET, key)).hexdigest()
        self.reads += 1
        if got != self.written[key]:
            self.wrong.append(key)

    def compare_all(self, client):
        """Returns the keys, of all acknowledged by now, that do not read back as written. No key is written twice."""
        with self.lock:
            written = list(self.written.items())
        return [key for key, md5 in written if hashlib.md5(client.get(BUCKET, key)).hexdigest() != md5]


def status(cluster):
    """Returns a gateway's status of the cluster. The command exits with 1 if something needs attention."""
    command = [cluster.program, "status", "--json", "--dir", cluster.folder / "id" / "gateway1"]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=60)
    return json.JSONDecoder().raw_decode(done.stdout)[0]


def chunks(cluster, site):
    found = [state["capacity"]["chunks"] for state in status(cluster)["sites"] if state["site"] == site]
    return found[0] if found else 0


def number_of(cluster, name):
    """Returns the number that control assigned to this process's site."""
    listed = cluster.run("admin", "site", "list", "--control", cluster.at("control"),
                         "--identity", cluster.folder / "id" / "admin")
    return next(int(line.split()[0]) for line in listed.splitlines() if line.split()[4:5] == [name])


def add_site(cluster, number):
    name = f"site{number}"
    cluster.run("admin", "certificate", "site", name, "--authority", cluster.folder / "ca",
                "--to", cluster.folder / "id" / name)
    cluster.ports[name] = free_port()
    cluster.spawn_striate(name, "site", "--data", cluster.folder / "sites" / str(number), "--rack", f"rack{number}",
                          "--address", cluster.at(name))
    cluster.wait_until(lambda: number_of(cluster, name))
    return number_of(cluster, name)


def is_whole(cluster):
    """Returns True if every chunk of every stripe exists and is good; otherwise raises RuntimeError."""
    cluster.run("verify", "--quiet", "--dir", cluster.folder / "id" / "gateway1", timeout_s=600)
    return True


def prove_processes(ledger, folder):
    os.environ["STRIATE_REPAIR_AFTER"] = REPAIR_AFTER
    with Cluster(folder, sites=SITES, racks=SITES, gateways=2) as cluster:
        cluster.run("bucket", "create", "--profile", PROFILE, "--dir", cluster.folder / "id" / "gateway1", BUCKET)
        with Load(cluster) as load:
            cluster.wait_until(lambda: len(load.written) >= OBJECTS // 2, PATIENCE_S)
            prove_repair(ledger, cluster, load)
            prove_filling(ledger, cluster, load)
            prove_emptying(ledger, cluster, load)
        wrong = load.compare_all(cluster.client())
        ledger.add("every object reads back byte for byte after all of it",
                   f"{len(wrong)} of {len(load.written)} wrong", not wrong and len(load.written) >= OBJECTS, "0")
        ledger.add("no process panics", ", ".join(cluster.panics()) or "none", not cluster.panics(), "none")


def prove_repair(ledger, cluster, load):
    lost = number_of(cluster, "site3")
    had = chunks(cluster, lost)
    cluster.kill("site3")

    def is_repaired():
        repair = status(cluster)["repair"]
        silent = [entry["rebuilt_after_s"] for entry in repair["silent"] if entry["site"] == lost]
        return silent == [0] and repair["stripes_left"] == 0 and is_whole(cluster)

    took = cluster.wait_until(is_repaired, PATIENCE_S)
    repair = status(cluster)["repair"]
    said = f"not within {PATIENCE_S} s" if took is None else f"after {took:.0f} s"
    ledger.add(f"a site killed under load is rebuilt by itself, {REPAIR_AFTER} after it fell silent: every chunk is verified",
               f"{repair['chunks']} chunks rebuilt, it had {had} at last; whole {said}", took is not None, "whole")
    wrong = load.compare_all(cluster.client())
    ledger.add("meanwhile and afterwards every object reads back byte for byte",
               f"{len(wrong) + len(load.wrong)} of {len(load.written)} wrong, {load.reads} reads, {load.failed} failed "
               "operations", not wrong and not load.wrong, "0 wrong")


def prove_filling(ledger, cluster, load):
    new = add_site(cluster, SITES + 1)

    def others():
        sites = [state for state in status(cluster)["sites"] if state["state"] == "ok" and state["site"] != new]
        return sum(state["capacity"]["chunks"] for state in sites) / len(sites)

    took = cluster.wait_until(lambda: chunks(cluster, new) >= 0.8 * others(), PATIENCE_S)
    ledger.add("a new site fills up by itself", f"{chunks(cluster, new)} chunks, the others {others():.0f} in the mean"
               + (f", after {took:.0f} s" if took is not None else ""), took is not None, "≥ 80% of the others")
    wrong = load.compare_all(cluster.client())
    ledger.add("every object reads back byte for byte", f"{len(wrong)} of {len(load.written)} wrong", not wrong, "0")


def prove_emptying(ledger, cluster, load):
    drained = number_of(cluster, "site1")
    had = chunks(cluster, drained)
    cluster.run("admin", "site", "drain", drained, "--control", cluster.at("control"),
                "--identity", cluster.folder / "id" / "admin")
    took = cluster.wait_until(lambda: chunks(cluster, drained) == 0, PATIENCE_S)
    ledger.add("a site that drains is emptied by itself", f"{chunks(cluster, drained)} of {had} chunks left"
               + (f", after {took:.0f} s" if took is not None else ""), took is not None and had > 0, "0 of some")
    whole = cluster.wait_until(lambda: is_whole(cluster), PATIENCE_S)
    ledger.add("and no stripe lacks a chunk: every one is verified", "whole" if whole is not None else "not whole", whole is not None, "whole")
