"""Signature Version 4, from its public description, so that tests can falsify any part of it."""

import datetime
import hashlib
import hmac
from dataclasses import dataclass, field
from urllib.parse import quote, urlencode

UNSIGNED = "UNSIGNED-PAYLOAD"
ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True)
class Credentials:
    access_key: str
    secret_key: str
    region: str = "us-east-1"

    def scope(self, when):
        return f"{when:%Y%m%d}/{self.region}/s3/aws4_request"

    def signing_key(self, when):
        key = f"AWS4{self.secret_key}".encode()
        for part in (f"{when:%Y%m%d}", self.region, "s3", "aws4_request"):
            key = hmac.new(key, part.encode(), hashlib.sha256).digest()
        return key

    def sign(self, text, when):
        return hmac.new(self.signing_key(when), text.encode(), hashlib.sha256).hexdigest()


def now():
    return datetime.datetime.now(datetime.timezone.utc)


def stamp(when):
    return f"{when:%Y%m%dT%H%M%SZ}"


def encode_path(path):
    return quote(path, safe="/-_.~")


def encode_query(pairs):
    return urlencode(sorted(pairs), quote_via=quote, safe="-_.~")


@dataclass
class Request:
    """An unsigned request: the path is not yet percent-encoded, the query is a list of pairs."""

    method: str
    path: str
    query: list = field(default_factory=list)
    headers: dict = field(default_factory=dict)
    body: bytes = b""

    def canonical(self, signed, payload_hash):
        headers = {name.lower(): " ".join(str(value).split()) for name, value in self.headers.items()}
        return "\n".join(
            [
                self.method,
                encode_path(self.path),
                encode_query(self.query),
                "".join(f"{name}:{headers[name]}\n" for name in signed),
                ";".join(signed),
                payload_hash,
            ]
        )

    def target(self):
        query = encode_query(self.query)
        return encode_path(self.path) + ("?" + query if query else "")


def string_to_sign(credentials, when, canonical):
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return "\n".join([ALGORITHM, stamp(when), credentials.scope(when), digest])


def sign_headers(request, credentials, host, when=None, payload_hash=None):
    """Adds host, date, payload hash and Authorization; returns the signature (chunk signatures are chained to it)."""
    when = when or now()
    payload_hash = payload_hash or hashlib.sha256(request.body).hexdigest()
    request.headers.update({"host": host, "x-amz-date": stamp(when), "x-amz-content-sha256": payload_hash})
    signed = sorted(name.lower() for name in request.headers)
    canonical = request.canonical(signed, payload_hash)
    signature = credentials.sign(string_to_sign(credentials, when, canonical), when)
    request.headers["authorization"] = (
        f"{ALGORITHM} Credential={credentials.access_key}/{credentials.scope(when)}, "
        f"SignedHeaders={';'.join(signed)}, Signature={signature}"
    )
    return signature


def presign(request, credentials, host, expires_s=600, when=None):
    """Returns the request's target with a signature in its query; leaves the request unchanged."""
    when = when or now()
    query = request.query + [
        ("X-Amz-Algorithm", ALGORITHM),
        ("X-Amz-Credential", f"{credentials.access_key}/{credentials.scope(when)}"),
        ("X-Amz-Date", stamp(when)),
        ("X-Amz-Expires", str(expires_s)),
        ("X-Amz-SignedHeaders", "host"),
    ]
    alone = Request(request.method, request.path, query, {"host": host})
    canonical = alone.canonical(["host"], UNSIGNED)
    signature = credentials.sign(string_to_sign(credentials, when, canonical), when)
    alone.query = query + [("X-Amz-Signature", signature)]
    return alone.target()
