"""A cluster on hosts of their own: a network namespace for each rack, joined by shaped links, cut by filter rules.

Everything of a rack (its sites, a member of etcd, a gateway) shares an address; clients are outside, at the bridge that
joins the racks. Needs root, iproute2 and iptables.
"""

import os
import shutil
import string
import subprocess

from .cluster import Cluster

NETWORK = "10.77.0"
RATE = "400mbit"  # of a rack's uplink
BURST = "256kb"
LATENCY = "50ms"  # what waits longer for the link is dropped


def missing():
    """Why hosts cannot be made here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc", "iptables"):
        if not shutil.which(program):
            return f"{program} is not installed: tools/install.sh network"
    return None


def are_missing(ledger):
    """Whether hosts cannot be made here. Then the section is not run."""
    why_not = missing()
    if why_not:
        ledger.skip(why_not)
    return why_not is not None


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


class Hosts(Cluster):
    """As `Cluster`, with each process on the host of its rack."""

    def __init__(self, folder, racks=3, **options):
        self.racks = string.ascii_lowercase[:racks]
        self.bridge = f"stri{os.getpid() % 100_000}"
        super().__init__(folder, racks=racks, **options)

    def __enter__(self):
        try:
            self.join()
            return super().__enter__()
        except BaseException:
            self.part()
            raise

    def __exit__(self, *reason):
        try:
            super().__exit__(*reason)
        finally:
            self.part()

    def join(self):
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "address", "add", f"{NETWORK}.1/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")
        for rack in self.racks:
            outer, inner, space = f"{self.bridge}{rack}", f"up{rack}", self.space(rack)
            run("ip", "netns", "add", space)
            run("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", space)
            run("ip", "link", "set", outer, "master", self.bridge, "up")
            run("ip", "-n", space, "address", "add", f"{self.address(rack)}/24", "dev", inner)
            run("ip", "-n", space, "link", "set", inner, "up")
            run("ip", "-n", space, "link", "set", "lo", "up")
            shape = ("root", "tbf", "rate", RATE, "burst", BURST, "latency", LATENCY)
            run("tc", "qdisc", "add", "dev", outer, *shape)
            run("tc", "-n", space, "qdisc", "add", "dev", inner, *shape)

    def part(self):
        for rack in self.racks:
            # The namespace takes its link along only some time after it is deleted.
            subprocess.run(["ip", "link", "del", f"{self.bridge}{rack}"], capture_output=True)
            subprocess.run(["ip", "netns", "del", self.space(rack)], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)

    def space(self, rack):
        return f"{self.bridge}-{rack}"

    def address(self, rack):
        return f"{NETWORK}.{10 + self.racks.index(rack)}"

    def rack(self, name):
        """Of a process: what is numbered goes to one rack after the other, the rest to the first."""
        number = int("".join(filter(str.isdigit, name)) or 1)
        return self.racks[(number - 1) % len(self.racks)]

    def host(self, name):
        return self.address(self.rack(name))

    def spawn(self, name, *command):
        super().spawn(name, "ip", "netns", "exec", self.space(self.rack(name)), *command)

    def cut(self, rack, hears=False):
        """No other rack hears this one any more; nor does it hear them, unless it `hears`. Clients are not cut off."""
        for other in self.racks.replace(rack, ""):
            self.drop(self.space(other), "-A", self.address(rack))
            if not hears:
                self.drop(self.space(rack), "-A", self.address(other))

    def mend(self):
        for rack in self.racks:
            run("ip", "netns", "exec", self.space(rack), "iptables", "-F", "INPUT")

    @staticmethod
    def drop(space, how, source):
        run("ip", "netns", "exec", space, "iptables", how, "INPUT", "-s", source, "-j", "DROP")
