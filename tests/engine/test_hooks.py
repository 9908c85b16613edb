"""An exception in any hook costs a miss or an unsaved chunk, never the engine (real engine)."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.engine.fixtures_lifecycle import (
    CHUNK_TOKENS,
    ENGINE_MARKS,
    Answer,
    Archive,
    Driver,
    Engine,
    S3KVConnector,
    assert_whole,
    engine,
    guards_refused,
    local_answer,
    model_folder,
    prompt_of,
    settle,
)

pytestmark = ENGINE_MARKS

LOAD_DEADLINE_S = 2.0
EXTRAS = (
    "get_loaded_kv_cache_group_ids",
    "get_external_cache_hit_sources",
    "supports_sleep_mode",
    "unregister_kv_caches",
    "restore_kv_caches",
)
"""Hooks that only some engine versions have."""
HOOKS = tuple(
    [
        "bind_gpu_block_pool",
        "build_connector_meta",
        "build_connector_worker_meta",
        "build_kv_connector_stats",
        "build_prom_metrics",
        "finish_forward",
        "get_block_ids_with_load_errors",
        "get_finished_count",
        "get_handshake_metadata",
        "get_kv_connector_kv_cache_events",
        "get_kv_connector_stats",
        "get_mem_pool_context",
        "get_num_new_matched_tokens",
        "get_required_kvcache_layout",
        "get_transfer_results",
        "handle_preemptions",
        "has_pending_block_frees",
        "has_pending_push_work",
        "on_new_request",
        "register_finished_partial_tail",
        "register_kv_caches",
        "request_finished",
        "request_finished_all_groups",
        "requires_kv_delivery",
        "requires_piecewise_for_cudagraph",
        "reset_cache",
        "reset_capture_state",
        "save_kv_layer",
        "set_host_xfer_buffer_ops",
        "set_xfer_handshake_metadata",
        "set_xfer_handshake_metadata_pp_aware",
        "shutdown",
        "start_load_kv",
        "supports_divergent_local_hybrid_hits",
        "take_events",
        "update_connector_output",
        "update_state_after_alloc",
        "wait_for_layer_load",
        "wait_for_save",
    ]
)


class Injected(Exception):
    pass


@pytest.fixture(scope="module")
def archive(seaweed_endpoint: str, bucket: str) -> Archive:
    return Archive(seaweed_endpoint, bucket, f"hooks-{os.urandom(4).hex()}")


@pytest.fixture(scope="module")
def shared(archive: Archive) -> Iterator[Engine]:
    with engine(
        model_folder(),
        archive.endpoint_url,
        archive.bucket,
        archive.prefix,
        load_deadline_s=LOAD_DEADLINE_S,
    ) as running:
        yield running


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
    # For the tests that follow: the engine is as it was.
    agreement.refusal = ""


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


def test_a_request_from_the_engine_s_thread_is_refused_and_counted(archive: Archive) -> None:
    from s3kv.bucket.meter import Meter
    from s3kv.bucket.sdk import WrongThread
    from s3kv.config import parse_settings
    from s3kv.connector.archive import make_store

    settings = parse_settings(
        {
            "uri": f"s3://{archive.bucket}/{archive.prefix}",
            "endpoint_url": archive.endpoint_url,
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


# ------------------------------------------------------------------------- the interface
def _base_hooks() -> dict[str, Any]:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import (
        KVConnectorBase_V1,
        SupportsHMA,
    )

    members = {**vars(SupportsHMA), **vars(KVConnectorBase_V1)}
    return {
        name: member
        for name, member in members.items()
        if not name.startswith("_")
        and (callable(member) or isinstance(member, property | classmethod))
    }


def _signature(member: Any) -> inspect.Signature:
    if isinstance(member, property):
        assert member.fget is not None
        return inspect.signature(member.fget)
    function = member.__func__ if isinstance(member, classmethod) else member
    return inspect.signature(function)


def _our_members() -> dict[str, Any]:
    """What the connector itself defines, in whichever of its classes."""
    ours = [c for c in reversed(S3KVConnector.__mro__) if c.__module__.startswith("s3kv.")]
    return {name: member for one in ours for name, member in vars(one).items()}


INHERITED = {
    # What the base class keeps for itself: metadata of the step, role, pool binding.
    "role",
    "bind_connector_metadata",
    "clear_connector_metadata",
    "has_connector_metadata",
    "bind_kv_cache_manager",
    "get_finished",
}


def test_every_hook_of_the_engine_s_interface_is_answered_with_a_compatible_signature() -> None:
    ours = _our_members()
    missing = [n for n in _base_hooks() if n not in ours and n not in INHERITED]
    assert missing == []
    for name, base in _base_hooks().items():
        if name in INHERITED:
            continue
        mine = ours[name]
        assert isinstance(mine, property) == isinstance(base, property), name
        assert isinstance(mine, classmethod) == isinstance(base, classmethod), name
        wanted, got = _signature(base).parameters, _signature(mine).parameters
        assert list(got)[: len(wanted)] == list(wanted), name
        for extra in list(got)[len(wanted) :]:
            assert got[extra].default is not inspect.Parameter.empty, (name, extra)
        for parameter, one in wanted.items():
            assert got[parameter].kind == one.kind, (name, parameter)
            has_default = one.default is not inspect.Parameter.empty
            if has_default and one.kind is not inspect.Parameter.VAR_KEYWORD:
                assert got[parameter].default is not inspect.Parameter.empty, (name, parameter)


@pytest.mark.parametrize("name", EXTRAS)
def test_hooks_that_only_newer_engines_have_exist(name: str) -> None:
    assert name in _our_members()


def test_every_hook_that_an_engine_may_call_is_defined() -> None:
    """Also with an engine whose base class lacks some: nothing leans on `super()`."""
    assert [name for name in HOOKS if name not in _our_members()] == []


def test_the_connector_keeps_the_hybrid_allocator_on() -> None:
    from vllm.distributed.kv_transfer.kv_connector.v1.base import supports_hma

    assert supports_hma(S3KVConnector)


def test_idle_hooks_answer_from_nothing(shared: Engine) -> None:
    worker, scheduler = shared.worker_connector, shared.scheduler_connector
    settle(shared)
    assert worker.build_connector_worker_meta() is None
    assert worker.get_block_ids_with_load_errors() == set()
    results = worker.get_transfer_results(set())
    assert not results.finished_recving
    assert not scheduler.has_pending_push_work()
    assert Driver(shared).finished == {}
