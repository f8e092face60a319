"""Objects as a data set for loaders such as PyTorch's, which need not be installed.

A loader that calls `__getitems__`, as PyTorch's does since 2.0, gets a whole batch of samples with one request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Generic, Optional, TypeVar, cast, overload

from .objects import AnyItem, item_of
from .settings import ClientOptions
from .sync import Client

if TYPE_CHECKING:
    from typing_extensions import Unpack  # only for type checkers, which have it

T = TypeVar("T")


class ObjectDataset(Generic[T]):
    """A map-style data set: sample i is the object (or range) `items[i]` of the bucket.

    `decode(key, data)` turns bytes into a sample; without it samples are bytes. The client is created from `options` (see
    `Settings`) unless one is given. The data set can be pickled, if `decode` can, and used after a fork.
    """

    @overload
    def __init__(
        self: ObjectDataset[bytes], bucket: str, items: Sequence[AnyItem], *, client: Optional[Client] = None,
        **options: Unpack[ClientOptions],
    ) -> None: ...

    @overload
    def __init__(
        self, bucket: str, items: Sequence[AnyItem], decode: Optional[Callable[[str, bytes], T]] = None, *,
        client: Optional[Client] = None, **options: Unpack[ClientOptions],
    ) -> None: ...

    def __init__(
        self, bucket: str, items: Sequence[AnyItem], decode: Optional[Callable[[str, bytes], T]] = None, *,
        client: Optional[Client] = None, **options: Unpack[ClientOptions],
    ) -> None:
        if client is not None and options:
            raise TypeError("give a client, or options to make one of, not both")
        self.bucket, self.items, self.decode = bucket, items, decode
        self.client = client if client is not None else Client(**options)

    @classmethod
    def of_prefix(
        cls, bucket: str, prefix: str = "", decode: Optional[Callable[[str, bytes], T]] = None, *,
        client: Optional[Client] = None, **options: Unpack[ClientOptions],
    ) -> ObjectDataset[T]:
        """Creates a data set of all objects whose keys begin with `prefix`, in key order, as listed now."""
        client = client if client is not None else Client(**options)
        return cls(bucket, [info.key for info in client.list(bucket, prefix)], decode, client=client)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> T:
        item = item_of(self.items[index])
        return self._sample(item.key, self.client.get_merged(self.bucket, item))

    def __getitems__(self, indices: Sequence[int]) -> list[T]:
        """Returns the samples of a batch, read with one request."""
        items = [item_of(self.items[index]) for index in indices]
        return [self._sample(item.key, data) for item, data in zip(items, self.client.read_many(self.bucket, items))]

    def __iter__(self) -> Iterator[T]:
        return (self[index] for index in range(len(self)))

    def _sample(self, key: str, data: bytes) -> T:
        return self.decode(key, data) if self.decode is not None else cast("Any", data)
