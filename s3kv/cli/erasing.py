"""Deletes objects for good, older versions and delete markers included, and looks whether they are.

What is deleted is decided in `core.erasure`. Nothing is remembered between two steps, so each may
be repeated.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from s3kv.bucket.base import Missing, ObjectStore, ObjectVersion, UploadInfo
from s3kv.cli.connection import REQUEST_TIMEOUT_S
from s3kv.core.erasure import Erasure
from s3kv.errors import Denied

PARALLEL: Final = 32
DELETE_MAX: Final = 1_000
NAMES_MAX: Final = 1 << 20
"""Names remembered: those of the longest prompt many times over, or the first ones of an archive.
"""
FOREIGN_NAMED_MAX: Final = 20


@dataclass(slots=True)
class Survey:
    """What lies under some prefixes. Owned by the task that looks.

    version_count, total_bytes: of everything meant, delete markers among the versions; names: of
    the first `NAMES_MAX` of those objects; uploads: unfinished ones; foreign_count, foreign_names:
    how many versions of others there are, and the first few names; uploads_problem: why unfinished
    uploads could not be looked for.
    """

    version_count: int = 0
    total_bytes: int = 0
    names: set[str] = field(default_factory=set)
    uploads: list[UploadInfo] = field(default_factory=list)
    uploads_problem: str = ""
    foreign_count: int = 0
    foreign_names: list[str] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether nothing of what is meant is there."""
        return not self.version_count and not self.uploads

    @property
    def is_cut(self) -> bool:
        """Whether there may be more names than those that are remembered."""
        return len(self.names) >= NAMES_MAX

    def worth_deleting(self, prefixes: Sequence[str]) -> list[str]:
        """Those of the prefixes under which something is, or may be."""
        if self.is_cut:
            return list(prefixes)
        ordered = sorted(self.names)
        places = ((prefix, bisect_left(ordered, prefix)) for prefix in prefixes)
        return [
            prefix for prefix, at in places if at < len(ordered) and ordered[at].startswith(prefix)
        ]

    def add(self, versions: Sequence[ObjectVersion], is_meant: Callable[[str], bool]) -> None:
        """One more page of a listing."""
        for each in versions:
            if is_meant(each.key):
                self.version_count += 1
                self.total_bytes += each.size
                if len(self.names) < NAMES_MAX:
                    self.names.add(each.key)
            else:
                self.foreign_count += 1
                if len(self.foreign_names) < FOREIGN_NAMED_MAX:
                    self.foreign_names.append(each.key)


class Eraser:
    """Carries one erasure out. Owned by one task."""

    def __init__(self, store: ObjectStore, erasure: Erasure) -> None:
        """Nothing is asked or deleted yet."""
        self._store = store
        self._erasure = erasure
        self._turn = asyncio.Semaphore(PARALLEL)

    async def survey(self, tell: Callable[[str], None]) -> Survey:
        """Look, and change nothing. Raises `S3KVError`."""
        found, is_meant = Survey(), self._erasure.is_meant

        async def look(prefix: str) -> None:
            async for page in self._store.list_versions(prefix, timeout_s=REQUEST_TIMEOUT_S):
                found.add(page, is_meant)
                tell(f"{found.version_count:,} objects found")

        await self._each(look, self._erasure.look_under)
        try:
            found.uploads = await self._uploads()
        except Denied as error:  # many stores have no such listing
            found.uploads_problem = str(error)
        return found

    async def erase(self, found: Survey, tell: Callable[[int, str], None]) -> None:
        """Delete it all, stage after stage. Raises `S3KVError`: what is left goes next time.

        found: by a survey just now; prefixes under which it saw nothing are left out. tell: how
        many versions have gone.
        """
        deleted = 0

        async def delete(prefix: str) -> None:
            nonlocal deleted
            async for page in self._store.list_versions(prefix, timeout_s=REQUEST_TIMEOUT_S):
                meant = [each for each in page if self._erasure.is_meant(each.key)]
                for start in range(0, len(meant), DELETE_MAX):
                    part = meant[start : start + DELETE_MAX]
                    await self._store.delete_versions(part, timeout_s=REQUEST_TIMEOUT_S)
                deleted += len(meant)
                tell(deleted, "")

        for upload in [] if found.uploads_problem else await self._uploads():
            await self._store.abort_upload(upload, timeout_s=REQUEST_TIMEOUT_S)
        for prefixes in self._erasure.stages:
            await self._each(delete, found.worth_deleting(prefixes))

    async def still_there(self, names: Sequence[str]) -> list[str]:
        """Those of the names for which a HEAD finds an object. Raises `S3KVError`."""
        left: list[str] = []

        async def head(name: str) -> None:
            found = await self._store.stat(name, timeout_s=REQUEST_TIMEOUT_S)
            if not isinstance(found, Missing):
                left.append(name)

        await self._each(head, names)
        return sorted(left)

    async def _uploads(self) -> list[UploadInfo]:
        under = self._erasure.uploads_under
        uploads = await self._store.list_uploads(under, timeout_s=REQUEST_TIMEOUT_S)
        return [each for each in uploads if self._erasure.is_meant(each.key)]

    async def _each(self, do: Callable[[str], Awaitable[None]], names: Sequence[str]) -> None:
        async def in_turn(name: str) -> None:
            async with self._turn:
                await do(name)

        await asyncio.gather(*(in_turn(name) for name in names))
