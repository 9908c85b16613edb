"""A strongly consistent object store in a dictionary: the reference model of the tests.

It behaves as S3 does for everything `ObjectStore` promises, with versions kept or not. Every call
gives the event loop one turn before and one after its effect, so tasks that race over it
interleave as they would over a network. It knows nothing of threads, faults or durability.
"""

from __future__ import annotations

import asyncio
import builtins
import hashlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from s3kv.bucket.base import (
    CREATED,
    EXISTS,
    MISSING,
    NULL_VERSION,
    ConditionalDelete,
    Created,
    Exists,
    Missing,
    ObjectInfo,
    ObjectVersion,
    Page,
    Received,
    UploadInfo,
    check_copied_size,
)
from s3kv.bucket.pages import Pages, listed_pages
from s3kv.bucket.prefix import check_key, check_prefix
from s3kv.errors import Closed, Corrupt, Transient


@dataclass(frozen=True, slots=True)
class _Stored:
    """One version of a key."""

    body: bytes
    etag: str
    modified_s: float
    version_id: str
    is_marker: bool = False


class MemoryStore:
    """Implements `ObjectStore`. Owned by one event loop; `objects` may be read by tests."""

    def __init__(
        self,
        *,
        unix_s: Callable[[], float] = time.time,
        page_keys: int = 1000,
        versioned: bool = False,
    ) -> None:
        """unix_s: the store's clock, in Unix seconds; page_keys: keys per list page.

        versioned: what is overwritten or deleted stays as an older version.
        """
        self._unix_s = unix_s
        self._page_keys = page_keys
        self._version_ids = itertools.count(1) if versioned else None
        self._stored: dict[str, _Stored] = {}
        # All versions of each key, the newest last: `_stored` shows those that are not deleted.
        self._versions: dict[str, builtins.list[_Stored]] = {}
        self._uploads: dict[str, tuple[str, float]] = {}
        self._upload_ids = itertools.count(1)
        self._closed = False

    @property
    def objects(self) -> Mapping[str, bytes]:
        """Everything stored, by key: a copy."""
        return {key: stored.body for key, stored in self._stored.items()}

    def write(self, key: str, body: bytes) -> str:
        """Store at once, outside of any event loop (for tests). Returns the ETag."""
        etag = hashlib.md5(body, usedforsecurity=False).hexdigest()
        made = _Stored(bytes(body), etag, self._unix_s(), self._next_version_id())
        self._append(check_key(key), made)
        return etag

    def begin_upload(self, key: str) -> UploadInfo:
        """Leave an unfinished upload behind, outside of any event loop (for tests)."""
        upload_id = f"upload-{next(self._upload_ids)}"
        self._uploads[upload_id] = (check_key(key), self._unix_s())
        return UploadInfo(key, upload_id, 0.0)

    def _next_version_id(self) -> str:
        return NULL_VERSION if self._version_ids is None else f"v{next(self._version_ids)}"

    def _append(self, key: str, made: _Stored) -> None:
        older = [] if self._version_ids is None else self._versions.get(key, [])
        self._keep(key, [*older, made])

    def _remove(self, key: str) -> None:
        """What a delete without a version id does."""
        if self._version_ids is None:
            self._keep(key, [])
        else:
            marker = _Stored(b"", "", self._unix_s(), self._next_version_id(), is_marker=True)
            self._append(key, marker)

    def _keep(self, key: str, versions: builtins.list[_Stored]) -> None:
        self._versions[key] = versions
        self._stored.pop(key, None)
        if not versions:
            del self._versions[key]
        elif not versions[-1].is_marker:
            self._stored[key] = versions[-1]

    @asynccontextmanager
    async def _turn(self, timeout_s: float) -> AsyncIterator[None]:
        if self._closed:
            raise Closed("memory store is closed")
        if timeout_s <= 0:
            raise Transient("no time left")
        await asyncio.sleep(0)
        yield
        await asyncio.sleep(0)

    def _age_s(self, since_s: float) -> float:
        return max(0.0, self._unix_s() - since_s)

    def _describe(self, key: str, stored: _Stored) -> ObjectInfo:
        age_s = self._age_s(stored.modified_s)
        return ObjectInfo(key, len(stored.body), stored.etag, stored.modified_s, age_s)

    async def stat(self, key: str, *, timeout_s: float) -> ObjectInfo | Missing:
        """HEAD."""
        check_key(key)
        async with self._turn(timeout_s):
            stored = self._stored.get(key)
            return MISSING if stored is None else self._describe(key, stored)

    async def get(self, key: str, *, max_bytes: int, timeout_s: float) -> bytes | Missing:
        """A small object whole."""
        check_key(key)
        async with self._turn(timeout_s):
            stored = self._stored.get(key)
        if stored is None:
            return MISSING
        if len(stored.body) > max_bytes:
            raise Corrupt(f"{key}: {len(stored.body)} bytes, at most {max_bytes} expected")
        return stored.body

    async def get_into(
        self, key: str, start: int, buffer: memoryview, *, timeout_s: float
    ) -> Received | Missing:
        """Fill the buffer from `start` on."""
        check_key(key)
        async with self._turn(timeout_s):
            stored = self._stored.get(key)
            if stored is None:
                return MISSING
            part = stored.body[start : start + len(buffer)]
            buffer[: len(part)] = part
        return Received(len(part), len(stored.body), stored.etag)

    async def put(self, key: str, body: bytes | memoryview, *, timeout_s: float) -> str:
        """Unconditional PUT."""
        check_key(key)
        async with self._turn(timeout_s):
            return self.write(key, bytes(body))

    async def create(self, key: str, body: bytes, *, timeout_s: float) -> Created | Exists:
        """PUT if absent."""
        check_key(key)
        async with self._turn(timeout_s):
            taken = key in self._stored
            if not taken:
                self.write(key, body)
        return EXISTS if taken else CREATED

    def list(self, prefix: str, *, timeout_s: float) -> AsyncIterator[Sequence[ObjectInfo]]:
        """Pages of keys in byte order, each as of the moment it is asked for."""
        return listed_pages(self, prefix, timeout_s)

    async def list_page(self, prefix: str, token: str | None, *, timeout_s: float) -> Page:
        """The keys after the token, which is the last key of the page before."""
        check_prefix(prefix)
        async with self._turn(timeout_s):
            page, onwards = self._page_of(self._stored, prefix, token)
            return Page(tuple(self._describe(key, self._stored[key]) for key in page), onwards)

    def _page_of(
        self, names: Iterable[str], prefix: str, after: str | None
    ) -> tuple[Sequence[str], str | None]:
        keys = sorted(
            key for key in names if key.startswith(prefix) and (after is None or key > after)
        )
        page = keys[: self._page_keys]
        return page, page[-1] if len(keys) > len(page) else None

    async def list_prefixes(self, prefix: str, *, timeout_s: float) -> Sequence[str]:
        """Common prefixes one level below."""
        check_prefix(prefix)
        async with self._turn(timeout_s):
            rests = (key[len(prefix) :] for key in self._stored if key.startswith(prefix))
            return sorted({prefix + rest.split("/")[0] + "/" for rest in rests if "/" in rest})

    async def delete(self, keys: Sequence[str], *, timeout_s: float) -> None:
        """Delete what is there."""
        for key in keys:
            check_key(key)
        async with self._turn(timeout_s):
            for key in keys:
                self._remove(key)

    async def conditional_delete(self, *, timeout_s: float) -> ConditionalDelete:
        """Many names at once."""
        async with self._turn(timeout_s):
            return "batch"

    async def delete_listed(
        self, found: Sequence[ObjectInfo], *, timeout_s: float
    ) -> Sequence[str]:
        """Delete what still has its ETag."""
        for each in found:
            check_key(each.key)
        kept = []
        async with self._turn(timeout_s):
            for each in found:
                if not each.etag or self._etag(each.key) not in ("", each.etag):
                    kept.append(each.key)
                elif each.key in self._stored:
                    self._remove(each.key)
        return kept

    def _etag(self, key: str) -> str:
        """Empty if there is no such object."""
        return self._stored[key].etag if key in self._stored else ""

    async def copy(self, source: ObjectInfo, key: str, *, timeout_s: float) -> bool:
        """Write the same body again, if it still has its ETag."""
        check_copied_size(source)
        check_key(key)
        check_key(source.key)
        async with self._turn(timeout_s):
            is_same = source.etag != "" and self._etag(source.key) == source.etag
            if is_same:
                self.write(key, self._stored[source.key].body)
        return is_same

    async def list_uploads(self, prefix: str, *, timeout_s: float) -> Sequence[UploadInfo]:
        """Those of `begin_upload`."""
        check_prefix(prefix)
        async with self._turn(timeout_s):
            return [
                UploadInfo(key, upload_id, self._age_s(since_s))
                for upload_id, (key, since_s) in self._uploads.items()
                if key.startswith(prefix)
            ]

    async def abort_upload(self, upload: UploadInfo, *, timeout_s: float) -> None:
        """Forget it."""
        check_key(upload.key)
        async with self._turn(timeout_s):
            self._uploads.pop(upload.upload_id, None)

    def list_versions(
        self, prefix: str, *, timeout_s: float
    ) -> AsyncIterator[Sequence[ObjectVersion]]:
        """Pages of keys in byte order, each with all its versions, the newest first."""
        check_prefix(prefix)

        async def fetch(after: str | None) -> tuple[Sequence[ObjectVersion], str | None]:
            async with self._turn(timeout_s):
                page, onwards = self._page_of(self._versions, prefix, after)
                return [version for key in page for version in self._versions_of(key)], onwards

        return Pages(fetch)

    def _versions_of(self, key: str) -> Iterator[ObjectVersion]:
        newest = self._versions[key][-1]
        for each in reversed(self._versions[key]):
            yield ObjectVersion(
                key,
                each.version_id,
                len(each.body),
                self._age_s(each.modified_s),
                is_latest=each is newest,
                is_marker=each.is_marker,
            )

    async def delete_versions(self, versions: Sequence[ObjectVersion], *, timeout_s: float) -> None:
        """Delete them for good."""
        for each in versions:
            check_key(each.key)
        async with self._turn(timeout_s):
            for each in versions:
                all_of_key = self._versions.get(each.key, [])
                left = [one for one in all_of_key if one.version_id != each.version_id]
                if len(left) < len(all_of_key):
                    self._keep(each.key, left)

    async def close(self) -> None:
        """Refuse everything from now on; the objects stay readable for tests."""
        self._closed = True
