"""Claims that need only the tree and one server: builds, tests by name, forms, lines."""

import http.client
import os
import re
import resource
import subprocess
from pathlib import Path

from . import ROOT
from .servers import Striate, striate_binary

MOST_BINARY = 30_000_000
MOST_BUILD = 0.55
BASELINE = "0.1.1"
# Sources of the read path in 0.1.1 and in this tree, without tests.
READ_PATH = {
    BASELINE: ["crates/plan/src", "crates/client/src/stripe/read.rs", "crates/client/src/stripe/query.rs",
               "crates/client/src/stripe/gathering.rs", "crates/client/src/stripe/answers.rs",
               "crates/client/src/stripe/arrival.rs", "crates/client/src/stripe/planning.rs",
               "crates/client/src/stripe/patience.rs", "crates/client/src/stripe/probes.rs",
               "crates/client/src/stripe/explain.rs", "crates/client/src/stripe/damage.rs",
               "crates/client/src/measure.rs", "crates/client/src/sampling.rs"],
    "now": ["crates/plan/src", "crates/stripe/src/read"],
}
TESTS = [
    ("a 4 KiB range of a 4 MiB block with its site away moves at most k granules, by every policy",
     "striate-client", "objects", "a_small_range_around_a_lost_site_moves_one_granule_of_k_chunks"),
    ("pieces of one stripe share what arrives: no byte of a chunk is asked for twice",
     "striate-client", "objects", "pieces_of_a_stripe_share_what_arrives"),
    ("a block that decodes to wrong bytes is read from its data chunks, or not at all",
     "striate-client", "objects", "a_block_that_decodes_to_wrong_bytes_is_read_from_its_data_chunks"),
    ("lrc(12,3,2): a write that cannot be read after one more loss is not acknowledged",
     "striate-control", "control", "i1_a_write_is_acknowledged_only_when_it_bears_one_more_loss"),
    ("places of chunks that are under way count as taken",
     "striate-control", "control", "places_of_open_entries_count_as_taken"),
    ("a site whose connections are slow does not look idle: bytes from the page cache are in its queue",
     "striate-site", "site", "what_is_read_without_waiting_counts_until_it_is_sent"),
    ("policies apply to ranges: a part of a block is planned",
     "striate-client", "objects", "reads_are_measured_by_phase"),
]


def tree_of(release):
    """Returns the commit of a release, as named in CHANGELOG.md."""
    text = (ROOT / "CHANGELOG.md").read_text()
    return re.search(rf"^## {re.escape(release)}, [0-9-]+, commit ([0-9a-f]+)$", text, re.M).group(1)


def prove_binary(ledger):
    size = striate_binary().stat().st_size
    ledger.add("the program's size", f"{size / 1e6:.1f} MB", size <= MOST_BINARY, f"≤ {MOST_BINARY / 1e6:.0f} MB")


def prove_nothing_compiled(ledger):
    """Builds the program, touches git's index, and builds again: cargo must compile nothing."""
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)
    index = subprocess.run(["git", "rev-parse", "--git-path", "index"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    (ROOT / index).touch()
    done = subprocess.run(["cargo", "build", "--release"], cwd=ROOT, capture_output=True, text=True)
    compiled = [line for line in done.stderr.splitlines() if "Compiling" in line]
    ledger.add("a second build compiles nothing", f"{len(compiled)} crates", done.returncode == 0 and not compiled, "0")


def cold_build(commit, folder):
    """Returns the processor seconds of `cargo build --release` on a fresh clone; crates are downloaded first."""
    folder = Path(folder)
    subprocess.run(["git", "clone", "--quiet", ROOT, folder], check=True)
    subprocess.run(["git", "-C", folder, "checkout", "--quiet", commit], check=True)
    environment = {**os.environ, "CARGO_TARGET_DIR": str(folder / "target")}
    subprocess.run(["cargo", "fetch", "--quiet"], cwd=folder, check=True, env=environment)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=folder, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def prove_cold_builds(ledger, folder):
    ours = cold_build("HEAD", folder / "ours")
    theirs = cold_build(tree_of(BASELINE), folder / "release")
    ledger.add(f"a cold build's processor time over that of {BASELINE}",
               f"{ours / theirs:.2f} ({ours:.0f} s and {theirs:.0f} s)", ours / theirs <= MOST_BUILD,
               f"≤ {MOST_BUILD}", "one of each")


def prove_form(ledger, folder):
    """Posts a form of 64 KiB whose key repeats ${filename}: it must not expand to a key of 90 MB, even with an expired policy."""
    with Striate(folder) as server:
        client = server.client()
        client.make_bucket("forms")
        before = server.peak_memory_bytes()
        boundary = "x" * 30
        key = "${filename}" * 5_900
        fields = {"key": key, "policy": "e30=", "x-amz-algorithm": "AWS4-HMAC-SHA256",
                  "x-amz-credential": "a/20000101/us-east-1/s3/aws4_request", "x-amz-date": "20000101T000000Z",
                  "x-amz-signature": "0" * 64}
        body = "".join(f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
                       for name, value in fields.items())
        body += (f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{"f" * 15_000}"\r\n\r\nx\r\n'
                 f"--{boundary}--\r\n")
        statuses = [post_form(server, "forms", boundary, body.encode()) for _ in range(8)]
        grown = server.peak_memory_bytes() - before
        ledger.add("64 KiB of a form whose key repeats ${filename}: refused, and memory grows by little",
                   f"{sorted(set(statuses))}, {grown / 1e6:.1f} MB for 8 of them",
                   all(400 <= status < 500 for status in statuses) and grown < 16e6, "refused, < 16 MB")


def post_form(server, bucket, boundary, body):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    connection.request("POST", f"/{bucket}", body, {"Content-Type": f"multipart/form-data; boundary={boundary}"})
    return connection.getresponse().status


def lines(root, paths):
    """Counts lines of Rust without tests; returns the total, and the longest file's count and path."""
    total, longest = 0, (0, "")
    for path in paths:
        base = Path(root) / path
        for file in [base] if base.is_file() else sorted(base.rglob("*.rs")):
            if file.stem in ("tests", "instances", "reference"):
                continue
            count = file.read_text().split("#[cfg(test)]\nmod tests {")[0].count("\n")
            total, longest = total + count, max(longest, (count, str(file.relative_to(root))))
    return total, longest


def prove_lines(ledger, folder):
    """Compares the size of `plan` and the read path with the baseline's."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "archive", tree_of(BASELINE)], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "--extract", "--directory", folder], input=archive, check=True)
    before, _ = lines(folder, READ_PATH[BASELINE])
    after, longest = lines(ROOT, READ_PATH["now"])
    ledger.add("lines of `plan` and the read path, without tests", f"{after} ({BASELINE}: {before})",
               after <= before, f"≤ {before}", f"longest file: {longest[1]}, {longest[0]}")
