"""Batches in the caller's memory: from a store that breaks off, lies or refuses, and from the real one."""

import asyncio
import json
import os
import random
import threading

import pytest
import striate.many
from conftest import KNOWS_BATCH
from scripted import FRAMES, Scripted, cut, frames_of, refuse
from striate import AsyncClient, Client, Item, NotFound, S3Error, UnreachableError
from striate.many import LANE_BYTES, _parts

OBJECTS = {f"k{number:02}": bytes([number]) * (number * 13) for number in range(20)}
KEYS = list(OBJECTS)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(striate.many, "BACKOFF_S", 0.001)


@pytest.fixture
def store():
    with Scripted(dict(OBJECTS)).running() as running:
        yield running


@pytest.fixture
def scripted(store):
    with Client(store.endpoint, access_key="a", secret_key="b", retries=2) as client:
        yield client


def buffers(keys=KEYS):
    return [bytearray(len(OBJECTS.get(key, b""))) for key in keys]


def filled(into, keys=KEYS):
    return [bytes(buffer) for buffer in into] == [OBJECTS[key] for key in keys]


def test_objects_come_into_the_buffers_after_a_cut_anywhere(store, scripted):
    total = sum(len(part) for part in frames_of(OBJECTS, [{"key": key} for key in KEYS]))
    for length in range(0, total, 211):
        store.posts.clear()
        store.script = [cut(length)]
        into = buffers()
        assert scripted.get_many_into("bucket", list(zip(KEYS, into))) == [len(value) for value in OBJECTS.values()]
        assert filled(into)
        first, *second = store.posts
        assert first == KEYS and all(again == KEYS[len(KEYS) - len(again):] for again in second)


def test_each_item_is_told_once_when_its_buffer_is_whole(store, scripted):
    total = sum(len(part) for part in frames_of(OBJECTS, [{"key": key} for key in KEYS]))
    store.script = [cut(total // 2)]
    into, told = buffers(), []

    def arrived(position):
        assert into[position] == OBJECTS[KEYS[position]]
        told.append(position)

    scripted.get_many_into("bucket", [*zip(KEYS, into), ("none", bytearray(1))], arrived=arrived)
    assert told == list(range(len(KEYS))) and len(store.posts) == 2


def test_an_altered_frame_is_asked_for_again(store, scripted):
    def alter(frames, good):
        broken = bytearray(good[2])
        broken[len(broken) // 2] ^= 1
        return 200, FRAMES, bytes(broken)

    store.script = [alter]
    into = buffers()
    scripted.get_many_into("bucket", list(zip(KEYS, into)))
    assert filled(into) and 0 < len(store.posts[1]) < len(KEYS)


def test_each_item_has_its_outcome_and_large_objects_leave_the_memory_beside_their_buffer_alone(store, scripted):
    memory = bytearray(b"x" * 100)
    view = memoryview(memory)
    items = [("k01", view[0:13]), ("none", view[20:30]), ("k02", view[40:60]), (Item("k03", 5, 5), view[70:70])]
    one, missing, small, empty = scripted.get_many_into("bucket", items)
    assert (one, empty) == (13, 0) and isinstance(missing, NotFound)
    assert isinstance(small, S3Error) and small.code == "EntityTooLarge"
    assert memory == bytes([1]) * 13 + b"x" * 87


def test_a_buffer_larger_than_its_object_is_filled_in_part(scripted):
    buffer = bytearray(b"x" * 30)
    assert scripted.get_many_into("bucket", [("k02", buffer)]) == [26]
    assert buffer == bytes([2]) * 26 + b"xxxx"


def test_what_cannot_be_written_to_is_refused_before_anything_is_sent(store, scripted):
    with pytest.raises(ValueError):
        scripted.get_many_into("bucket", [("k01", b"readonly")])
    assert store.posts == []


def test_puts_create_and_tell_what_was_there(store, scripted):
    items = [("new", b"abc"), ("k05", b"another"), ("empty", b""), ("array", memoryview(bytearray(range(9))))]
    assert scripted.put_many("bucket", items) == [True, False, True, True]
    assert (store.objects["new"], store.objects["empty"], store.objects["array"]) == (b"abc", b"", bytes(range(9)))
    assert store.objects["k05"] == OBJECTS["k05"]


def test_large_puts_go_in_several_frames_and_over_several_connections(store, scripted, monkeypatch):
    monkeypatch.setattr(striate.many, "FRAME_BYTES", 1000)
    monkeypatch.setattr(striate.many, "LANE_BYTES", 2000)
    data = {f"n{number}": os.urandom(number * 333) for number in range(12)}
    assert scripted.put_many("bucket", list(data.items()), lanes=3) == [True] * 12
    assert {key: store.objects[key] for key in data} == data
    assert len(store.posts) == 3 and sorted(sum(store.posts, [])) == sorted(data)
    into = {key: bytearray(len(value)) for key, value in data.items()}
    scripted.get_many_into("bucket", list(into.items()), lanes=3)
    assert into == data and len(store.posts) == 6


def test_an_item_that_fails_for_now_is_sent_again_and_one_that_fails_for_good_is_not(store, scripted):
    outcomes = [{"status": 200}, {"status": 503, "code": "SlowDown"}, {"status": 400, "code": "InvalidArgument"}]
    store.script = [lambda frames, good: (200, "application/json", json.dumps({"items": outcomes}).encode())]
    created, again, wrong = scripted.put_many("bucket", [("a", b"1"), ("b", b"2"), ("c", b"3")])
    # The store created it despite its 503, so the retry finds it.
    assert (created, again) == (True, False) and wrong.code == "InvalidArgument"
    assert store.posts == [["a", "b", "c"], ["b"]]


def test_sizes_and_prefixes(store, scripted):
    assert scripted.sizes_of("bucket", ["k01", "none", "k03"]) == [13, None, 39]
    assert [scripted.prefix_of("bucket", keys) for keys in (["k01", "k02", "no", "k03"], ["no", "k01"], KEYS, [])] == [2, 0, 20, 0]
    keys = [KEYS[number % 20] for number in range(9000)]
    store.posts.clear()
    assert scripted.prefix_of("bucket", keys) == 9000 and max(map(len, store.posts)) == 4096
    store.posts.clear()
    assert scripted.prefix_of("bucket", ["none", *keys]) == 0 and len(store.posts) == 1


def test_what_concerns_the_request_is_raised_after_all_tries(store, scripted):
    store.script = [refuse(403, "AccessDenied")]
    with pytest.raises(PermissionError):
        scripted.put_many("bucket", [("a", b"1")])
    store.script = [refuse(503, "SlowDown")] * 2
    assert scripted.sizes_of("bucket", ["k01"]) == [13]
    store.script = [cut(10)] * 3
    with pytest.raises(UnreachableError, match=store.endpoint):
        scripted.get_many_into("bucket", list(zip(KEYS, buffers())))
    store.script = [lambda frames, good: (200, "text/plain", b"?")]
    with pytest.raises(S3Error, match="NotImplemented"):
        scripted.put_many("bucket", [("a", b"1")])


def test_what_settled_before_a_request_failed_for_good_is_returned_and_the_rest_has_its_error(store, scripted, monkeypatch):
    total = sum(len(part) for part in frames_of(OBJECTS, [{"key": key} for key in KEYS]))
    store.script = [cut(total // 2), refuse(403, "AccessDenied")]
    into = buffers()
    outcomes = scripted.get_many_into("bucket", list(zip(KEYS, into)))
    came = len(KEYS) - len(store.posts[1])
    assert 0 < came < len(KEYS) and filled(into[:came], KEYS[:came])
    assert outcomes[:came] == [len(OBJECTS[key]) for key in KEYS[:came]]
    assert {error.code for error in outcomes[came:]} == {"AccessDenied"}
    answer = {"items": [{"status": 200}, {"status": 503, "code": "SlowDown"}]}
    store.script = [lambda frames, good: (200, "application/json", json.dumps(answer).encode()), *[cut(10)] * 3]
    created, lost = scripted.put_many("bucket", [("a", b"1"), ("b", b"2")])
    assert created is True and isinstance(lost, UnreachableError)
    # Of three requests at the same time one is refused.
    monkeypatch.setattr(striate.many, "LANE_BYTES", 2000)
    store.posts.clear()
    store.script = [refuse(403, "AccessDenied")]
    data = [(f"n{number}", bytes(number * 333)) for number in range(12)]
    outcomes = scripted.put_many("bucket", data, lanes=3)
    refused = [key for (key, _), outcome in zip(data, outcomes) if isinstance(outcome, PermissionError)]
    assert refused == store.posts[0] and outcomes.count(True) == 12 - len(refused) > 0


def test_a_connection_that_the_server_closed_meanwhile_is_replaced(store, scripted):
    assert scripted.sizes_of("bucket", ["k01"]) == [13]
    store.script = [lambda frames, good: (*good, True)]  # the answer is whole, then the connection ends
    assert scripted.sizes_of("bucket", ["k01"]) == [13]
    store.script = [lambda frames, good: (*good, True)]
    assert scripted.sizes_of("bucket", ["k01"]) == [13]
    assert scripted.put_many("bucket", [("new", b"abc")]) == [True]


def test_a_forked_child_has_connections_of_its_own(store, scripted):
    assert scripted.sizes_of("bucket", ["k01"]) == [13]
    child = os.fork()
    if child == 0:
        os._exit(0 if scripted.sizes_of("bucket", ["k02"]) == [26] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert scripted.sizes_of("bucket", ["k01"]) == [13]


def test_parts_are_in_order_even_and_never_too_many_items():
    assert _parts([], 4) == [] and _parts([1] * 10, 4) == [list(range(10))]
    sizes = [random.Random(1).randrange(LANE_BYTES) for _ in range(50)]
    for lanes in (1, 2, 3, 7):
        parts = _parts(sizes, lanes)
        assert len(parts) == lanes and sum(parts, []) == list(range(50))
        weights = [sum(sizes[number] for number in part) for part in parts]
        assert max(weights) < sum(sizes) / lanes + 2 * LANE_BYTES
    assert max(map(len, _parts([1] * 9000, 1))) == 4096


needs_batch = pytest.mark.skipif(not KNOWS_BATCH, reason="the server knows no batch calls")


@needs_batch
def test_objects_of_all_sizes_go_and_come_by_the_real_server(client, bucket, body):
    sizes = [0, 1, 3000, 100_000, 256 << 10, (1 << 20) + 1, 9_999_999, 33 << 20]
    data = {f"many/{size}": body(size) for size in sizes}
    assert client.put_many(bucket, list(data.items())) == [True] * len(sizes)
    assert client.put_many(bucket, [(key, b"other") for key in data]) == [False] * len(sizes)
    into = {key: bytearray(len(value)) for key, value in data.items()}
    assert client.get_many_into(bucket, list(into.items())) == sizes
    assert into == data
    assert client.sizes_of(bucket, [*data, "none"]) == [*sizes, None]
    assert client.prefix_of(bucket, ["many/0", "many/1", "none", "many/3000"]) == 2
    assert client.read_many(bucket, list(data)) == list(data.values())
    part = bytearray(10)
    assert client.get_many_into(bucket, [(Item("many/3000", 5, 15), part)]) == [10] and part == data["many/3000"][5:15]
    assert client.head(bucket, "many/1").etag.endswith('-0"')


@needs_batch
def test_thousands_of_small_objects_are_created_by_one_call(client, bucket):
    items = [(f"{number:05}", b"%d" % number) for number in range(5000)]
    assert client.put_many(bucket, items) == [True] * 5000
    into = [(key, bytearray(len(data))) for key, data in items]
    client.get_many_into(bucket, into)
    assert [(key, bytes(data)) for key, data in into] == items


@needs_batch
def test_of_those_who_create_the_same_keys_at_the_same_time_each_wins_what_nobody_else_does(client, bucket):
    keys, outcomes = [f"{number}" for number in range(50)], {}

    def create(name):
        outcomes[name] = client.put_many(bucket, [(key, b"%d" % name * 1000) for key in keys])

    threads = [threading.Thread(target=create, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stored = client.read_many(bucket, keys)
    for number in range(50):
        winners = [name for name in range(4) if outcomes[name][number] is True]
        assert len(winners) == 1 and stored[number] == b"%d" % winners[0] * 1000


@needs_batch
def test_errors_of_the_real_server(client, options, bucket):
    with pytest.raises(NotFound, match="NoSuchBucket"):
        client.put_many("no-such-bucket", [("a", b"x")])
    with pytest.raises(NotFound, match="NoSuchBucket"):
        client.sizes_of("no-such-bucket", ["a"])
    created, wrong = client.put_many(bucket, [("a", b"x"), ("", b"y")])
    assert created is True and wrong.code == "InvalidArgument"
    large = b"x" * (40 << 20)  # refused before most of it has been sent
    with pytest.raises(PermissionError):
        Client(**{**options, "secret_key": "wrong"}).put_many(bucket, [("b", large)])
    with pytest.raises(NotFound, match="NoSuchBucket"):
        client.put_many("no-such-bucket", [("b", large)])
    assert not client.exists(bucket, "b")


@needs_batch
def test_the_asynchronous_client_does_the_same(options, bucket):
    async def scenario():
        async with AsyncClient(**options) as client:
            assert await client.put_many(bucket, [("a", b"one"), ("b", b"two")]) == [True, True]
            into = bytearray(3)
            assert await client.get_many_into(bucket, [("b", into)]) == [3] and into == b"two"
            assert await client.sizes_of(bucket, ["a", "c"]) == [3, None]
            assert await client.prefix_of(bucket, ["a", "b", "c"]) == 2

    asyncio.run(scenario())
