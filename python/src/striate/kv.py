"""Shared code of the adapters for KV caches: the configured client, threads that run work in order, and logged failures.

Adapters report failures as misses: a miss is the only failure that an engine survives.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any, Optional

from .sync import Client

# Seconds between two log lines about an unreachable server.
LOG_EVERY_S = 10.0


def client_of(timeout_s: float, endpoint: Optional[str] = None, **settings: Optional[str]) -> Client:
    """Returns a client that sends a request again if it broke, but not if it timed out: an engine would wait twice as long.

    Missing settings come from the environment.
    """
    given: dict[str, Any] = {name: value for name, value in settings.items() if value}
    return Client(
        endpoint, retries=1, retry_timeouts=False, connect_timeout_s=min(timeout_s, 5), read_timeout_s=timeout_s, **given
    )


class Failures:
    """The last failure, logged at most every `LOG_EVERY_S` seconds."""

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

    def judge(self, outcomes: Sequence[Any]) -> None:
        """Notes the first failure among a batch's outcomes, or that there is none. That an object is missing is none."""
        for outcome in outcomes:
            if isinstance(outcome, Exception) and not isinstance(outcome, FileNotFoundError):
                self.note(outcome)
                return
        self.clear()


class Workers:
    """Threads that run work in order. An executor would create a future for each piece, which takes as long as a lookup's answer."""

    def __init__(self, count: int, name: str) -> None:
        self._queue: SimpleQueue[Optional[Callable[[], None]]] = SimpleQueue()
        self._is_closed = False
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{number}", daemon=True) for number in range(count)]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        """Queues work; raises `RuntimeError` after `close`."""
        if self._is_closed:
            raise RuntimeError("the adapter is closed")
        self._queue.put(work)

    def close(self) -> None:
        """Waits for all submitted work."""
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
