"""Rules that random worlds seldom need: for each a story that ends well with it and badly without.

The processes are those of `actors`; only the order of their requests is written by hand, and
nothing is lost on the way.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from s3kv.core import requests as core
from s3kv.core.forgetting import Limits
from s3kv.core.sweep import FolderPlan, SweepRules
from s3kv.core.sweeper import Sweeper
from tests.simulation.actors import Engine, check, settle
from tests.simulation.parts import (
    CHUNK_FPS,
    GRACE,
    HEAD_TTL,
    MARGIN,
    MIN_AGE,
    new_compactor,
    new_sweeper,
    shard,
)
from tests.simulation.world import Nop, Process, Wish, World

FP = 4
"""The chunk that the stories are about; it lies in folder 00."""


class Story:
    """One world in which everybody waits for his turn."""

    def __init__(self, *faults: str) -> None:
        self.world = World(1)
        self.faults = frozenset(faults)
        self.engines: list[Engine] = []
        self.bad: set[int] = set()
        """Chunks whose shards are there, and wrong."""

    def engine(self) -> Engine:
        made = Engine(self.world, self.faults)
        self.engines.append(made)
        self.run(made.follower.open())
        return made

    def sweeper(self, ttl_s: int) -> Sweeper:
        rules = SweepRules(grace_s=GRACE, min_age_s=MIN_AGE)
        made = new_sweeper(self.world, self.faults, Limits(ttl_s=ttl_s), rules)
        self.run(made.open())
        return made

    def run(self, process: Process) -> None:
        """From beginning to end, with nobody else in between."""
        given_up = self.world.counts["gave_up"]
        self.world.finish(process)
        assert self.world.counts["gave_up"] == given_up

    def until(self, process: Process, sends: Callable[[Wish], bool]) -> Process:
        """Run up to a request of this kind. Returns the rest, which begins by sending it."""
        wish = next(process)
        while not sends(wish):
            assert not isinstance(wish, Nop)
            wish = process.send(self.world.store.answer(wish))

        def rest(wish: Wish) -> Process:
            while True:
                reply = yield wish
                try:
                    wish = process.send(reply)
                except StopIteration:
                    return

        return rest(wish)

    def plan(self, sweeper: Sweeper) -> FolderPlan:
        plans: list[FolderPlan] = []

        def kept() -> Process:
            plans.extend((yield from sweeper.plan(["00"], self.world.moment())))

        self.run(kept())
        return plans[0]

    def sweep(self, sweeper: Sweeper) -> None:
        planned = self.plan(sweeper)
        self.run(sweeper.carry_out(planned, self.world.moment()))

    def compact(self, engine: Engine) -> None:
        """Twice: what the first look merged, the second may clean up."""
        made = new_compactor(engine.sequencer, self.faults)
        self.run(made.act(self.world.moment()))
        self.run(made.act(self.world.moment()))
        assert made.counts.runs_written

    def pass_time(self, seconds: float) -> None:
        self.world.store.now_s += seconds

    def ends(self) -> list[str]:
        """The broken invariants."""
        last = settle(self.world, self.engines)
        check(self.world, self.engines, last)
        live = set(last.snapshot.live().fps.tolist())
        return self.world.errors + [f"chunk {fp} is bad and live" for fp in live & self.bad]


def is_tick(wish: Wish) -> bool:
    return isinstance(wish, core.Create) and "/tick/" in wish.key


def is_second_shard(wish: Wish) -> bool:
    return isinstance(wish, core.Put) and wish.key == shard(FP, 1)


def stored(story: Story) -> Engine:
    """An engine that has archived the chunk and leads."""
    engine = story.engine()
    story.run(engine._store(FP))
    story.run(engine.sequencer.sequence(story.world.moment()))
    assert engine.sequencer.leads
    return engine


def is_stored_while_the_sweep_waits(*faults: str) -> Story:
    """R1: that a shard is there says nothing about the next second."""
    story = Story(*faults)
    engine = stored(story)
    story.pass_time(2 * MIN_AGE)
    sweeper = story.sweeper(ttl_s=100)
    story.run(sweeper.raise_watermark(story.world.moment()))
    story.pass_time(2 * GRACE)
    planned = story.plan(sweeper)
    assert planned.condemned
    story.run(engine.follower.poll())
    story.run(engine._store(FP))
    story.run(sweeper.carry_out(planned, story.world.moment()))
    return story


def sleeps_between_two_shards(*faults: str) -> Story:
    """R5: what was uploaded long ago may have been swept since."""
    story = Story(*faults)
    engine = story.engine()
    rest = story.until(engine._store(FP), is_second_shard)
    story.pass_time(2 * MIN_AGE)
    story.sweep(story.sweeper(ttl_s=100))
    assert story.world.store.keys("/data/") == []
    story.run(rest)
    return story


def is_swept_between_two_shards(*faults: str) -> Story:
    """R7, age: a chunk without its second shard is perhaps only being stored."""
    story = Story(*faults)
    engine, sweeper = story.engine(), story.sweeper(ttl_s=100)
    rest = story.until(engine._store(FP), is_second_shard)
    story.sweep(sweeper)
    story.run(rest)
    return story


def uses_on_an_old_view_while_the_sweep_waits(*faults: str) -> Story:
    """R7, grace: who reads an index that is a minute old may use what a newer watermark killed."""
    story = Story(*faults)
    stored(story)
    story.pass_time(2 * MIN_AGE)
    reader, sweeper = story.engine(), story.sweeper(ttl_s=100)
    story.run(sweeper.raise_watermark(story.world.moment()))
    planned = story.plan(sweeper)
    assert reader.follower.snapshot.is_fresh(story.world.now_s)
    story.run(reader._load(FP))
    story.run(sweeper.carry_out(planned, story.world.moment()))
    return story


def uses_after_a_sleep(*faults: str) -> Story:
    """R8: a view from before the grace must not vouch for anything."""
    story = Story(*faults)
    stored(story)
    story.pass_time(2 * MIN_AGE)
    sleeper, sweeper = story.engine(), story.sweeper(ttl_s=100)
    story.run(sweeper.raise_watermark(story.world.moment()))
    story.pass_time(2 * GRACE)
    planned = story.plan(sweeper)
    assert planned.condemned
    story.run(sleeper._load(FP))
    story.run(sweeper.carry_out(planned, story.world.moment()))
    return story


def was_used_by_one_that_died(*faults: str) -> Story:
    """R6, inbox: a use that nobody has put into a tick is a use all the same."""
    story = Story(*faults)
    stored(story)
    story.pass_time(2 * MIN_AGE)
    reader, sweeper = story.engine(), story.sweeper(ttl_s=100)
    story.run(sweeper.raise_watermark(story.world.moment()))
    story.run(reader._load(FP))
    story.engines.remove(reader)
    assert len(story.world.store.keys("/inbox/")) == 1
    story.pass_time(2 * GRACE)
    story.sweep(sweeper)
    return story


def was_stored_anew_since_the_sweep_looked(*faults: str) -> Story:
    """R6, fresh: what was lost once may have been archived again an hour ago."""
    story = Story(*faults)
    engine = stored(story)
    story.pass_time(2 * MIN_AGE)
    story.run(engine.follower.poll())
    story.run(engine._report_dead(FP))
    sweeper = story.sweeper(ttl_s=100 * MIN_AGE)
    story.plan(sweeper)
    story.run(engine._store(FP))
    story.pass_time(2 * MIN_AGE)
    story.sweep(sweeper)
    return story


def writes_where_the_log_was_cleaned_up(*faults: str) -> Story:
    """R7, margin: whoever knew the head a moment ago must find its slot taken, not cleaned up."""
    story = Story(*faults)
    deposed, busy = stored(story), story.engine()
    story.run(deposed.follower.poll())
    story.run(busy.sequencer.sequence(story.world.moment(), says_nothing=True))
    for fp in CHUNK_FPS[10:14]:
        story.run(busy._store(fp))
    story.compact(busy)
    assert deposed.sequencer.leads, "as far as it knows"
    assert story.world.now_s - deposed.follower.snapshot.head_seen_s < HEAD_TTL / 2
    story.run(deposed._store(CHUNK_FPS[20]))
    return story


def starts_after_a_writer_died(*faults: str) -> Story:
    """A segment is a durable commit, whoever wrote it and however dead that process is."""
    story = Story(*faults)
    dead = story.engine()
    story.run(dead._store(FP))
    story.engines.remove(dead)
    assert story.world.store.keys("/tick/") == []
    story.run(story.engine()._load(FP))
    if not story.world.counts["loads"]:
        story.world.errors.append("a durable commit is not found")
    return story


def sleeps_on_its_way_to_the_tick(*faults: str) -> Story:
    """R3: a success in a slot that others have used and cleaned up is none."""
    story = Story(*faults)
    sleeper, other, busy = stored(story), story.engine(), story.engine()
    story.run(other._store(CHUNK_FPS[20]))
    rest = story.until(sleeper.sequencer.sequence(story.world.moment()), is_tick)
    story.run(busy.sequencer.sequence(story.world.moment(), says_nothing=True))
    for fp in CHUNK_FPS[10:14]:
        story.run(busy._store(fp))
    story.compact(busy)
    story.pass_time(2 * MARGIN)
    story.run(busy.follower.poll())
    story.run(new_compactor(busy.sequencer, story.faults).act(story.world.moment()))
    story.run(rest)
    return story


def was_found_bad_before_the_log_was_merged(*faults: str) -> Story:
    """R9: a report of a loss outlives the ticks that it was written to."""
    story = Story(*faults)
    engine = stored(story)
    story.bad.add(FP)
    story.run(engine._report_dead(FP))
    for fp in CHUNK_FPS[10:14]:
        story.run(engine._store(fp))
    story.compact(engine)
    story.pass_time(2 * MARGIN)
    story.run(engine.follower.poll())
    made = new_compactor(engine.sequencer, story.faults)
    story.run(made.act(story.world.moment()))
    assert made.counts.files_deleted, "nobody can read the report where it was"
    story.engines.clear()
    story.sweep(story.sweeper(ttl_s=100 * MIN_AGE))
    return story


STORIES = {
    "deaf_start": starts_after_a_writer_died,
    "create_data": is_stored_while_the_sweep_waits,
    "no_deadline": sleeps_between_two_shards,
    "no_min_age": is_swept_between_two_shards,
    "no_grace": uses_on_an_old_view_while_the_sweep_waits,
    "stale_hits": uses_after_a_sleep,
    "deaf_sweep": was_used_by_one_that_died,
    "stale_sweep": was_stored_anew_since_the_sweep_looked,
    "trust_success": sleeps_on_its_way_to_the_tick,
    "forget_losses": was_found_bad_before_the_log_was_merged,
    "no_margin": writes_where_the_log_was_cleaned_up,
}


@pytest.mark.parametrize("fault", STORIES)
def test_a_rule_that_is_kept_ends_the_story_well(fault: str) -> None:
    assert STORIES[fault]().ends() == []


@pytest.mark.parametrize("fault", STORIES)
def test_a_rule_that_is_broken_ends_it_badly(fault: str) -> None:
    assert STORIES[fault](fault).ends() != []


def test_the_shard_of_the_stories_lies_in_the_swept_folder() -> None:
    assert "/data/00/" in shard(FP, 0)
