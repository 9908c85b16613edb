"""A large set of records in 12 bytes each: what nearly all have in common is written once.

Nearly every chunk has the namespace's full count of blocks and no flags. The exceptions (tail
chunks, dead reports) are kept by position beside the columns, 8 bytes more each: nothing is lost,
whatever the values. An eighth of a byte goes into finding: the first fingerprint of each row of 64
is also kept apart, so that a look-up meets memory that is not cached twice, not twenty times. Sets
are merged a block at a time, so that no single call keeps the interpreter from other threads for
long, and into new columns, so that readers of the old ones go on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from s3kv.core.records import DEAD, EMPTY, RecordSet

BLOCK: Final = 1 << 18
"""Records moved by one call: 2 MB, well under a millisecond."""

ROW: Final = 64
"""Fingerprints in a row: compared all at once, 8 cache lines."""

ROWS_MAX: Final = 2_048
"""Fingerprints looked up by rows; more are searched for one after the other, which takes less
memory."""

_PADDING: Final = np.uint64(2**64 - 1)


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What is known of each of k fingerprints; where nothing is, the other columns are zero.

    known: bool[k]; seen_s: uint32[k]; blocks: uint16[k]; flags: uint16[k].
    """

    known: NDArray[np.bool_]
    seen_s: NDArray[np.uint32]
    blocks: NDArray[np.uint16]
    flags: NDArray[np.uint16]

    def live(self, watermark_s: int) -> NDArray[np.bool_]:
        """bool[k]: known, and neither dead nor last used before the watermark."""
        alive: NDArray[np.bool_] = self.known & (self.flags & DEAD == 0)
        alive &= self.seen_s >= watermark_s
        return alive

    def or_else(self, other: Found) -> Found:
        """The same where known, else what `other` says."""
        return Found(
            self.known | other.known,
            np.where(self.known, self.seen_s, other.seen_s),
            np.where(self.known, self.blocks, other.blocks),
            np.where(self.known, self.flags, other.flags),
        )


@dataclass(frozen=True, slots=True, eq=False)
class PackedRecords:
    """Records in ascending order of fingerprint, each once; made by `pack`, never changed.

    rows: uint64[r, ROW], the fingerprints, and padding at the end; firsts: uint64[r], of each row,
    but 0 of the first; seen_s: uint32[n]; usual_blocks: of every record (with no flags) whose
    position is not in odd_at: uint32[m], ascending; odd_blocks, odd_flags: uint16[m]; dead_at:
    uint32[d], those of the odd ones that are dead.
    """

    rows: NDArray[np.uint64]
    firsts: NDArray[np.uint64]
    seen_s: NDArray[np.uint32]
    usual_blocks: int
    odd_at: NDArray[np.uint32]
    odd_blocks: NDArray[np.uint16]
    odd_flags: NDArray[np.uint16]
    dead_at: NDArray[np.uint32]

    def __len__(self) -> int:
        """How many records."""
        return len(self.seen_s)

    @property
    def fps(self) -> NDArray[np.uint64]:
        """uint64[n]: a view."""
        return self.rows.reshape(-1)[: len(self.seen_s)]

    @property
    def nbytes(self) -> int:
        """Bytes of all columns."""
        columns = (self.rows, self.firsts, self.seen_s)
        odd = (self.odd_at, self.odd_blocks, self.odd_flags, self.dead_at)
        return sum(column.nbytes for column in (*columns, *odd))

    def find(self, fps: NDArray[np.uint64]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Positions of fingerprints, and whether each is there (a position is valid anyway)."""
        count = len(self.fps)
        if not count:
            return np.zeros(len(fps), np.intp), np.zeros(len(fps), np.bool_)
        names = self.fps
        if len(fps) > ROWS_MAX:
            at = np.searchsorted(names, fps)
        else:
            row = np.searchsorted(self.firsts, fps, side="right") - 1
            # The first that is not smaller; where all are, any will do: it is not there.
            at = row * ROW + (self.rows[row] < fps[:, None]).argmin(axis=1)
        at = np.minimum(at, count - 1)
        return at, names[at] == fps

    def present(
        self, fps: NDArray[np.uint64], watermark_s: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which of uint64[k] fingerprints are known, and which are live: bool[k] each."""
        at, known = self.find(fps)
        if not len(self):
            return known, known
        alive = known & (self.seen_s[at] >= watermark_s)
        if len(self.dead_at):
            place = np.searchsorted(self.dead_at, at.astype(np.uint32))
            alive &= self.dead_at.take(place, mode="clip") != at
        return known, alive

    def take(self, at: NDArray[np.intp]) -> RecordSet:
        """The records at these positions (ascending)."""
        return RecordSet(self.fps[at], self.seen_s[at], *self._odd_columns(at))

    def look_up(self, fps: NDArray[np.uint64]) -> Found:
        """What is known of uint64[k] fingerprints, in any order."""
        at, known = self.find(fps)
        found = np.flatnonzero(known)
        seen_s = np.zeros(len(fps), np.uint32)
        blocks, flags = np.zeros(len(fps), np.uint16), np.zeros(len(fps), np.uint16)
        if len(found):
            at = at[found]
            seen_s[found] = self.seen_s[at]
            blocks[found], flags[found] = self._odd_columns(at)
        return Found(known, seen_s, blocks, flags)

    def whole(self) -> RecordSet:
        """All records, with columns of their own."""
        blocks = np.full(len(self), self.usual_blocks, np.uint16)
        flags = np.zeros(len(self), np.uint16)
        blocks[self.odd_at], flags[self.odd_at] = self.odd_blocks, self.odd_flags
        return RecordSet(self.fps, self.seen_s, blocks, flags)

    def since(self, watermark_s: int) -> PackedRecords:
        """Without the records last used before the watermark."""
        stays = self.seen_s >= watermark_s
        if stays.all():
            return self
        odd = stays[self.odd_at]
        # Where a record goes: the number of those before it that stay.
        went = np.flatnonzero(~stays)
        odd_at = self.odd_at[odd]
        odd_at = (odd_at - np.searchsorted(went, odd_at)).astype(np.uint32)
        blocks, flags = self.odd_blocks[odd], self.odd_flags[odd]
        count = len(stays) - len(went)
        rows, fps = _new_rows(count)
        seen_s = np.empty(count, np.uint32)
        start, names = 0, self.fps
        for piece in _blocks(len(stays)):
            kept = stays[piece]
            end = start + int(np.count_nonzero(kept))
            fps[start:end], seen_s[start:end] = names[piece][kept], self.seen_s[piece][kept]
            start = end
        return _packed(rows, seen_s, self.usual_blocks, odd_at, blocks, flags)._repacked()

    def overlaid(self, winners: RecordSet) -> PackedRecords:
        """These records with those of `winners` in place of their own, and the new ones."""
        if not len(winners):
            return self
        if not len(self):
            return pack(winners)
        names = self.fps
        where = np.searchsorted(names, winners.fps)
        known = names[np.minimum(where, len(self) - 1)] == winners.fps
        fresh = np.flatnonzero(~known)
        before = where[fresh]  # a fresh record stands before the one at this position
        count = len(self) + len(fresh)
        rows, fps = _new_rows(count)
        _insert(names, before, winners.fps[fresh], fps)
        seen_s = np.empty(count, np.uint32)
        _insert(self.seen_s, before, winners.seen_s[fresh], seen_s)
        # The new position of every winner: shifted by the fresh ones before it.
        at = where + np.cumsum(~known) - ~known
        seen_s[at] = winners.seen_s
        stay = self.odd_at[~np.isin(self.odd_at, where[known], assume_unique=True)]
        kept = np.searchsorted(self.odd_at, stay)
        odd = (winners.blocks != self.usual_blocks) | (winners.flags != 0)
        odd_at = np.concatenate((stay + np.searchsorted(before, stay, side="right"), at[odd]))
        order = np.argsort(odd_at, kind="stable")
        return _packed(
            rows,
            seen_s,
            self.usual_blocks,
            odd_at[order].astype(np.uint32),
            np.concatenate((self.odd_blocks[kept], winners.blocks[odd]))[order],
            np.concatenate((self.odd_flags[kept], winners.flags[odd]))[order],
        )._repacked()

    def _odd_columns(self, at: NDArray[np.intp]) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
        """Blocks and flags at positions, in any order."""
        blocks, flags = np.full(len(at), self.usual_blocks, np.uint16), np.zeros(len(at), np.uint16)
        if len(self.odd_at):
            i = np.minimum(np.searchsorted(self.odd_at, at.astype(np.uint32)), len(self.odd_at) - 1)
            odd = np.flatnonzero(self.odd_at[i] == at)
            blocks[odd], flags[odd] = self.odd_blocks[i[odd]], self.odd_flags[i[odd]]
        return blocks, flags

    def _repacked(self) -> PackedRecords:
        """The same, with another usual count of blocks where that saves much."""
        plain = self.odd_blocks[self.odd_flags == 0]
        usual_count = len(self) - len(self.odd_at)
        if len(plain) <= usual_count or np.bincount(plain).max() <= usual_count:
            return self
        return pack(self.whole())


def _packed(
    rows: NDArray[np.uint64],
    seen_s: NDArray[np.uint32],
    usual_blocks: int,
    odd_at: NDArray[np.uint32],
    odd_blocks: NDArray[np.uint16],
    odd_flags: NDArray[np.uint16],
) -> PackedRecords:
    firsts = rows[:, 0].copy()
    firsts[:1] = 0
    dead_at = odd_at[odd_flags & DEAD != 0]
    return PackedRecords(rows, firsts, seen_s, usual_blocks, odd_at, odd_blocks, odd_flags, dead_at)


def pack(records: RecordSet) -> PackedRecords:
    """The same records, in columns of their own."""
    assert len(records) < 2**32
    # An estimate is enough: it decides about bytes, never about content.
    sample = slice(None, None, max(1, len(records) // 65_536))
    plain = records.blocks[sample][records.flags[sample] == 0]
    usual = int(np.bincount(plain).argmax()) if len(plain) else 0
    odd = np.flatnonzero((records.blocks != usual) | (records.flags != 0))
    rows, fps = _new_rows(len(records))
    seen_s = np.empty(len(records), np.uint32)
    for piece in _blocks(len(records)):
        fps[piece], seen_s[piece] = records.fps[piece], records.seen_s[piece]
    return _packed(
        rows,
        seen_s,
        usual,
        odd.astype(np.uint32),
        records.blocks[odd],
        records.flags[odd],
    )


def look_up(records: RecordSet, fps: NDArray[np.uint64]) -> Found:
    """As `PackedRecords.look_up`, in a small set."""
    at, known = records.find(fps)
    if not len(records):
        zeros = np.zeros(len(fps), np.uint16)
        return Found(known, np.zeros(len(fps), np.uint32), zeros, zeros)
    columns = (records.seen_s[at], records.blocks[at], records.flags[at])
    for column in columns:
        column[~known] = 0
    return Found(known, *columns)


def _blocks(count: int) -> Iterator[slice]:
    for start in range(0, count, BLOCK):
        yield slice(start, start + BLOCK)


def _new_rows(count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Rows for so many fingerprints, to be filled in, and the part of them that is to be filled."""
    flat = np.empty(-(-count // ROW) * ROW, np.uint64)
    flat[count:] = _PADDING
    return flat.reshape(-1, ROW), flat[:count]


def _insert(
    column: NDArray[Any],
    before: NDArray[np.intp],
    values: NDArray[Any],
    whole: NDArray[Any],
) -> None:
    """`np.insert` into `whole`, block by block; before: ascending positions, up to len(column)."""
    for start in range(0, len(column), BLOCK):
        end = min(start + BLOCK, len(column))
        low = int(np.searchsorted(before, start))
        high = len(before) if end == len(column) else int(np.searchsorted(before, end))
        piece = np.insert(column[start:end], before[low:high] - start, values[low:high])
        whole[start + low : end + high] = piece


NOTHING: Final = pack(EMPTY)
