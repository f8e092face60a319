"""Sixteen clients that write, overwrite, delete and read, and remember every answer.

Each key belongs to one client, which has one request in flight at a time, so a read's permitted results are known exactly: the last
acknowledged state, or the state of a write without an answer (which may or may not have happened). Anything else, above all wrong
bytes, is a violation.
"""

import http.client
import random
import threading
import time
from dataclasses import dataclass, field

BUCKET = "torture"
CLIENTS = 16
KEYS_PER_CLIENT = 24
POOL_BYTES = 4 << 20
LARGEST = 3 << 20
ABSENT = None


class Bodies:
    """Maps a version to bytes: a header that names key and version, then a slice of one random pool."""

    def __init__(self, seed):
        self.seed = seed
        self.pool = random.Random(f"pool {seed}").randbytes(POOL_BYTES)

    def body(self, key, version):
        chance = random.Random(f"{self.seed} {key} {version}")
        size = min(LARGEST, int(2 ** chance.uniform(0, 21.6)))
        start = chance.randrange(POOL_BYTES - size)
        return f"{key} {version}\n".encode() + self.pool[start:start + size]


@dataclass
class Record:
    """The versions that one key may hold: the acknowledged one, and those of unanswered writes."""

    acknowledged: int | None = ABSENT
    uncertain: list = field(default_factory=list)
    last_version: int = 0


class Torturer:
    """Runs the clients in threads until they are stopped. Counts and violations are read afterwards."""

    def __init__(self, server, seed=0):
        self.server, self.bodies, self.seed = server, Bodies(seed), seed
        self.records = {}
        self.stopping = threading.Event()
        self.threads = []
        self.lock = threading.Lock()
        self.counts = {"put": 0, "get": 0, "delete": 0}
        self.failures = {"put": 0, "get": 0, "delete": 0}
        self.statuses = set()
        self.violations = []

    def start(self):
        self.stopping.clear()
        self.threads = [threading.Thread(target=self.work, args=(number,), daemon=True) for number in range(CLIENTS)]
        for thread in self.threads:
            thread.start()
        return self

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()
        return self

    def keep(self, count):
        """Writes objects that no client overwrites, so that damage to them remains until it is looked for."""
        client = self.server.client(timeout_s=30)
        for number in range(count):
            key = f"kept/{number:03}"
            if not self.put(client, key, self.records.setdefault(key, Record())):
                raise RuntimeError(f"{key} was not stored")
        client.close()

    def snapshot(self):
        with self.lock:
            return dict(self.counts), dict(self.failures)

    def work(self, number):
        chance = random.Random(f"client {self.seed} {number} {time.monotonic_ns()}")
        client = self.server.client(timeout_s=30)
        while not self.stopping.is_set():
            key = f"client-{number:02}/key-{chance.randrange(KEYS_PER_CLIENT):03}"
            record = self.records.setdefault(key, Record())
            choice = chance.random()
            if choice < 0.45:
                done = self.put(client, key, record)
            elif choice < 0.95:
                done = self.get(client, key, record)
            else:
                done = self.delete(client, key, record)
            if not done:
                time.sleep(0.05)  # the server is down or refuses: do not flood it
        client.close()

    def send(self, client, kind, method, key, body=b""):
        """Sends a request; returns the answer, or None without one. Counts both."""
        try:
            answer = client.send(method, f"/{BUCKET}/{key}", body=body)
        except (OSError, http.client.HTTPException):
            answer = None
        with self.lock:
            if answer is not None and (answer.status < 300 or (kind == "get" and answer.status == 404)):
                self.counts[kind] += 1
            else:
                self.failures[kind] += 1
                self.statuses.add(answer.status if answer else "no answer")
        return answer

    def put(self, client, key, record):
        record.last_version += 1
        version = record.last_version
        return self.change(record, version, self.send(client, "put", "PUT", key, self.bodies.body(key, version)))

    def delete(self, client, key, record):
        return self.change(record, ABSENT, self.send(client, "delete", "DELETE", key))

    def change(self, record, version, answer):
        if answer is not None and answer.status < 300:
            record.acknowledged, record.uncertain = version, []
            return True
        # Without an answer, or after a server error, the write may or may not have happened.
        if answer is None or answer.status >= 500:
            record.uncertain.append(version)
        return False

    def get(self, client, key, record):
        answer = self.send(client, "get", "GET", key)
        if answer is None or answer.status >= 500:
            return False
        self.judge(key, record, answer)
        return True

    def judge(self, key, record, answer):
        allowed = [record.acknowledged, *record.uncertain]
        if answer.status == 404:
            right = ABSENT in allowed
        else:
            right = answer.status == 200 and any(
                version is not ABSENT and answer.body == self.bodies.body(key, version) for version in allowed)
        if not right:
            with self.lock:
                self.violations.append(f"{key}: {answer.status}, {len(answer.body)} bytes, "
                                       f"{answer.body[:60]!r}, expected one of the versions {allowed}")

    def read_everything(self):
        """Reads and judges every key once; returns (readable, unreadable)."""
        client = self.server.client(timeout_s=60)
        readable = unreadable = 0
        for key, record in sorted(self.records.items()):
            if self.get(client, key, record):
                readable += 1
            else:
                unreadable += 1
        client.close()
        return readable, unreadable
