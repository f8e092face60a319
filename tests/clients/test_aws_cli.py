"""aws-cli, unmodified."""

import hashlib
import itertools
import json
import os
import subprocess
import urllib.request
from concurrent.futures import ThreadPoolExecutor


def test_sync_up_and_down_keeps_every_byte(run, bucket, tree, tmp_path, same_tree):
    run("aws", "s3", "sync", "--quiet", tree, f"s3://{bucket}/tree")
    run("aws", "s3", "sync", "--quiet", f"s3://{bucket}/tree", tmp_path)
    same_tree(tree, tmp_path)


def test_sync_again_copies_nothing(run, bucket, tree):
    run("aws", "s3", "sync", "--quiet", tree, f"s3://{bucket}/tree")
    assert run("aws", "s3", "sync", tree, f"s3://{bucket}/tree") == ""


def test_sync_with_delete_removes_what_is_gone(run, bucket, tmp_path):
    for name in ("stays", "goes"):
        (tmp_path / name).write_text(name)
    run("aws", "s3", "sync", "--quiet", tmp_path, f"s3://{bucket}")
    (tmp_path / "goes").unlink()
    run("aws", "s3", "sync", "--quiet", "--delete", tmp_path, f"s3://{bucket}")
    assert run("aws", "s3", "ls", f"s3://{bucket}").split()[-1:] == ["stays"]


def test_multipart_of_a_large_file(run, bucket, tmp_path, full):
    size = (1 << 30) if full else (64 << 20)
    source, target = tmp_path / "large", tmp_path / "again"
    digest = hashlib.sha256()
    with open(source, "wb") as file:
        for _ in range(size >> 20):
            piece = os.urandom(1 << 20)
            digest.update(piece)
            file.write(piece)
    run("aws", "s3", "cp", "--quiet", source, f"s3://{bucket}/large")
    head = json.loads(run("aws", "s3api", "head-object", "--bucket", bucket, "--key", "large"))
    assert head["ContentLength"] == size
    assert head["ETag"].strip('"').endswith(f"-{size >> 23}")
    run("aws", "s3", "cp", "--quiet", f"s3://{bucket}/large", target)
    with open(target, "rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == digest.hexdigest()


def test_presigned_url_reads_without_a_key(run, bucket, tmp_path, body):
    (tmp_path / "file").write_bytes(body(5000))
    run("aws", "s3", "cp", "--quiet", tmp_path / "file", f"s3://{bucket}/dir/file")
    url = run("aws", "s3", "presign", f"s3://{bucket}/dir/file").strip()
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.read() == body(5000)


def test_list_ten_thousand_keys(run, s3, bucket, server, full):
    count = 10_000 if full else 2_500
    numbers = itertools.count()

    def put_some():
        client = server.client()
        while (number := next(numbers)) < count:
            client.put(bucket, f"keys/{number:05}", b"x")
        client.close()

    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(put_some) for _ in range(16)]:
            done.result()
    lines = run("aws", "s3", "ls", "--recursive", f"s3://{bucket}/").splitlines()
    assert [line.split()[-1] for line in lines] == [f"keys/{number:05}" for number in range(count)]


def test_mv_and_rm_recursive(run, bucket, tree):
    run("aws", "s3", "cp", "--quiet", "--recursive", tree / "many", f"s3://{bucket}/from")
    run("aws", "s3", "mv", "--quiet", "--recursive", f"s3://{bucket}/from", f"s3://{bucket}/to")
    assert len(run("aws", "s3", "ls", f"s3://{bucket}/to/").splitlines()) == 60
    run("aws", "s3", "rm", "--quiet", "--recursive", f"s3://{bucket}")
    run("aws", "s3", "rb", f"s3://{bucket}")


def test_pipe_in_and_out(run, bucket, server, environment, body):
    put = ["aws", "s3", "cp", "-", f"s3://{bucket}/stream"]
    assert subprocess.run(put, env=environment, input=body(9 << 20), timeout=120).returncode == 0
    get = ["aws", "s3", "cp", f"s3://{bucket}/stream", "-"]
    assert subprocess.run(get, env=environment, capture_output=True, timeout=120).stdout == body(9 << 20)
