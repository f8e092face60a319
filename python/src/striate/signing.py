"""Signature Version 4 for S3, in headers and in URLs.

A signing key is four HMACs that depend only on the secret, the day and the region. It is cached, so that signing a request
costs one HMAC and two hashes. The tests compare the signatures with botocore's.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
from typing import NamedTuple, Optional
from urllib.parse import quote

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED = "UNSIGNED-PAYLOAD"
EMPTY_HASH = hashlib.sha256(b"").hexdigest()

Query = list[tuple[str, str]]


class Keys(NamedTuple):
    """An access key with its secret, and a session token if it is temporary."""

    access_key: str
    secret_key: str
    token: Optional[str] = None

    def __repr__(self) -> str:
        return f"Keys({self.access_key!r}, …)"  # logs and traces show representations


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


def encode_path(path: str) -> str:
    return quote(path, safe="/-_.~")


def encode_query(query: Query) -> str:
    """Encodes a query in the order that the signature demands."""
    return "&".join(sorted(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in query))


class Signer:
    """Signs for one region."""

    def __init__(self, region: str) -> None:
        self.region = region
        self._cached: tuple[tuple[str, str], bytes] = (("", ""), b"")

    def sign(
        self, keys: Keys, method: str, path: str, query: str, headers: dict[str, str], payload_hash: str,
        now: Optional[datetime.datetime] = None,
    ) -> None:
        """Adds date, payload hash and `authorization` to `headers`, whose names are in lower case and include `host`.

        `path` and `query` are already encoded.
        """
        now = now or utc_now()
        headers["x-amz-date"] = f"{now:%Y%m%dT%H%M%SZ}"
        headers["x-amz-content-sha256"] = payload_hash
        if keys.token:
            headers["x-amz-security-token"] = keys.token
        names = sorted(headers)
        signed = ";".join(names)
        canonical_headers = "".join(f"{name}:{' '.join(headers[name].split())}\n" for name in names)
        canonical = "\n".join((method, path, query, canonical_headers, signed, payload_hash))
        signature = self._signature(keys, now, canonical)
        headers["authorization"] = (
            f"{ALGORITHM} Credential={keys.access_key}/{self._scope(now)}, SignedHeaders={signed}, Signature={signature}"
        )

    def presign(
        self, keys: Keys, method: str, host: str, path: str, expires_s: int, now: Optional[datetime.datetime] = None
    ) -> str:
        """Returns the query of a URL that gives access without keys for `expires_s` seconds."""
        now = now or utc_now()
        query = [
            ("X-Amz-Algorithm", ALGORITHM), ("X-Amz-Credential", f"{keys.access_key}/{self._scope(now)}"),
            ("X-Amz-Date", f"{now:%Y%m%dT%H%M%SZ}"), ("X-Amz-Expires", str(expires_s)), ("X-Amz-SignedHeaders", "host"),
        ]
        if keys.token:
            query.append(("X-Amz-Security-Token", keys.token))
        canonical_query = encode_query(query)
        canonical = "\n".join((method, path, canonical_query, f"host:{host}\n", "host", UNSIGNED))
        return f"{canonical_query}&X-Amz-Signature={self._signature(keys, now, canonical)}"

    def _scope(self, now: datetime.datetime) -> str:
        return f"{now:%Y%m%d}/{self.region}/s3/aws4_request"

    def _signature(self, keys: Keys, now: datetime.datetime, canonical: str) -> str:
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        text = f"{ALGORITHM}\n{now:%Y%m%dT%H%M%SZ}\n{self._scope(now)}\n{digest}"
        return hmac.new(self._signing_key(keys.secret_key, f"{now:%Y%m%d}"), text.encode(), hashlib.sha256).hexdigest()

    def _signing_key(self, secret: str, day: str) -> bytes:
        name, key = self._cached
        if name != (secret, day):
            key = f"AWS4{secret}".encode()
            for part in (day, self.region, "s3", "aws4_request"):
                key = hmac.new(key, part.encode(), hashlib.sha256).digest()
            self._cached = ((secret, day), key)
        return key
