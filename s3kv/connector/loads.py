"""Loads of one engine in flight: what was promised to which request, and what became of it.

Every load that the engine waits for is in here until the workers reported it, so two requests never
fetch the same chunk at once, and a failed block is traced back to its chunk. Owned by the engine's
scheduling thread.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from s3kv.connector.messages import AbandonedLoad, ChunkAddress, LoadJob, LoadPart
from s3kv.connector.tracked import Promise, Tracked
from s3kv.core.chunking import Chunk
from s3kv.core.ids import BlockHash, NamespaceId
from s3kv.core.plans import plan_load


@dataclass(slots=True)
class _InFlight:
    block_ids: tuple[int, ...]
    chunk_hashes: tuple[BlockHash, ...]
    ended: bool = False


class LoadBook:
    """Loads between allocation and report."""

    def __init__(self) -> None:
        """Empty."""
        self._in_flight: dict[str, _InFlight] = {}
        self._loading: dict[BlockHash, str] = {}
        self._to_ship: list[LoadJob] = []
        self._to_abandon: list[AbandonedLoad] = []
        self._ended: set[str] = set()
        self.counts: Counter[str] = Counter()

    @property
    def in_flight_count(self) -> int:
        """Loads that no worker has reported yet."""
        return len(self._in_flight)

    def is_loading(self, chunks: Iterable[Chunk], request_id: str) -> bool:
        """Whether another request's load brings one of these chunks right now."""
        if not self._loading:
            return False
        return any(self._loading.get(c.chunk_hash, request_id) != request_id for c in chunks)

    def begin(
        self,
        tracked: Tracked,
        promise: Promise,
        block_ids: tuple[int, ...],
        addresses: dict[BlockHash, ChunkAddress],
        namespace: NamespaceId,
    ) -> None:
        """Plan a load into `block_ids`, one for each promised block, in chain order."""
        parts, at = [], 0
        for part in plan_load(promise.chunks, promise.local_blocks, promise.end_block):
            ids = block_ids[at : at + part.block_count]
            at += part.block_count
            parts.append(LoadPart(addresses[part.chunk.chunk_hash], part.first_block_in_chunk, ids))
        assert at == len(block_ids)
        assert all(block_ids)
        request_id = tracked.request.request_id
        hashes = tuple(p.address.chunk_hash for p in parts)
        self._to_ship.append(LoadJob(request_id, namespace, tuple(parts)))
        self._in_flight[request_id] = _InFlight(block_ids, hashes)
        self._loading.update(dict.fromkeys(hashes, request_id))
        self.counts["planned"] += 1

    def abandon(self, request_id: str, block_ids: Collection[int]) -> None:
        """The engine waits for a load that cannot be planned: have it reported as failed."""
        ids = tuple(block_ids)
        self._to_ship = [job for job in self._to_ship if job.request_id != request_id]
        self._forget(request_id)
        self._to_abandon.append(AbandonedLoad(request_id, ids))
        self._in_flight[request_id] = _InFlight(ids, ())
        self.counts["abandoned"] += 1

    def end(self, request_id: str) -> None:
        """The request is gone (aborted): its fetch may stop; the report still comes."""
        flight = self._in_flight.get(request_id)
        if flight is not None and not flight.ended:
            flight.ended = True
            self._ended.add(request_id)

    def ship(self) -> tuple[tuple[LoadJob, ...], tuple[AbandonedLoad, ...], frozenset[str]]:
        """What this step's plan has to carry: loads, abandoned loads, ended requests."""
        for job in [job for job in self._to_ship if job.request_id in self._ended]:
            # Gone before its load began: there is nothing to cancel yet, so it must not begin.
            self._to_ship.remove(job)
            self._to_abandon.append(AbandonedLoad(job.request_id, job.block_ids))
        shipped = (tuple(self._to_ship), tuple(self._to_abandon), frozenset(self._ended))
        self._to_ship, self._to_abandon, self._ended = [], [], set()
        return shipped

    def reported(self, request_id: str, invalid_block_ids: Collection[int]) -> tuple[int, int]:
        """A load has ended. Returns (blocks that arrived before the first bad one, all blocks)."""
        flight = self._forget(request_id)
        if flight is None:
            return (0, 0)
        arrived = 0
        while arrived < len(flight.block_ids) and flight.block_ids[arrived] not in (
            invalid_block_ids
        ):
            arrived += 1
        complete = arrived == len(flight.block_ids)
        self.counts["complete" if complete else "failed"] += 1
        return arrived, len(flight.block_ids)

    def _forget(self, request_id: str) -> _InFlight | None:
        flight = self._in_flight.pop(request_id, None)
        for chunk_hash in flight.chunk_hashes if flight is not None else ():
            if self._loading.get(chunk_hash) == request_id:
                del self._loading[chunk_hash]
        return flight
