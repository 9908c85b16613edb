"""Engines that are short of something: cache blocks, slots, or the right to load or to save."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.engine.fixtures_lifecycle import (
    BLOCK_TOKENS,
    CHUNK_TOKENS,
    ENGINE_MARKS,
    Archive,
    Driver,
    HeldFence,
    assert_whole,
    engine,
    local_answer,
    model_folder,
    prompt_of,
    seen_plans,
    settle,
)

pytestmark = ENGINE_MARKS

ANSWER_TOKENS = 60


@pytest.fixture
def archive(seaweed_endpoint: str, bucket: str) -> Archive:
    return Archive(seaweed_endpoint, bucket, f"small-{os.urandom(4).hex()}")


def test_preemption_with_saves_in_flight_costs_time_only(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [prompt_of(CHUNK_TOKENS + 2 * BLOCK_TOKENS + n, seed=n) for n in range(4)]
    # Two prompts fit, their answers do not.
    arguments = {"num_gpu_blocks_override": 16, "max_model_len": 320}
    with engine(
        model_folder(),
        archive.endpoint_url,
        archive.bucket,
        archive.prefix,
        engine_args=arguments,
    ) as running:
        drive, saves = Driver(running), running.scheduler._saves
        assert saves is not None
        alone = []
        for prompt in prompts:
            name = drive.submit(prompt, ANSWER_TOKENS, s3kv={"load": False, "save": False})
            alone += drive.finish(name)
            running.forget_local()
        held, preempted, pinned_then = HeldFence(), set[str](), []
        real = running.scheduler.plan_step

        def watched(output: Any) -> Any:
            if output.preempted_req_ids:
                preempted.update(output.preempted_req_ids)
                pinned_then.append(saves.pinned_count)
                # Copies of the preempted requests' blocks are made after they lost them.
                held.reached = True
            return real(output)

        with monkeypatch.context() as patch:
            patch.setattr(running.worker, "fence", lambda: held)
            patch.setattr(running.scheduler, "plan_step", watched)
            together = drive.finish(*(drive.submit(prompt, ANSWER_TOKENS) for prompt in prompts))
        assert preempted, "the cache was not small enough"
        assert pinned_then[0] > 0, "no save was in flight"
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
    with engine(
        model_folder(),
        archive.endpoint_url,
        archive.bucket,
        archive.prefix,
        staging_bytes="700KiB",
    ) as running:
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
    place = (archive.endpoint_url, archive.bucket, archive.prefix)
    prompt, other = prompt_of(2 * CHUNK_TOKENS, seed=20), prompt_of(2 * CHUNK_TOKENS, seed=21)
    with engine(model_folder(), *place, kv_role="kv_producer") as running:
        local = local_answer(running, prompt)
        again = running.ask(prompt)
        assert (again.hit_tokens, again.report["miss_reason"]) == (0, "role")
        assert_whole(running)
    shards = archive.shards()
    assert len(shards) == 2
    with engine(model_folder(), *place, kv_role="kv_consumer") as running:
        warm = running.ask(prompt)
        assert warm.hit_tokens == 2 * CHUNK_TOKENS - BLOCK_TOKENS
        assert warm.token_ids == local.token_ids
        running.ask(other)
        assert_whole(running)
    assert archive.shards() == shards
