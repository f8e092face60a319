"""Slow and hostile peers, and what an honest client notices of them.

There are four kinds of peers, `PEERS` of each at once: GETs whose receiver takes a byte every five seconds, PUTs whose sender sends
one, batch reads, and connections that stop within the head. Every other GET and PUT uses a presigned link. Half of the receivers have
buffers of some MiB, so that they seem quick at first; the others have a few KiB. A peer that is cut reconnects a second later. The
peers use the honest client's own key, first from two hundred addresses of 127.0.0.0/8, then from one.

The honest client works at a fixed rate, and its times count from when a request was due, so that a stall counts for its whole length.
Beside it, one client receives 16 KiB a second and one sends as much: both must finish.

`python3 -m proving.peers`, in `prove/`, runs the attack alone.
"""

import argparse
import asyncio
import functools
import json
import multiprocessing
import queue
import random
import socket
import statistics
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from . import sigv4
from .claims import Ledger
from .s3 import Client
from .servers import Striate

BUCKET = "peers"
PEERS = 200
KINDS = ["get", "put", "batch", "head"]
EVERY_S = 5  # seconds between two bytes
FULL_S, SHORT_S = 120, 25
SETTLE_S = 5
MOST = 2.0  # times the undisturbed p99
LARGE, LARGE_HONEST = 16 << 20, 4 << 20
# Receive buffer of a peer that seems quick at first; the kernel doubles it. All peers are on this machine: with 4 MiB each they would
# take a gigabyte of its net.ipv4.tcp_mem, and the kernel would then drop everyone's packets, the honest client's too.
LARGE_BUFFER = 1 << 20
SMALL_COUNT, SMALL = 40, 256 << 10
STEADY_RATE = 16 << 10
HONEST_THREADS, HONEST_PER_S = 12, 20
EXPIRES_S = 3600


@functools.cache
def contents(number, length):
    return random.Random(number).randbytes(length)


# Hostile peers.

class Attack:
    """The peers of all kinds, in a separate process."""

    def __init__(self, server, addresses, kinds=None, peers=PEERS):
        self.arguments = (server.endpoint, server.credentials, addresses, kinds or KINDS, peers)

    def __enter__(self):
        context = multiprocessing.get_context("spawn")
        self.counts, self.stop = context.Queue(), context.Event()
        self.process = context.Process(target=attack, args=(*self.arguments, self.stop, self.counts))
        self.process.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        try:
            self.seen = self.counts.get(timeout=30)
        except queue.Empty:
            self.seen = {}
        self.process.join(30)
        if self.process.is_alive():
            self.process.kill()


def attack(endpoint, credentials, addresses, kinds, peers, stop, counts):
    counts.put(asyncio.run(attack_all(endpoint, credentials, addresses, kinds, peers, stop)))


async def attack_all(endpoint, credentials, addresses, kinds, peers, stop):
    host = endpoint.removeprefix("http://")
    seen = {kind: {"connections": 0, "ended": 0, "refused": 0} for kind in kinds}
    tasks = [asyncio.create_task(hostile(kind, number, host, credentials, addresses[number % len(addresses)], seen[kind]))
             for number in range(peers) for kind in kinds]
    await asyncio.get_running_loop().run_in_executor(None, stop.wait)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return seen


async def hostile(kind, number, host, credentials, address, seen):
    """Runs one peer, which reconnects whenever it is cut."""
    while True:
        try:
            seen["connections"] += 1
            await misbehave(kind, number, host, credentials, address, seen)
        except OSError:
            pass
        seen["ended"] += 1
        await asyncio.sleep(1)


async def misbehave(kind, number, host, credentials, address, seen):
    loop = asyncio.get_running_loop()
    with socket.socket() as peer:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096 if number % 4 < 2 else LARGE_BUFFER)
        peer.setblocking(False)
        peer.bind((address, 0))
        name, port = host.rsplit(":", 1)
        await loop.sock_connect(peer, (name, int(port)))
        await loop.sock_sendall(peer, head(kind, number, host, credentials))
        while True:
            if kind in ("put", "head"):
                await asyncio.sleep(EVERY_S)
                await loop.sock_sendall(peer, b"x")
                continue
            byte = await loop.sock_recv(peer, 12)
            if byte.startswith(b"HTTP/1.1 503"):
                seen["refused"] += 1
            if not byte:
                return
            while byte:
                await asyncio.sleep(EVERY_S)
                byte = await loop.sock_recv(peer, 1)
            return


def head(kind, number, host, credentials):
    """Returns what a peer sends first: a request without a PUT's body, or a part of a head."""
    if kind == "head":
        return f"GET /{BUCKET}/large HTTP/1.1\r\nhost: {host}\r\nx-slow: ".encode()
    body, query = b"", []
    if kind == "batch":
        body = json.dumps({"items": [{"key": f"small-{item % SMALL_COUNT}"} for item in range(1000)]}).encode()
        request = sigv4.Request("POST", f"/{BUCKET}", [("batch", "")], {}, body)
    elif kind == "get":
        request = sigv4.Request("GET", f"/{BUCKET}/large", query, {}, b"")
    else:
        request = sigv4.Request("PUT", f"/{BUCKET}/never-{number}", query, {}, b"")
    length = LARGE if kind == "put" else len(body)
    if kind != "batch" and number % 2:
        target, headers = sigv4.presign(request, credentials, host, expires_s=EXPIRES_S), {"host": host}
    else:
        sigv4.sign_headers(request, credentials, host, payload_hash=None if body else sigv4.UNSIGNED)
        target, headers = request.target(), request.headers
    lines = [f"{request.method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    if length:
        lines.append(f"content-length: {length}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


# Honest clients.

def honest(server, seconds):
    """Sends requests at a fixed rate, half of them reads. Returns the times from when each was due, and the failures."""
    return send_at_fixed_rate(server, seconds, request, HONEST_PER_S, HONEST_THREADS)


def send_at_fixed_rate(server, seconds, send, per_s, thread_count):
    """Calls `send` with a client and a number at a fixed rate; it returns an error or None. Returns the times from when each call was
    due, and the errors."""
    due = queue.Queue()
    times, failures, lock = [], [], threading.Lock()
    began = time.monotonic()
    for number in range(int(seconds * per_s)):
        due.put((number, began + number / per_s))

    def work():
        client = Client(server.endpoint, server.credentials, timeout_s=60)
        while True:
            try:
                number, at = due.get_nowait()
            except queue.Empty:
                return client.close()
            time.sleep(max(0.0, at - time.monotonic()))
            error = send(client, number)
            with lock:
                times.append(time.monotonic() - at)
                if error:
                    failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(thread_count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return times, failures


def request(client, number):
    """Sends one honest request. Returns its error, or None."""
    small = number % SMALL_COUNT
    try:
        match number % 4:
            case 0:
                client.put(BUCKET, f"honest-{small}", contents(small, SMALL))
            case 1:
                if client.get(BUCKET, "large-honest") != contents(99, LARGE_HONEST):
                    return "wrong bytes"
            case 2:
                client.list_page(BUCKET, max_keys=10)
            case 3:
                if client.get(BUCKET, f"small-{small}") != contents(small, SMALL):
                    return "wrong bytes"
    except Exception as error:  # whatever a user would see
        return repr(error)[:200]
    return None


def steady_length(seconds):
    return int(STEADY_RATE * seconds)


def steady(server, seconds, results):
    """Starts a client that receives 16 KiB a second and one that sends as much, for `seconds`. They store outcomes in `results`."""
    length = steady_length(seconds)
    body = contents(7, length)

    def take():
        host = server.endpoint.removeprefix("http://")
        name, port = host.rsplit(":", 1)
        wanted = sigv4.Request("GET", f"/{BUCKET}/steady")
        target = sigv4.presign(wanted, server.credentials, host, expires_s=EXPIRES_S)
        with socket.socket() as peer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)
            peer.connect((name, int(port)))
            peer.sendall(f"GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
            answer = b""
            while not (end := answer.find(b"\r\n\r\n") + 1) or len(answer) < end + 3 + length:
                piece = peer.recv(STEADY_RATE)
                if not piece:
                    break
                answer += piece
                time.sleep(len(piece) / STEADY_RATE)
        return answer.partition(b"\r\n\r\n")[2] == body

    def send():
        class Slow:
            at = 0

            def read(self, _):
                piece = body[self.at:self.at + STEADY_RATE]
                self.at += len(piece)
                time.sleep(len(piece) / STEADY_RATE)
                return piece

        client = Client(server.endpoint, server.credentials, timeout_s=seconds + 60)
        request = sigv4.Request("PUT", f"/{BUCKET}/steadily", [], {}, b"")
        sigv4.sign_headers(request, server.credentials, client.host, payload_hash=sigv4.UNSIGNED)
        headers = {**request.headers, "content-length": str(length)}
        answer = client.send_raw("PUT", request.target(), headers, Slow())
        return answer.status == 200 and client.get(BUCKET, "steadily") == body

    def run(name, work):
        try:
            results[name] = work()
        except Exception as error:  # a claim fails, not the run
            results[name] = repr(error)[:200]

    threads = [threading.Thread(target=run, args=pair) for pair in (("takes", take), ("sends", send))]
    for thread in threads:
        thread.start()
    return threads


# Claims.

def p99(times):
    return statistics.quantiles(times, n=100)[98]


def metrics(server, prefixes):
    """Returns the server's counters whose names begin with one of `prefixes`."""
    with urllib.request.urlopen(f"{server.console}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith(prefixes))
    return {name: float(value) for name, value in pairs}


def prepare(server):
    client = server.client()
    client.make_bucket(BUCKET)
    client.put(BUCKET, "large", contents(1, LARGE))
    client.put(BUCKET, "large-honest", contents(99, LARGE_HONEST))
    for number in range(SMALL_COUNT):
        client.put(BUCKET, f"small-{number}", contents(number, SMALL))
    honest(server, SETTLE_S)


def prove_peers(ledger, server, seconds=SHORT_S, peers=PEERS):
    """Adds the claims about slow and hostile peers of a running server to `ledger`."""
    prepare(server)
    server.client().put(BUCKET, "steady", contents(7, steady_length(seconds)))
    many = [f"127.1.0.{number + 1}" for number in range(200)]
    for name, addresses in (("200 addresses", many), ("one address", ["127.2.0.1"])):
        calm, calm_failures = honest(server, seconds / 2)
        results = {}
        with Attack(server, addresses, peers=peers) as hostile_ones:
            time.sleep(SETTLE_S)
            threads = steady(server, seconds, results)
            times, failures = honest(server, seconds)
            for thread in threads:
                thread.join()
            pressure = metrics(server, ("striate_s3_cut_total", "striate_s3_refused", "striate_body_memory",
                                        "striate_s3_connections"))
        after, after_failures = honest(server, seconds / 2)
        calm, calm_failures = calm + after, calm_failures + after_failures
        ratio = p99(times) / p99(calm)
        ledger.record(f"peers, {name}", {
            "calm_s": sorted(calm), "beside_s": sorted(times), "failures": failures, "steady": results,
            "hostile": hostile_ones.seen, "metrics": pressure, "peak_bytes": server.peak_memory_bytes()})
        ledger.add(
            f"{peers} slow GETs, PUTs and batch reads each, and {peers} heads that stop, from {name}: "
            f"everyone else's p99 is at most {MOST:g} times the undisturbed one",
            f"{p99(times) * 1000:.0f} ms beside them, {p99(calm) * 1000:.0f} ms without: {ratio:.2f}; "
            f"{len(times)} requests, {len(failures)} failed{first_of(failures)}",
            ratio <= MOST and not failures and not calm_failures, f"≤ {MOST:g}, none fails",
            f"median {statistics.median(times) * 1000:.0f} and {statistics.median(calm) * 1000:.0f} ms")
        ledger.add(
            f"clients that move 16 KiB a second for {seconds:.0f} s beside those of {name} finish",
            ", ".join(f"one {verb}: {outcome}" for verb, outcome in sorted(results.items())),
            len(results) == 2 and all(outcome is True for outcome in results.values()), "both")
        connections = sum(kind["connections"] for kind in hostile_ones.seen.values())
        ledger.add(f"what becomes of the slow ones from {name}",
                   f"{connections} connections of {peers * len(KINDS)} peers; "
                   f"cut: {told(pressure, 'striate_s3_cut_total')}; memory taken back "
                   f"{pressure.get('striate_body_memory_released_total', 0):.0f} times; "
                   f"peak {server.peak_memory_bytes() / (1 << 20):.0f} MiB")


def first_of(failures):
    return f", the first with {failures[0]}" if failures else ""


def told(counters, name):
    found = {key[len(name):].strip("{}"): value for key, value in counters.items() if key.startswith(name)}
    return ", ".join(f"{reason} {value:.0f}" for reason, value in sorted(found.items())) or "none"


def main():
    parser = argparse.ArgumentParser(description="The attack alone, on a server of its own.")
    parser.add_argument("--seconds", type=float, default=SHORT_S, help=f"how long each lasts; {FULL_S} is the full form")
    parser.add_argument("--peers", type=int, default=PEERS)
    arguments = parser.parse_args()
    ledger = Ledger("peers", arguments.seconds >= FULL_S)
    with tempfile.TemporaryDirectory(prefix="striate-peers-") as folder, Striate(Path(folder)) as server:
        ledger.section("Slow and hostile peers")
        prove_peers(ledger, server, arguments.seconds, arguments.peers)
    return ledger.finish()


if __name__ == "__main__":
    sys.exit(main())
