"""The asynchronous client: buckets, objects, and many objects in one request."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

from . import xml
from .batch import BatchReader
from .download import Download
from .errors import S3Error
from .headers import content_md5, write_headers
from .many import Arrived, Buffer, Many
from .merge import Merger
from .objects import AnyItem, Bucket, Item, ObjectInfo, Page, Result, info_of_headers, item_of
from .settings import Options, Settings
from .stream import ResultStream
from .transport import Body, Transport
from .upload import PART_BYTES, SliceReader, Upload, copy_object, part_sizes, upload_parts

if TYPE_CHECKING:
    from typing_extensions import Unpack  # only for type checkers, which have it

Missing = Literal["raise", "return"]
Path = Union[str, os.PathLike[str]]
DELETE_AT_ONCE = 1000
# Connections of one large batch: on one machine, more were no faster.
LANES = 1


class AsyncClient:
    """A client of one store, for any event loop; the arguments are those of `Settings`.

    Errors are `S3Error` (an `OSError`; a missing key is also a `FileNotFoundError`) and, after all retries,
    `UnreachableError`. Received bytes are verified: lengths always, checksums in batch reads.
    """

    def __init__(self, endpoint: Optional[str] = None, **options: Unpack[Options]) -> None:
        self.settings = Settings(endpoint, **options)
        self._transport = Transport(self.settings)
        self._reader = BatchReader(self._transport, self._read_one)
        self._merger = Merger(self._reader, self._read_one)
        self.many = Many(self._transport.lanes, self.settings, self.endpoint)

    @property
    def endpoint(self) -> str:
        return self._transport.resolved.endpoint

    @property
    def batch_supported(self) -> Optional[bool]:
        """Whether the server supports the batch read; None until one has been tried."""
        return self._reader.supported

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.endpoint!r})"

    def __reduce__(self) -> Any:
        return _rebuild, (type(self), self.settings)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections that this event loop opened. The client remains usable."""
        await self._transport.close()

    # Buckets

    async def create_bucket(self, bucket: str) -> None:
        await self._transport.request("PUT", bucket)

    async def delete_bucket(self, bucket: str) -> None:
        await self._transport.request("DELETE", bucket)

    async def bucket_exists(self, bucket: str) -> bool:
        return (await self._transport.request("HEAD", bucket, accept=(404,))).status != 404

    async def list_buckets(self) -> list[Bucket]:
        return xml.buckets_of((await self._transport.request("GET")).body)

    # Objects

    async def put(
        self, bucket: str, key: str, data: Body, *, content_type: Optional[str] = None,
        metadata: Optional[Mapping[str, str]] = None, if_match: Optional[str] = None, if_none_match: Optional[str] = None,
    ) -> ObjectInfo:
        """Writes an object. `if_none_match="*"` only creates one, `if_match` only replaces the one with this ETag."""
        headers = write_headers(content_type, metadata, if_match, if_none_match)
        etag = await self.write(bucket, key, data, headers)
        return ObjectInfo(key, len(data), etag, content_type=content_type, metadata=metadata or {})

    async def write(
        self, bucket: str, key: str, data: Body, headers: Mapping[str, str], part_bytes: Optional[int] = None
    ) -> str:
        """Writes an object with these headers, in parts if it is larger than `part_bytes`; returns its ETag."""
        if part_bytes is not None and len(data) > part_bytes:
            sizes = part_sizes(len(data), part_bytes)
            return await upload_parts(self.upload(bucket, key, headers), sizes, SliceReader(data))
        return (await self._transport.request("PUT", bucket, key, headers=headers, body=data)).headers.get("ETag", "")

    async def get(self, bucket: str, key: str, *, if_match: Optional[str] = None) -> bytes:
        return (await self._read_one(bucket, Item(key, if_match=if_match))).unwrap()

    async def get_range(
        self, bucket: str, key: str, start: int, end: Optional[int] = None, *, if_match: Optional[str] = None
    ) -> bytes:
        """Reads bytes from `start` up to but not including `end`, by default to the object's end.

        A negative `start` means the last bytes.
        """
        return (await self._read_one(bucket, Item(key, start, end, if_match))).unwrap()

    async def get_merged(self, bucket: str, item: AnyItem) -> bytes:
        """Reads like `get` and `get_range`, but calls made at about the same time share a batch read."""
        return (await self._merger.read(bucket, item_of(item))).unwrap()

    async def head(self, bucket: str, key: str) -> ObjectInfo:
        return info_of_headers(key, (await self._transport.request("HEAD", bucket, key)).headers)

    async def exists(self, bucket: str, key: str) -> bool:
        return (await self._transport.request("HEAD", bucket, key, accept=(404,))).status != 404

    async def copy(self, bucket: str, key: str, to_bucket: str, to_key: str) -> None:
        """Copies an object inside the store."""
        size = (await self.head(bucket, key)).size
        await copy_object(self._transport, bucket, key, size, to_bucket, to_key)

    async def delete(self, bucket: str, key: str) -> None:
        """Deletes an object; a missing object is not an error."""
        await self._transport.request("DELETE", bucket, key)

    async def delete_many(self, bucket: str, keys: Iterable[str]) -> list[S3Error]:
        """Deletes objects, up to 1,000 in a request; returns an error for each key that could not be deleted."""
        left, errors = list(keys), []
        for start in range(0, len(left), DELETE_AT_ONCE):
            body = xml.delete_request(left[start:start + DELETE_AT_ONCE])
            headers = {"content-type": "application/xml", "content-md5": content_md5(body)}
            answer = await self._transport.request("POST", bucket, "", [("delete", "")], headers, body)
            errors += xml.delete_errors(answer.body, bucket)
        return errors

    # Listings

    async def page(
        self, bucket: str, prefix: str = "", *, delimiter: str = "", start_after: str = "", token: Optional[str] = None,
        most: int = 1000,
    ) -> Page:
        """Returns one page of at most `most` keys after `start_after`, or the page to which `token` points."""
        query = [("list-type", "2"), ("encoding-type", "url"), ("max-keys", str(most)), ("prefix", prefix)]
        optional = {"delimiter": delimiter, "start-after": start_after, "continuation-token": token}
        query += [(name, value) for name, value in optional.items() if value]
        return xml.page_of((await self._transport.request("GET", bucket, query=query)).body)

    async def pages(self, bucket: str, prefix: str = "", *, delimiter: str = "") -> AsyncIterator[Page]:
        token: Optional[str] = None
        while True:
            page = await self.page(bucket, prefix, delimiter=delimiter, token=token)
            yield page
            token = page.token
            if token is None:
                return

    # Many objects in one request

    @overload
    async def read_many(self, bucket: str, items: Sequence[AnyItem]) -> list[bytes]: ...

    @overload
    async def read_many(self, bucket: str, items: Sequence[AnyItem], missing: Literal["raise"]) -> list[bytes]: ...

    @overload
    async def read_many(
        self, bucket: str, items: Sequence[AnyItem], missing: Literal["return"]
    ) -> list[Union[bytes, S3Error]]: ...

    @overload
    async def read_many(
        self, bucket: str, items: Sequence[AnyItem], missing: Missing
    ) -> Union[list[bytes], list[Union[bytes, S3Error]]]: ...

    async def read_many(
        self, bucket: str, items: Sequence[AnyItem], missing: Missing = "raise"
    ) -> Union[list[bytes], list[Union[bytes, S3Error]]]:
        """Reads many objects or ranges in batches of up to 4,096, and returns their bytes in the order of `items`.

        If `missing` is "return", a failed item's error takes its place in the list; otherwise the first error is raised.
        Errors of the whole request, such as a missing bucket, are always raised.
        """
        wanted = [item_of(item) for item in items]
        results: list[Any] = [None] * len(wanted)

        async def deliver(result: Result) -> None:
            results[result.position] = result.data if result.error is None else result.error

        await self._reader.read(bucket, wanted, deliver)
        if missing == "raise":
            for result in results:
                if isinstance(result, S3Error):
                    raise result
        return results

    def iter_many(self, bucket: str, items: Sequence[AnyItem]) -> ResultStream:
        """Returns a stream of results in the order of completion: `async for result in client.iter_many(...)`."""
        return ResultStream(self._reader, bucket, [item_of(item) for item in items])

    # Batches in the caller's memory

    async def put_many(
        self, bucket: str, items: Sequence[tuple[str, Buffer]], lanes: int = LANES
    ) -> list[Union[bool, OSError]]:
        """Creates many objects from pairs `(key, data)`.

        Each outcome is True if the object was created, False if one existed, which stays unchanged, or the item's error.
        A request whose answer was lost is sent again: then False may mean that this call created the object. `data` is any object with a buffer, and is sent without a copy. Large batches use up to `lanes` connections.
        An error of a request is the outcome of its items that were not settled before; it is raised if no item was.
        """
        return await asyncio.to_thread(self.many.put, bucket, items, lanes)

    async def sizes_of(self, bucket: str, keys: Sequence[str]) -> list[Optional[int]]:
        """Returns the size of each key's object, None for missing ones."""
        return await asyncio.to_thread(self.many.sizes, bucket, keys, False)

    async def prefix_of(self, bucket: str, keys: Sequence[str]) -> int:
        """Returns how many of the first keys have objects, without a gap."""
        return len(await asyncio.to_thread(self.many.sizes, bucket, keys, True))

    async def get_many_into(
        self, bucket: str, items: Sequence[tuple[AnyItem, Buffer]], lanes: int = LANES, arrived: Arrived = None
    ) -> list[Union[int, OSError]]:
        """Reads many objects or ranges, each into its own writable buffer.

        Each outcome is the number of bytes received, or the item's error; bytes that do not fit into the buffer are an error,
        too. A failed item's buffer may be partly written. Checksums are verified. Large batches use up to `lanes`
        connections. `arrived` is called with the position of each item as soon as its buffer may be used, in the thread that
        receives it. An error of a request is the outcome of its items that were not settled before; it is raised if no item was.
        """
        return await asyncio.to_thread(self.many.get_into, bucket, items, lanes, arrived)

    # Files and streams

    async def get_file(
        self, bucket: str, key: str, path: Path, progress: Optional[Callable[[int], object]] = None
    ) -> ObjectInfo:
        """Writes an object to a local file, which appears when complete; calls `progress` with the number of bytes received."""
        path = os.fspath(path)
        temporary = f"{path}.{os.getpid()}-{id(path):x}.part"
        try:
            with open(temporary, "xb") as file:

                def write(data: bytes) -> None:
                    file.write(data)
                    if progress is not None:
                        progress(len(data))

                info = await self.download(bucket, Item(key), write)
            os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        return info

    async def put_file(
        self, bucket: str, key: str, path: Path, *, content_type: Optional[str] = None,
        metadata: Optional[Mapping[str, str]] = None, if_match: Optional[str] = None, if_none_match: Optional[str] = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        """Writes a local file to an object, in parts if it is large."""
        headers = write_headers(content_type, metadata, if_match, if_none_match)
        await self.write_file(bucket, key, path, headers, part_bytes)

    async def write_file(
        self, bucket: str, key: str, path: Path, headers: Mapping[str, str], part_bytes: int = PART_BYTES
    ) -> None:
        """Writes a local file to an object, like `put_file`, with these headers."""
        with open(path, "rb") as source:
            total = os.fstat(source.fileno()).st_size
            if total > part_bytes:
                await upload_parts(self.upload(bucket, key, headers), part_sizes(total, part_bytes), source)
            else:
                data = await asyncio.to_thread(source.read)
                await self.write(bucket, key, data, headers)

    def upload(self, bucket: str, key: str, headers: Optional[Mapping[str, str]] = None) -> Upload:
        """Returns a multipart upload, not yet begun: nothing has been sent."""
        return Upload(self._transport, bucket, key, headers or {})

    async def presigned_url(self, bucket: str, key: str, expires_s: int = 3600, method: str = "GET") -> str:
        """Returns a URL that gives access without keys for `expires_s` seconds."""
        return await self._transport.presigned(method, bucket, key, expires_s)

    async def download(self, bucket: str, item: AnyItem, sink: Callable[[bytes], object]) -> ObjectInfo:
        """Passes the bytes to `sink` as they arrive.

        After a broken connection the download resumes at the last byte, as long as the object is unchanged.
        """
        return await Download(self._transport, bucket, item_of(item), sink).run()

    async def _read_one(self, bucket: str, item: Item) -> Result:
        """Reads with a GET; errors of the object are in the result, others are raised."""
        if item.is_empty:
            return Result(0, item, b"")
        pieces: list[bytes] = []
        try:
            info = await self.download(bucket, item, pieces.append)
        except S3Error as error:
            if error.code in ("NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch"):
                raise
            return Result(0, item, error=error)
        return Result(0, item, b"".join(pieces), info=info)

    # Last, because its name hides the type in the code below it.
    async def list(self, bucket: str, prefix: str = "") -> AsyncIterator[ObjectInfo]:
        """Yields all objects whose keys begin with `prefix`, in key order."""
        async for page in self.pages(bucket, prefix):
            for entry in page.objects:
                yield entry


def _rebuild(kind: Any, settings: Settings) -> Any:
    client = kind.__new__(kind)
    fields = dict(vars(settings))
    kind.__init__(client, fields.pop("endpoint"), **fields)
    return client
