"""s3cmd, unmodified."""

import pytest


@pytest.fixture
def s3cmd(run, server):
    options = [
        f"--access_key={server.credentials.access_key}", f"--secret_key={server.credentials.secret_key}",
        f"--host=127.0.0.1:{server.port}", f"--host-bucket=127.0.0.1:{server.port}", "--no-ssl", "--no-progress",
        "--config=/dev/null", "--region=us-east-1",
    ]
    return lambda *arguments: run("s3cmd", *options, *arguments)


def test_put_get_info_del(s3cmd, bucket, tmp_path, body):
    (tmp_path / "file").write_bytes(body(70_000))
    s3cmd("put", tmp_path / "file", f"s3://{bucket}/dir/file")
    assert "70000" in s3cmd("info", f"s3://{bucket}/dir/file")
    s3cmd("get", f"s3://{bucket}/dir/file", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == body(70_000)
    s3cmd("del", f"s3://{bucket}/dir/file")
    assert s3cmd("ls", "--recursive", f"s3://{bucket}") == ""


def test_sync_a_tree(s3cmd, bucket, tree, tmp_path, same_tree):
    s3cmd("sync", f"{tree}/", f"s3://{bucket}/tree/")
    s3cmd("sync", f"s3://{bucket}/tree/", f"{tmp_path}/")
    same_tree(tree, tmp_path)


def test_multipart(s3cmd, bucket, tmp_path, body):
    (tmp_path / "large").write_bytes(body(23 << 20))
    s3cmd("put", "--multipart-chunk-size-mb=5", tmp_path / "large", f"s3://{bucket}/large")
    s3cmd("get", f"s3://{bucket}/large", tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == body(23 << 20)
    assert s3cmd("multipart", f"s3://{bucket}").count("large") == 0


def test_make_and_remove_bucket(s3cmd, bucket):
    s3cmd("mb", f"s3://{bucket}-two")
    assert f"s3://{bucket}-two" in s3cmd("ls")
    s3cmd("rb", f"s3://{bucket}-two")


def test_copy_move_and_du(s3cmd, bucket, tmp_path, body):
    (tmp_path / "file").write_bytes(body(1000))
    s3cmd("put", tmp_path / "file", f"s3://{bucket}/a")
    s3cmd("cp", f"s3://{bucket}/a", f"s3://{bucket}/b")
    s3cmd("mv", f"s3://{bucket}/a", f"s3://{bucket}/c")
    assert s3cmd("du", f"s3://{bucket}").split()[0] == "2000"
