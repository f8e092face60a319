"""The upgrade gate: from a release to this program and back until newer formats are written, and no way back afterwards.

`prove_gate(ledger, folder, release)` adds the claims for one release; `release` is the path of its program.
"""

import hashlib
import random
from pathlib import Path

from .cluster import Cluster
from .meanwhile import Clients
from .servers import Striate, striate_binary
from .upgrade import write_some, wrong

OLD = {"records": 1, "chunks": 1}
BUCKET = "gate"


def prove_gate(ledger, folder, release):
    """Proves all claims, starting from the program `release`: directories of one server, then a cluster under load."""
    prove_directories(ledger, folder / "directories", release)
    prove_finalize_option(ledger, folder / "option", release)
    prove_cluster(ledger, folder / "cluster", release)


def name_of(release):
    """Names a release by its folder (tools/release): programs of 0.1.1 call themselves 0.1.0."""
    return f"release {Path(release).parent.name}"


def refusal(server):
    """Returns why `server` does not start (the last line of its log), or None if it starts."""
    before = len(server.log_tail(1 << 20))
    try:
        with server:
            return None
    except RuntimeError:
        said = server.log_tail(1 << 20)[before:].strip().splitlines()
        return said[-1] if said else "without a word"


def snapshot(directories):
    """Returns the MD5 of every file that a refusing program must leave alone: all but the lock file."""
    files = {}
    for directory in directories:
        for path in sorted(directory.rglob("*")):
            if path.is_file() and path.name != "lock":
                files[str(path)] = hashlib.md5(path.read_bytes()).hexdigest()
    return files


def prove_directories(ledger, folder, release):
    """Upgrades, downgrades, upgrades again and finalizes directories, with data written at every step."""
    new, name = striate_binary(), name_of(release)
    server, written, steps = Striate(folder, program=release), {}, []
    for step, program in enumerate([release, new, release, new]):
        server.program = program
        with server:
            lost = [key for bucket, objects in written.items() for key in wrong(server.client(), bucket, objects)]
            written[f"step{step}"] = write_some(server.client(), f"step{step}", step)
            steps.append(len(lost))
            if program == new:
                server.run("verify", "--quiet", check=False)
                steps.append(server.last_status)
                in_force = server.status()["formats"]["in_force"]
                text = server.run("status", check=False)
            if step == 3:
                before = server.run("admin", "upgrade", "status", check=False)
                status_before = server.last_status
                said = server.run("admin", "upgrade", "finalize")
                after = server.status()["formats"]
                written["finalized"] = write_some(server.client(), "finalized", 9)
    objects = sum(map(len, written.values()))
    ledger.add(f"directories of {name}: up, down and up again, each time with all that was written before",
               f"objects wrong or damage found at a step: {steps}", not any(steps), "none")
    ledger.add("a newer program writes the old formats and offers the new ones in `status`",
               f"in force {in_force}, {'offered' if 'admin upgrade finalize' in text else 'not offered'}",
               in_force == OLD and "admin upgrade finalize" in text, f"in force {OLD}, offered")
    ledger.add("`admin upgrade status` says that they wait, `finalize` puts them in force",
               f"exit status {status_before}, {before.splitlines()[0]}; {said.strip()}; {after['in_force']}",
               status_before == 1 and after["in_force"] == after["target"] != OLD, "1, then the newest")
    untouched = snapshot(server.directories)
    server.program = release
    reason = refusal(server)
    ledger.add(f"afterwards {name} refuses to start, says why, and changes nothing",
               (reason or "it started")[:300] + ("" if snapshot(server.directories) == untouched else "; files changed"),
               bool(reason) and "newer version of striate" in reason and snapshot(server.directories) == untouched,
               "refused, names a newer version")
    server.program = new
    with server:
        lost = [key for bucket, some in written.items() for key in wrong(server.client(), bucket, some)]
    ledger.add("and this program reads everything", f"{len(lost)} of {objects} objects wrong", not lost, "none")


class Finalizing(Striate):
    """A server started with `--finalize`."""

    def command(self):
        return [*super().command(), "--finalize"]


def prove_finalize_option(ledger, folder, release):
    """Proves that `server --finalize` puts the newest formats in force at start."""
    with Striate(folder, program=release) as server:
        written = write_some(server.client(), BUCKET, 3)
    with Finalizing(folder) as server:
        formats = server.status()["formats"]
        lost = wrong(server.client(), BUCKET, written)
    reason = refusal(Striate(folder, program=release))
    ledger.add(f"`server --finalize` on directories of {name_of(release)}",
               f"in force {formats['in_force']}, {len(lost)} objects wrong, the release: {(reason or 'it started')[:200]}",
               formats["in_force"] == formats["target"] and not lost and bool(reason), "newest, none wrong, refused")


class Load(Clients):
    """Clients that put objects of their own and read them back, through gateways that come and go.

    Records every acknowledged object. An unavailable gateway is not an error, and neither is 503.
    """

    SIZES = (100, 20_000, 400_000)

    def __init__(self, cluster):
        super().__init__(cluster)
        self.kept, self.wrong, self.failed = {}, [], 0

    def work(self, number):
        generator, own, count = random.Random(number), [], 0
        while not self.stopping.is_set():
            client = self.cluster.client(gateway=generator.choice(list(self.cluster.gateways)), timeout_s=20)
            key, body = f"load/{number}/{count}", generator.randbytes(generator.choice(self.SIZES))
            count += 1
            try:
                client.put(BUCKET, key, body)
                own.append((key, hashlib.md5(body).hexdigest()))
                with self.lock:
                    self.kept[key] = own[-1][1]
                key, md5 = generator.choice(own)
                if hashlib.md5(client.get(BUCKET, key)).hexdigest() != md5:
                    self.wrong.append(key)
            except Exception:  # noqa: BLE001 - a gateway that restarts
                with self.lock:
                    self.failed += 1
                self.stopping.wait(0.1)


def turned(cluster, program, names):
    """Stops processes one by one, as a service manager does, and starts `program` instead of each."""
    for name in names:
        cluster.upgrade(name, program)
        if name.startswith("site"):
            cluster.wait_until(lambda: cluster.active_sites() == len(cluster.sites))
            cluster.run("heal", "--quiet", "--dir", cluster.folder / "id" / "gateway1")
        elif name.startswith("gateway"):
            number = int(name.removeprefix("gateway"))
            cluster.wait_until(lambda number=number: cluster.client(number).send("GET", "/").status == 200)


def prove_cluster(ledger, folder, release):
    """Upgrades a cluster under load process by process, downgrades a part, upgrades it again, and finalizes.

    Finalizing is refused as long as one process is still the release.
    """
    new, name = str(striate_binary()), name_of(release)
    gateway = folder / "id" / "gateway1"
    with Cluster(folder, engine="etcd", gateways=2, sites=6, program=release) as cluster:
        cluster.client().make_bucket(BUCKET)
        sites = [f"site{number}" for number in cluster.sites]
        with Load(cluster) as load:
            turned(cluster, new, [*sites, "control", "gateway1"])
            cluster.program = new
            held = refused(cluster, "admin", "upgrade", "finalize", "--dir", gateway)
            turned(cluster, new, ["gateway2"])
            turned(cluster, release, ["gateway2", "control", "site1"])
            turned(cluster, new, ["site1", "control"])
            held_again = refused(cluster, "admin", "upgrade", "finalize", "--dir", gateway)
            turned(cluster, new, ["gateway2"])
            opened = cluster.wait_until(
                lambda: cluster.run("admin", "upgrade", "finalize", "--dir", gateway), timeout_s=90)
            before = len(load.kept)
            cluster.wait_until(lambda: len(load.kept) >= before + 200)
        ledger.add(f"cluster of {name} under load: a gateway of the release holds the gate, and is named",
                   " | ".join(text.rpartition("for good: ")[2] for text in (held, held_again)),
                   all("writer number" in text or "gateway2" in text for text in (held, held_again)),
                   "refused twice, named")
        ledger.add("with the last process the gate opens", f"after {opened:.1f} s" if opened is not None else "never",
                   opened is not None, "within 90 s")
        lost = [key for key, md5 in load.kept.items()
                if hashlib.md5(cluster.client().get(BUCKET, key)).hexdigest() != md5]
        ledger.add("up, down and up again under load: nothing acknowledged is lost, no other bytes are read",
                   f"{len(load.kept)} objects, {len(lost)} lost, {len(load.wrong)} read wrong, {load.failed} requests failed "
                   "while processes restarted",
                   not lost and not load.wrong and len(load.kept) > 200, "0 lost, 0 wrong")
        ledger.add("no process panics", ", ".join(cluster.panics()) or "none", not cluster.panics(), "none")
        # Sites learn of the new formats within ten seconds, and persist them.
        cluster.wait_until(lambda: all(
            '"version":2' in (folder / "sites" / str(number) / ".striate" / "cluster").read_text()
            for number in cluster.sites), timeout_s=30)
        for process, reason in (("site1", "newer version of striate"), ("control", "start a newer striate"),
                                ("gateway2", "start a newer striate")):
            cluster.upgrade(process, release)
            ended = cluster.wait_until(lambda process=process: cluster.process(process).poll() is not None, timeout_s=30)
            said = cluster.log(process).strip().splitlines()[-1]
            ledger.add(f"afterwards {process} of {name} refuses to start and says why",
                       said[:250] if ended is not None else "it runs", ended is not None and reason in said, "refused")
            cluster.commands[process] = (new, *cluster.commands[process][1:])
            cluster.restart(process)
        cluster.wait_until(lambda: cluster.active_sites() == len(cluster.sites))


def refused(cluster, *command):
    """Returns the error message of a command that must fail."""
    try:
        return "it was not refused: " + cluster.run(*command)
    except RuntimeError as error:
        return str(error).strip()
