"""Repairs of chunks of 4 KiB on sites in memory, in racks (ECWide, §5 and Fig. 12)."""

import statistics

from . import hosts
from .claims import spread
from .racks import Racks
from .wide_repair import cells

# Bandwidth of a gateway that 80 clients per server leave, in Mbit/s, by the model that was fitted to the paper (docs/src/ecwide.md). An
# idle link carries one frame at once.
HEAVY_MBIT, BURST_KB = 10, 10


def prove_memory(ledger, folder, full):
    if hosts.are_missing(ledger):
        return
    # LRC has a rack for each chunk; in the short run, chunks that its repair does not read have none.
    k, r = (128, 27) if full else (64, 7)
    chosen = cells(k, r, 4)
    with Racks(folder, 136 if full else 77) as racks:
        for rate, burst in ((1_000, None), (HEAVY_MBIT, BURST_KB)):
            racks.limit(rate, burst)
            found = {cell.name: measure(ledger, racks, cell, rate, full) for cell in chosen}
            ledger.record(f"repair in memory at {rate} Mbit/s", found)
            add_ratios(ledger, chosen, found, rate)


def measure(ledger, racks, cell, rate, full):
    seen = racks.run("wide-repair", cell.code, "--scheme", cell.scheme, "--memory", "--chunk-kib", 4, "--repetitions", 500 if full else 100)
    runs = seen["repetitions"][1:]
    figures = {"code": cell.code, "ms": [run["seconds"] * 1e3 for run in runs], "crossed": [sum(run["received"]) / seen["chunk_bytes"] for run in runs]}
    ledger.note(f"{cell.name} {cell.code} at {rate} Mbit/s: {statistics.median(figures['ms']):.2f} ms, links carried {statistics.median(figures['crossed']):.2f} chunks "
                f"for {cell.chunks}")
    return figures


def add_ratios(ledger, chosen, found, rate):
    combined, *others = chosen
    own = found["CL"]["ms"]
    for cell in others:
        ratio = statistics.median(own) / statistics.median(found[cell.name]["ms"])
        ledger.add(f"time of CL's repair over {cell.name}'s, chunks of 4 KiB in memory at {rate} Mbit/s", f"{ratio:.2f}", ratio < 1, "< 1",
                   f"{statistics.median(own):.2f} ({spread(own)}) and {statistics.median(found[cell.name]['ms']):.2f} ms ({spread(found[cell.name]['ms'])}); "
                   f"chunks across racks {combined.chunks / cell.chunks:.2f}")
