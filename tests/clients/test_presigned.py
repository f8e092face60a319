"""Presigned URLs, POST forms, and buckets in the host name."""

import base64
import datetime
import hashlib
import json
import urllib.parse
import uuid

import pytest
from proving import sigv4


def fetch(raw, method, url, body=b"", headers=None):
    parts = urllib.parse.urlsplit(url)
    return raw.send_raw(method, f"{parts.path}?{parts.query}", {"host": parts.netloc, **(headers or {})}, body)


def test_put_get_head_delete(s3, raw, bucket, body):
    def url(operation):
        return s3.generate_presigned_url(operation, Params={"Bucket": bucket, "Key": "a b/ü+k"}, ExpiresIn=60)

    assert fetch(raw, "PUT", url("put_object"), body(100_000)).status == 200
    assert fetch(raw, "GET", url("get_object")).body == body(100_000)
    assert fetch(raw, "DELETE", url("delete_object")).status == 204
    assert fetch(raw, "GET", url("get_object")).code == "NoSuchKey"


def test_response_headers_of_a_presigned_get(s3, raw, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    params = {"Bucket": bucket, "Key": "k", "ResponseContentDisposition": 'attachment; filename="a.txt"'}
    answer = fetch(raw, "GET", s3.generate_presigned_url("get_object", Params=params))
    assert answer.headers["content-disposition"] == 'attachment; filename="a.txt"'


def test_signed_headers_must_be_sent(s3, raw, bucket):
    params = {"Bucket": bucket, "Key": "k", "ContentType": "text/plain", "Metadata": {"a": "1"}}
    url = s3.generate_presigned_url("put_object", Params=params)
    assert fetch(raw, "PUT", url, b"x").code in ("SignatureDoesNotMatch", "AccessDenied")
    assert fetch(raw, "PUT", url, b"x", {"content-type": "text/plain", "x-amz-meta-a": "1"}).status == 200
    assert s3.head_object(Bucket=bucket, Key="k")["Metadata"] == {"a": "1"}


def test_an_expired_url(raw, server, bucket):
    past = sigv4.now() - datetime.timedelta(hours=1)
    target = sigv4.presign(sigv4.Request("GET", f"/{bucket}/k"), server.credentials, raw.host, 60, past)
    answer = raw.send_raw("GET", target, {"host": raw.host})
    assert (answer.status, answer.code) == (403, "AccessDenied")


@pytest.mark.parametrize("expires", [604_801, -1, 10**12])
def test_a_url_that_is_valid_for_too_long(raw, server, bucket, expires):
    target = sigv4.presign(sigv4.Request("GET", f"/{bucket}/k"), server.credentials, raw.host, expires)
    answer = raw.send_raw("GET", target, {"host": raw.host})
    assert answer.status in (400, 403)
    assert answer.code in ("AuthorizationQueryParametersError", "AccessDenied")


@pytest.mark.parametrize("change", [("k", "other"), ("X-Amz-Expires=60", "X-Amz-Expires=61"), ("us-east-1", "eu-west-1")])
def test_an_altered_url(raw, server, s3, bucket, change):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    s3.put_object(Bucket=bucket, Key="other", Body=b"x")
    target = sigv4.presign(sigv4.Request("GET", f"/{bucket}/k"), server.credentials, raw.host, 60)
    answer = raw.send_raw("GET", target.replace(*change, 1) if change[0] != "k" else target.replace("/k?", "/other?"), {"host": raw.host})
    assert answer.status in (400, 403)
    assert answer.code in ("SignatureDoesNotMatch", "AuthorizationHeaderMalformed", "AuthorizationQueryParametersError")


def test_another_method_than_was_signed(raw, server, s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    target = sigv4.presign(sigv4.Request("GET", f"/{bucket}/k"), server.credentials, raw.host)
    for method in ("PUT", "DELETE"):
        assert raw.send_raw(method, target, {"host": raw.host}).code == "SignatureDoesNotMatch"


def form(fields, data, name="file.txt"):
    edge = uuid.uuid4().hex
    parts = [f'--{edge}\r\nContent-Disposition: form-data; name="{field}"\r\n\r\n{value}\r\n' for field, value in fields.items()]
    head = f'--{edge}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\nContent-Type: text/plain\r\n\r\n'
    return f"multipart/form-data; boundary={edge}", ("".join(parts) + head).encode() + data + f"\r\n--{edge}--\r\n".encode()


def post(raw, bucket, fields, data):
    content_type, body = form(fields, data)
    return raw.send_raw("POST", f"/{bucket}", {"host": raw.host, "content-type": content_type}, body)


def post_and_read(s3, raw, bucket, data, key, stored_as):
    policy = s3.generate_presigned_post(bucket, key, Fields={"x-amz-meta-a": "1", "success_action_status": "201"},
                                        Conditions=[{"x-amz-meta-a": "1"}, {"success_action_status": "201"}, ["starts-with", "$key", "form/"]])
    answer = post(raw, bucket, policy["fields"], data)
    assert answer.status == 201
    stored = s3.get_object(Bucket=bucket, Key=stored_as)
    assert (stored["Body"].read(), stored["Metadata"]) == (data, {"a": "1"})


@pytest.mark.front_differs("forms are not forwarded")
def test_post_form(s3, raw, bucket, body):
    post_and_read(s3, raw, bucket, base64.b64encode(body(50_000)), "form/plain", "form/plain")


@pytest.mark.front_differs("forms are not forwarded")
def test_post_form_puts_the_file_name_into_the_key(s3, raw, bucket, body):
    post_and_read(s3, raw, bucket, base64.b64encode(body(50_000)), "form/${filename}", "form/file.txt")


@pytest.mark.front_differs("forms are not forwarded")
def test_post_form_against_its_policy(s3, raw, bucket):
    policy = s3.generate_presigned_post(bucket, "small", Conditions=[["content-length-range", 1, 10]])
    large = post(raw, bucket, policy["fields"], b"x" * 11)
    assert (large.status, large.code) == (400, "EntityTooLarge")
    elsewhere = post(raw, bucket, {**policy["fields"], "key": "other"}, b"x")
    assert (elsewhere.status, elsewhere.code) == (403, "AccessDenied")


def post_forged(s3, raw, bucket):
    forged = s3.generate_presigned_post(bucket, "small", Conditions=[["content-length-range", 1, 10]])["fields"]
    text = json.loads(base64.b64decode(forged["policy"]))
    text["conditions"] = [["starts-with", "$key", ""]]
    forged["policy"] = base64.b64encode(json.dumps(text).encode()).decode()
    return post(raw, bucket, forged, b"x")


@pytest.mark.front_differs("forms are not forwarded")
def test_post_form_with_a_forged_policy_is_refused_for_its_signature(s3, raw, bucket):
    answer = post_forged(s3, raw, bucket)
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")
    assert s3.list_objects_v2(Bucket=bucket)["KeyCount"] == 0


@pytest.mark.front_differs("forms are not forwarded")
def test_post_form_of_a_large_file(s3, raw, bucket, body):
    policy = s3.generate_presigned_post(bucket, "large/${filename}")
    assert post(raw, bucket, policy["fields"], body(70 << 20)).status == 204
    assert s3.get_object(Bucket=bucket, Key="large/file.txt")["Body"].read() == body(70 << 20)


@pytest.mark.front_differs("forms are not forwarded")
def test_post_form_that_expired(s3, raw, bucket):
    policy = s3.generate_presigned_post(bucket, "late", ExpiresIn=-60)
    answer = post(raw, bucket, policy["fields"], b"x")
    assert answer.status in (400, 403)
    assert answer.code in ("AccessDenied", "PolicyExpired", "ExpiredToken")


def test_bucket_in_the_host_name(server, raw, bucket, body):
    """Striate serves the domain s3.test here; the name need not resolve, since requests go to the address."""
    host = f"{bucket}.s3.test:{server.port}"
    for method, data, path in (("PUT", body(1000), "/dir/k"), ("GET", b"", "/dir/k"), ("GET", b"", "/")):
        request = sigv4.Request(method, path, [], {}, data)
        sigv4.sign_headers(request, server.credentials, host, payload_hash=hashlib.sha256(data).hexdigest())
        answer = raw.send_raw(method, path, request.headers, data)
        assert answer.status == 200, answer
        if method == "GET" and path != "/":
            assert answer.body == body(1000)
    assert b"<Key>dir/k</Key>" in answer.body
