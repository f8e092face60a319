"""boto3 and aws-cli with only keys, region and endpoint configured.

Depending on their version, they presign URLs and forms for us-east-1 with the retired signature version 2 or with version 4.
"""

import time
import urllib.parse
import urllib.request
import uuid

import boto3
import pytest
from test_presigned import fetch, post


@pytest.fixture(scope="module")
def plain(server):
    return boto3.client(
        "s3", endpoint_url=server.endpoint, region_name="us-east-1",
        aws_access_key_id=server.credentials.access_key, aws_secret_access_key=server.credentials.secret_key,
    )


@pytest.fixture
def bucket(plain):
    name = f"test-{uuid.uuid4().hex[:16]}"
    plain.create_bucket(Bucket=name)
    return name


def presigned(plain, bucket, operation, key="a b/ü+k", expires_s=60, **more):
    return plain.generate_presigned_url(operation, Params={"Bucket": bucket, "Key": key, **more}, ExpiresIn=expires_s)


def altered(url, **changes):
    """Returns the URL with changed query parameters."""
    parts = urllib.parse.urlsplit(url)
    query = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
    assert set(changes) <= set(query), f"{changes} in {query}"
    return urllib.parse.urlunsplit(parts._replace(query=urllib.parse.urlencode({**query, **changes})))


def test_objects_and_listings(plain, bucket, body):
    plain.put_object(Bucket=bucket, Key="k", Body=body(100_000), Metadata={"a": "1"})
    answer = plain.get_object(Bucket=bucket, Key="k")
    assert (answer["Body"].read(), answer["Metadata"]) == (body(100_000), {"a": "1"})
    assert [entry["Key"] for entry in plain.list_objects_v2(Bucket=bucket)["Contents"]] == ["k"]


def test_presigned_put_get_head_delete(plain, raw, bucket, body):
    assert fetch(raw, "PUT", presigned(plain, bucket, "put_object"), body(100_000)).status == 200
    assert fetch(raw, "GET", presigned(plain, bucket, "get_object")).body == body(100_000)
    assert fetch(raw, "HEAD", presigned(plain, bucket, "head_object")).status == 200
    assert fetch(raw, "DELETE", presigned(plain, bucket, "delete_object")).status == 204
    assert fetch(raw, "GET", presigned(plain, bucket, "get_object")).code == "NoSuchKey"


def test_presigned_get_with_response_headers(plain, raw, bucket):
    plain.put_object(Bucket=bucket, Key="a b/ü+k", Body=b"x")
    disposition = 'attachment; filename="a b.txt"'
    url = presigned(plain, bucket, "get_object", ResponseContentDisposition=disposition, ResponseContentType="a/b")
    answer = fetch(raw, "GET", url)
    assert (answer.headers["content-disposition"], answer.headers["content-type"]) == (disposition, "a/b")


def test_presigned_put_with_what_is_said_of_the_object(plain, raw, bucket):
    url = presigned(plain, bucket, "put_object", ContentType="text/x", Metadata={"a": "1 2"}, StorageClass="STANDARD_IA")
    assert fetch(raw, "PUT", url, b"x").code in ("SignatureDoesNotMatch", "AccessDenied"), "the type was signed"
    sent = {"content-type": "text/x"}
    if "X-Amz-Signature" in url:  # version 4 signs headers, which must then be sent; version 2 puts them into the query
        sent.update({"x-amz-meta-a": "1 2", "x-amz-storage-class": "STANDARD_IA"})
    assert fetch(raw, "PUT", url, b"x", sent).status == 200
    head = plain.head_object(Bucket=bucket, Key="a b/ü+k")
    assert (head["ContentType"], head["Metadata"], head["StorageClass"]) == ("text/x", {"a": "1 2"}, "STANDARD_IA")


def test_presigned_parts(plain, raw, bucket, body):
    where = {"Bucket": bucket, "Key": "parts"}
    upload = plain.create_multipart_upload(**where)["UploadId"]
    url = plain.generate_presigned_url("upload_part", Params={**where, "UploadId": upload, "PartNumber": 1})
    etag = fetch(raw, "PUT", url, body(5 << 20)).headers["etag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    plain.complete_multipart_upload(**where, UploadId=upload, MultipartUpload=parts)
    assert plain.get_object(**where)["Body"].read() == body(5 << 20)


@pytest.mark.parametrize("operation", ["get_object", "put_object"])
def test_presigned_urls_expire(plain, raw, bucket, operation):
    plain.put_object(Bucket=bucket, Key="k", Body=b"old")
    url = presigned(plain, bucket, operation, "k", expires_s=1)
    deadline = time.monotonic() + 30
    method = {"get_object": "GET", "put_object": "PUT"}[operation]
    while (answer := fetch(raw, method, url, b"")).status == 200 and time.monotonic() < deadline:
        time.sleep(0.2)
    assert (answer.status, answer.code) == (403, "AccessDenied")
    late = {"Expires": "1000000000"} if "Expires=" in url and "X-Amz-" not in url else {"X-Amz-Expires": "1"}
    assert fetch(raw, method, altered(url, **late)).status == 403


@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_tampered_urls(plain, raw, server, bucket, method):
    operation = {"GET": "get_object", "PUT": "put_object"}[method]
    for key in ("k", "other"):
        plain.put_object(Bucket=bucket, Key=key, Body=b"as it was")
    url = presigned(plain, bucket, operation, "k")
    is_version_2 = "X-Amz-Signature" not in url
    later = {"Expires": str(int(time.time()) + 600)} if is_version_2 else {"X-Amz-Expires": "600"}
    signature = "Signature" if is_version_2 else "X-Amz-Signature"
    forged = "AAAAAAAAAAAAAAAAAAAAAAAAAAA=" if is_version_2 else "0" * 64
    for wrong in (altered(url, **later), altered(url, **{signature: forged}), url.replace("/k?", "/other?"), f"{url}&acl"):
        answer = fetch(raw, method, wrong, b"forged")
        assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch"), wrong
    assert fetch(raw, {"GET": "PUT", "PUT": "GET"}[method], url, b"").code == "SignatureDoesNotMatch"
    assert fetch(raw, method, url, b"", {"x-amz-meta-more": "1"}).code in ("SignatureDoesNotMatch", "AccessDenied")
    stranger = altered(url, AWSAccessKeyId="NOBODY") if is_version_2 else url.replace(server.credentials.access_key, "NOBODY")
    assert fetch(raw, method, stranger, b"forged").code == "InvalidAccessKeyId"
    for key in ("k", "other"):
        assert plain.get_object(Bucket=bucket, Key=key)["Body"].read() == b"as it was"


def test_presigned_post(plain, raw, bucket, body):
    form = plain.generate_presigned_post(bucket, "form/${filename}", Conditions=[["content-length-range", 1, 1 << 20]])
    assert post(raw, bucket, form["fields"], body(1000)).status == 204
    assert plain.get_object(Bucket=bucket, Key="form/file.txt")["Body"].read() == body(1000)
    field = "signature" if "signature" in form["fields"] else "x-amz-signature"
    signature = form["fields"][field]
    forged = {**form["fields"], field: ("1" if signature[0] == "0" else "0") + signature[1:]}
    assert post(raw, bucket, forged, body(1000)).code == "SignatureDoesNotMatch"
    elsewhere = {**form["fields"], "key": "elsewhere"}
    assert post(raw, bucket, elsewhere, body(1000)).code == "AccessDenied"


def test_aws_cli_presigns_as_it_comes(run, bucket, tmp_path, body):
    (tmp_path / "file").write_bytes(body(5000))
    unconfigured = {"AWS_CONFIG_FILE": str(tmp_path / "none")}
    run("aws", "s3", "cp", "--quiet", tmp_path / "file", f"s3://{bucket}/dir/a b+ü", **unconfigured)
    url = run("aws", "s3", "presign", f"s3://{bucket}/dir/a b+ü", **unconfigured).strip()
    with urllib.request.urlopen(url, timeout=30) as answer:
        assert answer.read() == body(5000)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(url.replace("dir/", "dir2/"), timeout=30)
