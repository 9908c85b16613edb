"""Probe mode: how much of a prompt is archived, asked of the bucket itself by HEAD.

Used while the index is not open, stale or too large. Names are deterministic, so no index is
needed. Two or three round trips in parallel, whatever the prompt's length: first at the chain's
powers of two and at the prompt's own tail, then inside the gap that is left. A hole that the probes
stepped over shortens the load, it never makes it wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from s3kv.bucket.base import Missing, ObjectStore
from s3kv.core.chunking import Chunk
from s3kv.core.geometry import ShardGeometry
from s3kv.core.ids import NamespaceId
from s3kv.core.keys import shard_key

FAN_OUT = 16
"""HEADs per round trip."""


def probe_points(low: int, high: int, count: int) -> list[int]:
    """At most `count` positions in (low, high], high always among them, denser towards low.

    Halving distances first: most prompts hit entirely or miss near their beginning.
    """
    span = high - low
    if span <= count:
        return list(range(low + 1, high + 1))
    points = {high, low + 1}
    step = span
    while step > 1 and len(points) < count:
        step //= 2
        points.add(low + step)
    return sorted(points)


class Prober:
    """Answers one prompt at a time per call; stateless, on the loop thread."""

    def __init__(
        self,
        store: ObjectStore,
        namespace: NamespaceId,
        geometry: ShardGeometry,
        writer_count: int,
    ) -> None:
        """writer_count: shards per chunk; a chunk counts only when all of them are there."""
        self._store = store
        self._namespace = namespace
        self._geometry = geometry
        self._writer_count = writer_count

    async def longest_prefix(
        self, full: Sequence[Chunk], tail: Chunk | None, timeout_s: float
    ) -> tuple[Chunk, ...]:
        """Leading chunks that are there. full: the prompt's full chunks; tail: its own tail.

        Raises the store's errors and TimeoutError.
        """
        async with asyncio.timeout(timeout_s):
            hit_count, has_tail = await asyncio.gather(
                self._gallop(full, timeout_s), self._there(tail, timeout_s)
            )
        chunks = tuple(full[:hit_count])
        if tail is not None and has_tail and hit_count == len(full):
            return (*chunks, tail)
        return chunks

    async def _gallop(self, full: Sequence[Chunk], timeout_s: float) -> int:
        low, high = 0, len(full)
        while low < high:
            points = probe_points(low, high, FAN_OUT)
            found = await asyncio.gather(*(self._there(full[p - 1], timeout_s) for p in points))
            for point, there in zip(points, found, strict=True):
                if not there:
                    high = point - 1
                    break
                low = point
        return low

    async def _there(self, chunk: Chunk | None, timeout_s: float) -> bool:
        if chunk is None:
            return False
        found = await asyncio.gather(
            *(self._shard_there(chunk, w, timeout_s) for w in range(self._writer_count))
        )
        return all(found)

    async def _shard_there(self, chunk: Chunk, writer_index: int, timeout_s: float) -> bool:
        key = shard_key(self._namespace, chunk.chunk_hash, writer_index, self._writer_count)
        info = await self._store.stat(key, timeout_s=timeout_s)
        return not isinstance(info, Missing) and info.size == self._geometry.shard_bytes(
            chunk.block_count
        )
