"""Runs the client suites and the codec's benchmark in separate processes, and reads their verdicts."""

import os
import re
import subprocess
import tempfile
from pathlib import Path

from . import ROOT, TOOLS
from .load import bench_binary
from .servers import striate_binary

LAST_LINE = re.compile(r"(\d+) (passed|failed|error|errors|skipped)")


# The numbers of data chunks in ECWide's Fig. 1, and the line of the codec's benchmark with a library's speed for them.
FIG_1_K = [4, 8, 16, 32, 64, 128]
FIG_1 = r"encode \(((?:4|8|16|32|64|128)),4\) 1024 KiB DRAM .*\| {library} +([\d.]+) \("
# Verdicts of the codec's benchmark, and whether the claim holds.
VERDICTS = {"holds": True, "does not hold": False, "stated": None}


class ClientSuites:
    """tests/clients in the background, on its own server."""

    def __init__(self, full):
        self.output = tempfile.NamedTemporaryFile("w+", suffix=".txt")
        environment = {**os.environ, "STRIATE": str(striate_binary()), "PYTHONDONTWRITEBYTECODE": "1"}
        environment.pop("TEST_SERVER", None)
        if full:
            environment["FULL"] = "1"
        self.process = subprocess.Popen(
            [TOOLS / "venv" / "bin" / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=line",
             ROOT / "tests" / "clients"],
            stdin=subprocess.DEVNULL, stdout=self.output, stderr=subprocess.STDOUT, env=environment, cwd=ROOT,
        )

    def claim(self, ledger):
        status = self.process.wait()
        lines = Path(self.output.name).read_text().strip().splitlines()
        counts = {word: int(number) for number, word in LAST_LINE.findall(lines[-1])} if lines else {}
        for line in lines:
            if line.startswith(("FAILED", "ERROR")):
                ledger.note(line)
        passed = counts.get("passed", 0)
        text = ", ".join(f"{number} {word}" for word, number in counts.items()) or f"no result, status {status}"
        ledger.add("aws-cli, boto3, rclone, s3cmd, mc, restic and bad input, as they come", text,
                   status == 0 and passed > 0, "all pass")


def prove_codec(ledger, full, rounds=31, is_wanted=lambda claim: True):
    """Takes over the wanted claims of the codec's benchmark. The short form makes `rounds`. Returns its output."""
    command = [bench_binary(), "codec"] + ([] if full else ["--quick", "--rounds", str(rounds)])
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=ROOT)
    kernel = done.stdout.partition("kernel ")[2].partition(",")[0]
    found = 0
    for line in done.stdout.splitlines():
        columns = [column.strip() for column in line.split(" | ")]
        if len(columns) == 5 and columns[4].lower() in VERDICTS and is_wanted(columns[0]):
            found += 1
            holds = VERDICTS[columns[4].lower()]
            bar = columns[1] if holds is not None else f"{columns[1]} with GFNI; this is {kernel}"
            ledger.add(columns[0], columns[2], holds, bar, columns[3])
    if not found:
        ledger.add("the codec's ratios", f"no result: {done.stderr.strip()[-300:] or 'no claims printed'}", False, "measured")
    return done.stdout


def prove_wide_codec(ledger, full):
    """Compares encoding and decoding at k = 128 and k = 16, both with four parities, and repeats ECWide's Fig. 1 on this machine."""
    if not has_codec_benchmark():
        ledger.skip("striate-bench has no codec's benchmark: cargo build --release --package striate-bench --features codec-bench (it builds ISA-L)")
        return
    # A round takes more than three seconds.
    printed = prove_codec(ledger, full, 13, lambda claim: "(128,4)" in claim and claim.endswith("own (16,4)"))
    speeds = {name: {int(k): float(speed) for k, speed in re.findall(FIG_1.format(library=name), printed)} for name in ("striate-streaming", "isa-l")}
    for name, of in speeds.items():
        has_all = list(of) == FIG_1_K
        ledger.add(f"Fig. 1, {name}: GB/s of data encoded on one core with four parities, chunks of 1 MiB from memory, k = {', '.join(map(str, FIG_1_K))}",
                   ", ".join(f"{speed:.2f}" for speed in of.values()) or "no result", None if has_all else False, "" if has_all else "measured for each k",
                   f"at k = 128 {1 - of[128] / of[4]:.0%} below k = 4; the paper, ISA-L with chunks of 64 MiB on three Intel processors: 43–70%" if has_all else "")


def prove_tests(ledger, tests):
    """Runs tests that are claims, by name: each has its claim, its package, its target and its name."""
    for claim, package, target, name in tests:
        which = ["--lib"] if target == "lib" else ["--test", target]
        command = ["cargo", "test", "--quiet", "--package", package, *which, "--", name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        passed = re.search(r"test result: ok\. ([1-9]\d*) passed", done.stdout)
        last_lines = "" if passed else (done.stdout + done.stderr).strip()[-300:]
        ledger.add(claim, f"{target}::{name}: {'passes' if passed else 'FAILS'}", bool(passed), "passes", last_lines)


def has_codec_benchmark():
    try:
        return subprocess.run([bench_binary(), "codec", "--help"], capture_output=True).returncode == 0
    except FileNotFoundError:
        return False
