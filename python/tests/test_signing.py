"""Signatures are compared with botocore's."""

import datetime

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from striate.signing import Keys, Signer, encode_path, encode_query
from striate.transport import EMPTY_HASH

KEYS = [Keys("AKID", "secret"), Keys("AKID", "secret", "a-token/with+signs=")]


class Fixed(datetime.datetime):
    @classmethod
    def utcnow(cls):
        return cls(2026, 2, 3, 4, 5, 6)

    @classmethod
    def now(cls, tz=None):
        return cls(2026, 2, 3, 4, 5, 6, tzinfo=tz)


NOW = datetime.datetime(2026, 2, 3, 4, 5, 6, tzinfo=datetime.timezone.utc)


@pytest.fixture(autouse=True)
def same_time(monkeypatch):
    import botocore.auth

    if hasattr(botocore.auth, "get_current_datetime"):
        monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda remove_tzinfo=True: Fixed.utcnow())
    else:
        monkeypatch.setattr(botocore.auth.datetime, "datetime", Fixed)


@pytest.mark.parametrize("keys", KEYS)
@pytest.mark.parametrize(("method", "path", "query", "headers"), [
    ("GET", "/bucket/key", [], {}),
    ("GET", "/bucket/a b/ü+&=~()'!*", [("list-type", "2"), ("prefix", "a b/+&=ü"), ("batch", "")], {"range": "bytes=0-9"}),
    ("PUT", "/bucket/k", [], {"content-type": "text/plain", "x-amz-meta-a": "  many   spaces "}),
])
def test_header_signatures_are_those_of_botocore(keys, method, path, query, headers):
    ours = {"host": "store.example:9000", **headers}
    signer = Signer("eu-test-1")
    signer.sign(keys, method, encode_path(path), encode_query(query), ours, EMPTY_HASH, NOW)
    signer.sign(keys, method, encode_path(path), encode_query(query), again := {"host": "store.example:9000", **headers},
                EMPTY_HASH, NOW)
    assert again == ours  # also with the cached signing key
    url = "http://store.example:9000" + encode_path(path)
    request = AWSRequest(method, url, headers={"X-Amz-Content-SHA256": EMPTY_HASH, **headers}, params=dict(query))
    request.context["payload_signing_enabled"] = True
    S3SigV4Auth(Credentials(*keys), "s3", "eu-test-1").add_auth(request)
    assert ours["authorization"].partition("Signature=")[2] == request.headers["Authorization"].partition("Signature=")[2]


@pytest.mark.parametrize("keys", KEYS)
def test_presigned_urls_are_those_of_botocore(keys):
    path = encode_path("/bucket/a b/ü+")
    ours = Signer("eu-test-1").presign(keys, "GET", "store.example", path, 77, NOW)
    request = AWSRequest("GET", "https://store.example" + path)
    S3SigV4QueryAuth(Credentials(*keys), "s3", "eu-test-1", expires=77).add_auth(request)
    assert set(ours.split("&")) == set(request.url.partition("?")[2].split("&"))


def test_another_day_or_secret_has_another_signing_key():
    def signature(signer, keys, day):
        headers = {"host": "h"}
        signer.sign(keys, "GET", "/", "", headers, EMPTY_HASH, NOW + datetime.timedelta(days=day))
        return headers["authorization"]

    kept = Signer("r")
    for keys, day in [(Keys("a", "one"), 0), (Keys("a", "one"), 1), (Keys("a", "two"), 1), (Keys("a", "one"), 0)]:
        assert signature(kept, keys, day) == signature(Signer("r"), keys, day)
