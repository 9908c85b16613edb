"""An exception in any hook costs a miss or an unsaved chunk, never the engine (real engine)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.engine.fixtures_lifecycle import (
    CHUNK_TOKENS,
    ENGINE_MARKS,
    Answer,
    Archive,
    Driver,
    Engine,
    assert_whole,
    guards_refused,
    local_answer,
    prompt_of,
    settle,
)

pytestmark = ENGINE_MARKS

ENGINE_OPTIONS = {"load_deadline_s": 2.0}


class Injected(Exception):
    pass


@pytest.fixture(scope="module")
def archived(shared: Engine) -> tuple[list[int], Answer]:
    """A prompt in the archive and its right answer."""
    prompt = prompt_of(3 * CHUNK_TOKENS + 7, seed=1)
    return prompt, local_answer(shared, prompt)


def raising(*args: object, **kwargs: object) -> Any:
    raise Injected


def part_of(running: Engine, path: str) -> tuple[Any, str]:
    """Owner and name of `side.attribute.method`."""
    *owners, name = path.split(".")
    owner: Any = {"scheduler": running.scheduler, "worker": running.worker}[owners[0]]
    for each in owners[1:]:
        owner = getattr(owner, each)
    return owner, name


SCHEDULER_METHODS = {
    "scheduler.arrived": "on_new_request",
    "scheduler._track": "on_new_request",
    "scheduler.matched": "get_num_new_matched_tokens",
    "scheduler._desk.look_up": "get_num_new_matched_tokens",
    "scheduler._offer": "get_num_new_matched_tokens",
    "scheduler.allocated": "update_state_after_alloc",
    "scheduler._touch": "update_state_after_alloc",
    "scheduler._loads.begin": "update_state_after_alloc",
    "scheduler.plan_step": "build_connector_meta",
    "scheduler._plan_saves": "build_connector_meta",
    "scheduler.absorb": "update_connector_output",
    "scheduler._absorb_report": "update_connector_output",
    "scheduler.finished": "request_finished",
}
WORKER_METHODS = {
    "worker.open": "start_load_kv",
    "worker.start_load": "start_load_kv",
    "worker.fence": "wait_for_save",
    "worker.stage": "wait_for_save",
    "worker.outbox.take_report": "build_connector_worker_meta",
}


@pytest.mark.parametrize(("method", "hook"), list((SCHEDULER_METHODS | WORKER_METHODS).items()))
def test_an_exception_in_a_hook_s_body_costs_time_only(
    shared: Engine,
    archived: tuple[list[int], Answer],
    monkeypatch: pytest.MonkeyPatch,
    method: str,
    hook: str,
) -> None:
    prompt, right = archived
    new = prompt_of(2 * CHUNK_TOKENS, seed=sum(method.encode()))
    shared.forget_local()
    before = shared.caught().get(hook, 0)
    owner, name = part_of(shared, method)
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, raising)
        if method == "worker.open":  # called only with something to open
            shared.scheduler._acknowledged = False
        assert shared.ask(prompt).token_ids == right.token_ids
        fresh = shared.ask(new)
    assert shared.caught().get(hook, 0) > before
    assert_whole(shared)
    shared.forget_local()
    again = shared.ask(prompt)
    assert again.token_ids == right.token_ids
    assert again.hit_tokens == 3 * CHUNK_TOKENS
    shared.forget_local()
    assert shared.ask(new, s3kv={"load": False}).token_ids == fresh.token_ids
    assert_whole(shared)
    shared.forget_local()
    assert shared.ask(new).hit_tokens == 2 * CHUNK_TOKENS - 32, "saves work again"


def test_reports_that_one_call_could_not_deliver_come_with_the_next(
    shared: Engine, archived: tuple[list[int], Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, right = archived
    shared.forget_local()
    real, failures = shared.worker.outbox.take_ended, iter([True] * 3)

    def sometimes() -> tuple[set[str], set[int]]:
        if next(failures, False):
            raise Injected
        return real()

    with monkeypatch.context() as patch:
        patch.setattr(shared.worker.outbox, "take_ended", sometimes)
        warm = shared.ask(prompt)
    assert warm.token_ids == right.token_ids
    assert warm.hit_tokens == 3 * CHUNK_TOKENS
    assert shared.caught()["get_transfer_results"] == 3
    assert_whole(shared)


def test_an_exception_while_several_saves_are_planned_pins_nothing_for_ever(
    shared: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = shared.scheduler._saves
    assert saves is not None
    real, calls = saves._job, []

    def second_fails(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 2:
            raise Injected
        return real(*args)

    prompt = prompt_of(3 * CHUNK_TOKENS, seed=70)
    with monkeypatch.context() as patch:
        patch.setattr(saves, "_job", second_fails)
        shared.ask(prompt)
    assert len(calls) >= 2
    assert_whole(shared)
    assert saves.pinned_count == 0


def test_an_exception_in_reset_turns_the_archive_off_until_the_next_reset(
    shared: Engine, archived: tuple[list[int], Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, right = archived
    shared.forget_local()
    agreement = shared.scheduler._agreement
    with monkeypatch.context() as patch:
        patch.setattr(shared.scheduler, "reset", raising)
        assert shared.llm.reset_prefix_cache(reset_connector=True)
    assert shared.caught()["reset_cache"] == 1
    off = shared.ask(prompt)
    assert (off.token_ids, off.hit_tokens) == (right.token_ids, 0)
    assert agreement.refusal
    # The next reset begins an epoch of its own; what is computed in it is archived and found again.
    assert shared.llm.reset_prefix_cache(reset_connector=True)
    assert not agreement.refusal
    shared.ask(prompt)
    settle(shared)
    shared.forget_local()
    again = shared.ask(prompt)
    assert again.token_ids == right.token_ids
    assert again.hit_tokens > 0


@pytest.mark.parametrize("hook", ["bind_gpu_block_pool", "get_handshake_metadata", "hear"])
def test_an_exception_at_start_up_hooks_is_caught(
    shared: Engine, monkeypatch: pytest.MonkeyPatch, hook: str
) -> None:
    scheduler, worker = shared.scheduler_connector, shared.worker_connector
    with monkeypatch.context() as patch:
        patch.setattr(shared.scheduler, "bind_pool", raising)
        patch.setattr(shared.scheduler, "hear_at_start", raising)
        patch.setattr(shared.worker, "handshake", raising)
        if hook == "bind_gpu_block_pool":
            scheduler.bind_gpu_block_pool(shared.core.scheduler.kv_cache_manager.block_pool)
        elif hook == "hear":
            scheduler.set_xfer_handshake_metadata_pp_aware({})
        else:
            assert worker.get_handshake_metadata() is None


def test_foreign_handshakes_are_ignored(shared: Engine) -> None:
    caught = shared.caught()
    shared.scheduler_connector.set_xfer_handshake_metadata({0: object()})
    shared.scheduler_connector.set_xfer_handshake_metadata_pp_aware({(1, 0): object()})
    assert shared.caught() == caught


# ------------------------------------------------------------------------------ threads
def test_no_request_ever_came_from_a_thread_of_the_engine(shared: Engine) -> None:
    assert guards_refused(shared) == 0


def test_a_request_from_the_engine_s_thread_is_refused_and_counted(shared_archive: Archive) -> None:
    from s3kv.bucket.meter import Meter
    from s3kv.bucket.sdk import WrongThread
    from s3kv.config import parse_settings
    from s3kv.connector.archive import make_store

    settings = parse_settings(
        {
            "uri": f"s3://{shared_archive.bucket}/{shared_archive.prefix}",
            "endpoint_url": shared_archive.endpoint_url,
            "region": "us-east-1",
            "addressing_style": "path",
        }
    )
    store: Any = make_store(settings, Meter())

    async def ask() -> None:
        try:
            with pytest.raises(WrongThread, match="MainThread"):
                await store.stat("anything", timeout_s=5.0)
        finally:
            await store.close()

    asyncio.run(ask())
    assert store._store._store.guard.refused_count == 1


@pytest.mark.usefixtures("archived")  # a first request has carried the start-up reports away
def test_idle_hooks_answer_from_nothing(shared: Engine) -> None:
    worker, scheduler = shared.worker_connector, shared.scheduler_connector
    settle(shared)
    assert worker.build_connector_worker_meta() is None
    assert worker.get_block_ids_with_load_errors() == set()
    results = worker.get_transfer_results(set())
    assert not results.finished_recving
    assert not scheduler.has_pending_push_work()
    assert Driver(shared).finished == {}
