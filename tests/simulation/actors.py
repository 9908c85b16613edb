"""The processes of the simulated world. They drive the real `Follower` and `Sequencer`.

Engine: stores and loads chunks as an engine does, keeping the rules that are its own (R1, R2, R5,
R8). Compactor and sweeper stand for what docs/adr/0002 plans: full runs with clean-up, and deletion
of dead shards, so that the index rules are tested against their effects. Each rule can be switched
off by its name in `faults`.
"""

from __future__ import annotations

import random
from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from s3kv.core import keys
from s3kv.core import requests as core
from s3kv.core.follower import Follower
from s3kv.core.inbox import Fold, Inbox
from s3kv.core.indexfile import Header, Kind, encode
from s3kv.core.records import DEAD, RecordSet, merge, overlay
from s3kv.core.sequencer import Sequencer, SequencerSettings
from s3kv.errors import Transient
from tests.fakes.index_store import NS
from tests.simulation.world import DeleteIf, Nop, Process, Wish, World

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
)


def shard(chunk: int, writer: int) -> str:
    return f"data/{chunk}/{writer}"


def fps_of(*chunks: int) -> NDArray[np.uint64]:
    return np.array(chunks, np.uint64)


class CredulousFollower(Follower):
    """Mutant: every 404 is the head (breaks R4)."""

    def _trusts(self, missing: core.Reply) -> bool:
        return True


class HastyInbox(Inbox):
    """Mutant: deletes segments before their tick exists (breaks R2)."""

    def read(self, own: RecordSet) -> core.Steps[Fold]:
        fold = yield from super().read(own)
        yield from self.delete(fold.keys)
        return Fold(fold.records, (), fold.has_more)


def new_follower(faults: frozenset[str]) -> Follower:
    return (CredulousFollower if "trust_404" in faults else Follower)(NS, HEAD_TTL)


def new_sequencer(world: World, faults: frozenset[str], settings: SequencerSettings) -> Sequencer:
    writer = world.rng.randbytes(16)
    follower = new_follower(faults)
    sequencer = Sequencer(follower, writer, settings, random.Random(world.rng.random()))
    if "delete_first" in faults:
        sequencer._inbox = HastyInbox(NS, settings.drop_unreadable_s)
    return sequencer


class Engine:
    """One process that stores, loads, touches, reports, commits and sequences."""

    def __init__(self, world: World, faults: frozenset[str]) -> None:
        self.world = world
        self.faults = faults
        self.sequencer = new_sequencer(world, faults, SETTINGS)
        self.follower = self.sequencer.follower
        self.pending: list[tuple[RecordSet, float]] = []
        self.uncertain: set[int] = set()
        """Chunks of which this process knows, or may have written, what nobody promised."""

    def life(self) -> Process:
        yield from self.follower.open()
        while True:
            try:
                yield from self._do_something()
            except Transient:
                self.world.counts["gave_up"] += 1
                yield Nop()

    def _do_something(self) -> Process:
        now_s = self.world.now_s
        choice, chunk = self.world.rng.random(), self.world.rng.randrange(CHUNKS)
        if now_s >= self.sequencer.due(now_s) and choice < 0.3:
            yield from self.sequencer.act(self.world.moment())
        elif choice < 0.5:
            yield from self.follower.poll()
        elif choice < 0.7:
            yield from self._store(chunk)
        elif choice < 0.9:
            yield from self._load(chunk)
        elif self.pending:
            yield from self._flush()
        else:
            yield Nop()

    def _store(self, chunk: int) -> Process:
        if self.follower.snapshot.present(fps_of(chunk))[0]:
            return
        first_s = self.world.now_s
        if "announce_first" in self.faults:
            yield from self._commit(chunk, first_s)
        for writer in range(SHARDS):
            yield from core.ask(core.Put(shard(chunk, writer), f"{chunk}/{writer}".encode()))
        if "announce_first" in self.faults:
            return
        if self._is_late(first_s):
            self.world.counts["too_late"] += 1
            return
        try:
            yield from self._commit(chunk, first_s)
        finally:
            self.world.counts["stored"] += 1
        yield from self._look_after(chunk, first_s)

    def _look_after(self, chunk: int, first_s: float) -> Process:
        """A slow announcement may have come after the sweep: check what it promised (R5)."""
        if not self._is_late(first_s):
            return
        self.world.counts["rechecked"] += 1
        for writer in range(SHARDS):
            reply = yield from core.ask(core.Stat(shard(chunk, writer)))
            if isinstance(reply.value, core.Absent):
                yield from self._report_dead(chunk)
                return

    def _is_late(self, first_s: float) -> bool:
        return "no_deadline" not in self.faults and self.world.now_s - first_s > MIN_AGE // 2

    def _commit(self, chunk: int, first_s: float) -> Process:
        blocks = np.array([16], np.uint16)
        snapshot = self.follower.snapshot
        records = snapshot.live_records(fps_of(chunk), blocks, self.world.now_s)
        by_s = float("inf") if "no_deadline" in self.faults else first_s + MIN_AGE // 2
        self.pending.append((records, by_s))
        yield from self._flush()

    def _report_dead(self, chunk: int) -> Process:
        records = self.follower.snapshot.dead_records(fps_of(chunk), self.world.now_s)
        self.follower.note(records)
        self.uncertain.add(chunk)
        self.pending.append((records, float("inf")))
        yield from self._flush()

    def _flush(self) -> Process:
        self.pending = [each for each in self.pending if each[1] >= self.world.now_s]
        sent = list(self.pending)
        records = merge([each[0] for each in sent])
        self._check_durable(records)
        self.uncertain.update(int(fp) for fp in records.fps)
        by_s = min((each[1] for each in sent), default=float("inf"))
        yield from self.sequencer.flush(records, self.world.moment(), by_s)
        self.pending = [each for each in self.pending if each not in sent]
        self.uncertain.difference_update(int(fp) for fp in records.fps)
        self.world.published.append(records)

    def _check_durable(self, records: RecordSet) -> None:
        for fp, flags in zip(records.fps.tolist(), records.flags.tolist(), strict=True):
            there = [shard(fp, writer) in self.world.store.objects for writer in range(SHARDS)]
            if not flags & int(DEAD) and not all(there):
                self.world.errors.append(f"I1 announced chunk {fp} without its shards")

    def _load(self, chunk: int) -> Process:
        if not self.follower.snapshot.is_fresh(self.world.now_s):
            yield from self.follower.poll()
        if not self.follower.snapshot.present(fps_of(chunk))[0]:
            return
        began_s = self.world.now_s
        self.world.counts["loads"] += 1
        for writer in range(SHARDS):
            reply = yield from core.ask(core.Get(shard(chunk, writer), 100))
            if isinstance(reply.value, core.Absent):
                self.world.counts["load_errors"] += 1
                yield from self._report_dead(chunk)
                return
        if self.world.now_s - began_s <= HEAD_TTL:  # else too slow to vouch for it (R8)
            yield from self._commit(chunk, began_s)
            yield from self._look_after(chunk, began_s)


def compactor(world: World, faults: frozenset[str]) -> Process:
    """Writes a run over everything, and deletes what older runs repeat."""
    for _ in range(world.rng.randrange(10, 60)):
        yield Nop()
    follower = new_follower(faults)
    yield from follower.open()
    snapshot = follower.snapshot
    head = snapshot.head
    if not head:
        return
    whole = overlay(snapshot.base, snapshot.recent)
    header = Header(
        kind=Kind.RUN,
        namespace=NS,
        lo=1,
        hi=head,
        writer=bytes(16),
        watermark_s=snapshot.watermark_s,
        interval_ms=follower.interval_ms,
        created_s=0,
        pause_bits=follower.pause_bits,
    )
    body = encode(header, whole.take(whole.seen_s >= snapshot.watermark_s))
    yield from core.ask(core.Put(keys.run_key(NS, 1, head), body))
    yield from _clean_up(0 if "no_margin" in faults else MARGIN, head, world)


def _clean_up(margin_s: float, head: int, world: World) -> Process:
    reply = yield from core.ask(core.ListPrefix(keys.run_prefix(NS)))
    runs = [(keys.parse_run_key(found.key), found) for found in core.listed(reply)]
    old = [name.hi for name, found in runs if name and found.age_s >= margin_s]
    safe = max(old, default=0)
    drop = [found.key for name, found in runs if name and name.hi < safe]
    reply = yield from core.ask(core.ListPrefix(keys.tick_prefix(NS)))
    for found in core.listed(reply):
        name = keys.parse_tick_key(found.key)
        if name and name.tick <= safe and name.tick < head and found.age_s >= margin_s:
            drop.append(found.key)
    if drop:
        world.counts["cleaned_up"] += len(drop)
        yield from core.ask(core.Delete(tuple(drop)))


def sweeper(world: World, faults: frozenset[str]) -> Process:
    """Raises the watermark, waits, and deletes dead shards: with an eye on R6.

    What it deletes must have been dead for the grace, so nobody raises the watermark meanwhile.
    """
    for _ in range(world.rng.randrange(5, 40)):
        yield Nop()
    settings = SequencerSettings(ttl_s=world.rng.choice((150, 600)), watermark_check_s=0)
    sequencer = new_sequencer(world, faults, settings)
    yield from sequencer.follower.open()
    yield from sequencer.sequence(world.moment())
    drain = Sequencer(sequencer.follower, sequencer.writer, SETTINGS, random.Random(0))
    since_s = world.now_s
    while world.now_s - since_s < GRACE:
        yield Nop()
    for _ in range(8):
        sent_s = world.now_s
        yield from drain.sequence(world.moment())
        yield from drain.follower.poll()
        snapshot = drain.follower.snapshot
        reply = yield from core.ask(core.ListPrefix("data/"))
        if world.now_s - sent_s > HEAD_TTL:
            continue
        found = core.listed(reply)
        live = snapshot.present(fps_of(*(int(each.key.split("/")[1]) for each in found)))
        dead = [
            (each.key, each.modified_s)
            for each, is_live in zip(found, live.tolist(), strict=True)
            if not is_live and each.age_s >= MIN_AGE
        ]
        world.counts["swept"] += len(dead)
        if dead:
            yield DeleteIf(tuple(dead))
        return


def settle(world: World, engines: list[Engine]) -> Follower:
    """Bring everything to rest: one last sequencer pass, then every survivor polls."""
    last = new_sequencer(world, frozenset(), SETTINGS)

    def pass_() -> Generator[Wish, core.Reply, None]:
        yield from last.follower.open()
        yield from last.sequence(world.moment())
        yield from last.follower.poll()

    world.finish(pass_())
    for engine in engines:
        if engine.follower.snapshot.opened:
            world.finish(engine.follower.poll())
    return last.follower


def check(world: World, engines: list[Engine], last: Follower) -> None:
    """I2: all agree; I3: nothing announced is lost; I4: what is live has its shards."""
    live = {int(fp) for fp in last.snapshot.live().fps}
    for i, engine in enumerate(engines):
        if engine.follower.snapshot.opened:
            seen = {int(fp) for fp in engine.follower.snapshot.live().fps}
            odd = (seen ^ live) - engine.uncertain
            if odd:
                world.errors.append(f"I2 engine {i} differs in {sorted(odd)}")
    published = merge(world.published)
    after = last.snapshot.absorb(published)
    if after.live().fps.tolist() != last.snapshot.live().fps.tolist():
        world.errors.append("I3 announced records are not in the index")
    for chunk in live:
        if not all(shard(chunk, writer) in world.store.objects for writer in range(SHARDS)):
            world.errors.append(f"I4 chunk {chunk} is live without its shards")


def simulate(seed: int, faults: frozenset[str] = frozenset(), steps: int = 2_000) -> World:
    """One run: three engines, two compactors, one sweeper; then rest, and the invariants."""
    world = World(seed)
    world.store.has_conditional_put = "no_conditional_put" not in faults
    engines: dict[str, Engine] = {}

    def spawn(name: str) -> Process:
        if name.startswith("engine"):
            engines[name] = Engine(world, faults)
            return engines[name].life()
        return (compactor if name.startswith("compactor") else sweeper)(world, faults)

    names = ["engine0", "engine1", "engine2", "compactor0", "compactor1", "sweeper"]
    world.run(spawn, names, steps)
    last = settle(world, list(engines.values()))
    check(world, list(engines.values()), last)
    world.counts["ticks"] += last.snapshot.head
    return world
