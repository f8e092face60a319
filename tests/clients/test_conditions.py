"""Conditional requests with boto3: reads, writes, copies, multipart, and races."""

import datetime
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import ClientError
from conftest import failing

HOUR = datetime.timedelta(hours=1)


@pytest.fixture
def stored(s3, bucket):
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"first")["ETag"]
    return {"Bucket": bucket, "Key": "k"}, etag


def test_get_if_match(s3, stored):
    where, etag = stored
    assert s3.get_object(**where, IfMatch=etag)["Body"].read() == b"first"
    with failing("PreconditionFailed", 412):
        s3.get_object(**where, IfMatch='"0123"')


def test_get_if_none_match(s3, stored):
    where, etag = stored
    with failing("304", 304):
        s3.get_object(**where, IfNoneMatch=etag)
    assert s3.get_object(**where, IfNoneMatch='"0123"')["Body"].read() == b"first"


def test_get_by_date(s3, stored):
    where, _ = stored
    now = datetime.datetime.now(datetime.timezone.utc)
    assert s3.get_object(**where, IfModifiedSince=now - HOUR)["Body"].read() == b"first"
    assert s3.get_object(**where, IfUnmodifiedSince=now + HOUR)["Body"].read() == b"first"
    with failing("PreconditionFailed", 412):
        s3.get_object(**where, IfUnmodifiedSince=now - HOUR)


def test_head_with_conditions(s3, stored):
    where, etag = stored
    assert s3.head_object(**where, IfMatch=etag)["ETag"] == etag
    with failing("412", 412):
        s3.head_object(**where, IfMatch='"0123"')
    with failing("304", 304):
        s3.head_object(**where, IfNoneMatch=etag)


def test_put_only_if_absent(s3, stored):
    where, _ = stored
    with failing("PreconditionFailed", 412):
        s3.put_object(**where, Body=b"second", IfNoneMatch="*")
    assert s3.get_object(**where)["Body"].read() == b"first"
    s3.delete_object(**where)
    s3.put_object(**where, Body=b"third", IfNoneMatch="*")
    assert s3.get_object(**where)["Body"].read() == b"third"


def test_put_only_over_what_was_seen(s3, stored):
    where, etag = stored
    second = s3.put_object(**where, Body=b"second", IfMatch=etag)["ETag"]
    with failing("PreconditionFailed", 412):
        s3.put_object(**where, Body=b"third", IfMatch=etag)
    s3.put_object(**where, Body=b"fourth", IfMatch=second)
    assert s3.get_object(**where)["Body"].read() == b"fourth"


def test_put_if_match_on_a_missing_key(s3, bucket):
    with failing("NoSuchKey", 404):
        s3.put_object(Bucket=bucket, Key="none", Body=b"x", IfMatch='"0123"')


def test_one_of_many_creators_wins(s3, bucket):
    def create(number):
        try:
            s3.put_object(Bucket=bucket, Key="raced", Body=f"{number}".encode() * 20_000, IfNoneMatch="*")
            return number
        except ClientError as error:
            assert error.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict"), error
            return None

    with ThreadPoolExecutor(16) as pool:
        winners = [number for number in pool.map(create, range(16)) if number is not None]
    assert len(winners) == 1
    assert s3.get_object(Bucket=bucket, Key="raced")["Body"].read() == f"{winners[0]}".encode() * 20_000


@pytest.mark.minio_differs("its copies ignore conditions on the target")
def test_copy_only_if_absent(s3, stored, bucket):
    with failing("PreconditionFailed", 412):
        s3.copy_object(Bucket=bucket, Key="k", CopySource=f"{bucket}/k", MetadataDirective="REPLACE", IfNoneMatch="*")
    s3.copy_object(Bucket=bucket, Key="new", CopySource=f"{bucket}/k", IfNoneMatch="*")


def test_copy_with_conditions_on_the_source(s3, stored, bucket):
    _, etag = stored
    source = f"{bucket}/k"
    s3.copy_object(Bucket=bucket, Key="c", CopySource=source, CopySourceIfMatch=etag)
    with failing("PreconditionFailed", 412):
        s3.copy_object(Bucket=bucket, Key="c", CopySource=source, CopySourceIfMatch='"0123"')
    with failing("PreconditionFailed", 412):
        s3.copy_object(Bucket=bucket, Key="c", CopySource=source, CopySourceIfNoneMatch=etag)


def test_complete_multipart_only_if_absent(s3, stored, bucket):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    part = s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"part")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    with failing("PreconditionFailed", 412):
        s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload, MultipartUpload=parts, IfNoneMatch="*")
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == b"first"


@pytest.mark.minio_differs("deletes unconditionally")
def test_delete_only_what_was_seen(s3, stored):
    where, etag = stored
    with failing("PreconditionFailed", 412):
        s3.delete_object(**where, IfMatch='"0123"')
    s3.delete_object(**where, IfMatch=etag)
    with failing("NoSuchKey"):
        s3.get_object(**where)


def test_delete_by_size_and_time(s3, stored):
    where, _ = stored
    modified = s3.head_object(**where)["LastModified"]
    for unmet in ({"IfMatchSize": 9}, {"IfMatchLastModifiedTime": modified - HOUR}, {"IfMatchSize": 5, "IfMatchLastModifiedTime": modified + HOUR}):
        with failing("PreconditionFailed", 412):
            s3.delete_object(**where, **unmet)
    assert s3.get_object(**where)["Body"].read() == b"first"
    s3.delete_object(**where, IfMatchSize=5, IfMatchLastModifiedTime=modified)
    with failing("NoSuchKey", 404):
        s3.get_object(**where)


def test_many_deletes_by_etag_size_and_time(s3, bucket):
    for key in "abcd":
        s3.put_object(Bucket=bucket, Key=key, Body=b"12345")
    head = s3.head_object(Bucket=bucket, Key="a")
    listed = [
        {"Key": "a", "Size": 9}, {"Key": "b", "LastModifiedTime": head["LastModified"] - HOUR}, {"Key": "c", "ETag": '"0123"'},
        {"Key": "d", "ETag": head["ETag"], "Size": 5},
    ]
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": listed})
    assert [(error["Key"], error["Code"]) for error in answer["Errors"]] == [(key, "PreconditionFailed") for key in "abc"]
    assert [deleted["Key"] for deleted in answer["Deleted"]] == ["d"]
    assert [found["Key"] for found in s3.list_objects_v2(Bucket=bucket)["Contents"]] == ["a", "b", "c"]


def test_abort_by_the_time_of_initiation(s3, bucket):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    where = {"Bucket": bucket, "Key": "k", "UploadId": upload}
    initiated = s3.list_multipart_uploads(Bucket=bucket)["Uploads"][0]["Initiated"]
    with failing("PreconditionFailed", 412):
        s3.abort_multipart_upload(**where, IfMatchInitiatedTime=initiated - HOUR)
    assert s3.list_parts(**where)["UploadId"] == upload
    s3.abort_multipart_upload(**where, IfMatchInitiatedTime=initiated)
    with failing("NoSuchUpload", 404):
        s3.list_parts(**where)
