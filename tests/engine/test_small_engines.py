"""Engines that are short of something: cache blocks, slots, or the right to load or to save."""

from __future__ import annotations

from typing import Any

import pytest

from s3kv.bucket.base import CREATED, Created
from s3kv.bucket.s3 import S3Store
from s3kv.connector.saves import SavePlanner
from tests.engine.fixtures_lifecycle import (
    BLOCK_TOKENS,
    CHUNK_TOKENS,
    ENGINE_MARKS,
    Archive,
    Driver,
    Engine,
    HeldFence,
    assert_whole,
    engine_on,
    local_answer,
    prompt_of,
    seen_plans,
    settle,
)

pytestmark = ENGINE_MARKS

ANSWER_TOKENS = 60


def copies_held_until_preemption(
    running: Engine, saves: SavePlanner, patch: pytest.MonkeyPatch
) -> list[int]:
    """Copies of a preempted request's blocks are made after it lost them.

    Returns the number of pinned saves at each step that preempted.
    """
    held, pinned_counts, real = HeldFence(), list[int](), running.scheduler.plan_step

    def watched(output: Any) -> Any:
        if output.preempted_req_ids:
            pinned_counts.append(saves.pinned_count)
            held.reached = True
        return real(output)

    patch.setattr(running.worker, "fence", lambda: held)
    patch.setattr(running.scheduler, "plan_step", watched)
    return pinned_counts


def test_preemption_with_saves_in_flight_costs_time_only(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [prompt_of(CHUNK_TOKENS + 2 * BLOCK_TOKENS + n, seed=n) for n in range(4)]
    # Two prompts fit, their answers do not.
    arguments = {"num_gpu_blocks_override": 16, "max_model_len": 320}
    with engine_on(archive, engine_args=arguments) as running:
        drive, saves = Driver(running), running.scheduler._saves
        assert saves is not None
        alone = []
        for prompt in prompts:
            name = drive.submit(prompt, ANSWER_TOKENS, s3kv={"load": False, "save": False})
            alone += drive.finish(name)
            running.forget_local()
        with monkeypatch.context() as patch:
            pinned_counts = copies_held_until_preemption(running, saves, patch)
            together = drive.finish(*(drive.submit(prompt, ANSWER_TOKENS) for prompt in prompts))
        assert pinned_counts, "the cache was not small enough"
        assert pinned_counts[0] > 0, "no save was in flight"
        assert together == alone
        assert_whole(running)
        assert running.caught() == {}
        for prompt, tokens in zip(prompts, alone, strict=True):
            running.forget_local()
            warm = running.ask(prompt)
            assert warm.hit_tokens == CHUNK_TOKENS + 2 * BLOCK_TOKENS - (
                BLOCK_TOKENS if len(prompt) % BLOCK_TOKENS == 0 else 0
            )
            assert warm.token_ids == tokens[: len(warm.token_ids)]
        assert_whole(running)


def test_a_pool_of_one_slot_is_slower_never_wrong_and_never_stuck(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [prompt_of(4 * CHUNK_TOKENS, seed=10 + n) for n in range(3)]
    with engine_on(archive, staging_bytes="700KiB") as running:
        assert running.slot_count() == 1
        local = [local_answer(running, prompt) for prompt in prompts]
        assert running.worker.outbox.counts["saves_dropped_pool_full"] > 0
        # What was dropped is archived when it is computed again, one chunk at a time.
        for _ in range(40):
            running.forget_local()
            running.generate(prompts, s3kv={"load": False})
            settle(running)
            if len(archive.shards()) == 12:
                break
        assert len(archive.shards()) == 12
        running.forget_local()
        plans = seen_plans(running, monkeypatch)
        warm = running.generate(prompts)
        assert [a.hit_tokens for a in warm] == [4 * CHUNK_TOKENS - BLOCK_TOKENS] * 3
        assert [a.token_ids for a in warm] == [a.token_ids for a in local]
        assert sum(len(job.parts) for plan in plans for job in plan.loads) == 12
        assert_whole(running)
        assert running.caught() == {}


def test_a_producer_only_saves_and_a_consumer_only_loads(archive: Archive) -> None:
    prompt, other = prompt_of(2 * CHUNK_TOKENS, seed=20), prompt_of(2 * CHUNK_TOKENS, seed=21)
    with engine_on(archive, kv_role="kv_producer") as running:
        local = local_answer(running, prompt)
        again = running.ask(prompt)
        assert (again.hit_tokens, again.report["miss_reason"]) == (0, "role")
        assert_whole(running)
    shards = archive.shards()
    assert len(shards) == 2
    with engine_on(archive, kv_role="kv_consumer") as running:
        warm = running.ask(prompt)
        assert warm.hit_tokens == 2 * CHUNK_TOKENS - BLOCK_TOKENS
        assert warm.token_ids == local.token_ids
        running.ask(other)
        assert_whole(running)
    assert archive.shards() == shards


def test_without_a_conditional_put_chunks_are_found_by_their_names(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ADR 0004: no index is written, and a restarted engine hits with its first request."""

    async def careless(store: S3Store, key: str, body: bytes, *, timeout_s: float) -> Created:
        await store.put(key, body, timeout_s=timeout_s)
        return CREATED

    monkeypatch.setattr(S3Store, "create", careless)
    prompt, patience = prompt_of(2 * CHUNK_TOKENS, seed=30), {"lookup_deadline_s": 30.0}
    with engine_on(archive, **patience) as running:
        local = local_answer(running, prompt)
        assert_whole(running)
    assert len(archive.shards()) == 2
    assert [name for name in archive.objects() if "/idx/" in name] == []
    with engine_on(archive, **patience) as running:
        warm = running.ask(prompt)
        assert warm.hit_tokens == 2 * CHUNK_TOKENS - BLOCK_TOKENS
        assert warm.token_ids == local.token_ids
        assert_whole(running)
    assert [name for name in archive.objects() if "/idx/" in name] == []
