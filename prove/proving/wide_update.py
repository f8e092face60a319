"""Changes of wide stripes' data chunks on real processes in racks (ECWide, §4.3 and Fig. 13)."""

import statistics

from . import hosts
from .claims import spread
from .racks import FRAMING, Racks
from .wide_memory import BURST_KB, HEAVY_MBIT

DATA, GROUP, IN_RACK = 128, 27, 4
CODE = f"wide({DATA},{GROUP},{IN_RACK})"
# The racks of a stripe, and the client's.
RACKS = 35
# Mbit/s of links, KiB of a chunk and of the changed range. The paper changes whole chunks of 4 KiB in memory, on busy gateways.
WHOLE_AT_1_GBIT = (1_000, 1_024, 1_024)
ON_DISK = [(1_000, 1_024, 4), (1_000, 1_024, 64), WHOLE_AT_1_GBIT, (100, 1_024, 1_024)]
IN_MEMORY = [(1_000, 4, 4), (HEAVY_MBIT, 4, 4)]
# The short form leaves this out: no saving of its time is claimed.
ONLY_IN_FULL = (1_000, 1_024, 64)
# The paper's maximum saving of time by each way, in percent, over a difference for each parity.
PAPER = {"global": 33.2, "local": 14.4, "both": 47.6}
# Allowance for a change's messages: some ten requests and answers between sites, 8 to 11 kB in total, by the links' counters.
MESSAGES_BYTES = 12 << 10
# Minimum saving, as a fraction of the paper's.
BAR = 0.80


def prove_updates(ledger, folder, full):
    if hosts.are_missing(ledger):
        return
    with Racks(folder, RACKS) as racks:
        cells = ON_DISK if full else [cell for cell in ON_DISK if cell != ONLY_IN_FULL]
        # In short, fewer changes of ranges, of which no time is claimed, and on slow links, where single ones vary less.
        found = [prove_range(ledger, racks, cell, [], 100 if full else 20 if cell == WHOLE_AT_1_GBIT else 8) for cell in cells]
        found += [prove_range(ledger, racks, cell, ["--memory"], 500 if full else 100) for cell in IN_MEMORY]
    ledger.record("updates", found)


def prove_range(ledger, racks, cell, flags, updates):
    rate, chunk_kib, update_kib = cell
    racks.limit(rate, BURST_KB if rate == HEAVY_MBIT else None)
    seen = racks.run("wide-update", CODE, "--chunk-kib", chunk_kib, "--update-kib", update_kib, "--updates", updates, *flags, inside=RACKS - 1)
    ways = {way["name"]: way["changes"] for way in seen["ways"]}
    size, of_chunk = seen["range_bytes"], "" if update_kib == chunk_kib else f" of {chunk_kib}"
    name = f"changes of {update_kib}{of_chunk} KiB {'in memory ' if flags else ''}at {rate} Mbit/s"
    add_bookkeeping(ledger, name, ways, size)
    add_counted(ledger, name, ways, is_large=update_kib == 1_024)
    add_savings(ledger, name, ways, is_whole=update_kib == chunk_kib)
    return {"rate_mbit": rate, "chunk_kib": chunk_kib, "update_kib": update_kib, "ways": ways}


def ranges_of(way, racks_of):
    """Returns the number of ranges that must cross racks for a change; the client is in its own rack."""
    data, *parities = racks_of
    local, *followed = parities
    if way == "rewrite":
        return 2 + 2 * len(parities)
    source = followed[0] if way in ("global", "both") else data
    return 2 + (data != local) + (data != followed[0]) + sum(source != rack for rack in followed[1:])


def is_with_local(chunk):
    """Returns whether a data chunk shares a rack with its local parity.

    Combined locality places a group's chunks in order, its local parity last.
    """
    first = chunk // GROUP * GROUP
    return (chunk - first) // IN_RACK == min(GROUP, DATA - first) // IN_RACK


def add_bookkeeping(ledger, name, ways, size):
    """Compares the lab's bookkeeping of bytes that must cross racks, change by change, with arithmetic on chunks' places.

    `add_counted` compares it with the links' counters.
    """
    crossed = {way: [change["crossed"] / size for change in changes] for way, changes in ways.items()}
    expected = {way: [ranges_of(way, change["racks_of"]) for change in changes] for way, changes in ways.items()}
    where = all((change["racks_of"][0] == change["racks_of"][1]) == is_with_local(change["chunk"]) for change in ways["deltas"])
    ledger.add(f"ranges across racks by the lab's bookkeeping, {name}: {', '.join(ways)}", ", ".join(f"{statistics.mean(ranges):.2f}" for ranges in crossed.values()),
               where and crossed == expected, "each change's, by where chunks are",
               f"by arithmetic {', '.join(f'{statistics.mean(ranges):.2f}' for ranges in expected.values())}; {len(crossed['deltas'])} changes each")


def add_counted(ledger, name, ways, is_large):
    """Compares the links' counters with the bytes that must cross racks.

    Beyond frames' headers there are requests and answers, whose size does not depend on the range. For large ranges, in each change,
    they take less than the allowance for headers. For small ranges they weigh much, and now and then the sites' own messages cross as
    well, so medians count.
    """
    for way, changes in ways.items():
        must, did = ([of(change) for change in changes] for of in (lambda change: change["crossed"], lambda change: sum(change["received"])))
        beyond = statistics.median(other - one * FRAMING for one, other in zip(must, did))
        most = all(other <= one * FRAMING for one, other in zip(must, did)) if is_large else beyond <= MESSAGES_BYTES
        ledger.add(f"bytes on links over those that must cross racks, {name}, {way}", f"{sum(did) / sum(must):.3f}",
                   most and all(one <= other for one, other in zip(must, did)),
                   f"each change's 1 to {FRAMING}" if is_large else f"each 1 at least, and in the median at most {FRAMING} and {MESSAGES_BYTES >> 10} KiB for messages",
                   f"{spread([other / one for one, other in zip(must, did)])}; {max(0.0, beyond) / 1024:.1f} KiB beyond frames in the median")


def add_savings(ledger, name, ways, is_whole):
    """Claims the savings for whole chunks, as in the paper; for ranges of chunks they are only stated."""
    time = {way: statistics.mean(change["seconds"] for change in changes) for way, changes in ways.items()}
    crossed = {way: sum(change["crossed"] for change in changes) for way, changes in ways.items()}
    for way, paper in PAPER.items():
        saved = 100 * (1 - time[way] / time["deltas"])
        ratios = [change["seconds"] / base["seconds"] for change, base in zip(ways[way], ways["deltas"])]
        ledger.add(f"time below that of a difference for each parity, {name}, {way}", f"{saved:.1f}% (paper {paper}%)", saved >= BAR * paper if is_whole else None,
                   f">= {BAR:.0%} of the paper's" if is_whole else "", f"{time[way] * 1e3:.1f} and {time['deltas'] * 1e3:.1f} ms, ratios of single changes {spread(ratios)}; "
                   f"bytes across racks {100 * (1 - crossed[way] / crossed['deltas']):.1f}% below")
    ledger.add(f"time of rewriting parities over that of differences, {name}", f"{time['rewrite'] / time['deltas']:.2f}", None, "",
               f"bytes across racks {crossed['rewrite'] / crossed['deltas']:.2f}")
