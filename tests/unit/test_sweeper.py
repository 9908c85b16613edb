"""A walk over a namespace's shards: what it knows, when it trusts it, and what it does."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from s3kv.core import keys
from s3kv.core import requests as core
from s3kv.core.follower import Follower
from s3kv.core.forgetting import Limits
from s3kv.core.ids import BlockHash
from s3kv.core.pinset import encode_set, make_set
from s3kv.core.records import DEAD, make_records
from s3kv.core.sequencer import Sequencer, SequencerSettings
from s3kv.core.sweep import FolderPlan, SweepRules, Why
from s3kv.core.sweeper import Deeds, Sweeper
from s3kv.errors import Transient
from tests.fakes.index_store import NS, Fault, IndexStore
from tests.fakes.sequencers import TTL_S, leading_engine, live, new_engine

HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S
BODY = b"x" * 16


def name_of(fp: int) -> str:
    return keys.shard_key(NS, fp.to_bytes(8, "big") + bytes(24), 0, 1)


def upload(store: IndexStore, *fps: int) -> None:
    for fp in fps:
        store.carry_out(core.Put(name_of(fp), BODY))


def announce(store: IndexStore, engine: Sequencer, *fps: int, dead: bool = False) -> None:
    """As the engine whose clock is the store's: these tests have one clock."""
    flags = DEAD if dead else 0
    records = make_records(fps, int(store.now_s), 0 if dead else 16, flags)
    store.run(engine.flush(records, moment(store)))


def moment(store: IndexStore) -> core.Moment:
    return core.Moment(store.now_s, store.now_s)


def new_sweeper(
    store: IndexStore,
    limits: Limits | None = None,
    rules: SweepRules | None = None,
    fault: Fault | None = None,
) -> Sweeper:
    settings = SequencerSettings(limits=limits or Limits(), watermark_check_s=0)
    sequencer = Sequencer(Follower(NS, TTL_S), b"s" * 16, settings, random.Random(1))
    made = Sweeper(sequencer, lambda size: 16 if size == len(BODY) else None, rules or SweepRules())
    store.run(made.open(), fault)
    return made


def sweep(store: IndexStore, made: Sweeper, folders: Sequence[str] = ("00",)) -> list[FolderPlan]:
    plans = store.run(made.plan(folders, moment(store)))
    for plan in plans:
        store.run(made.carry_out(plan, moment(store)))
    return plans


def forget_all(store: IndexStore) -> Sweeper:
    """A sweeper that has raised the watermark over everything there is."""
    made = new_sweeper(store, Limits(ttl_s=1))
    store.now_s += 10
    store.run(made.raise_watermark(moment(store)))
    return made


def test_what_a_watermark_killed_goes_when_it_has_lain_in_the_log_for_the_grace() -> None:
    store = IndexStore()
    engine = leading_engine(store)
    upload(store, 1, 2)
    announce(store, engine, 1, 2)
    store.now_s += DAY_S
    made = forget_all(store)

    (plan,) = sweep(store, made)
    assert (plan.condemned, plan.waiting_count) == ([], 2)

    store.now_s += HOUR_S
    assert sweep(store, made)[0].waiting_count == 2, "ages may be rounded: a little longer"
    store.now_s += TTL_S
    sweep(store, made)
    assert store.keys("/data/") == []
    # What `leading_engine` announced has no shard: reported at the first look, then known.
    assert made.deeds == Deeds(deleted=2, deleted_bytes=2 * len(BODY), reported_lost=1)


def test_what_is_used_in_the_last_second_of_the_grace_stays() -> None:
    store = IndexStore()
    engine = leading_engine(store)
    upload(store, 1)
    announce(store, engine, 1)
    store.now_s += DAY_S
    made = forget_all(store)
    store.now_s += HOUR_S - 1
    announce(store, new_engine(store, "b"), 1)  # a segment: nobody has folded it
    store.now_s += 20

    sweep(store, made)
    assert len(store.keys("/data/")) == 1


def test_a_shard_that_is_uploaded_between_the_look_and_the_deletion_stays() -> None:
    store = IndexStore()
    leading_engine(store)
    upload(store, 1, 2)
    made = new_sweeper(store)
    store.now_s += DAY_S
    announce(store, new_engine(store, "b"), 1, 2, dead=True)
    store.now_s += 2 * HOUR_S
    (plan,) = store.run(made.plan(["00"], moment(store)))
    assert len(plan.delete[Why.LOST]) == 2
    upload(store, 1)

    store.run(made.carry_out(plan, moment(store)))
    assert store.keys("/data/") == [name_of(1)]
    assert (made.deeds.deleted, made.deeds.replaced) == (1, 1)


def test_a_plan_that_was_carried_out_too_late_does_nothing() -> None:
    store = IndexStore()
    leading_engine(store)
    upload(store, 1)
    announce(store, new_engine(store, "b"), 1, dead=True)
    store.now_s += 2 * HOUR_S
    made = new_sweeper(store)
    (plan,) = store.run(made.plan(["00"], moment(store)))
    assert plan.condemned
    store.now_s += HOUR_S

    with pytest.raises(Transient, match="too late"):
        store.run(made.carry_out(plan, moment(store)))
    assert store.keys("/data/") == [name_of(1)]


def test_orphans_are_adopted_and_found_by_everybody() -> None:
    store = IndexStore()
    leading_engine(store)
    upload(store, 1, 2)
    store.now_s += 2 * HOUR_S
    made = new_sweeper(store)
    sweep(store, made)

    assert made.deeds.adopted == 2
    assert {1, 2} <= set(live(new_engine(store, "r")))


def test_listed_chunks_that_are_gone_are_reported() -> None:
    store = IndexStore()
    engine = leading_engine(store)
    announce(store, engine, 1, 2)
    upload(store, 2)
    made = new_sweeper(store)
    sweep(store, made)

    assert made.deeds.reported_lost == 2, "0xFFFF has no shard either"
    assert live(new_engine(store, "r")) == [2]


def test_a_commit_that_waits_in_the_inbox_counts() -> None:
    """R6: what is not in a tick yet is no garbage, and not lost."""
    store = IndexStore()
    leading_engine(store)
    made = new_sweeper(store)
    store.now_s += TTL_S
    upload(store, 1)
    store.now_s += DAY_S
    announce(store, new_engine(store, "b"), 1)
    before = len(store.keys("/inbox/"))

    (plan,) = store.run(made.plan(["00"], moment(store)))
    assert before == 1
    assert not len(plan.adopt), "it is listed already"
    assert plan.kept_count == 1


def test_a_listing_that_takes_longer_than_the_view_is_fresh_is_made_again() -> None:
    """R6: the live set must be as fresh as the page."""
    store = IndexStore()
    leading_engine(store)
    upload(store, 1)
    store.now_s += 2 * HOUR_S
    made = new_sweeper(store)
    slow = [TTL_S + 1, 0.0]

    def takes_long(request: core.Single) -> core.Value | None:
        if isinstance(request, core.ListPage):
            store.now_s += slow.pop(0)
        return None

    store.run(made.plan(["00"], moment(store)), takes_long)
    assert store.count(core.ListPage) == 2

    slow = [TTL_S + 1] * 100
    with pytest.raises(Transient, match="longer than a view"):
        store.run(made.plan(["00"], moment(store)), takes_long)


def test_a_view_serves_several_folders_and_is_renewed_before_it_is_old() -> None:
    store = IndexStore()
    leading_engine(store)
    made = new_sweeper(store)

    def resyncs() -> int:
        return made._follower.resync_count

    store.run(made.plan(["00", "01"], moment(store)))
    first = resyncs()
    store.run(made.plan(["02"], moment(store)))
    assert resyncs() == first
    store.now_s += TTL_S / 2 + 1
    store.run(made.plan(["03"], moment(store)))
    assert resyncs() == first + 1


def test_all_pages_of_all_folders_are_read() -> None:
    store = IndexStore()
    store.page_keys = 3
    leading_engine(store)
    fps = [*range(10), *((1 << 56) + i for i in range(4)), 2 << 56]
    upload(store, *fps)
    store.now_s += 2 * HOUR_S
    plans = sweep(store, new_sweeper(store), ["00", "01", "02"])
    assert [len(plan.adopt) for plan in plans] == [10, 4, 1]


def test_pinned_chunks_survive_every_watermark() -> None:
    store = IndexStore()
    engine = leading_engine(store)
    upload(store, 1, 2)
    announce(store, engine, 1, 2)
    pinned = make_set(NS, "docs", {BlockHash((1).to_bytes(8, "big") + bytes(24)): 16})
    store.carry_out(core.Put(keys.set_key(NS, "docs"), encode_set(pinned)))
    store.now_s += DAY_S
    made = forget_all(store)
    assert 1 in live(new_engine(store, "r")), "touched in the tick that forgets the rest"
    store.now_s += HOUR_S + 10
    store.run(made.raise_watermark(moment(store)))
    sweep(store, made)
    assert store.keys("/data/") == [name_of(1)]


def test_a_set_that_cannot_be_read_stops_the_sweep_and_the_watermark() -> None:
    store = IndexStore()
    engine = leading_engine(store)
    upload(store, 1)
    announce(store, engine, 1)
    store.carry_out(core.Put(keys.set_key(NS, "docs"), b"damaged"))
    store.now_s += DAY_S
    made = forget_all(store)
    store.run(made.plan(["00"], moment(store)))
    assert "docs" in made.problem
    assert 1 in live(new_engine(store, "r"))


def test_an_index_that_cannot_be_read_whole_is_a_problem() -> None:
    store = IndexStore()
    leading_engine(store)
    assert new_sweeper(store).problem == ""
    store.objects[keys.tick_key(NS, 1)] = (b"damaged", store.now_s)
    assert "cannot be read" in new_sweeper(store).problem


def test_shards_in_use_are_renewed_and_stay_the_same() -> None:
    store = IndexStore()
    engine = leading_engine(store)
    upload(store, 1)
    announce(store, engine, 1)
    store.now_s += DAY_S
    made = new_sweeper(store, rules=SweepRules(renew_after_s=DAY_S))
    sweep(store, made)
    assert made.deeds.renewed == 0, "it was not used since"

    announce(store, engine, 1)
    store.now_s += TTL_S
    sweep(store, made)
    assert made.deeds.renewed == 1
    body, modified_s = store.objects[name_of(1)]
    assert body == BODY
    assert store.now_s - modified_s < 1


def test_the_log_and_the_sets_are_renewed_with_the_shards_and_nothing_foreign_is() -> None:
    store = IndexStore()
    leading_engine(store)
    old = [keys.tick_key(NS, 1), keys.set_key(NS, "docs"), keys.namespace_key(NS)]
    for name in [*old[1:], f"{keys.tick_prefix(NS)}x"]:
        store.carry_out(core.Put(name, encode_set(make_set(NS, "docs", {}))))
    store.now_s += DAY_S
    young = keys.run_key(NS, 1, 1)
    store.carry_out(core.Put(young, b""))
    made = new_sweeper(store, rules=SweepRules(renew_after_s=DAY_S))
    before_s = store.now_s

    store.run(made.renew_log())
    renewed = [name for name, (_, modified_s) in store.objects.items() if modified_s > before_s]
    assert sorted(renewed) == sorted(old)
    assert made.deeds.renewed_files == 3

    store.now_s += DAY_S
    without = new_sweeper(store)
    store.run(without.renew_log())
    assert without.deeds.renewed_files == 0


def test_the_held_watermark_is_read_once_and_again_when_a_newer_one_is_old_enough() -> None:
    store = IndexStore()
    engine = leading_engine(store)
    store.now_s += 2 * HOUR_S
    made = new_sweeper(store)

    def reads() -> int:
        tick = keys.tick_key(NS, 1)
        return sum(isinstance(r, core.Get) and r.key == tick for r in store.requests)

    store.run(made.plan(["00"], moment(store)))
    first = reads()
    store.now_s += TTL_S
    store.run(made.plan(["00"], moment(store)))
    assert reads() == first
    assert engine.leads
