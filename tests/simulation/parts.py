"""What the processes of the simulated world are made of: the real state machines, or their mutants.

A mutant is a state machine of `core` with one rule switched off, by its name in `faults`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from s3kv.core import keys
from s3kv.core import requests as core
from s3kv.core.compactor import Compactor, CompactorSettings
from s3kv.core.follower import Follower
from s3kv.core.forgetting import Limits
from s3kv.core.inbox import Fold, Inbox
from s3kv.core.indexfile import Header
from s3kv.core.maintenance import Span
from s3kv.core.records import DEAD, RecordSet
from s3kv.core.sequencer import Sequencer, SequencerSettings
from s3kv.core.sweep import FolderPlan, SweepRules
from s3kv.core.sweeper import Sweeper
from tests.fakes.index_store import NS
from tests.simulation.world import World

SHARDS, CHUNKS = 2, 40
GRACE, MIN_AGE, MARGIN, HEAD_TTL = 700, 700, 700, 150
"""Scaled down together; sleeps reach twice the grace."""

SETTINGS = SequencerSettings(
    fold_busy_s=5,
    fold_idle_s=20,
    busy_for_s=100,
    patience_s=40,
    patience_spread_s=40,
    inbox_check_s=200,
    watermark_check_s=100,
    announce_s=MIN_AGE // 2,
)
FOLDERS = ("00", "01", "02", "03")
CHUNK_FPS = tuple(((index % len(FOLDERS)) << 56) + index for index in range(CHUNKS))
"""What the processes call a chunk: its fingerprint."""


def shard(chunk: int, writer: int) -> str:
    return keys.shard_key(NS, chunk.to_bytes(8, "big") + bytes(24), writer, SHARDS)


def fps_of(*chunks: int) -> NDArray[np.uint64]:
    return np.array(chunks, np.uint64)


class CredulousFollower(Follower):
    """Mutant: every 404 is the head (breaks R4)."""

    def _trusts(self, missing: core.Reply) -> bool:
        return True


class TrustingSequencer(Sequencer):
    """Mutant: a success is believed however long it took (breaks R3)."""

    def _believes(self, head_seen_s: float, now_s: float) -> bool:
        return True


class CarelessSweeper(Sweeper):
    """Mutant: what was known once is known for ever (breaks R6)."""

    def _take_view(self, now_s: float) -> core.Steps[float]:
        if self._view is None:
            yield from super()._take_view(now_s)
        self._viewed_s = float("inf")
        return now_s


class HastySweeper(Sweeper):
    """Mutant: condemns by the newest watermark, however young it is (breaks R7)."""

    def _held_watermark(self) -> core.Steps[tuple[int, float]]:
        _, now_s = yield from super()._held_watermark()
        return self._follower.snapshot.watermark_s, now_s


class ForgetfulCompactor(Compactor):
    """Mutant: runs leave out reports of losses (breaks R9)."""

    def _put(
        self, span: Span, newest: Header, parts: Sequence[RecordSet], now: core.Moment
    ) -> core.Steps[None]:
        kept = [part.take(part.flags & DEAD == 0) for part in parts]
        yield from super()._put(span, newest, kept, now)


class ImpatientSweeper(Sweeper):
    """Mutant: takes the youngest objects for garbage (breaks R7)."""

    def plan(self, folders: Sequence[str], now: core.Moment) -> core.Steps[list[FolderPlan]]:
        kept, self._rules = self._rules, replace(self._rules, min_age_s=0)
        plans = yield from super().plan(folders, now)
        self._rules = kept
        return plans


class DeafFollower(Follower):
    """Mutant: does not read the inbox (breaks R6 in a sweeper, and loses a dead writer's last)."""

    def _read_inbox(self, segments: Sequence[core.Listed]) -> core.Steps[None]:
        yield from super()._read_inbox(())


class HastyInbox(Inbox):
    """Mutant: deletes segments before their tick exists (breaks R2)."""

    def read(self, own: RecordSet) -> core.Steps[Fold]:
        fold = yield from super().read(own)
        yield from self.delete(fold.keys)
        return Fold(fold.records, (), fold.has_more)


def new_follower(world: World, faults: frozenset[str]) -> Follower:
    kinds = {"trust_404": CredulousFollower, "deaf_start": DeafFollower}
    kind = next((kinds[fault] for fault in faults if fault in kinds), Follower)
    return kind(NS, HEAD_TTL, world.recent_max)


def new_sequencer(world: World, faults: frozenset[str], settings: SequencerSettings) -> Sequencer:
    writer = world.rng.randbytes(16)
    follower = new_follower(world, faults)
    kind = TrustingSequencer if "trust_success" in faults else Sequencer
    sequencer = kind(follower, writer, settings, random.Random(world.rng.random()))
    if "delete_first" in faults:
        sequencer._inbox = HastyInbox(NS, settings.drop_unreadable_s)
    return sequencer


def new_compactor(sequencer: Sequencer, faults: frozenset[str]) -> Compactor:
    margin_s = 0 if "no_margin" in faults else MARGIN
    settings = CompactorSettings(ticks_min=4, check_s=100, margin_s=margin_s)
    kind = ForgetfulCompactor if "forget_losses" in faults else Compactor
    return kind(sequencer.follower, sequencer.writer, settings)


def new_sweeper(world: World, faults: frozenset[str], limits: Limits, rules: SweepRules) -> Sweeper:
    settings = replace(SETTINGS, limits=limits, watermark_check_s=0)
    sequencer = new_sequencer(world, faults, settings)
    if "deaf_sweep" in faults:
        sequencer.follower = DeafFollower(NS, HEAD_TTL, world.recent_max)
    kinds = {
        "stale_sweep": CarelessSweeper,
        "no_grace": HastySweeper,
        "no_min_age": ImpatientSweeper,
    }
    kind = next((kinds[fault] for fault in faults if fault in kinds), Sweeper)
    return kind(sequencer, lambda size: 16, rules)
