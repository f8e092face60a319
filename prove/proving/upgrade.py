"""Upgrades from the last release's program to this one: its directories, and a cluster of both programs."""

import hashlib
import random
import subprocess

from . import ROOT
from .events import Event
from .servers import Striate, striate_binary

SIZES = (0, 100, 10_000, 150_000, 1 << 20, 9 << 20)


def release_program(*version):
    """Returns the program of a release, by default the last one; builds it if it does not exist."""
    done = subprocess.run([ROOT / "tools" / "release", *version], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return done.stdout.strip()


def version_of(program):
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def upgraded(program):
    """Returns the event of replacing every process with `program`, as a service manager does: sites, control, gateways.

    After each site, the store is healed before the next step, as docs/src/deploy.md requires.
    """

    def begin(cluster):
        for number in cluster.sites:
            cluster.upgrade(f"site{number}", program)
            cluster.wait_until(lambda: cluster.active_sites() == len(cluster.sites))
            cluster.run("heal", "--quiet", "--dir", cluster.folder / "id" / "gateway1")
        cluster.upgrade("control", program)
        for number in cluster.gateways:
            cluster.upgrade(f"gateway{number}", program)
            cluster.wait_until(lambda number=number: cluster.client(number).send("GET", "/").status == 200)

    return Event("all processes upgraded, one after the other", begin, lambda cluster: None, lasts_s=0)


def write_some(client, bucket, seed):
    """Writes objects of all sizes; returns the MD5 of each."""
    generator, written = random.Random(seed), {}
    client.make_bucket(bucket)
    for size in SIZES:
        for number in range(3):
            body = generator.randbytes(size)
            client.put(bucket, f"{size}/{number}", body)
            written[f"{size}/{number}"] = hashlib.md5(body).hexdigest()
    return written


def wrong(client, bucket, written):
    return [key for key, md5 in written.items() if hashlib.md5(client.get(bucket, key)).hexdigest() != md5]


def prove_directories(ledger, folder, release):
    """Proves that this program reads, verifies and adds to directories of the release's `server`, and goes back to the release."""
    server = Striate(folder, program=release)
    with server:
        written = write_some(server.client(), "old", 1)
    server.program = striate_binary()
    with server:
        lost = wrong(server.client(), "old", written)
        server.run("verify", "--quiet", check=False)
        clean = server.last_status == 0
        newer = write_some(server.client(), "new", 2)
    ledger.add(f"directories of {version_of(release)} are read and verified by this program",
               f"{len(lost)} of {len(written)} objects wrong, verify {'clean' if clean else 'found damage'}",
               not lost and clean, "none wrong, clean")
    server.program = release
    try:
        with server:
            lost = wrong(server.client(), "old", written) + wrong(server.client(), "new", newer)
        said = f"{len(lost)} of {len(written) + len(newer)} objects wrong"
    except RuntimeError as error:
        lost, said = [], f"refused: {str(error).strip().splitlines()[-1]}"
    ledger.add("back to the release: it reads what this program has written, or says that it cannot", said, not lost,
               "none wrong")
