"""Kept connections: after a refused PUT a connection stays usable, or the answer says that it closes.

Such an answer reaches even a client that is still sending.
"""

import http.client
import socket
import uuid

import pytest
from conftest import boto
from proving import sigv4
from proving.sigv4 import Credentials

LARGE = 8 << 20


def head(server, method, path, length=0, credentials=None, **more):
    """Returns the head of a signed request as bytes."""
    request = sigv4.Request(method, path, [], {name.replace("_", "-"): value for name, value in more.items()})
    host = f"127.0.0.1:{server.port}"
    sigv4.sign_headers(request, credentials or server.credentials, host, payload_hash=sigv4.UNSIGNED)
    lines = [f"{method} {request.target()} HTTP/1.1"] + [f"{name}: {value}" for name, value in request.headers.items()]
    return "\r\n".join([*lines, f"content-length: {length}", "", ""]).encode()


class Kept:
    """One connection, and its answers in order."""

    def __init__(self, server):
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=20)

    def answer(self):
        answer = http.client.HTTPResponse(self.socket)
        answer.begin()
        return answer.status, answer.getheader("connection", "").lower() == "close", answer.read()

    def is_closed(self):
        return self.socket.recv(1) == b""


@pytest.fixture
def stranger():
    return Credentials("NOBODY", "a secret that nobody gave out")


@pytest.fixture
def good(server, s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"as it was")
    return lambda: head(server, "GET", f"/{bucket}/k")


@pytest.mark.parametrize("length", [0, 100, 300_000, LARGE])
@pytest.mark.parametrize("manner", ["sends at once", "waits for 100", "loses patience"])
def test_a_refused_put_and_a_good_get_on_one_connection(server, bucket, good, stranger, length, manner):
    """A client that expects `100 Continue` may lose patience and send its body all the same."""
    expect = {} if manner == "sends at once" else {"expect": "100-continue"}
    for _ in range(10):
        kept = Kept(server)
        for _ in range(3):
            kept.socket.sendall(head(server, "PUT", f"/{bucket}/refused", length, stranger, **expect))
            if manner != "waits for 100":
                kept.socket.sendall(b"x" * length)
            status, closes, body = kept.answer()
            assert (status, b"InvalidAccessKeyId" in body) == (403, True)
            if closes:
                assert kept.is_closed()
                break
            kept.socket.sendall(good())
            assert kept.answer() == (200, False, b"as it was")


def test_an_answer_is_not_lost_under_a_body_larger_than_all_buffers(server, bucket, stranger):
    for _ in range(5):
        kept = Kept(server)
        kept.socket.sendall(head(server, "PUT", f"/{bucket}/refused", 8 * LARGE, stranger))
        for _ in range(8):
            kept.socket.sendall(b"x" * LARGE)
        status, closes, body = kept.answer()
        assert (status, closes, b"InvalidAccessKeyId" in body) == (403, True, True)
        assert kept.is_closed()


@pytest.mark.parametrize("length", [100, LARGE])
def test_boto3_without_retries_sees_every_refusal(server, s3, bucket, length, body):
    """300 refusals, each followed by a request that succeeds, on kept connections."""
    once = boto(server, retries={"total_max_attempts": 1}, max_pool_connections=1)
    s3.put_object(Bucket=bucket, Key="k", Body=b"as it was")
    data = body(length)
    for number in range(150):
        for refused in ({"Bucket": bucket, "IfNoneMatch": "*"}, {"Bucket": f"missing-{uuid.uuid4().hex}"}):
            with pytest.raises(once.exceptions.ClientError) as caught:
                once.put_object(**refused, Key="k", Body=data)
            assert caught.value.response["Error"]["Code"] in ("PreconditionFailed", "NoSuchBucket"), number
        assert once.get_object(Bucket=bucket, Key="k")["Body"].read() == b"as it was"


def test_boto3_without_retries_and_with_a_wrong_secret(server, bucket, body):
    class Forger:
        endpoint, credentials = server.endpoint, Credentials(server.credentials.access_key, "wrong")

    once = boto(Forger, retries={"total_max_attempts": 1}, max_pool_connections=1)
    for number in range(300):
        with pytest.raises(once.exceptions.ClientError) as caught:
            once.put_object(Bucket=bucket, Key="k", Body=body([10, 200_000, 2 << 20][number % 3]))
        assert caught.value.response["Error"]["Code"] == "SignatureDoesNotMatch", number
