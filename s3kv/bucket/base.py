"""What the rest of s3kv may ask of an object store.

Every store and every decorator implements `ObjectStore` and passes the same conformance suite
(`tests/bucket/contract.py`). Keys are relative to the configured `s3://bucket/prefix`: nothing
above this layer can name an object outside the prefix. Expected outcomes are values
(`Missing`, `Created`, `Exists`); failures are the exceptions of `s3kv.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from s3kv.errors import Corrupt

ConditionalDelete: TypeAlias = Literal["batch", "single", "none"]
"""How a store deletes only what is still the upload that was listed.

batch: many names a request, each with its ETag; single: one name a request, with If-Match; none: it
has no such request, so it is looked at first, and what is uploaded in the next round trip is lost.
"""

COPY_MAX_BYTES: Final = 5 << 30
"""S3's limit on the source of one copy request; shards are far smaller."""

NULL_VERSION: Final = "null"
"""Version id of what was written while the bucket kept no versions."""


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
class Page:
    """One answer to a LIST; next_token continues it, None ends it."""

    objects: Sequence[ObjectInfo]
    next_token: str | None


@dataclass(frozen=True, slots=True)
class UploadInfo:
    """A multipart upload that was neither completed nor aborted: its parts cost money.

    age_s: since it began, by the store's own clock (0.0 where the store sent no Date).
    """

    key: str
    upload_id: str
    age_s: float


@dataclass(frozen=True, slots=True)
class ObjectVersion:
    """One version of a name, or a marker saying that the name was deleted (size 0).

    version_id: `NULL_VERSION` in a bucket that keeps no versions; age_s: as for `ObjectInfo`.
    """

    key: str
    version_id: str
    size: int
    age_s: float
    is_latest: bool
    is_marker: bool


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


def check_copied_size(source: ObjectInfo) -> None:
    """Raise `Corrupt` on what one request cannot copy: it is none of ours."""
    if source.size > COPY_MAX_BYTES:
        raise Corrupt(f"{source.key}: {source.size} bytes, one copy takes {COPY_MAX_BYTES}")


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

    async def list_page(self, prefix: str, token: str | None, *, timeout_s: float) -> Page:
        """One page of `list`. token: of the page before, None for the first."""
        ...

    async def list_prefixes(self, prefix: str, *, timeout_s: float) -> Sequence[str]:
        """Common prefixes one level below `prefix` (delimiter `/`), each with its slash."""
        ...

    async def delete(self, keys: Sequence[str], *, timeout_s: float) -> None:
        """Delete; a name that is not there is no error."""
        ...

    async def conditional_delete(self, *, timeout_s: float) -> ConditionalDelete:
        """How `delete_listed` makes sure. Found out once, with objects under `.s3kv-probe/`."""
        ...

    async def delete_listed(
        self, found: Sequence[ObjectInfo], *, timeout_s: float
    ) -> Sequence[str]:
        """Delete each object if it still has the ETag it was listed with.

        Returns the keys that were kept: another upload lies there now, or the listing told no ETag.
        A name that is not there is no error. Where `conditional_delete` is `none`, an upload that
        ends between the look and the delete (one round trip) is deleted.
        """
        ...

    async def copy(self, source: ObjectInfo, key: str, *, timeout_s: float) -> bool:
        """Copy inside the store if the source still has its ETag; False if it has not, or is gone.

        Onto its own key it renews LastModified and keeps content and metadata; the ETag may change
        (multipart, KMS), so a repeated call whose first reply was lost may answer False. Where the
        store ignores the condition, an upload that ends between a look at the source and the copy
        (one round trip) is copied instead. Raises `Corrupt` for a source above `COPY_MAX_BYTES`.
        """
        ...

    async def list_uploads(self, prefix: str, *, timeout_s: float) -> Sequence[UploadInfo]:
        """Unfinished multipart uploads of keys that start with `prefix`, all within timeout_s."""
        ...

    async def abort_upload(self, upload: UploadInfo, *, timeout_s: float) -> None:
        """Give up an upload and its parts; one that is not there is no error."""
        ...

    def list_versions(
        self, prefix: str, *, timeout_s: float
    ) -> AsyncIterator[Sequence[ObjectVersion]]:
        """Pages of all versions and delete markers, in no order that may be relied on.

        Without versioning, the objects of `list` under `NULL_VERSION`. timeout_s bounds each page.
        """
        ...

    async def delete_versions(self, versions: Sequence[ObjectVersion], *, timeout_s: float) -> None:
        """Delete versions and markers for good; what is not there is no error."""
        ...

    async def close(self) -> None:
        """Release connections and threads. Idempotent."""
        ...
