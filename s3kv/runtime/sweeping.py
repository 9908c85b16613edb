"""Carries one pass of a sweep through a namespace: looks, deletes, or writes the index anew.

Drives `core.survey` and `core.budget`, which decide; prints nothing. Each pass can be stopped
anywhere and begun again, and any number may run at once, beside any number of engines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from s3kv.bucket.base import ObjectStore
from s3kv.core import keys
from s3kv.core.budget import Share, common_cutoff, share_of
from s3kv.core.forgetting import Limits
from s3kv.core.ids import NamespaceId
from s3kv.core.requests import PARALLEL_MAX
from s3kv.core.sequencer import SequencerSettings
from s3kv.core.survey import Heap, Outlook, Surveyor, heap_of
from s3kv.core.sweep import FOLDERS, BlocksOf, FolderPlan, SweepRules
from s3kv.core.watermark import would_die
from s3kv.errors import Closed, Denied, S3KVError, Transient
from s3kv.runtime.clock import Clock
from s3kv.runtime.index_tool import REQUEST_TIMEOUT_S, IndexTool
from s3kv.runtime.leftovers import (
    abort_uploads,
    delete_quarantined,
    old_quarantined,
    old_uploads,
)

Deed: TypeAlias = Literal["look", "sweep", "rebuild"]
"""look: change nothing; sweep: delete, adopt, renew; rebuild: adopt and report lost, no more."""

BATCH_OBJECTS: Final = 100_000
"""Objects listed before anything is done about them: bounds memory, and how long a LIST takes."""

RAISES_MAX: Final = 64
"""Ticks in one pass that only call pinned chunks used: 4 million of them."""

FOREIGN_NAMED_MAX: Final = 20

_PARTS: Final = ("data/", "idx/", "sets/", "quarantine/")


@dataclass(frozen=True, slots=True)
class Subject:
    """A namespace that may be swept: its layout is known.

    blocks_of: of the size of writer 0's shard; bytes_per_block: of all writers together.
    """

    namespace: NamespaceId
    blocks_of: BlocksOf
    bytes_per_block: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a pass is to do.

    cutoff_s: forget what was last used before this Unix second, 0 for nothing; upload_age_s,
    quarantine_age_s: when an unfinished upload is given up and a quarantined shard deleted.
    """

    deed: Deed = "look"
    rules: SweepRules = field(default_factory=SweepRules)
    cutoff_s: int = 0
    upload_age_s: float = 86_400.0
    quarantine_age_s: float = 30 * 86_400.0


@dataclass(slots=True)
class NamespaceReport:
    """What a pass saw and did.

    problem: why the namespace was left alone, or left half-way; has_failed: the latter; limits:
    what could not be done beside that; remarks: what this store does not tell. now: what is
    condemned, by reason; later: what goes when the grace is over; deleted: what is gone. uploads:
    given up, sizes unknown. adopted, reported_lost: chunks; renewed, replaced: objects (replaced
    ones were uploaded anew before they could be deleted, and stay); renewed_files: of log and sets.
    index_incomplete, pins_unread: parts of it, or a pinned set, cannot be read.
    """

    namespace: NamespaceId
    problem: str = ""
    has_failed: bool = False
    limits: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    folder_count: int = 0
    skipped_folder_count: int = 0
    now: dict[str, Heap] = field(default_factory=dict)
    later: dict[str, Heap] = field(default_factory=dict)
    young: Heap = field(default_factory=Heap)
    stays: Heap = field(default_factory=Heap)
    deleted: Heap = field(default_factory=Heap)
    upload_count: int = 0
    adopted: int = 0
    reported_lost: int = 0
    renewed: int = 0
    renewed_files: int = 0
    replaced: int = 0
    foreign_count: int = 0
    foreign_names: list[str] = field(default_factory=list)
    index_incomplete: bool = False
    pins_unread: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether everything was looked at."""
        return not self.problem and not self.limits

    def note(self, outlook: Outlook) -> None:
        """One folder that was looked at."""
        for why, objects in outlook.plan.delete.items():
            _heap(self.now, why.value).add(heap_of(objects))
        for why, heap in outlook.later.items():
            _heap(self.later, why.value).add(heap)
        self.young.add(outlook.young)
        self.stays.add(outlook.stays)
        self.foreign_count += len(outlook.foreign)
        self.name_foreign(outlook.foreign)

    def name_foreign(self, names: Collection[str]) -> None:
        """Names, or folders, that are not ours; the first few are kept."""
        room = FOREIGN_NAMED_MAX - len(self.foreign_names)
        self.foreign_names += sorted(names)[: max(0, room)]


def _heap(heaps: dict[str, Heap], name: str) -> Heap:
    return heaps.setdefault(name, Heap())


OnFolders: TypeAlias = Callable[[Sequence[str]], None]
"""Told after each batch which folders are done with."""


async def choose_cutoff(
    store: ObjectStore,
    subjects: Sequence[Subject],
    clock: Clock,
    ttl_s: int | None,
    max_bytes: int | None,
) -> int:
    """How far the namespaces together are to forget: a Unix second, 0 for not at all.

    Reads every index if there is a size limit. Raises `S3KVError`.
    """
    cutoff_s = 0 if ttl_s is None else max(0, int(clock.unix_s()) - ttl_s)
    if max_bytes is None:
        return cutoff_s
    shares = [await read_share(store, subject, clock) for subject in subjects]
    fitting_s = common_cutoff(shares, max_bytes)
    # A use from a fast clock must not drag the cutoff over what others store right now.
    return max(cutoff_s, min(fitting_s, int(clock.unix_s())))


async def read_share(store: ObjectStore, subject: Subject, clock: Clock) -> Share:
    """What a namespace takes of a size limit. Raises `S3KVError`.

    What nobody may forget, since index or pinned sets cannot be read whole, takes its room.
    """
    tool = IndexTool(store, subject.namespace, clock)
    await tool.open()
    await tool.perform(tool.sequencer.pins.refresh())
    live = tool.snapshot.live()
    may_forget = tool.sequencer.pins.complete and not tool.snapshot.incomplete
    pinned = tool.sequencer.pins.fps if may_forget else live.fps
    return share_of(live, pinned, subject.bytes_per_block)


async def sweep_namespace(
    store: ObjectStore,
    subject: Subject,
    clock: Clock,
    orders: Orders,
    *,
    done: Collection[str] = (),
    on_folders: OnFolders = lambda folders: None,
) -> NamespaceReport:
    """One pass. done: folders to leave out, from a pass that was stopped.

    Failures are in the report; raises `Closed` only.
    """
    walk = _Pass(store, subject, clock, orders)
    try:
        await walk.run([each for each in FOLDERS if each not in done], on_folders)
    except Closed:
        raise
    except S3KVError as error:
        walk.report.problem = str(error)
        walk.report.has_failed = True
    walk.count_deeds()
    walk.report.skipped_folder_count = len(FOLDERS) - len([f for f in FOLDERS if f not in done])
    return walk.report


class _Pass:
    """Owned by one task."""

    def __init__(self, store: ObjectStore, subject: Subject, clock: Clock, orders: Orders) -> None:
        self.report = NamespaceReport(subject.namespace)
        self._store = store
        self._orders = orders
        limits = Limits()
        if orders.deed == "sweep" and orders.cutoff_s:
            limits = Limits(ttl_s=max(0, int(clock.unix_s()) - orders.cutoff_s))
        settings = SequencerSettings(limits=limits, watermark_check_s=0.0)
        self._tool = IndexTool(store, subject.namespace, clock, settings)
        self._sweeper = Surveyor(self._tool.sequencer, subject.blocks_of, orders.rules)

    async def run(self, folders: Sequence[str], on_folders: OnFolders) -> None:
        """Everything in its order. Raises `S3KVError`."""
        await self._tool.perform(self._sweeper.open())
        if self._is_stopped():
            return
        await self._raise_watermark()
        await self._walk(folders, on_folders)
        if self.report.problem:
            return
        if self._orders.deed == "sweep":
            await self._tool.perform(self._sweeper.renew_log())
        self.report.name_foreign(await self._foreign_folders())
        if self._orders.deed != "rebuild":
            await self._clear_uploads()
            await self._clear_quarantine()

    def count_deeds(self) -> None:
        """What was really done."""
        deeds, report = self._sweeper.deeds, self.report
        report.deleted.add(Heap(deeds.deleted, deeds.deleted_bytes))
        report.replaced += deeds.replaced
        report.index_incomplete = self._tool.snapshot.incomplete
        report.pins_unread = bool(self._tool.sequencer.pins.problem)
        if self._orders.deed != "look":
            report.adopted, report.reported_lost = deeds.adopted, deeds.reported_lost
            report.renewed, report.renewed_files = deeds.renewed, deeds.renewed_files

    def _is_stopped(self) -> bool:
        """Whether nothing may be swept; then the report says why."""
        if self._orders.deed == "rebuild":
            return False  # what is adopted is there, whatever else the index says
        self.report.problem = self._sweeper.problem
        return bool(self.report.problem)

    async def _raise_watermark(self) -> None:
        if self._orders.deed != "sweep" or not self._orders.cutoff_s:
            return
        for _ in range(RAISES_MAX):
            await self._tool.perform(self._sweeper.raise_watermark(self._tool.now()))
            is_risen = not would_die(self._tool.snapshot, self._orders.cutoff_s)
            if is_risen or self._sweeper.problem:
                return

    async def _walk(self, folders: Sequence[str], on_folders: OnFolders) -> None:
        at, width = 0, 1
        while at < len(folders):
            batch = folders[at : at + width]
            try:
                plans = await self._look(batch)
            except Transient:
                if width == 1:
                    raise
                width //= 2
                continue
            if self._is_stopped():
                return
            for plan in plans:
                await self._act(plan)
            self.report.folder_count += len(batch)
            at += len(batch)
            width = _width(max(map(_object_count, plans)))
            on_folders(batch)

    async def _look(self, folders: Sequence[str]) -> list[FolderPlan]:
        now, orders = self._tool.now(), self._orders
        if orders.deed == "rebuild":
            return await self._tool.perform(self._sweeper.plan_rebuild(folders, now))
        surveying = self._sweeper.survey(folders, orders.cutoff_s, now)
        outlooks = await self._tool.perform(surveying)
        for outlook in outlooks:
            self.report.note(outlook)
            if orders.deed == "look":
                self.report.adopted += outlook.adopted
                self.report.renewed += outlook.renewed
                self.report.reported_lost += len(outlook.plan.lost)
        return [outlook.plan for outlook in outlooks]

    async def _act(self, plan: FolderPlan) -> None:
        if self._orders.deed != "look":
            await self._tool.perform(self._sweeper.carry_out(plan, self._tool.now()))

    async def _foreign_folders(self) -> list[str]:
        """Folders of the namespace that are none of ours."""
        top = f"{self.report.namespace}/"
        data = keys.data_prefix(self.report.namespace)
        ours = {top + part for part in _PARTS} | {f"{data}{folder}/" for folder in FOLDERS}
        found = [
            name
            for prefix in (top, data)
            for name in await self._store.list_prefixes(prefix, timeout_s=REQUEST_TIMEOUT_S)
        ]
        return [name for name in found if name not in ours]

    async def _clear_uploads(self) -> None:
        ns, age_s = self.report.namespace, self._orders.upload_age_s
        try:
            uploads = await old_uploads(self._store, ns, age_s, REQUEST_TIMEOUT_S)
        except Denied as error:  # many stores have no such listing: a lifecycle rule must do
            self.report.remarks.append(f"unfinished uploads cannot be listed: {error}")
            return
        try:
            if self._orders.deed == "sweep":
                await abort_uploads(self._store, uploads, REQUEST_TIMEOUT_S)
        except Denied as error:
            self.report.limits.append(f"unfinished uploads: {error}")
            return
        self.report.upload_count = len(uploads)

    async def _clear_quarantine(self) -> None:
        ns, age_s = self.report.namespace, self._orders.quarantine_age_s
        async for found in old_quarantined(self._store, ns, age_s, REQUEST_TIMEOUT_S):
            condemned = Heap(len(found), sum(each.size for each in found))
            _heap(self.report.now, "quarantine").add(condemned)
            if self._orders.deed == "sweep":
                kept = await delete_quarantined(self._store, found, REQUEST_TIMEOUT_S)
                gone = [each.size for each in found if each.key not in kept]
                self.report.deleted.add(Heap(len(gone), sum(gone)))
                self.report.replaced += len(kept)


def _object_count(plan: FolderPlan) -> int:
    return plan.kept_count + plan.waiting_count + plan.foreign_count + len(plan.condemned)


def _width(object_count: int) -> int:
    """How many folders of this size to list at once."""
    return max(1, min(PARALLEL_MAX, BATCH_OBJECTS // max(1, object_count)))
