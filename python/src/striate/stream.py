"""Results of a batch in the order of completion, while the rest is still on its way."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Optional

from .batch import BatchReader
from .objects import Item, Result

# A reader who is slower than the server makes it wait, rather than filling memory.
MOST_WAITING = 64


class ResultStream:
    """An asynchronous iterator over results. Left early, it should be closed; `aclose` ends the request."""

    def __init__(self, reader: BatchReader, bucket: str, items: Sequence[Item]) -> None:
        self._reader, self._bucket, self._items = reader, bucket, items
        self._waiting: deque[Result] = deque()
        self._task: Optional[asyncio.Task[None]] = None

    async def take(self) -> list[Result]:
        """What has come since the last call, at least one; nothing when all has."""
        if self._task is None:
            self._changed, self._room = asyncio.Event(), asyncio.Event()
            self._task = asyncio.ensure_future(self._reader.read(self._bucket, self._items, self._deliver))
            self._task.add_done_callback(lambda _: self._changed.set())
        while not self._waiting:
            if self._task.done():
                self._task.result()  # raises what went wrong
                return []
            self._changed.clear()
            await self._changed.wait()
        taken = list(self._waiting)
        self._waiting.clear()
        self._room.set()
        return taken

    async def _deliver(self, result: Result) -> None:
        while len(self._waiting) >= MOST_WAITING:
            self._room.clear()
            await self._room.wait()
        self._waiting.append(result)
        self._changed.set()

    async def aclose(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def __aiter__(self) -> AsyncIterator[Result]:
        try:
            while True:
                taken = await self.take()
                if not taken:
                    return
                for result in taken:
                    yield result
        finally:
            await self.aclose()
