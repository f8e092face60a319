"""Few descriptors: a server that may open 256 files and connections, beside a thousand idle connections.

The server is fresh, so that its first writes create segments: a segment that has to be created while descriptors are short is what made
all disks suspect in 0.5.0. Beside the crowd an honest client puts and gets objects, each over a new connection, and first one over a
connection that it has had since before.

`prove/mend descriptors` runs it alone.
"""

import http.client
import os
import resource
import time

from .crowds import ADDRESSES, Crowd
from .servers import Striate

LIMIT = 256
CROWD = 1000
SHORT_S, FULL_S = 12, 60
PAUSE_S = 0.25
LENGTH = 300_000
BUCKET = "descriptors"
# What 0.5.0 said of disks that were well.
CONDEMNED = ("a disk is lost", "is suspect", "vanished", "is condemned")


class Limited(Striate):
    """A server with a limit on descriptors."""

    def __init__(self, base, soft, hard, **arguments):
        super().__init__(base, **arguments)
        self.soft, self.hard = soft, hard

    def command(self):
        return ["sh", "-c", f'ulimit -Sn {self.soft}; ulimit -Hn {self.hard}; exec "$@"', "sh", *super().command()]

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def soft_limit(self):
        return resource.prlimit(self.process.pid, resource.RLIMIT_NOFILE)[0]


def work(server, seconds, name):
    """Puts and gets objects, each over a new connection. Returns how many requests there were, the failures, and the most descriptors."""
    failures, requests, most, began = [], 0, 0, time.monotonic()
    while time.monotonic() - began < seconds:
        body, key = os.urandom(LENGTH), f"{name}-{requests}"
        for verb in ("put", "get"):
            client = server.client(timeout_s=10)
            requests += 1
            try:
                if verb == "put":
                    client.put(BUCKET, key, body)
                elif client.get(BUCKET, key) != body:
                    failures.append("wrong bytes")
            except Exception as error:  # noqa: BLE001 - whatever a user would see
                failures.append(f"{verb} {key}: {error!r}"[:160])
            client.close()
        most = max(most, server.descriptors())
        time.sleep(PAUSE_S)
    return requests, failures, most


def put_over(client, key):
    """Puts an object over the client's own connection, and over a new one if that was closed. Returns the failures."""
    body = os.urandom(LENGTH)
    try:
        try:
            client.put(BUCKET, key, body)
        except (OSError, http.client.HTTPException):
            client.put(BUCKET, key, body)
    except Exception as error:  # noqa: BLE001 - whatever a user would see
        return [f"put {key} over a held connection: {error!r}"[:160]]
    return []


def states(server):
    """Returns the states of sites that are not ok."""
    return [site["state"] for site in server.status()["sites"] if site["state"] != "ok"]


def prove_descriptors(ledger, folder, full):
    """Adds the claims about few descriptors to `ledger`."""
    seconds = FULL_S if full else SHORT_S
    for name, addresses in ADDRESSES.items():
        with Limited(folder / name.replace(" ", "-"), LIMIT, LIMIT) as server:
            held = server.client(timeout_s=10)
            held.make_bucket(BUCKET)
            with Crowd(server.port, "idle", CROWD, addresses) as crowd:
                failed = put_over(held, "held")
                requests, failures, most = work(server, seconds, "beside")
            requests, failures = requests + 1, failed + failures
            after, failures_after, _ = work(server, 3, "after")
            log = server.log_path.read_text(errors="replace")
            condemned = [line for line in log.splitlines() if any(word in line for word in CONDEMNED)]
            bad, warnings = states(server), server.status()["warnings"]
            ledger.record(f"descriptors, {name}", {
                "requests": requests, "failures": failures, "most": most, "connections": crowd.connections,
                "condemned": condemned[:10], "log_lines": len(log.splitlines())})
            ledger.add(
                f"a server that may open {LIMIT} files, beside {CROWD} idle connections from {name}: every put and get succeeds (A F2, B F1)",
                f"{len(failures)} of {requests} failed{': ' + failures[0] if failures else ''}; at most {most} descriptors in use",
                not failures and requests > 0 and most < LIMIT, f"none fails, below {LIMIT}")
            ledger.add(
                f"no disk is called lost or suspect for want of descriptors, {name} (A F2, B F1)",
                f"{len(condemned)} lines in the log{': ' + condemned[0][-120:] if condemned else ''}; sites that are not ok: {bad or 'none'}",
                not condemned and not bad, "none")
            ledger.add(f"once the connections of {name} are closed, writes work without a restart (A F2)",
                       f"{len(failures_after)} of {after} failed", not failures_after and after > 0, "none fails")
            ledger.add(f"status says that {LIMIT} descriptors are few, {name} (A F2)",
                       next((text for text in warnings if "ulimit" in text), "nothing"),
                       any(str(LIMIT) in text and "ulimit" in text for text in warnings), "it does")
    with Limited(folder / "usual", 1024, 20_000) as server:
        limit = server.soft_limit()
        ledger.add("the usual soft limit of 1,024 is raised to the hard one (A F2, B F1)", f"{limit}", limit == 20_000, "20,000")
