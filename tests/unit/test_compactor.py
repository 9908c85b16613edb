"""Runs hold what their ticks held, and only what runs repeat is deleted."""

from __future__ import annotations

import pytest

from s3kv.core import keys
from s3kv.core import requests as core
from s3kv.core.compactor import Compactor, CompactorSettings
from s3kv.core.forgetting import Limits
from s3kv.core.indexfile import Kind, decode
from s3kv.core.records import DEAD, make_records
from s3kv.core.sequencer import Sequencer, SequencerSettings
from s3kv.errors import Corrupt, Denied, Mismatch, Transient
from tests.fakes.index_store import NS, IndexStore
from tests.fakes.sequencers import chunk, leading_engine, live, new_engine

MARGIN_S = 3_600.0
TICKS = 5


def compactor_of(engine: Sequencer) -> Compactor:
    settings = CompactorSettings(ticks_min=TICKS, margin_s=MARGIN_S)
    return Compactor(engine.follower, engine.writer, settings)


def filled(store: IndexStore) -> Sequencer:
    """A log of ticks 1..6 with one chunk each."""
    leader = leading_engine(store)
    for fp in range(1, TICKS + 1):
        store.run(leader.flush(chunk(fp), store.now()))
    return leader


def test_piled_up_ticks_become_a_run_that_holds_them_all() -> None:
    store = IndexStore()
    leader = filled(store)

    store.run(compactor_of(leader).act(store.now()))

    body = store.objects[keys.run_key(NS, 1, TICKS + 1)][0]
    header, records = decode(body, NS, Kind.RUN, 1, TICKS + 1)
    assert records.fps.tolist() == [1, 2, 3, 4, 5, 0xFFFF]
    assert header.watermark_s == leader.follower.snapshot.watermark_s
    assert len(store.keys("/tick/")) == TICKS + 1, "nothing goes before the margin is over"


def test_what_a_run_repeats_goes_when_the_run_is_older_than_the_margin() -> None:
    store = IndexStore()
    leader = filled(store)
    made = compactor_of(leader)
    store.run(made.act(store.now()))
    store.now_s += MARGIN_S

    store.run(made.act(store.now()))

    assert store.keys("/tick/") == [keys.tick_key(NS, TICKS + 1)], "the head tells who leads"
    assert live(new_engine(store, "r")) == [1, 2, 3, 4, 5, 0xFFFF]


def test_a_run_leaves_out_what_is_below_the_watermark_only() -> None:
    store = IndexStore()
    settings = SequencerSettings(limits=Limits(ttl_s=600), watermark_check_s=0)
    leader = leading_engine(store, settings=settings)
    now_s = int(store.now().unix_s)
    lost = make_records([1, 2], [now_s - 700, now_s - 500], 0, int(DEAD))
    store.run(leader.flush(lost, store.now()))
    for fp in range(3, TICKS + 3):
        store.run(leader.flush(chunk(fp, seen_s=now_s), store.now()))

    store.run(compactor_of(leader).act(store.now()))

    (name,) = store.keys("/run/")
    span = keys.parse_run_key(name)
    assert span is not None
    _, records = decode(store.objects[name][0], NS, Kind.RUN, span.lo, span.hi)
    assert 1 not in records.fps.tolist()
    assert 2 in records.fps.tolist(), "else a sweep would adopt the bad shard (R9)"


@pytest.mark.parametrize("body", [b"damaged", b""])
def test_a_run_that_cannot_be_read_is_no_reason_to_delete_a_tick(body: bytes) -> None:
    store = IndexStore()
    leader = filled(store)
    made = compactor_of(leader)
    store.run(made.act(store.now()))
    (name,) = store.keys("/run/")
    store.carry_out(core.Put(name, body))
    store.now_s += 2 * MARGIN_S

    store.run(made.act(store.now()))
    assert len(store.keys("/tick/")) == TICKS + 1
    assert live(new_engine(store, "r")) == [1, 2, 3, 4, 5, 0xFFFF]


def test_a_run_is_read_once_before_what_it_repeats_goes() -> None:
    store = IndexStore()
    leader = filled(store)
    made = compactor_of(leader)
    store.run(made.act(store.now()))
    (name,) = store.keys("/run/")
    store.now_s += MARGIN_S

    def reads() -> int:
        return sum(isinstance(each, core.Get) and each.key == name for each in store.requests)

    assert reads() == 0
    for _ in range(3):
        store.run(made.act(store.now()))
        store.run(leader.flush(chunk(9), store.now()))
    assert reads() == 1


def test_a_young_tick_that_cannot_be_read_stops_compaction_and_an_old_one_does_not() -> None:
    store = IndexStore()
    leader = filled(store)
    key = keys.tick_key(NS, 3)
    store.objects[key] = (b"damaged", store.now_s)
    made = compactor_of(leader)

    with pytest.raises(Corrupt):
        store.run(made.act(store.now()))
    assert store.keys("/run/") == []

    store.now_s += MARGIN_S
    store.run(made.act(store.now()))
    assert len(store.keys("/run/")) == 1
    assert live(new_engine(store, "r")) == [1, 3, 4, 5, 0xFFFF]


def test_a_tick_that_was_never_finished_stops_nothing() -> None:
    store = IndexStore()
    leader = filled(store)
    store.objects[keys.tick_key(NS, 3)] = (b"", store.now_s)
    store.run(compactor_of(leader).act(store.now()))
    assert len(store.keys("/run/")) == 1


def test_a_tick_that_is_cleaned_up_by_another_meanwhile_is_no_gap_in_a_run() -> None:
    store = IndexStore()
    leader = filled(store)

    def vanish(request: core.Single) -> core.Value | None:
        if isinstance(request, core.Get) and request.key == keys.tick_key(NS, 2):
            return core.Absent()
        return None

    with pytest.raises(Transient):
        store.run(compactor_of(leader).act(store.now()), vanish)
    assert store.keys("/run/") == []


def test_the_log_is_looked_at_when_ticks_have_piled_up_or_an_hour_has_passed() -> None:
    store = IndexStore()
    leader = filled(store)
    made = compactor_of(leader)
    assert made.due(store.now_s) <= store.now_s
    store.run(made.act(store.now()))
    assert made.due(store.now_s) > store.now_s

    for fp in range(10, 10 + TICKS):
        store.run(leader.flush(chunk(fp), store.now()))
    assert made.due(store.now_s) <= store.now_s


# ---------------------------------------------------------------- a damaged log


def complete(store: IndexStore) -> bool:
    """Whether a starter reads a log without holes."""
    return not new_engine(store, "r").follower.snapshot.incomplete


def test_a_log_whose_beginning_is_gone_is_whole_again_after_an_hour() -> None:
    """`idx/` deleted under a running fleet: whoever leads goes on with the next number."""
    store = IndexStore()
    leader = filled(store)
    for name in store.keys("/tick/"):
        del store.objects[name]
    store.run(leader.flush(chunk(50), store.now()))
    assert not complete(store)
    made = compactor_of(leader)
    store.run(made.act(store.now()))
    assert store.keys("/run/") == [], "a listing may race a clean-up"

    store.now_s += MARGIN_S
    store.run(leader.flush(chunk(51), store.now()))
    store.run(made.act(store.now()))
    assert complete(store)
    assert live(new_engine(store, "r")) == [50, 51]
    for fp in range(60, 60 + TICKS):
        store.run(leader.flush(chunk(fp), store.now()))
    store.now_s += MARGIN_S
    store.run(made.act(store.now()))
    assert complete(store), "and merging goes on"


def test_a_run_that_is_gone_costs_what_it_held_and_no_more() -> None:
    store = IndexStore()
    leader = filled(store)
    made = compactor_of(leader)
    store.run(made.act(store.now()))
    store.now_s += MARGIN_S
    store.run(made.act(store.now()))
    (name,) = store.keys("/run/")
    store.run(leader.flush(chunk(50), store.now()))
    del store.objects[name]
    store.now_s += 2 * MARGIN_S

    store.run(made.act(store.now()))
    assert complete(store)
    assert 50 in live(new_engine(store, "r"))


def test_a_run_that_cannot_be_read_is_left_out_of_the_next_one() -> None:
    store = IndexStore()
    leader = filled(store)
    made = compactor_of(leader)
    store.run(made.act(store.now()))
    (name,) = store.keys("/run/")
    store.carry_out(core.Put(name, b"x" * 100))
    for fp in range(60, 60 + TICKS):
        store.run(leader.flush(chunk(fp), store.now()))
    with pytest.raises(Corrupt):
        store.run(made.act(store.now()))

    store.now_s += 2 * MARGIN_S
    store.run(made.act(store.now()))
    assert len(store.keys("/run/")) == 2
    assert {1, 2, 3, 4, 5, 60, 64} <= set(live(new_engine(store, "r")))


def test_a_tick_under_another_s_name_is_given_up_like_a_damaged_one() -> None:
    store = IndexStore()
    leader = filled(store)
    store.objects[keys.tick_key(NS, 3)] = store.objects[keys.tick_key(NS, 2)]
    made = compactor_of(leader)
    with pytest.raises(Mismatch):
        store.run(made.act(store.now()))
    store.now_s += MARGIN_S
    store.run(made.act(store.now()))
    assert len(store.keys("/run/")) == 1


def test_an_emptied_log_is_noticed_by_who_leads() -> None:
    store = IndexStore()
    leader = filled(store)
    made = compactor_of(leader)
    for name in store.keys("/tick/"):
        del store.objects[name]
    store.run(made.act(store.now()))
    store.run(leader.follower.poll())
    assert leader.follower.snapshot.head == 0
    store.run(leader.flush(chunk(9), store.now()))
    store.run(leader.sequence(store.now()))
    assert live(new_engine(store, "r")) == [9]


def test_a_store_that_takes_no_run_is_not_read_again_and_again() -> None:
    store = IndexStore()
    leader = filled(store)
    made = compactor_of(leader)

    def full(request: core.Single) -> core.Value | None:
        is_run = isinstance(request, core.Put) and "/run/" in request.key
        return core.Lost("reset") if is_run else None

    pauses = []
    for _ in range(8):
        with pytest.raises(Transient):
            store.run(made.act(store.now()), full)
        pauses.append(made.due(store.now_s) - store.now_s)
        store.now_s = made.due(store.now_s)
    assert pauses[:3] == pytest.approx([60, 120, 240], abs=1)
    assert pauses[-1] <= 3_600
    store.run(made.act(store.now()))
    assert store.keys("/run/")


def test_a_store_that_refuses_is_asked_again_an_hour_later() -> None:
    store = IndexStore()
    made = compactor_of(filled(store))

    def refuses(request: core.Single) -> core.Value | None:
        return core.Refused("policy") if isinstance(request, core.ListPrefix) else None

    with pytest.raises(Denied):
        store.run(made.act(store.now()), refuses)
    assert made.due(store.now_s) > store.now_s + 3_500
