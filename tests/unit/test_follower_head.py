"""The follower: opening, polling, and when a 404 is believed."""

from __future__ import annotations

from s3kv.core import keys
from s3kv.core import requests as core
from s3kv.core.records import DEAD, make_records
from s3kv.core.snapshot import Pause
from tests.fakes.followers import (
    TTL_S,
    WRITER,
    chunk,
    live,
    new_follower,
    put_run,
    put_segment,
    put_tick,
)
from tests.fakes.index_store import NS, IndexStore


def test_an_empty_archive_opens_empty_and_fresh() -> None:
    store, follower = IndexStore(), new_follower()

    store.run(follower.open())

    assert follower.snapshot.opened
    assert follower.snapshot.is_fresh(store.now_s)
    assert live(follower) == []


def test_opening_reads_runs_ticks_and_the_inbox() -> None:
    store, follower = IndexStore(), new_follower()
    put_run(store, 1, 10, chunk(1))
    put_tick(store, 11, chunk(2))
    put_tick(store, 12, chunk(3))
    put_segment(store, 1, chunk(4))

    store.run(follower.open())

    assert live(follower) == [1, 2, 3, 4]
    assert follower.snapshot.head == 12
    assert follower.leader == WRITER
    assert not follower.snapshot.incomplete


def test_a_poll_at_the_head_is_one_request_and_proves_the_head() -> None:
    store, follower = IndexStore(), new_follower()
    store.run(follower.open())
    store.now_s += 1.0
    store.requests.clear()
    sent_s = store.now_s

    store.run(follower.poll())

    assert store.requests == [core.Get(keys.tick_key(NS, 1), 2**20 + 4_104)]
    assert follower.snapshot.head_seen_s == sent_s


def test_a_poll_after_one_new_tick_is_two_requests() -> None:
    store, follower = IndexStore(), new_follower()
    store.run(follower.open())
    put_tick(store, 1, chunk(1), watermark_s=50, interval_ms=3_000)
    store.requests.clear()

    store.run(follower.poll())

    assert len(store.requests) == 2
    assert live(follower) == [1]
    assert (follower.snapshot.watermark_s, follower.interval_ms) == (50, 3_000)


def test_many_ticks_after_an_outage_are_read_in_ever_larger_bites() -> None:
    store, follower = IndexStore(), new_follower()
    store.run(follower.open())
    for number in range(1, 301):
        put_tick(store, number, chunk(number))
    bites = []
    steps = follower.poll()
    request = next(steps)
    try:
        while True:
            bites.append(len(request.requests) if isinstance(request, core.All) else 1)
            request = steps.send(store.answer(request))
    except StopIteration:
        pass

    assert bites == [1, 1, 2, 4, 8, 16, 32, 64, 64, 64, 64]
    assert follower.snapshot.head == 300
    assert len(live(follower)) == 300


def test_a_reader_that_slept_does_not_believe_a_404() -> None:
    """Its next tick was written, folded into a run and cleaned up while it slept (R4)."""
    store, follower = IndexStore(), new_follower()
    store.run(follower.open())
    put_run(store, 1, 500, chunk(1))
    put_tick(store, 501, chunk(2))
    store.now_s += 7_200.0

    store.run(follower.poll())

    assert follower.snapshot.head == 501
    assert live(follower) == [1, 2]


def test_a_reader_that_slept_does_not_believe_a_tick_in_its_next_slot() -> None:
    """Its slot was cleaned up and filled by another sleeper; what it held is in a run (R4)."""
    store, follower = IndexStore(), new_follower()
    store.run(follower.open())
    put_run(store, 1, 500, chunk(1))
    put_tick(store, 1, chunk(9))
    put_tick(store, 501, chunk(2))
    store.now_s += 7_200.0

    store.run(follower.poll())

    assert follower.snapshot.head == 501
    assert live(follower) == [1, 2]


def test_a_reader_that_slept_at_the_true_head_proves_it_again() -> None:
    store, follower = IndexStore(), new_follower()
    put_tick(store, 1, chunk(1))
    store.run(follower.open())
    put_segment(store, 1, chunk(2))
    store.now_s += 7_200.0

    store.run(follower.poll())

    assert follower.snapshot.is_fresh(store.now_s)
    assert live(follower) == [1, 2], "a resync reads the inbox"


def test_a_slow_404_is_not_believed_either() -> None:
    store, follower = IndexStore(), new_follower()
    store.run(follower.open())

    def slow_first_get(request: core.Single) -> core.Value | None:
        if isinstance(request, core.Get) and not any(
            isinstance(sent, core.ListPrefix) for sent in store.requests
        ):
            store.now_s += TTL_S + 1
        return None

    store.requests.clear()
    store.run(follower.poll(), slow_first_get)

    assert store.count(core.ListPrefix) == 3


def test_the_newest_tick_decides_the_pause_and_the_greatest_watermark_counts() -> None:
    store, follower = IndexStore(), new_follower()
    put_tick(store, 1, chunk(1), pause_bits=0b11, watermark_s=50)
    put_tick(store, 2, chunk(2), pause_bits=0b10, watermark_s=40)
    store.run(follower.open())

    assert follower.snapshot.pause == Pause(loads=False, saves=True)
    assert follower.snapshot.watermark_s == 50

    put_tick(store, 3, chunk(3))
    store.run(follower.poll())
    assert follower.snapshot.pause == Pause()


def test_a_run_carries_the_pause_of_its_last_tick() -> None:
    store, follower = IndexStore(), new_follower()
    put_run(store, 1, 9, chunk(1), pause_bits=1)

    store.run(follower.open())

    assert follower.snapshot.pause.loads


def test_what_the_process_knows_itself_is_in_its_view_at_once() -> None:
    store, follower = IndexStore(), new_follower()
    put_tick(store, 1, chunk(1))
    store.run(follower.open())

    follower.note(make_records([1], 101, 0, DEAD))
    follower.note(chunk(2))

    assert live(follower) == [2]
