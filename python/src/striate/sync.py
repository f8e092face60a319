"""The client for code without `await`: the same calls, each of which waits for its answer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Optional, Union, overload

from . import background
from .client import LANES, AsyncClient, Missing, Path
from .errors import S3Error
from .many import Arrived, Buffer
from .objects import AnyItem, Bucket, ObjectInfo, Result
from .settings import Options, Settings
from .transport import Body
from .upload import PART_BYTES

if TYPE_CHECKING:
    from typing_extensions import Unpack  # only for type checkers, which have it


class Client:
    """A client of one store; the arguments are those of `Settings`.

    It works in any thread, even one that runs an event loop, and after a fork; it can be pickled. `AsyncClient` documents
    the calls.
    """

    def __init__(self, endpoint: Optional[str] = None, **options: Unpack[Options]) -> None:
        self._client = AsyncClient(endpoint, **options)

    @property
    def endpoint(self) -> str:
        return self._client.endpoint

    @property
    def settings(self) -> Settings:
        return self._client.settings

    @property
    def batch_supported(self) -> Optional[bool]:
        return self._client.batch_supported

    def __repr__(self) -> str:
        return f"Client({self.endpoint!r})"

    def __reduce__(self) -> Any:
        return _rebuild, (self._client,)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        background.run(self._client.close())

    def create_bucket(self, bucket: str) -> None:
        background.run(self._client.create_bucket(bucket))

    def delete_bucket(self, bucket: str) -> None:
        background.run(self._client.delete_bucket(bucket))

    def bucket_exists(self, bucket: str) -> bool:
        return background.run(self._client.bucket_exists(bucket))

    def list_buckets(self) -> list[Bucket]:
        return background.run(self._client.list_buckets())

    def put(
        self, bucket: str, key: str, data: Body, *, content_type: Optional[str] = None,
        metadata: Optional[Mapping[str, str]] = None, if_match: Optional[str] = None, if_none_match: Optional[str] = None,
    ) -> ObjectInfo:
        return background.run(self._client.put(
            bucket, key, data, content_type=content_type, metadata=metadata, if_match=if_match,
            if_none_match=if_none_match,
        ))

    def get(self, bucket: str, key: str, *, if_match: Optional[str] = None) -> bytes:
        return background.run(self._client.get(bucket, key, if_match=if_match))

    def get_range(
        self, bucket: str, key: str, start: int, end: Optional[int] = None, *, if_match: Optional[str] = None
    ) -> bytes:
        return background.run(self._client.get_range(bucket, key, start, end, if_match=if_match))

    def get_merged(self, bucket: str, item: AnyItem) -> bytes:
        return background.run(self._client.get_merged(bucket, item))

    def head(self, bucket: str, key: str) -> ObjectInfo:
        return background.run(self._client.head(bucket, key))

    def exists(self, bucket: str, key: str) -> bool:
        return background.run(self._client.exists(bucket, key))

    def copy(self, bucket: str, key: str, to_bucket: str, to_key: str) -> None:
        background.run(self._client.copy(bucket, key, to_bucket, to_key))

    def delete(self, bucket: str, key: str) -> None:
        background.run(self._client.delete(bucket, key))

    def delete_many(self, bucket: str, keys: Iterable[str]) -> list[S3Error]:
        return background.run(self._client.delete_many(bucket, keys))

    def get_file(self, bucket: str, key: str, path: Path) -> ObjectInfo:
        return background.run(self._client.get_file(bucket, key, path))

    def put_file(
        self, bucket: str, key: str, path: Path, *, content_type: Optional[str] = None,
        metadata: Optional[Mapping[str, str]] = None, if_match: Optional[str] = None, if_none_match: Optional[str] = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        background.run(self._client.put_file(
            bucket, key, path, content_type=content_type, metadata=metadata, if_match=if_match,
            if_none_match=if_none_match, part_bytes=part_bytes,
        ))

    def presigned_url(self, bucket: str, key: str, expires_s: int = 3600, method: str = "GET") -> str:
        return background.run(self._client.presigned_url(bucket, key, expires_s, method))

    @overload
    def read_many(self, bucket: str, items: Sequence[AnyItem]) -> list[bytes]: ...

    @overload
    def read_many(self, bucket: str, items: Sequence[AnyItem], missing: Literal["raise"]) -> list[bytes]: ...

    @overload
    def read_many(
        self, bucket: str, items: Sequence[AnyItem], missing: Literal["return"]
    ) -> list[Union[bytes, S3Error]]: ...

    @overload
    def read_many(
        self, bucket: str, items: Sequence[AnyItem], missing: Missing
    ) -> Union[list[bytes], list[Union[bytes, S3Error]]]: ...

    def read_many(
        self, bucket: str, items: Sequence[AnyItem], missing: Missing = "raise"
    ) -> Union[list[bytes], list[Union[bytes, S3Error]]]:
        return background.run(self._client.read_many(bucket, items, missing))

    def iter_many(self, bucket: str, items: Sequence[AnyItem]) -> Iterator[Result]:
        """Yields results in the order of completion. Leaving the loop early ends the request."""
        stream = self._client.iter_many(bucket, items)
        try:
            while True:
                taken = background.run(stream.take())
                if not taken:
                    return
                yield from taken
        finally:
            background.run(stream.aclose())

    def put_many(
        self, bucket: str, items: Sequence[tuple[str, Buffer]], lanes: int = LANES
    ) -> list[Union[bool, OSError]]:
        return self._client.many.put(bucket, items, lanes)

    def sizes_of(self, bucket: str, keys: Sequence[str]) -> list[Optional[int]]:
        return self._client.many.sizes(bucket, keys, False)

    def prefix_of(self, bucket: str, keys: Sequence[str]) -> int:
        return len(self._client.many.sizes(bucket, keys, True))

    def get_many_into(
        self, bucket: str, items: Sequence[tuple[AnyItem, Buffer]], lanes: int = LANES, arrived: Arrived = None
    ) -> list[Union[int, OSError]]:
        return self._client.many.get_into(bucket, items, lanes, arrived)

    # Last, because its name hides the type in the code below it.
    def list(self, bucket: str, prefix: str = "") -> Iterator[ObjectInfo]:
        """Yields all objects whose keys begin with `prefix`, in key order."""
        token: Optional[str] = None
        while True:
            page = background.run(self._client.page(bucket, prefix, token=token))
            yield from page.objects
            token = page.token
            if token is None:
                return


def _rebuild(client: AsyncClient) -> Client:
    rebuilt = Client.__new__(Client)
    rebuilt._client = client
    return rebuilt
