"""Many objects in one request (docs/src/batch.md): frames and TAR, parsed by code that shares nothing with the server."""

import http.client
import io
import json
import re
import socket
import struct
import tarfile
import zlib
from pathlib import Path

import pytest
import yaml
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from proving import sigv4
from proving.servers import DOMAIN, Striate

pytestmark = pytest.mark.minio_differs("it has no batch read")

FIRST, LAST, END = 1, 2, 4
HEADER = struct.Struct(">4sIHBBII")


class Broken(Exception):
    """The answer is incomplete or malformed."""


def frames(data):
    """Yields each frame as (item, status, flags, head, body); raises Broken if the answer is not complete."""
    at = 0
    while True:
        if len(data) - at < 24:
            raise Broken("cut within a frame's header, or before the end frame")
        magic, item, status, flags, zero, head_len, body_len = HEADER.unpack_from(data, at)
        (crc,) = struct.unpack_from(">I", data, at + 20)
        rest = data[at + 24:at + 24 + head_len + body_len]
        if magic != b"STR1" or zero or len(rest) < head_len + body_len:
            raise Broken("no frame, or a cut one")
        if zlib.crc32(rest, zlib.crc32(data[at:at + 20])) != crc:
            raise Broken("the checksum differs")
        assert body_len <= 1 << 20
        at += 24 + len(rest)
        if flags == END:
            assert (status, head_len, body_len, at) == (200, 0, 0, len(data))
            yield item, status, flags, None, b""
            return
        yield item, status, flags, json.loads(rest[:head_len]) if head_len else None, rest[head_len:]


def answers(data):
    """Returns the items in order, each as (status, head, bytes)."""
    items, ended = {}, set()
    for item, status, flags, head, body in frames(data):
        if flags == END:
            assert ended == set(range(item)) == set(items)
            break
        assert item not in ended
        assert bool(flags & FIRST) == (item not in items)
        items.setdefault(item, (status, head, bytearray()))[2].extend(body)
        if flags & LAST:
            ended.add(item)
    for status, head, body in items.values():
        assert status >= 400 or head["content_length"] == len(body)
    return [items[item] for item in sorted(items)]


@pytest.fixture
def batch(raw, server, bucket):
    """Posts a batch read signed by botocore."""

    def send(items, **more):
        body = items if isinstance(items, bytes) else json.dumps({"items": items, **more}).encode()
        request = AWSRequest("POST", f"{server.endpoint}/{bucket}?batch", data=body,
                             headers={"Content-Type": "application/json"})
        S3SigV4Auth(Credentials(*credentials(server)), "s3", "us-east-1").add_auth(request)
        return raw.send_raw("POST", f"/{bucket}?batch", {"host": raw.host, **dict(request.headers.items())}, body)

    return send


def credentials(server):
    return server.credentials.access_key, server.credentials.secret_key


def test_a_thousand_small_objects_in_one_request(s3, bucket, body, batch):
    contents = {f"dir/{number:04}": body(number * 53 % 9_000, number) for number in range(1_000)}
    for key, content in contents.items():
        s3.put_object(Bucket=bucket, Key=key, Body=content)
    answer = batch([{"key": key} for key in contents])
    assert (answer.status, answer.headers["content-type"]) == (200, "application/vnd.striate.frames")
    for (status, head, data), (key, content) in zip(answers(answer.body), contents.items(), strict=True):
        assert (status, head["key"], head["size"]) == (200, key, len(content))
        assert data == content, key
    tar = batch([{"key": key} for key in contents], format="tar")
    archive = tarfile.open(fileobj=io.BytesIO(tar.body))
    assert {member.name: archive.extractfile(member).read() for member in archive} == contents


def test_ranges_conditions_missing_keys_and_large_objects_beside_each_other(s3, bucket, body, batch):
    large = body(9 << 20)
    etag = s3.put_object(Bucket=bucket, Key="large", Body=large)["ETag"]
    s3.put_object(Bucket=bucket, Key="small", Body=b"0123456789", ContentType="text/x")
    s3.put_object(Bucket=bucket, Key="empty", Body=b"")
    found = answers(batch([
        {"key": "large"}, {"key": "none"}, {"key": "small", "range": "bytes=2-4"}, {"key": "small", "range": "bytes=-3"},
        {"key": "large", "range": f"bytes={(4 << 20) - 5}-{(4 << 20) + 4}", "if_match": etag}, {"key": "empty"},
        {"key": "large", "if_match": '"other"'}, {"key": "small", "range": "bytes=10-"}, {"key": "small", "range": "x"},
        {"key": "a\0b"}, {"key": "k" * 1025},
    ]).body)
    assert [status for status, _, _ in found] == [200, 404, 206, 206, 206, 200, 412, 416, 400, 400, 400]
    assert [bytes(data) for _, _, data in found[:6]] == [
        large, b"", b"234", b"789", large[(4 << 20) - 5:(4 << 20) + 5], b""]
    assert [head["code"] for status, head, _ in found if status >= 400] == [
        "NoSuchKey", "PreconditionFailed", "InvalidRange", "InvalidArgument", "InvalidArgument", "KeyTooLongError"]
    head = found[2][1]
    assert (head["content_range"], head["content_type"], head["size"]) == ("bytes 2-4/10", "text/x", 10)
    assert found[0][1]["etag"] == etag
    listed = s3.head_object(Bucket=bucket, Key="large")["LastModified"]
    assert found[0][1]["last_modified"].startswith(listed.strftime("%Y-%m-%dT%H:%M:%S"))


def test_an_archive_has_the_order_of_its_items_and_says_what_failed(s3, bucket, body, batch):
    contents = {"a/../b": b"dots", "/rooted": b"slash", "ünï/日本語" * 9: body(3 << 20), "empty": b"", "end/": b"x", "e\nf": b"line"}
    for key, content in contents.items():
        s3.put_object(Bucket=bucket, Key=key, Body=content)
    keys = ["ünï/日本語" * 9, "none", "a/../b", "/rooted", "empty", "end/", "e\nf"]
    answer = batch([*({"key": key} for key in keys), {"key": "empty", "range": "y"}], format="tar")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/x-tar")
    archive = tarfile.open(fileobj=io.BytesIO(answer.body))
    members = archive.getmembers()
    # `tarfile` removes a slash at the end of a name.
    assert [member.pax_headers["path"] for member in members] == [keys[0], "__errors__/1", *keys[2:], "__errors__/7"]
    for position in (0, 2, 3, 4, 5, 6):
        member = members[position]
        assert archive.extractfile(member).read() == contents[keys[position]]
        assert member.isreg() and member.pax_headers["STRIATE.position"] == str(position)
    etag = s3.head_object(Bucket=bucket, Key="a/../b")["ETag"]
    assert members[2].pax_headers["STRIATE.etag"] == etag
    records = members[1].pax_headers
    assert (records["STRIATE.key"], records["STRIATE.status"], records["STRIATE.code"]) == ("none", "404", "NoSuchKey")
    assert members[7].pax_headers["STRIATE.status"] == "400"


@pytest.mark.parametrize("document, reason", [
    (b"", "EOF"), (b"{", "EOF"), (b"[]", "items"), (b'{"items": []}', "1 to 4096 items"),
    (b'{"items": [{"key": "a", "rang": "x"}]}', "rang"), (b'{"items": [{"key": 1}]}', "string"),
    (b'{"items": [{"key": "a"}], "format": "zip"}', "zip"), (b"\xff\xfe", "expected"),
    (json.dumps({"items": [{"key": "a"}] * 4097}).encode(), "more than 4096"), (b"[" * 100_000, "expected a string"),
])
def test_what_is_no_batch_read_is_refused(batch, document, reason):
    answer = batch(document)
    assert (answer.status, answer.code) == (400, "InvalidRequest")
    assert reason in answer.body.decode()


def test_a_body_above_the_limit_is_refused(batch):
    answer = batch(b" " * ((4 << 20) + 1))
    assert (answer.status, answer.code) == (400, "MaxMessageLengthExceeded")


def test_only_signed_requests_are_answered(raw, server, s3, bucket, batch):
    s3.put_object(Bucket=bucket, Key="k", Body=b"secret")
    document = b'{"items": [{"key": "k"}]}'

    def signed(spoil=lambda request: None, credentials=None, payload_hash=None):
        request = sigv4.Request("POST", f"/{bucket}", [("batch", "")], {}, document)
        sigv4.sign_headers(request, credentials or server.credentials, raw.host, None, payload_hash)
        spoil(request)
        return raw.send_raw("POST", request.target(), request.headers, request.body)

    def altered(request):
        request.body = b'{"items": [{"key": "x"}]}'

    assert answers(signed().body)[0][2] == b"secret"
    forged = signed(lambda request: request.headers.update(authorization=request.headers["authorization"][:-4] + "0000"))
    assert (forged.status, forged.code) == (403, "SignatureDoesNotMatch")
    wrong = signed(credentials=sigv4.Credentials(server.credentials.access_key, "wrong"))
    assert (wrong.status, wrong.code) == (403, "SignatureDoesNotMatch")
    nobody = signed(credentials=sigv4.Credentials("nobody-here", "wrong"))
    assert (nobody.status, nobody.code) == (403, "InvalidAccessKeyId")
    unsigned = signed(lambda request: request.headers.pop("authorization"))
    assert (unsigned.status, unsigned.code) == (403, "AccessDenied")
    other = signed(altered)
    assert (other.status, other.code) == (400, "XAmzContentSHA256Mismatch")
    owner = raw.send("POST", f"/{bucket}", [("batch", "")], {"x-amz-expected-bucket-owner": "0" * 64}, document)
    assert (owner.status, owner.code) == (403, "AccessDenied")


def test_presigned_urls_and_virtual_hosts(raw, server, s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"bytes")
    document = b'{"items": [{"key": "k"}]}'
    request = AWSRequest("POST", f"{server.endpoint}/{bucket}?batch")
    S3SigV4QueryAuth(Credentials(*credentials(server)), "s3", "us-east-1", expires=60).add_auth(request)
    target = request.url.removeprefix(server.endpoint)
    assert answers(raw.send_raw("POST", target, {"host": raw.host}, document).body)[0][2] == b"bytes"
    host = f"{bucket}.{DOMAIN}"
    request = sigv4.Request("POST", "/", [("batch", "")], {"host": host}, document)
    sigv4.sign_headers(request, server.credentials, host)
    answer = raw.send_raw("POST", request.target(), request.headers, document)
    assert answers(answer.body)[0][2] == b"bytes"


def test_its_description_is_yaml_that_names_what_there_is():
    text = (Path(__file__).resolve().parents[2] / "docs" / "src" / "openapi.yaml").read_text()
    described = yaml.safe_load(text)
    assert described["openapi"].startswith("3.1.")
    post = described["paths"]["/{bucket}"]["post"]
    assert "batch" in [parameter["name"] for parameter in post["parameters"]]
    assert set(post["responses"]["200"]["content"]) == {
        "application/vnd.striate.frames", "application/x-tar", "application/json",
    }
    item = described["components"]["schemas"]["Item"]["properties"]
    assert set(item) == {"key", "range", "if_match"}
    for name in set(re.findall(r"#/components/schemas/(\w+)", text)):
        assert name in described["components"]["schemas"]


def test_a_bucket_that_is_not_there_fails_the_request(raw):
    answer = raw.send("POST", "/no-such-bucket-here", [("batch", "")], body=b'{"items": [{"key": "k"}]}')
    assert (answer.status, answer.code) == (404, "NoSuchBucket")


def test_every_cut_and_every_altered_byte_is_noticed(s3, bucket, body, batch):
    for number in range(3):
        s3.put_object(Bucket=bucket, Key=f"k{number}", Body=body(50, number))
    whole = batch([{"key": f"k{number}"} for number in range(3)]).body
    for length in range(len(whole)):
        with pytest.raises(Broken):
            list(frames(whole[:length]))
    for at in range(len(whole)):
        altered = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1:]
        with pytest.raises(Broken):
            list(frames(altered))


def test_a_server_that_dies_is_noticed(tmp_path, body):
    """The answer is larger than the sockets' buffers, so part of it is unsent when the server is killed."""
    items = [{"key": "large"}] * 40
    document = json.dumps({"items": items}).encode()
    with Striate(tmp_path) as own:
        client = own.client()
        assert client.send("PUT", "/bucket").status == 200
        assert client.send("PUT", "/bucket/large", body=body(2 << 20)).status == 200
        connection = http.client.HTTPConnection(client.host, timeout=60)
        request = sigv4.Request("POST", "/bucket", [("batch", "")], {}, document)
        sigv4.sign_headers(request, own.credentials, client.host)
        connection.request("POST", request.target(), document, request.headers)
        response = connection.getresponse()
        received = response.read(3 << 20)
        own.kill()
        with pytest.raises((http.client.HTTPException, OSError)):
            while more := response.read1(1 << 20):
                received += more
        with pytest.raises(Broken):
            list(frames(received))
        assert len(received) < len(items) * (2 << 20)


def test_a_receiver_that_goes_away_holds_up_nobody(s3, server, bucket, body, batch):
    """Each receiver asks for far more than memory and sockets hold, reads a little, and breaks off or stops reading."""
    s3.put_object(Bucket=bucket, Key="large", Body=body(8 << 20))
    document = json.dumps({"items": [{"key": "large"}] * 64}).encode()
    host, port = server.endpoint.removeprefix("http://").split(":")
    stalled = []
    for _ in range(12):
        request = sigv4.Request("POST", f"/{bucket}", [("batch", "")], {"content-length": str(len(document))}, document)
        sigv4.sign_headers(request, server.credentials, f"{host}:{port}")
        connection = socket.create_connection((host, int(port)), timeout=60)
        head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
        connection.sendall(f"POST {request.target()} HTTP/1.1\r\n{head}\r\n".encode() + document)
        assert connection.recv(100_000).startswith(b"HTTP/1.1 200")
        stalled.append(connection)
    for connection in stalled[:9]:
        connection.close()
    (found,) = answers(batch([{"key": "large"}]).body)
    assert found[2] == body(8 << 20)
    assert s3.get_object(Bucket=bucket, Key="large")["Body"].read() == body(8 << 20)
    for connection in stalled:
        connection.close()
