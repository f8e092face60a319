"""Three members of etcd, control, six sites in three racks, three memory sites, two gateways: real processes, and boto3."""

import os
import random
import signal
import threading
import time

import pytest
from botocore.exceptions import ClientError

PATIENCE_S = 60


def noise(length, seed):
    return random.Random(seed).randbytes(length)


def until(is_so):
    ends = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < ends, "it does not become so"
        time.sleep(0.2)


@pytest.fixture(scope="module")
def gateways(cluster):
    first, second = cluster.s3(1), cluster.s3(2)
    first.create_bucket(Bucket="shared")
    return first, second


def test_what_one_gateway_acknowledged_the_other_reads_and_lists(gateways):
    for number, size in enumerate([0, 10, 5_000, 300_000, 9_000_000]):
        for writer, reader in [gateways, gateways[::-1]]:
            key = f"{number}/{gateways.index(writer)}"
            writer.put_object(Bucket="shared", Key=key, Body=noise(size, key))
            assert reader.get_object(Bucket="shared", Key=key)["Body"].read() == noise(size, key)
            listed = reader.list_objects_v2(Bucket="shared", Prefix=f"{number}/")["Contents"]
            assert key in [entry["Key"] for entry in listed]


def test_a_condition_holds_whichever_gateway_the_other_writer_used(gateways):
    first, second = gateways
    tag = first.put_object(Bucket="shared", Key="once", Body=b"1", IfNoneMatch="*")["ETag"]
    with pytest.raises(ClientError) as refused:
        second.put_object(Bucket="shared", Key="once", Body=b"2", IfNoneMatch="*")
    assert refused.value.response["Error"]["Code"] == "PreconditionFailed"
    second.put_object(Bucket="shared", Key="once", Body=b"3", IfMatch=tag)
    with pytest.raises(ClientError) as refused:
        first.put_object(Bucket="shared", Key="once", Body=b"4", IfMatch=tag)
    assert refused.value.response["Error"]["Code"] == "PreconditionFailed"
    assert first.get_object(Bucket="shared", Key="once")["Body"].read() == b"3"


def test_a_multipart_upload_may_change_gateways(gateways):
    first, second = gateways
    parts = [noise(5 << 20, number) for number in range(3)]
    upload = first.create_multipart_upload(Bucket="shared", Key="parts")["UploadId"]
    name = {"Bucket": "shared", "Key": "parts", "UploadId": upload}
    tags = []
    for number, part in enumerate(parts, 1):
        tag = gateways[number % 2].upload_part(**name, PartNumber=number, Body=part)["ETag"]
        tags.append({"PartNumber": number, "ETag": tag})
    second.complete_multipart_upload(**name, MultipartUpload={"Parts": tags})
    assert first.get_object(Bucket="shared", Key="parts")["Body"].read() == b"".join(parts)


def test_a_site_that_drains_takes_no_chunks_and_is_read(cluster, gateways):
    first, second = gateways
    first.put_object(Bucket="shared", Key="before", Body=noise(3_000_000, "before"))
    status, said = cluster.admin("site", "drain", 1)
    assert status == 0, said
    assert any(line.split()[:2] == ["1", "draining"] for line in cluster.admin("site", "list")[1].splitlines())

    def is_seen(gateway):
        said = cluster.striate("status", "--dir", cluster.folder / "id" / f"gateway{gateway}")[1]
        return "draining" in said

    until(lambda: is_seen(1) and is_seen(2))
    second.put_object(Bucket="shared", Key="during", Body=noise(3_000_000, "during"))
    for key in ["before", "during"]:
        assert first.get_object(Bucket="shared", Key=key)["Body"].read() == noise(3_000_000, key)
    status, said = cluster.admin("site", "resume", 1)
    assert status == 0, said


def test_it_is_the_same_cluster_after_a_restart(cluster, gateways):
    first, _ = gateways
    first.put_object(Bucket="shared", Key="kept", Body=noise(3_000_000, "kept"))
    cluster.stop()
    cluster.start()
    for gateway in 1, 2:
        assert cluster.s3(gateway).get_object(Bucket="shared", Key="kept")["Body"].read() == noise(3_000_000, "kept")
    for log in cluster.folder.glob("log/*.log"):
        assert "panicked at" not in log.read_text(errors="replace"), log


def test_control_brings_together_what_gateways_know_of_requests(cluster, gateways):
    for number in range(8):
        gateways[0].put_object(Bucket="shared", Key=f"hot/{number}", Body=noise(300_000, number))

    def are_reported():
        for gateway in gateways:
            for number in range(8):
                gateway.get_object(Bucket="shared", Key=f"hot/{number}")["Body"].read()
        status, shown = cluster.admin("access", "--hottest", "3")
        assert status == 0, shown
        return "gateway1" in shown and "gateway2" in shown and "popularity" in shown

    until(are_reported)


def served(cluster, gateway, how):
    return next(entry["reads"] for entry in cluster.cache(gateway)["reads"] if entry["how"] == how)


def test_what_one_gateway_has_read_the_other_reads_from_memory(cluster, gateways):
    until(lambda: all(site["state"] == "ok" for site in cluster.cache(1)["sites"]) and len(cluster.cache(1)["sites"]) == 3)
    first, second = gateways
    body = noise(7_000_000, "cached")
    first.put_object(Bucket="shared", Key="cached", Body=body)
    first.get_object(Bucket="shared", Key="cached")["Body"].read()
    until(lambda: cluster.cache(1)["fills"] >= 2)
    missed, hit = served(cluster, 2, "miss"), served(cluster, 2, "hit")
    assert second.get_object(Bucket="shared", Key="cached")["Body"].read() == body
    assert second.get_object(Bucket="shared", Key="cached", Range="bytes=4000000-5000000")["Body"].read() == body[4_000_000:5_000_001]
    assert served(cluster, 2, "miss") == missed and served(cluster, 2, "hit") > hit
    changed = noise(7_000_000, "changed")
    first.put_object(Bucket="shared", Key="cached", Body=changed)
    assert second.get_object(Bucket="shared", Key="cached")["Body"].read() == changed, "an overwrite is seen at once"


def test_memory_sites_die_under_reads_and_nobody_notices(cluster, gateways):
    bodies = {f"dies/{number}": noise(5_000_000, number) for number in range(4)}
    for key, body in bodies.items():
        gateways[0].put_object(Bucket="shared", Key=key, Body=body)
    wrong, stop = [], threading.Event()

    def read(gateway):
        while not stop.is_set():
            for key, body in bodies.items():
                try:
                    if gateway.get_object(Bucket="shared", Key=key)["Body"].read() != body:
                        wrong.append(key)
                except Exception as error:  # noqa: BLE001 - whatever it is, a reader has noticed it
                    wrong.append(f"{key}: {error}")

    readers = [threading.Thread(target=read, args=(gateway,)) for gateway in gateways]
    [reader.start() for reader in readers]
    for name in ["memory1", "memory2", "memory3"]:
        time.sleep(1)
        [number] = cluster.processes(name)
        os.kill(number, signal.SIGKILL)
    time.sleep(2)
    stop.set()
    [reader.join() for reader in readers]
    assert wrong == []
    assert served(cluster, 1, "bypass") > 0, "without a memory site reads pass by"
    cluster.stop()
    cluster.start()
