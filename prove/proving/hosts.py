"""A cluster on separate hosts: a network namespace for each rack, joined by shaped links, cut by filter rules.

All processes of a rack (its sites, a member of etcd, a gateway) share an address. Clients are outside, at the bridge that joins the
racks. Needs root, iproute2 and iptables.
"""

import os
import shutil
import string
import subprocess

from .cluster import Cluster

NETWORK = "10.77.0"
RATE = "400mbit"  # of a rack's uplink
BURST = "256kb"
LATENCY = "50ms"  # packets that wait longer for the link are dropped


def missing():
    """Returns why hosts cannot be created here, or None."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "tc", "iptables"):
        if not shutil.which(program):
            return f"{program} is not installed: tools/install.sh network"
    return None


def are_missing(ledger):
    """Returns whether hosts cannot be created here; if so, records the section as not run."""
    why_not = missing()
    if why_not:
        ledger.skip(why_not)
    return why_not is not None


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


class Hosts(Cluster):
    """A `Cluster` with each process on the host of its rack."""

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
            # Deleting the namespace removes its link only some time later.
            subprocess.run(["ip", "link", "del", f"{self.bridge}{rack}"], capture_output=True)
            subprocess.run(["ip", "netns", "del", self.space(rack)], capture_output=True)
        subprocess.run(["ip", "link", "del", self.bridge], capture_output=True)

    def space(self, rack):
        return f"{self.bridge}-{rack}"

    def address(self, rack):
        return f"{NETWORK}.{10 + self.racks.index(rack)}"

    def rack(self, name):
        """Returns the rack of a process: numbered processes go to the racks in turn, all others to the first."""
        number = int("".join(filter(str.isdigit, name)) or 1)
        return self.racks[(number - 1) % len(self.racks)]

    def host(self, name):
        return self.address(self.rack(name))

    def spawn(self, name, *command):
        super().spawn(name, "ip", "netns", "exec", self.space(self.rack(name)), *command)

    def cut(self, rack, hears=False):
        """Stops the other racks from hearing this one and, unless it `hears`, this one from hearing them. Clients are not cut off."""
        for other in self.racks.replace(rack, ""):
            self.drop(self.space(other), self.address(rack))
            if not hears:
                self.drop(self.space(rack), self.address(other))

    def mend(self):
        for rack in self.racks:
            run("ip", "netns", "exec", self.space(rack), "iptables", "-F", "INPUT")

    @staticmethod
    def drop(space, source):
        run("ip", "netns", "exec", space, "iptables", "-A", "INPUT", "-s", source, "-j", "DROP")
