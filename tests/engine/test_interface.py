"""Every hook of the engine's interface is ours, with a signature that any version can call."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from tests.engine.fixtures_lifecycle import (
    ENGINE_MARKS,
    S3KVConnector,
)

pytestmark = ENGINE_MARKS


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
