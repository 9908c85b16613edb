"""Which engines are served: every setting that is not supported yet is refused by name."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.engine_values import (
    BLOCK_TOKENS,
    SPEC,
    caches_of,
    engine_of,
    facts_of,
    full_spec,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_cache_interface import (
        HiddenStateCacheSpec,
        KVCacheConfig,
        MLAAttentionSpec,
        SlidingWindowSpec,
    )
    from vllm.v1.kv_cache_layout import KVCacheLayout

    from s3kv.connector.identity import EngineFacts, none_hash, read_facts, refusal_of

SUPPORTED = ("LBNHC", "LBHNC", "BLNHC", "BLHNC")
SCATTERED = ("LHBNC", "BHLNC")


# ------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("engine", "said"),
    [
        ({"parallel_config__tensor_parallel_size": 2}, "tensor parallelism of size 2"),
        ({"parallel_config__pipeline_parallel_size": 3}, "pipeline parallelism of size 3"),
        (
            {"parallel_config__prefill_context_parallel_size": 2},
            "prefill context parallelism of size 2",
        ),
        (
            {"parallel_config__decode_context_parallel_size": 4},
            "decode context parallelism of size 4",
        ),
        ({"speculative_config": SimpleNamespace(method="ngram")}, "speculative decoding"),
        (
            {"weight_transfer_config": SimpleNamespace(backend="nccl")},
            "weights that are transferred",
        ),
        ({"cache_config__enable_prefix_caching": False}, "prefix caching is off"),
        ({"cache_config__calculate_kv_scales": True}, "KV scales that are calculated at run time"),
        ({"cache_config__prefix_caching_hash_algo": "xxhash"}, "xxhash differs from process"),
        ({"cache_config__prefix_caching_hash_algo": "xxhash_cbor"}, "xxhash_cbor differs from"),
        ({"cache_config__prefix_caching_hash_algo": "builtin"}, "'builtin' is not known"),
    ],
    ids=str,
)
def test_an_engine_setting_that_is_not_supported_is_refused_by_name(
    engine: dict[str, Any], said: str
) -> None:
    assert said in refusal_of(engine_of(**engine), caches_of())


@pytest.mark.parametrize(
    ("caches", "said"),
    [
        pytest.param(lambda: caches_of(full_spec(), full_spec()), "2 KV-cache groups", id="two"),
        pytest.param(lambda: caches_of(*[full_spec()] * 3), "3 KV-cache groups", id="three"),
        pytest.param(
            lambda: caches_of(SlidingWindowSpec(**SPEC, sliding_window=64)),
            "kind SlidingWindowSpec",
            id="sliding-window spec",
        ),
        # A kind of MLA attention, but not one whose bytes we know.
        pytest.param(
            lambda: caches_of(HiddenStateCacheSpec(**SPEC)),
            "kind HiddenStateCacheSpec",
            id="derived spec",
        ),
        pytest.param(lambda: caches_of(full_spec(non_causal=True)), "non-causal", id="non-causal"),
        pytest.param(
            lambda: caches_of(MLAAttentionSpec(**SPEC, non_causal_multi_token_decode=True)),
            "non-causal",
            id="non-causal decode",
        ),
        pytest.param(
            lambda: caches_of(full_spec(sliding_window=64)), "sliding-window", id="window recorded"
        ),
        pytest.param(
            lambda: caches_of(full_spec(attention_chunk_size=64)), "chunked", id="chunk recorded"
        ),
    ],
)
def test_a_kv_cache_that_is_not_supported_is_refused_by_name(
    caches: Callable[[], Any], said: str
) -> None:
    refusal = refusal_of(engine_of(), caches())
    assert said in refusal
    assert "not supported" in refusal


def test_an_engine_without_kv_cache_is_refused() -> None:
    empty = KVCacheConfig(num_blocks=0, kv_cache_tensors=[], kv_cache_groups=[])
    assert "0 KV-cache groups" in refusal_of(engine_of(), empty)


@pytest.mark.parametrize("layout", SCATTERED)
def test_a_layout_that_scatters_a_block_is_refused_by_name_with_a_remedy(layout: str) -> None:
    refusal = refusal_of(engine_of(), caches_of(layout=layout))
    assert f"layout {layout} scatters" in refusal
    remedy = refusal.split("VLLM_KV_CACHE_LAYOUT", 1)[1]
    assert all(name in remedy for name in SUPPORTED)
    assert not any(name in remedy for name in SCATTERED)


def test_every_layout_that_the_engine_knows_is_either_served_or_refused_here() -> None:
    assert {layout.name for layout in KVCacheLayout} == {*SUPPORTED, *SCATTERED}


@pytest.mark.parametrize("layout", [None, *SUPPORTED])
def test_a_layout_that_keeps_a_block_s_bytes_together_is_served(layout: str | None) -> None:
    assert refusal_of(engine_of(), caches_of(layout=layout)) == ""


@pytest.mark.parametrize("algorithm", ["sha256", "sha256_cbor"])
def test_a_plain_engine_is_served(algorithm: str) -> None:
    engine = engine_of(cache_config__prefix_caching_hash_algo=algorithm)
    assert refusal_of(engine, caches_of()) == ""
    assert refusal_of(engine, caches_of(MLAAttentionSpec(**SPEC))) == ""


def test_settings_that_an_engine_version_does_not_have_are_not_in_the_way() -> None:
    engine = engine_of()
    del engine.parallel_config.prefill_context_parallel_size
    del engine.parallel_config.decode_context_parallel_size
    del engine.speculative_config
    del engine.weight_transfer_config
    assert refusal_of(engine, caches_of()) == ""


def test_facts_are_those_of_the_engine() -> None:
    engine = engine_of(
        kv_transfer_config__is_kv_producer=False,
        load_config__load_format="safetensors",
        model_config__model="/models/two",
        model_config__revision="v2",
        load_config__download_dir="/cache",
    )
    facts = read_facts(engine, caches_of())
    assert facts == EngineFacts(
        refusal="",
        loads=True,
        saves=False,
        world_size=1,
        block_tokens=BLOCK_TOKENS,
        hash_block_size=BLOCK_TOKENS,
        model_path="/models/two",
        revision="v2",
        download_dir="/cache",
        load_format="safetensors",
    )
    assert facts.hashes_per_block == 1


def test_facts_of_an_unsupported_engine_say_why_and_do_not_raise() -> None:
    # vLLM's own function refuses this one: it must not be asked.
    engine = engine_of(speculative_config=object(), cache_config__prefix_match_unit=7)
    facts = read_facts(engine, caches_of())
    assert "speculative" in facts.refusal
    assert (facts.block_tokens, facts.hash_block_size) == (1, 1)


def test_several_engine_hashes_may_make_one_block() -> None:
    assert facts_of(block_tokens=64, hash_block_size=16).hashes_per_block == 4


def test_the_root_of_all_chains_is_the_engine_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for root in (b"\1" * 32, b"\2" * 32):
        monkeypatch.setattr(kv_cache_utils, "NONE_HASH", root, raising=False)
        assert none_hash() == root
