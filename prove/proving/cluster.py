"""A cluster of real processes, started by `tools/cluster`, that can be killed, paused and restarted one by one."""

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
    """Loads `tools/cluster` as a module; as a command it has no suffix."""
    loader = importlib.machinery.SourceFileLoader("striate_cluster", str(ROOT / "tools" / "cluster"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(loader.name, loader))
    loader.exec_module(module)
    return module


TOOL = load_tool()
# Number of clients that together write, read or delete everything.
CLIENTS = 8


class Cluster(TOOL.Cluster):
    """A context manager: starts in a fresh folder on free ports, and stops everything."""

    def __init__(self, folder, engine="etcd", gateways=3, sites=6, racks=3, program=None, memory_sites=0, memory_mib=256):
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self.commands = {}  # by process name, for restarts
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
        """Kills a process without warning. PostgreSQL gets SIGQUIT, so that its parent process ends its children too."""
        self.signal(name, signal.SIGQUIT if name == "postgres" else signal.SIGKILL)
        self.process(name).wait()

    def restart(self, name):
        """Restarts a process and keeps its place in the stopping order."""
        place = [other for other, _ in self.running].index(name)
        del self.running[place]
        TOOL.Cluster.spawn(self, name, *self.commands[name])
        self.running.insert(place, self.running.pop())

    def upgrade(self, name, program):
        """Stops a process with SIGTERM, as a service manager does, and starts `program` instead."""
        self.signal(name, signal.SIGTERM)
        self.process(name).wait(TOOL.STOP_S)
        self.commands[name] = (program, *self.commands[name][1:])
        self.restart(name)

    def endpoints(self):
        return [f"http://{self.at(f'gateway{number}')}" for number in self.gateways]

    @property
    def gateway(self):
        """The folder through which commands find the first gateway."""
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
        """Calls `work` with a client and an item for each item, on several threads, and returns the results in order."""
        of_thread, turns = threading.local(), itertools.count()

        def one(item):
            if not hasattr(of_thread, "client"):
                of_thread.client = self.client(1 + next(turns) % len(self.gateways), timeout_s=300)
            return work(of_thread.client, item)

        with ThreadPoolExecutor(CLIENTS) as threads:
            return list(threads.map(one, items))

    def status(self, gateway=1):
        """Returns the output of `striate status --json` for a gateway. The command exits with 1 if there is a warning."""
        done = subprocess.run([self.program, "status", "--json", "--dir", self.folder / "id" / f"gateway{gateway}"],
                              capture_output=True, text=True, timeout=60,
                              env={**os.environ, "STRIATE_RUN_DIR": str(self.folder)})
        return json.loads(done.stdout)

    def payload(self):
        """Returns the payload bytes of all chunks."""
        return sum(site["capacity"]["payload_bytes"] for site in self.status()["sites"])

    def etcd_leader(self):
        """Returns the name of etcd's current leader."""
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
        """Sends etcd a range request and returns its answer; if a member fails, the next one is tried."""
        body = json.dumps(range_request).encode()
        # Each member gets several attempts: under load an answer may take long.
        for member in 3 * self.engine.members:
            try:
                request = urllib.request.Request(f"http://{self.at(member)}/v3/kv/range", data=body, method="POST")
                with urllib.request.urlopen(request, timeout=15) as answer:
                    return json.loads(answer.read())
            except (OSError, http.client.HTTPException):
                continue
        raise RuntimeError("no member of etcd answers")

    def count_rows(self, prefix):
        """Returns the number of etcd's rows whose keys begin with `prefix`."""
        first = b"striate/r" + prefix
        end = first[:-1] + bytes([first[-1] + 1])
        answer = self.ask_etcd({"key": base64.b64encode(first).decode(), "range_end": base64.b64encode(end).decode(), "count_only": True})
        return int(answer.get("count", 0))

    def log(self, name):
        return (self.folder / "log" / f"{name}.log").read_text(errors="replace")

    def panics(self):
        return [name for name, _ in self.running if "panicked at" in self.log(name)]

    def run(self, *arguments, timeout_s=300):
        done = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True, timeout=timeout_s,
                              env={**os.environ, "STRIATE_RUN_DIR": str(self.folder)})
        if done.returncode:
            raise RuntimeError(f"striate {' '.join(map(str, arguments))}: {done.stderr or done.stdout}")
        return done.stdout

    def wait_until(self, is_so, timeout_s=60):
        """Returns the seconds until the condition held, or None if it did not within the timeout."""
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
        """Waits like `wait_until`, but raises RuntimeError after the timeout."""
        if self.wait_until(is_so, timeout_s) is None:
            raise RuntimeError(f"{what}: not so after {timeout_s} s")

    def await_memory(self):
        """Waits until the first gateway knows all memory sites."""
        self.await_that(lambda: len(self.status()["cache"]["sites"]) == len(self.memory_sites), f"{len(self.memory_sites)} memory sites are known")
