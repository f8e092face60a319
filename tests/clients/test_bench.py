"""`striate bench` as a client of the server under test."""

import json
import os
import subprocess

import pytest
from proving.servers import striate_binary


@pytest.fixture
def bench(server, bucket, tmp_path):
    """Runs `striate bench` with the given arguments; returns its results and its output."""

    def call(*arguments, status=0):
        result = tmp_path / "result.json"
        result.unlink(missing_ok=True)
        done = subprocess.run(
            [striate_binary(), "bench", "--endpoint", server.endpoint, "--bucket", bucket, "--quiet", "--json", result,
             *map(str, arguments)],
            env={**os.environ, "STRIATE_ACCESS_KEY": server.credentials.access_key,
                 "STRIATE_SECRET_KEY": server.credentials.secret_key},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
        )
        assert done.returncode == status, done.stdout + done.stderr
        rows = json.loads(result.read_text())["operations"] if result.exists() else []
        return {row["operation"]: row for row in rows}, done.stderr

    return call


def count(s3, bucket):
    return s3.list_objects_v2(Bucket=bucket).get("KeyCount", 0)


@pytest.mark.parametrize("letter", "abcdef")
def test_ycsb_reads_what_it_wrote(bench, s3, bucket, letter):
    options = ["--workload", f"ycsb-{letter}", "--objects", 60, "--size", "20KB", "--clients", 4, "--verify"]
    rows, said = bench(*options, "--operations", 150, "--load", "--clean")
    assert "loaded 60 of 60" in said
    assert sum(row["count"] for name, row in rows.items() if name != "all") == 150
    assert not any(row["errors"] for row in rows.values())
    assert count(s3, bucket) == 0


def test_pages_in_open_loop(bench):
    rows, _ = bench("--workload", "pages", "--objects", 10, "--size-scale", "0.02", "--rate", 50, "--operations", 60,
                    "--load", "--verify")
    assert rows["read"]["count"] == 60 and rows["read"]["objects"] >= 300 and not rows["read"]["errors"]


def test_bodies_may_be_signed_and_loading_goes_on_where_it_ended(bench, s3, bucket):
    options = ["--workload", "ycsb-a", "--objects", 30, "--size", "5KB", "--sign-bodies", "--verify"]
    bench(*options, "--operations", 50, "--load")
    s3.delete_object(Bucket=bucket, Key="striate-bench/ycsb-a/1/0000000003")
    s3.put_object(Bucket=bucket, Key="striate-bench/ycsb-a/1/0000000004", Body=b"other")
    _, said = bench(*options, "--duration", 0, "--load")
    assert "loaded 2 of 30" in said
    s3.put_object(Bucket=bucket, Key="striate-bench/ycsb-a/1/0000000000", Body=bytes(5000))
    rows, _ = bench("--workload", "ycsb-c", "--prefix", "striate-bench/ycsb-a/1/", "--objects", 1, "--size", "5KB",
                    "--operations", 5, "--clients", 1, "--verify", status=1)
    assert [(error["kind"], error["count"]) for error in rows["read"]["errors"]] == [("wrong contents", 5)]


def test_a_trace(bench, s3, bucket, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s,op,key,size,group\n0,PUT,x y/ü,70000,\n0.5,GET,x y/ü,70000,1\n0.5,GET,there,9,1\n"
                     "1,GET,gone,5,\n1.2,DELETE,x y/ü,,\n")
    options = ["--workload", "trace", "--trace", trace, "--verify"]
    bench(*options, "--duration", 0, "--load")
    s3.delete_object(Bucket=bucket, Key="striate-bench/trace/1/gone")
    rows, _ = bench(*options, status=1)
    assert rows["read"]["count"] == 1 and rows["read"]["objects"] == 2
    assert [error["kind"] for error in rows["read"]["errors"]] == ["NoSuchKey"]
    bench(*options, "--duration", 0, "--clean")
    assert count(s3, bucket) == 0
