"""Plain connections for batches: bytes go from the caller's memory and come into it, without a copy in between.

`aiohttp` hands on what a connection delivers in buffers of its own, and gathers what it sends. Here a socket receives into the
caller's view and sends from it; both leave Python's lock to other threads. Each request has a connection to itself, kept
for the next one.
"""

from __future__ import annotations

import hashlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Callable, Optional, TypeVar, Union
from urllib.parse import urlsplit

from .errors import ProtocolError
from .settings import Resolved, Settings
from .signing import UNSIGNED, Query, Signer, encode_path, encode_query

T = TypeVar("T")
R = TypeVar("R")

# Whatever a connection that breaks raises.
BROKEN = (OSError, http.client.HTTPException, ProtocolError)
# Pieces, and the bytes of a piece, from which on they are sent.
MOST_PIECES, LARGE_BYTES = 64, 64 << 10


class Reply:
    """An answer whose body is taken piece by piece."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.status = response.status
        self.content_type = (response.headers.get("content-type") or "").partition(";")[0].strip()
        # `http.client` spends more on a chunk than on its bytes: bodies in chunks are taken from its file.
        self._file = response.fp if response.chunked else None
        self._left_of_chunk = 0
        self._is_first_chunk = True

    def read(self) -> bytes:
        """What is left of it."""
        if self._file is None:
            return self._response.read()
        pieces = []
        while self._left_of_chunk or self._next_chunk():
            piece = bytearray(self._left_of_chunk)
            self.fill(piece)
            pieces.append(piece)
        return b"".join(pieces)

    def fill(self, buffer: Union[bytearray, memoryview]) -> None:
        """Receives as many bytes as the buffer has; raises when the answer ends before."""
        view, file = memoryview(buffer), self._file
        while view:
            if file is None:
                received = self._response.readinto(view)
            elif self._left_of_chunk or self._next_chunk():
                received = file.readinto(view if len(view) <= self._left_of_chunk else view[:self._left_of_chunk])
                self._left_of_chunk -= received
            else:
                received = 0
            if not received:
                raise ProtocolError("the answer ended before its end frame")
            view = view[received:]

    def _next_chunk(self) -> bool:
        """Reads the line before a chunk; False when it is the last one, which is empty."""
        assert self._file is not None
        if self._file.closed:
            return False
        end = b"" if self._is_first_chunk else self._file.readline(3)
        line = self._file.readline(100)
        self._is_first_chunk = False
        try:
            if end not in (b"", b"\r\n"):
                raise ValueError
            self._left_of_chunk = int(line.partition(b";")[0], 16)
        except ValueError as error:
            raise ProtocolError("the answer broke off, or its chunks are not well-formed") from error
        if self._left_of_chunk:
            return True
        while self._file.readline(1000) not in (b"\r\n", b"\n", b""):
            pass  # trailers
        self._response.close()
        return False


class Lanes:
    """Connections to one endpoint, and threads to use several at a time."""

    def __init__(self, settings: Settings, resolved: Resolved, signer: Signer, tls: Optional[ssl.SSLContext]) -> None:
        self._settings, self._resolved, self._signer, self._tls = settings, resolved, signer, tls
        parts = urlsplit(resolved.endpoint)
        self._address = (parts.hostname or "", parts.port or (443 if tls else 80))
        self._lock = threading.Lock()
        self._idle: list[http.client.HTTPConnection] = []
        self._threads: Optional[ThreadPoolExecutor] = None

    @contextmanager
    def post(
        self, bucket: str, query: Query, content_type: str, length: int, body: Callable[[], Iterable[memoryview]],
        hashed: Optional[bytes] = None,
    ) -> Iterator[Reply]:
        """One request that may be sent twice: on a kept connection, and on a new one where the server had closed that.
        `body` gives what is sent; `hashed` is the same in one piece where it is signed."""
        head = self._head(bucket, query, content_type, length, hashed)
        for connection in self._connections():
            is_kept = connection.sock is not None
            try:
                response = self._ask(connection, head, body())
            except BROKEN:
                connection.close()
                if is_kept:
                    continue
                raise
            break
        is_whole = False
        try:
            reply = Reply(response)
            yield reply
            is_whole = not reply.read()
        finally:
            self._keep(connection, is_whole and not response.will_close)

    def each(self, parts: list[T], work: Callable[[T], R]) -> list[R]:
        """Does the work for all parts at the same time, the last one in this thread."""
        with self._lock:
            if self._threads is None and len(parts) > 1:
                self._threads = ThreadPoolExecutor(self._settings.connections, "striate-lane")
            threads = self._threads
        if threads is None or len(parts) < 2:
            return [work(part) for part in parts]
        begun = [threads.submit(work, part) for part in parts[:-1]]
        try:
            last = work(parts[-1])
        finally:
            # Views of the caller's must not be written to after the call.
            for other in begun:
                other.exception()
        return [*(other.result() for other in begun), last]

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
            threads, self._threads = self._threads, None
        for connection in idle:
            connection.close()
        if threads is not None:
            threads.shutdown(wait=False)

    def _ask(
        self, connection: http.client.HTTPConnection, head: tuple[str, Mapping[str, str]], body: Iterable[memoryview]
    ) -> http.client.HTTPResponse:
        target, headers = head
        is_new = connection.sock is None
        if is_new:
            connection.connect()
        sock: socket.socket = connection.sock
        if is_new:
            sock.settimeout(self._settings.read_timeout_s)
        lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        pieces = [memoryview("\r\n".join(lines).encode())]
        refused: Optional[OSError] = None
        try:
            for piece in body:
                pieces.append(piece)
                if len(piece) > LARGE_BYTES or len(pieces) >= MOST_PIECES:
                    _send(sock, pieces)
                    pieces = []
            _send(sock, pieces)
        except (BrokenPipeError, ConnectionResetError) as error:
            refused = error  # perhaps the server has said why
        response = http.client.HTTPResponse(sock, method="POST")
        try:
            response.begin()
        except BROKEN as error:
            raise refused or error
        return response

    def _connections(self) -> Iterator[http.client.HTTPConnection]:
        """A kept one if there is one, then new ones."""
        with self._lock:
            kept = self._idle.pop() if self._idle else None
        if kept is not None:
            yield kept
        yield self._open()

    def _open(self) -> http.client.HTTPConnection:
        host, port = self._address
        timeout = self._settings.connect_timeout_s
        if self._tls is not None:
            return http.client.HTTPSConnection(host, port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(host, port, timeout=timeout)

    def _keep(self, connection: http.client.HTTPConnection, is_good: bool) -> None:
        if not is_good:
            connection.close()
            return
        with self._lock:
            self._idle.append(connection)

    def after_fork(self) -> None:
        """A parent's connections and threads are not this process's, and its lock may be taken for good."""
        self._lock, self._idle, self._threads = threading.Lock(), [], None

    def _head(
        self, bucket: str, query: Query, content_type: str, length: int, hashed: Optional[bytes]
    ) -> tuple[str, Mapping[str, str]]:
        path, text = encode_path("/" + bucket), encode_query(query)
        headers = {"host": self._resolved.host, "content-type": content_type}
        keys = self._resolved.keys.keys_now()
        if keys is not None:
            digest = UNSIGNED if hashed is None else hashlib.sha256(hashed).hexdigest()
            self._signer.sign(keys, "POST", path, text, headers, digest)
        headers |= {"content-length": str(length), "user-agent": "striate-python"}
        return f"{path}?{text}", headers


def _send(sock: socket.socket, pieces: list[memoryview]) -> None:
    if isinstance(sock, ssl.SSLSocket) or not hasattr(sock, "sendmsg"):
        for piece in pieces:
            sock.sendall(piece)
        return
    while pieces:
        sent = sock.sendmsg(pieces)
        while pieces and sent >= len(pieces[0]):
            sent -= len(pieces.pop(0))
        if sent:
            pieces[0] = pieces[0][sent:]
