"""The outbox: a load and its bad blocks become visible together; nothing is lost or doubled."""

from __future__ import annotations

import threading

from tests.unit.connector_values import NS, FailedChunk, LayoutHandshake, Outbox, Report, chain_of


def test_a_load_and_its_bad_blocks_are_taken_together_and_once() -> None:
    outbox = Outbox()
    outbox.load_ended("good", ())
    outbox.load_ended("bad", [7, 8])
    outbox.load_ended("worse", [9])
    assert outbox.take_ended() == ({"good", "bad", "worse"}, {7, 8, 9})
    assert outbox.take_ended() == (set(), set())
    assert outbox.counts == {"loads_complete": 1, "loads_failed": 2, "received_bytes": 0}


def test_threads_that_put_never_separate_a_load_from_its_bad_blocks() -> None:
    outbox, per_thread, threads = Outbox(), 300, 4
    start = threading.Barrier(threads + 1)

    def put(thread: int) -> None:
        start.wait()
        for index in range(per_thread):
            number = thread * per_thread + index
            outbox.load_ended(f"r{number}", [number])

    running = [threading.Thread(target=put, args=(t,)) for t in range(threads)]
    for each in running:
        each.start()
    start.wait()
    seen: set[int] = set()
    while len(seen) < per_thread * threads:
        ended, bad = outbox.take_ended()
        assert {f"r{number}" for number in bad} == ended
        assert not bad & seen
        seen |= bad
    for each in running:
        each.join()
    assert outbox.take_ended() == (set(), set())


def test_nothing_new_is_no_report() -> None:
    outbox = Outbox()
    assert outbox.take_report() is None
    outbox.staged(1)
    assert outbox.take_report() is not None
    assert outbox.take_report() is None


def test_a_report_holds_everything_since_the_last() -> None:
    outbox, failed = Outbox(), FailedChunk(NS, chain_of(1)[0], 4, "missing", lost=True)
    handshake = LayoutHandshake(None, None, "why")
    outbox.layout(handshake)
    outbox.opened(NS)
    outbox.staged(1)
    outbox.dropped([2, 3], "pool_full")
    outbox.saved(1, "uploaded")
    outbox.unsaved(4, "failed")
    outbox.read_only("no")
    outbox.load_ended("r", [5], (failed,), 1.5, 100)
    assert outbox.take_report() == Report(
        layouts=(handshake,),
        opened={NS: 1},
        staged={1: 1, 2: 1, 3: 1},
        saved={1: 1},
        unsaved={2: "pool_full", 3: "pool_full", 4: "failed"},
        failed=(failed,),
        load_s={"r": 1.5},
        read_only="no",
    )
    assert outbox.counts == {
        "saves_staged": 1,
        "saves_dropped_pool_full": 2,
        "saves_uploaded": 1,
        "saves_failed": 1,
        "loads_failed": 1,
        "received_bytes": 100,
    }


def test_reports_of_ranks_add_up_in_any_order() -> None:
    a = Report(opened={NS: 1}, staged={1: 1, 2: 1}, load_s={"r": 1.0}, saved={1: 1})
    b = Report(opened={NS: 1}, staged={1: 1}, load_s={"r": 2.0, "q": 0.5}, read_only="no")
    c = Report(unsaved={2: "failed"}, staged={2: 1})
    left, right = a.aggregate(b).aggregate(c), a.aggregate(b.aggregate(c))
    assert left == right == c.aggregate(b).aggregate(a)
    assert left.staged == {1: 2, 2: 2}
    assert left.load_s == {"r": 2.0, "q": 0.5}
    assert left.opened == {NS: 2}
    assert left.read_only == "no"
