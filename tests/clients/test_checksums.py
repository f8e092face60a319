"""Checksums with boto3 and in hand-written requests: what clients send is verified, stored and returned."""

import base64
import hashlib
import zlib

import pytest
from conftest import boto, failing

DATA = bytes(range(256)) * 300
ALGORITHMS = ["CRC32", "SHA1", "SHA256"]


def encoded(digest):
    return base64.b64encode(digest).decode()


def digests(data):
    return {
        "CRC32": encoded(zlib.crc32(data).to_bytes(4, "big")),
        "SHA1": encoded(hashlib.sha1(data).digest()),
        "SHA256": encoded(hashlib.sha256(data).digest()),
    }


# Known answers for "123456789" from the catalogue of CRCs, since Python implements neither of the two.
KNOWN = {
    "CRC32": encoded((0xCBF43926).to_bytes(4, "big")),
    "CRC32C": encoded((0xE3069283).to_bytes(4, "big")),
    "CRC64NVME": encoded((0xAE8B14860A799888).to_bytes(8, "big")),
    "SHA1": encoded(hashlib.sha1(b"123456789").digest()),
    "SHA256": encoded(hashlib.sha256(b"123456789").digest()),
}


@pytest.mark.parametrize("algorithm", KNOWN)
def test_a_right_checksum_is_kept_and_returned(s3, bucket, algorithm):
    name = f"Checksum{algorithm}"
    s3.put_object(Bucket=bucket, Key="k", Body=b"123456789", **{name: KNOWN[algorithm]})
    assert s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")[name] == KNOWN[algorithm]
    answer = s3.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert answer[name] == KNOWN[algorithm]
    assert answer["Body"].read() == b"123456789"


@pytest.mark.parametrize("algorithm", KNOWN)
def test_a_wrong_checksum_stores_nothing(s3, bucket, algorithm):
    wrong = encoded(bytes(len(base64.b64decode(KNOWN[algorithm]))))
    with failing(("BadDigest", "XAmzContentChecksumMismatch"), 400):
        s3.put_object(Bucket=bucket, Key="k", Body=b"123456789", **{f"Checksum{algorithm}": wrong})
    with failing("NoSuchKey"):
        s3.get_object(Bucket=bucket, Key="k")


@pytest.mark.parametrize("algorithm", KNOWN)
def test_a_malformed_checksum_is_refused(s3, bucket, algorithm):
    with failing(("InvalidRequest", "InvalidArgument", "InvalidDigest", "XAmzContentChecksumMismatch", "BadDigest"), 400):
        s3.put_object(Bucket=bucket, Key="k", Body=b"123456789", **{f"Checksum{algorithm}": "bm90IGE="})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_trailers_of_the_sdk(s3, bucket, algorithm):
    s3.put_object(Bucket=bucket, Key="k", Body=DATA, ChecksumAlgorithm=algorithm)
    answer = s3.get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert answer[f"Checksum{algorithm}"] == digests(DATA)[algorithm]
    assert answer["Body"].read() == DATA


def test_the_default_of_the_sdk_is_kept(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=DATA)
    assert s3.head_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")["ChecksumCRC32"] == digests(DATA)["CRC32"]


def test_no_checksum_is_shown_unless_asked_for(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=DATA)
    assert "ChecksumCRC32" not in s3.head_object(Bucket=bucket, Key="k")


def test_a_range_does_not_carry_the_whole_checksum(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=DATA)
    answer = s3.get_object(Bucket=bucket, Key="k", Range="bytes=0-9", ChecksumMode="ENABLED")
    assert answer["Body"].read() == DATA[:10]


def test_content_md5(raw, bucket):
    right = encoded(hashlib.md5(DATA).digest())
    assert raw.send("PUT", f"/{bucket}/k", headers={"content-md5": right}, body=DATA).status == 200
    wrong = raw.send("PUT", f"/{bucket}/w", headers={"content-md5": encoded(bytes(16))}, body=DATA)
    assert (wrong.status, wrong.code) == (400, "BadDigest")
    odd = raw.send("PUT", f"/{bucket}/w", headers={"content-md5": "not base64"}, body=DATA)
    assert (odd.status, odd.code) == (400, "InvalidDigest")
    assert raw.send("GET", f"/{bucket}/w").status == 404


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
def test_multipart_with_a_checksum_for_each_part(s3, bucket, body, algorithm):
    name = f"Checksum{algorithm}"
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k", ChecksumAlgorithm=algorithm)["UploadId"]
    parts = []
    for number in (1, 2):
        data = body(5 << 20, number)
        part = s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=number, Body=data, ChecksumAlgorithm=algorithm)
        assert part[name] == digests(data)[algorithm]
        parts.append({"PartNumber": number, "ETag": part["ETag"], name: part[name]})
    done = s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload, MultipartUpload={"Parts": parts})
    if algorithm != "CRC32":  # composite: a checksum of the parts' checksums
        joined = b"".join(base64.b64decode(part[name]) for part in parts)
        assert done[name] == digests(joined)[algorithm] + "-2"


def test_multipart_with_a_wrong_part_checksum(s3, bucket, body):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k", ChecksumAlgorithm="SHA256")["UploadId"]
    with failing(("BadDigest", "XAmzContentChecksumMismatch"), 400):
        s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=1, Body=b"x", ChecksumSHA256=encoded(bytes(32)))


def test_multipart_checksum_of_the_full_object(s3, bucket, body):
    data = body(5 << 20), body(1000)
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k", ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")["UploadId"]
    parts = []
    for number, piece in enumerate(data, 1):
        part = s3.upload_part(Bucket=bucket, Key="k", UploadId=upload, PartNumber=number, Body=piece, ChecksumAlgorithm="CRC32")
        parts.append({"PartNumber": number, "ETag": part["ETag"], "ChecksumCRC32": part["ChecksumCRC32"]})
    done = s3.complete_multipart_upload(Bucket=bucket, Key="k", UploadId=upload, MultipartUpload={"Parts": parts})
    assert done["ChecksumCRC32"] == digests(b"".join(data))["CRC32"]


def test_a_client_that_checks_every_answer(server, bucket):
    strict = boto(server, request_checksum_calculation="when_supported", response_checksum_validation="when_supported")
    strict.put_object(Bucket=bucket, Key="k", Body=DATA)
    assert strict.get_object(Bucket=bucket, Key="k")["Body"].read() == DATA


def test_a_client_that_sends_none(server, bucket):
    old = boto(server, request_checksum_calculation="when_required", response_checksum_validation="when_required")
    old.put_object(Bucket=bucket, Key="k", Body=DATA)
    assert old.get_object(Bucket=bucket, Key="k")["Body"].read() == DATA
