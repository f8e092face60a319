"""The adapter for LMCache over a store that is unreachable, refuses, or has other data. prove/lmcache runs LMCache's own code over it.

Runs where LMCache is installed: `make prove-lmcache` installs it into its own environment.
"""

import logging
import select
import socket

import pytest

pytest.importorskip("lmcache")

from lmcache.v1.distributed.api import ObjectKey  # noqa: E402
from lmcache.v1.platform import consume_fd  # noqa: E402
from scripted import Scripted, cut, refuse  # noqa: E402
from striate.errors import ConfigurationError  # noqa: E402
from striate.lmcache import StriateL2Adapter, StriateL2AdapterConfig  # noqa: E402


class Memory:
    """The part of LMCache's memory objects that an adapter uses."""

    def __init__(self, data):
        self.data = bytearray(data)

    @property
    def byte_array(self):
        return memoryview(self.data)


def keys_of(count, **fields):
    return [ObjectKey(bytes([number]) * 8, **{"model_name": "org/model", "kv_rank": 3, **fields}) for number in range(count)]


def adapter_of(endpoint, **parameters):
    given = {"endpoint": endpoint, "bucket": "bucket", "access_key": "a", "secret_key": "b", "timeout_s": 2, **parameters}
    return StriateL2Adapter(StriateL2AdapterConfig.from_dict(given))


@pytest.fixture
def store():
    with Scripted({}).running() as running:
        yield running


@pytest.fixture
def adapter(store):
    made = adapter_of(store.endpoint)
    yield made
    made.close()


def wait(descriptor):
    assert select.select([descriptor], [], [], 20)[0]
    consume_fd(descriptor)


def stored(adapter, keys, objects):
    task = adapter.submit_store_task(keys, objects)
    wait(adapter.get_store_event_fd())
    result = adapter.pop_completed_store_tasks().pop(task)
    return result.bytes_transferred() if result.is_successful() else None


def flags(bitmap, count):
    return [bitmap.test(number) for number in range(count)]


def found(adapter, keys):
    task = adapter.submit_lookup_and_lock_task(keys, {})
    wait(adapter.get_lookup_and_lock_event_fd())
    result = flags(adapter.query_lookup_and_lock_result(task), len(keys))
    assert adapter.query_lookup_and_lock_result(task) is None  # once only
    adapter.submit_unlock(keys)
    return result


def loaded(adapter, keys, objects):
    task = adapter.submit_load_task(keys, objects)
    wait(adapter.get_load_event_fd())
    return flags(adapter.query_load_result(task), len(keys))


def test_chunks_come_back_and_missing_ones_are_misses(adapter):
    keys, objects = keys_of(5), [Memory(bytes([number]) * 100) for number in range(4)]
    assert stored(adapter, keys[:4], objects) == 400
    assert found(adapter, keys) == [True] * 4 + [False]
    into = [Memory(100) for _ in range(5)]
    assert loaded(adapter, keys, into) == [True] * 4 + [False]
    assert [memory.data for memory in into[:4]] == [memory.data for memory in objects]
    assert len({adapter.get_store_event_fd(), adapter.get_lookup_and_lock_event_fd(), adapter.get_load_event_fd()}) == 3
    assert adapter.get_usage().total_bytes_used == 400 and adapter.report_status()["is_healthy"]


def test_what_is_stored_again_is_no_failure_and_counts_once(adapter):
    keys, objects = keys_of(2), [Memory(b"one"), Memory(b"two")]
    assert stored(adapter, keys, objects) == 6
    assert stored(adapter, keys, objects) == 0
    assert adapter.get_usage().total_bytes_used == 6


def test_everything_that_tells_chunks_apart_is_in_their_names(adapter, store):
    kinds = [{}, {"model_name": "org/other"}, {"kv_rank": 4}, {"object_group_id": 1}, {"cache_salt": "tenant"}]
    keys = [keys_of(1, **fields)[0] for fields in kinds]
    assert stored(adapter, keys, [Memory(bytes([number])) for number in range(5)]) == 5
    assert len(store.objects) == 5
    into = [Memory(1) for _ in keys]
    assert loaded(adapter, keys, into) == [True] * 5 and [memory.data[0] for memory in into] == list(range(5))
    assert adapter.get_usage().bytes_by_cache_salt == {"": 4, "tenant": 1}


def test_an_object_of_another_size_is_a_miss(adapter):
    keys = keys_of(2)
    stored(adapter, keys, [Memory(b"short"), Memory(b"as long as it should be")])
    assert loaded(adapter, keys, [Memory(23), Memory(23)]) == [False, True]
    assert loaded(adapter, keys[1:], [Memory(5)]) == [False]


def test_a_store_that_refuses_is_a_miss_or_a_failed_store_and_is_logged(adapter, store, caplog):
    keys = keys_of(1)
    stored(adapter, keys, [Memory(b"x")])
    with caplog.at_level(logging.WARNING):
        store.script = [refuse(403, "AccessDenied")]
        assert loaded(adapter, keys, [Memory(1)]) == [False]
    assert "AccessDenied" in caplog.text and not adapter.report_status()["is_healthy"]
    store.script = [refuse(404, "NoSuchBucket")]
    assert found(adapter, keys) == [False]
    store.script = [refuse(507, "InsufficientStorage")]
    assert stored(adapter, keys_of(2)[1:], [Memory(b"y")]) is None
    assert loaded(adapter, keys, [Memory(1)]) == [True] and adapter.report_status()["is_healthy"]


def test_what_settled_before_the_store_refused_counts(adapter, store):
    keys, objects = keys_of(4), [Memory(bytes([number]) * 100) for number in range(4)]
    answer = b'{"items": [{"status": 200}, {"status": 503}, {"status": 503}, {"status": 503}]}'
    store.script = [lambda frames, good: (200, "application/json", answer), refuse(507, "InsufficientStorage")]
    assert stored(adapter, keys, objects) is None and adapter.get_usage().total_bytes_used == 100
    # The store created all of them despite its 503.
    into = [Memory(100) for _ in keys]
    store.script = [cut(300), refuse(403, "AccessDenied")]
    first, *_, last = loaded(adapter, keys, into)
    assert (first, last) == (True, False) and into[0].data == objects[0].data
    assert not adapter.report_status()["is_healthy"]


def test_a_store_that_is_away_is_a_miss_and_the_adapter_starts_without_it():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    adapter = adapter_of(f"http://127.0.0.1:{port}")
    keys = keys_of(2)
    assert stored(adapter, keys, [Memory(b"x"), Memory(b"y")]) is None
    assert found(adapter, keys) == [False, False] and loaded(adapter, keys, [Memory(1), Memory(1)]) == [False, False]
    adapter.delete(keys)
    adapter.close()
    assert isinstance(adapter.submit_load_task(keys, [Memory(1), Memory(1)]), int)


@pytest.mark.parametrize("wrong", [
    {}, {"bucket": ""}, {"bucket": 3}, {"bucket": "b", "bukcet": "x"}, {"bucket": "b", "lanes": 0},
    {"bucket": "b", "timeout_s": -1}, {"bucket": "b", "workers": True},
])
def test_wrong_parameters_are_refused_at_once(wrong):
    with pytest.raises(ConfigurationError):
        StriateL2AdapterConfig.from_dict(wrong)
