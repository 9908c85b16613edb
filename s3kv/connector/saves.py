"""Which chunks to archive in an engine step, and what became of them.

A chunk is listed in the step that computes its last block; its blocks are pinned until every rank
has copied them. Chunks that the index knows, or that are on their way, are not listed again.
Owned by the engine's scheduling thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from s3kv.connector.messages import ChunkAddress, Report, SaveJob
from s3kv.connector.pins import PinBoard
from s3kv.connector.tracked import Tracked
from s3kv.core.chunking import Chunk
from s3kv.core.ids import BlockHash, NamespaceId, fingerprints
from s3kv.core.plans import plan_save

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput

PIN_REPORT_S = 30.0
"""A copy takes milliseconds; a report that has not come by then is not worth stepping for."""


@dataclass(frozen=True, slots=True)
class SaveContext:
    """What a step's planning needs to know about the archive.

    now_s: monotonic; root_hash: parent of every first block; present: uint64[k] -> bool[k], true
    only where a *fresh* index lists a chunk; must_rewrite: whether the archive's copy is known bad.
    """

    now_s: float
    namespace: NamespaceId
    root_hash: BlockHash
    present: Callable[[NDArray[np.uint64]], NDArray[np.bool_]]
    must_rewrite: Callable[[BlockHash], bool]


def address_of(chain: Sequence[BlockHash], chunk: Chunk, root_hash: BlockHash) -> ChunkAddress:
    """Names of a chunk and its blocks, from the chain that it is part of."""
    parent = chain[chunk.start_block - 1] if chunk.start_block else root_hash
    return ChunkAddress(chunk.chunk_hash, parent, tuple(chain[chunk.start_block : chunk.end_block]))


class SavePlanner:
    """Saves of one engine in flight."""

    def __init__(self, pins: PinBoard) -> None:
        """pins: bound to the engine's block pool."""
        self._pins = pins
        self._next_id = 0
        self._jobs: dict[int, tuple[BlockHash, int]] = {}
        self._saving: set[BlockHash] = set()
        self.counts: Counter[str] = Counter()

    @property
    def pinned_count(self) -> int:
        """Saves whose source blocks are still pinned."""
        return len(self._pins)

    def awaits_copies(self, now_s: float) -> bool:
        """Whether the engine should keep stepping so that pins drop."""
        return self._pins.any_younger_than(PIN_REPORT_S, now_s)

    @property
    def in_flight_count(self) -> int:
        """Saves without a known outcome."""
        return len(self._jobs)

    def plan(
        self, output: SchedulerOutput, tracked: Mapping[str, Tracked], context: SaveContext
    ) -> tuple[SaveJob, ...]:
        """List and pin the chunks that this step completes."""
        jobs: list[SaveJob] = []
        planned = False
        try:
            for request_id, token_count in output.num_scheduled_tokens.items():
                one = tracked.get(request_id)
                if one is None or one.next_save >= len(one.save_chunks):
                    continue
                if one.refusal or not one.options.save:
                    continue
                for job in self._plan_request(output, request_id, one, token_count, context):
                    jobs.append(job)  # noqa: PERF402  one by one: what is pinned must be known
            planned = True
        finally:
            if not planned:  # nobody will carry these out: without this they were pinned for ever
                for job in jobs:
                    self._pins.drop(job.job_id)
                    self._end(job.job_id)
        return tuple(jobs)

    def _plan_request(
        self,
        output: SchedulerOutput,
        request_id: str,
        one: Tracked,
        token_count: int,
        context: SaveContext,
    ) -> Iterator[SaveJob]:
        request = one.request
        computed = min(request.num_computed_tokens + token_count, request.num_tokens)
        ready = plan_save(one.save_chunks, one.next_save, computed // one.geometry.block_tokens)
        one.next_save = ready.stop
        chunks = [one.save_chunks[i] for i in ready]
        chunks = [c for c in chunks if c.chunk_hash not in self._saving]
        if not chunks:
            return
        known = context.present(fingerprints([c.chunk_hash for c in chunks]))
        state = output.kv_connector_block_state
        tables = state.get_block_ids(request_id) if state is not None else None
        if tables is None:
            return
        chain = one.chain()
        for chunk, there in zip(chunks, known, strict=True):
            if not there and _complete(tables[0], chunk):
                yield self._job(chain, chunk, tables[0], context)

    def _job(
        self,
        chain: Sequence[BlockHash],
        chunk: Chunk,
        table: Sequence[int],
        context: SaveContext,
    ) -> SaveJob:
        job_id, self._next_id = self._next_id, self._next_id + 1
        block_ids = tuple(table[chunk.start_block : chunk.end_block])
        job = SaveJob(
            job_id=job_id,
            namespace=context.namespace,
            address=address_of(chain, chunk, context.root_hash),
            block_ids=block_ids,
            rewrite=context.must_rewrite(chunk.chunk_hash),
        )
        # Last: whatever failed before this has pinned nothing.
        self._pins.pin(job_id, block_ids, context.now_s)
        self._jobs[job_id] = (chunk.chunk_hash, chunk.block_count)
        self._saving.add(chunk.chunk_hash)
        self.counts["planned"] += 1
        return job

    def unpin(self, report: Report) -> None:
        """Copies that ranks completed; kept apart so that nothing else can get in its way."""
        for job_id, rank_count in report.staged.items():
            self._pins.staged(job_id, rank_count)

    def forget_namespace(self) -> None:
        """A new namespace begins: what becomes durable in the old one is not in the new one."""
        self._jobs.clear()
        self._saving.clear()

    def absorb(self, report: Report) -> list[tuple[BlockHash, int]]:
        """Take note of outcomes; returns the chunks that became durable."""
        durable = []
        for job_id in report.saved:
            ended = self._end(job_id)
            if ended is not None:
                durable.append(ended)
                self.counts["saved"] += 1
        for job_id, reason in report.unsaved.items():
            if self._end(job_id) is not None:
                self.counts[f"unsaved_{reason}"] += 1
        return durable

    def _end(self, job_id: int) -> tuple[BlockHash, int] | None:
        ended = self._jobs.pop(job_id, None)
        if ended is not None:
            self._saving.discard(ended[0])
        return ended


def _complete(table: Sequence[int], chunk: Chunk) -> bool:
    """Whether every block of the chunk exists (id 0 is the engine's null block)."""
    ids = table[chunk.start_block : chunk.end_block]
    return len(ids) == chunk.block_count and all(ids)
