"""Large merges are somebody else's work, and nothing that is learnt meanwhile is lost."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from s3kv.core import follower as module
from s3kv.core import requests as core
from s3kv.core.follower import UNSETTLED_FACTOR, Follower
from s3kv.core.indexfile import Kind, encode
from s3kv.core.records import DEAD, RecordSet, make_records, merge
from tests.fakes.followers import TTL_S, chunk, live, put_run, put_segment, put_tick
from tests.fakes.index_store import NS, IndexStore, make_header

RECENT_MAX = 4


def small_follower() -> Follower:
    return Follower(NS, TTL_S, RECENT_MAX)


def many(*fps: int, seen_s: int = 100) -> RecordSet:
    return make_records(fps, seen_s, 16)


def run(
    store: IndexStore, steps: core.Steps[None], meanwhile: Callable[[], None] = lambda: None
) -> int:
    """Carry a protocol out; `meanwhile` happens while a computation runs. Counts those."""
    count = 0
    try:
        request = next(steps)
        while True:
            if isinstance(request, core.Work):
                count += 1
                value = request.function()
                meanwhile()
                request = steps.send(core.Reply(core.Computed(value), store.now_s, store.now_s))
            else:
                request = steps.send(store.answer(request))
    except StopIteration:
        return count


def noting(follower: Follower, news: Sequence[RecordSet]) -> Callable[[], None]:
    def note_all() -> None:
        for records in news:
            follower.note(records)

    return note_all


def known(follower: Follower) -> list[tuple[int, ...]]:
    whole = follower.snapshot.whole()
    columns = (whole.fps, whole.seen_s, whole.blocks, whole.flags)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def rows(records: RecordSet) -> list[tuple[int, ...]]:
    columns = (records.fps, records.seen_s, records.blocks, records.flags)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def test_few_news_are_merged_at_once_and_many_off_the_loop_thread() -> None:
    store, follower = IndexStore(), small_follower()
    put_tick(store, 1, many(1, 2))
    assert run(store, follower.open()) == 0
    assert len(follower.snapshot.base) == 0

    put_tick(store, 2, many(*range(10, 20)))
    assert run(store, follower.poll()) == 1
    assert len(follower.snapshot.base) == 12
    assert len(follower.snapshot.recent) == 0
    assert live(follower) == [1, 2, *range(10, 20)]


def test_what_is_noted_while_the_base_is_made_anew_is_kept_and_the_winners_win() -> None:
    store, follower = IndexStore(), small_follower()
    put_tick(store, 1, many(1, 2, 3))
    run(store, follower.open())
    put_tick(store, 2, many(2, 10, 11, 12, 13, seen_s=200))
    news = [
        make_records([1], 300, 0, DEAD),  # of the old base's chunk
        make_records([10], 150, 0, DEAD),  # older than what the computation knows already
        make_records([11], 250, 7),  # newer than it
        make_records([99], 10, 16),  # of nobody's
    ]

    assert run(store, follower.poll(), noting(follower, news)) == 1

    given = (many(1, 2, 3), many(2, 10, 11, 12, 13, seen_s=200), *news)
    assert known(follower) == rows(merge(given))
    assert follower.snapshot.head == 2
    assert live(follower) == [2, 3, 10, 11, 12, 13, 99]
    recent = follower.snapshot.recent.fps.tolist()
    assert recent == [1, 10, 11, 99], "what was recent before is in the base alone"


def test_a_tick_that_is_adopted_while_the_base_is_made_anew_stays_the_head() -> None:
    store, follower = IndexStore(), small_follower()
    run(store, follower.open())
    follower.note(many(*range(10)))
    header = make_header(Kind.TICK, 1, watermark_s=50)

    run(store, follower.poll(), lambda: follower.adopt(header, many(77), store.now_s))

    assert follower.snapshot.head == 1
    assert follower.snapshot.watermark_s == 50
    assert live(follower) == [*range(10), 77]


def test_more_than_can_wait_may_be_noted_while_the_base_is_made_anew() -> None:
    store, follower = IndexStore(), small_follower()
    run(store, follower.open())
    put_tick(store, 1, many(*range(100, 110)))
    limit = UNSETTLED_FACTOR * RECENT_MAX
    noted = [many(fp, seen_s=300) for fp in range(3 * limit)]

    run(store, follower.poll(), noting(follower, noted))

    assert live(follower) == [*range(3 * limit), *range(100, 110)]
    assert follower.snapshot.head == 1


def test_the_recent_records_stay_few_even_if_nobody_polls() -> None:
    follower = small_follower()

    for fp in range(200):
        follower.note(many(fp))
        assert len(follower.snapshot.recent) <= UNSETTLED_FACTOR * RECENT_MAX

    assert live(follower) == list(range(200))


def test_whoever_polls_makes_the_base_anew_of_what_was_noted() -> None:
    store, follower = IndexStore(), small_follower()
    run(store, follower.open())
    follower.note(many(*range(10)))
    assert len(follower.snapshot.recent) == 10

    assert run(store, follower.poll()) == 1

    assert len(follower.snapshot.recent) == 0
    assert live(follower) == list(range(10))


def test_runs_and_long_inboxes_are_taken_in_off_the_loop_thread() -> None:
    store, follower = IndexStore(), small_follower()
    put_run(store, 1, 5, many(*range(10)))
    put_run(store, 6, 7, many(*range(20, 30)))
    for seq in range(1, 8):
        put_segment(store, seq, many(100 + seq))

    assert run(store, follower.open()) == 2

    assert live(follower) == [*range(10), *range(20, 30), *range(101, 108)]


def test_large_files_are_decoded_off_the_loop_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    store, follower = IndexStore(), Follower(NS, TTL_S)
    put_tick(store, 1, many(1))
    monkeypatch.setattr(module, "INLINE_BYTES", len(encode(make_header(Kind.TICK, 1), many(1))) - 1)

    assert run(store, follower.open()) == 1

    assert live(follower) == [1]


def test_merging_in_several_batches_gives_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MERGED_MAX", 6)
    store, follower = IndexStore(), small_follower()
    for number in range(1, 10):
        put_tick(store, number, many(number, number + 1, number + 2, seen_s=number))
    follower.snapshot = follower.snapshot.absorb(many(1, seen_s=500))

    assert run(store, follower.open()) == 5

    ticks = [many(n, n + 1, n + 2, seen_s=n) for n in range(1, 10)]
    assert known(follower) == rows(merge([*ticks, many(1, seen_s=500)]))


def test_the_watermark_of_the_news_counts_while_they_are_merged() -> None:
    store, follower = IndexStore(), small_follower()
    follower.note(many(1, 2, seen_s=10))
    put_tick(store, 1, many(*range(10, 20), seen_s=100), watermark_s=50)

    run(store, follower.open())

    assert live(follower) == list(range(10, 20))
    assert len(follower.snapshot.base) == 10, "what nobody can use takes no memory"


def test_a_reader_that_is_dropped_while_the_base_is_made_anew_knows_what_it_knew() -> None:
    store, follower = IndexStore(), small_follower()
    put_tick(store, 1, chunk(1))
    run(store, follower.open())
    before = follower.snapshot
    put_tick(store, 2, many(*range(10, 20)))

    steps = follower.poll()
    request = next(steps)
    while not isinstance(request, core.Work):
        request = steps.send(store.answer(request))
    steps.close()

    assert follower.snapshot is before
    run(store, follower.poll())
    assert live(follower) == [1, *range(10, 20)]


def test_an_older_snapshot_still_answers_as_it_did() -> None:
    store, follower = IndexStore(), small_follower()
    put_tick(store, 1, many(*range(10)))
    run(store, follower.open())
    before = follower.snapshot
    put_tick(store, 2, make_records(range(5), 200, 0, DEAD))

    run(store, follower.poll())

    fps = np.arange(10, dtype=np.uint64)
    assert before.present(fps).all()
    assert follower.snapshot.present(fps).tolist() == [False] * 5 + [True] * 5


@pytest.mark.parametrize("seed", range(20))
def test_any_mixture_of_notes_ticks_and_merges_comes_to_the_same(seed: int) -> None:
    rng = random.Random(seed)
    store, follower = IndexStore(), small_follower()
    given: list[RecordSet] = []

    def some() -> RecordSet:
        count = rng.choice((1, 2, 9))
        fps = [rng.randrange(25) for _ in range(count)]
        records = make_records(
            fps,
            [rng.randrange(6) for _ in fps],
            [rng.choice((16, 3)) for _ in fps],
            [rng.randrange(2) for _ in fps],
        )
        given.append(records)
        return records

    def meanwhile() -> None:
        for _ in range(rng.choice((0, 1, 1, 12))):
            follower.note(some())

    run(store, follower.open(), meanwhile)
    for number in range(1, 30):
        put_tick(store, number, some())
        meanwhile()
        if rng.random() < 0.5:
            run(store, follower.poll(), meanwhile)
    run(store, follower.poll(), meanwhile)

    assert known(follower) == rows(merge(given))
