"""Results of a batch in the order of completion, while the rest is still in flight."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Sequence
from typing import Optional

from .batch import BatchReader
from .objects import Item, Result

# Maximum number of waiting results: a slow reader makes the server wait instead of filling memory.
MOST_WAITING = 64


class ResultStream:
    """An asynchronous iterator over results. After leaving it early, close it: `aclose` ends the request."""

    def __init__(self, reader: BatchReader, bucket: str, items: Sequence[Item]) -> None:
        self._reader, self._bucket, self._items = reader, bucket, items
        self._waiting: deque[Result] = deque()
        self._task: Optional[asyncio.Task[None]] = None

    async def take(self) -> list[Result]:
        """Waits for and returns the results since the last call, at least one; returns none after the last."""
        if self._task is None:
            self._changed, self._room = asyncio.Event(), asyncio.Event()
            self._task = asyncio.ensure_future(self._reader.read(self._bucket, self._items, self._deliver))
            self._task.add_done_callback(lambda _: self._changed.set())
        while not self._waiting:
            if self._task.done():
                self._task.result()  # raises the task's error
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
