"""What a sweep does with the objects of one fan-out folder: a pure plan over a listing.

Rules upheld here: an object is condemned only if nobody can revive it but by uploading it anew,
which makes it another object (R6, R7, docs/adr/0002):

- its chunk's last use and its own upload lie below a watermark that was in force for the whole
  grace, or the chunk was reported lost as long ago: whoever used it on an older view has written
  that down, or given up, by now;
- or nobody lists it, it is older than `min_age_s` and its chunk is not whole: whoever uploaded it
  has given up. A whole chunk is adopted, if all its uploads lie above the watermark: then no other
  sweep condemns it.

Names that are not exactly ours are not looked at. Pinned chunks are left alone whatever is known.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from s3kv.core import keys
from s3kv.core.ids import fingerprint
from s3kv.core.records import DEAD, EMPTY, TIME_MAX_S, RecordSet, make_records
from s3kv.core.requests import Listed

FOLDERS: Final = tuple(f"{first:02x}" for first in range(256))
"""The fan-out of data/: the first two hex digits of a chunk's hash."""

BlocksOf = Callable[[int], int | None]
"""Size of writer 0's shard in bytes -> blocks in the chunk, None for a size that no shard has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRules:
    """grace_s, min_age_s: see the module; renew_after_s: objects in use are copied onto themselves
    at this age, before a lifecycle rule takes them (None: there is no such rule)."""

    grace_s: float = 3_600.0
    min_age_s: float = 3_600.0
    renew_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class View:
    """What a sweep knows when it looks at a folder.

    whole: all records, dead ones too; watermark_s: in force now; held_s: in force for the whole
    grace, hence not greater; pinned: uint64[n], sorted.
    """

    whole: RecordSet
    watermark_s: int
    held_s: int
    pinned: NDArray[np.uint64]


class Why(enum.Enum):
    """Why an object goes."""

    EXPIRED = "expired"
    LOST = "lost"
    INCOMPLETE = "incomplete"
    MISSHAPEN = "misshapen"


@dataclass(slots=True)
class FolderPlan:
    """What to do with one folder.

    delete: objects by reason; adopt, lost: records to commit; renew: objects to copy onto
    themselves; kept: shards that stay; waiting: shards that may go later; foreign: other objects.
    """

    delete: dict[Why, list[Listed]] = field(default_factory=lambda: defaultdict(list))
    adopt: RecordSet = EMPTY
    lost: RecordSet = EMPTY
    renew: list[Listed] = field(default_factory=list)
    kept_count: int = 0
    kept_bytes: int = 0
    waiting_count: int = 0
    waiting_bytes: int = 0
    foreign_count: int = 0

    @property
    def condemned(self) -> list[Listed]:
        """All objects that go."""
        return [found for objects in self.delete.values() for found in objects]

    def keep(self, objects: Iterable[Listed]) -> None:
        """They stay."""
        for found in objects:
            self.kept_count += 1
            self.kept_bytes += found.size

    def wait(self, objects: Iterable[Listed]) -> None:
        """Not yet."""
        for found in objects:
            self.waiting_count += 1
            self.waiting_bytes += found.size


@dataclass(frozen=True, slots=True)
class _Chunk:
    """The shards of one chunk that are there."""

    fp: int
    writer_count: int
    shards: dict[int, Listed]

    @property
    def objects(self) -> list[Listed]:
        return list(self.shards.values())

    @property
    def is_whole(self) -> bool:
        """Some stores keep an empty object of a PUT whose client died: that is no shard."""
        there = sum(found.size > 0 for found in self.shards.values())
        return there == self.writer_count


def plan_folder(
    folder: str, listing: Sequence[Listed], view: View, blocks_of: BlocksOf, rules: SweepRules
) -> FolderPlan:
    """Plan for everything under `{ns}/data/{folder}/`, listed after the view was taken."""
    plan = FolderPlan()
    chunks = _grouped(listing, plan)
    fps = np.array([chunk.fp for chunk in chunks], np.uint64)
    at, known = view.whole.find(fps)
    pinned = np.isin(fps, view.pinned)
    adopted: list[tuple[int, int, int]] = []
    for i, chunk in enumerate(chunks):
        record = view.whole.take(slice(int(at[i]), int(at[i]) + 1)) if known[i] else EMPTY
        if pinned[i]:
            adopted += _plan_pinned(chunk, record, plan, view, blocks_of, rules)
        elif known[i]:
            _plan_known(chunk, record, plan, view, rules)
        else:
            adopted += _plan_unknown(chunk, plan, view, blocks_of, rules)
    if adopted:
        columns = tuple(zip(*adopted, strict=True))
        plan.adopt = make_records(np.array(columns[0], np.uint64), columns[1], columns[2])
    whole = fps[[chunk.is_whole for chunk in chunks]] if chunks else fps
    plan.lost = _lost(folder, whole, view)
    return plan


def _grouped(listing: Sequence[Listed], plan: FolderPlan) -> list[_Chunk]:
    chunks: dict[tuple[bytes, int], _Chunk] = {}
    for found in listing:
        name = keys.parse_shard_key(found.key)
        if name is None:
            plan.foreign_count += 1
            continue
        key = (name.chunk_hash, name.writer_count)
        if key not in chunks:
            chunks[key] = _Chunk(fingerprint(name.chunk_hash), name.writer_count, {})
        chunks[key].shards[name.writer_index] = found
    return list(chunks.values())


def _plan_pinned(
    chunk: _Chunk,
    record: RecordSet,
    plan: FolderPlan,
    view: View,
    blocks_of: BlocksOf,
    rules: SweepRules,
) -> list[tuple[int, int, int]]:
    """Returns the record that adopts it, if nobody lists it: it is what somebody wants to keep."""
    _keep(chunk, plan, rules, int(TIME_MAX_S))
    blocks = blocks_of(chunk.shards[0].size) if 0 in chunk.shards else None
    if len(record) or not chunk.is_whole or blocks is None or _has_young(chunk, rules):
        return []
    return [(chunk.fp, max(_uploaded_s(chunk), view.watermark_s), blocks)]


def _plan_known(
    chunk: _Chunk, record: RecordSet, plan: FolderPlan, view: View, rules: SweepRules
) -> None:
    seen_s, is_reported = int(record.seen_s[0]), bool(record.flags[0] & DEAD)
    if not is_reported and seen_s >= view.watermark_s:
        _keep(chunk, plan, rules, seen_s)
    elif is_reported and seen_s >= view.held_s:
        # The store's clock: a report is as old as it says, whatever this machine's clock shows.
        long_ago_s = _store_s(chunk) - rules.grace_s
        _condemn(chunk, plan, rules, Why.LOST if seen_s < long_ago_s else None)
    elif seen_s < view.held_s:
        _expire(chunk, plan, view, rules)
    else:
        plan.wait(chunk.objects)


def _plan_unknown(
    chunk: _Chunk, plan: FolderPlan, view: View, blocks_of: BlocksOf, rules: SweepRules
) -> list[tuple[int, int, int]]:
    """Returns the record that adopts it, if it is to be adopted."""
    blocks = blocks_of(chunk.shards[0].size) if 0 in chunk.shards else None
    uploaded_s = _uploaded_s(chunk)
    if not chunk.is_whole:
        _condemn(chunk, plan, rules, Why.INCOMPLETE)
    elif blocks is None:
        _condemn(chunk, plan, rules, Why.MISSHAPEN)
    elif uploaded_s < view.held_s:
        _expire(chunk, plan, view, rules)
    elif uploaded_s < view.watermark_s or _has_young(chunk, rules):
        plan.wait(chunk.objects)
    else:
        plan.keep(chunk.objects)
        return [(chunk.fp, uploaded_s, blocks)]
    return []


def _keep(chunk: _Chunk, plan: FolderPlan, rules: SweepRules, seen_s: int) -> None:
    """It stays; what was used since it was uploaded, or renewed, is renewed when it is time.

    A renewal must not prolong the life of what nobody uses: it looks like an upload.
    """
    plan.keep(chunk.objects)
    if rules.renew_after_s is None:
        return
    plan.renew += [
        each
        for each in chunk.objects
        if each.age_s >= rules.renew_after_s and seen_s >= each.modified_s + rules.min_age_s
    ]


def _uploaded_s(chunk: _Chunk) -> int:
    return min(int(min(found.modified_s for found in chunk.objects)), TIME_MAX_S)


def _condemn(chunk: _Chunk, plan: FolderPlan, rules: SweepRules, why: Why | None) -> None:
    for found in chunk.objects:
        if why is None or found.age_s < rules.min_age_s:
            plan.wait([found])
        else:
            plan.delete[why].append(found)


def _expire(chunk: _Chunk, plan: FolderPlan, view: View, rules: SweepRules) -> None:
    for found in chunk.objects:
        if found.modified_s < view.held_s and found.age_s >= rules.min_age_s:
            plan.delete[Why.EXPIRED].append(found)
        else:
            plan.wait([found])


def _has_young(chunk: _Chunk, rules: SweepRules) -> bool:
    return any(found.age_s < rules.min_age_s for found in chunk.objects)


def _store_s(chunk: _Chunk) -> float:
    """The store's clock when it was listed, Unix seconds."""
    return max(found.modified_s + found.age_s for found in chunk.objects)


def _lost(folder: str, whole: NDArray[np.uint64], view: View) -> RecordSet:
    """Reports on live chunks of the folder that are not there in all their shards.

    They are as old as what is known, so that any newer use or upload wins over them.
    """
    first = int(folder, 16) << 56
    start = int(np.searchsorted(view.whole.fps, np.uint64(first)))
    last = np.uint64(first + (1 << 56) - 1)
    end = int(np.searchsorted(view.whole.fps, last, side="right"))
    here = view.whole.take(slice(start, end))
    gone = here.take(here.live(view.watermark_s) & ~np.isin(here.fps, whole))
    return make_records(gone.fps, gone.seen_s, 0, DEAD) if len(gone) else EMPTY
