"""Signed requests over pooled connections, with retries of transient failures.

Sessions of aiohttp belong to an event loop and must not cross a fork: each process and loop gets its own, so that one
client serves any number of both.
"""

from __future__ import annotations

import asyncio
import atexit
import hashlib
import os
import random
import ssl
import xml.etree.ElementTree as ElementTree
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager, suppress
from typing import NamedTuple, Optional, Union
from weakref import WeakSet, finalize

import aiohttp
import yarl

from .errors import ProtocolError, S3Error, UnreachableError, is_transient, s3_error
from .lanes import Lanes
from .settings import Settings
from .signing import EMPTY_HASH, Query, Signer, encode_path, encode_query
from .xml import error_within

Body = Union[bytes, bytearray, memoryview]
Sessions = dict[asyncio.AbstractEventLoop, aiohttp.ClientSession]

BACKOFF_S, MOST_BACKOFF_S = 0.1, 5.0
# Maximum size of a body sent in one piece; a larger one goes in slices, so that sending does not block the event loop.
SLICE_BYTES = 1 << 18
READ_BUFFER_BYTES = 1 << 20
UNTRUSTED = aiohttp.ClientConnectorCertificateError
FAILURES = (S3Error, aiohttp.ClientError, asyncio.TimeoutError, ConnectionError, ProtocolError)


class Response(NamedTuple):
    """A complete answer; header names are case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Tries:
    """Counts failures since the last progress, and waits longer after each, with random jitter."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._failed = 0

    def progressed(self) -> None:
        self._failed = 0

    async def failed(self, error: BaseException) -> None:
        """Returns when the next try may begin; raises `error` if no try is left or wanted, or none would help."""
        self._failed += 1
        is_final = isinstance(error.__cause__, UNTRUSTED) or not self._settings.repeats(error)
        if self._failed > self._settings.retries or is_final:
            raise error
        longest = min(MOST_BACKOFF_S, BACKOFF_S * 2 ** (self._failed - 1))
        await asyncio.sleep(random.uniform(longest / 2, longest))


class Transport:
    """Sends requests to one endpoint."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.resolved = settings.resolved()
        self.signer = Signer(self.resolved.region)
        self._tls: Optional[ssl.SSLContext] = None
        if self.resolved.endpoint.startswith("https:"):
            self._tls = ssl.create_default_context(cafile=self.resolved.ca)
        self.lanes = Lanes(settings, self.resolved, self.signer, self._tls)
        self._sessions: Sessions = {}
        finalize(self, _dispose_all, self._sessions).atexit = False
        _transports.add(self)

    async def request(
        self, method: str, bucket: str = "", key: str = "", query: Query = [],  # noqa: B006, it is only read
        headers: Optional[Mapping[str, str]] = None, body: Body = b"", accept: tuple[int, ...] = (),
        errors_in_body: bool = False,
    ) -> Response:
        """Sends a request and returns the complete answer. Statuses from 300 are errors unless the caller accepts them.

        `errors_in_body`: a long operation answers 200 before it knows its outcome, so the body may contain an error.
        """

        async def once() -> Response:
            async with self.open(method, bucket, key, query, headers, body) as answer:
                content = await answer.read()
                if answer.status >= 300 and answer.status not in accept:
                    raise refusal(answer, content, bucket, key)
                error = error_within(content, bucket, key) if errors_in_body else None
                if error is not None:
                    raise error
                return Response(answer.status, answer.headers, content)

        tries = Tries(self.settings)
        while True:
            try:
                return await once()
            except FAILURES as failure:
                await tries.failed(self.transient(failure))

    def transient(self, failure: BaseException) -> BaseException:
        """Returns the error of a failed try if another one may succeed; raises it otherwise."""
        if not isinstance(failure, S3Error):
            return self._unreachable(failure)
        if not is_transient(failure.status):
            raise failure
        return failure

    def _unreachable(self, cause: BaseException) -> UnreachableError:
        reason = "it did not answer in time" if isinstance(cause, asyncio.TimeoutError) else str(cause)
        if isinstance(cause, UNTRUSTED):
            reason += "; to trust its certificate, name a file with its authority by ca= or STRIATE_CA_FILE"
        error = UnreachableError(f"no whole answer from {self.resolved.endpoint}: {reason}")
        error.__cause__ = cause
        return error

    @asynccontextmanager
    async def open(
        self, method: str, bucket: str, key: str, query: Query, headers: Optional[Mapping[str, str]], body: Body
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Makes one try; yields the answer, whatever its status, with its body unread."""
        path = encode_path("/" + "/".join(part for part in (bucket, key) if part))
        text = encode_query(query)
        sent = {name.lower(): value for name, value in (headers or {}).items()}
        sent["host"] = self.resolved.host
        keys = await self.resolved.keys.keys()
        if keys is not None:
            digest = hashlib.sha256(body).hexdigest() if body else EMPTY_HASH
            self.signer.sign(keys, method, path, text, sent, digest)
        url = yarl.URL(self.resolved.endpoint + path + ("?" + text if text else ""), encoded=True)
        if body or method in ("PUT", "POST"):
            sent["content-length"] = str(len(body))
        async with self._session().request(
            method, url, headers=sent, data=_slices(body) if len(body) > SLICE_BYTES else body or None,
            allow_redirects=False,
        ) as answer:
            yield answer

    async def presigned(self, method: str, bucket: str, key: str, expires_s: int) -> str:
        path = encode_path(f"/{bucket}/{key}")
        keys = await self.resolved.keys.keys()
        if keys is None:
            return self.resolved.endpoint + path
        query = self.signer.presign(keys, method, self.resolved.host, path, expires_s)
        return f"{self.resolved.endpoint}{path}?{query}"

    def _session(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        session = self._sessions.get(loop)
        if session is None or session.closed:
            for other in [other for other in self._sessions if other.is_closed()]:
                _dispose(other, self._sessions.pop(other))
            session = self._sessions[loop] = self._open_session()
        return session

    def _open_session(self) -> aiohttp.ClientSession:
        limit = self.settings.connections
        connector = aiohttp.TCPConnector(limit=limit, ssl=self._tls if self._tls is not None else True)
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self.settings.connect_timeout_s, sock_read=self.settings.read_timeout_s
        )
        return aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False, read_bufsize=READ_BUFFER_BYTES,
            headers={"user-agent": "striate-python", "accept-encoding": "identity"},
            skip_auto_headers=("content-type",),
        )

    async def close(self) -> None:
        """Closes the connections of the running event loop, and those of batches."""
        self.lanes.close()
        session = self._sessions.pop(asyncio.get_running_loop(), None)
        if session is not None:
            await session.close()


async def _slices(body: Body) -> AsyncIterator[memoryview]:
    view = memoryview(body).cast("B")
    for start in range(0, len(view), SLICE_BYTES):
        yield view[start:start + SLICE_BYTES]


def refusal(answer: aiohttp.ClientResponse, content: bytes, bucket: str, key: str) -> S3Error:
    return refusal_of(answer.status, answer.reason or "", content, bucket, key)


def refusal_of(status: int, reason: str, content: bytes, bucket: str, key: str) -> S3Error:
    """Returns the error in an answer's XML; answers to HEAD have only a status."""
    code = message = ""
    try:
        root = ElementTree.fromstring(content)
        code, message = root.findtext("Code") or "", root.findtext("Message") or ""
    except ElementTree.ParseError:
        pass
    code = code or {404: "NoSuchKey" if key else "NoSuchBucket", 403: "AccessDenied", 412: "PreconditionFailed"}.get(
        status, reason or "UnknownError"
    )
    return s3_error(status, code, message, bucket or None, key or None)


def _dispose(loop: asyncio.AbstractEventLoop, session: aiohttp.ClientSession) -> Optional[Future[None]]:
    """Closes a session from outside its loop; a returned future is done when the session is closed."""
    if loop.is_running():
        return asyncio.run_coroutine_threadsafe(session.close(), loop)
    connector = session.connector
    session.detach()
    if connector is not None:
        closing = connector.close().__await__()
        with suppress(StopIteration, RuntimeError):
            next(closing)  # its first step closes the connections; the rest would need a loop
    return None


def _dispose_all(sessions: Sessions) -> list[Future[None]]:
    closing = [_dispose(*sessions.popitem()) for _ in range(len(sessions))]
    return [future for future in closing if future is not None]


_transports: WeakSet[Transport] = WeakSet()
_inherited: list[Sessions] = []


def _after_fork() -> None:
    """Keeps a parent's sessions alive: collecting them would remove its connections from its event loop."""
    for transport in _transports:
        _inherited.append(dict(transport._sessions))
        transport._sessions.clear()
        transport.lanes.after_fork()


def _at_exit() -> None:
    for transport in list(_transports):
        wait(_dispose_all(transport._sessions), timeout=1)


if hasattr(os, "register_at_fork"):  # on systems with fork
    os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
