"""Takes bad shards out of service, and tells the index what the bucket does not have.

Rules upheld here: nobody is led to a shard that is being taken away: its chunk is reported dead
first, then it is copied to quarantine/, then deleted. Each step only if the upload is still the one
that was judged: what is replaced meanwhile stays, and is looked at the next time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Final, TypeVar

from s3kv.core import keys
from s3kv.core.ids import fingerprints
from s3kv.core.records import RecordSet
from s3kv.core.requests import Copy, DeleteListed, Done, Kept, Listed, Stat, Unreadable, ask
from s3kv.core.snapshot import Snapshot
from s3kv.core.verified import Fate
from s3kv.core.verifying import Part, Shape
from s3kv.errors import Transient
from s3kv.runtime.groups import task_group
from s3kv.runtime.index_tool import IndexTool

T = TypeVar("T")

PARALLEL: Final = 16

BELIEVED_S: Final = 1_800.0
"""How old a look may be when a report or a delete goes out that rests on it (R5)."""


class Quarantine:
    """Owned by one event loop; any number of calls at once."""

    def __init__(self, tool: IndexTool, shape: Shape) -> None:
        """tool: opened, and used by nobody else meanwhile."""
        self._tool = tool
        self._shape = shape
        # Between the calls: the index is read and written by one of them at a time.
        self._index = asyncio.Lock()
        self._room = asyncio.Semaphore(PARALLEL)

    async def followed(self, max_age_s: float) -> Snapshot:
        """The index, as read to its head less than max_age_s ago. Raises `S3KVError`."""
        async with self._index:
            age_s = self._tool.now().monotonic_s - self._tool.snapshot.head_seen_s
            if age_s >= max_age_s:
                await self._tool.follow()
            return self._tool.snapshot

    async def report(self, records: RecordSet) -> None:
        """Make dead records durable. Raises `S3KVError`."""
        async with self._index:
            await self._tool.commit(records)

    async def set_aside(self, parts: Sequence[Part]) -> tuple[list[Fate], int]:
        """What became of each, and how many chunks were reported dead.

        Raises `S3KVError` if the index cannot be told (then nothing is moved), or if it is refused.
        """
        by_s = self._tool.now().monotonic_s + BELIEVED_S
        are_there = await self._each(parts, self._is_still)
        still = [part for part, is_there in zip(parts, are_there, strict=True) if is_there]
        reported_count = await self._report_dead(still, by_s)
        moved = await self._each(still, partial(self._move, by_s))
        fates = dict(zip((part.found.key for part in still), moved, strict=True))
        return [fates.get(part.found.key, Fate.REPLACED) for part in parts], reported_count

    async def _each(
        self, parts: Sequence[Part], work: Callable[[Part], Coroutine[None, None, T]]
    ) -> list[T]:
        """The work's results in order, `PARALLEL` at a time over all calls."""

        async def in_room(part: Part) -> T:
            async with self._room:
                return await work(part)

        async with task_group() as group:
            tasks = [group.create_task(in_room(part)) for part in parts]
        return [task.result() for task in tasks]

    async def _is_still(self, part: Part) -> bool:
        reply = await self._tool.perform(ask(Stat(part.found.key)))
        return isinstance(reply.value, Listed) and reply.value.etag == part.found.etag

    async def _report_dead(self, parts: Sequence[Part], by_s: float) -> int:
        # A name with another number of writers says nothing about the chunk's own shards.
        hashes = {p.name.chunk_hash for p in parts if self._shape.misnamed(p.name) is None}
        if not hashes:
            return 0
        async with self._index:
            await self._tool.follow()  # a report must win over what others know by now
            unix_s = self._tool.now().unix_s
            records = self._tool.snapshot.dead_records(fingerprints(sorted(hashes)), unix_s)
            await self._tool.commit(records, by_s)
        return len(records)

    async def _move(self, by_s: float, part: Part) -> Fate:
        name, found = part.name, part.found
        key = keys.quarantine_key(
            name.namespace, name.chunk_hash, name.writer_index, name.writer_count
        )
        try:
            copied = await self._tool.perform(ask(Copy(found, key)))
            if isinstance(copied.value, Unreadable):
                return Fate.LEFT  # too large for one copy
            if not isinstance(copied.value, Done):
                return Fate.REPLACED
            deleted = await self._tool.perform(ask(DeleteListed((found,), by_s)))
        except Transient:
            return Fate.LEFT
        assert isinstance(deleted.value, Kept)
        return Fate.REPLACED if deleted.value.keys else Fate.QUARANTINED
