"""The processes of a storm: writers, readers, engines that only load, sweepers, one that does harm.

Each runs until it is killed. They decide nothing that the real runtime decides: what is put
together here are its index clients and the rules of a save (R1, R2, R5, R8) for two ranks.

Words that they report: `born` (nothing is read yet), `ready` (its index is open; text: the chunks
that it lists), `storing` (both shards are durable, the announcement begins; count: the head),
`stored` (it is durable), `losing` (a loss is about to be recorded), `lost` (it is), `hit`,
`dangling` (a fresh index lists what is not there; count: the head), `harm` (an object is about to
be deleted behind everybody's back), `swept` (a sweeper went over some folders; count: what it
deleted so far), `round` (and thereby over all), `hindered` (it may not sweep; text: why), `torn`
(an object without its bytes: SeaweedFS makes one where a client dies between head and body of a
PUT, S3 does not), `wrong` (bytes that nobody wrote), `failed` (an error; text: which).
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from s3kv.bucket.base import Missing
from s3kv.bucket.connect import connect
from s3kv.core.records import RecordSet
from s3kv.core.shard import verify_blocks, verify_header
from s3kv.errors import Corrupt, Mismatch, S3KVError
from s3kv.runtime.clock import Clock
from s3kv.runtime.index_client import IndexReader
from s3kv.runtime.index_writer import IndexWriter
from s3kv.runtime.loop import THREAD_PREFIX, LoopThread
from tests.fakes.storm_spec import (
    CHUNK_BLOCKS,
    GEOMETRY,
    NAMESPACE,
    RANKS,
    SHARD_BYTES,
    Event,
    StormSpec,
    bits_of,
    body_of,
    fps_of,
    identity_of,
    key_of,
    tell,
)
from tests.fakes.storm_store import MortalStore
from tests.fakes.storm_sweeps import StormSweeper

SAVES_AT_ONCE = 3
REWRITE_SHARE = 0.05
USE_SHARE = 0.05
"""How many of the saves write anew, or use, what is listed; from the others there is nothing to
write."""
FRAGILE_SHARE = 0.3
SWEEP_PAUSE_S = 0.2
MORTAL_SHARE = 0.2
"""How much of the time a sweeper may die at its own requests."""


class Role:
    """One process: a store, and something to do again and again."""

    at_once = 1

    def __init__(self, name: str, spec: StormSpec, seed: int) -> None:
        self.name = name
        self.spec = spec
        self.timeout_s = spec.times.request_s
        self.rng = random.Random(seed)
        self.clock = Clock()
        store = connect(spec.bucket_settings, guard_thread_prefix=THREAD_PREFIX)
        self.store = MortalStore(store, spec, self.rng, self.tell)

    @property
    def pause_s(self) -> float:
        raise NotImplementedError

    async def begin(self) -> NDArray[np.bool_]:
        """Open the index; which chunks it lists."""
        raise NotImplementedError

    async def act(self) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        """Until killed; anything else that ends it is a fault."""
        async with asyncio.TaskGroup() as group:
            self.group = group
            self.tell("born")
            self.tell("ready", text=bits_of(await self.begin()))
            self.store.mortal = True
            for _ in range(self.at_once):
                group.create_task(self._act_again_and_again())

    async def _act_again_and_again(self) -> None:
        while True:
            await self.clock.sleep(self.rng.uniform(0.5, 1.5) * self.pause_s)
            try:
                await self.act()
            except S3KVError as error:
                self.tell("failed", text=repr(error))

    def tell(self, what: str, chunk: int = -1, count: int = 0, text: str = "") -> None:
        tell(Event(self.name, what, self.clock.monotonic_s(), chunk, count, text))


class Following(Role):
    """A process with a view of the index."""

    def __init__(self, name: str, spec: StormSpec, seed: int) -> None:
        super().__init__(name, spec, seed)
        self.client = self.make_client()

    def make_client(self) -> IndexReader:
        return IndexReader(self.store, NAMESPACE, self.clock, self.spec.times.settings)

    @property
    def pause_s(self) -> float:
        return self.spec.load_pause_s

    async def begin(self) -> NDArray[np.bool_]:
        self.group.create_task(self._follow())
        await self.client.wait_opened()
        return self.client.snapshot.present(fps_of(self.spec.chunk_count))

    async def _follow(self) -> None:
        await self.client.run()
        raise AssertionError(f"the index client ended: {self.client.refused}")

    def fps(self, chunk: int) -> NDArray[np.uint64]:
        return fps_of(self.spec.chunk_count)[chunk : chunk + 1]

    def lists(self, chunk: int) -> bool:
        """Whether a fresh index says that the chunk is there."""
        snapshot = self.client.snapshot
        fresh = snapshot.is_fresh(self.clock.monotonic_s())
        return fresh and bool(snapshot.present(self.fps(chunk))[0])

    def a_live_chunk(self) -> int | None:
        """One that a fresh index lists, half of the time a fragile one, if there is any."""
        snapshot = self.client.snapshot
        if not snapshot.is_fresh(self.clock.monotonic_s()):
            return None
        end = self.spec.fragile_count if self.rng.random() < 0.5 else self.spec.chunk_count
        live = np.flatnonzero(snapshot.present(fps_of(self.spec.chunk_count)[:end]))
        return int(self.rng.choice(live)) if len(live) else None

    async def has_all_shards(self, chunk: int) -> bool:
        """Whether both lie in the bucket."""
        for rank in range(RANKS):
            found = await self.store.stat(key_of(chunk, rank), timeout_s=self.timeout_s)
            if isinstance(found, Missing):
                return False
        return True


class Announcing(Following):
    """A process that commits to the index."""

    def make_client(self) -> IndexReader:
        self.writer = IndexWriter(self.store, NAMESPACE, self.clock, self.spec.times.settings)
        return self.writer

    async def report_lost(self, chunk: int) -> None:
        """As an engine whose load failed: known here at once, then to everybody."""
        self.tell("losing", chunk)
        records = self.client.snapshot.dead_records(self.fps(chunk), self.clock.unix_s())
        self.client.note(records)
        await self.writer.commit(records)
        self.tell("lost", chunk)


class Writer(Announcing):
    """Stores random chunks, of which many are there already, and announces them."""

    at_once = SAVES_AT_ONCE

    @property
    def pause_s(self) -> float:
        return self.spec.save_pause_s

    async def act(self) -> None:
        by_s = self.clock.monotonic_s() + self.spec.times.min_age_s / 2
        chunk = self._choose()
        is_known, fate = self.lists(chunk), self.rng.random()
        rewrites = is_known and fate < REWRITE_SHARE
        if rewrites or not is_known:
            await self.upload(chunk, rewrites)
        elif fate > REWRITE_SHARE + USE_SHARE:
            return  # listed: nothing to do
        await self._announce(chunk, by_s)

    def _choose(self) -> int:
        if self.rng.random() < FRAGILE_SHARE:
            chunk = self.rng.randrange(self.spec.fragile_count)
            if not self.client.snapshot.dead(self.fps(chunk))[0]:
                return chunk
        return self.rng.randrange(self.spec.fragile_count, self.spec.chunk_count)

    async def upload(self, chunk: int, rewrites: bool) -> None:
        """Both shards; what a moment ago another engine uploaded is not uploaded again."""
        for rank in range(RANKS):
            if rewrites or not await self._is_young(chunk, rank):
                body = body_of(chunk, rank)
                await self.store.put(key_of(chunk, rank), body, timeout_s=self.timeout_s)

    async def _is_young(self, chunk: int, rank: int) -> bool:
        if self.client.snapshot.dead(self.fps(chunk))[0]:
            return False
        found = await self.store.stat(key_of(chunk, rank), timeout_s=self.timeout_s)
        if isinstance(found, Missing) or found.size != SHARD_BYTES:
            return False
        return found.age_s < self.spec.times.min_age_s / 2

    async def _announce(self, chunk: int, by_s: float) -> None:
        self.tell("storing", chunk, count=self.client.snapshot.head)
        await self.writer.commit(self._live(chunk), by_s)
        if self.clock.monotonic_s() > by_s and not await self.has_all_shards(chunk):
            await self.report_lost(chunk)
        else:
            self.tell("stored", chunk)

    def _live(self, chunk: int) -> RecordSet:
        blocks = np.array([CHUNK_BLOCKS], np.uint16)
        return self.client.snapshot.live_records(self.fps(chunk), blocks, self.clock.unix_s())


class Reader(Following):
    """Loads random chunks that its index lists, and looks at every byte."""

    async def act(self) -> None:
        chunk = self.a_live_chunk()
        if chunk is None:
            return
        for rank in range(RANKS):
            body = await self.store.get(
                key_of(chunk, rank), max_bytes=SHARD_BYTES, timeout_s=self.timeout_s
            )
            if isinstance(body, Missing):
                await self._missed(chunk)
                return
            if not body:
                self.tell("torn", chunk)
                await self.report_lost(chunk)
                return
            self._verify(chunk, rank, body)
        self.tell("hit", chunk)

    async def _missed(self, chunk: int) -> None:
        # Another process's report may have come in while the request was on its way.
        if self.lists(chunk):
            self.tell("dangling", chunk, count=self.client.snapshot.head)
            await self.report_lost(chunk)

    async def report_lost(self, chunk: int) -> None:
        """One that only reads has nobody to tell."""

    def _verify(self, chunk: int, rank: int, body: bytes) -> None:
        try:
            header = verify_header(body, GEOMETRY, identity_of(chunk, rank))
            data = memoryview(body)[GEOMETRY.header_bytes :]
            verify_blocks(header, GEOMETRY, 0, 0, data)
        except (Corrupt, Mismatch) as error:
            self.tell("wrong", chunk, text=str(error))


class Loader(Reader, Announcing):
    """An engine that only loads: it reports what it finds gone, and sequences like any other."""

    # Announcing's, although Reader comes first for the rest.
    report_lost = Announcing.report_lost


class Harm(Following):
    """Deletes what is in use, as an operator or a lifecycle rule might."""

    @property
    def pause_s(self) -> float:
        return self.spec.harm_pause_s

    async def act(self) -> None:
        chunk = self.a_live_chunk()
        if chunk is not None:
            self.tell("harm", chunk)
            key = key_of(chunk, self.rng.randrange(RANKS))
            await self.store.delete([key], timeout_s=self.timeout_s)


class Sweep(Role):
    """Goes over the namespace again and again, as `s3kv sweep` does once."""

    @property
    def pause_s(self) -> float:
        return SWEEP_PAUSE_S

    async def begin(self) -> NDArray[np.bool_]:
        self.sweeper = StormSweeper(self.store, self.spec.times)
        while True:
            try:
                await self.sweeper.open()
                break
            except S3KVError as error:
                self.tell("failed", text=repr(error))
        return self.sweeper.snapshot.present(fps_of(self.spec.chunk_count))

    async def act(self) -> None:
        if self.sweeper.problem:
            self.tell("hindered", text=self.sweeper.problem)
            await self.begin()
        else:
            # It writes so much that it would never come around.
            self.store.mortal = self.rng.random() < MORTAL_SHARE
            await self.sweeper.sweep_next()
            self.tell("swept", count=self.sweeper.deeds.deleted)
            if self.sweeper.is_round:
                self.tell("round")


ROLES: Final[dict[str, Callable[[str, StormSpec, int], Role]]] = {
    "writer": Writer,
    "reader": Reader,
    "loader": Loader,
    "harm": Harm,
    "sweeper": Sweep,
}


def live(role: str, name: str, spec: StormSpec, seed: int) -> None:
    """The life of one process."""

    async def run() -> None:
        # Made on the loop thread, as everything that talks to the store.
        await ROLES[role](name, spec, seed).run()

    LoopThread(f"storm-{os.getpid()}").submit(run()).result()
