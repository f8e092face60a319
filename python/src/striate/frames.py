"""Frames of a batch read's answer: parses them as they arrive, verifies them, and assembles items. No I/O.

A frame, integers big-endian::

    offset  bytes
    0       4     "STR1"
    4       4     item: its position in the request; in the end frame the number of items
    8       2     status
    10      1     flags: 1 first frame of its item, 2 last frame of its item, 4 end of the answer
    11      1     0
    12      4     length of the head, h
    16      4     length of the body, b
    20      4     CRC-32 of bytes 0-19, the head and the body
    24      h     head: JSON
    24+h    b     body

A body's bytes are copied once, when its item is complete: until then they are views of the bytes from the connection.
Any violation raises `ProtocolError`; an answer without its end frame is incomplete.
"""

from __future__ import annotations

import json
import struct
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Optional

from .crc import crc32
from .errors import ProtocolError

MAGIC = b"STR1"
HEADER = struct.Struct(">4sIHBBIII")
FIRST, LAST, END = 1, 2, 4
# A corrupt length must not make the reader wait for gigabytes: frames carry at most 1 MiB of body.
MAX_HEAD_BYTES, MAX_BODY_BYTES = 1 << 16, 1 << 24


class Frame(NamedTuple):
    """One frame; its body is in pieces, as received."""

    item: int
    status: int
    flags: int
    head: bytes
    body: list[memoryview]


class FrameParser:
    """Parses an answer's bytes, in portions of any size, into frames."""

    def __init__(self) -> None:
        self._pieces: deque[memoryview] = deque()
        self._available = 0
        self._header: Optional[tuple[Any, ...]] = None
        self._header_bytes = b""
        self.ended = False

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yields the frames that `data` completes; those before a bad one come before its error."""
        if data:
            self._pieces.append(memoryview(data))
            self._available += len(data)
        while True:
            frame = self._next()
            if frame is None:
                return
            yield frame

    def close(self) -> None:
        """Must be called at the connection's end; raises `ProtocolError` if the end frame is missing."""
        if not self.ended:
            raise ProtocolError("the answer ended before its end frame")

    def _next(self) -> Optional[Frame]:
        if self._header is None and not self._next_header():
            return None
        assert self._header is not None
        _, item, status, flags, _, head_bytes, body_bytes, crc = self._header
        if self._available < head_bytes + body_bytes:
            return None
        self._header = None
        head = b"".join(self._take(head_bytes))
        body = self._take(body_bytes)
        actual = crc32(head, crc32(self._header_bytes[:20]))
        for piece in body:
            actual = crc32(piece, actual)
        if actual != crc:
            raise ProtocolError(f"a frame of item {item} has a wrong checksum")
        self.ended = bool(flags & END)
        return Frame(item, status, flags, head, body)

    def _next_header(self) -> bool:
        if self.ended and self._available:
            raise ProtocolError("bytes follow the end frame")
        if self._available < HEADER.size:
            return False
        self._header_bytes = b"".join(self._take(HEADER.size))
        self._header = HEADER.unpack(self._header_bytes)
        magic, _, _, flags, reserved, head_bytes, body_bytes, _ = self._header
        if magic != MAGIC or reserved or flags & ~(FIRST | LAST | END):
            raise ProtocolError("this is not the beginning of a frame")
        if head_bytes > MAX_HEAD_BYTES or body_bytes > MAX_BODY_BYTES:
            raise ProtocolError(f"a frame claims {head_bytes} bytes of head and {body_bytes} of body")
        return True

    def _take(self, count: int) -> list[memoryview]:
        """Takes the next `count` bytes, which must be available."""
        taken = []
        self._available -= count
        while count:
            piece = self._pieces[0]
            if len(piece) <= count:
                taken.append(self._pieces.popleft())
                count -= len(piece)
            else:
                taken.append(piece[:count])
                self._pieces[0] = piece[count:]
                count = 0
        return taken


class Answer(NamedTuple):
    """A complete item: its object's bytes or, with a status of 400 or more, only an error head."""

    item: int
    status: int
    head: dict[str, Any]
    data: bytes


class _Partial:
    """An item whose last frame has not arrived."""

    def __init__(self, status: int, head: dict[str, Any]) -> None:
        self.status, self.head = status, head
        self.pieces: list[memoryview] = []
        self.length = 0


class Assembler:
    """Assembles the frames of an answer into `count` items."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._partial: dict[int, _Partial] = {}
        self._complete: set[int] = set()

    def push(self, frame: Frame) -> Optional[Answer]:
        """Adds a frame; returns the item that it completes, or None."""
        if frame.flags & END:
            self._end(frame)
            return None
        if frame.item >= self.count or frame.item in self._complete:
            raise ProtocolError(f"a frame of item {frame.item}, which was not asked for or is complete")
        partial = self._place(frame)
        if frame.status >= 400:
            return self._failed(frame)
        partial.pieces += frame.body
        partial.length += sum(map(len, frame.body))
        if not frame.flags & LAST:
            return None
        if partial.length != partial.head.get("content_length", partial.length):
            raise ProtocolError(f"item {frame.item} has {partial.length} bytes instead of {partial.head['content_length']}")
        del self._partial[frame.item]
        self._complete.add(frame.item)
        return Answer(frame.item, partial.status, partial.head, b"".join(partial.pieces))

    def _place(self, frame: Frame) -> _Partial:
        """Returns the item to which this frame belongs; a first frame opens it."""
        if bool(frame.flags & FIRST) == (frame.item in self._partial):
            raise ProtocolError(f"the frames of item {frame.item} are out of order")
        if frame.flags & FIRST:
            self._partial[frame.item] = _Partial(frame.status, head_object(frame.head))
        return self._partial[frame.item]

    def _failed(self, frame: Frame) -> Answer:
        """Completes an item that failed at once or half way; drops its earlier bytes."""
        if not frame.flags & LAST or frame.body:
            raise ProtocolError(f"item {frame.item} failed with status {frame.status}, but goes on")
        del self._partial[frame.item]
        self._complete.add(frame.item)
        return Answer(frame.item, frame.status, head_object(frame.head), b"")

    def _end(self, frame: Frame) -> None:
        if frame.flags != END or frame.head or frame.body:
            raise ProtocolError("the end frame carries something")
        if frame.item != self.count or len(self._complete) != self.count:
            raise ProtocolError(f"the answer ends after {len(self._complete)} of {self.count} items")


def head_object(head: bytes) -> dict[str, Any]:
    """Parses a frame's head."""
    try:
        parsed = json.loads(head)
    except ValueError as error:
        raise ProtocolError(f"a frame's head is not JSON: {error}") from error
    if not isinstance(parsed, dict):
        raise ProtocolError("a frame's head is not a JSON object")
    return parsed
