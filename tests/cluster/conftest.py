"""A small cluster of real processes, started once, as by `make cluster`, on free ports in a fresh folder."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import boto3
import json
import pytest
from botocore.config import Config

ROOT = Path(__file__).resolve().parents[2]
START_S = 120
STOP_S = 60


def program():
    """The binary that STRIATE names, or else the development build of this tree."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))
    return Path(os.environ.get("STRIATE", target / "debug" / "striate"))


class Cluster:
    def __init__(self, folder):
        self.folder = folder
        self.output = folder.with_suffix(".out")

    def start(self):
        self.process = subprocess.Popen(
            [sys.executable, ROOT / "tools" / "cluster", "--folder", self.folder, "--program", program(), "--free-ports",
             "--memory-sites", "3", "--memory-mib", "64"],
            stdin=subprocess.DEVNULL, stdout=open(self.output, "w"), stderr=subprocess.STDOUT,
            env={**os.environ, "STRIATE_RUN_DIR": str(self.folder.parent)},
        )
        ends = time.monotonic() + START_S
        while "Ctrl-C" not in self.output.read_text():
            assert self.process.poll() is None and time.monotonic() < ends, self.story()
            time.sleep(0.1)
        return self

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(STOP_S) == 0, self.story()

    def story(self):
        logs = [path.name + ":\n" + path.read_text(errors="replace")[-2000:] for path in self.folder.glob("log/*.log")]
        return "\n".join([self.output.read_text(), *logs])

    def port(self, name):
        return json.loads((self.folder / "ports.json").read_text())[name]

    def credentials(self):
        [path] = self.folder.glob("striate-key-*.sh")
        lines = (line.removeprefix("export ").split("=", 1) for line in path.read_text().split("\n") if line)
        return dict(lines)

    def s3(self, gateway):
        keys = self.credentials()
        return boto3.client(
            "s3", endpoint_url=f"http://127.0.0.1:{self.port(f'gateway{gateway}')}", region_name="us-east-1",
            aws_access_key_id=keys["STRIATE_ACCESS_KEY"], aws_secret_access_key=keys["STRIATE_SECRET_KEY"],
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}, retries={"max_attempts": 5}),
        )

    def striate(self, *command):
        done = subprocess.run(
            [program(), *map(str, command)], capture_output=True, text=True, timeout=120,
            env={**os.environ, "STRIATE_RUN_DIR": str(self.folder.parent)},
        )
        return done.returncode, done.stdout + done.stderr

    def cache(self, gateway):
        """Returns a gateway's status of the memory tier."""
        # The exit status is 1 if there is any warning.
        _, said = self.striate("status", "--json", "--dir", self.folder / "id" / f"gateway{gateway}")
        return json.loads(said)["cache"]

    def processes(self, name):
        """Returns the ids of the processes that were started with the identity `name`."""
        found = subprocess.run(["pgrep", "-f", "--", f"--identity {self.folder / 'id' / name}( |$)"], capture_output=True, text=True)
        return [int(number) for number in found.stdout.split()]

    def admin(self, *command):
        control, identity = f"127.0.0.1:{self.port('control')}", self.folder / "id" / "admin"
        return self.striate("admin", *command, "--control", control, "--identity", identity)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory):
    running = Cluster(tmp_path_factory.mktemp("cluster") / "striate").start()
    try:
        yield running
    finally:
        running.stop()
