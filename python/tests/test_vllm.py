"""The tier for vLLM under vLLM's own `TieringOffloadingManager` with its tier in the processor's memory, without a model or an engine.

The tests do what an engine does in each step, and write and read the bytes of its blocks where its workers would.

Runs where vLLM is installed.
"""

import itertools
import logging
import os
import socket
import threading

import numpy
import pytest

pytest.importorskip("vllm.v1.kv_offload.tiering.base")

from scripted import Scripted, cut, refuse  # noqa: E402
from vllm.v1.kv_offload.base import LookupResult, ReqContext, ScheduleEndContext, make_offload_key  # noqa: E402
from vllm.v1.kv_offload.config import (  # noqa: E402
    OffloadingCacheConfig, OffloadingConfig, OffloadingGroupConfig, OffloadingModelConfig, OffloadingParallelConfig,
)
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec  # noqa: E402

CHUNK_BYTES = 8192
names = itertools.count()


def config(tiers, chunks=8, model="org/model", chunk_bytes=CHUNK_BYTES):
    return OffloadingConfig(
        groups=(OffloadingGroupConfig(16, ("layer.0", "layer.1"), 0),), worker_kv_bytes_per_block=chunk_bytes,
        enable_kv_cache_events=False, extra_config={"cpu_bytes_to_use": chunks * chunk_bytes, "secondary_tiers": tiers},
        engine_id=f"striate-test-{os.getpid()}-{next(names)}", model=OffloadingModelConfig(model, "float16"),
        cache=OffloadingCacheConfig(16, 1), parallel=OffloadingParallelConfig(0, 1, 1, 1, 1, 1, 0, 1, None, True),
    )


class Engine:
    """The scheduler's side of an engine."""

    def __init__(self, endpoint, bucket="bucket", access_key="a", secret_key="b", chunks=8, model="org/model",
                 chunk_bytes=CHUNK_BYTES, **more):
        tier = {"type": "StriateTier", "module_path": "striate.vllm", "endpoint": endpoint, "bucket": bucket,
                "access_key": access_key, "secret_key": secret_key, "timeout_s": 2, **more}
        self.manager = TieringOffloadingSpec(config([tier], chunks, model, chunk_bytes)).get_manager()
        [self.tier] = self.manager.secondary_tiers
        self.requests = itertools.count()

    def rows(self):
        return numpy.asarray(self.manager.primary_tier.get_kv_memoryview())

    def step(self):
        self.manager.on_schedule_end(ScheduleEndContext((), ()))

    def begin(self):
        request = ReqContext(f"request-{next(self.requests)}")
        self.manager.on_new_request(request)
        return request

    def settle(self):
        """Steps until nothing is in flight."""
        self.step()
        self.tier.drain_jobs()
        self.step()
        assert not self.manager.has_pending_work()

    def store(self, chunks):
        """Stores blocks as an engine does; they cascade to the tier."""
        request = self.begin()
        prepared = self.manager.prepare_store(list(chunks), request)
        for key, chunk in zip(prepared.keys_to_store, prepared.store_spec.chunk_ids):
            self.rows()[chunk] = numpy.frombuffer(chunks[key], numpy.int8)
        self.manager.complete_store(prepared.keys_to_store, request)
        self.manager.on_request_finished(request)
        self.settle()

    def looked_up(self, keys, request):
        """Returns the final result of each lookup; keys may still be in flight."""
        for _ in range(1000):
            results = [self.manager.lookup(key, request) for key in keys]
            self.step()
            if not {LookupResult.RETRY, LookupResult.HIT_PENDING} & set(results):
                return results
            self.tier.drain_jobs()
            threading.Event().wait(0.002)
        raise AssertionError(f"the look-ups do not end: {results}")

    def load(self, keys):
        """Returns the bytes of each block, None for a miss."""
        request = self.begin()
        found = self.looked_up(keys, request)
        hits = [key for key, result in zip(keys, found) if result is LookupResult.HIT]
        chunks = self.manager.prepare_load(hits, request).chunk_ids if hits else []
        data = {key: self.rows()[chunk].tobytes() for key, chunk in zip(hits, chunks)}
        self.manager.complete_load(hits, request)
        self.manager.on_request_finished(request)
        self.step()
        return [data.get(key) for key in keys]


def keys_of(count, group=0):
    return [make_offload_key(number.to_bytes(32, "big"), group) for number in range(count)]


def chunks_of(keys, size=CHUNK_BYTES):
    return {key: os.urandom(size) for key in keys}


@pytest.fixture
def store():
    with Scripted({}).running() as running:
        yield running


@pytest.fixture
def engines(store):
    made = []

    def make(endpoint=None, **options):
        made.append(Engine(endpoint or store.endpoint, **options))
        return made[-1]

    yield make
    for engine in made:
        engine.manager.shutdown()


def test_blocks_come_back_in_another_engine_and_others_are_misses(engines, store):
    keys = keys_of(6)
    chunks = chunks_of(keys[:5])
    engines().store(chunks)
    assert len(store.objects) == 5
    other = engines()
    assert other.load(keys) == [*chunks.values(), None]
    # All lookups of a step are one request, all loads of a request another.
    assert [len(post) for post in store.posts] == [5, 6, 5]


def test_blocks_that_left_the_processors_memory_come_back(engines):
    engine = engines(chunks=4)
    keys = keys_of(8)
    chunks = chunks_of(keys)
    engine.store({key: chunks[key] for key in keys[:4]})
    engine.store({key: chunks[key] for key in keys[4:]})
    assert engine.load(keys[:4]) == [chunks[key] for key in keys[:4]]


def test_another_model_group_or_prefix_has_blocks_of_its_own(engines):
    keys = keys_of(1)
    engines().store(chunks_of(keys))
    assert engines(model="org/other").load(keys) == [None]
    assert engines(prefix="tenant").load(keys) == [None]
    assert engines().load(keys_of(1, group=1)) == [None]


def test_an_object_of_another_size_is_a_miss(engines, store):
    keys = keys_of(2)
    engine = engines()
    chunks = chunks_of(keys)
    engine.store(chunks)
    short, good = sorted(store.objects)
    store.objects[short] = b"short"
    assert engines().load(keys) == [None, chunks[keys[1]]]
    assert store.posts[-1] == [good]


def test_what_changes_between_look_up_and_load_is_a_miss_and_the_rest_comes_at_once(engines, store):
    keys = keys_of(4)
    chunks = chunks_of(keys)
    engines().store(chunks)
    engine = engines()
    request = engine.begin()
    while LookupResult.RETRY in [engine.manager.lookup(key, request) for key in keys]:
        engine.step()
    _, gone, short, _ = all_names = sorted(store.objects)
    del store.objects[gone]
    store.objects[short] = b"short"
    hit, miss = LookupResult.HIT, LookupResult.MISS
    assert engine.looked_up(keys, request) == [hit, miss, miss, hit]
    assert store.posts[2:] == [all_names]
    engine.manager.on_request_finished(request)


def test_a_store_that_refuses_is_a_miss_and_is_logged(engines, store, caplog):
    keys = keys_of(1)
    chunks = chunks_of(keys)
    engine = engines()
    engine.store(chunks)
    other = engines()
    with caplog.at_level(logging.WARNING):
        store.script = [refuse(403, "AccessDenied")]
        assert other.load(keys) == [None]
    assert "AccessDenied" in caplog.text
    store.script = [lambda frames, good: good, refuse(404, "NoSuchBucket")]
    assert other.load(keys) == [None]
    assert other.load(keys) == list(chunks.values())


def test_what_came_before_a_load_broke_off_is_there(engines, store):
    chunks = chunks_of(keys_of(3))
    engines().store(chunks)
    store.script = [lambda frames, good: good, cut(CHUNK_BYTES + 2000), refuse(403, "AccessDenied")]
    came = engines().load(list(chunks))
    assert sorted(came, key=bool) == [None, None, *[data for data in came if data]]
    assert [data for data in came if data] == [chunks[key] for key, data in zip(chunks, came) if data] != []


def test_a_failed_store_leaves_the_block_in_the_processors_memory(engines, store, caplog):
    keys = keys_of(1)
    chunks = chunks_of(keys)
    engine = engines()
    store.script = [refuse(507, "InsufficientStorage")]
    engine.store(chunks)
    assert "InsufficientStorage" in caplog.text and engine.load(keys) == list(chunks.values())


def test_a_store_that_is_away_is_a_miss_and_the_engine_starts_without_it(engines):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    engine = engines(f"http://127.0.0.1:{port}")
    keys = keys_of(2)
    chunks = chunks_of(keys[:1])
    engine.store(chunks)
    assert engine.load(keys) == [chunks[keys[0]], None]


def test_a_reset_waits_for_the_jobs_and_forgets_the_processors_memory(engines):
    keys = keys_of(2)
    chunks = chunks_of(keys)
    engine = engines()
    engine.store(chunks)
    engine.manager.reset_cache()
    engine.manager.on_reset_flushed()
    assert engine.load(keys) == list(chunks.values())


def test_blocks_go_through_the_real_store(engines, options, client):
    client.create_bucket("vllm-tier")
    keys = keys_of(40)
    chunks = chunks_of(keys, 1 << 20)
    large = {"bucket": "vllm-tier", "chunks": 48, "chunk_bytes": 1 << 20, **options}
    engines(**large).store(chunks)
    assert engines(**large).load(keys) == list(chunks.values())
