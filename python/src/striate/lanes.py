"""Plain connections for batches, which send from and receive into the caller's memory without a copy.

`aiohttp` delivers received bytes in its own buffers, and gathers what it sends; `http.client` receives into the caller's view,
but spends more time on an answer's headers, and on each chunk, than on their bytes. Here a socket receives into the view and
sends from it; both release Python's lock. Each request has its own connection, kept for the next one. This module implements
only the part of HTTP/1.1 that a batch needs.
"""

from __future__ import annotations

import hashlib
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Callable, Optional, TypeVar, Union
from urllib.parse import urlsplit

from .errors import TIMED_OUT, ProtocolError
from .settings import Resolved, Settings
from .signing import UNSIGNED, Query, Signer, encode_path, encode_query

T = TypeVar("T")
R = TypeVar("R")

# Errors of a broken connection.
BROKEN = (OSError, ProtocolError)
# Collected pieces are sent at this number of pieces, or after a piece larger than this.
MOST_PIECES, LARGE_BYTES = 64, 64 << 10
MOST_HEADERS, MOST_LINE_BYTES = 200, 64 << 10


class Connection:
    """A socket, and the file for reading it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.file = sock.makefile("rb")

    def line(self) -> bytes:
        """Reads the next line of a head, without its line end."""
        line = self.file.readline(MOST_LINE_BYTES)
        if not line.endswith(b"\n"):
            raise ProtocolError("the connection ended, or a line of the answer's head has no end")
        return line.rstrip(b"\r\n")

    def close(self) -> None:
        self.file.close()
        self.sock.close()


class Reply:
    """An answer whose body is read piece by piece."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.status, headers = _head_of(connection)
        while 100 <= self.status < 200:
            self.status, headers = _head_of(connection)
        self.content_type = headers.get(b"content-type", b"").partition(b";")[0].strip().decode("latin-1")
        self.keeps = headers.get(b"connection", b"").lower() != b"close"
        self._is_chunked = headers.get(b"transfer-encoding", b"").lower() == b"chunked"
        self._left: Optional[int] = 0  # bytes left of the body or the current chunk; None: until the connection ends
        self._has_ended = not self._is_chunked
        self._is_first_chunk = True
        if not self._is_chunked:
            length = headers.get(b"content-length")
            self._left = _number(length, 10) if length is not None else None
            self.keeps = self.keeps and length is not None

    def read(self) -> bytes:
        """Reads the rest of the body."""
        pieces = []
        while self._is_there():
            if self._left is None:
                pieces.append(self._connection.file.read())
                self._left = 0
            else:
                piece = bytearray(self._left)
                self.fill(piece)
                pieces.append(bytes(piece))
        return b"".join(pieces)

    def fill(self, buffer: Union[bytearray, memoryview]) -> None:
        """Fills the buffer; raises `ProtocolError` if the answer ends first."""
        view = memoryview(buffer)
        while view:
            part = view if not self._is_there() or self._left is None else view[:self._left]
            received = self._connection.file.readinto(part) if self._is_there() else 0
            if not received:
                raise ProtocolError("the answer ended before its end frame")
            if self._left is not None:
                self._left -= received
            view = view[received:]

    def _is_there(self) -> bool:
        """Returns whether more of the body follows."""
        return self._left != 0 or (not self._has_ended and self._next_chunk())

    def _next_chunk(self) -> bool:
        """Reads the line before a chunk; returns False for the last chunk, which is empty."""
        if not self._is_first_chunk and self._connection.line():
            raise ProtocolError("a chunk of the answer is longer than was said")
        self._is_first_chunk = False
        self._left = _number(self._connection.line().partition(b";")[0], 16)
        if self._left:
            return True
        self._has_ended = True
        while self._connection.line():
            pass  # trailers
        return False


class Lanes:
    """Connections to one endpoint, and threads that use several at a time."""

    def __init__(self, settings: Settings, resolved: Resolved, signer: Signer, tls: Optional[ssl.SSLContext]) -> None:
        self._settings, self._resolved, self._signer, self._tls = settings, resolved, signer, tls
        parts = urlsplit(resolved.endpoint)
        self._address = (parts.hostname or "", parts.port or (443 if tls else 80))
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._threads: Optional[ThreadPoolExecutor] = None

    @contextmanager
    def post(
        self, bucket: str, query: Query, content_type: str, length: int, body: Callable[[], Iterable[memoryview]],
        hashed: Optional[bytes] = None,
    ) -> Iterator[Reply]:
        """Sends a request on a kept connection or, if that one turns out to be broken, again on a new one.

        `body` yields the bytes to send; `hashed` has the same bytes in one piece if the body is to be signed.
        """
        head = self._head(bucket, query, content_type, length, hashed)
        connection = self._kept()
        is_kept = connection is not None
        while True:
            connection = connection or self._open()
            try:
                reply = _ask(connection, head, body())
                break
            except BROKEN as error:
                connection.close()
                # A server that does not answer in time would not on a new connection.
                if not is_kept or isinstance(error, TIMED_OUT):
                    raise
                connection, is_kept = None, False
        is_whole = False
        try:
            yield reply
            is_whole = not reply.read()
        finally:
            if is_whole and reply.keeps:
                with self._lock:
                    self._idle.append(connection)
            else:
                connection.close()

    def each(self, parts: list[T], work: Callable[[T], R]) -> list[R]:
        """Runs the work for all parts concurrently, the last one in this thread."""
        if len(parts) < 2:
            return [work(part) for part in parts]
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._settings.connections, "striate-lane")
            begun = [self._threads.submit(work, part) for part in parts[:-1]]
        try:
            last = work(parts[-1])
        finally:
            # The caller's views must not be written to after the call.
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

    def after_fork(self) -> None:
        """Forgets the parent's connections and threads, and its lock, which may never be released here."""
        self._lock, self._idle, self._threads = threading.Lock(), [], None

    def _kept(self) -> Optional[Connection]:
        with self._lock:
            return self._idle.pop() if self._idle else None

    def _open(self) -> Connection:
        sock = socket.create_connection(self._address, self._settings.connect_timeout_s)
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_hostname=self._address[0])
            sock.settimeout(self._settings.read_timeout_s)
        except BaseException:
            sock.close()
            raise
        return Connection(sock)

    def _head(self, bucket: str, query: Query, content_type: str, length: int, hashed: Optional[bytes]) -> memoryview:
        path, text = encode_path("/" + bucket), encode_query(query)
        headers = {"host": self._resolved.host, "content-type": content_type}
        keys = self._resolved.keys.keys_now()
        if keys is not None:
            digest = UNSIGNED if hashed is None else hashlib.sha256(hashed).hexdigest()
            self._signer.sign(keys, "POST", path, text, headers, digest)
        headers |= {"content-length": str(length), "user-agent": "striate-python"}
        lines = [f"POST {path}?{text} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        return memoryview("\r\n".join(lines).encode())


def _ask(connection: Connection, head: memoryview, body: Iterable[memoryview]) -> Reply:
    pieces = [head]
    refused: Optional[OSError] = None
    try:
        for piece in body:
            pieces.append(piece)
            if len(piece) > LARGE_BYTES or len(pieces) >= MOST_PIECES:
                _send(connection.sock, pieces)
                pieces = []
        _send(connection.sock, pieces)
    except (BrokenPipeError, ConnectionResetError) as error:
        refused = error  # the server may have sent the reason
    try:
        return Reply(connection)
    except BROKEN as error:
        raise refused or error


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


def _head_of(connection: Connection) -> tuple[int, dict[bytes, bytes]]:
    """Reads the status and the headers, with names in lower case."""
    version, _, rest = connection.line().partition(b" ")
    if not version.startswith(b"HTTP/1."):
        raise ProtocolError("the answer is not HTTP/1.1")
    headers: dict[bytes, bytes] = {}
    for _ in range(MOST_HEADERS):
        line = connection.line()
        if not line:
            return _number(rest[:3], 10), headers
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    raise ProtocolError("the answer has too many headers")


def _number(text: bytes, base: int) -> int:
    try:
        return int(text, base)
    except ValueError as error:
        raise ProtocolError("a length in the answer is no number") from error
