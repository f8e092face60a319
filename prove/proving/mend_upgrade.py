"""From 0.5.0 to this program under load, and back: no format changes, so both directions lose nothing at any step."""

import hashlib

from .cluster import Cluster
from .gate import BUCKET, Load, turned
from .servers import Striate, striate_binary
from .upgrade import release_program, wrong, write_some

RELEASE = "0.5.0"


def prove_upgrade(ledger, folder, full):
    release, new = release_program(RELEASE), str(striate_binary())
    prove_server(ledger, folder / "server", release, new)
    prove_cluster(ledger, folder / "cluster", release, new, rounds=3 if full else 1)


def prove_server(ledger, folder, release, new):
    """Starts both programs in turns on the same directories; each reads what all before it wrote, and adds to it."""
    server, written, lost, damage = Striate(folder, program=release), {}, [], []
    for step, program in enumerate([release, new, release, new]):
        server.program = program
        with server:
            lost.append(sum(len(wrong(server.client(), bucket, objects)) for bucket, objects in written.items()))
            server.run("verify", "--quiet", check=False)
            damage.append(server.last_status)
            written[f"step{step}"] = write_some(server.client(), f"step{step}", step)
    ledger.add(f"six directories under {RELEASE}, this program, {RELEASE} and this program again (no format changes)",
               f"objects wrong at each step {lost}, status of verify {damage}", not any(lost) and not any(damage), "all 0")


def prove_cluster(ledger, folder, release, new, rounds):
    """Replaces the processes of a cluster one after the other, up and back, while clients write and read."""
    with Cluster(folder, engine="etcd", gateways=2, sites=6, program=release) as cluster:
        cluster.client().make_bucket(BUCKET)
        processes = [*(f"site{number}" for number in cluster.sites), "control", *(f"gateway{number}" for number in cluster.gateways)]
        with Load(cluster) as load:
            for _ in range(rounds):
                for program in (new, release):
                    turned(cluster, program, processes)
            turned(cluster, new, processes)
            before = len(load.kept)
            cluster.wait_until(lambda: len(load.kept) >= before + 200)
        lost = [key for key, md5 in load.kept.items() if hashlib.md5(cluster.client().get(BUCKET, key)).hexdigest() != md5]
        ledger.add(f"a cluster of {RELEASE} under load, process by process to this program, back, and up again{f', {rounds} times' if rounds > 1 else ''}",
                   f"{len(load.kept)} objects, {len(lost)} lost, {len(load.wrong)} read wrong; {load.failed} requests failed while their gateway restarted",
                   not lost and not load.wrong and len(load.kept) > 200, "0 lost, 0 wrong")
        ledger.add("   no process panics", ", ".join(cluster.panics()) or "none", not cluster.panics(), "none")
