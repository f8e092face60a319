"""A cluster of real processes as `tools/cluster` starts it, of which single ones can be killed, paused and started again."""

import base64
import http.client
import importlib.machinery
import importlib.util
import itertools
import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from argparse import Namespace
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from . import ROOT
from .s3 import Client
from .servers import striate_binary
from .sigv4 import Credentials


def load_tool():
    """`tools/cluster` as a module; it has no suffix, because people call it."""
    loader = importlib.machinery.SourceFileLoader("striate_cluster", str(ROOT / "tools" / "cluster"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


TOOL = load_tool()
# Clients that write, read or delete everything together.
CLIENTS = 8


class Cluster(TOOL.Cluster):
    """A context manager: starts in a fresh folder on free ports, and stops everything."""

    def __init__(self, folder, engine="etcd", gateways=3, sites=6, racks=3, program=None, memory_sites=0, memory_mib=256):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.commands = {}  # of each process, to start it again
        # Admin commands find a process through its run directory: a private one names this cluster alone.
        os.environ["STRIATE_RUN_DIR"] = str(folder)
        super().__init__(Namespace(
            folder=folder, program=str(program or striate_binary()), engine=engine, etcd=3, sites=sites, racks=racks,
            gateways=gateways, free_ports=True, memory_sites=memory_sites, memory_mib=memory_mib,
        ))

    def __enter__(self):
        try:
            self.prepare()
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        for name, _ in self.running:
            self.signal(name, signal.SIGCONT)
        self.stop()

    def spawn(self, name, *command):
        self.commands[name] = command
        TOOL.Cluster.spawn(self, name, *command)

    def process(self, name):
        return next(process for other, process in self.running if other == name)

    def signal(self, name, number):
        if self.process(name).poll() is None:
            self.process(name).send_signal(number)

    def pause(self, name):
        self.signal(name, signal.SIGSTOP)

    def resume(self, name):
        self.signal(name, signal.SIGCONT)

    def kill(self, name):
        """At once, without a word. PostgreSQL's parent process takes its children along: its way to crash."""
        self.signal(name, signal.SIGQUIT if name == "postgres" else signal.SIGKILL)
        self.process(name).wait()

    def restart(self, name):
        """Starts it again, at its place in the order in which they stop."""
        place = [other for other, _ in self.running].index(name)
        del self.running[place]
        TOOL.Cluster.spawn(self, name, *self.commands[name])
        self.running.insert(place, self.running.pop())

    def upgrade(self, name, program):
        """Stops a process as a service is stopped, and starts `program` in its place."""
        self.signal(name, signal.SIGTERM)
        self.process(name).wait(TOOL.STOP_S)
        self.commands[name] = (program, *self.commands[name][1:])
        self.restart(name)

    def endpoints(self):
        return [f"http://{self.at(f'gateway{number}')}" for number in self.gateways]

    @property
    def gateway(self):
        """The folder by which commands find the first gateway."""
        return self.folder / "id" / "gateway1"

    @property
    def credentials(self):
        [path] = self.folder.glob("striate-key-*.sh")
        lines = path.read_text().splitlines()
        keys = dict(line.removeprefix("export ").split("=", 1) for line in lines if "=" in line)
        return Credentials(keys["STRIATE_ACCESS_KEY"], keys["STRIATE_SECRET_KEY"])

    def client(self, gateway=1, timeout_s=60):
        return Client(self.endpoints()[gateway - 1], self.credentials, timeout_s)

    def each(self, work, items):
        """What `work` answers for each item, with a client of one of several threads."""
        of_thread, turns = threading.local(), itertools.count()

        def one(item):
            if not hasattr(of_thread, "client"):
                of_thread.client = self.client(1 + next(turns) % len(self.gateways), timeout_s=300)
            return work(of_thread.client, item)

        with ThreadPoolExecutor(CLIENTS) as threads:
            return list(threads.map(one, items))

    def status(self, gateway=1):
        """What `striate status --json` says of a gateway; it ends with 1 where there is a warning."""
        done = subprocess.run([self.program, "status", "--json", "--dir", self.folder / "id" / f"gateway{gateway}"],
                              capture_output=True, text=True, timeout=60,
                              env={**os.environ, "STRIATE_RUN_DIR": str(self.folder)})
        return json.loads(done.stdout)

    def payload(self):
        """Bytes of all chunks."""
        return sum(site["capacity"]["payload_bytes"] for site in self.status()["sites"])

    def etcd_leader(self):
        """The name of the member that leads now."""
        for member in self.engine.members:
            try:
                request = urllib.request.Request(
                    f"http://{self.at(member)}/v3/maintenance/status", data=b"{}", method="POST")
                with urllib.request.urlopen(request, timeout=2) as answer:
                    status = json.loads(answer.read())
            except OSError:
                continue
            if status["header"]["member_id"] == status.get("leader"):
                return member
        raise RuntimeError("no member of etcd leads")

    def ask_etcd(self, range_request):
        """What etcd answers to a request for a range of keys; where a member's answer fails, the next one is asked."""
        body = json.dumps(range_request).encode()
        # More than once each: under load an answer may take long.
        for member in 3 * self.engine.members:
            try:
                request = urllib.request.Request(f"http://{self.at(member)}/v3/kv/range", data=body, method="POST")
                with urllib.request.urlopen(request, timeout=15) as answer:
                    return json.loads(answer.read())
            except (OSError, http.client.HTTPException):
                continue
        raise RuntimeError("no member of etcd answers")

    def count_rows(self, prefix):
        """How many rows etcd has whose keys begin so."""
        first = b"striate/r" + prefix
        end = first[:-1] + bytes([first[-1] + 1])
        answer = self.ask_etcd({"key": base64.b64encode(first).decode(), "range_end": base64.b64encode(end).decode(), "count_only": True})
        return int(answer.get("count", 0))

    def log(self, name):
        return (self.folder / "log" / f"{name}.log").read_text(errors="replace")

    def panics(self):
        return [name for name, _ in self.running if "panicked at" in self.log(name)]

    def run(self, *arguments, timeout_s=300):
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s)
        if done.returncode:
            raise RuntimeError(f"striate {' '.join(map(str, arguments))}: {done.stderr or done.stdout}")
        return done.stdout

    def wait_until(self, is_so, timeout_s=60):
        """Seconds until it was so, or None."""
        began = time.monotonic()
        while time.monotonic() - began < timeout_s:
            try:
                if is_so():
                    return time.monotonic() - began
            except Exception:  # noqa: BLE001 - not yet
                pass
            time.sleep(0.1)
        return None

    def await_that(self, is_so, what, timeout_s=60):
        """As `wait_until`; an error where it does not become so."""
        if self.wait_until(is_so, timeout_s) is None:
            raise RuntimeError(f"{what}: not so after {timeout_s} s")

    def await_memory(self):
        """Until all memory sites are known."""
        self.await_that(lambda: len(self.status()["cache"]["sites"]) == len(self.memory_sites), f"{len(self.memory_sites)} memory sites are known")
