"""The scheduler side: lookups from memory, load and save plans, bookkeeping of what came back.

Everything here runs on the engine's scheduling thread and returns at once; the bucket is reached
only through the loop thread. A promise to the engine always ends in exactly one load or abandoned
load in the same step's plan.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from s3kv.config import Settings
from s3kv.connector.agreement import Agreement
from s3kv.connector.archive import touch_s
from s3kv.connector.identity import EngineFacts, none_hash
from s3kv.connector.loads import LoadBook
from s3kv.connector.lookup_desk import LookupDesk
from s3kv.connector.messages import (
    EMPTY_PLAN,
    LayoutHandshake,
    NamespaceTicket,
    Plan,
    Report,
    SaveJob,
)
from s3kv.connector.offers import Offers
from s3kv.connector.pins import PinBoard
from s3kv.connector.saves import SaveContext, SavePlanner, address_of
from s3kv.connector.scheduler_archive import SchedulerArchive, SchedulerClients
from s3kv.connector.tracked import ChainGeometry, Promise, RequestTotals, Tracked, track
from s3kv.core.chunking import chunk_blocks_for
from s3kv.core.ids import BlockHash
from s3kv.core.lookup import Match, Miss, Unknown
from s3kv.core.reasons import MissReason
from s3kv.runtime.clock import Clock

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = logging.getLogger(__name__)

AGREE_WAIT_S = 5.0
"""Start-up may wait this long for the weights digest; after that lookups miss until it is there."""
OPEN_WAIT_S = 3.0
"""Start-up may wait this long for the index; after that the bucket is probed until it is open."""


class SchedulerSide:
    """State of one engine's scheduler side. Owned by the scheduling thread."""

    def __init__(self, vllm_config: VllmConfig, facts: EngineFacts, settings: Settings) -> None:
        """Start to read weights; the bucket is first spoken to when the namespace is agreed."""
        self._facts = facts
        self._settings = settings
        self._clock = Clock()
        self._agreement = Agreement(vllm_config, facts, settings)
        self._chain_geometry = ChainGeometry(
            block_tokens=facts.block_tokens,
            hashes_per_block=facts.hashes_per_block,
            chunk_blocks=chunk_blocks_for(settings.chunk_tokens, facts.block_tokens),
            min_tail_blocks=chunk_blocks_for(settings.min_tail_tokens, facts.block_tokens),
        )
        self._clients = SchedulerClients(facts.world_size, settings, self._clock)
        self._archive: SchedulerArchive | None = None
        self._desk: LookupDesk | None = None
        self._acknowledged = False
        self._saves: SavePlanner | None = None
        self._loads = LoadBook()
        self._offers = Offers(facts, settings, self._loads)
        self._tracked: dict[str, Tracked] = {}
        self._totals = RequestTotals()
        self._postponed: list[Report] = []
        self._touched: list[tuple[BlockHash, int]] = []
        self._forgotten: list[tuple[BlockHash, int]] = []
        self._read_only = "" if settings.save != "nothing" else "save is off"

    # ------------------------------------------------------------- start-up
    def bind_pool(self, pool: BlockPool) -> None:
        """The engine's block pool, in which save sources are pinned."""
        self._saves = SavePlanner(PinBoard(pool, self._facts.world_size))

    def hear_layouts(self, handshakes: Iterable[LayoutHandshake], wait_s: float = 0.0) -> None:
        """Layouts of the workers; opens the archive when that completes the agreement."""
        self._agreement.hear(handshakes)
        if self._agreement.refusal:
            self._leave_archive()
        self._open_archive(wait_s)

    def hear_at_start(self, handshakes: Iterable[LayoutHandshake]) -> None:
        """As `hear_layouts`; no request is there yet, so start-up may wait a moment.

        The first prompt after a restart is the one that is surely archived: it should not miss
        because the index is being read.
        """
        self.hear_layouts(handshakes, AGREE_WAIT_S)
        if self._archive is not None:
            self._archive.wait_opened(OPEN_WAIT_S)

    def _open_archive(self, wait_s: float = 0.0) -> None:
        if self._archive is not None:
            return
        agreed = self._agreement.result(wait_s)
        if agreed is None:
            return
        namespace, geometry = agreed
        self._archive = self._clients.open(namespace, geometry)
        self._desk = LookupDesk(
            self._archive, self._settings.probe, self._settings.lookup_deadline_s
        )
        self._acknowledged = False

    # -------------------------------------------------------------- lookups
    def arrived(self, request: Request) -> None:
        """A request came in: remember it and start the lookup while it queues."""
        if self._facts.refusal:  # its hashes may be of a kind that we do not read
            return
        tracked = self._track(request)
        if self._desk is not None and not self._refusal_of(tracked):
            self._desk.look_up(tracked, 0, self._clock.monotonic_s())

    def _track(self, request: Request) -> Tracked:
        tracked = self._tracked.get(request.request_id)
        if tracked is None:
            tracked = track(request, self._chain_geometry, self._clock.monotonic_s())
            self._tracked[request.request_id] = tracked
        return tracked

    def _refusal_of(self, tracked: Tracked) -> MissReason | None:
        """Why nothing is loaded for this request."""
        reason = self._offers.refusal_of(tracked)
        if reason:
            return reason
        self._open_archive()
        if self._archive is None or self._desk is None:
            return MissReason.NO_NAMESPACE
        return MissReason.REFUSED if self._archive.refused else None

    def matched(self, request: Request, local_tokens: int) -> tuple[int | None, bool]:
        """Tokens beyond `local_tokens` that can be loaded; (None, False) = ask again."""
        if self._facts.refusal:
            return 0, False
        tracked = self._track(request)
        tracked.promise = None
        reason = self._refusal_of(tracked)
        if reason or self._desk is None:
            return self._miss(tracked, reason or MissReason.NO_NAMESPACE)
        local_blocks = local_tokens // self._facts.block_tokens
        now_s = self._clock.monotonic_s()
        found = self._desk.look_up(tracked, local_blocks, now_s)
        match found:
            case Unknown():
                return None, False
            case Miss(reason=reason):
                return self._miss(tracked, reason)
            case Match():
                return self._offer(tracked, found, local_blocks, now_s)

    def _miss(self, tracked: Tracked, reason: MissReason) -> tuple[int, bool]:
        # What the look-up after a failed load says explains nothing.
        if tracked.miss_reason is not MissReason.LOAD_FAILED:
            tracked.miss_reason = reason
        return 0, False

    def _offer(
        self, tracked: Tracked, found: Match, local_blocks: int, now_s: float
    ) -> tuple[int | None, bool]:
        offered = self._offers.offer(tracked, found, local_blocks, now_s)
        match offered:
            case Unknown():
                return None, False
            case Miss(reason=reason):
                return self._miss(tracked, reason)
            case Promise():
                tracked.promise = offered
                return offered.block_count * self._facts.block_tokens, True

    # ----------------------------------------------------------------- plans
    def allocated(self, request: Request, blocks: KVCacheBlocks, external_tokens: int) -> None:
        """Blocks were allocated. Every admission comes here, also those without a hit."""
        if self._facts.refusal:
            return
        tracked = self._track(request)
        self._touch(tracked)
        if external_tokens <= 0:
            return
        promise, tracked.promise = tracked.promise, None
        tracked.probe = None  # an answer of now is no answer after a preemption or a reset
        if (
            promise is None
            or self._archive is None
            or promise.block_count * self._facts.block_tokens != external_tokens
        ):
            self.abandon(request, blocks, external_tokens)
            return
        table = blocks.get_block_ids()[0]
        block_ids = tuple(table[promise.local_blocks : promise.end_block])
        chain, root = tracked.chain(), none_hash()
        addresses = {c.chunk_hash: address_of(chain, c, root) for c in promise.chunks}
        self._loads.begin(tracked, promise, block_ids, addresses, self._archive.namespace.id)
        tracked.attempts += 1

    def abandon(self, request: Request, blocks: KVCacheBlocks, external_tokens: int) -> None:
        """A promise cannot be kept: the load is reported as failed in its first step."""
        # An attempt like any other: what fails every time must not be offered for ever.
        tracked = self._tracked.get(request.request_id)
        if tracked is not None:
            tracked.attempts += 1
        # An asynchronous hit is allocated without further blocks: the last ones are the load's.
        count = -(-external_tokens // max(1, self._facts.block_tokens))
        table = blocks.get_block_ids()[0]
        self._loads.abandon(request.request_id, table[max(0, len(table) - count) :])

    def _touch(self, tracked: Tracked) -> None:
        """Refresh the last use of archived chunks of this prompt, hit or held locally."""
        if self._desk is not None:
            self._touched += self._desk.stale_chunks(
                tracked.save_chunks,
                self._clock.monotonic_s(),
                self._clock.unix_s(),
                touch_s(self._settings),
            )

    def plan_step(self, output: SchedulerOutput) -> Plan:
        """Everything that the workers shall do in this step."""
        self._open_archive()
        saves = self._plan_saves(output)
        return self._ship(saves)

    def plan_fallback(self) -> Plan:
        """The plan after an exception: only what the engine already waits for."""
        return self._ship(())

    def _plan_saves(self, output: SchedulerOutput) -> tuple[SaveJob, ...]:
        archive, desk, saves = self._archive, self._desk, self._saves
        if archive is None or desk is None or saves is None or not self._facts.saves:
            return ()
        if self._read_only or archive.refused or not output.num_scheduled_tokens:
            return ()
        if archive.snapshot.pause.saves:
            return ()
        now_s = self._clock.monotonic_s()
        context = SaveContext(
            now_s, archive.namespace.id, none_hash(), desk.listed(now_s), desk.is_lost
        )
        return saves.plan(output, self._tracked, context)

    def _ship(self, saves: tuple[SaveJob, ...]) -> Plan:
        loads, abandoned, ended = self._loads.ship()
        ticket = None
        if self._archive is not None and not self._acknowledged:
            ticket = NamespaceTicket(self._archive.namespace.document)
        touched, self._touched = tuple(self._touched), []
        forgotten, self._forgotten = tuple(self._forgotten), []
        if not (loads or abandoned or ended or saves or touched or forgotten or ticket):
            return EMPTY_PLAN
        return Plan(ticket, loads, abandoned, saves, touched, forgotten, ended)

    # --------------------------------------------------------------- results
    def unpin(self, output: KVConnectorOutput) -> None:
        """Copies that the workers completed: their source blocks are free."""
        report = output.kv_connector_worker_meta
        if isinstance(report, Report):
            self._postponed.append(report)
        while self._postponed and self._saves is not None:
            self._saves.unpin(self._postponed[0])
            self._postponed.pop(0)

    def postpone(self, output: KVConnectorOutput) -> None:
        """After an exception in `unpin`: the same report is looked at again after the next step."""
        report = output.kv_connector_worker_meta
        if isinstance(report, Report) and report not in self._postponed:
            self._postponed.append(report)

    def absorb(self, output: KVConnectorOutput) -> None:
        """What else the workers reported after a step."""
        report = output.kv_connector_worker_meta
        load_s = report.load_s if isinstance(report, Report) else {}
        for request_id in output.finished_recving or ():
            arrived, block_count = self._loads.reported(request_id, output.invalid_block_ids)
            tracked = self._tracked.get(request_id)
            if tracked is None:
                continue
            tracked.external_tokens += arrived * self._facts.block_tokens
            tracked.load_s += load_s.get(request_id, 0.0)
            if arrived < block_count:
                tracked.miss_reason = MissReason.LOAD_FAILED
        if isinstance(report, Report):
            self._absorb_report(report)

    def forget_ended(self, output: KVConnectorOutput) -> None:
        """After an exception in `absorb`: what has ended must not count as under way for ever."""
        for request_id in output.finished_recving or ():
            self._loads.reported(request_id, ())
        report = output.kv_connector_worker_meta
        if isinstance(report, Report) and self._saves is not None:
            self._saves.absorb(report)

    def _absorb_report(self, report: Report) -> None:
        if report.layouts:
            self.hear_layouts(report.layouts)
        archive, desk = self._archive, self._desk
        if report.read_only and not self._read_only:
            self._read_only = report.read_only
            logger.warning("s3kv: nothing is saved: %s", report.read_only)
        durable = self._saves.absorb(report) if self._saves is not None else []
        if archive is None or desk is None:
            return
        opened = report.opened.get(archive.namespace.id, 0)
        self._acknowledged = self._acknowledged or opened >= self._facts.world_size
        archive.note(durable, dead=False)
        for chunk_hash, _ in durable:
            desk.welcome(chunk_hash)
        now_s = self._clock.monotonic_s()
        failed = [f for f in report.failed if f.namespace == archive.namespace.id]
        for one in failed:
            desk.avoid(one.chunk_hash, now_s, lost=one.lost)
        lost = [(f.chunk_hash, f.block_count) for f in failed if f.lost]
        archive.note(lost, dead=True)
        self._forgotten.extend(lost)

    def finished(self, request: Request) -> dict[str, object] | None:
        """A request ended; returns the report to its client."""
        tracked = self._tracked.get(request.request_id)
        self.forget(request)
        if tracked is None:
            return None
        self._totals.add(tracked)
        return tracked.client_report()

    def forget(self, request: Request) -> None:
        """A request is gone; a load of it that still runs may stop."""
        self._tracked.pop(request.request_id, None)
        self._loads.end(request.request_id)

    @property
    def awaits_copies(self) -> bool:
        """Whether saves have pinned blocks whose copy will be reported in a moment."""
        return self._saves is not None and self._saves.awaits_copies(self._clock.monotonic_s())

    def reset(self) -> None:
        """Weights may have changed, so a new epoch begins; the bucket is left alone."""
        self._leave_archive()
        self._agreement.new_epoch()
        if self._saves is not None:
            self._saves.forget_namespace()
        self._open_archive()

    def turn_off(self) -> None:
        """After a reset that failed: whose bytes these are is no longer certain (FAULTS 6)."""
        self._agreement.suspect()
        self._leave_archive()

    def _leave_archive(self) -> None:
        archive, self._archive, self._desk = self._archive, None, None
        if archive is not None:
            archive.close()

    def shutdown(self) -> None:
        """Stop following and close the store, within a bound."""
        if self._archive is not None:
            self._archive.close()
        self._clients.close()
        self._totals.log()
