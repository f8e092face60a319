"""Racks on real processes: network namespaces joined by a bridge, behind links that are limited in both directions.

Sites keep their chunks in memory, on huge pages: such a disk takes a chunk in some milliseconds, so that the links are measured.
"""

import json
import os
import signal
import subprocess
from contextlib import suppress

from . import hosts
from .servers import lab_binary

# Not the network of hosts.py.
NETWORK = "10.78.0"
# As on the paper's machines, EC2 instances of one placement.
MTU = 9001
# Bytes that links may carry, as a multiple of the chunks.
FRAMING = 1.05
TIMEOUT_S = 1_800
# Where the work, spread over all processors, would take more than this share of the wire's time, the processors are the limit.
BUSY = 0.75


class Racks:
    """Namespaces joined by a bridge, with limited links. A context manager."""

    def __init__(self, folder, count):
        self.bridge, self.count, self.disk = f"stri{os.getpid() % 10_000}", count, folder / "disk"

    def __enter__(self):
        try:
            self.join()
            return self
        except BaseException:
            self.part()
            raise

    def __exit__(self, *_):
        self.part()

    def join(self):
        self.disk.mkdir()
        hosts.run("mount", "-t", "tmpfs", "-o", "size=16g,huge=always", "tmpfs", str(self.disk))
        hosts.run("ip", "link", "add", self.bridge, "mtu", str(MTU), "type", "bridge")
        hosts.run("ip", "address", "add", f"{NETWORK}.1/24", "dev", self.bridge)
        hosts.run("ip", "link", "set", self.bridge, "up")
        for rack in range(self.count):
            outer, inner, space = self.names(rack)
            hosts.run("ip", "netns", "add", space)
            hosts.run("ip", "link", "add", outer, "mtu", str(MTU), "type", "veth", "peer", "name", inner, "mtu", str(MTU), "netns", space)
            hosts.run("ip", "link", "set", outer, "master", self.bridge, "up")
            hosts.run("ip", "-n", space, "address", "add", f"{self.address(rack)}/24", "dev", inner)
            hosts.run("ip", "-n", space, "link", "set", inner, "up")
            hosts.run("ip", "-n", space, "link", "set", "lo", "up")

    def limit(self, rate, burst_kb=None):
        """Limits every link to `rate` Mbit/s in each direction; an idle link first carries a burst at once."""
        burst_kb = burst_kb or max(256, rate // 4)
        for rack in range(self.count):
            outer, inner, space = self.names(rack)
            shape = ("root", "tbf", "rate", f"{rate}mbit", "burst", f"{burst_kb}kb", "latency", "50ms")
            hosts.run("tc", "qdisc", "replace", "dev", outer, *shape)
            hosts.run("tc", "-n", space, "qdisc", "replace", "dev", inner, *shape)

    def free(self):
        """Removes the limits: links are as fast as the processors."""
        for rack in range(self.count):
            outer, inner, space = self.names(rack)
            subprocess.run(["tc", "qdisc", "del", "dev", outer, "root"], capture_output=True)
            subprocess.run(["tc", "-n", space, "qdisc", "del", "dev", inner, "root"], capture_output=True)

    def part(self):
        for rack in range(self.count):
            outer, _, space = self.names(rack)
            subprocess.run(["ip", "link", "del", outer], capture_output=True)
            subprocess.run(["ip", "netns", "del", space], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)
        if subprocess.run(["umount", str(self.disk)], capture_output=True).returncode:
            # Some process still has a file open there; the memory is released when it closes the file.
            subprocess.run(["umount", "-l", str(self.disk)], capture_output=True)

    def names(self, rack):
        return f"{self.bridge}r{rack}", f"up{rack}", f"{self.bridge}-{rack}"

    @staticmethod
    def address(rack):
        return f"{NETWORK}.{10 + rack}"

    def run(self, command, code, *options, inside=None):
        """Runs a command of `striate-lab` and returns its figures. It runs outside the racks, or in the rack with number `inside`."""
        words = [lab_binary(), command, "--code", code, "--dir", self.disk, *options]
        for rack in range(self.count):
            outer, _, space = self.names(rack)
            words += ["--host", f"{space},{self.address(rack)},{outer}"]
        if inside is not None:
            # Unlike `ip netns exec`, nsenter leaves /sys unchanged, which has the counters of the links' outer ends.
            words = ["nsenter", f"--net=/run/netns/{self.names(inside)[2]}", *words]
        return json.loads(output_of(f"{command} {code}", list(map(str, words))))


def output_of(name, words):
    """Runs a program and returns its output. However this ends, the sites that it has started are killed."""
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            printed, complaints = process.communicate(timeout=TIMEOUT_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise RuntimeError(f"{name}: {complaints[-800:]}")
    return printed
