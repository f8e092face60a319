"""One event loop in its own thread, for all calls without `await`.

A forked child has no such thread; the first call there starts one.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from concurrent.futures import Future, TimeoutError
from typing import Any, Optional, TypeVar

T = TypeVar("T")

# Maximum length of a single wait; a call waits repeatedly.
WAKE_S = 0.5

_lock = threading.Lock()
_loop: Optional[asyncio.AbstractEventLoop] = None


def loop() -> asyncio.AbstractEventLoop:
    """Returns the running loop of this process; starts it if necessary."""
    global _loop
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="striate", daemon=True).start()
        return _loop


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Waits for the coroutine, even inside another running loop. If the wait is interrupted, the coroutine is cancelled."""
    target = loop()
    if _is_running(target):
        coroutine.close()
        raise RuntimeError("a call without await from Striate's own event loop would wait for itself; use AsyncClient")
    future = asyncio.run_coroutine_threadsafe(coroutine, target)
    try:
        return result_of(future)
    except BaseException:
        future.cancel()
        raise


def result_of(future: Future[T]) -> T:
    """Waits for a future of the loop. A Ctrl-C just before a wait does not wake it: the next wait notices it."""
    while True:
        try:
            return future.result(timeout=WAKE_S)
        except TimeoutError:
            if future.done():  # it ended just now, or the timeout is the coroutine's own
                return future.result()


def _is_running(target: asyncio.AbstractEventLoop) -> bool:
    """Returns whether this call comes from that loop."""
    try:
        return asyncio.get_running_loop() is target
    except RuntimeError:
        return False


def _forget() -> None:
    global _loop, _lock
    # The parent's loop shares its selector with this process: it must neither run nor be collected here.
    _inherited.append(_loop)
    _loop, _lock = None, threading.Lock()


_inherited: list[Optional[asyncio.AbstractEventLoop]] = []
if hasattr(os, "register_at_fork"):  # on systems with fork
    os.register_at_fork(after_in_child=_forget)
