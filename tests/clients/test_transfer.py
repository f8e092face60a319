"""`striate cp`, `ls`, `rm` and `cat` as clients of the server under test."""

import json
import os
import subprocess
import uuid

import pytest
from proving.servers import striate_binary

# S3 takes keys literally. Clients that treat them as paths drop slashes, resolve dots and trim spaces, and then delete another object.
KEYS = ["a//b", "folder/", "folder", "/first", "a/./b", "a/../b", "..", " spaces at the ends ", "a+b%20c&d<e>", "ü/\u65e5\u672c",
        "line\nbreak", "?q=1#f"]
# MinIO keeps keys as paths.
PLAIN_KEYS = ["a b/c", "a+b%20c&d<e>", "ü/\u65e5\u672c"]


@pytest.fixture
def striate(server):
    """Runs `striate` with the given arguments; returns its output, or its error message if it fails as expected."""

    def call(*arguments, status=0, data=None, **variables):
        done = subprocess.run(
            [striate_binary(), *map(str, arguments)], input=data or b"", capture_output=True, timeout=120,
            env={**os.environ, "STRIATE_ENDPOINT": server.endpoint, "STRIATE_ACCESS_KEY": server.credentials.access_key,
                 "STRIATE_SECRET_KEY": server.credentials.secret_key, **variables},
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stderr.decode() if status else done.stdout

    return call


@pytest.fixture
def keys(s3, bucket):
    keys = PLAIN_KEYS if os.environ.get("TEST_SERVER") == "minio" else KEYS
    for key in keys:
        s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    return keys


def remaining(s3, bucket):
    return sorted(entry["Key"] for entry in s3.list_objects_v2(Bucket=bucket).get("Contents", []))


def test_every_key_is_its_own_object(striate, s3, bucket, keys):
    listed = striate("ls", "--recursive", f"s3://{bucket}").decode()
    assert all(f"  {key}\n".replace("\n", "\\n", key.count("\n")) in listed for key in keys), listed
    exact = [json.loads(line)["key"] for line in striate("ls", "--recursive", "--json", f"s3://{bucket}").splitlines()]
    assert sorted(exact) == sorted(keys)
    for key in keys:
        assert striate("cat", f"s3://{bucket}/{key}") == key.encode()
        striate("cp", "--quiet", "-", f"s3://{bucket}/{key}", data=b"new " + key.encode())
        assert s3.get_object(Bucket=bucket, Key=key)["Body"].read() == b"new " + key.encode()
        if not key.endswith("/"):
            striate("cp", "--quiet", f"s3://{bucket}/{key}", f"s3://{bucket}/copy")
            assert striate("cat", f"s3://{bucket}/copy") == b"new " + key.encode()
    striate("rm", f"s3://{bucket}/{keys[0]}")
    assert remaining(s3, bucket) == sorted(keys[1:] + ["copy"])


def test_a_bucket_is_emptied_of_every_key(striate, s3, bucket, keys):
    assert striate("rm", "--recursive", f"s3://{bucket}") == f"{len(keys)} objects deleted\n".encode()
    assert remaining(s3, bucket) == []


def test_nothing_moves_the_cursor_or_leaves_the_target(striate, s3, bucket, tmp_path):
    key = "\x1b]0;owned\x07\x1b[2J"
    for name in (key, ".."):
        s3.put_object(Bucket=bucket, Key=name, Body=b"x")
    said = striate("ls", f"s3://{bucket}").decode() + striate("cat", f"s3://{bucket}/{key}gone", status=1)
    assert said.count("owned") == 2 and "\x1b" not in said and "\x07" not in said
    target = tmp_path / "target"
    target.mkdir()
    assert "cannot be a file's name" in striate("cp", f"s3://{bucket}/..", target, status=1)
    assert list(tmp_path.iterdir()) == [target] and not list(target.iterdir())


def test_a_tree_for_a_missing_bucket_fails_once(striate, tmp_path):
    for number in range(20):
        (tmp_path / f"{number}").write_text("x")
    said = striate("cp", "--recursive", tmp_path, f"s3://nowhere-{uuid.uuid4().hex[:8]}/", status=1)
    assert len(said.splitlines()) == 1 and "striate bucket create" in said


def test_listings_by_page_and_delimiter(striate, s3, bucket):
    for number in range(1_050):
        s3.put_object(Bucket=bucket, Key=f"d {number % 3}/{number:04}", Body=b"")
    assert len(striate("ls", "--recursive", f"s3://{bucket}").splitlines()) == 1_050
    shown = striate("ls", f"s3://{bucket}").decode().splitlines()
    assert [line.strip() for line in shown] == ["d 0/", "d 1/", "d 2/"]
    assert bucket in striate("ls").decode()


def test_large_objects_go_up_in_parts_and_come_down_in_ranges(striate, s3, bucket, tmp_path, body):
    (tmp_path / "large").write_bytes(body(40_000_001))
    striate("cp", "--quiet", tmp_path / "large", f"s3://{bucket}/large")
    assert s3.head_object(Bucket=bucket, Key="large")["ETag"].endswith('-3"')
    striate("cp", "--quiet", f"s3://{bucket}/large", tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == body(40_000_001)


def test_failures_name_the_object_the_cause_and_the_way_out(striate, bucket, tmp_path):
    missing = f"s3://{bucket}/missing"
    assert f"{missing}: there is no such object or bucket" in striate("cat", missing, status=1)
    nowhere = f"s3://nowhere-{uuid.uuid4().hex[:8]}"
    assert "NoSuchBucket" in (said := striate("ls", nowhere, status=1)) and "striate bucket create" in said
    assert "check STRIATE_SECRET_KEY" in striate("ls", STRIATE_SECRET_KEY="wrong", status=1)
    assert "check STRIATE_ACCESS_KEY" in striate("ls", STRIATE_ACCESS_KEY="wrong", status=1)
    assert "cannot be signed" in striate("ls", STRIATE_ACCESS_KEY="line\nbreak", status=2)
    assert "is the server running there?" in striate("ls", "--endpoint", "http://127.0.0.1:1", status=1)
    assert "without a path" in striate("ls", "--endpoint", "http://127.0.0.1:1/path", status=2)
    (tmp_path / "empty.pem").touch()
    said = striate("ls", "--ca-file", tmp_path / "empty.pem", status=2)
    assert f"--ca-file {tmp_path}/empty.pem: it holds no certificate" in said
