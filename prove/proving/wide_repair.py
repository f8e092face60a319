"""Repair in racks on real processes: the experiments of ECWide (FAST'21), section 6.1, with the store's own repair.

Each rack is a network namespace with all its sites.
"""

import os
import statistics
import time
from dataclasses import dataclass

from . import hosts
from .claims import spread
from .racks import BUSY, FRAMING, Racks
from .wide_processors import prove_processors

# Racks that the widest flat code needs: k = 128, r = 27, f = 4.
RACKS = 136
# Maximum time of a repair, over that of its bytes on the wire.
OVER_WIRE = 1.10


@dataclass(frozen=True)
class Cell:
    """One code in one scheme, and the number of chunks that cross racks in the paper."""

    name: str
    code: str
    scheme: str
    chunks: int


def cells(k, r, f):
    """Returns the paper's CL, LRC and TL for k, r and f (Table 4).

    TL counts the racks that k chunks take, one less than the table's where racks are full.
    """
    group = -(-(r + 1) // f)
    return [Cell("CL", f"wide({k},{r},{f})", "combined", group - 1), Cell("LRC", f"lrc-r({k},{r},{f - 1}) spread flat", "flat", r),
            Cell("TL", f"rs({k},{f}) spread racks({f})", "topology", -(-(k - f + 1) // f))]


def prove_repair(ledger, folder, full):
    if hosts.are_missing(ledger):
        return
    with Racks(folder, RACKS if full else 77) as racks:
        prove_one_chunk(ledger, racks, full)
        prove_processors(ledger, racks, full)
        prove_node(ledger, racks, full)
        if full:
            prove_all_cells(ledger, racks)


def measure(ledger, racks, cell, rate, repetitions):
    """Measures repetitions of one cell. An uncounted first one opens connections."""
    seen = racks.run("wide-repair", cell.code, "--scheme", cell.scheme, "--repetitions", repetitions + 1)
    runs = seen["repetitions"][1:]
    wire_s = cell.chunks * seen["chunk_bytes"] * 8 / (rate * 1e6)
    times = [run["seconds"] for run in runs]
    figures = {
        "cell": cell.name, "code": cell.code, "rate_mbit": rate, "racks": seen["racks"], "sites": seen["sites"], "wire_s": wire_s, "seconds": times,
        "crossed": [sum(run["received"]) / seen["chunk_bytes"] for run in runs],
        "left": [sum(run["sent"]) / seen["chunk_bytes"] for run in runs],
        "work_s": [run["processor_s"] / os.cpu_count() for run in runs],
        "busy": [run["processor_s"] / run["seconds"] / os.cpu_count() for run in runs],
    }
    figures["others"] = [run["others"] for run in runs]
    ledger.note(f"{cell.name} {cell.code} at {rate} Mbit/s: {statistics.median(times):.3f} s, {statistics.median(times) / wire_s:.3f} of the wire, "
                f"{statistics.median(figures['crossed']):.3f} chunks, processors {statistics.median(figures['busy']):.0%} busy")
    return figures


def add_bytes(ledger, cell, figures):
    # Count bytes received by racks: when a queue overflows on the way, TCP sends some bytes again.
    crossed = statistics.median(figures["crossed"])
    ledger.add(f"chunks across racks to repair one, {cell.name} {cell.code}, by the links' counters", f"{crossed:.3f}",
               cell.chunks <= crossed <= cell.chunks * FRAMING, f"{cell.chunks} to {cell.chunks * FRAMING:.2f}",
               f"{spread(figures['crossed'])}; {statistics.median(figures['left']):.3f} left racks, with what was sent again")


def add_time(ledger, cell, figures):
    times, wire_s = figures["seconds"], figures["wire_s"]
    ratios = [seconds / wire_s for seconds in times]
    work_s = statistics.median(figures["work_s"])
    limit = "the wire is the limit" if is_limited_by_wire(figures) else "the processors are the limit"
    ledger.add(f"time of a repair over that of its bytes on the wire, {cell.name} {cell.code} at {figures['rate_mbit']} Mbit/s",
               f"{statistics.median(ratios):.3f} ({statistics.median(times):.3f} s)", statistics.median(ratios) <= OVER_WIRE, f"<= {OVER_WIRE:.2f}",
               f"{spread(ratios)}; {limit}: the processors' own work takes {work_s:.3f} s, the wire {wire_s:.3f} s; other programs {statistics.median(figures['others']):.0%}")


def is_limited_by_wire(figures):
    """Returns whether the wire is the limit, not the processors, which all racks share here. A limit explains a missed bar, no more."""
    return statistics.median(figures["work_s"]) < BUSY * figures["wire_s"]


def prove_one_chunk(ledger, racks, full):
    """Repairs one chunk in the cell that the paper describes: k = 64, r = 7, f = 4 at 1 Gb/s."""
    rate, found = 1_000, {}
    racks.limit(rate)
    for cell in cells(64, 7, 4):
        figures = found[cell.name] = measure(ledger, racks, cell, rate, 10 if full or cell.name == "CL" else 2)
        add_bytes(ledger, cell, figures)
        add_time(ledger, cell, figures)
    ledger.record("repair of one chunk", found)
    median = {name: statistics.median(figures["seconds"]) for name, figures in found.items()}
    for name, bar in (("LRC", 5), ("TL", 10)):
        ratio = median[name] / median["CL"]
        busy = [cell for cell in (name, "CL") if not is_limited_by_wire(found[cell])]
        limit = f"the processors are the limit of {' and '.join(busy)}" if busy else "the wire is the limit of both"
        ledger.add(f"time of {name}'s repair over CL's at 1 Gbit/s", f"{ratio:.2f}", ratio >= bar, f">= {bar}",
                   f"{median[name]:.2f} s and {median['CL']:.2f} s, {limit}; the paper: 3.9 s or 9.0 s and 0.8 s")


def prove_node(ledger, racks, full):
    """Repairs all chunks of a node at once, with requestors and repairers selected least recently, and otherwise."""
    racks.limit(1_000)
    cell = Cell("CL", "wide(64,11,4)", "combined", 2)
    found, chunk_mib, began = {"least recent": [], "any": []}, 4 if full else 2, time.monotonic()
    for seed in range(1, 6 if full else 2):
        for name, flags in (("least recent", []), ("any", ["--any"])):
            seen = racks.run("wide-repair", cell.code, "--scheme", cell.scheme, "--stripes", 64, "--chunk-kib", chunk_mib << 10, "--seed", seed, *flags)
            found[name].append({**seen, **level(seen)})
    ledger.record("repair of a node", found)
    for name, runs in found.items():
        mib_per_s = [64 * chunk_mib / run["seconds"] for run in runs]
        ledger.note(f"{name}: {statistics.median(mib_per_s):.0f} MiB/s, sums crossed {statistics.median(run['crossed'] for run in runs):.2f} a chunk, "
                    f"variation of uplinks {statistics.median(run['uplinks'] for run in runs):.2f}, of the sites' work in racks {statistics.median(run['work'] for run in runs):.2f}")
    rounds = f"{len(found['any'])} rounds of 64 stripes of wide(64,11,4), {time.monotonic() - began:.0f} s"
    least, other = (statistics.median(run["uplinks"] for run in found[name]) for name in ("least recent", "any"))
    ledger.add("variation of what racks' uplinks carry while a node is repaired, selected least recently, and otherwise", f"{least:.2f} and {other:.2f}", spread=rounds)
    least, other = (statistics.median(run["work"] for run in found[name]) for name in ("least recent", "any"))
    ledger.add("variation of the sites' processor time in their racks while a node is repaired, selected least recently, and otherwise",
               f"{least:.2f} and {other:.2f}", least < other, "less", rounds)
    ratio = [other["seconds"] / least["seconds"] for least, other in zip(found["least recent"], found["any"])]
    ledger.add("rate of a node's repair, selected least recently over otherwise", f"{statistics.median(ratio):.2f}", None, "", f"{spread(ratio)}; the paper: 1.14")


def level(seen):
    """Returns the coefficients of variation of racks' uplinks and of sites within a rack. The lost site's rack, which rebuilds, is left out."""
    sites, racks = seen["sites"], seen["racks"]
    each = sites // racks
    of_racks = [seen["site_s"][first:first + each] for first in range(each, sites, each)]
    return {"crossed": sum(seen["sent"]) / seen["chunk_bytes"] / seen["stripes"], "uplinks": variation(seen["sent"][1:]),
            "work": statistics.mean(variation(seconds) for seconds in of_racks)}


def variation(values):
    return statistics.pstdev(values) / max(1e-9, statistics.mean(values))


def prove_all_cells(ledger, racks):
    """Measures k, f and rates of Figures 9 and 10."""
    found = []
    for rate in (500, 1_000, 10_000):
        racks.limit(rate)
        for k, r, f in [(32, 7, 4), (64, 7, 4), (96, 7, 4), (128, 27, 4), (64, 7, 2)]:
            for cell in cells(k, r, f):
                if cell.scheme == "flat" and k + -(-k // r) + f - 1 > RACKS:
                    continue
                figures = measure(ledger, racks, cell, rate, 3)
                found.append(figures)
                add_bytes(ledger, cell, figures)
                add_time(ledger, cell, figures)
    ledger.record("repair of one chunk, all cells", found)
