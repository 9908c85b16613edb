"""Walks over a namespace's shards: deletes what is dead for good, adopts what nobody lists.

Rules upheld here (R6, R7): what a folder's plan knows was read, inbox included, before the folder
was listed, and not long before; the watermark by which it condemns was in force for the whole
grace. Deletes are conditional on the upload that was listed. Any number may run at once, beside any
number of engines; each can be stopped anywhere and begun again.

Sans-IO (see `requests`). Owned by one task, with its follower and sequencer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from s3kv.core import keys
from s3kv.core.indexfile import Kind, decode, max_file_bytes
from s3kv.core.records import RECORDS_MAX, RecordSet
from s3kv.core.requests import (
    PARALLEL_MAX,
    Copy,
    DeleteListed,
    Done,
    Get,
    Kept,
    Listed,
    ListPage,
    ListPrefix,
    Moment,
    PageOf,
    Stat,
    Steps,
    ask,
    ask_all,
    listed,
    work,
)
from s3kv.core.sequencer import Sequencer
from s3kv.core.sweep import BlocksOf, FolderPlan, SweepRules, View, plan_folder
from s3kv.errors import Corrupt, Mismatch, NewerFormat, Transient

RELIST_MAX: Final = 8
"""Listings of one batch of folders that took longer than the view is fresh."""

DELETE_MAX: Final = 1_000
HELD_TRIES: Final = 8
CLOCK_STEP_S: Final = 2.0
"""Ages come in whole seconds from most stores."""


@dataclass(slots=True)
class Deeds:
    """Totals since start. renewed: shards; renewed_files: of the log, sets and fields."""

    deleted: int = 0
    deleted_bytes: int = 0
    replaced: int = 0
    adopted: int = 0
    reported_lost: int = 0
    renewed: int = 0
    renewed_files: int = 0


class Sweeper:
    """One pass, or several, over one namespace."""

    def __init__(self, sequencer: Sequencer, blocks_of: BlocksOf, rules: SweepRules) -> None:
        """sequencer: of this process alone; its settings say how far to forget (raising the
        watermark is the sequencer's part: see `raise_watermark`)."""
        self.deeds = Deeds()
        self._sequencer = sequencer
        self._follower = sequencer.follower
        self._blocks_of = blocks_of
        self._rules = rules
        self._view: View | None = None
        self._viewed_s = float("-inf")
        self._held = _Held()

    def open(self) -> Steps[None]:
        """Read the index. Raises `Transient`, `Denied`."""
        yield from self._follower.open()

    def raise_watermark(self, now: Moment) -> Steps[None]:
        """Forget as far as the sequencer's limits say; objects go when the grace is over."""
        yield from self._sequencer.sequence(now)

    @property
    def problem(self) -> str:
        """Why nothing may be swept, or the empty string."""
        snapshot, pins = self._follower.snapshot, self._sequencer.pins
        if pins.problem:
            return pins.problem
        if snapshot.incomplete:
            return "parts of the index cannot be read: what they list would count as garbage"
        return ""

    def plan(self, folders: Sequence[str], now: Moment) -> Steps[list[FolderPlan]]:
        """What a sweep of these folders would do now. Raises `Transient`, `Denied`."""
        now_s = now.monotonic_s
        ttl_s = self._follower.snapshot.head_ttl_s
        for _ in range(RELIST_MAX):
            if self._view is None or now_s - self._viewed_s > ttl_s / 2:
                now_s = yield from self._take_view(now_s)
            view = self._view
            assert view is not None
            listings, now_s = yield from self._list(folders)
            if now_s - self._viewed_s > ttl_s:
                self._view = None  # R6: the live set must be as fresh as the listing
                continue
            plans = []
            for folder, listing in zip(folders, listings, strict=True):
                planning = partial(plan_folder, folder, listing, view, self._blocks_of, self._rules)
                plans.append((yield from work(planning)))
            return plans
        raise Transient("listings take longer than a view of the index is fresh")

    def carry_out(self, plan: FolderPlan, now: Moment) -> Steps[None]:
        """Do what was planned. Raises `Transient`, `Denied`: what is left shows up next time."""
        # Half a grace later others may know better. They cannot before: see `sweep`.
        by_s = self._viewed_s + min(self._rules.grace_s, self._rules.min_age_s) / 2
        yield from self._commit(plan.adopt, now, by_s)
        self.deeds.adopted += len(plan.adopt)
        yield from self._commit(plan.lost, now, float("inf"))
        self.deeds.reported_lost += len(plan.lost)
        condemned = plan.condemned
        for start in range(0, len(condemned), DELETE_MAX):
            yield from self._delete(tuple(condemned[start : start + DELETE_MAX]), by_s)
        self.deeds.renewed += yield from self._renewed(plan.renew)

    def renew_log(self) -> Steps[None]:
        """Copy what is no shard onto itself in time: the log, pinned sets, the namespace's fields.

        A lifecycle rule would take the index with its chunks. Raises `Transient`, `Denied`.
        """
        after_s, ns = self._rules.renew_after_s, self._follower.namespace
        if after_s is None:
            return
        prefixes = (keys.run_prefix(ns), keys.tick_prefix(ns), keys.sets_prefix(ns))
        replies = yield from ask_all([ListPrefix(prefix) for prefix in prefixes])
        fields = yield from ask(Stat(keys.namespace_key(ns)))
        found = [each for reply in replies for each in listed(reply) if _is_kept(each.key)]
        found += [fields.value] if isinstance(fields.value, Listed) else []
        old = [each for each in found if each.age_s >= after_s]
        self.deeds.renewed_files += yield from self._renewed(old)

    def _renewed(self, found: Sequence[Listed]) -> Steps[int]:
        replies = yield from ask_all([Copy(each, each.key) for each in found])
        return sum(isinstance(reply.value, Done) for reply in replies)

    def _delete(self, found: tuple[Listed, ...], by_s: float) -> Steps[None]:
        reply = yield from ask(DeleteListed(found, by_s))
        assert isinstance(reply.value, Kept)
        kept = set(reply.value.keys)
        self.deeds.replaced += len(kept)
        self.deeds.deleted += len(found) - len(kept)
        self.deeds.deleted_bytes += sum(each.size for each in found if each.key not in kept)

    def _commit(self, records: RecordSet, now: Moment, by_s: float) -> Steps[None]:
        for start in range(0, len(records), RECORDS_MAX):
            part = records.take(slice(start, start + RECORDS_MAX))
            yield from self._sequencer.write_segment(part, now, by_s)

    def _take_view(self, now_s: float) -> Steps[float]:
        """Everything that is durable by now, and the watermark that was in force for the grace."""
        self._viewed_s = now_s
        yield from self._follower.resync()
        yield from self._follower.poll()
        pins = self._sequencer.pins
        yield from pins.refresh()
        held_s, now_s = yield from self._held_watermark()
        snapshot = self._follower.snapshot
        whole = yield from work(snapshot.whole)
        held_s = min(held_s, snapshot.watermark_s)
        self._view = View(whole, snapshot.watermark_s, held_s, pins.fps)
        return now_s

    def _held_watermark(self) -> Steps[tuple[int, float]]:
        """The watermark of the newest file that has lain in the log for the whole grace."""
        old, now_s = yield from self._old_files()
        ns = self._follower.namespace
        if self._held.hi > self._follower.snapshot.head:
            self._held = _Held()  # somebody emptied the log and began anew
        for hi, lo, kind in old[:HELD_TRIES]:
            if hi <= self._held.hi:
                break  # watermarks never fall: what was read before is as good
            name = keys.tick_key(ns, hi) if kind is Kind.TICK else keys.run_key(ns, lo, hi)
            reply = yield from ask(Get(name, max_file_bytes(kind)))
            now_s = reply.received_s
            if not isinstance(reply.value, bytes):
                continue
            try:
                header, _ = yield from work(partial(decode, reply.value, ns, kind, lo, hi))
            except NewerFormat:
                raise
            except (Corrupt, Mismatch):
                continue
            self._held = _Held(hi, header.watermark_s)
            break
        return self._held.watermark_s, now_s

    def _old_files(self) -> Steps[tuple[list[tuple[int, int, Kind]], float]]:
        """(hi, lo, kind) of the files older than the grace, newest first; and when that was so."""
        ns = self._follower.namespace
        replies = yield from ask_all(
            [ListPrefix(keys.tick_prefix(ns)), ListPrefix(keys.run_prefix(ns))]
        )
        grace_s = self._rules.grace_s + CLOCK_STEP_S
        old: list[tuple[int, int, Kind]] = []
        for found in (*listed(replies[0]), *listed(replies[1])):
            tick, run = keys.parse_tick_key(found.key), keys.parse_run_key(found.key)
            if found.age_s < grace_s:
                continue
            if tick is not None:
                old.append((tick.tick, tick.tick, Kind.TICK))
            elif run is not None:
                old.append((run.hi, run.lo, Kind.RUN))
        # Ticks before runs of the same end: they are small.
        old.sort(key=lambda file: (file[0], file[2] is Kind.TICK), reverse=True)
        return old, replies[-1].received_s

    def _list(self, folders: Sequence[str]) -> Steps[tuple[list[list[Listed]], float]]:
        """The folders' objects, page by page, side by side; and when the last page came."""
        assert len(folders) <= PARALLEL_MAX
        ns = self._follower.namespace
        found: list[list[Listed]] = [[] for _ in folders]
        asked = {i: ListPage(keys.data_prefix(ns, folder)) for i, folder in enumerate(folders)}
        now_s = float("-inf")
        while asked:
            replies = yield from ask_all(list(asked.values()))
            now_s = max(reply.received_s for reply in replies)
            for i, reply in zip(list(asked), replies, strict=True):
                page = reply.value
                assert isinstance(page, PageOf)
                found[i] += page.found
                if page.token is None:
                    del asked[i]
                else:
                    asked[i] = replace(asked[i], token=page.token)
        return found, now_s


def _is_kept(key: str) -> bool:
    """Whether a name is exactly one of ours in the log or among the sets."""
    parsers = (keys.parse_run_key, keys.parse_tick_key, keys.parse_set_key)
    return any(parse(key) is not None for parse in parsers)


@dataclass(frozen=True, slots=True)
class _Held:
    """The newest file that was old enough when it was read, and its watermark."""

    hi: int = 0
    watermark_s: int = 0
