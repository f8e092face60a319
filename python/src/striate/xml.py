"""S3's XML: writes request bodies and reads answers."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from typing import Optional
from urllib.parse import unquote_plus
from xml.sax.saxutils import escape

from .errors import ProtocolError, S3Error, s3_error
from .objects import Bucket, ObjectInfo, Page, parse_time


def _parse(body: bytes) -> tuple[ElementTree.Element, str]:
    """Returns the root and its namespace, as `find` needs it."""
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError as error:
        raise ProtocolError(f"an answer is not XML: {error}") from error
    return root, root.tag.partition("}")[0] + "}" if root.tag.startswith("{") else ""


def page_of(body: bytes) -> Page:
    """Reads a page of ListObjectsV2, whose keys were requested percent-encoded: XML cannot carry every key."""
    root, ns = _parse(body)
    objects = [
        ObjectInfo(
            unquote_plus(entry.findtext(f"{ns}Key", "")), int(entry.findtext(f"{ns}Size", "0")),
            entry.findtext(f"{ns}ETag", ""), parse_time(entry.findtext(f"{ns}LastModified")),
        )
        for entry in root.iterfind(f"{ns}Contents")
    ]
    prefixes = [unquote_plus(entry.text or "") for entry in root.iterfind(f"{ns}CommonPrefixes/{ns}Prefix")]
    more = root.findtext(f"{ns}IsTruncated") == "true"
    return Page(objects, prefixes, root.findtext(f"{ns}NextContinuationToken") if more else None)


def buckets_of(body: bytes) -> list[Bucket]:
    root, ns = _parse(body)
    return [
        Bucket(entry.findtext(f"{ns}Name", ""), parse_time(entry.findtext(f"{ns}CreationDate")))
        for entry in root.iterfind(f"{ns}Buckets/{ns}Bucket")
    ]


def delete_request(keys: Iterable[str]) -> bytes:
    entries = "".join(f"<Object><Key>{escape(key)}</Key></Object>" for key in keys)
    return f"<Delete><Quiet>true</Quiet>{entries}</Delete>".encode()


def delete_errors(body: bytes, bucket: str) -> list[S3Error]:
    root, ns = _parse(body)
    errors = []
    for entry in root.iterfind(f"{ns}Error"):
        code = entry.findtext(f"{ns}Code", "")
        status = {"AccessDenied": 403, "NoSuchKey": 404, "SlowDown": 503}.get(code, 500)
        errors.append(s3_error(status, code, entry.findtext(f"{ns}Message", ""), bucket, entry.findtext(f"{ns}Key")))
    return errors


def complete_request(etags: Iterable[str]) -> bytes:
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(etag)}</ETag></Part>"
        for number, etag in enumerate(etags, 1)
    )
    return f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()


def text_of(body: bytes, name: str) -> str:
    """Returns the text of one element below the root, which must exist."""
    root, ns = _parse(body)
    text: Optional[str] = root.findtext(f"{ns}{name}")
    if text is None:
        raise ProtocolError(f"an answer has no {name}")
    return text


def error_within(body: bytes, bucket: str, key: str) -> Optional[S3Error]:
    """Returns the error in the body of a 200, which long operations send before they know their outcome, or None."""
    root, ns = _parse(body)
    if root.tag != f"{ns}Error":
        return None
    code = root.findtext(f"{ns}Code", "")
    status = {"NoSuchUpload": 404, "NoSuchKey": 404, "PreconditionFailed": 412, "SlowDown": 503}.get(code, 500)
    return s3_error(status, code, root.findtext(f"{ns}Message", ""), bucket, key)
