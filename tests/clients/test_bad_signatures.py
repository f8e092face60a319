"""Requests that must be refused before any storage is touched, with S3's exact error codes."""

import datetime
import hashlib

import pytest
from proving import sigv4
from proving.sigv4 import Credentials


@pytest.fixture
def signed(raw, server, bucket):
    """Sends a signed PUT that a function may alter after signing."""

    def send(spoil=lambda request: None, credentials=None, when=None, body=b"data", method="PUT", payload_hash=None):
        request = sigv4.Request(method, f"/{bucket}/k", [], {}, body)
        sigv4.sign_headers(request, credentials or server.credentials, raw.host, when, payload_hash)
        spoil(request)
        return raw.send_raw(request.method, request.target(), request.headers, request.body)

    yield send
    assert raw.send("GET", f"/{bucket}/k").status == 404, "a refused request stored something"


def set_header(name, change):
    def spoil(request):
        request.headers[name] = change(request.headers[name])
    return spoil


def test_an_unknown_access_key(signed):
    answer = signed(credentials=Credentials("nobody-here", "secret"))
    assert (answer.status, answer.code) == (403, "InvalidAccessKeyId")


def test_a_wrong_secret(signed, server):
    answer = signed(credentials=Credentials(server.credentials.access_key, "wrong-secret"))
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")


@pytest.mark.parametrize("where", range(0, 64, 9))
def test_a_forged_signature(signed, where):
    def forge(header):
        start = header.index("Signature=") + len("Signature=") + where
        return header[:start] + ("0" if header[start] != "0" else "1") + header[start + 1:]

    answer = signed(set_header("authorization", forge))
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")


@pytest.mark.parametrize("length", [0, 1, 63, 65, 4000])
def test_a_signature_of_another_length(signed, length):
    answer = signed(set_header("authorization", lambda header: header[:header.index("Signature=") + 10] + "a" * length))
    assert answer.status in (400, 403)
    assert answer.code in ("SignatureDoesNotMatch", "AuthorizationHeaderMalformed", "InvalidArgument", "MissingFields")


def test_an_altered_path(signed):
    def spoil(request):
        request.path += "x"
    assert signed(spoil).code == "SignatureDoesNotMatch"


def test_an_added_query(signed):
    def spoil(request):
        request.query.append(("acl", ""))
    assert signed(spoil).code == "SignatureDoesNotMatch"


def test_another_method(signed):
    def spoil(request):
        request.method = "DELETE"
    assert signed(spoil).code == "SignatureDoesNotMatch"


def test_an_altered_body(signed):
    def spoil(request):
        request.body = b"DATA"
    answer = signed(spoil)
    assert (answer.status, answer.code) == (400, "XAmzContentSHA256Mismatch")


def test_an_altered_large_body(signed):
    def spoil(request):
        request.body = request.body[:-1] + b"!"
    answer = signed(spoil, body=b"x" * 6_000_000)
    assert (answer.status, answer.code) == (400, "XAmzContentSHA256Mismatch")


def test_an_altered_payload_hash(signed):
    answer = signed(set_header("x-amz-content-sha256", lambda _: hashlib.sha256(b"DATA").hexdigest()))
    assert answer.code in ("SignatureDoesNotMatch", "XAmzContentSHA256Mismatch")


def test_an_altered_date(signed):
    later = sigv4.stamp(sigv4.now() + datetime.timedelta(seconds=3))
    assert signed(set_header("x-amz-date", lambda _: later)).code == "SignatureDoesNotMatch"


@pytest.mark.parametrize("minutes", [-16, 16, -60 * 24, 60 * 24 * 365])
def test_a_skewed_clock(signed, minutes):
    answer = signed(when=sigv4.now() + datetime.timedelta(minutes=minutes))
    assert (answer.status, answer.code) in [(403, "RequestTimeTooSkewed"), (403, "AccessDenied")]


def test_a_missing_date(signed):
    def spoil(request):
        del request.headers["x-amz-date"]
    answer = signed(spoil)
    assert answer.status in (400, 403)
    assert answer.code in ("AccessDenied", "MissingSecurityHeader", "AuthorizationHeaderMalformed", "SignatureDoesNotMatch")


@pytest.mark.parametrize("header", [
    "", "AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 Credential=", "AWS4-HMAC-SHA256 Credential=a/b/c/d/e, SignedHeaders=host",
    "AWS4-HMAC-SHA256 Credential=////, SignedHeaders=, Signature=", "Basic YTpi", "Bearer x", "AWS a:b",
    "AWS4-HMAC-SHA256 Credential=a/20200101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=" + "0" * 64, "x" * 3000,
])
def test_malformed_authorization(signed, header):
    answer = signed(set_header("authorization", lambda _: header))
    assert answer.status in (400, 403), answer


def test_a_scope_of_another_service_or_region(signed):
    for old, new in (("/s3/", "/ec2/"), ("us-east-1", "eu-north-1"), ("aws4_request", "aws5_request")):
        answer = signed(set_header("authorization", lambda header: header.replace(old, new)))
        assert answer.status in (400, 403)


def test_the_host_must_be_signed(signed, server, raw):
    answer = signed(set_header("authorization", lambda header: header.replace("SignedHeaders=host;", "SignedHeaders=")))
    assert answer.status in (400, 403)


def test_nobody_at_all(raw, s3, bucket):
    s3.put_object(Bucket=bucket, Key="there", Body=b"secret")
    for method, path in (("GET", f"/{bucket}/there"), ("GET", f"/{bucket}"), ("PUT", f"/{bucket}/new"), ("DELETE", f"/{bucket}/there"),
                         ("GET", "/"), ("DELETE", f"/{bucket}"), ("PUT", f"/{bucket}-new")):
        answer = raw.send_raw(method, path, {"host": raw.host})
        assert (answer.status, answer.code) == (403, "AccessDenied"), (method, path)
    assert s3.get_object(Bucket=bucket, Key="there")["Body"].read() == b"secret"


def test_missing_and_present_look_alike_to_strangers(raw, s3, bucket):
    s3.put_object(Bucket=bucket, Key="there", Body=b"x")
    answers = [raw.send_raw("GET", f"/{path}", {"host": raw.host}) for path in (f"{bucket}/there", f"{bucket}/none", "no-such-bucket-xx/k")]
    assert {(answer.status, answer.code) for answer in answers} == {(403, "AccessDenied")}


def test_a_copy_source_without_a_right_to_it(raw, bucket):
    request = sigv4.Request("PUT", f"/{bucket}/k", [], {"x-amz-copy-source": f"/{bucket}/secret"})
    sigv4.sign_headers(request, Credentials("nobody-here", "secret"), raw.host)
    answer = raw.send_raw("PUT", request.target(), request.headers)
    assert (answer.status, answer.code) == (403, "InvalidAccessKeyId")


@pytest.mark.minio_differs("obeys headers that were not signed")
def test_an_unsigned_copy_source_header(raw, server, bucket, s3):
    s3.put_object(Bucket=bucket, Key="there", Body=b"x")
    request = sigv4.Request("PUT", f"/{bucket}/k")
    sigv4.sign_headers(request, server.credentials, raw.host)
    answer = raw.send_raw("PUT", request.target(), {**request.headers, "x-amz-copy-source": f"/{bucket}/there"})
    assert answer.status in (400, 403), "a header that was not signed must not make a copy"
    assert raw.send("GET", f"/{bucket}/k").status == 404


def test_a_replay_of_a_header_signature_with_another_body(raw, server, bucket):
    request = sigv4.Request("PUT", f"/{bucket}/k", [], {}, b"one")
    sigv4.sign_headers(request, server.credentials, raw.host)
    assert raw.send_raw("PUT", request.target(), request.headers, b"one").status == 200
    assert raw.send_raw("PUT", request.target(), request.headers, b"two").code == "XAmzContentSHA256Mismatch"
    assert raw.get(bucket, "k") == b"one"
