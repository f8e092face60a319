"""Processor time of the server for each request, beside a release.

Both programs restart in turn, each on data just written and in the page cache. The data's place on disk changes a program's figures by
some percent, so every restart writes its own. The figure is the ratio of neighbours in time. The release beside itself, measured in the
same run, shows the machine's noise between equal programs.
"""

import math
import statistics
from pathlib import Path

from .folders import fresh_folder
from .load import run as load
from .servers import Striate

BUCKET = "load"
KIB, MIB = 1 << 10, 1 << 20
# Name, bytes of an object, bytes of a range, number of objects, operations of a restart.
READS = [("GET 10 KiB", 10 * KIB, None, 200, 12_000), ("GET 1 MiB", MIB, None, 40, 1_600),
         ("GET 10 MiB", 10 * MIB, None, 8, 200), ("GET 4 KiB of 4 MiB", 4 * MIB, 4 * KIB, 20, 12_000)]
DEGRADED = ("GET 4 KiB of 4 MiB, one disk gone", 4 * MIB, 4 * KIB, 20, 4_000)
# 97.5% quantile of Student's t for the usual numbers of restarts.
STUDENT_T = {3: 4.303, 4: 3.182, 5: 2.776, 6: 2.571, 8: 2.365, 10: 2.262, 20: 2.093, 21: 2.086, 30: 2.045}


class Side:
    """One program on its own directories."""

    def __init__(self, folder, program):
        self.server = Striate(folder, program=program)

    def fill(self, reads):
        with self.server as server:
            server.client().make_bucket(BUCKET)
            for name, size, _, count, _ in reads:
                load(server, BUCKET, "put", size, ops=count, objects=count, prefix=prefix(name))

    def measure(self, reads, gone=None):
        """Measures milliseconds for each request, after a restart, a pass over all bytes and an uncounted first part.

        Writes go past the page cache: without that pass a small range would wait for the disk, in one program more often than in the
        other, since their granules differ.
        """
        if gone is not None:
            self.server.wipe(gone)
        with self.server as server:
            figures = {}
            for name, size, part, count, operations in reads:
                options = {"objects": count, "prefix": prefix(name), "clients": 4}
                load(server, BUCKET, "get", size, ops=2 * count, **options)
                options["range_bytes"] = part
                load(server, BUCKET, "get", size, ops=max(count, operations // 5), **options)
                measured = load(server, BUCKET, "get", size, ops=operations, **options)
                figures[name] = measured["cpu_ms_per_operation"]
            return figures


def prefix(name):
    return "".join(character if character.isalnum() else "-" for character in name.split(",")[0].lower()) + "-"


def geometric(ratios):
    """Returns the geometric mean and its 95% interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return math.exp(mean), math.exp(mean), math.exp(mean)
    t = STUDENT_T.get(len(logs), 2.0)
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def prove_processors(ledger, folder, release, program, restarts):
    """Adds a claim for each kind of read. The bars are meant for means over at least 20 restarts."""
    folder = Path(folder)
    programs = {"ours": program, "release": release, "again": release}
    measured = {name: [] for name in programs}
    for turn in range(restarts):
        # Each program is first, second and third equally often: the position matters by some percent.
        order = list(programs)[turn % 3:] + list(programs)[:turn % 3]
        for name in order:
            with fresh_folder(f"{name}-", folder) as data:
                side = Side(Path(data) / "store", programs[name])
                side.fill(READS)
                measured[name].append(side.measure(READS))
        ledger.note(f"restart {turn + 1} of {restarts}")
    ledger.record("cpu_ms_per_operation", measured)
    for name, *_ in READS:
        pairs = list(zip(measured["ours"], measured["release"], measured["again"]))
        mean, low, high = geometric([ours[name] / theirs[name] for ours, theirs, _ in pairs])
        same, same_low, same_high = geometric([again[name] / theirs[name] for _, theirs, again in pairs])
        ledger.add(f"{name}: processor time of the server over that of 0.1.1",
                   f"{mean:.3f}; 0.1.1 over itself {same:.3f} ({same_low:.2f}–{same_high:.2f})",
                   mean <= 1.05 and low <= 1.03, "mean ≤ 1.05, lower 95% limit ≤ 1.03",
                   f"{low:.3f}–{high:.3f} in {restarts} interleaved restarts")
    prove_degraded(ledger, folder, release, program, max(2, restarts // 4))


def prove_degraded(ledger, folder, release, program, restarts):
    """Measures reads of a small range with one of six directories gone: they need the others' columns, not their whole chunks."""
    ratios = []
    for turn in range(restarts):
        sides = [Side(folder / f"lost-ours-{turn}", program), Side(folder / f"lost-release-{turn}", release)]
        figures = []
        for side in sides:
            side.server.environment["STRIATE_REPAIR_RATE_MIB"] = "0"
            side.fill([DEGRADED])
            figures.append(side.measure([DEGRADED], gone=0)[DEGRADED[0]])
        ratios.append(figures[0] / figures[1])
    mean, low, high = geometric(ratios)
    ledger.add(f"{DEGRADED[0]}: processor time of the server over that of 0.1.1", f"{mean:.3f}", mean <= 0.4,
               "≤ 0.4", f"{low:.3f}–{high:.3f} in {restarts} runs")
