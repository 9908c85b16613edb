"""The processes of the simulated world.

They drive the real `Follower`, `Sequencer`, `Compactor` and `Sweeper`; an engine stores and loads
chunks besides, keeping the rules that are its own (R1, R2, R5, R8). Each rule can be switched off
by its name in `faults`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from dataclasses import replace

import numpy as np

from s3kv.core import keys
from s3kv.core import requests as core
from s3kv.core.follower import Follower
from s3kv.core.forgetting import Limits
from s3kv.core.ids import BlockHash
from s3kv.core.pinset import encode_set, make_set
from s3kv.core.records import DEAD, RecordSet, merge
from s3kv.core.sweep import SweepRules
from s3kv.errors import Transient
from tests.fakes.index_store import NS
from tests.simulation.parts import (
    CHUNK_FPS,
    FOLDERS,
    GRACE,
    HEAD_TTL,
    MIN_AGE,
    SETTINGS,
    SHARDS,
    fps_of,
    new_compactor,
    new_sequencer,
    new_sweeper,
    shard,
)
from tests.simulation.world import Nop, Process, Wish, World


class Engine:
    """One process that stores, loads, touches, reports, commits and sequences."""

    def __init__(self, world: World, faults: frozenset[str]) -> None:
        self.world = world
        self.faults = faults
        self.skew_s = world.rng.choice(world.skews_s)
        self.sequencer = new_sequencer(world, faults, replace(SETTINGS, limits=world.limits))
        self.follower = self.sequencer.follower
        self.compactor = new_compactor(self.sequencer, faults)
        self.pending: list[tuple[RecordSet, float]] = []
        self.uncertain: set[int] = set()
        """Chunks of which this process knows, or may have written, what nobody promised."""

    @property
    def unix_s(self) -> float:
        """As this process's clock has it."""
        return self.world.now_s + self.skew_s

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
        choice, chunk = self.world.rng.random(), self.world.rng.choice(CHUNK_FPS)
        if now_s >= self.sequencer.due(now_s) and choice < 0.3:
            yield from self.sequencer.act(self.world.moment(self.skew_s))
            if self.sequencer.leads and self.world.now_s >= self.compactor.due(self.world.now_s):
                yield from self.compactor.act(self.world.moment(self.skew_s))
        elif choice < 0.5:
            yield from self.follower.poll()
        elif choice < 0.65:
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
        # Mutant: what is there already is not written again (breaks R1).
        upload = core.Create if "create_data" in self.faults else core.Put
        for writer in range(SHARDS):
            yield from core.ask(upload(shard(chunk, writer), f"{chunk}/{writer}".encode()))
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
        records = snapshot.live_records(fps_of(chunk), blocks, self.unix_s)
        by_s = float("inf") if "no_deadline" in self.faults else first_s + MIN_AGE // 2
        self.pending.append((records, by_s))
        yield from self._flush()

    def _report_dead(self, chunk: int) -> Process:
        records = self.follower.snapshot.dead_records(fps_of(chunk), self.unix_s)
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
        yield from self.sequencer.flush(records, self.world.moment(self.skew_s), by_s)
        self.pending = [each for each in self.pending if each not in sent]
        self.uncertain.difference_update(int(fp) for fp in records.fps)
        self.world.published.append(records)

    def _check_durable(self, records: RecordSet) -> None:
        for fp, flags in zip(records.fps.tolist(), records.flags.tolist(), strict=True):
            there = [shard(fp, writer) in self.world.store.objects for writer in range(SHARDS)]
            if not (flags & int(DEAD) or all(there) or fp in self.world.harmed):
                self.world.errors.append(f"I1 announced chunk {fp} without its shards")

    def _load(self, chunk: int) -> Process:
        fresh = self.follower.snapshot.is_fresh(self.world.now_s) or "stale_hits" in self.faults
        if not fresh:
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
        quick = self.world.now_s - began_s <= HEAD_TTL or "stale_hits" in self.faults
        if quick:  # else too slow to vouch for it (R8)
            yield from self._commit(chunk, began_s)
            yield from self._look_after(chunk, began_s)


def compactor(world: World, faults: frozenset[str]) -> Process:
    """Leads for a moment, as the rule for compacting asks, and looks at the log."""
    for _ in range(world.rng.randrange(10, 60)):
        yield Nop()
    sequencer = new_sequencer(world, faults, replace(SETTINGS, takes_lead=True))
    yield from sequencer.follower.open()
    yield from sequencer.act(world.moment())
    if sequencer.leads:
        made = new_compactor(sequencer, faults)
        yield from made.act(world.moment())
        yield from made.act(world.moment())
        world.counts["runs"] += made.counts.runs_written
        world.counts["cleaned_up"] += made.counts.files_deleted


def sweeper(world: World, faults: frozenset[str]) -> Process:
    """Raises the watermark as it likes, and sweeps by the one that was in force long enough."""
    for _ in range(world.rng.randrange(5, 40)):
        yield Nop()
    # What is pinned dies if its announcement takes longer than everything may live: no such days.
    limits = Limits(ttl_s=world.rng.choice((600,) if world.pinned else (150, 600)))
    rules = SweepRules(
        grace_s=GRACE, min_age_s=MIN_AGE, renew_after_s=world.rng.choice((None, 2_000))
    )
    made = new_sweeper(world, faults, limits, rules)
    skew_s = world.rng.choice(world.skews_s)
    yield from made.open()
    for _ in range(world.rng.choice((1, 3))):
        yield from made.raise_watermark(world.moment(skew_s))
        for folder in FOLDERS:
            (plan,) = yield from made.plan([folder], world.moment(skew_s))
            if not made.problem:
                yield from made.carry_out(plan, world.moment(skew_s))
        for _ in range(world.rng.randrange(20)):
            yield Nop()
    for word in ("deleted", "replaced", "adopted", "reported_lost", "renewed"):
        world.counts[word] += getattr(made.deeds, word)


def lifecycle(world: World) -> Process:
    """A rule of the bucket, or an operator: deletes shards behind everybody's back."""
    while True:
        for _ in range(world.rng.randrange(20, 100)):
            yield Nop()
        names = world.store.keys("/data/")
        if names:
            gone = world.rng.choice(names)
            found = keys.parse_shard_key(gone)
            assert found is not None
            world.harmed.add(int.from_bytes(found.chunk_hash[:8], "big"))
            del world.store.objects[gone]
            world.counts["harmed"] += 1


def settle(world: World, engines: list[Engine]) -> Follower:
    """Bring everything to rest: a last sweep, a last sequencer, then every survivor polls.

    The sweep finds what was harmed and nobody has used since.
    """
    last = new_sequencer(world, frozenset(), SETTINGS)
    finder = new_sweeper(world, frozenset(), Limits(), SweepRules(grace_s=GRACE, min_age_s=MIN_AGE))

    def pass_() -> Generator[Wish, core.Reply, None]:
        if world.harmed:
            yield from finder.open()
            for plan in (yield from finder.plan(FOLDERS, world.moment())):
                yield from finder.carry_out(plan, world.moment())
            world.counts["reported_lost"] += finder.deeds.reported_lost
        yield from last.follower.open()
        yield from last.sequence(world.moment())
        yield from last.follower.poll()

    world.finish(pass_())
    for engine in engines:
        if engine.follower.snapshot.opened:
            world.finish(engine.follower.poll())
    return last.follower


def check(world: World, engines: list[Engine], last: Follower) -> None:
    """I2: all agree; I3: nothing announced is lost; I4: what is live has its shards; I5: pinned
    chunks are not forgotten."""
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
    dead = {int(fp) for fp in after.whole().fps[after.whole().flags & DEAD != 0]}
    for chunk in set(published.fps.tolist()) & set(world.pinned) - live - dead - world.harmed:
        world.errors.append(f"I5 pinned chunk {chunk} was forgotten")
    for chunk in live:
        if not all(shard(chunk, writer) in world.store.objects for writer in range(SHARDS)):
            world.errors.append(f"I4 chunk {chunk} is live without its shards")


def pin(world: World, faults: frozenset[str]) -> None:
    """In some worlds a few chunks are pinned from the beginning."""
    if world.rng.random() < 0.3:
        world.pinned = tuple(world.rng.sample(CHUNK_FPS, 3))
        hashes = {BlockHash(fp.to_bytes(8, "big") + bytes(24)): 16 for fp in world.pinned}
        pinned = {} if "no_pins" in faults else hashes
        body = encode_set(make_set(NS, "pinned", pinned))
        world.store.carry_out(core.Put(keys.set_key(NS, "pinned"), body))


def simulate(seed: int, faults: frozenset[str] = frozenset(), steps: int = 2_000) -> World:
    """One run: three engines, a compactor, two sweepers; then rest, and the invariants."""
    world = World(seed)
    world.store.has_conditional_put = "no_conditional_put" not in faults
    world.store.page_keys = world.rng.choice((3, 1_000))
    world.limits = Limits(ttl_s=world.rng.choice((None, None, 900)))
    world.skews_s = world.rng.choice(((0,), (0,), (-20, 0, 20)))
    world.recent_max = world.rng.choice((3, 65_536))
    pin(world, faults)
    engines: dict[str, Engine] = {}

    def spawn(name: str) -> Process:
        if name.startswith("engine"):
            engines[name] = Engine(world, faults)
            return engines[name].life()
        if name == "lifecycle":
            return lifecycle(world)
        return (compactor if name.startswith("compactor") else sweeper)(world, faults)

    names = ["engine0", "engine1", "engine2", "compactor", "sweeper0", "sweeper1"]
    names += ["lifecycle"] * (world.rng.random() < 0.3)
    world.run(spawn, names, steps)
    last = settle(world, list(engines.values()))
    check(world, list(engines.values()), last)
    world.counts["ticks"] += last.snapshot.head
    return world


def outcome_of(seed: int) -> tuple[int, list[str], Counter[str]]:
    """A seed, the invariants that its world broke, and what happened in it; for other processes."""
    world = simulate(seed)
    return seed, world.errors, world.counts
