"""Headers of S3 requests."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Optional

from .objects import Item
from .signing import encode_path


def write_headers(
    content_type: Optional[str] = None, metadata: Optional[Mapping[str, str]] = None, if_match: Optional[str] = None,
    if_none_match: Optional[str] = None,
) -> dict[str, str]:
    headers = {f"x-amz-meta-{name.lower()}": value for name, value in (metadata or {}).items()}
    optional = {"content-type": content_type, "if-match": if_match, "if-none-match": if_none_match}
    headers.update({name: value for name, value in optional.items() if value is not None})
    return headers


def read_headers(item: Item) -> dict[str, str]:
    optional = {"range": item.range(), "if-match": item.if_match}
    return {name: value for name, value in optional.items() if value is not None}


def copy_source(bucket: str, key: str) -> str:
    return encode_path(f"/{bucket}/{key}")


def content_md5(body: bytes) -> str:
    return base64.b64encode(hashlib.md5(body).digest()).decode()
