"""S3's listings in fsspec's terms: files, and the directories that keys with slashes imply."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .objects import Bucket, ObjectInfo, Page

Entry = dict[str, Any]


def file_entry(bucket: str, info: ObjectInfo) -> Entry:
    entry = {
        "name": f"{bucket}/{info.key}", "size": info.size, "type": "file", "ETag": info.etag,
        "LastModified": info.last_modified,
    }
    if info.content_type is not None:
        entry["ContentType"] = info.content_type
    return entry


def directory_entry(path: str) -> Entry:
    return {"name": path, "size": 0, "type": "directory"}


def bucket_entry(bucket: Bucket) -> Entry:
    return {**directory_entry(bucket.name), "CreationDate": bucket.created}


def page_entries(bucket: str, prefix: str, page: Page) -> list[Entry]:
    """Returns the entries of a page listed with a delimiter. Directory markers, which some tools write, are not files."""
    entries = [directory_entry(f"{bucket}/{below.rstrip('/')}") for below in page.prefixes if below.strip("/")]
    return entries + [file_entry(bucket, info) for info in page.objects if info.key != prefix and not is_marker(info)]


def is_marker(info: ObjectInfo) -> bool:
    return info.key.endswith("/") and info.size == 0


def tree(root: str, bucket: str, objects: Iterable[ObjectInfo]) -> dict[str, list[Entry]]:
    """Returns the directories from `root` down, each with its entries, for all objects below `root`."""
    directories: dict[str, list[Entry]] = {root: []}

    def make(path: str) -> None:
        if path not in directories:
            directories[path] = []
            parent = path.rpartition("/")[0]
            make(parent)
            directories[parent].append(directory_entry(path))

    for info in objects:
        path = f"{bucket}/{info.key}"
        parent = path.rpartition("/")[0]
        make(parent)
        if not is_marker(info):
            directories[parent].append(file_entry(bucket, info))
    return directories
