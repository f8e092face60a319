"""Global parities of a wide stripe on real processes in racks: on one node that fetches all data chunks, or along trees (ECWide, §4.2)."""

import os
import statistics

from . import hosts
from .claims import spread
from .racks import BUSY, FRAMING, Racks

# For wide(128,11,4): 12 groups in three racks each, and the global parities' racks.
RACKS = 38
# Local groups of 11, as in the paper's figure.
CODES = {16: "wide(16,11,4)", 64: "wide(64,11,4)", 128: "wide(128,11,4)"}
SLICE_KIB = 256
# KiB for each connection: the one node is a new process each time, and opens a connection to each site.
HANDSHAKE_KIB = 8
# Where the wire is the limit: maximum time of trees, over the time that one node's bytes take on the wire.
OF_ONE = 0.5


def prove_encode(ledger, folder, full):
    if hosts.are_missing(ledger):
        return
    found = []
    with Racks(folder, RACKS if full else 19) as racks:
        for rate in (100, 1_000):
            racks.limit(rate)
            for k in (16, 64, 128) if full else (16, 64):
                found.append(prove_limited(ledger, measure(ledger, racks, k, rate, full)))
        racks.free()
        found.append(prove_unlimited(ledger, measure(ledger, racks, 64, None, full)))
    ledger.record("encoding", found)


def measure(ledger, racks, k, rate, full):
    # In short, one counted repetition on slow links, where single ones vary less.
    chunk_kib, repetitions = 4_096 if full or k == 16 else 1_024, 5 if full else 1 if rate == 100 else 2
    seen = racks.run("wide-encode", CODES[k], "--chunk-kib", chunk_kib, "--repetitions", repetitions + 1)
    chunk = seen["chunk_bytes"]
    figures = {"code": CODES[k], "k": k, "rate_mbit": rate, "sums": seen["sums"], "racks": seen["racks"],
               "opened": seen["sites"] * (HANDSHAKE_KIB << 10) / chunk}
    for way in ("one", "trees"):
        # The first run opens connections.
        runs = seen[way][1:]
        figures[way] = {"seconds": [run["seconds"] for run in runs], "crossed": [sum(run["received"]) / chunk for run in runs],
                        "left": [sum(run["sent"]) / chunk for run in runs],
                        "work_s": [run["processor_s"] / os.cpu_count() for run in runs], "others": [run["others"] for run in runs]}
    figures["ratio"] = [trees / one for trees, one in zip(figures["trees"]["seconds"], figures["one"]["seconds"])]
    if rate:
        figures["chunk_s"] = chunk * 8 / (rate * 1e6)
        # With a tree for each parity: the sums, and one slice for each hop.
        figures["predicted"] = (seen["most_sums"] + 3 * (seen["racks"] - 1) * min(1, SLICE_KIB / chunk_kib)) / k
    ledger.note(f"{CODES[k]} at {rate or 'unlimited'} Mbit/s: one node {median(figures, 'one', 'seconds'):.3f} s, trees {median(figures, 'trees', 'seconds'):.3f} s, "
                f"processors' work {median(figures, 'one', 'work_s'):.2f} and {median(figures, 'trees', 'work_s'):.2f} s, others {median(figures, 'trees', 'others'):.0%}")
    return figures


def median(figures, way, what):
    return statistics.median(figures[way][what])


def add_ratio(ledger, figures, beside):
    """Claims that trees are faster where links are limited, their purpose. Elsewhere the ratio is only stated."""
    ratio, is_limited = statistics.median(figures["ratio"]), figures["rate_mbit"] is not None
    ledger.add(f"time of trees over that of one node, three global parities of {figures['code']} at {figures['rate_mbit'] or 'unlimited'} Mbit/s",
               f"{ratio:.2f}", ratio < 1 if is_limited else None, "< 1" if is_limited else "",
               f"{spread(figures['ratio'])}; {median(figures, 'trees', 'seconds'):.2f} s and {median(figures, 'one', 'seconds'):.2f} s; {beside}")


def prove_limited(ledger, figures):
    for way, chunks, opened in (("one", figures["k"], figures["opened"]), ("trees", figures["sums"], 0)):
        crossed, most = median(figures, way, "crossed"), chunks * FRAMING + opened
        ledger.add(f"chunks across racks for three global parities of {figures['code']} at {figures['rate_mbit']} Mbit/s, {way}, by the links' counters",
                   f"{crossed:.2f}", chunks <= crossed <= most, f"{chunks} to {most:.1f}",
                   f"{spread(figures[way]['crossed'])}; {median(figures, way, 'left'):.2f} left racks, with what was sent again")
    add_ratio(ledger, figures, "the paper, four nodes of a rack: 0.16")
    add_over_wire(ledger, figures)
    return figures


def add_over_wire(ledger, figures):
    """Compares trees with the time of one node's bytes on the wire. This leaves out the slowdown by senders that fill its link's queue."""
    one_s = figures["k"] * figures["chunk_s"]
    ratios = [seconds / one_s for seconds in figures["trees"]["seconds"]]
    is_wire = median(figures, "trees", "work_s") < BUSY * figures["predicted"] * one_s
    ledger.add(f"time of trees over that of one node's bytes on the wire, {figures['code']} at {figures['rate_mbit']} Mbit/s",
               f"{statistics.median(ratios):.2f}", statistics.median(ratios) <= OF_ONE if is_wire else None, f"<= {OF_ONE}" if is_wire else "",
               f"{spread(ratios)}; by the wire {figures['predicted']:.2f}; the limit of the trees is {'the wire' if is_wire else 'the processors'}; "
               f"one node took {median(figures, 'one', 'seconds') / one_s:.2f} of that time")


def prove_unlimited(ledger, figures):
    sent = f"chunks are sent {figures['k'] + 3} times to one node, {3 * figures['k']} times along trees"
    add_ratio(ledger, figures, f"{sent}; processors' work {median(figures, 'trees', 'work_s') / median(figures, 'one', 'work_s'):.1f} times")
    return figures
