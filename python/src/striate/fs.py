"""Striate as an fsspec file system: `striate://bucket/key`, and `s3://` after `striate.register_s3()`.

`cat` of many paths and `cat_ranges` are batch reads, and so are `cat_file` calls made at about the same time. Listings are
cached, as in fsspec's other file systems: a file system sees its own writes at once, and those of others after
`invalidate_cache()`, with `refresh=True`, or with `use_listings_cache=False`.
"""

from __future__ import annotations

import asyncio
import errno
import mimetypes
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Optional, Union

from fsspec.asyn import AsyncFileSystem, sync_wrapper
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.core import has_magic
from fsspec.implementations.local import make_path_posix
from fsspec.utils import other_paths, tokenize

from . import background, options
from .client import AsyncClient
from .errors import AlreadyExists, InvalidRange, LeftOut, NotFound, PreconditionFailed
from .file import StriateFile
from .headers import write_headers
from .listings import Entry, bucket_entry, directory_entry, file_entry, is_marker, page_entries, tree
from .objects import Item, ObjectInfo
from .upload import PART_BYTES


class StriateFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """A file system over the buckets of a store; `options.settings_of` lists its options. It may be used after a fork."""

    protocol = ("striate", "s3", "s3a")
    root_marker = ""
    cachable = True

    def __init__(
        self, endpoint: Optional[str] = None, *, default_block_size: Optional[int] = None,
        default_cache_type: str = "readahead", asynchronous: bool = False, loop: Any = None, **storage: Any,
    ) -> None:
        settings, rest = options.settings_of(endpoint, storage)
        self.client = AsyncClient(**vars(settings))
        self.default_block_size = default_block_size or StriateFile.DEFAULT_BLOCK_SIZE
        self.default_cache_type = default_cache_type
        self._given_loop = loop
        self._epoch = 0  # of the cache: a listing that began before a write must not be cached after it
        super().__init__(asynchronous=asynchronous, loop=loop or background.loop(), **rest)

    @property
    def loop(self) -> Any:
        """The loop that runs calls without `await`; a forked child has its own."""
        if self.asynchronous:
            return None
        return self._given_loop if self._given_loop is not None and self._pid == os.getpid() else background.loop()

    @property
    def fsid(self) -> str:
        return f"striate_{self.client.endpoint}"

    @classmethod
    def split_path(cls, path: str) -> tuple[str, str]:
        """Splits a path, with or without its protocol, into bucket and key."""
        bucket, _, key = str(cls._strip_protocol(path)).partition("/")
        return bucket, key

    @classmethod
    def _object_of(cls, path: str) -> tuple[str, str]:
        bucket, key = cls.split_path(path)
        if not key:
            raise IsADirectoryError(errno.EISDIR, "a bucket is not a file", path)
        return bucket, key

    # Reading

    async def _cat_file(
        self, path: str, start: Optional[int] = None, end: Optional[int] = None, **_: Any
    ) -> bytes:
        bucket, key = self._object_of(path)
        item = await self._item(path, key, start, end)
        try:
            return await self.client.get_merged(bucket, item)
        except InvalidRange:
            return b""  # as files do beyond their end

    async def _item(self, path: str, key: str, start: Optional[int], end: Optional[int]) -> Item:
        """Returns the item for bounds as in slices. Bounds from the end need the size, unless they mean the last bytes."""
        if (start is not None and start < 0 and end is not None) or (end is not None and end < 0):
            size = (await self._info(path))["size"]
            start, end, _ = slice(start, end).indices(size)
        return Item(key, start, end)

    async def _cat(
        self, path: Union[str, list[str]], recursive: bool = False, on_error: str = "raise",
        batch_size: Optional[int] = None, **_: Any,
    ) -> Any:
        if recursive:
            roots = await self._expand_path(path)
            paths = sorted({found for root in roots for found in await self._find(root)})
        else:
            paths = await self._expand_path(path)
        out = await self._read_all([(found, None, None) for found in paths])
        if on_error == "raise":
            _raise_first(out)
        if len(paths) == 1 and isinstance(path, str) and paths[0] == self._strip_protocol(path):
            return out[0]
        return {
            found: data for found, data in zip(paths, out) if on_error != "omit" or not isinstance(data, Exception)
        }

    async def _cat_ranges(
        self, paths: list[str], starts: Any, ends: Any, max_gap: Optional[int] = None, batch_size: Optional[int] = None,
        on_error: str = "return", **_: Any,
    ) -> list[Any]:
        """Reads many ranges. `max_gap` has no effect: ranges of a batch need no merging."""
        starts = [starts] * len(paths) if not isinstance(starts, Iterable) else list(starts)
        ends = [ends] * len(paths) if not isinstance(ends, Iterable) else list(ends)
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("paths, starts and ends differ in length")
        out = await self._read_all(list(zip(paths, starts, ends)))
        if on_error != "return":
            _raise_first(out)
        return out

    async def _read_all(self, wanted: Sequence[tuple[str, Optional[int], Optional[int]]]) -> list[Any]:
        """Returns the bytes, or the error, of each (path, start, end), with one batch read for each bucket."""
        out: list[Any] = [None] * len(wanted)
        by_bucket: dict[str, list[tuple[int, Item]]] = {}
        for position, (path, start, end) in enumerate(wanted):
            try:
                bucket, key = self._object_of(path)
                item = await self._item(path, key, start, end)
            except OSError as error:
                out[position] = error
            else:
                by_bucket.setdefault(bucket, []).append((position, item))

        async def read(bucket: str, items: list[tuple[int, Item]]) -> None:
            try:
                results: Sequence[Any] = await self.client.read_many(bucket, [item for _, item in items], "return")
            except NotFound as error:  # the bucket
                results = [error] * len(items)
            for (position, _), result in zip(items, results):
                out[position] = b"" if isinstance(result, InvalidRange) else result

        await asyncio.gather(*[read(bucket, items) for bucket, items in by_bucket.items()])
        return out

    async def _get(
        self, rpath: Any, lpath: Any, recursive: bool = False, callback: Any = DEFAULT_CALLBACK,
        maxdepth: Optional[int] = None, **more: Any,
    ) -> Any:
        """Copies files or trees to local paths. Keys may have any segments; nothing is written outside `lpath`.

        fsspec joins keys to `lpath` as they are before 2026.9, and copies nothing at all if one of them would leave it
        since then. Here the others are copied.

        Raises `LeftOut` after the rest was copied.
        """
        if not isinstance(lpath, (str, os.PathLike)):  # the caller names each file
            return await super()._get(rpath, lpath, recursive=recursive, callback=callback, maxdepth=maxdepth, **more)
        found = await self._expand_path(self._strip_protocol(rpath), recursive=recursive, maxdepth=maxdepth)
        if isinstance(rpath, str) and (not recursive or maxdepth is not None):  # a pattern does not copy directories
            found = [path for path in found if not (path.endswith("/") or await self._isdir(path))]
        if not found:
            return None
        root = make_path_posix(os.fspath(lpath))
        # As fsspec has it: a directory that exists, or is named with a slash, gets the source itself and not its content.
        is_directory = root.endswith("/") or os.path.isdir(root)
        is_within = isinstance(rpath, str) and (
            has_magic(rpath) and len(found) == 1 or not has_magic(rpath) and is_directory and not rpath.endswith("/")
        )
        targets = other_paths(found, root, exists=is_within, flatten=not isinstance(rpath, str))
        pairs = [(path, target) for path, target in zip(found, targets) if is_below(target, root)]
        kept = {path for path, _ in pairs}
        left_out = [path for path in found if path not in kept and not self._is_only_directory(path)]
        copied = None
        if pairs:
            paths, places = map(list, zip(*pairs))
            copied = await super()._get(paths, places, callback=callback, **more)
        if left_out:
            raise LeftOut(left_out)
        return copied

    async def _get_file(self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, **_: Any) -> None:
        bucket, key = self.split_path(rpath)
        if callable(getattr(lpath, "write", None)):
            await self.client.download(bucket, key, lpath.write)
            return
        if os.path.isdir(lpath):
            return
        if not key or self._is_only_directory(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        info = await self.client.get_file(bucket, key, lpath, progress=callback.relative_update)
        callback.set_size(info.size)

    def _is_only_directory(self, path: str) -> bool:
        """Consults only the cache: a copy of a tree has just listed it, and other GETs need no extra request."""
        listed = self._from_cache(self._strip_protocol(path))
        return listed is not None and listed["type"] == "directory"

    def _open(
        self, path: str, mode: str = "rb", block_size: Optional[int] = None, autocommit: bool = True,
        cache_type: Optional[str] = None, cache_options: Optional[Mapping[str, Any]] = None, **more: Any,
    ) -> StriateFile:
        bucket, key = self._object_of(path)
        if mode == "xb" and background.run(self.client.exists(bucket, key)):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        return StriateFile(
            self, path, mode, block_size or self.default_block_size, autocommit=autocommit,
            cache_type=cache_type or self.default_cache_type, cache_options=dict(cache_options or {}), **more,
        )

    # Writing

    async def _pipe_file(
        self, path: str, value: Any, mode: str = "overwrite", chunksize: int = 4 * PART_BYTES, **more: Any
    ) -> None:
        bucket, key = self._object_of(path)
        headers = _write_headers(mode, more)
        await self._written(path, self.client.write(bucket, key, value, headers, part_bytes=chunksize))

    async def _put_file(
        self, lpath: str, rpath: str, callback: Any = DEFAULT_CALLBACK, mode: str = "overwrite",
        chunksize: int = PART_BYTES, **more: Any,
    ) -> None:
        bucket, key = self.split_path(rpath)
        if os.path.isdir(lpath):
            if not key:
                await self._makedirs(bucket, exist_ok=True)
            return
        bucket, key = self._object_of(rpath)
        more.setdefault("content_type", mimetypes.guess_type(lpath)[0])
        size = os.path.getsize(lpath)
        callback.set_size(size)
        headers = _write_headers(mode, more)
        await self._written(rpath, self.client.write_file(bucket, key, lpath, headers, part_bytes=chunksize))
        callback.relative_update(size)

    async def _written(self, path: str, writing: Any) -> None:
        try:
            await writing
        except PreconditionFailed as error:
            raise AlreadyExists(error.status, error.code, error.message, error.bucket, error.key) from error
        finally:
            self.invalidate_cache(path)

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        info = await self._info(path1)
        if info["type"] == "directory":
            return  # directories do not exist; their files are copied
        (bucket, key), (to_bucket, to_key) = self._object_of(path1), self._object_of(path2)
        try:
            await self.client.copy(bucket, key, to_bucket, to_key)
        finally:
            self.invalidate_cache(path2)

    async def _rm_file(self, path: str, **_: Any) -> None:
        bucket, key = self._object_of(path)
        try:
            await self.client.delete(bucket, key)
        finally:
            self.invalidate_cache(path)

    async def _rm(
        self, path: Union[str, list[str]], recursive: bool = False, batch_size: Optional[int] = None,
        maxdepth: Optional[int] = None, **_: Any,
    ) -> None:
        """Deletes objects, up to 1,000 in a request; recursively, also directory markers and buckets."""
        every = recursive and maxdepth is None
        paths = await self._expand_path(path, recursive=recursive and not every, maxdepth=maxdepth)
        keys: dict[str, list[str]] = {}
        for found in paths:
            bucket, key = self.split_path(found)
            keys.setdefault(bucket, [])
            if every:
                keys[bucket] += await self._keys_below(found, bucket, key)
            elif key:
                keys[bucket].append(key)
        try:
            errors = await asyncio.gather(*[self.client.delete_many(bucket, some) for bucket, some in keys.items()])
        finally:
            for found in paths:
                self._forget_tree(found)
        _raise_first([error for some in errors for error in some])
        for bucket in [found for found in paths if "/" not in found]:
            await self._rmdir(bucket)

    async def _keys_below(self, path: str, bucket: str, key: str) -> list[str]:
        keys = [info.key async for info in self.client.list(bucket, key + "/" if key else "")]
        if key and await self.client.exists(bucket, key):
            keys.append(key)
        if key and not keys:
            raise _no_such_file(path)
        return keys

    # Directories

    async def _mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Creates a bucket. Directories below it are only prefixes and need not be created."""
        bucket, key = self.split_path(path)
        exists = await self.client.bucket_exists(bucket)
        if exists and not key:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), bucket)
        if not exists and key and not create_parents:
            raise _no_such_file(bucket)
        if not exists:
            await self.client.create_bucket(bucket)
            self.invalidate_cache(bucket)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        try:
            await self._mkdir(path, create_parents=True)
        except FileExistsError:
            if not exist_ok:
                raise

    async def _rmdir(self, path: str) -> None:
        bucket, key = self.split_path(path)
        page = await self.client.page(bucket, key + "/" if key else "", most=2)
        if key and not page.objects:
            raise NotADirectoryError(errno.ENOTDIR, "it is a file", path) if await self._exists(path) else _no_such_file(path)
        if any(not (key and is_marker(info) and info.key == key + "/") for info in page.objects):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
        if key:
            await self.client.delete(bucket, key + "/")
        else:
            await self.client.delete_bucket(bucket)
        self._forget_tree(path)

    rmdir = sync_wrapper(_rmdir)

    async def _info(self, path: str, refresh: bool = False, **_: Any) -> Entry:
        path = self._strip_protocol(path)
        bucket, key = self.split_path(path)
        if not bucket:
            return directory_entry("")
        cached = None if refresh else self._from_cache(path)
        if cached is not None:
            return cached
        if not key:
            if await self.client.bucket_exists(bucket):
                return directory_entry(bucket)
            raise _no_such_file(path)
        try:
            return file_entry(bucket, await self.client.head(bucket, key))
        except NotFound:
            pass
        page = await self.client.page(bucket, key + "/", most=1)  # raises NotFound without the bucket
        if not page.objects:
            raise _no_such_file(path)
        return directory_entry(path)

    async def _ls(self, path: str, detail: bool = True, refresh: bool = False, **_: Any) -> Any:
        path = self._strip_protocol(path)
        entries = await self._entries(path, refresh)
        if not entries and "/" in path:
            info = await self._info(path, refresh)
            entries = [info] if info["type"] == "file" else []
        return entries if detail else sorted({entry["name"] for entry in entries})

    async def _entries(self, path: str, refresh: bool) -> list[Entry]:
        if not refresh and path in self.dircache:
            return list(self.dircache[path])
        epoch = self._epoch
        bucket, key = self.split_path(path)
        if not bucket:
            entries = [bucket_entry(found) for found in await self.client.list_buckets()]
        else:
            entries = await self._list(bucket, key + "/" if key else "")
        if entries and epoch == self._epoch:
            self.dircache[path] = list(entries)
        return entries

    async def _list(self, bucket: str, prefix: str, begin: str = "") -> list[Entry]:
        """Lists a directory's entries whose names begin with `begin`."""
        entries: list[Entry] = []
        async for page in self.client.pages(bucket, prefix + begin, delimiter="/"):
            entries += page_entries(bucket, prefix, page)
        return sorted(entries, key=lambda entry: str(entry["name"]))

    async def _find(
        self, path: str, maxdepth: Optional[int] = None, withdirs: bool = False, detail: bool = False, prefix: str = "",
        refresh: bool = False, **_: Any,
    ) -> Any:
        """Finds all files below `path` with one flat listing, which also fills the cache for its directories."""
        path = self._strip_protocol(path)
        bucket, key = self.split_path(path)
        if not bucket or (maxdepth is not None and not (maxdepth == 1 and prefix)):
            return await super()._find(path, maxdepth, withdirs, detail=detail, refresh=refresh)
        below = key + "/" if key else ""
        if maxdepth == 1:
            entries = await self._list(bucket, below, prefix)
        else:
            entries = await self._flat(path, bucket, below, prefix)
        if not entries and not prefix and key:
            entries = await self._alone(path)
        elif withdirs and not prefix:
            entries.append(directory_entry(path))
        out: dict[str, Entry] = {}
        for entry in sorted(entries, key=lambda entry: str(entry["name"])):
            # A file and a directory may have the same name: then the file wins.
            if entry["type"] == "file" or (withdirs and entry["name"] not in out):
                out[entry["name"]] = entry
        return out if detail else list(out)

    async def _alone(self, path: str) -> list[Entry]:
        """Returns the entry of a path with nothing below it: a file, a directory marker, or none."""
        try:
            return [await self._info(path)]
        except FileNotFoundError:
            return []

    async def _flat(self, path: str, bucket: str, below: str, prefix: str) -> list[Entry]:
        epoch = self._epoch
        objects: list[ObjectInfo] = [info async for info in self.client.list(bucket, below + prefix)]
        directories = tree(path, bucket, (info for info in objects if info.key != below))
        if not prefix and epoch == self._epoch:
            for directory, entries in directories.items():
                if entries:
                    self.dircache[directory] = entries
        return [entry for entries in directories.values() for entry in entries]

    # The cache of listings

    def _from_cache(self, path: str) -> Optional[Entry]:
        """Returns a path's entry from a cached listing, or None, which does not prove that the path is missing."""
        parent = path.rpartition("/")[0]
        if parent in self.dircache:
            found: list[Entry] = [entry for entry in self.dircache[parent] if entry["name"] == path]
            if found:
                return min(found, key=lambda entry: entry["type"] != "file")
        return None

    def invalidate_cache(self, path: Optional[str] = None) -> None:
        """Forgets the listings that a change of `path` affects, its parents' included; without a path, all of them."""
        self._epoch += 1
        if path is None:
            self.dircache.clear()
        else:
            path = self._strip_protocol(path)
            while path:
                self.dircache.pop(path, None)
                path = path.rpartition("/")[0]
            self.dircache.pop("", None)
        super().invalidate_cache(path)

    def _forget_tree(self, path: str) -> None:
        self.invalidate_cache(path)
        for directory in [known for known in self.dircache if known.startswith(path + "/")]:
            self.dircache.pop(directory, None)

    # Further calls of s3fs

    def modified(self, path: str) -> Any:
        return self.info(path)["LastModified"]

    created = modified

    def checksum(self, path: str, refresh: bool = False) -> int:
        return int(tokenize(self.info(path, refresh=refresh)["ETag"]), 16)

    def ukey(self, path: str) -> str:
        return str(tokenize(self.info(path)["ETag"]))

    async def _sign(self, path: str, expiration: int = 100, **_: Any) -> str:
        bucket, key = self._object_of(path)
        return await self.client.presigned_url(bucket, key, expiration)

    def sign(self, path: str, expiration: int = 100, **_: Any) -> str:
        """Returns a URL that gives access without keys for `expiration` seconds."""
        return background.run(self._sign(path, expiration))

    url = sign


def _write_headers(mode: str, more: Mapping[str, Any]) -> dict[str, str]:
    if mode not in ("overwrite", "create"):
        raise ValueError(f"mode {mode!r} is not known: use overwrite or create")
    wanted = {name: more.get(name) for name in ("content_type", "metadata")}
    return write_headers(**wanted, if_none_match="*" if mode == "create" else None)


def is_below(target: str, root: str) -> bool:
    """Returns whether a path that was made of `root` and a key names a file below `root`, whatever the key."""
    separators = "/" if os.sep == "/" else "/\\:"
    root = root.rstrip("/")
    if "\0" in target or not (target == root or target.startswith(root + "/")):
        return False
    segments = "".join("/" if letter in separators else letter for letter in target[len(root):]).split("/")
    return not any(segment in (".", "..") for segment in segments)


def _no_such_file(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)


def _raise_first(out: Sequence[Any]) -> None:
    for data in out:
        if isinstance(data, Exception):
            raise data
