"""What the adapters for KV caches share: the client that they are told of, threads that take work in order, and failures, which
are logged and told as misses.

A miss is the only failure that an engine survives.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Optional

from .sync import Client

# A server that is away is logged so often.
LOG_EVERY_S = 10.0


def client_of(timeout_s: float, endpoint: Optional[str] = None, **settings: Optional[str]) -> Client:
    """A client that tries twice, and waits no longer than an engine wants to. What is missing comes from the environment."""
    given: dict[str, Any] = {name: value for name, value in settings.items() if value}
    return Client(endpoint, retries=1, connect_timeout_s=min(timeout_s, 5), read_timeout_s=timeout_s, **given)


class Failures:
    """What went wrong last, logged now and then."""

    def __init__(self, logger: logging.Logger) -> None:
        self.last: Optional[str] = None
        self._logger = logger
        self._logged_at = float("-inf")

    def note(self, error: Exception) -> None:
        self.last = f"{type(error).__name__}: {error}"
        now = time.monotonic()
        if now - self._logged_at >= LOG_EVERY_S:
            self._logged_at = now
            self._logger.warning("Striate: %s", self.last)

    def clear(self) -> None:
        self.last = None


class Workers:
    """Threads that take work in order. An executor makes a future of each piece, which takes as long as a look-up's answer."""

    def __init__(self, count: int, name: str) -> None:
        self._queue: SimpleQueue[Optional[Callable[[], None]]] = SimpleQueue()
        self._is_closed = False
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        """Raises `RuntimeError` when they are closed."""
        if self._is_closed:
            raise RuntimeError("the adapter is closed")
        self._queue.put(work)

    def close(self) -> None:
        """Waits for what was submitted."""
        self._is_closed = True
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while True:
            work = self._queue.get()
            if work is None:
                return
            work()
