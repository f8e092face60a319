"""One object, or a range of it, as a stream that survives broken connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Optional

import aiohttp

from .errors import ProtocolError
from .headers import read_headers
from .objects import Item, ObjectInfo, info_of_headers
from .transport import FAILURES, Transport, Tries, refusal


class Download:
    """Passes an object's bytes to `sink` as they arrive.

    After a broken connection it resumes at the last byte; if the object has changed, it raises `PreconditionFailed`.
    """

    def __init__(self, transport: Transport, bucket: str, item: Item, sink: Callable[[bytes], object]) -> None:
        self._transport, self._bucket, self._item, self._sink = transport, bucket, item, sink
        self._info: Optional[ObjectInfo] = None
        self._next = self._end = 0  # offsets in the object, known from the first answer

    async def run(self) -> ObjectInfo:
        tries = Tries(self._transport.settings)
        while True:
            before = self._next
            try:
                return await self._try()
            except FAILURES as failure:
                error = self._transport.transient(failure)
            if self._next > before:
                tries.progressed()
            await tries.failed(error)

    async def _try(self) -> ObjectInfo:
        rest = self._item
        if self._info is not None:
            if self._next == self._end:
                return self._info  # only the connection's end was missing
            rest = Item(rest.key, self._next, self._end, self._info.etag or None)
        async with self._transport.open("GET", self._bucket, rest.key, [], read_headers(rest), b"") as answer:
            if answer.status >= 300:
                raise refusal(answer, await answer.read(), self._bucket, rest.key)
            self._begin(answer, rest)
            async for data in answer.content.iter_any():
                self._sink(data)
                self._next += len(data)
        assert self._info is not None
        if self._next != self._end:
            raise ProtocolError(f"{self._end - self._next} bytes are missing")
        return self._info

    def _begin(self, answer: aiohttp.ClientResponse, asked: Item) -> None:
        length = answer.content_length
        content_range = answer.headers.get("Content-Range")
        if length is None or (asked.range() is not None and content_range is None):
            raise ProtocolError("the answer to a GET lacks Content-Length, or Content-Range for the range asked for")
        first = int(content_range.partition(" ")[2].partition("-")[0]) if content_range else 0
        if self._info is None:
            self._info, self._next = info_of_headers(asked.key, answer.headers), first
            self._end = first + length
        elif (first, first + length) != (self._next, self._end):
            raise ProtocolError("the answer has another range than the one asked for")
