"""Answers "how much of this prompt is archived?" on the scheduling thread, from memory.

A fresh index answers at once. Otherwise the bucket is probed on the loop thread and the answer is
`Unknown` until the probe is back or `lookup_deadline_s` has passed: then it is a miss, never a wait
(FAULTS 31). Keys whose load failed are left out for a while, so that a bad object is not offered
again and again (FAULTS 16).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from s3kv.connector.tracked import Tracked
from s3kv.core.chunking import Chunk, full_chunks, prompt_chunks, tail_candidates
from s3kv.core.explaining import why_absent
from s3kv.core.ids import BlockHash, fingerprint, fingerprints
from s3kv.core.lookup import Lookup, Match, Miss, Unknown, match
from s3kv.core.reasons import MissReason
from s3kv.core.snapshot import Snapshot
from s3kv.errors import S3KVError

logger = logging.getLogger(__name__)

AVOID_S = 60.0
"""How long a chunk is not offered after the store did not deliver it."""
AVOID_LOST_S = 2.0
"""The same for a chunk that is gone or wrong: only until the index's own dead record guards it, so
that whoever archives it anew is believed."""
LOST_MAX = 65_536
"""Chunks remembered as lost; the index remembers them too, so forgetting costs little."""


class ArchiveView(Protocol):
    """The opened archive as the desk sees it."""

    @property
    def snapshot(self) -> Snapshot:
        """The index as it is known now; immutable."""
        ...

    def probe(
        self, full: Sequence[Chunk], tail: Chunk | None, timeout_s: float
    ) -> Future[tuple[Chunk, ...]]:
        """Ask the bucket on the loop thread."""
        ...


class LookupDesk:
    """Owned by the scheduling thread; does no I/O and never waits."""

    def __init__(self, view: ArchiveView, probe_mode: str, deadline_s: float) -> None:
        """probe_mode: `auto`, `off` or `fresh`; deadline_s: for one request's lookup."""
        self._view = view
        self._probe_mode = probe_mode
        self._deadline_s = deadline_s
        self._avoided: dict[int, float] = {}
        self._lost: set[int] = set()

    def look_up(self, tracked: Tracked, local_blocks: int, now_s: float) -> Lookup:
        """The archived prefix of a request's chain, counting what the engine has as present."""
        snapshot = self._view.snapshot
        if snapshot.pause.loads:
            return Miss(MissReason.PAUSED)
        if snapshot.opened and snapshot.is_fresh(now_s):
            found = self._in_memory(snapshot, tracked, local_blocks, now_s)
            if self._probe_mode != "fresh":
                return found
            return self._beyond(tracked, found, now_s)
        if self._probe_mode == "off":
            reason = MissReason.STALE if snapshot.opened else MissReason.INDEX_NOT_OPEN
            late = now_s - tracked.started_s > self._deadline_s
            return Miss(reason) if late else Unknown()
        return self._probed(tracked, now_s)

    def _in_memory(
        self, snapshot: Snapshot, tracked: Tracked, local_blocks: int, now_s: float
    ) -> Match | Miss:
        chain, geometry = tracked.chain(), tracked.geometry
        held = fingerprints(
            [c.chunk_hash for c in full_chunks(chain[:local_blocks], geometry.chunk_blocks)]
        )
        avoided = self._avoided_now(now_s)

        def present(fps: NDArray[np.uint64]) -> NDArray[np.bool_]:
            there = snapshot.present(fps)
            if len(avoided):
                there &= ~np.isin(fps, avoided)
            return there | np.isin(fps, held) if len(held) else there

        found = match(present, chain, geometry.chunk_blocks, geometry.min_tail_blocks)
        if found != Miss(MissReason.ABSENT):
            return found
        tails = tail_candidates(chain, geometry.chunk_blocks, 0, geometry.min_tail_blocks)
        first = [*chain[geometry.chunk_blocks - 1 : geometry.chunk_blocks]]
        first += [tail.chunk_hash for tail in tails]
        return Miss(why_absent(snapshot, fingerprints(first)))

    def _avoided_now(self, now_s: float) -> NDArray[np.uint64]:
        if self._avoided:
            self._avoided = {fp: end for fp, end in self._avoided.items() if end > now_s}
        return np.fromiter(self._avoided, dtype=np.uint64, count=len(self._avoided))

    def _probed(self, tracked: Tracked, now_s: float) -> Lookup:
        late = now_s - tracked.started_s > self._deadline_s
        if tracked.probe is None:
            if late:
                return Miss(MissReason.LOOKUP_DEADLINE)
            tracked.probe = self._start_probe(tracked, now_s)
        if not tracked.probe.done():
            return Miss(MissReason.LOOKUP_DEADLINE) if late else Unknown()
        try:
            chunks = tracked.probe.result()
        except (S3KVError, TimeoutError) as error:
            logger.debug("s3kv: probe failed: %s", error)
            return Miss(MissReason.PROBE_FAILED)
        chunks = self._without_avoided(chunks, now_s)
        return Match(chunks) if chunks else Miss(MissReason.ABSENT)

    def _start_probe(self, tracked: Tracked, now_s: float) -> Future[tuple[Chunk, ...]]:
        geometry = tracked.geometry
        chain = tracked.chain()
        chunks = prompt_chunks(chain, len(chain), geometry.chunk_blocks, geometry.min_tail_blocks)
        has_tail = bool(chunks) and chunks[-1].block_count < geometry.chunk_blocks
        full, tail = (chunks[:-1], chunks[-1]) if has_tail else (chunks, None)
        left_s = max(0.001, tracked.started_s + self._deadline_s - now_s)
        return self._view.probe(full, tail, left_s)

    def _without_avoided(self, chunks: Sequence[Chunk], now_s: float) -> tuple[Chunk, ...]:
        avoided = {*self._avoided_now(now_s).tolist(), *self._lost}
        kept: list[Chunk] = []
        for chunk in chunks:
            if fingerprint(chunk.chunk_hash) in avoided:
                break
            kept.append(chunk)
        return tuple(kept)

    def _beyond(self, tracked: Tracked, found: Match | Miss, now_s: float) -> Lookup:
        """Probe mode `fresh`: one HEAD for the chunk after the index's end."""
        if tracked.probe is None:
            start = found.blocks if isinstance(found, Match) else 0
            geometry = tracked.geometry
            if start % geometry.chunk_blocks:
                return found
            ahead = full_chunks(tracked.chain(), geometry.chunk_blocks)
            behind = start // geometry.chunk_blocks
            if behind >= len(ahead):
                return found
            tracked.probe = self._view.probe(ahead[behind : behind + 1], None, self._deadline_s)
        if not tracked.probe.done():
            return found if now_s - tracked.started_s > self._deadline_s else Unknown()
        if tracked.probe.exception() is not None:
            return found
        extra = self._without_avoided(tracked.probe.result(), now_s)
        base = found.chunks if isinstance(found, Match) else ()
        end = base[-1].end_block if base else 0
        if extra and extra[0].start_block == end:
            return Match((*base, *extra))
        return found

    def listed(self, now_s: float) -> Callable[[NDArray[np.uint64]], NDArray[np.bool_]]:
        """For saves: which fingerprints need not be archived again.

        A stale view must not talk us out of a save (R8); the worker looks again before it uploads.
        """
        snapshot = self._view.snapshot
        fresh = snapshot.is_fresh(now_s)

        def present(fps: NDArray[np.uint64]) -> NDArray[np.bool_]:
            if not fresh:
                return np.zeros(len(fps), dtype=np.bool_)
            return snapshot.present(fps) & ~self._lost_among(fps)

        return present

    def stale_chunks(
        self, chunks: Sequence[Chunk], now_s: float, now_unix_s: float, touch_s: float
    ) -> list[tuple[BlockHash, int]]:
        """Those of the chunks whose recorded last use is older than touch_s: (hash, blocks)."""
        snapshot = self._view.snapshot
        if not chunks or not snapshot.is_fresh(now_s):
            return []
        fps = fingerprints([c.chunk_hash for c in chunks])
        stale = set(snapshot.stale_use(fps, now_unix_s, touch_s).tolist())
        if not stale:
            return []
        return [(c.chunk_hash, c.block_count) for c in chunks if fingerprint(c.chunk_hash) in stale]

    def avoid(self, chunk_hash: BlockHash, now_s: float, *, lost: bool) -> None:
        """Do not offer a chunk for a while: its load failed.

        lost: the archive's copy is gone or wrong, so whoever has the blocks must save them again.
        """
        fp = fingerprint(chunk_hash)
        self._avoided[fp] = now_s + (AVOID_LOST_S if lost else AVOID_S)
        if lost:
            if len(self._lost) >= LOST_MAX:
                self._lost.clear()
            self._lost.add(fp)

    def is_lost(self, chunk_hash: BlockHash) -> bool:
        """Whether the archive's copy is known bad: a save must rewrite it."""
        return fingerprint(chunk_hash) in self._lost

    def _lost_among(self, fps: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """bool[k]: which of uint64[k] fingerprints must be saved again whatever the index says."""
        lost = np.fromiter(self._lost, dtype=np.uint64, count=len(self._lost))
        return np.isin(fps, lost)

    def welcome(self, chunk_hash: BlockHash) -> None:
        """A chunk was archived anew: offer it again."""
        fp = fingerprint(chunk_hash)
        self._avoided.pop(fp, None)
        self._lost.discard(fp)
