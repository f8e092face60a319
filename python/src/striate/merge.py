"""Merges single reads made at about the same time into one batch.

If no request is in flight, a read is sent in the next turn of the event loop, together with all reads of the same turn (such as
those of an `asyncio.gather`), without waiting. While a request is in flight, reads are collected for half a millisecond, which
catches those of other threads.
"""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary

from .batch import MOST_ITEMS, BatchReader, ReadOne
from .objects import Item, Result

WINDOW_S = 0.0005

Pending = list[tuple[Item, "asyncio.Future[Result]"]]


class _Gathering:
    """The waiting reads and the requests of one event loop."""

    def __init__(self) -> None:
        self.pending: dict[str, Pending] = {}
        self.tasks: set[asyncio.Task[None]] = set()


class Merger:
    """Reads single items, several in one request if that delays none of them."""

    def __init__(self, reader: BatchReader, read_one: ReadOne) -> None:
        self._reader = reader
        self._read_one = read_one
        self._loops: WeakKeyDictionary[asyncio.AbstractEventLoop, _Gathering] = WeakKeyDictionary()

    async def read(self, bucket: str, item: Item) -> Result:
        """Reads an item and returns its result. Errors of the whole request are raised."""
        loop = asyncio.get_running_loop()
        gathering = self._loops.setdefault(loop, _Gathering())
        pending = gathering.pending.get(bucket)
        if pending is None:
            pending = gathering.pending[bucket] = []
            if gathering.tasks:
                loop.call_later(WINDOW_S, self._send, gathering, bucket)
            else:
                loop.call_soon(self._send, gathering, bucket)
        future: asyncio.Future[Result] = loop.create_future()
        pending.append((item, future))
        return await future

    def _send(self, gathering: _Gathering, bucket: str) -> None:
        waiting = [(item, future) for item, future in gathering.pending.pop(bucket) if not future.done()]
        for start in range(0, len(waiting), MOST_ITEMS):
            part = waiting[start:start + MOST_ITEMS]
            task = asyncio.ensure_future(self._read(bucket, part))
            gathering.tasks.add(task)
            task.add_done_callback(gathering.tasks.discard)
            _cancel_when_unwanted(task, part)

    async def _read(self, bucket: str, part: Pending) -> None:
        async def deliver(result: Result) -> None:
            future = part[result.position][1]
            if not future.done():
                future.set_result(result)

        try:
            if len(part) == 1:
                await deliver(await self._read_one(bucket, part[0][0]))
            else:
                await self._reader.read(bucket, [item for item, _ in part], deliver)
        except Exception as error:  # noqa: BLE001, it is raised where the items are awaited
            for _, future in part:
                if not future.done():
                    future.set_exception(error)


def _cancel_when_unwanted(task: asyncio.Task[None], part: Pending) -> None:
    """Cancels a request when all its readers have been cancelled."""

    def on_done(_: asyncio.Future[Result]) -> None:
        if all(future.cancelled() for _, future in part):
            task.cancel()

    for _, future in part:
        future.add_done_callback(on_done)
