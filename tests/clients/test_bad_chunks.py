"""Hand-written aws-chunked bodies: valid ones are stored; forged, truncated and mislabelled ones leave nothing."""

import base64
import hashlib
import zlib

import pytest
from proving import sigv4

SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
EMPTY = hashlib.sha256(b"").hexdigest()
PIECES = [b"a" * 65_536, b"b" * 65_536, b"c" * 100]
DATA = b"".join(PIECES)


def crc32(data):
    return base64.b64encode(zlib.crc32(data).to_bytes(4, "big")).decode()


class Chunked:
    """An aws-chunked PUT, any part of which can be falsified."""

    def __init__(self, raw, credentials, bucket, kind, decoded_length=len(DATA), trailer=None):
        self.raw, self.credentials, self.kind, self.when = raw, credentials, kind, sigv4.now()
        headers = {"content-encoding": "aws-chunked", "x-amz-decoded-content-length": str(decoded_length)}
        if trailer:
            headers["x-amz-trailer"] = trailer
        self.request = sigv4.Request("PUT", f"/{bucket}/k", [], headers)
        self.previous = sigv4.sign_headers(self.request, credentials, raw.host, self.when, kind)

    def sign(self, what, *rest):
        text = "\n".join([what, sigv4.stamp(self.when), self.credentials.scope(self.when), self.previous, *rest])
        self.previous = self.credentials.sign(text, self.when)
        return self.previous

    def chunk(self, data):
        head = f"{len(data):x}"
        if self.kind != UNSIGNED_TRAILER:
            signature = self.sign("AWS4-HMAC-SHA256-PAYLOAD", EMPTY, hashlib.sha256(data).hexdigest())
            head += f";chunk-signature={signature}"
        return head.encode() + b"\r\n" + data + (b"\r\n" if data else b"")

    def trailer(self, name, value):
        line = f"{name}:{value}\n"
        text = f"{name}:{value}\r\n"
        if self.kind == SIGNED_TRAILER:
            text += f"x-amz-trailer-signature:{self.sign('AWS4-HMAC-SHA256-TRAILER', hashlib.sha256(line.encode()).hexdigest())}\r\n"
        return text.encode()

    def send(self, body):
        return self.raw.send_raw("PUT", self.request.target(), self.request.headers, body)


@pytest.fixture
def chunked(raw, server, bucket):
    return lambda kind, **more: Chunked(raw, server.credentials, bucket, kind, **more)


@pytest.fixture
def nothing_stored(raw, bucket):
    yield
    assert raw.send("GET", f"/{bucket}/k").status == 404, "a refused body was stored"


def whole(upload, pieces=PIECES):
    return b"".join(upload.chunk(piece) for piece in [*pieces, b""])


def test_signed_chunks(chunked, raw, bucket):
    upload = chunked(SIGNED)
    assert upload.send(whole(upload) + b"\r\n").status == 200
    answer = raw.send("GET", f"/{bucket}/k")
    assert answer.body == DATA
    assert "aws-chunked" not in answer.headers.get("content-encoding", "")


@pytest.mark.parametrize("kind", [SIGNED_TRAILER, UNSIGNED_TRAILER])
def test_trailers(chunked, raw, bucket, kind):
    upload = chunked(kind, trailer="x-amz-checksum-crc32")
    assert upload.send(whole(upload) + upload.trailer("x-amz-checksum-crc32", crc32(DATA)) + b"\r\n").status == 200
    answer = raw.send("GET", f"/{bucket}/k", headers={"x-amz-checksum-mode": "ENABLED"})
    assert answer.body == DATA
    assert answer.headers["x-amz-checksum-crc32"] == crc32(DATA)


@pytest.mark.parametrize("kind", [SIGNED_TRAILER, UNSIGNED_TRAILER])
def test_a_wrong_checksum_in_the_trailer(chunked, nothing_stored, kind):
    upload = chunked(kind, trailer="x-amz-checksum-crc32")
    answer = upload.send(whole(upload) + upload.trailer("x-amz-checksum-crc32", crc32(b"other")) + b"\r\n")
    assert (answer.status, answer.code) in [(400, "BadDigest"), (400, "XAmzContentChecksumMismatch")]


def test_a_trailer_that_does_not_come(chunked, nothing_stored):
    upload = chunked(UNSIGNED_TRAILER, trailer="x-amz-checksum-crc32")
    answer = upload.send(whole(upload) + b"\r\n")
    assert answer.status == 400, answer


def test_a_forged_trailer_signature(chunked, nothing_stored):
    upload = chunked(SIGNED_TRAILER, trailer="x-amz-checksum-crc32")
    body = whole(upload) + upload.trailer("x-amz-checksum-crc32", crc32(DATA))
    answer = upload.send(body.replace(b"x-amz-trailer-signature:", b"x-amz-trailer-signature:00")[:-4] + b"\r\n\r\n")
    assert answer.status in (400, 403), answer


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_a_forged_chunk_signature(chunked, nothing_stored, which):
    upload = chunked(SIGNED)
    pieces = [upload.chunk(piece) for piece in [*PIECES, b""]]
    start = pieces[which].index(b"chunk-signature=") + 16
    flipped = b"0" if pieces[which][start:start + 1] != b"0" else b"1"
    pieces[which] = pieces[which][:start] + flipped + pieces[which][start + 1:]
    answer = upload.send(b"".join(pieces) + b"\r\n")
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")


def test_altered_data_in_a_chunk(chunked, nothing_stored):
    upload = chunked(SIGNED)
    answer = upload.send(whole(upload).replace(b"bbbb", b"bXbb", 1) + b"\r\n")
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")


def test_chunks_in_another_order(chunked, nothing_stored):
    upload = chunked(SIGNED)
    pieces = [upload.chunk(piece) for piece in [*PIECES, b""]]
    pieces[0], pieces[1] = pieces[1], pieces[0]
    assert upload.send(b"".join(pieces) + b"\r\n").code == "SignatureDoesNotMatch"


@pytest.mark.parametrize("kind", [SIGNED, UNSIGNED_TRAILER])
@pytest.mark.parametrize("length", [len(DATA) - 1, len(DATA) + 1, 0, 10**15])
def test_a_wrong_decoded_length(chunked, nothing_stored, kind, length):
    upload = chunked(kind, decoded_length=length)
    answer = upload.send(whole(upload) + b"\r\n")
    assert answer.status == 400, answer


@pytest.mark.minio_differs("answers 500")
@pytest.mark.parametrize("length", ["", "-1", "x", "1e3"])
def test_a_malformed_decoded_length(chunked, nothing_stored, length):
    upload = chunked(UNSIGNED_TRAILER, decoded_length=length)
    answer = upload.send(whole(upload) + b"\r\n")
    assert answer.status in (400, 411), answer


@pytest.mark.minio_differs("stops reading at the decoded length")
@pytest.mark.parametrize("kind", [SIGNED, UNSIGNED_TRAILER])
def test_no_last_chunk(chunked, nothing_stored, kind):
    upload = chunked(kind)
    answer = upload.send(b"".join(upload.chunk(piece) for piece in PIECES))
    assert answer.status in (400, 403), answer


@pytest.mark.parametrize("cut", [1, 100, 70_000, 131_000])
def test_truncated_within_a_chunk(chunked, nothing_stored, cut):
    upload = chunked(SIGNED)
    answer = upload.send(whole(upload)[:-cut - 90])
    assert answer.status in (400, 403), answer


@pytest.mark.parametrize("head", [b"zz\r\n", b"-5\r\n", b"ffffffffffffffffff\r\n", b"5;\r\n", b"\r\n", b"5\n", b"a" * 100_000])
def test_malformed_chunk_heads(chunked, nothing_stored, head):
    upload = chunked(UNSIGNED_TRAILER)
    try:
        answer = upload.send(head + b"x" * 2000)
    except (BrokenPipeError, ConnectionResetError):
        return  # the server may hang up on garbage
    assert answer.status in (400, 403), answer
