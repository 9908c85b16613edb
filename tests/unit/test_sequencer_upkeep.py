"""A process that leads on purpose, and watermarks that spare what is pinned."""

from __future__ import annotations

import pytest

from s3kv.core import keys
from s3kv.core import requests as core
from s3kv.core.forgetting import Limits
from s3kv.core.ids import BlockHash
from s3kv.core.pinset import encode_set, make_set
from s3kv.core.records import RECORDS_MAX, make_records
from s3kv.core.sequencer import Sequencer, SequencerSettings
from tests.fakes.index_store import NS, IndexStore
from tests.fakes.sequencers import chunk, leading_engine, live, new_engine, read_tick

LEADS = SequencerSettings(takes_lead=True, segments_per_s=250)
FORGETS = SequencerSettings(limits=Limits(ttl_s=600), watermark_check_s=60)


def pin(store: IndexStore, *fps: int) -> None:
    blocks = {BlockHash(fp.to_bytes(8, "big") + bytes(24)): 16 for fp in fps}
    store.carry_out(core.Put(keys.set_key(NS, "docs"), encode_set(make_set(NS, "docs", blocks))))


# ---------------------------------------------------------------- leading on purpose


def test_a_process_that_takes_the_lead_writes_an_empty_tick_at_once() -> None:
    store = IndexStore()
    engine = leading_engine(store)
    leader = new_engine(store, "l", LEADS)
    assert leader.due(store.now_s) <= store.now_s

    store.run(leader.act(store.now()))
    assert leader.leads
    assert read_tick(store, 2)[1] == []

    store.run(engine.follower.poll())
    assert not engine.leads
    before = len(store.requests)
    store.run(engine.flush(chunk(5), store.now()))
    assert [type(request) for request in store.requests[before:]] == [core.Put], "a segment"


def test_once_it_leads_it_says_nothing_more_than_anybody() -> None:
    store = IndexStore()
    leader = new_engine(store, "l", LEADS)
    store.run(leader.act(store.now()))
    for _ in range(5):
        store.now_s += 10
        store.run(leader.act(store.now()))
    assert len(store.keys("/tick/")) == 1


def test_it_folds_before_anybody_runs_out_of_patience_however_idle_it_was() -> None:
    store = IndexStore()
    leader = new_engine(store, "l", LEADS)
    store.run(leader.act(store.now()))
    for _ in range(100):
        store.now_s = max(store.now_s, leader.due(store.now_s))
        before_s = store.now_s
        store.run(leader.act(store.now()))
        assert leader.due(store.now_s) - before_s < LEADS.patience_s


def test_two_that_take_the_lead_take_turns_at_their_patience_and_not_at_once() -> None:
    store = IndexStore()
    one, two = new_engine(store, "1", LEADS), new_engine(store, "2", LEADS)
    store.run(one.act(store.now()))
    store.run(two.act(store.now()))
    store.run(one.follower.poll())

    assert two.leads
    assert not one.leads
    assert one.due(store.now_s) > store.now_s + 1


def test_the_advice_to_writers_follows_what_the_leader_can_fold() -> None:
    store = IndexStore()
    writers = [new_engine(store, f"{i:x}") for i in range(16)]
    for settings, interval_ms in ((LEADS, 1_000), (SequencerSettings(segments_per_s=4), 4_000)):
        for i, writer in enumerate(writers):
            store.run(writer.write_segment(chunk(i), store.now()))
        leader = new_engine(store, "l", settings)
        store.run(leader.sequence(store.now()))
        assert leader.follower.interval_ms == interval_ms


# ---------------------------------------------------------------- pinned sets


def test_a_tick_that_forgets_uses_what_is_pinned() -> None:
    store = IndexStore()
    leader = leading_engine(store, settings=FORGETS)
    now_s = int(store.now().unix_s)
    store.run(leader.flush(chunk(1, 2, seen_s=now_s), store.now()))
    pin(store, 1)
    store.now_s += 700

    store.run(leader.sequence(store.now()))
    header, fps = read_tick(store, leader.follower.snapshot.head)
    assert fps == [1]
    assert header.watermark_s > now_s
    assert live(new_engine(store, "r")) == [1]


def test_as_long_as_a_set_cannot_be_read_nothing_is_forgotten() -> None:
    store = IndexStore()
    leader = leading_engine(store, settings=FORGETS)
    store.run(leader.flush(chunk(1, seen_s=int(store.now().unix_s)), store.now()))
    store.carry_out(core.Put(keys.set_key(NS, "docs"), b"damaged"))
    store.now_s += 700
    store.run(leader.flush(chunk(2, seen_s=int(store.now().unix_s)), store.now()))
    assert 1 in live(new_engine(store, "r"))
    assert "docs" in leader.pins.problem


@pytest.mark.parametrize("answer", [core.Lost("reset"), core.Refused("AccessDenied")])
def test_sets_that_cannot_be_listed_hold_up_no_commit_and_nothing_is_forgotten(
    answer: core.Value,
) -> None:
    store = IndexStore()
    leader = leading_engine(store, settings=FORGETS)
    store.run(leader.flush(chunk(1, seen_s=int(store.now().unix_s)), store.now()))
    store.now_s += 700

    def fails(request: core.Single) -> core.Value | None:
        is_sets = isinstance(request, core.ListPrefix) and "/sets/" in request.prefix
        return answer if is_sets else None

    store.run(leader.flush(chunk(2, seen_s=1_001_700), store.now()), fails)
    assert {1, 2} <= set(live(new_engine(store, "r")))
    store.now_s += 61
    store.run(leader.sequence(store.now()))
    assert live(new_engine(store, "r")) == [2]


def test_without_limits_nobody_asks_for_sets() -> None:
    store = IndexStore()
    leading_engine(store)
    assert not any("/sets/" in str(request) for request in store.requests)


def test_a_full_tick_leaves_the_watermark_to_the_next_one() -> None:
    store = IndexStore()
    leader = leading_engine(store, settings=FORGETS)
    now_s = int(store.now().unix_s)
    store.run(leader.flush(chunk(1, seen_s=now_s), store.now()))
    pin(store, 1)
    store.now_s += 700
    full = make_records(range(10, 10 + RECORDS_MAX), now_s + 700, 16)

    store.run(leader.flush(full, store.now()))
    assert 1 in live(new_engine(store, "r"))
    store.now_s += 61
    store.run(leader.sequence(store.now()))
    after = new_engine(store, "r")
    assert after.follower.snapshot.watermark_s > now_s
    assert 1 in live(after)


# ---------------------------------------------------------------- clocks


def punctual_leader(store: IndexStore) -> Sequencer:
    """One that has just written down a use, by a clock that agrees with the store's."""
    settings = SequencerSettings(limits=Limits(ttl_s=600), watermark_check_s=0)
    leader = new_engine(store, "l", settings)
    store.run(leader.sequence(true_time(store), chunk(1, seen_s=int(store.now_s))))
    assert leader.leads
    return leader


def true_time(store: IndexStore, skew_s: float = 0.0) -> core.Moment:
    return core.Moment(store.now_s + skew_s, store.now_s)


@pytest.mark.parametrize("is_told", [True, False])
def test_a_leader_whose_clock_is_an_hour_fast_kills_nothing_early(is_told: bool) -> None:
    """Where the store tells its time, the earlier of both clocks counts."""
    store = IndexStore()
    if is_told:
        store.carry_out(core.Put(keys.namespace_key(NS), b"{}"))
    leader = punctual_leader(store)
    store.now_s += 100
    store.run(leader.sequence(true_time(store, 3_600)))
    assert (1 in live(new_engine(store, "r"))) == is_told


def test_a_leader_whose_clock_is_slow_forgets_later() -> None:
    store = IndexStore()
    store.carry_out(core.Put(keys.namespace_key(NS), b"{}"))
    leader = punctual_leader(store)
    store.now_s += 700
    store.run(leader.sequence(true_time(store, -3_600)))
    assert 1 in live(new_engine(store, "r"))
    store.run(leader.sequence(true_time(store)))
    assert 1 not in live(new_engine(store, "r"))


def test_a_store_that_does_not_answer_for_its_clock_holds_up_no_commit() -> None:
    store = IndexStore()
    leader = punctual_leader(store)

    def fails(request: core.Single) -> core.Value | None:
        return core.Lost("reset") if isinstance(request, core.Stat) else None

    store.run(leader.flush(chunk(2, seen_s=int(store.now_s)), true_time(store)), fails)
    assert 2 in live(new_engine(store, "r"))
