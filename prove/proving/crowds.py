"""Crowds: very many connections to a port that do nothing useful, from one address or from many.

Each member of a crowd connects, does what its kind does, and connects again a second after it was closed. There are five kinds:

    idle       connects and says nothing
    handshake  sends the first bytes of a TLS handshake and nothing more
    head       sends the first half of a request's head
    body       sends the head of a POST, and nothing of its body
    pipeline   sends the same GET again and again, and never reads an answer
"""

import asyncio
import multiprocessing
import queue
import resource
import socket

MANY = [f"127.3.{number // 100}.{number % 100 + 1}" for number in range(200)]
# The same address from which the probes and the honest client come: the worst case, as behind a load balancer.
ONE = ["127.0.0.1"]
ADDRESSES = {"one address": ONE, "200 addresses": MANY}
AGAIN_S = 1.0
FIRST_BYTES_OF_TLS = bytes([22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3])


class Crowd:
    """`count` connections of a kind to a port on 127.0.0.1, in a separate process, as long as the context lasts."""

    def __init__(self, port, kind, count, addresses, path="/"):
        self.arguments = (port, kind, count, addresses, path)

    def __enter__(self):
        context = multiprocessing.get_context("spawn")
        self.counts, self.stop, self.ready = context.Queue(), context.Event(), context.Event()
        self.process = context.Process(target=gather, args=(*self.arguments, self.stop, self.ready, self.counts))
        self.process.start()
        # Everyone has tried once; on an overloaded server some may still be waiting, which is as bad.
        self.ready.wait(20)
        return self

    def __exit__(self, *_):
        self.stop.set()
        try:
            self.connections = self.counts.get(timeout=30)
        except queue.Empty:
            self.connections = 0
        self.process.join(30)
        if self.process.is_alive():
            self.process.kill()


def gather(port, kind, count, addresses, path, stop, ready, counts):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    counts.put(asyncio.run(gather_all(port, kind, count, addresses, path, stop, ready)))


async def gather_all(port, kind, count, addresses, path, stop, ready):
    seen = {"connections": 0, "begun": 0}
    tasks = [asyncio.create_task(member(port, kind, addresses[number % len(addresses)], path, seen)) for number in range(count)]
    while seen["begun"] < count and not stop.is_set():
        await asyncio.sleep(0.05)
    ready.set()
    await asyncio.get_running_loop().run_in_executor(None, stop.wait)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return seen["connections"]


async def member(port, kind, address, path, seen):
    is_first = True
    while True:
        try:
            with socket.socket() as peer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                peer.setblocking(False)
                peer.bind((address, 0))
                try:
                    async with asyncio.timeout(5):
                        await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", port))
                finally:
                    seen["begun"] += is_first
                    is_first = False
                seen["connections"] += 1
                await misbehave(peer, kind, path)
        except (OSError, TimeoutError):
            pass
        await asyncio.sleep(AGAIN_S)


async def misbehave(peer, kind, path):
    loop = asyncio.get_running_loop()
    request = f"GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode()
    if kind == "pipeline":
        while True:
            await loop.sock_sendall(peer, request * 50)
    post = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 100\r\n\r\n".encode()
    first = {"idle": b"", "handshake": FIRST_BYTES_OF_TLS, "head": request[:-10], "body": post}[kind]
    await loop.sock_sendall(peer, first)
    # Ends when the server closes the connection.
    while await loop.sock_recv(peer, 4096):
        pass
