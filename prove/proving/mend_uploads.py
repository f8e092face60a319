"""Uploads, forms and heads that arrive slowly, and what an honest client notices of them.

An attack is a *shape*: how many connections of which kind, how many bytes each sends at once, and at which rate it continues. A peer that
is cut or answered reconnects a second later. The peers use the honest client's own key, from one address and from two hundred of
127.0.0.0/8. The honest client stores and reads 3 B to 1 MiB at a fixed rate; its times count from when a request was due, so that a stall
counts for its whole length. It is compared with the same client beside as many idle connections.

`python3 -m proving.mend_uploads`, in `prove/`, runs the shapes of `SHAPES`; `--sweep N` draws N others (`--seed` names the draw), so that
the next variant is found.
"""

import argparse
import asyncio
import functools
import json
import math
import multiprocessing
import queue
import random
import resource
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from . import sigv4
from .claims import Ledger
from .peers import contents, first_of, metrics, send_at_fixed_rate, told
from .processes import resident_bytes
from .servers import Striate

BUCKET = "uploads"
SHORT_S, FULL_S = 4, 60
SETTLE_S = 2
MOST = 2.0  # times the p99 beside idle connections
SIZES = [3, 10 << 10, 64 << 10, 200 << 10, 1 << 20]
THREADS, PER_S = 12, 20
RECONNECT_S = 1
EXPIRES_S = 3600
LARGE = 1 << 30  # what a hostile upload announces
BODY_MEMORY = 64 << 20  # --body-memory-mib
# What an attack may add to the memory beside as many idle connections: bodies, and half as much for documents, forms and heads.
BOUND = BODY_MEMORY + BODY_MEMORY // 2
ONE, MANY = ["127.2.0.1"], [f"127.1.0.{number + 1}" for number in range(200)]
ALL = {"one address": ONE, "200 addresses": MANY}


@dataclass(frozen=True)
class Shape:
    """`count` connections of `kind` that send `first` bytes at once and then `rate` bytes a second."""

    kind: str
    count: int
    first: int
    rate: int
    fault: str = ""

    def __str__(self):
        what = {"put": "uploads", "batch": "batch puts", "form": "unsigned forms", "head": "partial heads"}[self.kind]
        return f"{self.count} {what} of {self.first:,} B, then {self.rate:,} B/s"

    def interval_s(self):
        """Returns the time between two sends: often enough that nobody seems idle, and not so often that the attacker is busy."""
        return max(0.045, self.count * 0.001, 1 / max(self.rate, 1) if self.rate < 20 else 0)


SHAPES = [
    Shape("put", 18, 100_000, 11_000, "B F2"),
    Shape("put", 200, 17_000, 17_000, "B F2"),
    Shape("batch", 200, 17_000, 17_000, "B F2"),
    Shape("put", 200, 4_089_446, 1, "B F2"),
    Shape("put", 600, 100_000, 9_000, "B F2"),
    Shape("form", 4_600, 10_000, 1, "B F12"),
    Shape("head", 4_000, 60_000, 1, "B F13"),
]


def drawn(draw):
    """Returns a shape drawn at random."""
    def between(least, most):
        return round(math.exp(draw.uniform(math.log(least), math.log(most))))
    kind = draw.choice(["put", "put", "put", "batch", "form", "head"])
    count = between(10, 4_600 if kind in ("form", "head") else 900)
    first = between(1, 60_000 if kind in ("form", "head") else 5 << 20)
    rate = between(1, 8 if kind in ("form", "head") else 60_000)
    # More than this is a flood, which a slow machine cannot even send.
    return Shape(kind, count, min(first, (800 << 20) // count), min(rate, (8 << 20) // count))


# Hostile peers.

@contextmanager
def attack(server, shape, addresses):
    """Runs an attack in another process. Yields the counts of what became of its connections, filled in at the end."""
    context = multiprocessing.get_context("spawn")
    counts, stop, seen = context.Queue(), context.Event(), {}
    process = context.Process(target=attack_until, args=(server.endpoint, server.credentials, shape, addresses, stop, counts))
    process.start()
    try:
        yield seen
    finally:
        stop.set()
        try:
            seen.update(counts.get(timeout=60))
        except queue.Empty:
            seen["lost"] = 1
        process.join(30)
        if process.is_alive():
            process.kill()


def raise_descriptors():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def attack_until(endpoint, credentials, shape, addresses, stop, counts):
    raise_descriptors()
    counts.put(asyncio.run(attack_all(endpoint, credentials, shape, addresses, stop)))


async def attack_all(endpoint, credentials, shape, addresses, stop):
    host = endpoint.removeprefix("http://")
    seen = {"connections": 0, "ended": 0, "sent": 0}
    tasks = [asyncio.create_task(hostile(shape, number, host, credentials, addresses[number % len(addresses)], seen))
             for number in range(shape.count)]
    await asyncio.get_running_loop().run_in_executor(None, stop.wait)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return seen


async def hostile(shape, number, host, credentials, address, seen):
    """Runs one peer, which reconnects whenever it is cut."""
    await asyncio.sleep(number / 4_000)  # a backlog that overflows would hold up the attacker, not the server
    while True:
        try:
            seen["connections"] += 1
            await misbehave(shape, number, host, credentials, address, seen)
        except OSError:
            pass
        seen["ended"] += 1
        await asyncio.sleep(RECONNECT_S)


async def misbehave(shape, number, host, credentials, address, seen):
    loop = asyncio.get_running_loop()
    with socket.socket() as peer:
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.bind((address, 0))
        name, port = host.rsplit(":", 1)
        await loop.sock_connect(peer, (name, int(port)))
        if shape.kind == "idle":
            await loop.sock_recv(peer, 1)
            return
        await loop.sock_sendall(peer, head_of(shape, number, host, credentials))
        body = piece_of(shape.first)
        await loop.sock_sendall(peer, body)
        seen["sent"] += len(body)
        answered = asyncio.create_task(loop.sock_recv(peer, 1))
        piece = piece_of(max(1, round(shape.rate * shape.interval_s())))
        try:
            while not answered.done():
                await asyncio.wait([answered], timeout=shape.interval_s())
                if not answered.done():
                    await loop.sock_sendall(peer, piece)
                    seen["sent"] += len(piece)
        finally:
            answered.cancel()


@functools.cache
def piece_of(length):
    return b"x" * length


def head_of(shape, number, host, credentials):
    """Returns what a peer sends before its first bytes: a request without its body, or the beginning of a head."""
    if shape.kind == "head":
        return f"GET /{BUCKET}/x HTTP/1.1\r\nhost: {host}\r\nx-slow: ".encode()
    if shape.kind == "form":
        lines = [f"POST /{BUCKET} HTTP/1.1", f"host: {host}", "content-type: multipart/form-data; boundary=b", f"content-length: {LARGE}"]
        return "\r\n".join(lines).encode() + b"\r\n\r\n--b\r\ncontent-disposition: form-data; name=\"key\"\r\n\r\n"
    opening = opening_of(LARGE) if shape.kind == "batch" else b""
    if shape.kind == "batch":
        request = sigv4.Request("POST", f"/{BUCKET}", [("batch", "put")], {}, b"")
    else:
        request = sigv4.Request("PUT", f"/{BUCKET}/never-{number}", [], {}, b"")
    if shape.kind == "put" and number % 2:
        target, headers = sigv4.presign(request, credentials, host, expires_s=EXPIRES_S), {"host": host}
    else:
        sigv4.sign_headers(request, credentials, host, payload_hash=sigv4.UNSIGNED)
        target, headers = request.target(), request.headers
    lines = [f"{request.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()),
             f"content-length: {LARGE + len(opening)}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + opening


def opening_of(length):
    """Returns the opening frame of a batch put of one object, and the fields of the object's first frame."""
    document = json.dumps({"items": [{"key": "never", "content_length": length}]}).encode()

    def frame(item, flags, head, body_len):
        fields = b"STR1" + struct.pack(">IHBBII", item, 0, flags, 0, len(head), body_len)
        return fields + struct.pack(">I", zlib.crc32(fields + head)) + head
    return frame(1, 8, document, 0) + frame(0, 1, b"", 64 << 20)


# The honest client.

def honest(server, seconds):
    """Sends requests at a fixed rate. Returns the times from when each was due, and the failures."""
    return send_at_fixed_rate(server, seconds, request, PER_S, THREADS)


def request(client, number):
    """Sends one honest request. Returns its error, or None."""
    size = SIZES[number // 2 % len(SIZES)]
    try:
        if number % 2:
            client.put(BUCKET, f"honest-{number % 40}", contents(size, size))
        elif client.get(BUCKET, f"of-{size}") != contents(size, size):
            return "wrong bytes"
    except Exception as error:  # whatever a user would see
        return f"{size} B {'PUT' if number % 2 else 'GET'}: {error!r}"[:200]
    return None


def prepare(server):
    client = server.client()
    client.make_bucket(BUCKET)
    for size in SIZES:
        client.put(BUCKET, f"of-{size}", contents(size, size))
    honest(server, SETTLE_S)


# Claims.

@dataclass
class Seen:
    """What was seen of the server and of the honest client."""

    times: list
    failures: list
    memory: int
    bodies: float
    hostile: dict
    counters: dict

    def p99_s(self):
        return statistics.quantiles(self.times, n=100)[98]


def beside(server, shape, addresses, seconds):
    """Runs the honest client beside an attack."""
    most = {"memory": 0, "bodies": 0.0}
    done = threading.Event()

    def watch():
        while not done.wait(0.5):
            most["memory"] = max(most["memory"], resident_bytes(server.process.pid))
            try:
                taken = metrics(server, ("striate_body_memory_bytes",))
            except OSError:
                continue
            most["bodies"] = max(most["bodies"], sum(value for name, value in taken.items() if "taken" in name))

    watcher = threading.Thread(target=watch)
    with attack(server, shape, addresses) as hostile_ones:
        watcher.start()
        time.sleep(SETTLE_S + shape.count / 4_000)
        times, failures = honest(server, seconds)
        counters = metrics(server, ("striate_s3_cut_total", "striate_s3_refused", "striate_body_memory"))
        done.set()
        watcher.join()
    return Seen(times, failures, most["memory"], most["bodies"], hostile_ones, counters)


class Calm:
    """The honest client beside idle connections, measured once for each number of them."""

    def __init__(self, server, seconds):
        self.server, self.seconds, self.seen = server, seconds, {}

    def beside(self, count):
        if count not in self.seen:
            self.seen[count] = beside(self.server, Shape("idle", count, 0, 0), MANY, self.seconds)
        return self.seen[count]


def prove_shape(ledger, server, calm, shape, name, addresses, seconds):
    """Adds the claim about one attack. Returns whether it holds."""
    usual, seen = calm.beside(shape.count), beside(server, shape, addresses, seconds)
    ratio = seen.p99_s() / usual.p99_s()
    added = seen.memory - usual.memory
    holds = ratio <= MOST and not seen.failures and not usual.failures and added <= BOUND and seen.bodies <= BODY_MEMORY
    ledger.record(f"{shape}, {name}", {
        "calm_s": sorted(usual.times), "beside_s": sorted(seen.times), "failures": seen.failures, "hostile": seen.hostile,
        "metrics": seen.counters, "memory": seen.memory, "memory_beside_idle": usual.memory, "bodies": seen.bodies})
    fault = f" ({shape.fault})" if shape.fault else ""
    ledger.add(
        f"{shape}, from {name}: nobody else sees an error, p99 at most {MOST:g} times that beside as many idle connections, memory "
        f"within its bound{fault}",
        f"{seen.p99_s() * 1000:.0f} ms and {usual.p99_s() * 1000:.0f} ms: {ratio:.2f}; {len(seen.times)} requests, "
        f"{len(seen.failures)} failed{first_of(seen.failures)}; bodies {seen.bodies / (1 << 20):.0f} MiB, "
        f"{added / (1 << 20):+.0f} MiB resident", holds, f"≤ {MOST:g}, none fails, ≤ {BODY_MEMORY >> 20} MiB, ≤ +{BOUND >> 20} MiB",
        f"median {statistics.median(seen.times) * 1000:.0f} and {statistics.median(usual.times) * 1000:.0f} ms; "
        f"{seen.hostile.get('connections', 0)} hostile connections, cut: {told(seen.counters, 'striate_s3_cut_total')}")
    return holds


def prove_uploads(ledger, folder, full, shapes=tuple(SHAPES), seconds=None):
    """Adds the claims about slow uploads, forms and heads to `ledger`."""
    raise_descriptors()
    seconds = seconds or (FULL_S if full else SHORT_S)
    with Striate(Path(folder)) as server:
        prepare(server)
        calm = Calm(server, seconds)
        for shape in shapes:
            for name, addresses in ALL.items():
                prove_shape(ledger, server, calm, shape, name, addresses, seconds)


def main():
    parser = argparse.ArgumentParser(description="The attacks alone, on a server of their own.")
    parser.add_argument("--seconds", type=float, default=SHORT_S, help=f"how long each lasts; {FULL_S} is the full form")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the shapes, from 0")
    parser.add_argument("--sweep", type=int, default=0, help="draw so many shapes instead")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    ledger = Ledger("mend-uploads", arguments.seconds >= FULL_S)
    draw = random.Random(arguments.seed)
    shapes = [SHAPES[number] for number in arguments.only] if arguments.only else SHAPES
    if arguments.sweep:
        shapes = [replace(drawn(draw), fault="") for _ in range(arguments.sweep)]
    with tempfile.TemporaryDirectory(prefix="striate-uploads-") as folder:
        ledger.section("Slow uploads, forms and heads")
        prove_uploads(ledger, folder, False, shapes, arguments.seconds)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
