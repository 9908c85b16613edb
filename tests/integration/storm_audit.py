"""What lies in the bucket after a storm, as a process sees it that was not there."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import numpy as np

from s3kv.bucket.base import ObjectInfo, ObjectStore
from s3kv.bucket.connect import connect
from s3kv.core.keys import data_prefix, parse_shard_key, tick_prefix
from s3kv.errors import Corrupt, Transient
from s3kv.runtime.clock import Clock
from s3kv.runtime.index_client import IndexReader, IndexSettings
from tests.fakes.storm_spec import (
    NAMESPACE,
    RANKS,
    SHARD_BYTES,
    StormSpec,
    Times,
    fps_of,
    identity_of,
)
from tests.fakes.storm_sweeps import StormSweeper

AFTERMATH = Times(
    head_ttl_s=2.0, request_s=1.9, min_age_s=4.0, grace_s=4.0, margin_s=4.0, ticks_min=1
)
"""For the sweep when all is over: nobody is left who could still announce anything."""
SWEEP_S = 60.0
"""Until everything is old enough and swept: a bound, it takes some seconds."""
TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Audit:
    """live: chunks that a fresh reader lists; shards: ranks that are there, by chunk; torn: chunks
    of which something lies there without its bytes."""

    live: frozenset[int]
    shards: dict[int, frozenset[int]]
    torn: frozenset[int]

    def holes(self) -> set[int]:
        """Chunks that are listed and not there."""
        return {chunk for chunk in self.live if not self._is_whole(chunk)}

    def orphans(self) -> set[int]:
        """Chunks that are there, in parts at least, and not listed."""
        return (set(self.shards) | self.torn) - self.live

    def is_clean(self) -> bool:
        """Whether nothing is left that a sweep deals with."""
        return not self.orphans() and self.holes() <= self.torn

    def _is_whole(self, chunk: int) -> bool:
        return len(self.shards.get(chunk, ())) == RANKS


def look(spec: StormSpec) -> Audit:
    """Open the index anew, and list every shard."""
    return asyncio.run(_look(spec))


def sweep_until_clean(spec: StormSpec) -> Audit:
    """Sweep again and again until nothing is listed that is not there, nor there that is not
    listed; what it looks like then, or after `SWEEP_S`."""
    return asyncio.run(_sweep_until_clean(spec))


@asynccontextmanager
async def _opened(spec: StormSpec) -> AsyncIterator[ObjectStore]:
    store = connect(spec.bucket_settings)
    try:
        yield store
    finally:
        await store.close()


async def _look(spec: StormSpec) -> Audit:
    async with _opened(spec) as store:
        return await _audit(store, spec)


async def _audit(store: ObjectStore, spec: StormSpec) -> Audit:
    reader = IndexReader(store, NAMESPACE, Clock(), IndexSettings())
    following = asyncio.create_task(reader.run())
    await reader.wait_opened()
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    there = reader.snapshot.present(fps_of(spec.chunk_count))
    live = frozenset(np.flatnonzero(there).tolist())
    assert len(live) == len(reader.snapshot.live()), "records of chunks that nobody stored"
    number_of = {identity_of(chunk, 0).chunk_hash: chunk for chunk in range(spec.chunk_count)}
    shards: dict[int, set[int]] = defaultdict(set)
    torn = set()
    for found in await _listing(store, data_prefix(NAMESPACE.id)):
        name = parse_shard_key(found.key)
        assert name is not None
        if found.size:
            assert found.size == SHARD_BYTES, found
            shards[number_of[name.chunk_hash]].add(name.writer_index)
        else:
            torn.add(number_of[name.chunk_hash])
    if reader.snapshot.incomplete:
        ticks = await _listing(store, tick_prefix(NAMESPACE.id))
        assert not all(found.size for found in ticks), "a whole tick that cannot be read"
    return Audit(live, {chunk: frozenset(r) for chunk, r in shards.items()}, frozenset(torn))


async def _listing(store: ObjectStore, prefix: str) -> list[ObjectInfo]:
    return [found async for page in store.list(prefix, timeout_s=TIMEOUT_S) for found in page]


async def _sweep_until_clean(spec: StormSpec) -> Audit:
    async with _opened(spec) as store:
        end_s = time.monotonic() + SWEEP_S
        sweeper = StormSweeper(store, AFTERMATH)
        await sweeper.open()
        while True:
            try:
                if sweeper.problem:
                    await sweeper.compact()
                    sweeper = StormSweeper(store, AFTERMATH)
                    await sweeper.open()
                await sweeper.sweep_all()
            except (Corrupt, Transient):
                continue  # too young to be merged without it; or this machine was too slow
            finally:
                left = await _audit(store, spec)
            if left.is_clean() or time.monotonic() > end_s:
                return left
