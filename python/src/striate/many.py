"""Batches in the caller's memory: one request creates, looks up or reads many objects.

The batch read of `batch.py` returns new bytes objects and works with any S3 store. This module needs Striate's batch calls; it
reads into the caller's buffers and sends from them.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Optional, Union

from .batch import CONTENT_TYPE, MOST_ITEMS, item_request
from .crc import crc32
from .errors import ProtocolError, S3Error, UnreachableError, is_transient, s3_error
from .frames import END, FIRST, HEADER, LAST, MAGIC, MAX_BODY_BYTES, MAX_HEAD_BYTES, head_object
from .lanes import BROKEN, Lanes, Reply
from .objects import AnyItem, Item, item_of
from .settings import Settings
from .transport import BACKOFF_S, MOST_BACKOFF_S, refusal_of

OPENING = 8
# The server accepts frames of at most 64 MiB.
FRAME_BYTES = 64 << 20
# Minimum bytes for each connection when a request's items are spread over several.
LANE_BYTES = 4 << 20

Buffer = Union[bytes, bytearray, memoryview, Any]
Arrived = Optional[Callable[[int], object]]


class Put(NamedTuple):
    """An object to create, with a view of its bytes."""

    key: str
    view: memoryview


class Into(NamedTuple):
    """An object or range to read, with a view for its bytes."""

    item: Item
    view: memoryview


class Many:
    """The three batch calls. Any thread may use them; every call waits for its answer."""

    def __init__(self, lanes: Lanes, settings: Settings, endpoint: str) -> None:
        self._lanes, self._settings, self._endpoint = lanes, settings, endpoint

    def put(self, bucket: str, items: Sequence[tuple[str, Buffer]], lanes: int) -> list[Union[bool, OSError]]:
        wanted = [Put(key, _bytes_of(data)) for key, data in items]
        outcomes: list[Any] = [None] * len(wanted)
        parts = _parts([len(put.view) for put in wanted], lanes)
        self._settle(outcomes, parts, lambda left: self._put_once(bucket, wanted, outcomes, left))
        return outcomes

    def sizes(self, bucket: str, keys: Sequence[str], until_gap: bool) -> list[Optional[int]]:
        sizes: list[Optional[int]] = []
        for start in range(0, len(keys), MOST_ITEMS):
            part = keys[start:start + MOST_ITEMS]
            found = self._sizes_of(bucket, part, until_gap)
            sizes += found
            if until_gap and len(found) < len(part):
                break
        return sizes

    def get_into(
        self, bucket: str, items: Sequence[tuple[AnyItem, Buffer]], lanes: int, arrived: Arrived = None
    ) -> list[Union[int, OSError]]:
        wanted = [Into(item_of(item), _bytes_of(buffer)) for item, buffer in items]
        if any(into.view.readonly for into in wanted):
            raise ValueError("a buffer to read into is read-only")
        outcomes: list[Any] = [0 if into.item.is_empty else None for into in wanted]
        parts = _parts([0 if into.item.is_empty else len(into.view) for into in wanted], lanes)
        asked = [[number for number in part if outcomes[number] is None] for part in parts]
        self._settle(outcomes, asked, lambda left: self._get_once(bucket, wanted, outcomes, left, arrived))
        return outcomes

    def _settle(self, outcomes: list[Any], parts: list[list[int]], once: Any) -> None:
        """Runs the requests of all parts.

        An error of a request becomes the outcome of its items that are not settled. It is raised if no item at all is settled.
        """
        failed: list[tuple[list[int], OSError]] = []

        def work(part: list[int]) -> None:
            try:
                self._until_settled(outcomes, part, once)
            except OSError as error:
                failed.append((part, error))

        self._lanes.each(parts, work)
        if failed and all(_is_open(outcomes[number]) for part in parts for number in part):
            raise failed[0][1]
        for part, error in failed:
            for number in part:
                if _is_open(outcomes[number]):
                    outcomes[number] = error

    def _until_settled(self, outcomes: list[Any], part: list[int], once: Any) -> None:
        """Repeats a request for items without an outcome, or with a transient error, up to the limit of retries."""
        failed, left = 0, part
        while left:
            error: Optional[BaseException] = None
            try:
                once(left)
            except S3Error as refused:
                if not is_transient(refused.status):
                    raise
                error = refused
            except BROKEN as broken:
                error = UnreachableError(f"no whole answer from {self._endpoint}: {broken}")
                error.__cause__ = broken
            missing = [number for number in left if _is_open(outcomes[number])]
            failed = failed + 1 if len(missing) == len(left) else 1
            is_final = error is not None and not self._settings.repeats(error)
            if missing and (failed > self._settings.retries or is_final):
                if error is not None:
                    raise error
                return
            if missing:
                _pause(failed)
            left = missing

    def _put_once(self, bucket: str, wanted: list[Put], outcomes: list[Any], left: list[int]) -> None:
        puts = [wanted[number] for number in left]
        named = [{"key": put.key, "content_length": len(put.view)} for put in puts]
        document = json.dumps({"items": named}, separators=(",", ":")).encode()
        frames = sum(max(1, -(-len(put.view) // FRAME_BYTES)) for put in puts) + 2
        length = len(document) + sum(len(put.view) for put in puts) + frames * HEADER.size
        with self._lanes.post(
            bucket, [("batch", "put")], CONTENT_TYPE, length, lambda: _frames(document, puts)
        ) as reply:
            answer = _json_of(reply, bucket)
        items = answer.get("items")
        if not isinstance(items, list) or len(items) != len(left):
            raise ProtocolError("the answer to a batch put has not as many outcomes as items")
        for number, outcome in zip(left, items):
            status = int(outcome.get("status", 500))
            if status in (200, 412):
                outcomes[number] = status == 200
            else:
                code, message = str(outcome.get("code", "UnknownError")), str(outcome.get("message", ""))
                outcomes[number] = s3_error(status, code, message, bucket, wanted[number].key)

    def _sizes_of(self, bucket: str, keys: Sequence[str], until_gap: bool) -> list[Optional[int]]:
        document = json.dumps({"keys": list(keys), "until_gap": until_gap}, separators=(",", ":")).encode()
        found: list[Any] = [None]

        def once(_: list[int]) -> None:
            with self._ask(bucket, "exists", document) as reply:
                found[0] = _json_of(reply, bucket).get("sizes")

        self._until_settled(found, [0], once)
        sizes = found[0]
        if not isinstance(sizes, list) or len(sizes) > len(keys) or (len(sizes) < len(keys) and not until_gap):
            raise ProtocolError("the answer names not as many sizes as keys")
        return sizes

    def _ask(self, bucket: str, what: str, document: bytes) -> AbstractContextManager[Reply]:
        body = [memoryview(document)]
        return self._lanes.post(bucket, [("batch", what)], "application/json", len(document), lambda: body, document)

    def _get_once(
        self, bucket: str, wanted: list[Into], outcomes: list[Any], left: list[int], arrived: Arrived
    ) -> None:
        items = [item_request(wanted[number].item) for number in left]
        document = json.dumps({"items": items}, separators=(",", ":")).encode()
        with self._ask(bucket, "", document) as reply:
            if reply.status != 200 or reply.content_type != CONTENT_TYPE:
                raise _refused(reply, bucket)
            receiver = _Receiver(reply, [wanted[number] for number in left], bucket)
            for item, outcome in receiver.outcomes():
                outcomes[left[item]] = outcome
                if arrived is not None and not isinstance(outcome, S3Error):
                    arrived(left[item])


class _Receiver:
    """Receives the frames of an answer into the items' views."""

    def __init__(self, reply: Reply, wanted: list[Into], bucket: str) -> None:
        self._reply, self._wanted, self._bucket = reply, wanted, bucket
        self._received: list[Optional[int]] = [None] * len(wanted)
        self._too_large: dict[int, S3Error] = {}
        self._header = bytearray(HEADER.size)

    def outcomes(self) -> Iterator[tuple[int, Union[int, S3Error]]]:
        """Yields each item's outcome once, when its last frame has been received and verified."""
        settled = 0
        while True:
            item, status, flags, head, body_bytes = self._begin()
            if flags & END:
                if item != len(self._wanted) or settled != item or head or body_bytes:
                    raise ProtocolError(f"the answer ends after {settled} of {len(self._wanted)} items")
                return
            if item >= len(self._wanted) or bool(flags & FIRST) == (self._received[item] is not None):
                raise ProtocolError(f"a frame of item {item} was not expected")
            if status >= 400:
                settled += 1
                yield item, self._failure(item, status, head)
            elif flags & LAST:
                settled += 1
                yield item, self._too_large.get(item, self._received_of(item, body_bytes))
            else:
                self._received_of(item, body_bytes)

    def _begin(self) -> tuple[int, int, int, bytes, int]:
        """Receives and verifies a frame, its body included."""
        self._reply.fill(self._header)
        magic, item, status, flags, zero, head_bytes, body_bytes, crc = HEADER.unpack(self._header)
        if magic != MAGIC or zero or head_bytes > MAX_HEAD_BYTES or body_bytes > MAX_BODY_BYTES:
            raise ProtocolError("this is not the beginning of a frame")
        head = bytearray(head_bytes)
        self._reply.fill(head)
        body = self._room(item, body_bytes) if body_bytes else memoryview(b"")
        self._reply.fill(body)
        actual = crc32(body, crc32(head, crc32(memoryview(self._header)[:20])))
        if actual != crc:
            raise ProtocolError(f"a frame of item {item} has a wrong checksum")
        return item, status, flags, bytes(head), body_bytes

    def _room(self, item: int, length: int) -> memoryview:
        """Returns the view for the next bytes of an item."""
        if item >= len(self._wanted):
            raise ProtocolError(f"a frame of item {item}, which was not asked for")
        at, into = self._received[item] or 0, self._wanted[item]
        if at + length <= len(into.view):
            return into.view[at:at + length]
        message = f"the object has more than the {len(into.view)} bytes of its buffer"
        self._too_large[item] = s3_error(400, "EntityTooLarge", message, self._bucket, into.item.key)
        return memoryview(bytearray(length))

    def _received_of(self, item: int, length: int) -> int:
        received = (self._received[item] or 0) + length
        self._received[item] = received
        return received

    def _failure(self, item: int, status: int, head: bytes) -> S3Error:
        said = head_object(head)
        self._received[item] = 0
        code, message = str(said.get("code", "UnknownError")), str(said.get("message", ""))
        return s3_error(status, code, message, self._bucket, self._wanted[item].item.key)


def _frames(document: bytes, puts: list[Put]) -> Iterator[memoryview]:
    """Yields the body of a batch put. A checksum is computed just before its frame is sent, while earlier bytes are in flight."""
    yield _header(len(puts), OPENING, document, b"")
    yield memoryview(document)
    for number, (_, view) in enumerate(puts):
        for start in range(0, len(view) or 1, FRAME_BYTES):
            body = view[start:start + FRAME_BYTES]
            is_last = start + FRAME_BYTES >= len(view)
            yield _header(number, (0 if start else FIRST) | (LAST if is_last else 0), b"", body)
            if len(body):
                yield body
    yield _header(len(puts), END, b"", b"")


def _header(item: int, flags: int, head: Buffer, body: Buffer) -> memoryview:
    header = bytearray(HEADER.pack(MAGIC, item, 0, flags, 0, len(head), len(body), 0))
    crc = crc32(body, crc32(head, crc32(memoryview(header)[:20])))
    header[20:] = crc.to_bytes(4, "big")
    return memoryview(header)


def _json_of(reply: Reply, bucket: str) -> dict[str, Any]:
    if reply.status != 200 or reply.content_type != "application/json":
        raise _refused(reply, bucket)
    try:
        answer = json.loads(reply.read())
    except ValueError as error:
        raise ProtocolError(f"the answer is not JSON: {error}") from error
    if not isinstance(answer, dict):
        raise ProtocolError("the answer is not a JSON object")
    return answer


def _refused(reply: Reply, bucket: str) -> S3Error:
    content = reply.read()
    if reply.status < 300:
        return s3_error(501, "NotImplemented", "the server knows no such batch call", bucket)
    return refusal_of(reply.status, "", content, bucket, "")


def _bytes_of(data: Buffer) -> memoryview:
    view = memoryview(data)
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")


def _is_open(outcome: Any) -> bool:
    return outcome is None or (isinstance(outcome, S3Error) and is_transient(outcome.status))


def _pause(failed: int) -> None:
    longest = min(MOST_BACKOFF_S, BACKOFF_S * 2 ** (failed - 1))
    threading.Event().wait(random.uniform(longest / 2, longest))


def _parts(sizes: list[int], lanes: int) -> list[list[int]]:
    """Splits positions, in order, into at most `lanes` parts of about equal bytes; more if a part would have too many items."""
    total = sum(sizes)
    count = max(1, min(lanes, total // LANE_BYTES))
    parts: list[list[int]] = [[]]
    filled = 0
    for position, size in enumerate(sizes):
        is_full = filled >= total * len(parts) / count and len(parts) < count
        if parts[-1] and (is_full or len(parts[-1]) == MOST_ITEMS):
            parts.append([])
        parts[-1].append(position)
        filled += size
    return parts if sizes else []
