"""Who sequences and when: elections, take-overs, and the rhythm of folding."""

from __future__ import annotations

import pytest

from s3kv.core import keys
from s3kv.core import requests as core
from s3kv.core.indexfile import Kind, encode
from s3kv.core.sequencer import Sequencer
from s3kv.errors import Transient
from tests.fakes.index_store import NS, IndexStore, make_header
from tests.fakes.sequencers import TTL_S, chunk, leading_engine, live, new_engine, read_tick

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


def test_records_that_waited_too_long_are_in_no_request_whoever_leads_by_then() -> None:
    """Found by the simulation: a sleeper's use of a chunk that was swept meanwhile (R5)."""
    store = IndexStore()
    leader = leading_engine(store)

    def sleep_while_another_takes_the_slot(request: core.Single) -> core.Value | None:
        if isinstance(request, core.Create) and request.key == keys.tick_key(NS, 2):
            body = encode(make_header(Kind.TICK, 2, writer=b"b" * 16), chunk(5))
            store.objects[request.key] = (body, store.now_s)
            store.now_s += 2_000.0
        return None

    with pytest.raises(Transient, match="too late"):
        store.run(
            leader.flush(chunk(6), store.now(), by_s=store.now_s + 1_800.0),
            sleep_while_another_takes_the_slot,
        )

    assert store.keys("/inbox/") == []
    assert live(new_engine(store, "r")) == [5, 0xFFFF]


def test_a_tick_is_not_sent_when_the_time_of_its_records_is_over() -> None:
    store = IndexStore()
    leader = leading_engine(store)

    with pytest.raises(Transient, match="too late"):
        store.run(leader.flush(chunk(6), store.now(), by_s=store.now_s - 1.0))

    assert len(store.keys("/tick/")) == 1


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


def test_a_commit_that_few_ticks_follow_costs_one_listing() -> None:
    """The tick that came may have been on its way before: its maker may have died since."""
    store = IndexStore()
    leader, writer = leading_engine(store, "a"), new_engine(store, "b")
    store.run(writer.act(store.now()))
    store.run(writer.flush(chunk(5), store.now()))
    store.run(leader.sequence(store.now()))
    store.run(writer.follower.poll())
    store.requests.clear()

    for _ in range(50):
        store.now_s += 0.5
        if writer.due(store.now_s) <= store.now_s:
            store.run(writer.act(store.now()))

    assert store.count(core.ListPrefix) == 1
    assert not writer.leads


def test_a_leader_that_dies_right_after_a_tick_is_missed_within_the_patience() -> None:
    """That tick had not seen the segment, but came after it."""
    store = IndexStore()
    leader, writer = leading_engine(store, "a"), new_engine(store, "b")
    store.run(writer.act(store.now()))
    hidden = store.run(_tick_without_the_inbox(store, leader, writer))
    assert hidden == 1

    end_s = store.now_s + 6.5
    while store.now_s < end_s:
        store.now_s += 0.5
        if writer.due(store.now_s) <= store.now_s:
            store.run(writer.act(store.now()))
    assert writer.leads
    assert 5 in live(new_engine(store, "r"))


def _tick_without_the_inbox(
    store: IndexStore, leader: Sequencer, writer: Sequencer
) -> core.Steps[int]:
    """The leader makes a tick while the segment comes to lie in the inbox."""
    folding = leader.sequence(store.now(), chunk(7))
    request = next(folding)
    while not isinstance(request, core.Create):
        request = folding.send((yield request))
    store.run(writer.flush(chunk(5), store.now()))
    yield request
    folding.close()
    yield from writer.follower.poll()
    return len(store.keys("/inbox/"))


def test_a_stream_of_commits_costs_no_listing_while_another_sequencer_lives() -> None:
    store = IndexStore()
    leader, writer = leading_engine(store, "a"), new_engine(store, "b")
    store.run(writer.act(store.now()))
    store.requests.clear()
    for fp in range(30):
        store.run(writer.flush(chunk(fp), store.now()))
        store.now_s += 0.5
        store.run(leader.sequence(store.now()))
        before = store.count(core.ListPrefix)
        store.run(writer.flush(chunk(100 + fp), store.now()))
        store.run(writer.follower.poll())
        if writer.due(store.now_s) <= store.now_s:
            store.run(writer.act(store.now()))
        assert store.count(core.ListPrefix) == before
        store.now_s += 0.5

    # And when it dies, the last commit is looked after.
    for _ in range(12):
        store.now_s += 0.5
        if writer.due(store.now_s) <= store.now_s:
            store.run(writer.act(store.now()))
    assert writer.leads


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
