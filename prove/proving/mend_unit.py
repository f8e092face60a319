"""The unit tests again and again, beside processes that keep every core busy, under settings of TCP that other systems have.

Each round has a network namespace of its own, so that the settings are those of the round and nobody else's. A test that depends on what
the kernel buffers, on timing or on luck fails in one of them.
"""

import os
import re
import subprocess
import sys

from . import ROOT

# net.ipv4.tcp_rmem and tcp_wmem: a system with little memory, a common default, a fast network's, and this system's own.
SETTINGS = [
    ("4096 131072 65536", "4096 16384 65536"),
    ("4096 131072 6291456", "4096 16384 4194304"),
    ("4096 131072 33554432", "4096 65536 16777216"),
    None,
]
ROUNDS = 10
# What listens, waits or sends. The full form runs every crate.
SHORT = ["striate-site", "striate-s3"]
BUSY = "while True: pass"
FAILED = re.compile(r"^test (\S+) \.\.\. FAILED", re.MULTILINE)
PASSED = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed", re.MULTILINE)


def prove_unit(ledger, full):
    rounds = ROUNDS if full else 1
    what = ["--workspace"] if full else [word for package in SHORT for word in ("--package", package)]
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(os.cpu_count() or 1)]
    try:
        outcomes = [run_round(what, SETTINGS[number % len(SETTINGS)]) for number in range(rounds)]
    finally:
        for process in busy:
            process.kill()
            process.wait()
    failures = sorted({name for _, failed in outcomes for name in failed})
    passed = [count for count, _ in outcomes]
    failed_rounds = sum(bool(failed) for _, failed in outcomes)
    of = "all crates" if full else " and ".join(SHORT)
    ledger.add(f"unit tests of {of}, {rounds} in a row beside as many busy processes as cores, under {min(rounds, len(SETTINGS))} settings of TCP (issue 62, item 0)",
               f"{failed_rounds} of {rounds} rounds with a failure{': ' + ', '.join(failures[:5]) if failures else ''}",
               not failures and min(passed) > 0, "0; the full form has 10 rounds of all crates", f"{min(passed)}–{max(passed)} tests passed")


def run_round(what, settings):
    """Returns how many tests passed, and the names of those that failed."""
    tests = ["cargo", "test", "--quiet", "--no-fail-fast", *what, "--lib", "--bins", "--tests", "--", "--format", "pretty"]
    if settings:
        receive, send = settings
        script = f'ip link set lo up && sysctl -qw net.ipv4.tcp_rmem="{receive}" net.ipv4.tcp_wmem="{send}" && exec "$@"'
        tests = ["unshare", "--net", "bash", "-c", script, "round", *tests]
    environment = {**os.environ, "PROPTEST_DISABLE_FAILURE_PERSISTENCE": "1"}
    done = subprocess.run(tests, cwd=ROOT, capture_output=True, text=True, env=environment)
    failed = FAILED.findall(done.stdout)
    if done.returncode and not failed:
        failed = [f"cargo test ended with {done.returncode}: {done.stderr.strip()[-200:]}"]
    return sum(int(passed) for passed, _ in PASSED.findall(done.stdout)), failed
