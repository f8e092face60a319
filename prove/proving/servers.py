"""Real servers on fresh directories, Striate and MinIO: starts, observes and stops them."""

import http.client
import json
import os
import random
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

from . import ROOT, TOOLS, processes
from .s3 import Client
from .sigv4 import Credentials

CREDENTIALS = Credentials("proving-access", "proving-secret-key-0123456789")
PORTS = random.SystemRandom()
DOMAIN = "s3.test"  # for virtual-hosted style; it need not resolve


def free_port():
    """Returns a port that nothing listens on, below those that the system gives to outgoing connections: one of these could
    take it before a server does."""
    while True:
        port = PORTS.randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def built(variable, name):
    """Returns the program named by an environment variable, or else the release build of this tree."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return Path(os.environ.get(variable, target / "release" / name))


def striate_binary():
    return built("STRIATE", "striate")


def lab_binary():
    return built("STRIATE_LAB", "striate-lab")


class Server:
    """A server process over `directories`; a context manager that stops it and leaves the directories."""

    name = "server"
    ready_path = "/"

    def __init__(self, base, directories=6, environment=None):
        self.base = Path(base)
        self.directories = [self.base / f"disk{number}" for number in range(1, directories + 1)]
        for directory in self.directories:
            directory.mkdir(parents=True, exist_ok=True)
        self.port, self.console_port = free_port(), free_port()
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self.console = f"http://127.0.0.1:{self.console_port}"
        self.log_path = self.base / f"{self.name}.log"
        self.environment = environment or {}
        self.credentials = CREDENTIALS
        self.process = None
        self.last_status = None  # exit status of the last command that was run against the server
        self.missed_by_wipes = []  # files that the running server created while its directory was being removed

    def pattern(self):
        """Returns the directories as a user would write them."""
        return f"{self.base}/disk{{1...{len(self.directories)}}}"

    def command(self):
        raise NotImplementedError

    def start(self, timeout_s=60):
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={**os.environ, **self.environment},
            )
        self.wait_ready(timeout_s)
        return self

    def wait_ready(self, timeout_s=60):
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}:\n{self.log_tail()}")
            try:
                with urllib.request.urlopen(self.ready_url(), timeout=2):
                    pass
                # MinIO reports ready a little before it answers requests.
                if self.client(timeout_s=5).send("GET", "/").status == 200:
                    return
            except (urllib.error.URLError, OSError, http.client.HTTPException):
                pass
            time.sleep(0.02)
        self.kill()
        raise RuntimeError(f"{self.name} was not ready after {timeout_s} s:\n{self.log_tail()}")

    def ready_url(self):
        return f"{self.endpoint}{self.ready_path}"

    def log_tail(self, characters=4000):
        return self.log_path.read_text(errors="replace")[-characters:]

    def stop(self, timeout_s=30):
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        self.process = None

    def kill(self):
        """Kills the process with SIGKILL, like a power cut as far as the process is concerned."""
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def client(self, timeout_s=60):
        return Client(self.endpoint, self.credentials, timeout_s)

    def cpu_ms(self):
        """Returns the process's user and system time so far, in milliseconds."""
        return processes.cpu_ms(self.process.pid)

    def medium_read_bytes(self):
        """Returns the bytes that the process has made the disk deliver so far, read-ahead included."""
        return processes.medium_read_bytes(self.process.pid)

    def peak_memory_bytes(self):
        return processes.peak_resident_bytes(self.process.pid)

    def disk_bytes(self):
        """Returns the bytes of all directories as `du` counts them: blocks in use, metadata and mirrors included."""
        os.sync()
        return sum(tree_bytes(directory) for directory in self.directories)

    def wipe(self, *indices):
        """Removes whole directories, like rm -rf, even under a running server. Files that it misses go to `missed_by_wipes`."""
        for index in indices:
            shutil.rmtree(self.directories[index], ignore_errors=True)
            missed = [str(path) for path in self.directories[index].rglob("*") if not path.is_dir()]
            self.missed_by_wipes.extend(missed)


def tree_bytes(directory):
    total = 0
    for folder, _, files in os.walk(directory):
        for name in [*files, "."]:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                pass
    return total


class Striate(Server):
    name = "striate"

    def __init__(self, base, program=None, **arguments):
        super().__init__(base, **arguments)
        self.program = program or striate_binary()
        self.environment = {
            "STRIATE_ACCESS_KEY": self.credentials.access_key,
            "STRIATE_SECRET_KEY": self.credentials.secret_key,
            # Admin commands find a server through its run directory: a private one names this server alone.
            "STRIATE_RUN_DIR": str(self.run_directory()),
            **self.environment,
        }

    def run_directory(self):
        path = self.base / "run"
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return path

    def ready_url(self):
        return f"{self.console}/health/ready"

    def command(self):
        return [
            self.program, "server", self.pattern(),
            "--address", f"127.0.0.1:{self.port}", "--console-address", f"127.0.0.1:{self.console_port}",
            "--domain", DOMAIN,
        ]

    def run(self, *arguments, check=True, timeout_s=600):
        """Runs another command of the binary against this server; returns its output."""
        done = subprocess.run(
            [self.program, *map(str, arguments)], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout_s, env={**os.environ, **self.environment, "STRIATE_ENDPOINT": self.endpoint},
        )
        self.last_status = done.returncode
        if check and done.returncode != 0:
            raise RuntimeError(f"striate {' '.join(map(str, arguments))}: {done.stderr or done.stdout}")
        return done.stdout + done.stderr


    def status(self):
        """Returns the output of `striate status --json`."""
        return json.JSONDecoder().raw_decode(self.run("status", "--json", check=False))[0]


class MinIO(Server):
    name = "minio"
    ready_path = "/minio/health/ready"

    def __init__(self, base, **arguments):
        super().__init__(base, **arguments)
        self.environment = {
            "MINIO_ROOT_USER": self.credentials.access_key,
            "MINIO_ROOT_PASSWORD": self.credentials.secret_key,
            "MINIO_CI_CD": "1",  # allows several directories on one disk
            "MINIO_STORAGE_CLASS_STANDARD": "EC:2",
            "MINIO_UPDATE": "off",
            "MINIO_DOMAIN": DOMAIN,
            **self.environment,
        }

    def command(self):
        return [
            TOOLS / "bin" / "minio", "server", "--quiet",
            "--address", f"127.0.0.1:{self.port}", "--console-address", f"127.0.0.1:{self.console_port}",
            self.pattern(),
        ]
