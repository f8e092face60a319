"""Striate behind LMCache's server: an L2 adapter that keeps the KV caches of vLLM and SGLang in a bucket.

    lmcache server … --l2-adapter '{"type": "plugin", "module_path": "striate.lmcache", "class_name": "StriateL2Adapter",
                                    "adapter_params": {"endpoint": "http://localhost:9000", "bucket": "kv-cache"}}'

A store is one batch put, which only creates: chunks are named by a hash of their content, so an existing one is identical. A
lookup is one request for all keys. A load is one batch read into LMCache's own memory. Nothing is locked between a lookup
and its load, because objects do not change; an object deleted in between is a miss.

A miss is the only failure that an engine survives, so nothing here raises: errors are logged and reported as misses or failed
stores.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Optional

from lmcache.lmcache_native import Bitmap
from lmcache.v1.distributed.api import MemoryLayoutDesc, ObjectKey
from lmcache.v1.distributed.internal_api import L2StoreResult
from lmcache.v1.distributed.l2_adapters.base import L2AdapterInterface
from lmcache.v1.distributed.l2_adapters.config import L2AdapterConfigBase
from lmcache.v1.memory_management import MemoryObj
from lmcache.v1.platform import create_event_notifier

from .client import LANES
from .errors import ConfigurationError
from .kv import Failures, Workers, client_of

logger = logging.getLogger(__name__)

STORE, LOOK_UP, LOAD = range(3)
GIB = 1 << 30

PARAMETERS: dict[str, tuple[Any, str]] = {
    "bucket": (str, "the bucket (required)"),
    "endpoint": (str, "where the store is; otherwise STRIATE_ENDPOINT or AWS_ENDPOINT_URL"),
    "access_key": (str, "an access key; otherwise the environment's"),
    "secret_key": (str, "its secret"),
    "ca": (str, "a file with the authority of the store's certificate"),
    "prefix": (str, "what the keys of all objects begin with"),
    "max_capacity_gb": ((int, float), "how much LMCache keeps there if it evicts; 0: it does not"),
    "timeout_s": ((int, float), "how long the store may take to go on with an answer (default 10)"),
    "workers": (int, "stores and loads at the same time (default 4)"),
    "lanes": (int, f"connections of one large store or load (default {LANES})"),
}


class StriateL2AdapterConfig(L2AdapterConfigBase):  # type: ignore[misc]
    """The adapter's parameters, validated before anything starts."""

    def __init__(self, **parameters: Any) -> None:
        super().__init__()
        self.parameters = parameters

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> StriateL2AdapterConfig:
        for name, value in d.items():
            if name not in PARAMETERS:
                raise ConfigurationError(f"{name} is no parameter of Striate's adapter; it has {', '.join(PARAMETERS)}")
            if not isinstance(value, PARAMETERS[name][0]) or isinstance(value, bool):
                raise ConfigurationError(f"{name}: {type(value).__name__} is the wrong type")
        if not d.get("bucket"):
            raise ConfigurationError("Striate's adapter needs a bucket")
        if min(d.get("workers", 1), d.get("lanes", 1)) < 1 or d.get("timeout_s", 1) <= 0 or d.get("max_capacity_gb", 0) < 0:
            raise ConfigurationError("workers, lanes and timeout_s must be positive, max_capacity_gb not negative")
        return cls(**d)

    @classmethod
    def help(cls) -> str:
        return "\n".join(["Striate's L2 adapter:", *(f"- {name}: {text}" for name, (_, text) in PARAMETERS.items())])


class StriateL2Adapter(L2AdapterInterface):  # type: ignore[misc]
    """LMCache's L2 cache in a bucket."""

    def __init__(self, config: StriateL2AdapterConfig, l1_memory_desc: Any = None) -> None:
        given = config.parameters
        super().__init__(max_capacity_bytes=int(given.get("max_capacity_gb", 0) * GIB))
        settings = {name: given.get(name) for name in ("endpoint", "access_key", "secret_key", "ca")}
        self._client = client_of(float(given.get("timeout_s", 10)), **settings)
        self._bucket, self._prefix = given["bucket"], given.get("prefix", "")
        self._lanes = given.get("lanes", LANES)
        self._events = [create_event_notifier() for _ in (STORE, LOOK_UP, LOAD)]
        # Lookups are short and must not wait behind transfers.
        self._transfers = Workers(given.get("workers", 4), "striate-transfer")
        self._look_ups = Workers(2, "striate-look-up")
        self._mutex = threading.Lock()
        self._next_task = 0
        self._done: dict[int, dict[int, Any]] = {STORE: {}, LOOK_UP: {}, LOAD: {}}
        self._failures = Failures(logger)

    # Events

    def get_store_event_fd(self) -> int:
        return int(self._events[STORE].fileno())

    def get_lookup_and_lock_event_fd(self) -> int:
        return int(self._events[LOOK_UP].fileno())

    def get_load_event_fd(self) -> int:
        return int(self._events[LOAD].fileno())

    # Stores

    def submit_store_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        return self._submit(self._transfers, STORE, lambda: self._store(keys, objects), L2StoreResult(False, 0))

    def pop_completed_store_tasks(self) -> dict[int, L2StoreResult]:
        with self._mutex:
            done, self._done[STORE] = self._done[STORE], {}
        return done

    def _store(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> L2StoreResult:
        chunks = {self._name(key): (key, _view(object)) for key, object in zip(keys, objects)}
        outcomes = self._client.put_many(self._bucket, [(name, view) for name, (_, view) in chunks.items()], self._lanes)
        settled = list(zip(chunks.values(), outcomes))
        created = [(key, len(view)) for (key, view), outcome in settled if outcome is True]
        if created:
            self._notify_keys_stored([key for key, _ in created], [size for _, size in created])
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        self._failures.clear()
        return L2StoreResult(True, sum(size for _, size in created))

    # Look-ups

    def submit_lookup_and_lock_task(self, keys: list[ObjectKey], group_layout_descs: dict[int, MemoryLayoutDesc]) -> int:
        return self._submit(self._look_ups, LOOK_UP, lambda: self._look_up(keys), Bitmap(len(keys)))

    def query_lookup_and_lock_result(self, task_id: int) -> Optional[Bitmap]:
        return self._take(LOOK_UP, task_id)

    def submit_unlock(self, keys: list[ObjectKey]) -> None:
        pass

    def _look_up(self, keys: list[ObjectKey]) -> Bitmap:
        sizes = self._client.sizes_of(self._bucket, [self._name(key) for key in keys])
        self._failures.clear()
        return _bits([size is not None for size in sizes])

    # Loads

    def submit_load_task(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> int:
        return self._submit(self._transfers, LOAD, lambda: self._load(keys, objects), Bitmap(len(keys)))

    def query_load_result(self, task_id: int) -> Optional[Bitmap]:
        return self._take(LOAD, task_id)

    def _load(self, keys: list[ObjectKey], objects: list[MemoryObj]) -> Bitmap:
        views = [_view(object) for object in objects]
        wanted = [(self._name(key), view) for key, view in zip(keys, views)]
        outcomes = self._client.get_many_into(self._bucket, wanted, self._lanes)
        # An object of another size has another layout.
        came = [outcome == len(view) for outcome, view in zip(outcomes, views)]
        loaded = [key for key, has_come in zip(keys, came) if has_come]
        if loaded:
            self._notify_keys_accessed(loaded)
        self._failures.judge(outcomes)
        return _bits(came)

    # The rest of the interface

    def delete(self, keys: list[ObjectKey]) -> None:
        try:
            names = {self._name(key): key for key in keys}
            sizes = dict(zip(names, self._client.sizes_of(self._bucket, list(names))))
            kept = {error.key for error in self._client.delete_many(self._bucket, names)}
            gone = [(names[name], size) for name, size in sizes.items() if size is not None and name not in kept]
            if gone:
                self._notify_keys_deleted([key for key, _ in gone], [size for _, size in gone])
        except Exception as error:  # noqa: BLE001, nothing may be raised
            self._failures.note(error)

    def report_status(self) -> dict[str, Any]:
        return {
            "is_healthy": self._failures.last is None, "type": "striate", "endpoint": self._client.endpoint,
            "bucket": self._bucket, "last_failure": self._failures.last,
        }

    def close(self) -> None:
        for threads in (self._transfers, self._look_ups):
            threads.close()
        for event in self._events:
            event.close()
        self._client.close()

    # Tasks

    def _submit(self, threads: Workers, kind: int, work: Callable[[], Any], otherwise: Any) -> int:
        """Starts a task. If it fails, its result is `otherwise`."""
        with self._mutex:
            task, self._next_task = self._next_task, self._next_task + 1

        def run() -> None:
            result = otherwise
            try:
                result = work()
            except Exception as error:  # noqa: BLE001, nothing may be raised
                self._failures.note(error)
            with self._mutex:
                self._done[kind][task] = result
            self._events[kind].notify()

        try:
            threads.submit(run)
        except RuntimeError as error:  # closed
            self._failures.note(error)
            with self._mutex:
                self._done[kind][task] = otherwise
        return task

    def _take(self, kind: int, task: int) -> Any:
        with self._mutex:
            return self._done[kind].pop(task, None)

    def _name(self, key: ObjectKey) -> str:
        """Returns the key of a chunk's object, which has every property that identifies the chunk.

        The tenant (LMCache's salt) comes first, so that a rule for a prefix can apply to it.
        """
        return (
            f"{self._prefix}salt={key.cache_salt}/model={key.model_name}/rank={key.kv_rank:x}/group={key.object_group_id}/"
            f"{key.chunk_hash.hex()}"
        )


def _view(object: MemoryObj) -> memoryview:
    return memoryview(object.byte_array).cast("B")


def _bits(flags: list[bool]) -> Bitmap:
    bits = Bitmap(len(flags))
    for number, flag in enumerate(flags):
        if flag:
            bits.set(number)
    return bits
