"""What becomes of a folder later, and how the index is rebuilt from what lies there.

Rules upheld here: an outlook comes from the very listing and view that its plan was made from, by
the same rules, with a watermark that is only thought of; every shard of the listing is counted
once. A rebuild deletes and copies nothing. What it adopts beyond a sweep are chunks of which every
shard is young: no sweep can have condemned one of those uploads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import compress

from s3kv.core.keys import parse_shard_key
from s3kv.core.records import merge
from s3kv.core.requests import Listed, Moment, Steps, work
from s3kv.core.sequencer import Sequencer
from s3kv.core.sweep import BlocksOf, FolderPlan, SweepRules, View, Why, plan_folder
from s3kv.core.sweeper import Sweeper

_AT_LAST = (Why.EXPIRED, Why.LOST)
"""Why shards go that only wait for the grace, or to grow old."""


@dataclass(slots=True)
class Heap:
    """Objects and their bytes."""

    count: int = 0
    total_bytes: int = 0

    def add(self, other: Heap) -> None:
        """All of another heap as well."""
        self.count += other.count
        self.total_bytes += other.total_bytes


def heap_of(found: Iterable[Listed]) -> Heap:
    """Count them."""
    sizes = [each.size for each in found]
    return Heap(len(sizes), sum(sizes))


@dataclass(frozen=True, slots=True)
class Outlook:
    """One folder: what its plan does now, and what follows if the watermark rises as far as asked.

    later: goes when the grace is over; young: too new to tell (not whole, or uploaded lately);
    stays: all other shards; adopted, renewed: chunks and objects of the plan that stay; foreign:
    names that are not a shard's.
    """

    plan: FolderPlan
    later: dict[Why, Heap] = field(default_factory=dict)
    young: Heap = field(default_factory=Heap)
    stays: Heap = field(default_factory=Heap)
    adopted: int = 0
    renewed: int = 0
    foreign: tuple[str, ...] = ()


class Surveyor(Sweeper):
    """A sweeper that looks ahead, and one that only writes the index anew."""

    def __init__(self, sequencer: Sequencer, blocks_of: BlocksOf, rules: SweepRules) -> None:
        """As a sweeper."""
        super().__init__(sequencer, blocks_of, rules)
        self._listings: list[list[Listed]] = []

    def survey(self, folders: Sequence[str], watermark_s: int, now: Moment) -> Steps[list[Outlook]]:
        """Plans, as `plan` makes them, and what comes after. Raises `Transient`, `Denied`.

        watermark_s: as far as the index would forget; one that is below that of now changes
        nothing.
        """
        plans = yield from self.plan(folders, now)
        assert self._view is not None
        risen_s = max(self._view.watermark_s, watermark_s)
        risen = replace(self._view, watermark_s=risen_s, held_s=risen_s)
        outlooks = []
        for folder, listing, plan in zip(folders, self._listings, plans, strict=True):
            looking = partial(_outlook, folder, listing, plan, risen, self._blocks_of, self._rules)
            outlooks.append((yield from work(looking)))
        return outlooks

    def plan_rebuild(self, folders: Sequence[str], now: Moment) -> Steps[list[FolderPlan]]:
        """Plans that adopt and report, and do nothing else. Raises `Transient`, `Denied`."""
        plans = yield from self.plan(folders, now)
        assert self._view is not None
        for folder, listing, plan in zip(folders, self._listings, plans, strict=True):
            young = [each for each in listing if each.age_s < self._rules.min_age_s]
            at_once = replace(self._rules, min_age_s=0.0)
            planning = partial(plan_folder, folder, young, self._view, self._blocks_of, at_once)
            fresh: FolderPlan = yield from work(planning)
            plan.adopt = merge((plan.adopt, fresh.adopt))
            plan.delete.clear()
            plan.renew.clear()
        return plans

    def _list(self, folders: Sequence[str]) -> Steps[tuple[list[list[Listed]], float]]:
        found = yield from super()._list(folders)
        self._listings = found[0]
        return found


def _outlook(
    folder: str,
    listing: Sequence[Listed],
    plan: FolderPlan,
    risen: View,
    blocks_of: BlocksOf,
    rules: SweepRules,
) -> Outlook:
    """risen: the view with the watermark that is thought of, in force for long."""
    at_last = replace(rules, min_age_s=0.0, grace_s=float("-inf"))
    after = plan_folder(folder, listing, risen, blocks_of, at_last)
    now = {found.key for found in plan.condemned}
    later = {
        why: heap_of(found for found in after.delete[why] if found.key not in now)
        for why in _AT_LAST
    }
    stays = Heap(after.kept_count, after.kept_bytes)
    is_shard = [parse_shard_key(found.key) is not None for found in listing]
    young = heap_of(compress(listing, is_shard))
    for heap in (heap_of(plan.condemned), stays, *later.values()):
        young.count -= heap.count
        young.total_bytes -= heap.total_bytes
    return Outlook(
        plan,
        {why: heap for why, heap in later.items() if heap.count},
        young,
        stays,
        int((plan.adopt.seen_s >= risen.watermark_s).sum()),
        len(after.renew),
        tuple(found.key for found, is_ours in zip(listing, is_shard, strict=True) if not is_ours),
    )
