"""What a sequencer writes: commits, folded ticks, watermark, pause; nothing twice, nothing lost."""

from __future__ import annotations

import pytest

from s3kv.core import keys
from s3kv.core import requests as core
from s3kv.core.forgetting import Limits
from s3kv.core.records import RECORDS_MAX, make_records
from s3kv.core.sequencer import SequencerSettings
from s3kv.errors import Denied, Transient
from tests.fakes.index_store import NS, IndexStore
from tests.fakes.sequencers import chunk, leading_engine, live, new_engine, read_tick

# ---------------------------------------------------------------- commits


def test_a_commit_of_one_who_does_not_lead_is_one_request_and_in_its_own_view() -> None:
    store = IndexStore()
    engine = new_engine(store)
    store.requests.clear()

    store.run(engine.flush(chunk(1), store.now()))

    assert [type(request) for request in store.requests] == [core.Put]
    assert live(engine) == [1]
    assert len(store.keys("/inbox/")) == 1


def test_a_lost_reply_to_a_segment_repeats_the_same_name_and_bytes() -> None:
    store = IndexStore()
    engine = new_engine(store)
    store.requests.clear()
    lost = iter([core.Lost("timeout"), core.Lost("timeout"), None])

    store.run(engine.flush(chunk(1), store.now()), lambda request: next(lost))

    assert len(store.requests) == 3
    assert len(set(store.requests)) == 1


def test_a_later_flush_never_reuses_a_name_for_other_records() -> None:
    store = IndexStore()
    engine = new_engine(store)
    with pytest.raises(Transient):
        store.run(engine.flush(chunk(1), store.now()), lambda request: core.Lost("timeout"))
    assert live(engine) == [], "what may not be durable is not in the view"

    store.run(engine.flush(chunk(1, 2), store.now()))

    names = {request.key for request in store.requests if isinstance(request, core.Put)}
    assert len(names) == 2


def test_a_leader_commits_straight_into_the_tick() -> None:
    store = IndexStore()
    engine = leading_engine(store)

    store.run(engine.flush(chunk(2), store.now()))

    assert read_tick(store, 2)[1] == [2]
    assert store.keys("/inbox/") == []
    assert live(engine) == [2, 0xFFFF]


def test_an_empty_flush_sends_nothing() -> None:
    store = IndexStore()
    engine = new_engine(store)
    store.requests.clear()

    store.run(engine.flush(chunk(), store.now()))

    assert store.requests == []


def test_a_refused_commit_is_denied_at_once() -> None:
    store = IndexStore()
    engine = new_engine(store)
    store.requests.clear()

    with pytest.raises(Denied):
        store.run(engine.flush(chunk(1), store.now()), lambda request: core.Refused("403"))
    assert len(store.requests) == 1


# ---------------------------------------------------------------- folding


def test_folding_puts_every_segment_into_one_tick_and_then_deletes_them() -> None:
    store = IndexStore()
    leader = leading_engine(store)
    for name, fp in (("b", 5), ("c", 6)):
        store.run(new_engine(store, name).flush(chunk(fp), store.now()))
    store.requests.clear()

    store.run(leader.sequence(store.now(), chunk(7)))

    assert read_tick(store, 2)[1] == [5, 6, 7]
    assert store.keys("/inbox/") == []
    kinds = [type(request) for request in store.requests]
    assert kinds.index(core.Create) < kinds.index(core.Delete), "the tick first (R2)"


def test_nothing_is_written_when_there_is_nothing_to_say() -> None:
    store = IndexStore()
    leader = leading_engine(store)
    store.requests.clear()

    store.run(leader.sequence(store.now()))

    assert [type(request) for request in store.requests] == [core.ListPrefix]


def test_a_failed_delete_is_made_up_for_without_another_tick() -> None:
    store = IndexStore()
    leader = leading_engine(store)
    store.run(new_engine(store, "b").flush(chunk(5), store.now()))

    def lose_delete(request: core.Single) -> core.Value | None:
        return core.Lost("timeout") if isinstance(request, core.Delete) else None

    store.run(leader.sequence(store.now()), lose_delete)
    assert len(store.keys("/inbox/")) == 1

    store.run(leader.sequence(store.now()))
    assert store.keys("/inbox/") == []
    assert len(store.keys("/tick/")) == 2


def test_a_store_that_refuses_deletes_is_not_asked_every_second() -> None:
    store = IndexStore()
    leader, writer = leading_engine(store), new_engine(store, "w")

    def refuses(request: core.Single) -> core.Value | None:
        return core.Refused("policy") if isinstance(request, core.Delete) else None

    for fp in range(50):
        store.run(writer.write_segment(chunk(fp), store.now()))
        store.run(leader.sequence(store.now()), refuses)
    assert store.count(core.Delete) == 1
    assert set(range(50)) <= set(live(new_engine(store, "r")))


def test_unreadable_segments_are_deleted_after_an_hour_and_foreign_names_never() -> None:
    store = IndexStore()
    leader = leading_engine(store)
    bad, foreign = keys.segment_key(NS, b"x" * 16, 1), keys.inbox_prefix(NS) + "notes"
    store.objects[bad] = store.objects[foreign] = (b"junk", store.now_s)

    store.run(leader.sequence(store.now()))
    assert store.keys("/inbox/") == sorted([bad, foreign])

    store.now_s += 3_601.0
    store.run(leader.sequence(store.now()))
    assert store.keys("/inbox/") == [foreign]


def test_more_records_than_a_tick_holds_go_into_several_ticks_without_waiting() -> None:
    store = IndexStore()
    leader = leading_engine(store)
    for name, first in (("c", 0), ("b", 100_000)):
        fps = range(first, first + RECORDS_MAX - 10)
        store.run(new_engine(store, name).flush(chunk(*fps), store.now()))

    store.run(leader.act(store.now()))
    assert leader.due(store.now_s) <= store.now_s
    store.run(leader.act(store.now()))

    assert store.keys("/inbox/") == []
    older, newer = read_tick(store, 2)[1], read_tick(store, 3)[1]
    assert len(older) == len(newer) == RECORDS_MAX - 10
    assert older[0] == 0, "the one that waited longer goes first"


# ---------------------------------------------------------------- watermark and pause


def test_an_idle_leader_raises_the_watermark_when_something_dies_and_only_then() -> None:
    store = IndexStore()
    leader = leading_engine(store, settings=SequencerSettings(limits=Limits(ttl_s=600)))
    store.run(leader.flush(chunk(1, seen_s=int(store.now().unix_s)), store.now()))
    ticks = len(store.keys("/tick/"))

    for _ in range(200):
        store.now_s = leader.due(store.now_s)
        store.run(leader.act(store.now()))

    assert len(store.keys("/tick/")) == ticks + 1
    header, fps = read_tick(store, ticks + 1)
    assert fps == []
    assert header.watermark_s >= 1_001_000
    assert live(leader) == []


def test_a_full_archive_forgets_the_longest_unused() -> None:
    store = IndexStore()
    settings = SequencerSettings(limits=Limits(max_bytes=2 * 16 * 10, bytes_per_block=10))
    leader = leading_engine(store, settings=settings)
    store.now_s += 61.0
    now_s = int(store.now().unix_s)
    records = make_records([1, 2, 3], [now_s - 30, now_s - 20, now_s - 10], 16)

    store.run(leader.flush(records, store.now()))

    assert live(leader) == [2, 3]
    assert live(new_engine(store, "r")) == [2, 3]


def test_every_tick_repeats_the_pause_until_one_changes_it() -> None:
    store = IndexStore()
    leader = leading_engine(store)
    store.run(leader.sequence(store.now(), pause_bits=0b11))
    store.run(leader.flush(chunk(2), store.now()))
    other = new_engine(store, "b")
    store.run(other.sequence(store.now(), chunk(3)))

    assert [read_tick(store, n)[0].pause_bits for n in (1, 2, 3, 4)] == [0, 3, 3, 3]
    assert other.follower.snapshot.pause.loads
    assert other.follower.snapshot.pause.saves

    store.run(other.sequence(store.now(), pause_bits=0))
    assert not other.follower.snapshot.pause.loads


def test_a_sequence_may_be_abandoned_at_any_request_and_nothing_is_lost() -> None:
    for stop_at in range(12):
        store = IndexStore()
        leader = leading_engine(store)
        store.run(new_engine(store, "b").flush(chunk(5), store.now()))
        store.abandon(leader.sequence(store.now(), chunk(6)), stop_at)

        store.run(leader.sequence(store.now(), chunk(6)))

        assert live(new_engine(store, "r")) == [5, 6, 0xFFFF]
        assert store.keys("/inbox/") == []
