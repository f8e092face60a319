"""Batch reads from a store that breaks off, lies, refuses, or does not support them."""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
import striate.transport
from scripted import FRAMES, Scripted, cut, refuse
from striate import AsyncClient, Client, Item, NotFound, PreconditionFailed, S3Error, UnreachableError
from striate.fs import StriateFileSystem
from striate.objects import Result
from striate.stream import MOST_WAITING, ResultStream
from test_frames import end, frame, head

OBJECTS = {f"k{number:02}": bytes([number]) * (number * 13) for number in range(20)}
KEYS = list(OBJECTS)
VALUES = list(OBJECTS.values())


@pytest.fixture(autouse=True)
def short_waits(monkeypatch):
    monkeypatch.setattr(striate.transport, "BACKOFF_S", 0.001)


@pytest.fixture
def store():
    with Scripted(OBJECTS).running() as running:
        yield running


@pytest.fixture
def client(store):
    with Client(store.endpoint, access_key="a", secret_key="b", retries=2) as client:
        yield client


def test_after_a_cut_only_the_missing_items_are_asked_for_again(store, client):
    total = sum(len(part) for part in __import__("scripted").frames_of(OBJECTS, [{"key": key} for key in KEYS]))
    for length in range(0, total, 97):
        store.posts.clear()
        store.script = [cut(length)]
        assert client.read_many("bucket", KEYS) == VALUES
        first, *second = store.posts
        assert first == KEYS
        if second:  # without a second, the cut was in the end frame
            assert second[0] == KEYS[len(KEYS) - len(second[0]):]


def test_tries_are_counted_since_something_last_came(store, client):
    """Twenty connections, each good for one item, with two retries."""
    store.script = [lambda frames, good: (200, FRAMES, b"".join(frames[:3]), True)] * 19
    assert client.read_many("bucket", KEYS) == VALUES
    assert len(store.posts) > 5


def test_an_altered_frame_is_asked_for_again(store, client):
    def alter(frames, good):
        broken = bytearray(good[2])
        broken[len(broken) // 2] ^= 1
        return 200, FRAMES, bytes(broken)

    store.script = [alter]
    assert client.read_many("bucket", KEYS) == VALUES
    assert len(store.posts) == 2 and 0 < len(store.posts[1]) < len(KEYS)


def test_no_whole_answer_after_all_tries_is_an_error(store, client):
    store.script = [cut(30)] * 3
    with pytest.raises(UnreachableError, match=store.endpoint) as error:
        client.read_many("bucket", KEYS)
    assert isinstance(error.value, ConnectionError) and error.value.__cause__ is not None
    assert len(store.posts) == 3


def failing_item(status, position=1):
    """Returns a step in which one item fails half way and the other arrives."""
    def step(frames, good):
        parts = [
            frame(0, head=head(3), body=b"one"), frame(1, flags=1, head=head(6), body=b"abc"),
            frame(1, status, flags=2, head=b'{"code": "Scripted", "message": "half way"}'), end(2),
        ]
        return 200, FRAMES, b"".join(parts)

    return step


def test_an_item_that_fails_half_way_is_asked_for_again(store, client):
    store.objects = {"a": b"one", "b": b"abcdef"}
    store.script = [failing_item(503)]
    assert client.read_many("bucket", ["a", "b"]) == [b"one", b"abcdef"]
    assert store.posts == [["a", "b"], ["b"]]


def test_an_item_that_keeps_failing_gets_its_error(store, client):
    def only(frames, good):
        return 200, FRAMES, frame(0, 500, head=b'{"code": "Scripted", "message": "again"}') + end(1)

    store.objects = {"a": b"one"}
    store.script = [failing_item(500), only, only, only]
    one, failed = client.read_many("bucket", ["a", "b"], missing="return")
    assert one == b"one" and isinstance(failed, S3Error) and (failed.status, failed.code, failed.key) == (500, "Scripted", "b")
    assert store.posts == [["a", "b"], ["b"], ["b"]]


def test_an_item_that_fails_for_good_half_way_is_not_asked_for_again(store, client):
    store.script = [failing_item(403)]
    one, failed = client.read_many("bucket", ["a", "b"], missing="return")
    assert one == b"one" and isinstance(failed, PermissionError)
    assert len(store.posts) == 1


def test_a_busy_store_is_asked_again_and_a_refusal_is_final(store, client):
    store.script = [refuse(503, "SlowDown")] * 2
    assert client.read_many("bucket", KEYS) == VALUES
    assert len(store.posts) == 3
    store.script = [refuse(503, "SlowDown")] * 3
    with pytest.raises(S3Error, match="SlowDown"):
        client.read_many("bucket", KEYS)
    store.script = [refuse(404, "NoSuchBucket")]
    with pytest.raises(NotFound):
        client.read_many("bucket", KEYS)
    assert store.script == []


def test_single_requests_are_tried_again_when_that_may_help(store, client):
    store.script = [refuse(503, "SlowDown"), refuse(500, "InternalError")]
    assert client.exists("bucket", "k01") and len(store.gets) == 3
    store.script = [refuse(503, "SlowDown")] * 3
    with pytest.raises(S3Error, match="503"):
        client.head("bucket", "k01")
    store.script = [refuse(403, "AccessDenied")]
    with pytest.raises(PermissionError):
        client.head("bucket", "k01")
    assert len(store.gets) == 7


@pytest.mark.parametrize("answer", [
    refuse(405, "MethodNotAllowed"), refuse(501, "NotImplemented"), refuse(400, "BadRequest"),
    refuse(412, "PreconditionFailed"), refuse(404, "NoSuchUpload"), refuse(200, "", "text/html"),
], ids=["405", "501", "400", "412", "404", "200 of another kind"])
def test_a_store_without_batch_reads_is_asked_by_gets_and_once_only(store, client, answer):
    store.script = [answer]
    assert client.read_many("bucket", KEYS) == VALUES
    assert sorted(key for key, _ in store.gets) == KEYS
    results = list(client.iter_many("bucket", [*KEYS, "nothing"]))
    assert {result.item.key: result.data for result in results} == {**OBJECTS, "nothing": None}
    assert sorted(result.position for result in results) == list(range(21))
    assert (len(store.posts), client.batch_supported) == (1, False)


def test_a_store_that_has_answered_a_batch_read_is_not_doubted(store, client):
    assert client.read_many("bucket", KEYS) == VALUES
    store.script = [refuse(405, "MethodNotAllowed")]
    with pytest.raises(S3Error, match="MethodNotAllowed"):
        client.read_many("bucket", KEYS)
    assert client.batch_supported and store.gets == []


def test_batches_have_at_most_4096_items(store, client):
    keys = [KEYS[number % 20] for number in range(9001)]
    assert client.read_many("bucket", keys) == [OBJECTS[key] for key in keys]
    assert sum(map(len, store.posts)) == 9001 and max(map(len, store.posts)) <= 4096
    assert client.read_many("bucket", []) == [] and client.read_many("bucket", [Item("k", 5, 5)]) == [b""]
    assert sum(map(len, store.posts)) == 9001


def test_nobody_there_is_said_with_the_endpoint():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    client = Client(f"http://127.0.0.1:{port}", access_key="a", secret_key="b", retries=1)
    with pytest.raises(UnreachableError, match=f"127.0.0.1:{port}"):
        client.read_many("bucket", ["k"])


def merged(store, work):
    async def scenario():
        async with AsyncClient(store.endpoint, access_key="a", secret_key="b", retries=0) as client:
            return await work(client)

    return asyncio.run(scenario())


def test_reads_of_one_turn_of_the_loop_are_one_batch(store):
    async def work(client):
        assert await client.get_merged("bucket", "k05") == OBJECTS["k05"]
        assert (len(store.gets), store.posts) == (1, [])  # alone, and at once
        assert await asyncio.gather(*[client.get_merged("bucket", key) for key in KEYS]) == VALUES
        assert (len(store.gets), store.posts) == (1, [KEYS])
        errors = await asyncio.gather(
            client.get_merged("bucket", "k01"), client.get_merged("bucket", "none"), return_exceptions=True
        )
        assert errors[0] == OBJECTS["k01"] and isinstance(errors[1], NotFound)

    merged(store, work)


def test_a_failed_request_fails_all_reads_that_share_it_and_no_others(store):
    async def work(client):
        store.script = [refuse(403, "AccessDenied")]
        errors = await asyncio.gather(*[client.get_merged("bucket", key) for key in KEYS], return_exceptions=True)
        assert len(errors) == 20 and all(isinstance(error, PermissionError) for error in errors)
        assert await asyncio.gather(*[client.get_merged("bucket", key) for key in KEYS]) == VALUES

    merged(store, work)


@pytest.mark.parametrize("item", ["", "\ud800", Item("k", -5, 7), Item("k", 0, -7)])
def test_an_impossible_item_fails_alone_and_before_it_is_sent(store, item):
    async def work(client):
        reads = [client.get_merged("bucket", key) for key in KEYS[:3]]
        *values, error = await asyncio.gather(*reads, client.get_merged("bucket", item), return_exceptions=True)
        assert values == VALUES[:3] and isinstance(error, ValueError)
        with pytest.raises(ValueError):
            await client.read_many("bucket", ["k01", item])
        assert store.posts == [KEYS[:3]]

    merged(store, work)


def test_a_cancelled_read_leaves_the_others_alone(store):
    async def work(client):
        tasks = [asyncio.ensure_future(client.get_merged("bucket", key)) for key in KEYS]
        await asyncio.sleep(0)
        tasks[3].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results.pop(3), asyncio.CancelledError)
        assert results == VALUES[:3] + VALUES[4:]

    merged(store, work)


def test_the_file_system_reads_many_paths_by_one_request(store):
    fs = StriateFileSystem(store.endpoint, key="a", secret="b", skip_instance_cache=True)
    assert fs.cat([f"bucket/{key}" for key in KEYS]) == {f"bucket/{key}": OBJECTS[key] for key in KEYS}
    assert store.posts == [KEYS]
    read = fs.cat_ranges([f"bucket/{key}" for key in KEYS], 0, None)
    assert read == VALUES and store.posts == [KEYS, KEYS] and store.gets == []


def test_the_file_system_merges_single_reads_of_threads(store):
    """The first read goes alone; reads that come while it is in flight share requests."""
    fs = StriateFileSystem(store.endpoint, key="a", secret="b", skip_instance_cache=True)
    with ThreadPoolExecutor(20) as pool:
        read = list(pool.map(lambda key: fs.cat_file(f"bucket/{key}"), KEYS * 10))
    assert read == VALUES * 10
    assert len(store.posts) + len(store.gets) < 200 and max(map(len, store.posts)) > 1


def test_a_broken_download_goes_on_where_it_broke(store, client):
    data = bytes(range(256)) * 10
    store.objects = {"k": data}

    def rest(frames, good):
        return 206, "text/plain", data[1000:], False, {"content-range": f"bytes 1000-{len(data) - 1}/{len(data)}"}

    breaking = {"content-length": str(len(data))}
    store.script = [lambda frames, good: (200, "text/plain", data[:1000], True, breaking), rest]
    assert client.get("bucket", "k") == data
    headers = {name.lower(): value for name, value in store.gets[1][1].items()}
    assert (headers["range"], headers["if-match"]) == (f"bytes=1000-{len(data) - 1}", '"e"')


def test_a_download_never_mixes_two_versions(store, client):
    data = bytes(range(256)) * 10
    store.objects = {"k": data}
    breaking = {"content-length": str(len(data))}
    store.script = [lambda frames, good: (200, "text/plain", data[:1000], True, breaking), refuse(412, "PreconditionFailed")]
    with pytest.raises(PreconditionFailed):
        client.get("bucket", "k")


def test_a_slow_reader_makes_the_store_wait():
    """However many results there are, few are in memory."""
    given = []

    class Reader:
        async def read(self, bucket, items, deliver):
            for position, item in enumerate(items):
                await deliver(Result(position, item, b""))
                given.append(position)

    async def scenario():
        taken = 0
        async for _ in ResultStream(Reader(), "bucket", [Item("k")] * 1000):
            taken += 1
            await asyncio.sleep(0)
            assert len(given) <= taken + 2 * MOST_WAITING
        assert taken == 1000

    asyncio.run(scenario())


def test_errors_reach_who_reads_a_stream(store, client):
    store.script = [refuse(403, "AccessDenied")]
    with pytest.raises(PermissionError):
        list(client.iter_many("bucket", KEYS))
