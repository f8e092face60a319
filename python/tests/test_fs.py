"""The file system against a real server: fsspec's own suite, and tests of what it leaves out."""

import asyncio
import io
import os
import pickle
import shutil
import uuid

import fsspec
import pytest
from fsspec.tests.abstract import AbstractCopyTests, AbstractFixtures, AbstractGetTests, AbstractPutTests

try:
    from fsspec.tests.abstract.open import AbstractOpenTests
    from fsspec.tests.abstract.pipe import AbstractPipeTests
except ImportError:  # before 2024.9
    AbstractOpenTests = AbstractPipeTests = type("Absent", (), {})

import striate
from striate import AlreadyExists, Client, ConfigurationError, PreconditionFailed
from striate.fs import StriateFileSystem


@pytest.fixture
def fs(options):
    StriateFileSystem.clear_instance_cache()
    return fsspec.filesystem("striate", **options)


class StriateFixtures(AbstractFixtures):
    @pytest.fixture(scope="class")
    @classmethod
    def fs(cls, options):
        fs = fsspec.filesystem("striate", **options)
        fs.mkdir("abstract-suite")
        yield fs
        fs.rm("abstract-suite", recursive=True)

    @pytest.fixture
    def supports_empty_directories(self):
        return False

    @pytest.fixture
    def fs_path(self):
        return "abstract-suite"


class TestCopy(AbstractCopyTests, StriateFixtures):
    pass


class TestGet(AbstractGetTests, StriateFixtures):
    pass


class TestPut(AbstractPutTests, StriateFixtures):
    pass


class TestOpen(AbstractOpenTests, StriateFixtures):
    pass


class TestPipe(AbstractPipeTests, StriateFixtures):
    pass


def fill(fs, bucket, *keys):
    fs.pipe({f"{bucket}/{key}": key.encode() for key in keys})


def test_cat_takes_many_paths_ranges_and_missing_files(fs, bucket):
    keys = [f"d/{number}" for number in range(30)]
    fill(fs, bucket, *keys)
    paths = [f"{bucket}/{key}" for key in keys]
    assert fs.cat(paths) == {path: key.encode() for path, key in zip(paths, keys)}
    assert fs.cat(f"{bucket}/d/1") == b"d/1" and fs.cat([f"{bucket}/d/1"]) == {f"{bucket}/d/1": b"d/1"}
    assert fs.cat(f"{bucket}/d", recursive=True) == fs.cat(f"striate://{bucket}/d/*") == fs.cat(paths)
    gone = f"{bucket}/gone"
    with pytest.raises(FileNotFoundError):
        fs.cat([paths[0], gone])
    assert fs.cat([paths[0], gone], on_error="omit") == {paths[0]: b"d/0"}
    assert isinstance(fs.cat([paths[0], gone], on_error="return")[gone], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat(gone)
    other = f"test-{uuid.uuid4().hex}"
    assert isinstance(fs.cat([f"{other}/a", paths[0]], on_error="return")[f"{other}/a"], FileNotFoundError)


def test_ranges_are_those_of_slices(fs, bucket):
    data = bytes(range(100))
    path = f"{bucket}/k"
    fs.pipe(path, data)
    bounds = [(None, None), (0, 10), (10, None), (None, 5), (-7, None), (-7, -3), (5, -5), (None, -90), (90, 200), (7, 7),
              (9, 3), (100, None), (200, 300)]
    for start, end in bounds:
        assert fs.cat_file(path, start=start, end=end) == data[start:end], (start, end)
    starts, ends = zip(*bounds)
    assert fs.cat_ranges([path] * len(bounds), list(starts), list(ends)) == [data[start:end] for start, end in bounds]
    assert fs.cat_ranges([path, path], 1, 3, max_gap=10) == [data[1:3]] * 2
    missing, there = fs.cat_ranges([f"{bucket}/gone", path], 0, 1)
    assert isinstance(missing, FileNotFoundError) and there == data[:1]
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges([f"{bucket}/gone"], 0, 1, on_error="raise")


def test_listings_are_trees(fs, bucket):
    fill(fs, bucket, "a", "d/b", "d/e/c", "d e/ü", "dd")
    Client(**vars(fs.client.settings)).put(bucket, "marked/", b"")

    def names(*below):
        return [f"{bucket}/{name}" for name in below]

    assert fs.ls(bucket, detail=False) == names("a", "d", "d e", "dd", "marked")
    assert fs.ls(f"striate://{bucket}/d/", detail=False) == names("d/b", "d/e")
    assert fs.ls(f"{bucket}/a", detail=False) == names("a") and fs.ls(f"{bucket}/marked") == []
    assert fs.find(bucket) == names("a", "d e/ü", "d/b", "d/e/c", "dd")
    assert fs.find(f"{bucket}/d", withdirs=True) == names("d", "d/b", "d/e", "d/e/c")
    assert fs.find(f"{bucket}/d", maxdepth=1) == names("d/b") and fs.find(f"{bucket}/a") == names("a")
    assert fs.find(f"{bucket}/gone") == []
    assert fs.glob(f"{bucket}/d*") == names("d", "d e", "dd") and fs.glob(f"{bucket}/**/c") == names("d/e/c")
    assert fs.glob(f"{bucket}/d/*") == names("d/b", "d/e") and fs.glob(f"{bucket}/x*") == []
    assert [(path, sorted(dirs), sorted(files)) for path, dirs, files in fs.walk(f"{bucket}/d")] == [
        (f"{bucket}/d", ["e"], ["b"]), (f"{bucket}/d/e", [], ["c"]),
    ]
    assert bucket in fs.ls("", detail=False) and fs.isdir("") and fs.isdir(bucket)
    assert fs.isdir(f"{bucket}/d/e") and fs.isdir(f"{bucket}/marked") and fs.isfile(f"{bucket}/d/e/c")
    assert not fs.exists(f"{bucket}/d/e/c/x") and not fs.exists("no-such-bucket/x") and not fs.exists("no-such-bucket")
    assert fs.du(f"{bucket}/d") == len("d/b") + len("d/e/c")
    for gone in (f"{bucket}/gone", "no-such-bucket", "no-such-bucket/x"):
        with pytest.raises(FileNotFoundError):
            fs.ls(gone)
        with pytest.raises(FileNotFoundError):
            fs.info(gone)


@pytest.mark.parametrize("listed", [False, True])
def test_info_says_the_same_with_and_without_a_listing(fs, bucket, listed):
    fs.pipe(f"{bucket}/d/k", b"12345")
    if listed:
        fs.find(bucket)
    info = fs.info(f"{bucket}/d/k")
    assert (info["name"], info["size"], info["type"]) == (f"{bucket}/d/k", 5, "file")
    assert info["ETag"] == '"827ccb0eea8a706c4c34a16891f84e7b"' and info["LastModified"].tzinfo is not None
    assert fs.modified(f"{bucket}/d/k") == info["LastModified"] and fs.size(f"{bucket}/d/k") == 5
    directory = fs.info(f"{bucket}/d")
    assert directory == {"name": f"{bucket}/d", "size": 0, "type": "directory"}


def test_what_is_written_is_listed_at_once(fs, bucket, tmp_path):
    def seen():
        return [name.rpartition("/")[2] for name in fs.ls(f"{bucket}/d", detail=False)]

    local = tmp_path / "local"
    local.write_bytes(b"local")
    fs.pipe(f"{bucket}/d/one", b"1")
    assert seen() == ["one"]
    fs.put_file(str(local), f"{bucket}/d/two")
    assert seen() == ["one", "two"]
    fs.cp_file(f"{bucket}/d/two", f"{bucket}/d/three")
    assert seen() == ["one", "three", "two"]
    with fs.open(f"{bucket}/d/four", "wb") as file:
        file.write(b"4444")
    assert seen() == ["four", "one", "three", "two"]
    assert fs.info(f"{bucket}/d/four")["size"] == 4
    fs.pipe(f"{bucket}/d/four", b"now six")
    assert fs.info(f"{bucket}/d/four")["size"] == 7
    fs.mv(f"{bucket}/d/four", f"{bucket}/d/five")
    assert seen() == ["five", "one", "three", "two"]
    fs.rm_file(f"{bucket}/d/one")
    fs.rm([f"{bucket}/d/two", f"{bucket}/d/three"])
    assert seen() == ["five"]
    fs.pipe(f"{bucket}/d/deep/er/k", b"")
    assert seen() == ["deep", "five"] and fs.find(f"{bucket}/d") == [f"{bucket}/d/deep/er/k", f"{bucket}/d/five"]
    fs.rm(f"{bucket}/d", recursive=True)
    assert not fs.exists(f"{bucket}/d") and not fs.exists(f"{bucket}/d/deep/er") and fs.ls(bucket) == []


def files_below(directory):
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def test_no_key_is_written_outside_the_target_and_the_rest_is_copied(fs, bucket, client, tmp_path):
    keys = ["good", "sub/good", "../esc1", "sub/../../../esc2", "sub/../inside", "./dot", "..", "sub/.."]
    for key in keys:
        client.put(bucket, key, b"x")
    target = tmp_path / "a" / "b" / "target"
    for spelling in (str(target), str(target) + "/", target):
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        with pytest.raises(striate.LeftOut) as failure:
            fs.get(f"{bucket}/", spelling, recursive=True)
        assert files_below(tmp_path) == ["a/b/target/good", "a/b/target/sub/good"]
        named = {path.split("/", 1)[1] for path in failure.value.paths}
        assert named == {key for key in keys if "good" not in key}
        assert "esc1" in str(failure.value)
        fs.invalidate_cache()
    flat = tmp_path / "flat"
    with pytest.raises(striate.LeftOut):
        fs.get([f"{bucket}/good", f"{bucket}/.."], str(flat) + "/")
    assert files_below(flat) == ["good"]
    chosen = tmp_path / "chosen"
    fs.get([f"{bucket}/../esc1"], [str(chosen)])  # the caller names the file
    assert chosen.read_bytes() == b"x"


def test_what_others_write_is_seen_after_a_refresh(fs, bucket, client):
    fs.pipe(f"{bucket}/one", b"1")
    assert len(fs.ls(bucket)) == 1
    client.put(bucket, "two", b"2")
    assert len(fs.ls(bucket)) == 1 and len(fs.ls(bucket, refresh=True)) == 2
    client.put(bucket, "three", b"3")
    fs.invalidate_cache()
    assert len(fs.ls(bucket)) == 3
    assert fs.exists(f"{bucket}/three") and fs.cat(f"{bucket}/three") == b"3"


def test_a_listing_that_a_write_overtakes_is_not_kept(options, bucket):
    async def scenario():
        fs = StriateFileSystem(**options, asynchronous=True, skip_instance_cache=True)
        await fs._pipe_file(f"{bucket}/one", b"1")
        pages = fs.client.pages

        async def overtaken(*arguments, **more):
            async for page in pages(*arguments, **more):
                await fs._pipe_file(f"{bucket}/two", b"2")
                yield page

        fs.client.pages = overtaken
        await fs._ls(bucket)
        fs.client.pages = pages
        assert [entry["name"] for entry in await fs._ls(bucket)] == [f"{bucket}/one", f"{bucket}/two"]
        await fs.client.close()

    asyncio.run(scenario())


def test_buckets_are_made_and_removed(fs):
    bucket = f"test-{uuid.uuid4().hex}"
    fs.mkdir(bucket)
    with pytest.raises(FileExistsError):
        fs.mkdir(bucket)
    fs.makedirs(f"{bucket}/below", exist_ok=True)
    fs.makedirs(bucket, exist_ok=True)
    fs.pipe(f"{bucket}/below/k", b"x")
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir(bucket)
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir(f"{bucket}/below")
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{bucket}/gone", recursive=True)
    fs.rm(bucket, recursive=True)
    assert not fs.exists(bucket)
    with pytest.raises(FileNotFoundError):
        fs.mkdir(f"{bucket}/below", create_parents=False)
    fs.mkdir(f"{bucket}/below")
    assert fs.isdir(bucket)
    fs.rmdir(bucket)
    assert not fs.exists(bucket)


@pytest.mark.parametrize("length", [0, 1000, 5 << 20, (12 << 20) + 5])
def test_files_are_written_in_parts_and_read_in_blocks(fs, bucket, body, length):
    data, path = body(length), f"striate://{bucket}/file"
    with fs.open(path, "wb") as file:
        for start in range(0, length, 1_000_003):
            file.write(data[start:start + 1_000_003])
    assert fs.cat(path) == data
    with fs.open(path, "rb", block_size=1 << 20) as file:
        assert file.read(10) == data[:10] and file.seek(length // 2) == length // 2
        assert file.read() == data[length // 2:] and file.read() == b""
        assert file.size == length
    assert fs.info(path)["ETag"].endswith('-3"' if length > 10 << 20 else '"')
    with fs.open(path, "ab") as file:
        assert file.tell() == length
        file.write(b"more")
    assert fs.cat(path) == data + b"more"


def test_a_file_appears_when_it_is_closed_and_only_then(fs, bucket, body):
    path = f"{bucket}/file"
    file = fs.open(path, "wb")
    file.write(body(7 << 20))
    assert not fs.exists(path)
    file.close()
    assert fs.cat(path) == body(7 << 20)
    with fs.transaction:
        for name in ("x", "y"):
            with fs.open(f"{bucket}/{name}", "wb") as file:
                file.write(body(6 << 20 if name == "x" else 6))
        assert not fs.exists(f"{bucket}/x")
    assert fs.cat(f"{bucket}/x") == body(6 << 20) and fs.cat(f"{bucket}/y") == body(6)
    with pytest.raises(ZeroDivisionError), fs.transaction:
        with fs.open(f"{bucket}/z", "wb") as file:
            file.write(body(6 << 20))
        1 / 0
    assert not fs.exists(f"{bucket}/z")


def test_new_files_only_are_new(fs, bucket):
    fs.pipe(f"{bucket}/k", b"old")
    with pytest.raises(FileExistsError):
        fs.pipe_file(f"{bucket}/k", b"new", mode="create")
    with pytest.raises(FileExistsError):
        fs.open(f"{bucket}/k", "xb")
    with pytest.raises(AlreadyExists), fs.open(f"{bucket}/raced", "xb") as file:
        file.write(b"new")
        fs.pipe(f"{bucket}/raced", b"first")
    assert fs.cat(f"{bucket}/raced") == b"first"
    assert fs.cat(f"{bucket}/k") == b"old"
    with fs.open(f"{bucket}/new", "xb") as file:
        file.write(b"new")
    assert fs.cat(f"{bucket}/new") == b"new"


def test_an_open_file_is_one_version(fs, bucket, client, body):
    fs.pipe(f"{bucket}/k", body(3 << 20))
    with fs.open(f"{bucket}/k", block_size=1 << 20) as file:
        assert file.read(5) == body(3 << 20)[:5]
        client.put(bucket, "k", b"x" * (3 << 20))
        with pytest.raises(PreconditionFailed, match="open it again"):
            file.seek(2 << 20)
            file.read()
    with fs.open(f"{bucket}/k") as file:
        assert file.read() == b"x" * (3 << 20)


def test_large_values_go_in_parts(fs, bucket, body, tmp_path):
    data = body(13 << 20)
    fs.pipe_file(f"{bucket}/k", data, chunksize=5 << 20)
    assert fs.info(f"{bucket}/k")["ETag"].endswith('-3"')
    (tmp_path / "in").write_bytes(data)
    fs.put(str(tmp_path / "in"), f"{bucket}/put/", chunksize=6 << 20)
    fs.get(f"{bucket}/put/in", str(tmp_path / "out"))
    assert fs.cat(f"{bucket}/k") == (tmp_path / "out").read_bytes() == data


def test_progress_is_told(fs, bucket, body, tmp_path):
    from fsspec.callbacks import Callback

    fs.pipe(f"{bucket}/k", body(100_000))
    got, put = Callback(), Callback()
    fs.get_file(f"{bucket}/k", str(tmp_path / "k"), callback=got)
    fs.put_file(str(tmp_path / "k"), f"{bucket}/l", callback=put)
    assert (got.size, got.value, put.size, put.value) == (100_000,) * 4
    target = io.BytesIO()
    fs.get_file(f"{bucket}/l", target)
    assert target.getvalue() == body(100_000)


def test_text_and_urls(fs, bucket):
    import urllib.request

    with fs.open(f"{bucket}/text", "w", encoding="utf-8") as file:
        file.write("äöü\nzwei\n")
    with fs.open(f"{bucket}/text", "r", encoding="utf-8") as file:
        assert list(file) == ["äöü\n", "zwei\n"]
    assert urllib.request.urlopen(fs.sign(f"{bucket}/text")).read() == "äöü\nzwei\n".encode()
    assert fs.head(f"{bucket}/text", 3) == "äö".encode()[:3] and fs.checksum(f"{bucket}/text") > 0


def test_many_cat_file_calls_at_once_in_one_loop(options, bucket, body):
    async def scenario():
        fs = StriateFileSystem(**options, asynchronous=True, skip_instance_cache=True)
        await asyncio.gather(*[fs._pipe_file(f"{bucket}/{number}", body(number * 1000)) for number in range(100)])
        read = await asyncio.gather(*[fs._cat_file(f"{bucket}/{number}") for number in range(100)])
        assert read == [body(number * 1000) for number in range(100)]
        await fs.client.close()

    asyncio.run(scenario())


def test_the_file_system_can_be_pickled_and_used_after_a_fork(fs, bucket):
    fs.pipe(f"{bucket}/k", b"x")
    again = pickle.loads(pickle.dumps(fs))
    assert again.cat(f"{bucket}/k") == b"x"
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write_end, fs.cat(f"{bucket}/k") + fs.cat([f"{bucket}/k"])[f"{bucket}/k"])
        finally:
            os._exit(0)
    os.close(write_end)
    os.waitpid(child, 0)
    assert os.read(read_end, 10) == b"xx"
    assert fs.cat(f"{bucket}/k") == b"x"  # the parent's connections still work


def test_s3_urls_are_opened_on_request_with_the_names_of_s3fs(options, bucket):
    from fsspec.registry import _registry

    try:
        striate.register_s3()
        theirs = {
            "key": options["access_key"], "secret": options["secret_key"],
            "client_kwargs": {"endpoint_url": options["endpoint"], "region_name": "us-east-1"},
        }
        with fsspec.open(f"s3://{bucket}/d/k", "wb", **theirs) as file:
            file.write(b"by s3")
        fs, path = fsspec.url_to_fs(f"s3://{bucket}/d/k", **theirs)
        assert isinstance(fs, StriateFileSystem) and path == f"{bucket}/d/k" and fs.cat(path) == b"by s3"
        again = fsspec.filesystem("s3", key=theirs["key"], secret=theirs["secret"], endpoint_url=options["endpoint"])
        assert again.ls(f"s3://{bucket}", detail=False) == [f"{bucket}/d"]
    finally:
        for protocol in ("s3", "s3a"):
            _registry.pop(protocol, None)


def test_unknown_options_are_refused(options):
    for wrong in ({"sekret": "x"}, {"client_kwargs": {"verify": False}}, {"endpoint_url": "http://other"}):
        with pytest.raises(ConfigurationError):
            StriateFileSystem(**options, **wrong, skip_instance_cache=True)
