"""The sequencer: commits, folding, elections, watermark, pause, and its rhythm."""

from __future__ import annotations

import random

import pytest

from s3kv.core import keys
from s3kv.core import requests as core
from s3kv.core.follower import Follower
from s3kv.core.indexfile import Header, Kind, decode, encode
from s3kv.core.records import RECORDS_MAX, RecordSet, make_records
from s3kv.core.sequencer import Sequencer, SequencerSettings
from s3kv.errors import Denied, Transient
from tests.fakes.index_store import NS, IndexStore, make_header

TTL_S = 60.0


def new_engine(
    store: IndexStore, name: str = "a", settings: SequencerSettings | None = None
) -> Sequencer:
    follower = Follower(NS, TTL_S)
    store.run(follower.open())
    writer = name.encode() * 16
    return Sequencer(follower, writer, settings or SequencerSettings(), random.Random(1))


def chunk(*fps: int, seen_s: int = 1_001_000) -> RecordSet:
    return make_records(fps, seen_s, 16)


def read_tick(store: IndexStore, number: int) -> tuple[Header, list[int]]:
    header, records = decode(
        store.objects[keys.tick_key(NS, number)][0], NS, Kind.TICK, number, number
    )
    return header, records.fps.tolist()


def leading_engine(
    store: IndexStore, name: str = "a", settings: SequencerSettings | None = None
) -> Sequencer:
    engine = new_engine(store, name, settings)
    store.run(engine.sequence(store.now(), chunk(0xFFFF)))
    assert engine.leads
    return engine


def live(engine: Sequencer) -> list[int]:
    return [int(fp) for fp in engine.follower.snapshot.live().fps]


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


# ---------------------------------------------------------------- elections


def test_one_of_two_sequencers_wins_and_the_other_steps_down_without_losing_its_records() -> None:
    store = IndexStore()
    first = leading_engine(store, "a")
    second = new_engine(store, "b")
    store.run(second.sequence(store.now(), chunk(5)))
    assert second.leads

    store.run(first.flush(chunk(6), store.now()))

    assert not first.leads
    assert live(first) == [5, 6, 0xFFFF]
    store.run(second.sequence(store.now()))
    assert live(second) == [5, 6, 0xFFFF]


def test_a_lost_reply_to_a_create_is_recognised_as_our_own_tick() -> None:
    store = IndexStore()
    leader = leading_engine(store)
    store.run(new_engine(store, "b").flush(chunk(5), store.now()))
    lost: list[core.Value] = []

    def lose_first_create(request: core.Single) -> core.Value | None:
        if isinstance(request, core.Create) and not lost:
            lost.append(store.carry_out(request))
            return core.Lost("timeout")
        return None

    store.run(leader.flush(chunk(6), store.now()), lose_first_create)

    assert leader.leads
    assert store.keys("/inbox/") == []
    assert len(store.keys("/tick/")) == 2, "once is enough"


def test_a_create_that_stays_unknown_is_transient_and_its_tick_is_found_later() -> None:
    store = IndexStore()
    leader = leading_engine(store)

    def apply_and_lose(request: core.Single) -> core.Value | None:
        if isinstance(request, core.Create):
            store.carry_out(request)
            return core.Lost("timeout")
        return None

    with pytest.raises(Transient):
        store.run(leader.flush(chunk(6), store.now()), apply_and_lose)
    store.run(leader.follower.poll())

    assert live(leader) == [6, 0xFFFF]
    assert leader.leads


def test_a_slow_success_is_not_believed() -> None:
    """The slot was used and cleaned up while the leader slept: its tick lands in the past (R3)."""
    store = IndexStore()
    leader = leading_engine(store)

    def sleep_through_cleanup(request: core.Single) -> core.Value | None:
        if isinstance(request, core.Create) and request.key == keys.tick_key(NS, 2):
            store.now_s += 7_200.0
            run = encode(make_header(Kind.RUN, 1, 50), chunk(40))
            store.objects[keys.run_key(NS, 1, 50)] = (run, store.now_s)
            del store.objects[keys.tick_key(NS, 1)]
        return None

    store.run(leader.flush(chunk(6), store.now()), sleep_through_cleanup)

    assert leader.distrust_count == 1
    reader = new_engine(store, "r")
    assert live(reader) == [6, 40], "the records were published again, beyond the run"


def test_a_leader_that_slept_follows_before_it_writes() -> None:
    store = IndexStore()
    leader = leading_engine(store)
    store.run(new_engine(store, "b").sequence(store.now(), chunk(5)))
    store.now_s += TTL_S / 2 + 1
    store.requests.clear()

    store.run(leader.flush(chunk(6), store.now()))

    first = store.requests[0]
    assert isinstance(first, core.Get)
    assert first.key == keys.tick_key(NS, 2)
    assert live(leader) == [5, 6, 0xFFFF]


# ---------------------------------------------------------------- rhythm and take-over


def test_one_that_opens_looks_into_the_inbox_at_once_and_then_every_minute() -> None:
    store = IndexStore()
    engine = new_engine(store)
    assert engine.due(store.now_s) <= store.now_s

    store.run(engine.act(store.now()))

    assert engine.due(store.now_s) == pytest.approx(store.now_s + 60.0, abs=0.1)


def test_a_segment_that_waits_too_long_makes_its_reader_take_over() -> None:
    store = IndexStore()
    dead = new_engine(store, "d")
    store.run(dead.flush(chunk(5), store.now()))
    store.now_s += 5.1

    opener = new_engine(store, "o")
    store.run(opener.act(store.now()))

    assert opener.leads
    assert opener.takeover_count == 1
    assert read_tick(store, 1)[1] == [5]
    assert store.keys("/inbox/") == []


def test_a_young_segment_is_left_to_its_sequencer() -> None:
    store = IndexStore()
    store.run(new_engine(store, "d").flush(chunk(5), store.now()))
    store.now_s += 1.0

    opener = new_engine(store, "o")
    store.run(opener.act(store.now()))

    assert not opener.leads
    assert store.now_s < opener.due(store.now_s) < store.now_s + 5.0, "it looks again"


def test_own_commits_are_looked_after_within_five_seconds() -> None:
    store = IndexStore()
    engine = new_engine(store)
    store.run(engine.act(store.now()))
    store.run(engine.flush(chunk(5), store.now()))
    due_s = engine.due(store.now_s)
    assert store.now_s + 1.9 < due_s < store.now_s + 5.1

    store.now_s = due_s
    store.run(engine.act(store.now()))
    store.now_s = max(store.now_s, engine.due(store.now_s))
    store.run(engine.act(store.now()))

    assert engine.leads


def test_a_steady_stream_of_commits_does_not_put_off_the_take_over() -> None:
    store = IndexStore()
    engine = new_engine(store)
    store.run(engine.act(store.now()))
    for fp in range(8):
        store.run(engine.flush(chunk(fp), store.now()))
        store.now_s += 1.0
        if engine.due(store.now_s) <= store.now_s:
            store.run(engine.act(store.now()))

    assert engine.leads


def test_while_another_sequencer_lives_own_commits_cost_no_listing() -> None:
    store = IndexStore()
    leader, writer = leading_engine(store, "a"), new_engine(store, "b")
    store.run(writer.act(store.now()))
    store.run(writer.flush(chunk(5), store.now()))
    store.run(leader.sequence(store.now()))
    store.run(writer.follower.poll())
    store.now_s += 6.0
    store.requests.clear()

    store.run(writer.act(store.now()))

    assert store.requests == []
    assert not writer.leads


def test_a_store_without_dates_does_not_prevent_a_take_over() -> None:
    store = IndexStore()
    store.run(new_engine(store, "d").flush(chunk(5), store.now()))
    opener = new_engine(store, "o")

    def dateless(request: core.Single) -> core.Value | None:
        if not isinstance(request, core.ListPrefix):
            return None
        found = core.listed(core.Reply(store.carry_out(request), 0.0, 0.0))
        return tuple(core.Listed(each.key, each.size, each.modified_s, 0.0) for each in found)

    store.run(opener.act(store.now()), dateless)
    store.now_s += 5.1
    store.run(opener.act(store.now()), dateless)

    assert opener.leads


def test_the_leader_folds_every_second_while_there_is_news_and_every_five_when_idle() -> None:
    store = IndexStore()
    leader = leading_engine(store)
    waits = []
    for _ in range(80):
        waits.append(leader.due(store.now_s) - store.now_s)
        store.now_s = leader.due(store.now_s)
        store.run(leader.act(store.now()))

    assert waits[1] == pytest.approx(1.0, abs=0.1)
    assert waits[-1] == pytest.approx(5.0, abs=0.1)
    assert 55 < sum(wait < 2 for wait in waits) < 65


def test_advice_to_writers_grows_with_their_number() -> None:
    store = IndexStore()
    leader = leading_engine(store)
    assert read_tick(store, 1)[0].interval_ms == 1_000
    for i in range(90):
        record = encode(make_header(Kind.SEGMENT, 1), chunk(i))
        writer = i.to_bytes(16, "big")
        store.objects[keys.segment_key(NS, writer, 1)] = (record, store.now_s)

    store.run(leader.act(store.now()))

    assert read_tick(store, 2)[0].interval_ms == 3_000


# ---------------------------------------------------------------- watermark and pause


def test_an_idle_leader_raises_the_watermark_when_something_dies_and_only_then() -> None:
    store = IndexStore()
    leader = leading_engine(store, settings=SequencerSettings(ttl_s=600))
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
    settings = SequencerSettings(max_bytes=2 * 16 * 10, bytes_per_block=10)
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
        steps = leader.sequence(store.now(), chunk(6))
        request = next(steps)
        for _ in range(stop_at):
            try:
                request = steps.send(store.answer(request))
            except StopIteration:
                break
        steps.close()

        store.run(leader.sequence(store.now(), chunk(6)))

        assert live(new_engine(store, "r")) == [5, 6, 0xFFFF]
        assert store.keys("/inbox/") == []
