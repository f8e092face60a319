"""Processor time of a wide repair, beside that of its necessary work: moving its bytes and adding up its sums.

It is the user and system time, from `/proc/PID/stat`, of all sites' processes and of the coordinating one, from the beginning of a
repair to its end. The divisor is the sum of two parts, both measured beside each repair, in turn, in the same processes:

- *Moving the same bytes through the same transport.* A repair reads 7 chunks of 64 MiB, sends 6 of them inside racks and one sum
  across, and stores one chunk durably. So does this part: the site that stores repaired chunks fetches and stores one across racks, as
  the store moves chunks, while the same sites send 6 inside a rack, in the same slices. Their receiver drops them. Seven moves with
  seven writes would be a larger divisor, and a repair writes once.
- *The codec benchmark's arithmetic.* This is the call that the codec's benchmark times: it decodes one lost chunk from the 7 others of
  its group in memory, in columns of 1 MiB. It reads each source once and writes the sum once; the sites of a repair also read and
  write partial sums.

Links are not limited here: no process's time includes the delay of a limited link.
"""

import statistics

from .claims import spread
from .racks import FRAMING

CODE = "wide(64,7,4)"
# Chunks that cross racks, in a repair and in the move.
CROSSING = 1
# Maximum processor time of a repair, over that of both parts.
BAR = 1.3


def prove_processors(ledger, racks, full):
    racks.free()
    # The first repetition opens connections.
    seen = racks.run("wide-repair", CODE, "--scheme", "combined", "--repetitions", 31 if full else 10, "--apart", inside=0)
    chunk_bytes, repairs, parts = seen["chunk_bytes"], seen["repetitions"][1:], seen["apart"][1:]
    figures = {
        "code": CODE, "repair_s": [run["processor_s"] for run in repairs], "moved_s": [part["moved"]["processor_s"] for part in parts],
        "added_s": [part["added_s"] for part in parts], "others": [run["others"] for run in repairs],
        "crossed": [crossed(run, chunk_bytes) for run in repairs], "moved_across": [crossed(part["moved"], chunk_bytes) for part in parts],
    }
    ledger.record("processor time of a repair", figures)
    add_same_bytes(ledger, figures)
    add_ratio(ledger, figures)


def crossed(metered, chunk_bytes):
    return sum(metered["received"]) / chunk_bytes


def add_same_bytes(ledger, figures):
    """Claims that both sides of the comparison moved the same bytes."""
    both = [statistics.median(figures[what]) for what in ("crossed", "moved_across")]
    ledger.add(f"chunks across racks, by the links' counters, in a repair of {CODE} and where its bytes are only moved", f"{both[0]:.3f} and {both[1]:.3f}",
               all(CROSSING <= chunks <= CROSSING * FRAMING for chunks in both), f"{CROSSING} to {CROSSING * FRAMING:.2f}", spread(figures["crossed"] + figures["moved_across"]))


def add_ratio(ledger, figures):
    ratios = [repair / (moved + added) for repair, moved, added in zip(figures["repair_s"], figures["moved_s"], figures["added_s"])]
    repair, moved, added = (statistics.median(figures[what]) for what in ("repair_s", "moved_s", "added_s"))
    ratio = statistics.median(ratios)
    ledger.add(f"processor time of a repair over that of moving its bytes and adding them up, {CODE}", f"{ratio:.2f}", ratio <= BAR, f"<= {BAR}",
               f"{spread(ratios)} in {len(ratios)} repairs; {repair:.3f} s, over {moved:.3f} s and {added:.3f} s; other programs {statistics.median(figures['others']):.0%}")
