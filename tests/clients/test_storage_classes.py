"""Storage classes with boto3: objects keep and show them, copies change them, and a bucket maps them to profiles."""

import json

import pytest
from conftest import failing

CLASSES = ["REDUCED_REDUNDANCY", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"]
ONLY_ON_DISKS = "its objects are not on the store's disks"


def listed(s3, bucket):
    return {entry["Key"]: entry["StorageClass"] for entry in s3.list_objects_v2(Bucket=bucket)["Contents"]}


def head(s3, bucket, key):
    return s3.head_object(Bucket=bucket, Key=key).get("StorageClass", "STANDARD")


def copy(s3, bucket, source, key, **more):
    return s3.copy_object(Bucket=bucket, Key=key, CopySource={"Bucket": bucket, "Key": source}, **more)


@pytest.mark.minio_differs("it knows two classes")
def test_classes_are_kept_and_shown(s3, bucket):
    for name in CLASSES:
        s3.put_object(Bucket=bucket, Key=name, Body=b"x", StorageClass=name)
        assert head(s3, bucket, name) == name
    s3.put_object(Bucket=bucket, Key="STANDARD", Body=b"x", StorageClass="STANDARD")
    assert listed(s3, bucket) == {name: name for name in [*CLASSES, "STANDARD"]}
    with failing("InvalidStorageClass", 400):
        s3.put_object(Bucket=bucket, Key="archived", Body=b"x", StorageClass="DEEP_ARCHIVE")


@pytest.mark.minio_differs("it knows two classes")
def test_copies_have_the_class_that_they_ask_for(s3, bucket, body):
    data = body(300_000)
    s3.put_object(Bucket=bucket, Key="a", Body=data, StorageClass="STANDARD_IA", Metadata={"of": "a"})
    copy(s3, bucket, "a", "b", StorageClass="GLACIER_IR")
    copy(s3, bucket, "a", "c")
    assert listed(s3, bucket) == {"a": "STANDARD_IA", "b": "GLACIER_IR", "c": "STANDARD"}
    copy(s3, bucket, "a", "a", StorageClass="ONEZONE_IA")
    got = s3.get_object(Bucket=bucket, Key="a")
    assert (got["StorageClass"], got["Metadata"], got["Body"].read()) == ("ONEZONE_IA", {"of": "a"}, data)
    with failing("InvalidRequest", 400):
        copy(s3, bucket, "a", "a")


def profile(server, bucket, key):
    explained = json.loads(server.run("explain", f"s3://{bucket}/{key}", "--json"))
    return {block["profile"] for block in explained["query"]["blocks"]}


@pytest.mark.minio_differs("its buckets have no profiles")
@pytest.mark.front_differs(ONLY_ON_DISKS)
@pytest.mark.volatile_differs(ONLY_ON_DISKS)
def test_a_bucket_says_how_objects_of_a_class_are_written(s3, server, bucket, body):
    server.run("bucket", "set", bucket, "--class", "REDUCED_REDUNDANCY=rs(4,1)", "--class", "GLACIER_IR=rs(3,1)")
    assert "written as rs(4,1)" in server.run("bucket", "info", bucket)
    server.run("bucket", "set", bucket, "--class", "GLACIER_IR=")
    assert "GLACIER_IR" not in server.run("bucket", "info", bucket)

    data = body(2_000_000)
    s3.put_object(Bucket=bucket, Key="standard", Body=data)
    s3.put_object(Bucket=bucket, Key="reduced", Body=data, StorageClass="REDUCED_REDUNDANCY")
    upload = s3.create_multipart_upload(Bucket=bucket, Key="parts", StorageClass="REDUCED_REDUNDANCY")["UploadId"]
    where = {"Bucket": bucket, "Key": "parts", "UploadId": upload}
    part = s3.upload_part(**where, PartNumber=1, Body=data)
    s3.complete_multipart_upload(**where, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]})
    usual = profile(server, bucket, "standard")
    for key in ["reduced", "parts"]:
        assert profile(server, bucket, key) == {"rs(4,1)"} != usual
        assert head(s3, bucket, key) == "REDUCED_REDUNDANCY"

    # The code changes with the class, and only then.
    for name, expected in [("GLACIER_IR", usual), ("REDUCED_REDUNDANCY", {"rs(4,1)"}), ("STANDARD", usual)]:
        etag = copy(s3, bucket, "standard", "standard", StorageClass=name)["CopyObjectResult"]["ETag"]
        got = s3.get_object(Bucket=bucket, Key="standard")
        assert (got["ETag"], got["Body"].read() == data) == (etag, True)
        assert (head(s3, bucket, "standard"), profile(server, bucket, "standard")) == (name, expected)


@pytest.mark.minio_differs("its buckets have no profiles")
@pytest.mark.front_differs(ONLY_ON_DISKS)
@pytest.mark.volatile_differs(ONLY_ON_DISKS)
@pytest.mark.parametrize("told, reason", [
    ("REDUCED_REDUNDANCY=rs(6,2)", "needs 8 disks"),
    ("STANDARD_IA=wide(42,15,4)", "does not fit"),
    ("GLACIER=rs(4,1)", "is not a storage class"),
    ("STANDARD_IA", "NAME=PROFILE"),
])
def test_profiles_of_classes_that_do_not_fit_are_refused(server, bucket, told, reason):
    said = server.run("bucket", "set", bucket, "--class", told, check=False)
    assert server.last_status != 0 and reason in said, said
    assert "_REDUNDANCY" not in server.run("bucket", "info", bucket)
