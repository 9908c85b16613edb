"""What the rest of s3kv may ask of an object store.

Every store and every decorator implements `ObjectStore` and passes the same conformance suite
(`tests/bucket/contract.py`). Keys are relative to the configured `s3://bucket/prefix`: nothing
above this layer can name an object outside the prefix. Expected outcomes are values
(`Missing`, `Created`, `Exists`); failures are the exceptions of `s3kv.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a HEAD or a LIST tells of one object.

    key: relative to the prefix; size: bytes; etag: as the store spells it, without quotes;
    modified_s: LastModified as Unix seconds of the *store's* clock; age_s: the response's Date
    minus LastModified, hence free of our own clock (0.0 where the store sent no Date).
    """

    key: str
    size: int
    etag: str
    modified_s: float
    age_s: float


@dataclass(frozen=True, slots=True)
class Received:
    """Outcome of a ranged GET into a caller's buffer.

    received_bytes: how many bytes of the buffer were filled; total_bytes: size of the whole
    object as announced by the store, so that a longer or shorter object is recognised.
    """

    received_bytes: int
    total_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class Missing:
    """There is no such object (404). Not an error."""


@dataclass(frozen=True, slots=True)
class Created:
    """The conditional PUT created the object."""


@dataclass(frozen=True, slots=True)
class Exists:
    """The conditional PUT was refused with 412: the name is taken (perhaps by our own retry)."""


MISSING: Final = Missing()
CREATED: Final = Created()
EXISTS: Final = Exists()


class ObjectStore(Protocol):
    """An object store under one prefix. All methods are coroutines of one event loop.

    Raises (all methods): `Transient` (network, 5xx, timeout), `Throttled` (429, 503 SlowDown),
    `Denied` (401, 403, no credentials, no such bucket), `Closed` after `close`.
    """

    async def stat(self, key: str, *, timeout_s: float) -> ObjectInfo | Missing:
        """HEAD."""
        ...

    async def get(self, key: str, *, max_bytes: int, timeout_s: float) -> bytes | Missing:
        """A small object whole. Raises `Corrupt` if it is larger than max_bytes."""
        ...

    async def get_into(
        self, key: str, start: int, buffer: memoryview, *, timeout_s: float
    ) -> Received | Missing:
        """Fill `buffer` (writable, uint8) with the bytes [start, start + len(buffer)).

        Returns fewer received bytes only if the object ends earlier. When this returns or
        raises, nothing writes into `buffer` any more, also after cancellation and timeout.
        """
        ...

    async def put(self, key: str, body: bytes | memoryview, *, timeout_s: float) -> str:
        """Unconditional PUT, multipart above the store's threshold, aborted on failure. ETag."""
        ...

    async def create(self, key: str, body: bytes, *, timeout_s: float) -> Created | Exists:
        """PUT with `If-None-Match: *`: exactly one of many concurrent creators wins."""
        ...

    def list(self, prefix: str, *, timeout_s: float) -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages of objects whose key starts with `prefix`, in no order that may be relied on.

        timeout_s bounds each page.
        """
        ...

    async def list_prefixes(self, prefix: str, *, timeout_s: float) -> Sequence[str]:
        """Common prefixes one level below `prefix` (delimiter `/`), each with its slash."""
        ...

    async def delete(self, keys: Sequence[str], *, timeout_s: float) -> None:
        """Delete; a name that is not there is no error."""
        ...

    async def close(self) -> None:
        """Release connections and threads. Idempotent."""
        ...
