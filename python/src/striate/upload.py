"""Large objects in parts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Optional, Protocol

from . import xml
from .headers import copy_source
from .transport import Body, Transport

PART_BYTES = 16 << 20
MOST_PARTS = 10_000
LEAST_PART_BYTES = 5 << 20
PARTS_AT_ONCE = 4
MOST_COPIED_BYTES = 5 << 30
CONDITIONS = ("if-match", "if-none-match")


class Source(Protocol):
    """The source of the parts."""

    def read(self, size: int, /) -> Body: ...


class SliceReader:
    """Reads bytes in memory without copying them."""

    def __init__(self, data: Body) -> None:
        self._rest = memoryview(data).cast("B")

    def read(self, size: int, /) -> memoryview:
        taken, self._rest = self._rest[:size], self._rest[size:]
        return taken


class Upload:
    """A multipart upload: parts in any order and concurrently, then `complete` or `abort`."""

    def __init__(self, transport: Transport, bucket: str, key: str, headers: Mapping[str, str]) -> None:
        self._transport, self._bucket, self._key = transport, bucket, key
        self._headers = {name: value for name, value in headers.items() if name not in CONDITIONS}
        self._conditions = {name: value for name, value in headers.items() if name in CONDITIONS}
        self._id: Optional[str] = None
        self._etags: dict[int, str] = {}

    async def begin(self) -> None:
        answer = await self._transport.request("POST", self._bucket, self._key, [("uploads", "")], self._headers)
        self._id = xml.text_of(answer.body, "UploadId")

    async def part(self, number: int, data: Body) -> None:
        """Sends part `number`, from 1. All parts but the last have at least 5 MiB."""
        answer = await self._transport.request("PUT", self._bucket, self._key, self._query(number), body=data)
        self._etags[number] = answer.headers.get("ETag", "")

    async def copied_part(self, number: int, bucket: str, key: str, start: int, end: int) -> None:
        """Copies bytes from `start` up to but not including `end` of another object as a part, inside the store."""
        headers = {"x-amz-copy-source": copy_source(bucket, key), "x-amz-copy-source-range": f"bytes={start}-{end - 1}"}
        answer = await self._transport.request(
            "PUT", self._bucket, self._key, self._query(number), headers, errors_in_body=True
        )
        self._etags[number] = xml.text_of(answer.body, "ETag")

    async def complete(self) -> str:
        """Makes the object visible; returns its ETag."""
        etags = [self._etags[number] for number in sorted(self._etags)]
        answer = await self._transport.request(
            "POST", self._bucket, self._key, [("uploadId", self._id or "")],
            {"content-type": "application/xml", **self._conditions}, xml.complete_request(etags), errors_in_body=True,
        )
        return xml.text_of(answer.body, "ETag")

    async def abort(self) -> None:
        if self._id is not None:
            await self._transport.request("DELETE", self._bucket, self._key, [("uploadId", self._id)], accept=(404,))

    def _query(self, number: int) -> list[tuple[str, str]]:
        return [("partNumber", str(number)), ("uploadId", self._id or "")]


async def upload_parts(upload: Upload, sizes: list[int], source: Source) -> str:
    """Reads and sends parts of these sizes, a few at a time; aborts the upload on any failure."""
    await upload.begin()
    numbers = iter(enumerate(sizes, 1))
    reading = asyncio.Lock()

    async def work() -> None:
        while True:
            async with reading:
                number, size = next(numbers, (0, 0))
                if not number:
                    return
                data = await asyncio.to_thread(source.read, size)
            if len(data) != size:
                raise OSError("the file became shorter while it was read")
            await upload.part(number, data)

    tasks = [asyncio.ensure_future(work()) for _ in range(min(PARTS_AT_ONCE, len(sizes)))]
    try:
        await asyncio.gather(*tasks)
        return await upload.complete()
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.shield(upload.abort())
        raise


def part_sizes(total: int, part_bytes: int) -> list[int]:
    """Returns the sizes of the parts, equal but for the last, and no more of them than S3 allows."""
    size = max(part_bytes, LEAST_PART_BYTES, -(-total // MOST_PARTS))
    return [size] * (total // size) + ([total % size] if total % size else [])


async def copy_object(transport: Transport, bucket: str, key: str, size: int, to_bucket: str, to_key: str) -> None:
    """Copies an object inside the store; one of more than 5 GiB in parts, as S3 demands."""
    if size <= MOST_COPIED_BYTES:
        headers = {"x-amz-copy-source": copy_source(bucket, key)}
        await transport.request("PUT", to_bucket, to_key, headers=headers, errors_in_body=True)
        return
    upload = Upload(transport, to_bucket, to_key, {})
    await upload.begin()
    try:
        start = 0
        for number, length in enumerate(part_sizes(size, 1 << 30), 1):
            await upload.copied_part(number, bucket, key, start, start + length)
            start += length
        await upload.complete()
    except BaseException:
        await asyncio.shield(upload.abort())
        raise
