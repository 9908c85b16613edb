"""What the index knows of a chunk: one record per fingerprint, held in columns.

Rule upheld here: of two records with one fingerprint the greatest (seen_s, dead, blocks, flags)
wins. That makes merging associative, commutative and idempotent, so that order, repetition and
concurrent compaction cannot change the result. Nothing here knows about files or time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

DEAD: Final = np.uint16(1)
"""Flag bit 0: the chunk's shards are gone or bad; it must be written anew. Others: ignored."""

TIME_MAX_S: Final = 2**32 - 1

RECORDS_MAX: Final = 65_536
"""Records in one segment or tick."""

OVERLAY_MIN, OVERLAY_RATIO = 65_536, 4
"""A set that is larger, and so many times larger than all others, is not sorted anew with them:
that would take half as much memory again."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordSet:
    """Records in ascending order of fingerprint, each fingerprint once. Columns are not changed.

    fps: uint64[n]; seen_s: uint32[n], Unix seconds of last use; blocks: uint16[n], blocks in the
    chunk; flags: uint16[n], see `DEAD`.
    """

    fps: NDArray[np.uint64]
    seen_s: NDArray[np.uint32]
    blocks: NDArray[np.uint16]
    flags: NDArray[np.uint16]

    def __len__(self) -> int:
        """How many records."""
        return len(self.fps)

    def take(self, at: NDArray[np.intp] | NDArray[np.bool_] | slice) -> RecordSet:
        """The records at these positions (ascending) or under this mask."""
        return RecordSet(self.fps[at], self.seen_s[at], self.blocks[at], self.flags[at])

    def find(self, fps: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Positions of fingerprints, and whether each is there (a position is valid anyway)."""
        count = len(self.fps)
        if not count:
            return np.zeros(len(fps), np.intp), np.zeros(len(fps), np.bool_)
        at = np.minimum(np.searchsorted(self.fps, fps), count - 1)
        return at, self.fps[at] == fps

    def present(
        self, fps: NDArray[np.uint64], watermark_s: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which of uint64[k] fingerprints are known, and which are live: bool[k] each."""
        at, known = self.find(fps)
        if not len(self.fps):
            return known, known
        alive = known & (self.flags[at] & DEAD == 0)
        alive &= self.seen_s[at] >= watermark_s
        return known, alive

    def live(self, watermark_s: int) -> NDArray[np.bool_]:
        """bool[n]: neither dead nor last used before the watermark."""
        alive: NDArray[np.bool_] = (self.flags & DEAD == 0) & (self.seen_s >= watermark_s)
        return alive


EMPTY: Final = RecordSet(
    np.empty(0, np.uint64), np.empty(0, np.uint32), np.empty(0, np.uint16), np.empty(0, np.uint16)
)


def make_records(
    fps: ArrayLike, seen_s: ArrayLike, blocks: ArrayLike, flags: ArrayLike = 0
) -> RecordSet:
    """Records from columns in any order, with repetitions; scalars are repeated.

    fps: n values below 2**64; seen_s below 2**32; blocks and flags below 2**16. Raises
    OverflowError or ValueError if a value does not fit its column.
    """
    names = np.atleast_1d(np.asarray(fps, np.uint64))
    columns = (
        np.broadcast_to(np.asarray(seen_s, np.uint32), names.shape),
        np.broadcast_to(np.asarray(blocks, np.uint16), names.shape),
        np.broadcast_to(np.asarray(flags, np.uint16), names.shape),
    )
    return _sorted_unique(names, *columns)


def merge(sets: Sequence[RecordSet]) -> RecordSet:
    """The winning record of every fingerprint in any of the sets."""
    filled = [s for s in sets if len(s)]
    if not filled:
        return EMPTY
    if len(filled) == 1:
        return filled[0]
    largest = max(filled, key=len)
    rest = [s for s in filled if s is not largest]
    if len(largest) > max(OVERLAY_MIN, OVERLAY_RATIO * sum(map(len, rest))):
        news = merge(rest)
        at, known = largest.find(news.fps)
        return overlay(largest, merge((news, largest.take(at[known]))))
    return _sorted_unique(
        np.concatenate([s.fps for s in filled]),
        np.concatenate([s.seen_s for s in filled]),
        np.concatenate([s.blocks for s in filled]),
        np.concatenate([s.flags for s in filled]),
    )


def overlay(base: RecordSet, winners: RecordSet) -> RecordSet:
    """Base with the records of `winners` in place of its own: a few copies, no sorting."""
    at, known = base.find(winners.fps)
    fresh = winners.take(~known)
    where = np.searchsorted(base.fps, fresh.fps)
    seen_s, blocks, flags = base.seen_s.copy(), base.blocks.copy(), base.flags.copy()
    seen_s[at[known]] = winners.seen_s[known]
    blocks[at[known]] = winners.blocks[known]
    flags[at[known]] = winners.flags[known]
    return RecordSet(
        np.insert(base.fps, where, fresh.fps),
        np.insert(seen_s, where, fresh.seen_s),
        np.insert(blocks, where, fresh.blocks),
        np.insert(flags, where, fresh.flags),
    )


def without(records: RecordSet, others: RecordSet) -> RecordSet:
    """Those records that `others` does not have exactly as they are."""
    if not (len(records) and len(others)):
        return records
    at, known = others.find(records.fps)
    same = known & (_rank(records) == _rank(others.take(at)))
    return records.take(~same)


def _rank(records: RecordSet) -> NDArray[np.uint64]:
    """The order of (seen_s, dead, blocks, other flags) as one integer."""
    dead = (records.flags & DEAD).astype(np.uint64)
    rank: NDArray[np.uint64] = (
        (records.seen_s.astype(np.uint64) << np.uint64(32))
        | (dead << np.uint64(31))
        | (records.blocks.astype(np.uint64) << np.uint64(15))
        | (records.flags >> np.uint16(1)).astype(np.uint64)
    )
    return rank


def _sorted_unique(
    fps: NDArray[np.uint64],
    seen_s: NDArray[np.uint32],
    blocks: NDArray[np.uint16],
    flags: NDArray[np.uint16],
) -> RecordSet:
    # Stable: linear where the input is a few ascending pieces, which is the usual case.
    order = np.argsort(fps, kind="stable")
    ordered = RecordSet(fps[order], seen_s[order], blocks[order], flags[order])
    if len(order) < 2:
        return ordered
    first = np.flatnonzero(_is_first(ordered.fps))
    if len(first) == len(order):
        return ordered
    rank = _rank(ordered)
    counts = np.diff(first, append=len(order))
    winners = ordered.take(rank == np.maximum.reduceat(rank, first).repeat(counts))
    return winners.take(_is_first(winners.fps))


def _is_first(fps: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """bool[n]: where a new fingerprint begins in a sorted column (n at least 1)."""
    starts = np.ones(len(fps), np.bool_)
    np.not_equal(fps[1:], fps[:-1], out=starts[1:])
    return starts
