"""Striate from Python: a client that reads many objects in one request, a file system, a data set.

`Client` and `AsyncClient` talk to the store; `striate.fs.StriateFileSystem` is its fsspec file system (`striate://`);
`striate.data.ObjectDataset` feeds data loaders.
"""

from .client import AsyncClient
from .errors import (
    AlreadyExists,
    ConfigurationError,
    Forbidden,
    InvalidRange,
    LeftOut,
    NotFound,
    PreconditionFailed,
    ProtocolError,
    S3Error,
    UnreachableError,
)
from .objects import Bucket, Item, ObjectInfo, Page, Result
from .settings import Settings
from .sync import Client

__version__ = "0.5.0"
__all__ = [
    "AlreadyExists", "AsyncClient", "Bucket", "Client", "ConfigurationError", "Forbidden", "InvalidRange", "Item",
    "LeftOut", "NotFound", "ObjectInfo", "Page", "PreconditionFailed", "ProtocolError", "Result", "S3Error", "Settings",
    "UnreachableError", "register_s3",
]


def register_s3() -> None:
    """Makes fsspec open `s3://` and `s3a://` through Striate's file system, in this process."""
    import fsspec

    from .fs import StriateFileSystem

    for protocol in ("s3", "s3a"):
        fsspec.register_implementation(protocol, StriateFileSystem, clobber=True)
