"""The follower: damage, races and lost replies cost no record that can still be read."""

from __future__ import annotations

import pytest

from s3kv.core import keys
from s3kv.core import requests as core
from s3kv.core.indexfile import Kind, encode
from s3kv.core.records import make_records
from s3kv.errors import Denied, Transient
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
from tests.fakes.index_store import NS, IndexStore, make_header


@pytest.mark.parametrize("body", [b"\0", b"junk", encode(make_header(Kind.TICK, 9), chunk(9))])
def test_an_unreadable_tick_is_skipped_and_the_index_says_that_it_is_incomplete(
    body: bytes,
) -> None:
    store, follower = IndexStore(), new_follower()
    put_tick(store, 1, chunk(1))
    store.objects[keys.tick_key(NS, 2)] = (body, 0.0)
    put_tick(store, 3, chunk(3))

    store.run(follower.open())

    assert live(follower) == [1, 3]
    assert follower.snapshot.incomplete
    assert follower.skipped_count == 1


def test_a_tick_that_was_never_finished_is_skipped_and_lacks_nothing() -> None:
    """Some stores keep an empty object when the client dies inside its PUT."""
    store, follower = IndexStore(), new_follower()
    put_tick(store, 1, chunk(1))
    store.objects[keys.tick_key(NS, 2)] = (b"", 0.0)
    put_tick(store, 3, chunk(3))

    store.run(follower.open())

    assert live(follower) == [1, 3]
    assert follower.snapshot.head == 3
    assert not follower.snapshot.incomplete


def test_a_tick_that_is_too_large_to_be_one_is_skipped() -> None:
    store, follower = IndexStore(), new_follower()
    store.objects[keys.tick_key(NS, 1)] = (bytes(2**21), 0.0)

    store.run(follower.open())

    assert follower.snapshot.head == 1
    assert follower.leader is None, "nobody is known to lead"


def test_an_unreadable_run_is_replaced_by_a_smaller_cover() -> None:
    store, follower = IndexStore(), new_follower()
    put_run(store, 1, 5, chunk(1))
    put_run(store, 6, 9, chunk(2))
    store.objects[keys.run_key(NS, 1, 9)] = (b"junk", 0.0)
    put_tick(store, 10, chunk(3))

    store.run(follower.open())

    assert live(follower) == [1, 2, 3]
    assert not follower.snapshot.incomplete


def test_a_log_with_a_hole_is_read_around_it() -> None:
    store, follower = IndexStore(), new_follower()
    put_run(store, 1, 5, chunk(1))
    put_tick(store, 9, chunk(2))
    put_tick(store, 11, chunk(3))

    store.run(follower.open())

    assert live(follower) == [1, 2, 3]
    assert follower.snapshot.head == 11
    assert follower.snapshot.incomplete


def test_a_run_that_is_superseded_under_the_reader_makes_it_list_again() -> None:
    store, follower = IndexStore(), new_follower()
    put_run(store, 1, 5, chunk(1))

    def supersede(request: core.Single) -> core.Value | None:
        if isinstance(request, core.Get) and "/run/" in request.key:
            old = keys.run_key(NS, 1, 5)
            if old in store.objects:
                del store.objects[old]
                put_run(store, 1, 8, make_records([1, 2], 100, 16))
        return None

    store.run(follower.open(), supersede)

    assert live(follower) == [1, 2]
    assert follower.snapshot.head == 8
    assert not follower.snapshot.incomplete


def test_a_gap_that_was_only_a_race_with_a_clean_up_is_no_damage() -> None:
    store, follower = IndexStore(), new_follower()
    put_run(store, 1, 5, chunk(1))
    put_tick(store, 6, chunk(2))
    stale = [core.ListPrefix(keys.run_prefix(NS))]

    def list_runs_of_before(request: core.Single) -> core.Value | None:
        if request in stale:
            stale.clear()
            return ()
        return None

    store.run(follower.open(), list_runs_of_before)

    assert live(follower) == [1, 2]
    assert not follower.snapshot.incomplete


def test_a_404_before_ticks_that_exist_is_not_the_head() -> None:
    """Many ticks are read at once: one may be asked for just before it is made, the next after."""
    store, follower = IndexStore(), new_follower()
    store.run(follower.open())
    for number in range(1, 9):
        put_tick(store, number, chunk(number))
    early = [keys.tick_key(NS, 6)]

    def ask_too_early(request: core.Single) -> core.Value | None:
        if isinstance(request, core.Get) and request.key in early:
            early.clear()
            return core.Absent()
        return None

    store.run(follower.poll(), ask_too_early)

    assert follower.snapshot.head == 8
    assert live(follower) == list(range(1, 9))


def test_nobody_leads_when_the_newest_tick_cannot_be_read() -> None:
    store, follower = IndexStore(), new_follower()
    put_tick(store, 1, chunk(1))
    store.run(follower.open())
    assert follower.leader == WRITER

    store.objects[keys.tick_key(NS, 2)] = (b"junk", 0.0)
    store.run(follower.poll())

    assert follower.leader is None


def test_a_segment_that_is_folded_while_the_reader_opens_is_found_in_its_tick() -> None:
    store, follower = IndexStore(), new_follower()
    put_segment(store, 1, chunk(4))

    def fold(request: core.Single) -> core.Value | None:
        if isinstance(request, core.Get) and "/inbox/" in request.key:
            put_tick(store, 1, chunk(4))
            store.objects.pop(request.key, None)
        return None

    store.run(follower.open(), fold)

    assert live(follower) == [4]


def test_unreadable_segments_and_foreign_names_are_passed_over() -> None:
    store, follower = IndexStore(), new_follower()
    put_segment(store, 1, chunk(4))
    store.objects[keys.segment_key(NS, WRITER, 2)] = (b"junk", 0.0)
    for prefix in (keys.inbox_prefix(NS), keys.tick_prefix(NS), keys.run_prefix(NS)):
        store.objects[prefix + "README"] = (b"hello", 0.0)

    store.run(follower.open())

    assert live(follower) == [4]
    assert not any(isinstance(r, core.Get) and "README" in r.key for r in store.requests)


def test_an_archive_that_was_emptied_and_begun_anew_is_read_anew() -> None:
    store, follower = IndexStore(), new_follower()
    for number in range(1, 6):
        put_tick(store, number, chunk(number))
    store.run(follower.open())
    store.objects.clear()
    put_tick(store, 1, chunk(77))
    store.now_s += 2 * TTL_S

    store.run(follower.poll())

    assert live(follower) == [77]
    assert follower.snapshot.head == 1


def test_lost_replies_are_asked_for_again() -> None:
    store, follower = IndexStore(), new_follower()
    put_tick(store, 1, chunk(1))
    seen: set[core.Single] = set()

    def lose_first(request: core.Single) -> core.Value | None:
        if request in seen:
            return None
        seen.add(request)
        return core.Lost("no reply")

    store.run(follower.open(), lose_first)

    assert live(follower) == [1]


def test_a_store_that_never_answers_is_transient_and_one_that_refuses_is_denied() -> None:
    store, follower = IndexStore(), new_follower()

    with pytest.raises(Transient):
        store.run(follower.open(), lambda request: core.Lost("no reply"))
    tries = len(store.requests)
    with pytest.raises(Denied):
        store.run(follower.open(), lambda request: core.Refused("403"))

    assert tries == 12, "three listings, four times each"
    assert len(store.requests) == tries + 3, "a refusal is not repeated"
    assert not follower.snapshot.opened


def test_a_poll_may_be_abandoned_at_any_request_and_tried_again() -> None:
    for stop_at in range(12):
        store, follower = IndexStore(), new_follower()
        store.run(follower.open())
        for number in range(1, 8):
            put_tick(store, number, chunk(number))
        store.abandon(follower.poll(), stop_at)

        store.run(follower.poll())

        assert live(follower) == list(range(1, 8))
