"""Malformed HTTP, oversized headers, odd keys, hostile XML: a clean 4xx, and the server keeps running."""

import base64
import hashlib
import socket
import time

import pytest
from proving import sigv4


@pytest.fixture(autouse=True)
def still_alive(raw, bucket, server):
    yield
    assert server.process.poll() is None, server.log_tail()
    fresh = server.client()
    fresh.put(bucket, "alive", b"yes")
    assert fresh.get(bucket, "alive") == b"yes"
    fresh.close()


@pytest.fixture
def talk(server):
    """Sends raw bytes and returns the whole answer, empty if the server closes the connection without one."""

    def send(data, timeout_s=20, half_close=True):
        with socket.create_connection(("127.0.0.1", server.port), timeout=timeout_s) as connection:
            try:
                connection.sendall(data)
                if half_close:
                    connection.shutdown(socket.SHUT_WR)
                answer = b""
                while piece := connection.recv(65_536):
                    answer += piece
            except TimeoutError:
                raise
            except OSError:  # the server closed the connection while we were sending
                answer = b""
            return answer

    return send


def status_of(answer):
    return int(answer.split(b" ", 2)[1]) if answer else None


def signed_lines(server, method, path, headers=None, payload_hash=sigv4.UNSIGNED):
    request = sigv4.Request(method, path, [], dict(headers or {}))
    sigv4.sign_headers(request, server.credentials, f"127.0.0.1:{server.port}", payload_hash=payload_hash)
    lines = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    return f"{method} {request.target()} HTTP/1.1\r\n{lines}connection: close\r\n".encode()


@pytest.mark.parametrize("data", [
    b"", b"\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x00" * 100,
    b"GET / HTTP/1.1\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
    b"GET /%zz HTTP/1.1\r\nhost: a\r\n\r\n", b"GET / HTTP/1.1\r\nbad header\r\n\r\n", b"G" * 100_000,
])
def test_what_is_not_http(talk, data):
    answer = talk(data)
    status = status_of(answer) if answer.startswith(b"HTTP/") else None
    assert status is None or 400 <= status < 506


@pytest.mark.parametrize("length", ["-1", "x", "1, 2", "99999999999999999999", "+5", "0x10", ""])
def test_malformed_content_length(talk, server, bucket, length):
    answer = talk(signed_lines(server, "PUT", f"/{bucket}/k") + f"content-length: {length}\r\n\r\nhello".encode())
    assert status_of(answer) in (None, 400, 411, 413)


def test_two_different_content_lengths(talk, server, bucket):
    lines = signed_lines(server, "PUT", f"/{bucket}/k") + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello!"
    assert status_of(talk(lines)) in (None, 400)


@pytest.mark.minio_differs("answers 499")
def test_missing_content_length(talk, server, bucket, raw):
    answer = talk(signed_lines(server, "PUT", f"/{bucket}/k") + b"\r\n", half_close=False)
    assert status_of(answer) in (200, 411)


def test_content_length_with_transfer_encoding(talk, server, bucket):
    lines = signed_lines(server, "PUT", f"/{bucket}/k") + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    assert status_of(talk(lines)) in (None, 200, 400, 411)


def test_a_body_shorter_than_promised_stores_nothing(talk, server, bucket, raw):
    talk(signed_lines(server, "PUT", f"/{bucket}/short") + b"content-length: 100000\r\n\r\nonly this")
    assert raw.send("GET", f"/{bucket}/short").status == 404


def test_a_body_larger_than_any_object(talk, server, bucket, raw):
    answer = talk(signed_lines(server, "PUT", f"/{bucket}/huge") + f"content-length: {6 << 40}\r\n\r\nstart".encode())
    assert b"EntityTooLarge" in answer or status_of(answer) in (None, 400, 413)
    assert raw.send("GET", f"/{bucket}/huge").status == 404


@pytest.mark.parametrize("size", [70_000, 1 << 20])
def test_oversized_headers(talk, server, size):
    answer = talk(f"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\nx-large: {'a' * size}\r\n\r\n".encode())
    assert status_of(answer) in (None, 400, 403, 431)


def test_too_many_headers(talk, server):
    lines = "".join(f"x-{number}: y\r\n" for number in range(5000))
    assert status_of(talk(f"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\n{lines}\r\n".encode())) in (None, 400, 403, 431)


def test_an_oversized_target(talk, server):
    assert status_of(talk(f"GET /{'a' * 200_000} HTTP/1.1\r\nhost: a\r\n\r\n".encode())) in (None, 400, 403, 414, 431)


def test_oversized_metadata(raw, bucket):
    small = raw.send("PUT", f"/{bucket}/k", headers={"x-amz-meta-a": "x" * 2000}, body=b"x")
    assert small.status == 200
    large = raw.send("PUT", f"/{bucket}/l", headers={"x-amz-meta-a": "x" * 2100}, body=b"x")
    assert (large.status, large.code) == (400, "MetadataTooLarge")
    several = {f"x-amz-meta-{number}": "x" * 200 for number in range(12)}
    assert raw.send("PUT", f"/{bucket}/l", headers=several, body=b"x").code == "MetadataTooLarge"
    assert raw.send("GET", f"/{bucket}/l").status == 404


@pytest.mark.parametrize("key", ["x" * 1025, "é" * 513])
def test_keys_over_1024_bytes(raw, bucket, key):
    answer = raw.send("PUT", f"/{bucket}/{key}", body=b"x")
    assert (answer.status, answer.code) == (400, "KeyTooLongError")


@pytest.mark.minio_differs("refuses NUL with another code")
def test_nul_in_a_key(raw, bucket):
    answer = raw.send("PUT", f"/{bucket}/a\0b", body=b"x")
    assert answer.status in (200, 400)
    if answer.status == 200:
        assert raw.get(bucket, "a\0b") == b"x"


def test_a_key_that_is_not_utf8(raw, server, bucket):
    answer = raw.send_raw("GET", f"/{bucket}/%ff%fe", {"host": raw.host})
    assert answer.status in (400, 403)


@pytest.mark.parametrize("path", ["/../../../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "/..%2f..%2fetc/passwd", "/./.striate/identity"])
def test_paths_lead_nowhere(raw, server, path):
    for target in (path, path.replace("/", "//", 1)):
        answer = raw.send_raw("GET", target, {"host": raw.host})
        assert answer.status in (400, 403, 404), answer
        assert b"root:" not in answer.body


DEEP = b"<a>" * 100_000
ENTITIES = b"""<?xml version="1.0"?><!DOCTYPE d [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;"><!ENTITY c "&b;&b;&b;&b;">]>
<Delete><Object><Key>&c;</Key></Object></Delete>"""
FILE = b"""<?xml version="1.0"?><!DOCTYPE d [<!ENTITY x SYSTEM "file:///etc/passwd">]><Delete><Object><Key>&x;</Key></Object></Delete>"""


@pytest.mark.parametrize("text", [
    DEEP, ENTITIES, FILE, b"", b"<", b"<Delete>", b"<Other/>", b"not xml", b"\xff\xfe\x00", b"<Delete><Object></Object></Delete>",
    b"<Delete><Object><Key>" + b"k" * (3 << 20) + b"</Key></Object></Delete>",
], ids=["deep", "entities", "file", "empty", "cut", "unclosed", "other", "text", "binary", "no key", "huge"])
def test_hostile_xml(raw, bucket, text):
    headers = {"content-md5": base64.b64encode(hashlib.md5(text).digest()).decode()}
    started = time.monotonic()
    answer = raw.send("POST", f"/{bucket}", query=[("delete", "")], headers=headers, body=text)
    refused_for_the_key = answer.status == 200 and b"<Error>" in answer.body
    assert refused_for_the_key or 400 <= answer.status < 500, answer
    assert b"root:" not in answer.body
    assert time.monotonic() - started < 30


@pytest.mark.parametrize("operation", ["tagging", "cors"])
@pytest.mark.parametrize("text", [DEEP, ENTITIES, b"", b"<Other/>", b"x" * (2 << 20)], ids=["deep", "entities", "empty", "other", "huge"])
def test_hostile_configuration(raw, bucket, operation, text):
    headers = {"content-md5": base64.b64encode(hashlib.md5(text).digest()).decode()}
    answer = raw.send("PUT", f"/{bucket}", query=[(operation, "")], headers=headers, body=text)
    assert 400 <= answer.status < 600 and answer.status != 500, answer


def test_completion_with_too_many_parts(raw, bucket, s3):
    upload = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    parts = "".join(f"<Part><PartNumber>{number}</PartNumber><ETag>x</ETag></Part>" for number in range(1, 10_002))
    text = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()
    answer = raw.send("POST", f"/{bucket}/k", query=[("uploadId", upload)], body=text)
    assert answer.status == 400, answer


def test_expect_continue(server, bucket, raw):
    lines = signed_lines(server, "PUT", f"/{bucket}/expected", {"expect": "100-continue"})
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(lines + b"content-length: 5\r\n\r\n")
        assert connection.recv(1000).startswith(b"HTTP/1.1 100")
        connection.sendall(b"hello")
        assert b" 200 " in connection.recv(10_000).split(b"\r\n")[0]
    assert raw.get(bucket, "expected") == b"hello"


def test_expect_continue_is_refused_before_the_body_comes(server, bucket):
    lines = signed_lines(server, "PUT", f"/{bucket}/k", {"expect": "100-continue"}).replace(b"Signature=", b"Signature=0")
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(lines + b"content-length: 1000000\r\n\r\n")
        assert connection.recv(1000).split(b" ")[1] in (b"403", b"400")


@pytest.mark.minio_differs("gives slow clients longer")
def test_slow_headers_are_cut_off(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\n")
        started = time.monotonic()
        try:
            answer = connection.recv(1000)
        except ConnectionResetError:
            answer = b""
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4")
        assert time.monotonic() - started < 50


def test_slow_clients_do_not_stop_others(server, bucket):
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(100)]
    for connection in slow:
        connection.sendall(b"PUT /x HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n")
    client = server.client(timeout_s=20)
    for number in range(20):
        client.put(bucket, f"k{number}", b"quick")
    for connection in slow:
        connection.close()


def test_slow_bodies_do_not_stop_others(server, bucket):
    slow = []
    for number in range(32):
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=20)
        connection.sendall(signed_lines(server, "PUT", f"/{bucket}/slow{number}") + b"content-length: 1000000\r\n\r\nthe start")
        slow.append(connection)
    client = server.client(timeout_s=20)
    for number in range(20):
        client.put(bucket, f"k{number}", b"quick")
        assert client.get(bucket, f"k{number}") == b"quick"
    for connection in slow:
        connection.close()


def test_clients_that_vanish_in_the_middle_of_an_answer(server, bucket, body):
    client = server.client()
    client.put(bucket, "large", body(8 << 20))
    for _ in range(30):
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
            connection.sendall(signed_lines(server, "GET", f"/{bucket}/large") + b"\r\n")
            connection.recv(1000)
    assert client.get(bucket, "large") == body(8 << 20)
