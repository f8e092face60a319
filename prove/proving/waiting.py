"""Waiting for what a server does by itself."""

import time

PAUSE_S = 0.2


def seconds_until(is_so, timeout_s=30):
    """Returns after how many seconds a condition held; None if it did not within the time."""
    began = time.monotonic()
    while time.monotonic() - began < timeout_s:
        if is_so():
            return time.monotonic() - began
        time.sleep(PAUSE_S)
    return None
