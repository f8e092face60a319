"""What can go wrong. Every S3 error is an `OSError`, and a missing key is a `FileNotFoundError`, as callers expect."""

from __future__ import annotations

import errno
from typing import Any, Optional


class ConfigurationError(ValueError):
    """Something is missing or contradicts itself before any request is sent."""


class ProtocolError(Exception):
    """The answer is not what the protocol allows: corrupt or truncated. Such answers are asked for again."""


class UnreachableError(ConnectionError):
    """No whole answer after all tries; the last cause is in `__cause__`."""


class S3Error(OSError):
    """The store refused a request, or one item of it.

    `status` is the HTTP status, `code` S3's name of the error (`NoSuchKey`), `message` the store's own words.
    """

    number = errno.EIO

    def __init__(
        self, status: int, code: str, message: str, bucket: Optional[str] = None, key: Optional[str] = None
    ) -> None:
        self.status, self.code, self.message, self.bucket, self.key = status, code, message, bucket, key
        where = "/".join(part for part in (bucket, key) if part)
        super().__init__(self.number, f"{code} ({status}): {message}" if message else f"{code} ({status})", where)

    def __reduce__(self) -> Any:
        return type(self), (self.status, self.code, self.message, self.bucket, self.key)


class NotFound(S3Error, FileNotFoundError):
    """404: no such key, bucket or upload."""

    number = errno.ENOENT


class Forbidden(S3Error, PermissionError):
    """401 or 403: the keys are unknown or wrong, or do not allow this."""

    number = errno.EACCES


class AlreadyExists(S3Error, FileExistsError):
    """409 of a bucket that exists, or 412 of a write that was to make a new object."""

    number = errno.EEXIST


class PreconditionFailed(S3Error):
    """412: the object is not the one that `if_match` names; it was overwritten or deleted."""


class InvalidRange(S3Error):
    """416: the range begins behind the object's end."""

    number = errno.EINVAL


def s3_error(status: int, code: str, message: str, bucket: Optional[str] = None, key: Optional[str] = None) -> S3Error:
    """The error of the class that fits the status and the code."""
    kind = S3Error
    if status == 404:
        kind = NotFound
    elif status in (401, 403):
        kind = Forbidden
    elif code in ("BucketAlreadyExists", "BucketAlreadyOwnedByYou"):
        kind = AlreadyExists
    elif status == 412:
        kind = PreconditionFailed
    elif status == 416:
        kind = InvalidRange
    return kind(status, code, message, bucket, key)


def is_transient(status: int) -> bool:
    """Whether the same request may succeed later."""
    return status in (429, 500, 502, 503, 504)
