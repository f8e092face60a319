"""An open object: read in ranges through fsspec's caches, written in parts."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections import deque
from typing import Any, Optional

from fsspec.spec import AbstractBufferedFile

from . import background
from .client import AsyncClient
from .errors import AlreadyExists, NotFound, PreconditionFailed
from .headers import write_headers
from .objects import Item
from .upload import LEAST_PART_BYTES, PARTS_AT_ONCE, Upload


class StriateFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file of `StriateFileSystem`. Reads see one version of the object: after an overwrite they fail.

    Written bytes become visible all at once, when the file is closed (or its transaction ends).
    """

    DEFAULT_BLOCK_SIZE = LEAST_PART_BYTES

    def __init__(self, fs: Any, path: str, mode: str = "rb", block_size: Any = "default", **options: Any) -> None:
        self._client: AsyncClient = fs.client
        self._bucket, self._key = fs.split_path(path)
        if mode != "rb" and isinstance(block_size, int) and block_size < LEAST_PART_BYTES:
            raise ValueError(f"parts have at least {LEAST_PART_BYTES} bytes, so block_size={block_size} is too small")
        self._upload: Optional[Upload] = None
        self._parts = 0
        self._sending: deque[concurrent.futures.Future[None]] = deque()
        self._whole: Optional[bytes] = None  # a small object to be written at commit
        super().__init__(fs, path, mode, block_size, **options)
        if mode == "rb" and self.details["type"] != "file":
            raise IsADirectoryError(path)
        if mode == "ab":
            self._begin_appending()

    # Reading

    def _fetch_range(self, start: int, end: int) -> bytes:
        item = Item(self._key, start, end, self.details.get("ETag") or None)
        try:
            return background.run(self._client.get_merged(self._bucket, item))
        except (PreconditionFailed, NotFound) as error:
            self.fs.invalidate_cache(self.path)
            raise type(error)(
                error.status, error.code, "the object was overwritten or deleted since the file was opened; open it again",
                self._bucket, self._key,
            ) from error

    # Writing

    def _headers(self) -> dict[str, str]:
        options = {name: self.kwargs.get(name) for name in ("content_type", "metadata", "if_match")}
        return write_headers(if_none_match="*" if self.mode == "xb" else None, **options)

    def _begin_appending(self) -> None:
        """Starts at the object's end: a small object will be rewritten, a large one becomes the first parts."""
        try:
            info = background.run(self._client.head(self._bucket, self._key))
        except NotFound:
            return
        self.kwargs.setdefault("if_match", info.etag)
        self.loc = info.size
        if info.size < LEAST_PART_BYTES:
            self.buffer.write(background.run(self._client.get(self._bucket, self._key, if_match=info.etag)))
            return
        upload = self._begin_upload()
        self.offset = info.size
        count = -(-info.size // (1 << 30))
        for number in range(count):
            self._parts += 1
            start, end = info.size * number // count, info.size * (number + 1) // count
            background.run(upload.copied_part(self._parts, self._bucket, self._key, start, end))

    def _begin_upload(self) -> Upload:
        upload = self._client.upload(self._bucket, self._key, self._headers())
        background.run(upload.begin())
        self._upload = upload
        return upload

    def _upload_chunk(self, final: bool = False) -> bool:
        data = self.buffer.getvalue()
        try:
            if final and self._upload is None:
                self._whole = data
            elif data:
                self._send(self._upload or self._begin_upload(), data)
            if final and self._upload is not None:
                self._settle(0)
            if final and self.autocommit:
                self.commit()
        except BaseException:
            self.discard()
            self.closed = True
            raise
        return True

    def _send(self, upload: Upload, data: bytes) -> None:
        self._parts += 1
        part = upload.part(self._parts, data)
        self._sending.append(asyncio.run_coroutine_threadsafe(part, background.loop()))
        self._settle(PARTS_AT_ONCE - 1)

    def _settle(self, most: int) -> None:
        """Waits until at most `most` parts are in flight; raises the error of a failed part."""
        while len(self._sending) > most:
            background.result_of(self._sending.popleft())

    def commit(self) -> None:
        """Makes the written bytes visible."""
        try:
            if self._upload is not None:
                background.run(self._upload.complete())
            elif self._whole is not None:
                background.run(self._client.write(self._bucket, self._key, self._whole, self._headers()))
        except PreconditionFailed as error:
            if self.mode != "xb":
                raise
            raise AlreadyExists(error.status, error.code, error.message, self._bucket, self._key) from error
        finally:
            self._upload = self._whole = None
            self.fs.invalidate_cache(self.path)

    def discard(self) -> None:
        """Discards the written bytes."""
        for part in self._sending:
            part.cancel()
        self._sending.clear()
        upload, self._upload, self._whole = self._upload, None, None
        if upload is not None:
            background.run(upload.abort())
