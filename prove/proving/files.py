"""Real input: this machine's own files, synced in and out with rclone, with directories wiped in between."""

import filecmp
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from .servers import tree_bytes

SOURCES = ("/usr/share", "/usr/lib")
LARGE_BYTES = 1 << 20


def choose(most_files=None, most_bytes=None):
    """Returns regular files below SOURCES, in an order that depends only on their paths, up to the limits: [(path, size)]."""
    found = []
    for source in SOURCES:
        for folder, _, names in os.walk(source):
            for name in names:
                path = os.path.join(folder, name)
                if os.path.isfile(path) and not os.path.islink(path):
                    found.append((hashlib.sha256(os.fsencode(path)).digest(), path, os.path.getsize(path)))
    chosen, total = [], 0
    for _, path, size in sorted(found):
        if most_files is not None and len(chosen) >= most_files:
            break
        if most_bytes is None or total + size <= most_bytes:
            chosen.append((path, size))
            total += size
    return chosen


def rclone(server, *arguments):
    environment = {name: value for name, value in os.environ.items() if name != "AWS_CA_BUNDLE"}
    environment |= {
        "RCLONE_CONFIG_STORE_TYPE": "s3", "RCLONE_CONFIG_STORE_PROVIDER": "Other", "RCLONE_CONFIG": "/dev/null",
        "RCLONE_CONFIG_STORE_ENDPOINT": server.endpoint, "RCLONE_CONFIG_STORE_REGION": "us-east-1",
        "RCLONE_CONFIG_STORE_ACCESS_KEY_ID": server.credentials.access_key,
        "RCLONE_CONFIG_STORE_SECRET_ACCESS_KEY": server.credentials.secret_key,
    }
    command = ["rclone", "--transfers", "16", "--checkers", "16", "--retries", "1", *map(str, arguments)]
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"rclone {' '.join(map(str, arguments))}: {done.stderr[-2000:]}")


def sync_in(server, bucket, files, folder):
    listing = Path(folder) / f"{bucket}.txt"
    listing.write_text("".join(f"{path}\n" for path, _ in files))
    rclone(server, "copy", "--files-from-raw", listing, "--no-traverse", "/", f"store:{bucket}")


def sync_out(server, bucket, target):
    rclone(server, "sync", f"store:{bucket}", target)


def differences(files, target):
    """Returns the files that are missing or differ, byte for byte."""
    wrong = []
    for path, _ in files:
        copy = os.path.join(target, path.lstrip("/"))
        if not os.path.isfile(copy) or not filecmp.cmp(path, copy, shallow=False):
            wrong.append(path)
    return wrong


def read_back(server, bucket, files, folder):
    target = Path(folder) / "out"
    shutil.rmtree(target, ignore_errors=True)
    sync_out(server, bucket, target)
    wrong = differences(files, target)
    shutil.rmtree(target, ignore_errors=True)
    return wrong


def replace_and_heal(server, *indices):
    """Follows the manual: a blank directory at the old path, `disk replace`, then `heal`."""
    for index in indices:
        directory = server.directories[index]
        directory.mkdir(exist_ok=True)  # a wipe that met the writing server may have left it
        server.run("disk", "replace", directory)
    return server.run("heal", "--quiet", timeout_s=3600)


def prove_files(ledger, server, folder, full):
    """Proves the section's claims on a fresh server with rs(4,2) on six directories."""
    k, r = 4, 2
    files = choose() if full else choose(20_000, 1_500_000_000)
    large = [entry for entry in files if entry[1] > LARGE_BYTES]
    small = [entry for entry in files if entry[1] <= LARGE_BYTES]
    total = sum(size for _, size in files)
    ledger.note(f"{len(files)} files of {' and '.join(SOURCES)}, {total / 1e9:.2f} GB, {len(large)} of them over 1 MiB")
    for bucket in ("large", "small"):
        server.run("bucket", "create", "--profile", f"rs({k},{r})", bucket)
    before = server.disk_bytes()
    for bucket, part in (("large", large), ("small", small)):
        sync_in(server, bucket, part, folder)
        ledger.note(f"{len(part)} files synced in")
        after = server.disk_bytes()
        state_size(ledger, bucket, (after - before) / max(1, sum(size for _, size in part)), (k + r) / k)
        before = after
    compare_after(ledger, server, folder, large, small, "synced out, nothing lost")
    wipe_heal_wipe(ledger, server, folder, large, small)


def state_size(ledger, bucket, ratio, ideal):
    if bucket == "large":
        bar = 1.03 * ideal
        ledger.add("files over 1 MiB: bytes on disk (du) per user byte", f"{ratio:.4f}", ratio <= bar,
                   f"≤ 1.03 × {ideal:.2f} = {bar:.3f}")
    else:
        ledger.add("files up to 1 MiB: bytes on disk (du) per user byte", f"{ratio:.3f} (the code's {ideal:.2f})")


def compare_after(ledger, server, folder, large, small, what):
    wrong = read_back(server, "large", large, folder) + read_back(server, "small", small, folder)
    count = len(large) + len(small)
    text = f"{count - len(wrong)} of {count}" + (f", first wrong: {wrong[0]}" if wrong else "")
    ledger.add(f"real files equal byte for byte: {what}", text, not wrong, "all")


def wipe_heal_wipe(ledger, server, folder, large, small):
    server.wipe(0, 3)
    compare_after(ledger, server, folder, large, small, "2 of 6 directories wiped (rm -rf) under the server")
    replace_and_heal(server, 0, 3)
    ledger.note("replaced and healed")
    healed = sum(tree_bytes(server.directories[index]) for index in (0, 3))
    ledger.note(f"{healed / 1e6:.0f} MB on the two new directories")
    server.wipe(1, 4)
    compare_after(ledger, server, folder, large, small, "after replace and heal, another 2 wiped")
    replace_and_heal(server, 1, 4)
    clean = verify_is_clean(server)
    ledger.add("`striate verify` after the last heal", "whole" if clean else "finds damage", clean, "whole")


def verify_is_clean(server):
    server.run("verify", "--quiet", check=False, timeout_s=3600)
    return server.last_status == 0
