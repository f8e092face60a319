"""The client against a real server."""

import asyncio
import pickle
import subprocess
import sys
import threading

import pytest
from conftest import KNOWS_BATCH
from striate import AsyncClient, Client, Forbidden, InvalidRange, Item, NotFound, PreconditionFailed, S3Error

STRANGE_KEYS = [
    "plain", "a/b/c", "a//b", "a/../b", "./a", "ends/", " spaces  and+plus", "ünï/日本語", "percent%20", "&<>\"'", "a?b#c",
    "tilde~", "dots...", "=&;:@,$!*()[]{}|\\^`",
]


@pytest.mark.parametrize("length", [0, 1, 1000, 300_000, 5 << 20])
def test_what_was_put_is_read_whole_and_in_ranges(client, bucket, body, length):
    data = body(length)
    written = client.put(bucket, "k", data, content_type="text/x-test", metadata={"Colour": "grün".encode().hex()})
    info = client.head(bucket, "k")
    assert (info.size, info.etag, info.content_type) == (length, written.etag, "text/x-test")
    assert info.metadata == {"colour": "grün".encode().hex()}
    assert client.get(bucket, "k") == data
    if length:
        assert client.get_range(bucket, "k", 0, 1) == data[:1]
        assert client.get_range(bucket, "k", length // 2) == data[length // 2:]
        assert client.get_range(bucket, "k", -7) == data[-7:]
        assert client.get_range(bucket, "k", 0, length + 99) == data
    assert client.get_range(bucket, "k", 3, 3) == b""


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_whatever_holds_bytes_can_be_put(client, bucket, body, kind):
    client.put(bucket, "k", kind(body(700_000)))
    assert client.get(bucket, "k") == body(700_000)


def test_strange_keys_round_trip(client, bucket):
    for key in STRANGE_KEYS:
        client.put(bucket, key, key.encode())
    assert [info.key for info in client.list(bucket)] == sorted(STRANGE_KEYS, key=str.encode)
    assert client.read_many(bucket, STRANGE_KEYS) == [key.encode() for key in STRANGE_KEYS]
    assert [client.get(bucket, key) for key in STRANGE_KEYS] == [key.encode() for key in STRANGE_KEYS]
    assert client.delete_many(bucket, STRANGE_KEYS) == []
    assert list(client.list(bucket)) == []


def test_listings_span_pages(client, bucket):
    async def fill():
        async with AsyncClient(**vars(client.settings)) as many:
            await asyncio.gather(*[many.put(bucket, f"many/{number:04}", b"") for number in range(1050)])

    asyncio.run(fill())
    assert [info.key for info in client.list(bucket, "many/")] == [f"many/{number:04}" for number in range(1050)]
    assert len(list(client.list(bucket, "many/10"))) == 50
    assert client.delete_many(bucket, [f"many/{number:04}" for number in range(1050)]) == []
    assert list(client.list(bucket)) == []


def test_errors_have_the_class_that_callers_expect(client, bucket, options):
    with pytest.raises(FileNotFoundError) as missing:
        client.get(bucket, "nothing")
    assert (missing.value.code, missing.value.status, missing.value.key) == ("NoSuchKey", 404, "nothing")
    with pytest.raises(NotFound):
        client.head(bucket, "nothing")
    with pytest.raises(NotFound, match="NoSuchBucket"):
        client.read_many("no-such-bucket", ["k"])
    with pytest.raises(NotFound, match="NoSuchBucket"):
        client.get("no-such-bucket", "k")
    client.put(bucket, "k", b"12345")
    with pytest.raises(InvalidRange):
        client.get_range(bucket, "k", 5)
    with pytest.raises(PreconditionFailed):
        client.put(bucket, "k", b"", if_none_match="*")
    with pytest.raises(PreconditionFailed):
        client.get(bucket, "k", if_match='"0000"')
    with pytest.raises(Forbidden, match="SignatureDoesNotMatch") as forged:
        Client(**{**options, "secret_key": "wrong"}).get(bucket, "k")
    assert isinstance(forged.value, PermissionError)
    with pytest.raises(Forbidden):
        Client(options["endpoint"], anonymous=True).read_many(bucket, ["k"])
    assert not client.exists(bucket, "nothing") and client.exists(bucket, "k")
    assert not client.bucket_exists("no-such-bucket") and client.bucket_exists(bucket)


def test_errors_can_be_pickled(client, bucket):
    with pytest.raises(NotFound) as missing:
        client.get(bucket, "nothing")
    again = pickle.loads(pickle.dumps(missing.value))
    assert (type(again), str(again), again.code) == (NotFound, str(missing.value), "NoSuchKey")


def test_read_many_gives_each_item_its_bytes_or_its_error(client, bucket, body):
    sizes = {f"object-{number}": number * number * 977 for number in range(40)}
    for key, size in sizes.items():
        client.put(bucket, key, body(size))
    etag = client.head(bucket, "object-5").etag
    items = [
        *sizes, "nothing", Item("object-9", 10, 20), Item("object-9", -5), ("object-9", 7, 9), Item("object-5", if_match=etag),
        Item("object-5", if_match='"0000"'), Item("object-9", 1 << 40), Item("object-1", 5, 5), "object-9", "object-9",
    ]
    results = client.read_many(bucket, items, missing="return")
    assert results[:40] == [body(size) for size in sizes.values()]
    nine = body(81 * 977)
    kinds = [(type(result), result.code) if isinstance(result, S3Error) else result for result in results[40:]]
    assert kinds == [
        (NotFound, "NoSuchKey"), nine[10:20], nine[-5:], nine[7:9], body(25 * 977), (PreconditionFailed, "PreconditionFailed"),
        (InvalidRange, "InvalidRange"), b"", nine, nine,
    ]
    assert results[40].key == "nothing"
    assert client.batch_supported is KNOWS_BATCH
    with pytest.raises(NotFound):
        client.read_many(bucket, items)
    assert client.read_many(bucket, []) == []


def test_large_objects_come_whole_between_small_ones(client, bucket, body):
    sizes = [1, 5 << 20, 10, (1 << 20) + 1, 1 << 20, 0, 9_999_999]
    for number, size in enumerate(sizes):
        client.put(bucket, f"{number}", body(size, number))
    assert client.read_many(bucket, [f"{number}" for number in range(7)]) == [body(size, n) for n, size in enumerate(sizes)]


def test_more_items_than_a_batch_may_have(client, bucket):
    for number in range(10):
        client.put(bucket, f"{number}", b"%d" % number)
    count = 9000 if KNOWS_BATCH else 1000
    keys = [f"{number % 10}" for number in range(count)]
    fresh = Client(**vars(client.settings))
    assert fresh.read_many(bucket, keys) == [key.encode() for key in keys]
    assert sorted(result.position for result in fresh.iter_many(bucket, keys)) == list(range(count))


def test_iter_many_gives_every_result_once_and_may_be_left_early(client, bucket, body):
    keys = [f"{number:03}" for number in range(200)]
    for key in keys:
        client.put(bucket, key, body(2000, key))
    results = list(client.iter_many(bucket, [*keys, "nothing"]))
    assert sorted(result.position for result in results) == list(range(201))
    for result in results:
        if result.position == 200:
            assert isinstance(result.error, NotFound) and result.data is None
        else:
            assert result.unwrap() == body(2000, result.item.key) and result.item.key == keys[result.position]
    for result in client.iter_many(bucket, keys):
        break
    assert client.get(bucket, "000") == body(2000, "000")


def test_the_asynchronous_client_does_the_same(options, bucket, body):
    async def scenario():
        async with AsyncClient(**options) as client:
            await asyncio.gather(*[client.put(bucket, f"{number}", body(number)) for number in range(50)])
            keys = [f"{number}" for number in range(50)]
            assert await client.read_many(bucket, keys) == [body(number) for number in range(50)]
            seen = [result.position async for result in client.iter_many(bucket, keys)]
            assert sorted(seen) == list(range(50))
            assert {info.key async for info in client.list(bucket)} == set(keys)
            reads = [client.get_merged(bucket, key) for key in [*keys, "nothing"]]
            merged = await asyncio.gather(*reads, return_exceptions=True)
            assert merged[:50] == [body(number) for number in range(50)] and isinstance(merged[50], NotFound)

    asyncio.run(scenario())


def test_one_asynchronous_client_serves_one_loop_after_another(options, bucket):
    client = AsyncClient(**options)
    for number in range(3):
        asyncio.run(client.put(bucket, "k", b"%d" % number))
        assert asyncio.run(client.get(bucket, "k")) == b"%d" % number


def test_the_synchronous_client_works_inside_a_running_loop(client, bucket):
    async def scenario():
        client.put(bucket, "k", b"inside")
        return client.read_many(bucket, ["k", "k"])

    assert asyncio.run(scenario()) == [b"inside", b"inside"]


def test_threads_share_a_client(client, bucket, body):
    keys = [f"{number:02}" for number in range(30)]
    for key in keys:
        client.put(bucket, key, body(10_000, key))
    wrong = []

    def work(seed):
        for round_number in range(10):
            mine = keys[seed % 7::3]
            if client.read_many(bucket, mine) != [body(10_000, key) for key in mine]:
                wrong.append(seed)
            key = keys[(seed + round_number) % 30]
            if client.get_merged(bucket, key) != body(10_000, key):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_files_go_in_and_out(client, bucket, body, tmp_path):
    for length in (0, 1000, 20 << 20):
        source, target = tmp_path / "in", tmp_path / "out"
        source.write_bytes(body(length))
        client.put_file(bucket, "file", source, part_bytes=6 << 20)
        assert client.head(bucket, "file").size == length
        client.get_file(bucket, "file", target)
        assert target.read_bytes() == body(length)
    assert client.head(bucket, "file").etag.endswith('-4"')
    with pytest.raises(NotFound):
        client.get_file(bucket, "nothing", tmp_path / "none")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in", "out"]


def test_copies_and_presigned_urls(client, bucket, body):
    import urllib.request

    client.put(bucket, "from +ü", body(1000))
    client.copy(bucket, "from +ü", bucket, "to")
    assert client.get(bucket, "to") == body(1000)
    with pytest.raises(NotFound):
        client.copy(bucket, "nothing", bucket, "to")
    url = client.presigned_url(bucket, "from +ü", 60)
    assert urllib.request.urlopen(url).read() == body(1000)


def test_clients_can_be_pickled(client, bucket):
    client.put(bucket, "k", b"x")
    assert pickle.loads(pickle.dumps(client)).get(bucket, "k") == b"x"


@pytest.mark.parametrize(
    "interrupt",
    ["signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)", "_thread.interrupt_main()"],
    ids=["that wakes", "just before the wait, which it does not wake"],
)
def test_ctrl_c_ends_a_wait_and_leaves_the_client_usable(options, bucket, interrupt):
    """The store is a socket that accepts and never answers. The interrupt comes while the client waits."""
    program = f"""
import _thread, signal, socket, sys, threading
from striate import Client
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where tests run in the background, and ignore it
silent = socket.create_server(("127.0.0.1", 0))
def accept():
    held, _ = silent.accept()
    held.recv(10)
    {interrupt}
    held.recv(1 << 20)
threading.Thread(target=accept, daemon=True).start()
waiting = Client(f"http://127.0.0.1:{{silent.getsockname()[1]}}", access_key="a", secret_key="b")
try:
    waiting.read_many("bucket", ["k"])
    sys.exit("read something")
except KeyboardInterrupt:
    pass
good = Client(**{options!r})
good.put({bucket!r}, "k", b"after")
print(good.get({bucket!r}, "k").decode())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr, done.returncode) == ("after\n", "", 0)


def test_a_process_ends_without_words_about_open_connections(options, bucket):
    program = f"""
import asyncio
from striate import AsyncClient, Client
client = Client(**{options!r})
client.put({bucket!r}, "k", b"x")
other = AsyncClient(**{options!r})
for _ in range(3):
    asyncio.run(other.get({bucket!r}, "k"))
asyncio.run(AsyncClient(**{options!r}).get({bucket!r}, "k"))
for result in client.iter_many({bucket!r}, ["k"] * 100):
    break
"""
    done = subprocess.run([sys.executable, "-X", "dev", "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "Unclosed" not in done.stderr and "never retrieved" not in done.stderr, done.stderr
