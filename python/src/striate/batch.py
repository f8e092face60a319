"""Many objects in one request: `POST /{bucket}?batch`, or single GETs if the server does not support the batch read.

After an answer that breaks off, only the missing items are requested again; complete ones are kept. The server's first answer
decides once whether it supports the batch read.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Optional

from .errors import ProtocolError, S3Error, is_transient, s3_error
from .frames import Answer, Assembler, FrameParser
from .objects import Item, Result, info_of_head
from .transport import FAILURES, Tries, Transport, refusal

MOST_ITEMS = 4096
CONTENT_TYPE = "application/vnd.striate.frames"
# Answers to this POST from servers without a batch read: AWS, Striate before it had one, MinIO.
UNKNOWN_STATUSES = (405, 501)
UNKNOWN_CODES = ("MethodNotAllowed", "NotImplemented", "NoSuchUpload", "BadRequest", "PreconditionFailed")

Deliver = Callable[[Result], Awaitable[None]]
ReadOne = Callable[[str, Item], Awaitable[Result]]


class _NoBatch(Exception):
    """The server does not support the batch read."""


class BatchReader:
    """Reads many items of a bucket; `read_one` reads a single one with a GET."""

    def __init__(self, transport: Transport, read_one: ReadOne) -> None:
        self._transport = transport
        self._read_one = read_one
        self.supported: Optional[bool] = None

    async def read(self, bucket: str, items: Sequence[Item], deliver: Deliver) -> None:
        """Passes every item's result to `deliver`, in the order of completion. Raises errors of the whole request."""
        left: dict[int, Item] = {}
        for position, item in enumerate(items):
            if item.is_empty:
                await deliver(Result(position, item, b""))
            else:
                left[position] = item
        if self.supported is None and len(left) > MOST_ITEMS:
            entries = list(left.items())  # the first part shows whether the server supports the batch read
            await self._read_part(bucket, dict(entries[:MOST_ITEMS]), deliver)
            left = dict(entries[MOST_ITEMS:])
        if self.supported is False:
            await self._read_singly(bucket, left, deliver)
        else:
            await _all([self._read_part(bucket, part, deliver) for part in _parts(left)])

    async def _read_part(self, bucket: str, left: dict[int, Item], deliver: Deliver) -> None:
        """Reads at most `MOST_ITEMS` items, until each has a result."""
        tries = Tries(self._transport.settings)
        while left:
            missing = len(left)
            failed: dict[int, S3Error] = {}  # items with transient errors
            error: Optional[BaseException] = None
            try:
                await self._ask(bucket, left, failed, deliver)
            except _NoBatch:
                await self._read_singly(bucket, left, deliver)
                return
            except FAILURES as failure:
                error = self._transport.transient(failure)
            if len(left) < missing:
                tries.progressed()
            if left:
                try:
                    await tries.failed(error or next(iter(failed.values())))
                except S3Error:
                    if error is not None:
                        raise
                    for position in list(left):
                        await deliver(Result(position, left.pop(position), error=failed[position]))

    async def _ask(
        self, bucket: str, left: dict[int, Item], failed: dict[int, S3Error], deliver: Deliver
    ) -> None:
        """Sends one request. Removes delivered items from `left`, and records transient failures in `failed`."""
        positions = list(left)
        body = json.dumps({"items": [item_request(left[position]) for position in positions], "format": "frames"}).encode()
        parser, assembler = FrameParser(), Assembler(len(positions))
        headers = {"content-type": "application/json"}
        async with self._transport.open("POST", bucket, "", [("batch", "")], headers, body) as answer:
            if answer.status != 200 or answer.content_type != CONTENT_TYPE:
                self._refused(refusal(answer, await answer.read(), bucket, ""), answer.status)
            self.supported = True
            while True:
                data = await answer.content.readany()
                if not data:
                    break
                for frame in parser.feed(data):
                    complete = assembler.push(frame)
                    if complete is None:
                        continue
                    position = positions[complete.item]
                    result = _result(position, left[position], complete, bucket)
                    if result.error is not None and is_transient(result.error.status):
                        failed[position] = result.error
                    else:
                        del left[position]
                        await deliver(result)
            parser.close()

    def _refused(self, error: S3Error, status: int) -> None:
        unknown = status == 200 or status in UNKNOWN_STATUSES or error.code in UNKNOWN_CODES
        if unknown and not self.supported:
            self.supported = False
            raise _NoBatch
        if status == 200:
            raise ProtocolError("the answer to a batch read has another content type")
        raise error

    async def _read_singly(self, bucket: str, left: dict[int, Item], deliver: Deliver) -> None:
        """Reads with GETs, as many at a time as connections are allowed."""
        waiting = iter(list(left.items()))

        async def work() -> None:
            for position, item in waiting:
                result = await self._read_one(bucket, item)
                await deliver(result._replace(position=position))

        await _all([work() for _ in range(min(len(left), self._transport.settings.connections))])


async def _all(coroutines: list[Any]) -> None:
    """Waits for all coroutines; if one fails, cancels the others and waits for them."""
    if len(coroutines) == 1:
        await coroutines[0]
        return
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def _parts(left: dict[int, Item]) -> list[dict[int, Item]]:
    """Splits the items into even parts of at most `MOST_ITEMS`."""
    entries = list(left.items())
    count = -(-len(entries) // MOST_ITEMS)
    bounds = [len(entries) * number // count for number in range(count + 1)] if count else []
    return [dict(entries[start:end]) for start, end in zip(bounds, bounds[1:])]


def item_request(item: Item) -> dict[str, str]:
    """Returns an item as it appears in the document of a batch read."""
    request = {"key": item.key}
    wanted = item.range()
    if wanted is not None:
        request["range"] = wanted
    if item.if_match is not None:
        request["if_match"] = item.if_match
    return request


def _result(position: int, item: Item, answer: Answer, bucket: str) -> Result:
    if answer.status >= 400:
        code, message = str(answer.head.get("code", "UnknownError")), str(answer.head.get("message", ""))
        return Result(position, item, error=s3_error(answer.status, code, message, bucket, item.key))
    return Result(position, item, answer.data, info=info_of_head(item.key, answer.head))
