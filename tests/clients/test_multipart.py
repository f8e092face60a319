"""Multipart uploads with boto3."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest
from botocore.exceptions import ClientError
from conftest import failing

PART = 5 << 20


@pytest.fixture
def upload(s3, bucket):
    class Upload:
        def __init__(self, key="k", **more):
            self.where = {"Bucket": bucket, "Key": key}
            self.where["UploadId"] = s3.create_multipart_upload(**self.where, **more)["UploadId"]
            self.parts = {}

        def put(self, number, data):
            etag = s3.upload_part(**self.where, PartNumber=number, Body=data)["ETag"]
            self.parts[number] = etag
            return etag

        def complete(self, numbers=None, **more):
            chosen = [{"PartNumber": number, "ETag": self.parts[number]} for number in numbers or sorted(self.parts)]
            return s3.complete_multipart_upload(**self.where, MultipartUpload={"Parts": chosen}, **more)

        def abort(self):
            return s3.abort_multipart_upload(**self.where)

    return Upload


def test_parts_become_one_object(s3, bucket, upload, body):
    up = upload(Metadata={"a": "1"}, ContentType="text/plain")
    data = [body(PART), body(PART + 7, 1), body(3, 2)]
    for number in (3, 1, 2):
        up.put(number, data[number - 1])
    md5s = b"".join(hashlib.md5(piece).digest() for piece in data)
    assert up.complete()["ETag"] == f'"{hashlib.md5(md5s).hexdigest()}-3"'
    answer = s3.get_object(Bucket=bucket, Key="k")
    assert answer["Body"].read() == b"".join(data)
    assert (answer["Metadata"], answer["ContentType"]) == ({"a": "1"}, "text/plain")


def test_ranges_and_part_numbers_of_the_object(s3, bucket, upload, body):
    up = upload()
    data = [body(PART), body(PART + 11, 1), body(100, 2)]
    for number, piece in enumerate(data, 1):
        up.put(number, piece)
    up.complete()
    whole = b"".join(data)
    span = s3.get_object(Bucket=bucket, Key="k", Range=f"bytes={PART - 5}-{PART + 5}")["Body"].read()
    assert span == whole[PART - 5:PART + 6]
    for number, piece in enumerate(data, 1):
        answer = s3.get_object(Bucket=bucket, Key="k", PartNumber=number)
        assert answer["Body"].read() == piece
        assert answer["PartsCount"] == 3
    assert s3.head_object(Bucket=bucket, Key="k", PartNumber=2)["ContentLength"] == PART + 11
    with failing(("InvalidPartNumber", "InvalidPart", "InvalidRange", "416"), 416):
        s3.get_object(Bucket=bucket, Key="k", PartNumber=9)


def test_a_part_can_be_sent_again(s3, bucket, upload, body):
    up = upload()
    up.put(1, body(PART))
    up.put(1, body(PART, 9))
    up.complete()
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == body(PART, 9)


def test_part_numbers_may_have_gaps_and_parts_be_left_out(s3, bucket, upload, body):
    up = upload()
    for number in (7, 300, 10_000):
        up.put(number, body(PART, number))
    up.complete([7, 10_000])
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == body(PART, 7) + body(PART, 10_000)


def test_nothing_is_visible_before_completion(s3, bucket, upload):
    up = upload()
    up.put(1, b"x")
    with failing("NoSuchKey"):
        s3.get_object(Bucket=bucket, Key="k")
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0
    up.complete()
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 1


def test_list_parts_in_pages(s3, upload):
    up = upload()
    for number in range(1, 6):
        up.put(number, b"x" * number)
    first = s3.list_parts(**up.where, MaxParts=2)
    assert [part["PartNumber"] for part in first["Parts"]] == [1, 2]
    assert first["IsTruncated"]
    rest = s3.list_parts(**up.where, PartNumberMarker=first["NextPartNumberMarker"])
    assert [(part["PartNumber"], part["Size"]) for part in rest["Parts"]] == [(3, 3), (4, 4), (5, 5)]


@pytest.mark.minio_differs("lists uploads only for a whole key")
def test_list_uploads_by_prefix_and_in_pages(s3, bucket, upload):
    for key in ("a/1", "a/2", "b/1"):
        upload(key)
    everything = s3.list_multipart_uploads(Bucket=bucket)["Uploads"]
    assert [entry["Key"] for entry in everything] == ["a/1", "a/2", "b/1"]
    under = s3.list_multipart_uploads(Bucket=bucket, Prefix="a/")["Uploads"]
    assert [entry["Key"] for entry in under] == ["a/1", "a/2"]
    grouped = s3.list_multipart_uploads(Bucket=bucket, Delimiter="/")
    assert [entry["Prefix"] for entry in grouped["CommonPrefixes"]] == ["a/", "b/"]
    page = s3.list_multipart_uploads(Bucket=bucket, MaxUploads=2)
    assert page["IsTruncated"]
    last = s3.list_multipart_uploads(Bucket=bucket, KeyMarker=page["NextKeyMarker"], UploadIdMarker=page["NextUploadIdMarker"])
    assert [entry["Key"] for entry in last["Uploads"]] == ["b/1"]


def test_abort_forgets_the_upload(s3, upload):
    up = upload()
    up.put(1, b"x")
    up.abort()
    for call in (lambda: up.put(2, b"y"), up.complete, lambda: s3.list_parts(**up.where)):
        with failing("NoSuchUpload", 404):
            call()


def test_completion_refuses_what_was_not_sent(upload, body):
    up = upload()
    up.put(1, body(PART))
    up.put(2, body(PART))
    up.parts[3] = '"00000000000000000000000000000000"'
    with failing("InvalidPart", 400):
        up.complete()
    del up.parts[3]
    up.parts[2] = '"00000000000000000000000000000000"'
    with failing("InvalidPart", 400):
        up.complete()


def test_completion_refuses_a_stale_etag(upload, body):
    up = upload()
    stale = up.put(1, b"old")
    up.put(1, b"new")
    up.parts[1] = stale
    with failing("InvalidPart", 400):
        up.complete()


def test_completion_refuses_wrong_order(upload, body):
    up = upload()
    up.put(1, body(PART))
    up.put(2, body(PART))
    with failing("InvalidPartOrder", 400):
        up.complete([2, 1])


def test_completion_refuses_small_parts_in_the_middle(upload):
    up = upload()
    up.put(1, b"too small")
    up.put(2, b"last may be")
    with failing("EntityTooSmall", 400):
        up.complete()


def test_completion_without_parts(s3, upload):
    up = upload()
    with failing(("MalformedXML", "InvalidRequest", "InvalidPart"), 400):
        s3.complete_multipart_upload(**up.where, MultipartUpload={"Parts": []})


@pytest.mark.parametrize("number", [0, 10_001, -1])
def test_part_numbers_out_of_bounds(raw, upload, bucket, number):
    up = upload()
    query = [("partNumber", str(number)), ("uploadId", up.where["UploadId"])]
    answer = raw.send("PUT", f"/{bucket}/k", query=query, body=b"x")
    assert (answer.status, answer.code) in [(400, "InvalidArgument"), (400, "InvalidPart")]


def test_an_upload_belongs_to_its_key(s3, upload, bucket):
    up = upload()
    with failing("NoSuchUpload", 404):
        s3.upload_part(Bucket=bucket, Key="other", UploadId=up.where["UploadId"], PartNumber=1, Body=b"x")
    with failing("NoSuchUpload", 404):
        s3.upload_part(Bucket=bucket, Key="k", UploadId="made-up", PartNumber=1, Body=b"x")


def test_part_copies_and_their_ranges(s3, bucket, upload, body):
    s3.put_object(Bucket=bucket, Key="source", Body=body(6 << 20))
    up = upload()
    whole = s3.upload_part_copy(**up.where, PartNumber=1, CopySource=f"{bucket}/source")
    part = s3.upload_part_copy(**up.where, PartNumber=2, CopySource=f"{bucket}/source", CopySourceRange="bytes=10-1009")
    up.parts = {1: whole["CopyPartResult"]["ETag"], 2: part["CopyPartResult"]["ETag"]}
    up.complete()
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == body(6 << 20) + body(6 << 20)[10:1010]
    with failing(("InvalidRange", "InvalidArgument"), None):
        again = upload("again")
        s3.upload_part_copy(**again.where, PartNumber=1, CopySource=f"{bucket}/source", CopySourceRange="bytes=9-99999999")


def test_completing_twice_or_in_a_race_makes_one_object(s3, bucket, upload, body):
    up = upload()
    up.put(1, body(PART))

    def complete(_):
        try:
            return up.complete()["ETag"]
        except ClientError as error:
            assert error.response["Error"]["Code"] in ("NoSuchUpload", "OperationAborted", "ConditionalRequestConflict"), error
            return None

    with ThreadPoolExecutor(4) as pool:
        assert any(pool.map(complete, range(4)))
    assert s3.get_object(Bucket=bucket, Key="k")["Body"].read() == body(PART)


def test_abort_racing_completion_is_all_or_nothing(s3, bucket, upload, body):
    for turn in range(5):
        up = upload(f"raced-{turn}")
        up.put(1, body(PART, turn))

        def attempt(call):
            try:
                call()
                return True
            except ClientError as error:
                assert error.response["ResponseMetadata"]["HTTPStatusCode"] in (404, 409), error
                return False

        with ThreadPoolExecutor(2) as pool:
            completed, _ = pool.map(attempt, (up.complete, up.abort))
        if completed:
            assert s3.get_object(Bucket=bucket, Key=f"raced-{turn}")["Body"].read() == body(PART, turn)
        else:
            with failing("NoSuchKey"):
                s3.get_object(Bucket=bucket, Key=f"raced-{turn}")


def test_attributes_show_the_parts(s3, bucket, upload, body):
    up = upload(ChecksumAlgorithm="SHA256")
    parts = []
    for number in (1, 2):
        part = s3.upload_part(**up.where, PartNumber=number, Body=body(PART), ChecksumAlgorithm="SHA256")
        parts.append({"PartNumber": number, "ETag": part["ETag"], "ChecksumSHA256": part["ChecksumSHA256"]})
    s3.complete_multipart_upload(**up.where, MultipartUpload={"Parts": parts})
    answer = s3.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=["ObjectParts", "ObjectSize"])
    assert answer["ObjectParts"]["TotalPartsCount"] == 2
    assert answer["ObjectSize"] == 2 * PART
