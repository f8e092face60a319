"""Ctrl-C on `striate cp`: its exit status says so, and it leaves nothing behind on either side."""

import os
import signal
import subprocess
import time

import pytest
from proving.servers import striate_binary

# Large enough that a copy never ends before it is interrupted, and small enough to prepare in a second.
LENGTH = 192 << 20
INTERRUPTED = 130


@pytest.fixture
def copying(server):
    """Starts `striate cp FROM TO`, waits until `has_begun`, interrupts it, and returns its output."""

    def call(source, target, has_begun):
        process = subprocess.Popen(
            [striate_binary(), "cp", "--endpoint", server.endpoint, source, target],
            env={**os.environ, "STRIATE_ACCESS_KEY": server.credentials.access_key,
                 "STRIATE_SECRET_KEY": server.credentials.secret_key},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        deadline = time.monotonic() + 60
        while not has_begun():
            assert process.poll() is None and time.monotonic() < deadline, process.communicate()[0]
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=60)
        assert process.returncode == INTERRUPTED, said
        return said

    return call


def uploads(s3, bucket):
    return s3.list_multipart_uploads(Bucket=bucket).get("Uploads", [])


def test_an_interrupted_upload_leaves_no_object_and_no_parts(copying, s3, bucket, tmp_path, body):
    (tmp_path / "large").write_bytes(body(LENGTH))
    copying(tmp_path / "large", f"s3://{bucket}/large", lambda: uploads(s3, bucket))
    assert not uploads(s3, bucket)
    assert "Contents" not in s3.list_objects_v2(Bucket=bucket)


def test_an_interrupted_download_leaves_neither_a_file_nor_a_part_of_one(copying, s3, bucket, tmp_path, body):
    s3.put_object(Bucket=bucket, Key="large", Body=body(LENGTH))
    target = tmp_path / "downloads"
    target.mkdir()
    (target / "kept").write_bytes(b"older")
    copying(f"s3://{bucket}/large", target / "kept", lambda: len(list(target.iterdir())) > 1)
    assert [path.name for path in target.iterdir()] == ["kept"]
    assert (target / "kept").read_bytes() == b"older"
