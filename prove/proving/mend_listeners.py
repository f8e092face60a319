"""Crowds at every port, and what probes, honest clients and operators notice.

Each crowd comes from one address, which is also that of the probes, and then from two hundred. `/health` and `/metrics` are asked all the
time, each over a new connection, as an orchestrator and Prometheus do.

`prove/mend listeners` runs it alone.
"""

import contextlib
import shutil
import socket
import ssl
import subprocess
import threading
import time
import urllib.request

from .cluster import Cluster
from .crowds import ADDRESSES, Crowd
from .mend_descriptors import BUCKET, work
from .servers import Striate

SHORT_S, FULL_S = 5, 60
PROBES = ["/health/live", "/health/ready", "/metrics"]
ANSWERED_WITHIN_S = 2.0
PROBE_EVERY_S = 0.25
PIPELINES, IDLE, HANDSHAKES, HALF_OPEN = 150, 1000, 4000, 1100
LISTED_WITHIN_S = 5.0
# Each place in the program may log 60 lines a minute; there are a few such places, and a run spans two minutes at most.
LINES = 300


class Probes:
    """Asks each path of the console again and again, as long as the context lasts."""

    def __init__(self, console):
        self.console, self.times, self.failures = console, [], []

    def __enter__(self):
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(path,)) for path in PROBES]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def ask(self, path):
        while not self.stop.wait(PROBE_EVERY_S):
            began = time.monotonic()
            try:
                with urllib.request.urlopen(self.console + path, timeout=10) as answer:
                    answer.read()
                self.times.append(time.monotonic() - began)
            except OSError as error:
                self.failures.append(f"{path}: {error!r}"[:120])

    def holds(self):
        return not self.failures and bool(self.times) and max(self.times) <= ANSWERED_WITHIN_S

    def text(self):
        slowest = f"{max(self.times):.2f} s" if self.times else "none answered"
        first = f", the first {self.failures[0]}" if self.failures else ""
        return f"{len(self.times)} answered, the slowest after {slowest}; {len(self.failures)} failed{first}"


def lines(path):
    return len(path.read_text(errors="replace").splitlines())


def prove_console(ledger, folder, seconds):
    """Crowds at the console's port, and at the S3 port beside it."""
    with Striate(folder) as server:
        server.client().make_bucket(BUCKET)
        crowds = [
            (f"{PIPELINES} connections pipeline GETs of / and never read", [(server.console_port, "pipeline", PIPELINES)]),
            (f"{IDLE} connections are idle on each of the two ports", [(server.console_port, "idle", IDLE), (server.port, "idle", IDLE)]),
            (f"{IDLE} stop within a head on each of the two ports", [(server.console_port, "head", IDLE), (server.port, "head", IDLE)]),
        ]
        for what, members in crowds:
            for name, addresses in ADDRESSES.items():
                before = lines(server.log_path)
                with contextlib.ExitStack() as stack:
                    for port, kind, count in members:
                        stack.enter_context(Crowd(port, kind, count, addresses))
                    with Probes(server.console) as probes:
                        requests, failures, _ = honest(server, seconds, f"{members[0][1]}-{len(addresses)}")
                ledger.add(f"while {what}, from {name}, /health and /metrics answer within {ANSWERED_WITHIN_S:g} s (B F4)",
                           probes.text(), probes.holds(), "each")
                ledger.add(f"meanwhile every put and get succeeds, and the log stays short, from {name} (B F4)",
                           f"{len(failures)} of {requests} failed{': ' + failures[0] if failures else ''}; {lines(server.log_path) - before} lines",
                           not failures and requests > 0 and lines(server.log_path) - before <= LINES, f"none fails, at most {LINES} lines")


def honest(server, seconds, name):
    server.descriptors = lambda: 0
    return work(server, seconds, name)


class Secured(Striate):
    """A server whose S3 port has TLS."""

    def certify(self):
        self.certificates = self.base / "certs"
        self.certificates.mkdir(parents=True)
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost", "-days", "2",
                        "-keyout", self.certificates / "private.key", "-out", self.certificates / "public.crt"],
                       check=True, capture_output=True)
        (self.certificates / "private.key").chmod(0o600)

    def command(self):
        return [*super().command(), "--certs", str(self.certificates)]

    def wait_ready(self, timeout_s=60):
        ends = time.monotonic() + timeout_s
        while time.monotonic() < ends:
            with contextlib.suppress(OSError), urllib.request.urlopen(self.ready_url(), timeout=2):
                return
            time.sleep(0.05)
        raise RuntimeError(f"{self.name} was not ready after {timeout_s} s:\n{self.log_tail()}")

    def ask_securely(self, timeout_s=5):
        """Returns the status of an S3 health check over TLS."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with urllib.request.urlopen(f"https://127.0.0.1:{self.port}/minio/health/live", timeout=timeout_s, context=context) as answer:
            return answer.status


def prove_handshakes(ledger, folder, seconds):
    """Handshakes that stop, at an S3 port with TLS; and plain HTTP there."""
    if not shutil.which("openssl"):
        return ledger.skip("there is no openssl, which makes the certificate")
    server = Secured(folder)
    server.certify()
    with server:
        for name, addresses in ADDRESSES.items():
            before, statuses = lines(server.log_path), []
            with Crowd(server.port, "handshake", HANDSHAKES, addresses), Probes(server.console) as probes:
                ends = time.monotonic() + seconds
                while time.monotonic() < ends:
                    try:
                        statuses.append(server.ask_securely())
                    except OSError as error:
                        statuses.append(repr(error)[:80])
                    time.sleep(0.2)
            ledger.add(f"while {HANDSHAKES} TLS handshakes are half-open, from {name}, /health and /metrics answer within {ANSWERED_WITHIN_S:g} s (B F4)",
                       probes.text(), probes.holds(), "each")
            other = [status for status in statuses if status != 200]
            ledger.add(f"and so do requests over TLS, from {name} (B F4)",
                       f"{len(statuses) - len(other)} of {len(statuses)}{': ' + str(other[0]) if other else ''}; {lines(server.log_path) - before} lines",
                       bool(statuses) and not other and lines(server.log_path) - before <= LINES, f"all, at most {LINES} lines")
        with socket.create_connection(("127.0.0.1", server.port), timeout=5) as peer:
            peer.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            answer = peer.recv(4096).decode(errors="replace")
        said = answer.splitlines() or ["nothing"]
        ledger.add("a request in plain HTTP to the port with TLS is told so (C stumble 11)", f"{said[0]}: {said[-1]}",
                   said[0].startswith("HTTP/1.1 400") and "https://" in said[-1], "400")


def prove_control(ledger, folder, seconds):
    """Half-open connections to control and to a site, while an operator lists the sites."""
    with Cluster(folder, gateways=1, sites=3, racks=3) as cluster:
        identity = cluster.folder / "id" / "admin"
        ports = {name: int(cluster.at(name).rsplit(":", 1)[1]) for name in ("control", "site1")}
        for name, addresses in ADDRESSES.items():
            before = {process: cluster.log(process).count("\n") for process in ports}
            times, failures, unread, bucket = [], [], [], f"beside-{len(addresses)}"
            cluster.client().make_bucket(bucket)
            with Crowd(ports["control"], "idle", HALF_OPEN, addresses), Crowd(ports["site1"], "idle", HALF_OPEN, addresses):
                ends = time.monotonic() + seconds
                while time.monotonic() < ends:
                    began = time.monotonic()
                    try:
                        listed = cluster.run("admin", "site", "list", "--control", cluster.at("control"), "--identity", identity, timeout_s=30)
                        if listed.count(" active ") == 3:
                            times.append(time.monotonic() - began)
                        else:
                            failures.append(listed.strip()[-100:])
                    except (RuntimeError, subprocess.TimeoutExpired) as error:
                        failures.append(str(error).strip()[-120:])
                    try:
                        client = cluster.client(timeout_s=10)
                        client.put(bucket, "k", b"x" * 300_000)
                        client.get(bucket, "k")
                    except Exception as error:  # noqa: BLE001 - whatever a user would see
                        unread.append(repr(error)[:120])
            written = {process: cluster.log(process).count("\n") - before[process] for process in ports}
            ledger.add(f"while {HALF_OPEN} connections to control are half-open, from {name}, `admin site list` lists all sites (B F7)",
                       f"{len(times)} of {len(times) + len(failures)}, the slowest after {max(times, default=0):.1f} s{'; ' + failures[0] if failures else ''}",
                       bool(times) and not failures and max(times) <= LISTED_WITHIN_S, f"all, within {LISTED_WITHIN_S:g} s")
            ledger.add(f"and as many to a site keep no gateway out, from {name} (B F7)",
                       f"{len(unread)} failed{': ' + unread[0] if unread else ''}", not unread, "none")
            ledger.add(f"the logs of control and the site stay short, from {name} (B F7)",
                       ", ".join(f"{process}: {count} lines" for process, count in written.items()),
                       max(written.values()) <= LINES, f"at most {LINES} lines each")


def prove_listeners(ledger, folder, full):
    """Adds the claims about crowds at every port to `ledger`."""
    seconds = FULL_S if full else SHORT_S
    prove_console(ledger, folder / "console", seconds)
    prove_handshakes(ledger, folder / "handshakes", seconds)
    prove_control(ledger, folder / "control", seconds)
