"""Figures of processes from /proc."""

import os
from pathlib import Path

CLOCK_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_ms(pid):
    """Returns the user and system time so far, in milliseconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) * 1000 / CLOCK_TICKS_PER_S


def resident_bytes(pid):
    return figure(pid, "status", "VmRSS") * 1024


def peak_resident_bytes(pid):
    return figure(pid, "status", "VmHWM") * 1024


def medium_read_bytes(pid):
    """Returns the bytes that the process has made the disk deliver so far, read-ahead included."""
    return figure(pid, "io", "read_bytes")


def written_bytes(pid):
    """Returns the bytes that the process has written so far, to sockets and files."""
    return figure(pid, "io", "wchar")


def figure(pid, file, name):
    """Returns the number called `name` in a file of the process."""
    for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"no {name} in /proc")


def with_children(pid):
    """Returns the ids of the process and all its descendants."""
    found = [pid]
    for one in found:
        found += [int(child) for child in Path(f"/proc/{one}/task/{one}/children").read_text().split()]
    return found
