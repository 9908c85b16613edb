"""Saves and their pins, with plain stand-ins for the engine's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from s3kv.core.ids import BlockHash, fingerprints
from tests.unit.connector_values import (
    BLOCK,
    GEOMETRY,
    NS,
    PIN_REPORT_S,
    FakePool,
    FakeRequest,
    PinBoard,
    Report,
    SaveContext,
    SavePlanner,
    Tracked,
    chain_of,
    step_of,
    track,
)

ROOT = BlockHash(b"\0" * 32)


def nothing_known(fps: NDArray[np.uint64]) -> NDArray[np.bool_]:
    return np.zeros(len(fps), np.bool_)


def context(
    present: Callable[[NDArray[np.uint64]], NDArray[np.bool_]] = nothing_known,
    must_rewrite: Callable[[BlockHash], bool] = lambda chunk_hash: False,
) -> SaveContext:
    return SaveContext(100.0, NS, ROOT, present, must_rewrite)


class Bench:
    """A planner on a pool, and one request of three full chunks and a tail of two blocks."""

    def __init__(self, token_count: int = 14 * BLOCK + 3, **request: Any) -> None:
        self.pool: Any = FakePool()
        self.planner = SavePlanner(PinBoard(self.pool, world_size=2))
        self.request: Any = FakeRequest.of(token_count, **request)
        self.tracked = track(self.request, GEOMETRY, 0.0)
        self.table = list(range(1, 20))

    def step(self, tokens: int, ctx: SaveContext | None = None, **more: Tracked) -> Any:
        output: Any = step_of({"r": tokens, **dict.fromkeys(more, tokens)}, self.tables(more))
        jobs = self.planner.plan(output, {"r": self.tracked, **more}, ctx or context())
        self.request.num_computed_tokens += tokens
        return jobs

    def tables(self, more: dict[str, Tracked]) -> dict[str, list[int]]:
        return {"r": self.table, **{name: list(range(30, 50)) for name in more}}


def test_a_chunk_is_planned_in_the_step_that_computes_its_last_block_and_only_then() -> None:
    bench = Bench()
    assert [j.block_ids for j in bench.step(4 * BLOCK - 1)] == []
    assert [j.block_ids for j in bench.step(1)] == [(1, 2, 3, 4)]
    assert [j.block_ids for j in bench.step(9 * BLOCK)] == [(5, 6, 7, 8), (9, 10, 11, 12)]
    assert [j.block_ids for j in bench.step(BLOCK + 3)] == [(13, 14)]
    assert bench.step(1) == ()


def test_a_chunk_s_address_names_its_parent_and_all_its_blocks() -> None:
    bench = Bench()
    jobs, chain = bench.step(14 * BLOCK + 3), chain_of(14)
    assert [j.address.chunk_hash for j in jobs] == [chain[3], chain[7], chain[11], chain[13]]
    assert [j.address.parent_hash for j in jobs] == [ROOT, chain[3], chain[7], chain[11]]
    assert [h for j in jobs for h in j.address.block_hashes] == chain
    assert [j.job_id for j in jobs] == [0, 1, 2, 3]


def test_sources_are_held_until_every_rank_has_copied_them() -> None:
    bench = Bench()
    bench.step(8 * BLOCK)
    assert bench.pool.held == set(range(1, 9))
    bench.planner.unpin(Report(staged={0: 1}))
    assert bench.pool.held == set(range(1, 9))
    bench.planner.unpin(Report(staged={0: 1, 1: 2}))
    assert bench.pool.held == set()
    assert bench.planner.pinned_count == 0
    assert bench.pool.freed_order == [4, 3, 2, 1, 8, 7, 6, 5], "last block first"


def test_reports_of_unknown_or_repeated_jobs_change_nothing() -> None:
    bench = Bench()
    bench.step(4 * BLOCK)
    bench.planner.unpin(Report(staged={0: 2, 99: 2}))
    bench.planner.unpin(Report(staged={0: 2}))
    assert bench.planner.absorb(Report(saved={99: 1}, unsaved={98: "failed"})) == []
    assert bench.pool.held == set()


def test_what_a_fresh_index_lists_is_not_saved_again() -> None:
    chain = chain_of(14)
    known = fingerprints([chain[3], chain[11]])
    jobs = Bench().step(14 * BLOCK, context(present=lambda fps: np.isin(fps, known)))
    assert [j.address.chunk_hash for j in jobs] == [chain[7], chain[13]]


def test_a_copy_known_to_be_bad_is_rewritten() -> None:
    bad = chain_of(14)[7]
    jobs = Bench().step(8 * BLOCK, context(must_rewrite=lambda chunk_hash: chunk_hash == bad))
    assert [j.rewrite for j in jobs] == [False, True]


def test_a_chunk_on_its_way_is_not_planned_for_another_request() -> None:
    bench = Bench()
    twin = track(FakeRequest.of(14 * BLOCK, name="twin"), GEOMETRY, 0.0)
    jobs = bench.step(4 * BLOCK, twin=twin)
    assert [j.block_ids for j in jobs] == [(1, 2, 3, 4)]


@pytest.mark.parametrize("end", [Report(saved={0: 1}), Report(unsaved={0: "failed"})])
def test_a_chunk_whose_save_ended_may_be_planned_again(end: Report) -> None:
    bench = Bench()
    bench.step(4 * BLOCK)
    chunk = chain_of(4)[3]
    durable = bench.planner.absorb(end)
    assert durable == ([(chunk, 4)] if end.saved else [])
    assert bench.planner.in_flight_count == 0
    twin = track(FakeRequest.of(4 * BLOCK, name="twin"), GEOMETRY, 0.0)
    output: Any = step_of({"twin": 4 * BLOCK}, {"twin": [50, 51, 52, 53]})
    jobs = bench.planner.plan(output, {"twin": twin}, context())
    assert [j.address.chunk_hash for j in jobs] == [chunk]


def test_a_durable_chunk_is_named_once_however_many_ranks_report_it() -> None:
    bench = Bench()
    bench.step(4 * BLOCK)
    assert bench.planner.absorb(Report(saved={0: 1})) == [(chain_of(4)[3], 4)]
    assert bench.planner.absorb(Report(saved={0: 1})) == []


def test_a_table_with_null_or_missing_blocks_is_not_saved() -> None:
    bench = Bench()
    bench.table = [1, 2, 0, 4, 5, 6, 7]
    assert bench.step(8 * BLOCK) == ()
    assert bench.pool.held == set()


def test_a_request_without_a_table_is_not_saved() -> None:
    bench = Bench()
    for tables in (None, {"other": [1, 2, 3, 4]}):
        output: Any = step_of({"r": 4 * BLOCK}, tables)
        assert bench.planner.plan(output, {"r": bench.tracked}, context()) == ()


def test_requests_that_take_no_part_are_not_saved() -> None:
    unwanted = Bench(kv_transfer_params={"s3kv": {"save": False}})
    assert unwanted.step(8 * BLOCK) == ()
    adapter = Bench(lora_request=object())
    assert adapter.step(8 * BLOCK) == ()
    unknown = Bench()
    output: Any = step_of({"r": 64}, {"r": [1, 2, 3, 4]})
    assert unknown.planner.plan(output, {}, context()) == ()


def test_decoded_blocks_are_not_saved() -> None:
    bench = Bench(token_count=4 * BLOCK)
    assert len(bench.step(4 * BLOCK)) == 1
    bench.request.block_hashes = chain_of(12)
    bench.request.num_prompt_tokens = 12 * BLOCK
    assert bench.step(8 * BLOCK) == ()


def test_the_engine_is_kept_stepping_for_young_pins_only() -> None:
    bench = Bench()
    bench.step(4 * BLOCK)
    assert bench.planner.awaits_copies(100.0 + PIN_REPORT_S - 1)
    assert not bench.planner.awaits_copies(100.0 + PIN_REPORT_S)
    bench.planner.unpin(Report(staged={0: 2}))
    assert not bench.planner.awaits_copies(100.0)


def test_one_job_is_pinned_once() -> None:
    pool: Any = FakePool()
    board = PinBoard(pool, world_size=1)
    board.pin(5, (1, 2), 0.0)
    with pytest.raises(AssertionError):
        board.pin(5, (3,), 0.0)
    assert len(board) == 1


def test_a_block_shared_by_two_saves_is_held_until_both_are_copied() -> None:
    pool: Any = FakePool()
    board = PinBoard(pool, world_size=1)
    board.pin(1, (7, 8), 0.0)
    board.pin(2, (8, 9), 0.0)
    board.staged(1, 1)
    assert pool.held == {8, 9}
    board.staged(2, 1)
    assert pool.held == set()


def test_a_failure_while_a_request_s_chunks_are_planned_pins_nothing_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, calls = Bench(), []

    def must_rewrite(chunk_hash: BlockHash) -> bool:
        calls.append(chunk_hash)
        if len(calls) == 2:
            raise RuntimeError("injected")
        return False

    with pytest.raises(RuntimeError, match="injected"):
        bench.step(12 * BLOCK, context(must_rewrite=must_rewrite))
    assert bench.pool.held == set()
    assert bench.planner.in_flight_count == 0


def test_a_request_plans_each_chunk_once_whatever_became_of_it() -> None:
    bench = Bench()
    bench.step(4 * BLOCK)
    bench.planner.absorb(Report(unsaved={0: "pool_full"}))
    assert bench.step(BLOCK) == ()
