"""Threads that repeat a step while something else happens, and are judged afterwards."""

import threading


class Meanwhile:
    """A thread that repeats its step until it is stopped. It records every exception as wrong, and continues."""

    pause_s = 0.0

    def __init__(self):
        self.stopping, self.done, self.wrong = threading.Event(), 0, []
        self.thread = threading.Thread(target=self.work, daemon=True)

    def work(self):
        while not self.stopping.is_set():
            try:
                self.step()
                self.done += 1
            except Exception as error:  # noqa: BLE001 - a dead thread would find nothing more
                self.wrong.append(f"{type(error).__name__}: {error}"[:200])
                self.stopping.wait(0.1)
            self.stopping.wait(self.pause_s)

    def step(self):
        raise NotImplementedError

    def is_right(self):
        """Returns whether at least one step was done, and none failed."""
        return self.done > 0 and not self.wrong

    def __str__(self):
        return f"{len(self.wrong)} of {self.done + len(self.wrong)} {' '.join(self.wrong[:1])}".strip()

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        self.thread.join()


class Clients:
    """Threads that each work as a client of a cluster until they are stopped."""

    def __init__(self, cluster, clients=4):
        self.cluster, self.stopping, self.lock = cluster, threading.Event(), threading.Lock()
        self.threads = [threading.Thread(target=self.work, args=(number,)) for number in range(clients)]

    def work(self, number):
        """Works as client `number` until `stopping` is set."""
        raise NotImplementedError

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
