"""Errors. Every S3 error is an `OSError`, and a missing key is a `FileNotFoundError`, as callers expect."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Sequence
from typing import Any, Optional

# What a timeout raises: one class since Python 3.11, several before.
TIMED_OUT = (TimeoutError, asyncio.TimeoutError, socket.timeout)


class ConfigurationError(ValueError):
    """A setting is missing or contradicts another. Raised before any request is sent."""


class ProtocolError(Exception):
    """An answer violates the protocol: it is corrupt or truncated. Such requests are retried."""


class UnreachableError(ConnectionError):
    """No complete answer after all retries; `__cause__` has the last cause."""


class LeftOut(OSError):
    """Some objects were not copied, because their keys are no names of files below the target; the others were.

    `paths` has all of them.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)
        named = ", ".join(repr(path) for path in self.paths[:10])
        more = f" and {len(self.paths) - 10} more" if len(self.paths) > 10 else ""
        super().__init__(
            errno.EINVAL, f"not copied, because the keys would leave the target: {named}{more}; the rest was copied"
        )

    def __reduce__(self) -> Any:
        return type(self), (self.paths,)


class S3Error(OSError):
    """The store refused a request, or one item of it.

    `status` is the HTTP status, `code` S3's name of the error (`NoSuchKey`), `message` the store's text.
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
    """401 or 403: the access keys are unknown or wrong, or do not permit the request."""

    number = errno.EACCES


class AlreadyExists(S3Error, FileExistsError):
    """409 for a bucket that exists, or 412 for a write that may only create an object."""

    number = errno.EEXIST


class PreconditionFailed(S3Error):
    """412: the object is not the one that `if_match` names; it was overwritten or deleted."""


class InvalidRange(S3Error):
    """416: the range begins beyond the object's end."""

    number = errno.EINVAL


def s3_error(status: int, code: str, message: str, bucket: Optional[str] = None, key: Optional[str] = None) -> S3Error:
    """Returns an error of the class that fits the status and the code."""
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
    """Returns whether the same request may succeed later."""
    return status in (429, 500, 502, 503, 504)
