"""Requests and results as values."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any, NamedTuple, Optional, Union

from .errors import S3Error


class Item(NamedTuple):
    """One item to read: a key's object, or its bytes from `start` up to but not including `end`.

    A negative `start` without `end` means the last bytes. With `if_match` the object must still have this ETag.
    """

    key: str
    start: Optional[int] = None
    end: Optional[int] = None
    if_match: Optional[str] = None

    @property
    def is_empty(self) -> bool:
        """Whether it asks for no bytes, which HTTP cannot express."""
        return self.end is not None and 0 <= self.end <= (self.start or 0)

    def range(self) -> Optional[str]:
        """Returns the value of the HTTP header `Range`, None for the whole object."""
        if self.start is None and self.end is None:
            return None
        if self.start is not None and self.start < 0:
            if self.end is not None:
                raise ValueError(f"{self.key}: a range from the object's end has no end of its own")
            return f"bytes={self.start}"
        if self.end is not None and self.end < 0:
            raise ValueError(f"{self.key}: the end of a range counts from the object's beginning")
        return f"bytes={self.start or 0}-{'' if self.end is None else self.end - 1}"


AnyItem = Union[str, Item, tuple[str, int, int]]


def item_of(item: AnyItem) -> Item:
    """Converts to an `Item`; raises `ValueError` for an impossible one, before it is sent together with others."""
    found = Item(item) if isinstance(item, str) else Item(*item)
    if not found.key.encode():  # which also fails if a key is not Unicode text
        raise ValueError("an item needs a key")
    if not found.is_empty:
        found.range()
    return found


class Result(NamedTuple):
    """The result of an item of a batch: its position in the request, and either `data` or `error`."""

    position: int
    item: Item
    data: Optional[bytes] = None
    error: Optional[S3Error] = None
    info: Optional[ObjectInfo] = None

    def unwrap(self) -> bytes:
        """Returns the bytes, or raises the error."""
        if self.error is not None:
            raise self.error
        assert self.data is not None
        return self.data


@dataclass(frozen=True)
class ObjectInfo:
    """An object without its bytes. Listings have no `content_type` and `metadata`."""

    key: str
    size: int
    etag: str = ""
    last_modified: Optional[datetime.datetime] = None
    content_type: Optional[str] = None
    metadata: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """One page of a listing: objects, and the prefixes that a delimiter rolled up."""

    objects: list[ObjectInfo]
    prefixes: list[str]
    token: Optional[str] = None


@dataclass(frozen=True)
class Bucket:
    name: str
    created: Optional[datetime.datetime] = None


def parse_time(text: Optional[str]) -> Optional[datetime.datetime]:
    """Parses RFC 3339, as in XML and frames. Python before 3.11 reads neither `Z` nor fractions of other than 3 or 6 digits."""
    if not text:
        return None
    base, _, fraction = text.rstrip("Z").partition(".")
    parsed = datetime.datetime.strptime(base, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=datetime.timezone.utc)
    return parsed.replace(microsecond=int(fraction[:6].ljust(6, "0"))) if fraction else parsed


def info_of_headers(key: str, headers: Mapping[str, str]) -> ObjectInfo:
    """Reads the answer to a GET or HEAD; the size is the whole object's, even if a range was requested."""
    content_range = headers.get("Content-Range")
    size = content_range.rpartition("/")[2] if content_range else headers.get("Content-Length", "0")
    modified = headers.get("Last-Modified")
    prefix = "x-amz-meta-"
    return ObjectInfo(
        key, int(size), headers.get("ETag", ""), parsedate_to_datetime(modified) if modified else None,
        headers.get("Content-Type"),
        {name[len(prefix):].lower(): value for name, value in headers.items() if name.lower().startswith(prefix)},
    )


def info_of_head(key: str, head: Mapping[str, Any]) -> ObjectInfo:
    """Reads a frame's head."""
    return ObjectInfo(
        key, int(head.get("size", 0)), str(head.get("etag", "")), parse_time(head.get("last_modified")),
        head.get("content_type"),
    )
