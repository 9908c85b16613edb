"""What separates engines: byte layouts, configurations, weights; and what does not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

from s3kv.config import parse_settings
from s3kv.core.namespace import LayoutDescriptor, differing_fields
from tests.unit.engine_values import (
    BLOCK_TOKENS,
    BLOCKS,
    LAYERS,
    SPEC,
    Config,
    World,
    caches_of,
    engine_of,
    facts_of,
    full_spec,
    namespace_of,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from vllm.v1.kv_cache_interface import MLAAttentionSpec

    from s3kv.connector.identity import namespace_for


# ------------------------------------------------------------------- layouts
@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_a_layout_is_described_as_the_engine_has_it(world: World) -> None:
    layout = world.describe()
    (group,) = layout.groups
    assert (layout.kv_cache_layout, layout.cpu_isa) == ("LBHNC", "vec")
    assert (group.spec, group.attention_backend) == ("FullAttentionSpec", "CPU_ATTN")
    assert (group.dtype, group.block_size) == ("torch.bfloat16", BLOCK_TOKENS)
    assert (group.kv_head_count, group.head_size, group.head_size_v) == (2, 64, 64)
    assert group.page_bytes == 2 * 16 * (64 + 64) * 2
    assert group.page_shapes == ((1, 2, BLOCK_TOKENS, 128),)
    assert group.layer_names == LAYERS


@pytest.mark.parametrize(
    ("caches", "field"),
    [
        pytest.param(
            lambda: caches_of(full_spec(state_content_bytes=300)), "groups.0.page_bytes", id="page"
        ),
        pytest.param(
            lambda: caches_of(layers=LAYERS[::-1]), "groups.0.layer_names.0", id="layer order"
        ),
        pytest.param(lambda: caches_of(layers=LAYERS[:1]), "groups.0.layer_names.1", id="layers"),
        pytest.param(lambda: caches_of(layout="LBNHC"), "kv_cache_layout", id="layout"),
        pytest.param(lambda: caches_of(layout=None), "kv_cache_layout", id="no layout"),
        pytest.param(
            lambda: caches_of(full_spec(block_size=32)), "groups.0.block_size", id="block size"
        ),
        pytest.param(
            lambda: caches_of(full_spec(num_kv_heads=4)), "groups.0.kv_head_count", id="heads"
        ),
        pytest.param(
            lambda: caches_of(full_spec(head_size_v=32)), "groups.0.head_size_v", id="value heads"
        ),
        pytest.param(lambda: caches_of(MLAAttentionSpec(**SPEC)), "groups.0.spec", id="spec class"),
    ],
)
def test_a_cache_laid_out_otherwise_is_another_layout_and_namespace(
    world: World, caches: Callable[[], Any], field: str
) -> None:
    ours, theirs = world.describe(), world.describe(caches())
    assert ours.digest() != theirs.digest()
    a, b = namespace_of(ours), namespace_of(theirs)
    assert a.id != b.id
    assert f"layout.0.{field}" in differing_fields(a.document, b.document)


@pytest.mark.parametrize(
    ("attribute", "value", "field"),
    [
        ("isa", "amx", "cpu_isa"),
        ("shape", (2 * BLOCKS, 2, BLOCK_TOKENS, 128), "groups.0.page_shapes.0.0"),
        ("shape", (BLOCKS, BLOCK_TOKENS, 2, 128), "groups.0.page_shapes.0"),
        ("dtype", torch.float16, "groups.0.dtype"),
        ("device", "meta", "cpu_isa"),
        ("backends", dict.fromkeys(LAYERS, "FLASH_ATTN"), "groups.0.attention_backend"),
        ("backends", dict(zip(LAYERS, ("A", "B"), strict=True)), "groups.0.attention_backend"),
    ],
    ids=str,
)
def test_a_world_that_writes_other_bytes_is_another_layout_and_namespace(
    world: World, attribute: str, value: Any, field: str
) -> None:
    ours = world.describe()
    setattr(world, attribute, value)
    theirs = world.describe()
    assert ours.digest() != theirs.digest()
    a, b = namespace_of(ours), namespace_of(theirs)
    different = differing_fields(a.document, b.document)
    assert different
    assert all(name.startswith(f"layout.0.{field}") for name in different)


def test_the_instruction_set_concerns_caches_on_a_cpu_only(world: World) -> None:
    world.device = "meta"
    assert world.describe().cpu_isa == ""


def test_padding_between_pages_is_not_part_of_the_layout(world: World) -> None:
    padded = world.describe(caches_of(full_spec(page_size_padded=16_384)))
    assert padded.digest() == world.describe().digest()


# ------------------------------------------------------------------- namespaces
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model_config__dtype": torch.float16}, "model_dtype"),
        ({"cache_config__cache_dtype": "fp8"}, "kv_cache_dtype"),
        ({"model_config__quantization": "fp8"}, "quantization"),
        ({"model_config__hf_overrides": {"rms_norm_eps": 1}}, "hf_overrides"),
        ({"cache_config__prefix_caching_hash_algo": "sha256"}, "hash_algorithm"),
        ({"model_config__hf_config": Config(vocab_size=1001)}, "model_config"),
        ({"model_config__hf_text_config": Config(rope_theta=5e5)}, "rope"),
        ({"model_config__model_impl": "transformers"}, "model_config"),
        ({"model_config__quantization_config": {"bits": 4}}, "model_config"),
        ({"parallel_config__tensor_parallel_size": 2}, "tensor_parallel_size"),
        ({"parallel_config__prefill_context_parallel_size": 2}, "prefill_context_parallel_size"),
        ({"parallel_config__decode_context_parallel_size": 2}, "decode_context_parallel_size"),
    ],
    ids=str,
)
def test_an_engine_that_differs_in_one_setting_differs_in_one_field(
    world: World, change: dict[str, Any], field: str
) -> None:
    layout = world.describe()
    ours, theirs = namespace_of(layout), namespace_of(layout, **change)
    assert ours.id != theirs.id
    assert differing_fields(ours.document, theirs.document) == [field]


@pytest.mark.parametrize(
    ("settings", "facts", "weights", "epoch", "field"),
    [
        ({"namespace": "mine"}, {}, "auto:ab", 0, "label"),
        ({"chunk_tokens": 512}, {}, "auto:ab", 0, "chunk_tokens"),
        ({}, {"block_tokens": 32}, "auto:ab", 0, "block_tokens"),
        ({}, {"hash_block_size": 8}, "auto:ab", 0, "hash_block_size"),
        ({}, {}, "auto:cd", 0, "weights"),
        ({}, {}, "auto:ab", 1, "weights_epoch"),
    ],
    ids=str,
)
def test_what_is_no_setting_of_the_engine_separates_as_well(
    world: World,
    settings: dict[str, Any],
    facts: dict[str, Any],
    weights: str,
    epoch: int,
    field: str,
) -> None:
    layout = world.describe()
    parsed = parse_settings({"uri": "s3://bucket/prefix", **settings})
    theirs = namespace_for(engine_of(), facts_of(**facts), parsed, layout, weights, epoch)
    assert differing_fields(namespace_of(layout).document, theirs.document) == [field]


@pytest.mark.parametrize(
    "settings",
    [
        {"uri": "s3://other/place"},
        {"staging_bytes": "1GiB"},
        {"load_deadline_s": 1.0},
        {"ttl_s": "1d"},
        {"min_tail_tokens": 128},
    ],
    ids=str,
)
def test_settings_that_change_no_byte_keep_engines_together(
    world: World, settings: dict[str, Any]
) -> None:
    layout = world.describe()
    parsed = parse_settings({"uri": "s3://bucket/prefix", **settings})
    theirs = namespace_for(engine_of(), facts_of(), parsed, layout, "auto:ab", 0)
    assert theirs.id == namespace_of(layout).id


def config_digest(layout: LayoutDescriptor, **values: Any) -> str:
    config = Config(**{"vocab_size": 1000, "rms_norm_eps": 1e-5, **values})
    return namespace_of(layout, model_config__hf_config=config).fields.model_config


@pytest.mark.parametrize("key", ["transformers_version", "_name_or_path", "name_or_path"])
def test_where_a_model_s_configuration_came_from_does_not_matter(world: World, key: str) -> None:
    layout = world.describe()
    plain = config_digest(layout)
    assert config_digest(layout, **{key: "one"}) == config_digest(layout, **{key: "two"}) == plain


@pytest.mark.parametrize(
    "values",
    [
        {"rms_norm_eps": 1e-6},
        {"attention_bias": True},
        {"layer_types": ["full_attention"]},
        {"text_config": {"hidden_size": 64}},
        {"name": "another"},
    ],
    ids=str,
)
def test_whatever_else_a_model_s_configuration_says_does(
    world: World, values: dict[str, Any]
) -> None:
    layout = world.describe()
    assert config_digest(layout, **values) != config_digest(layout)


def test_a_configuration_with_infinities_has_a_digest(world: World) -> None:
    layout = world.describe()
    endless = config_digest(layout, time_step_limit=[0, float("inf")])
    assert endless == config_digest(layout, time_step_limit=[0, float("inf")])
    assert endless != config_digest(layout, time_step_limit=[0, 1.0])


def test_the_order_of_a_model_s_configuration_does_not_matter(world: World) -> None:
    layout = world.describe()
    one, two = Config(a=1, b={"c": 2, "d": 3}), Config(b={"d": 3, "c": 2}, a=1)
    assert (
        namespace_of(layout, model_config__hf_config=one).id
        == namespace_of(layout, model_config__hf_config=two).id
    )


def override_maker(scale: int) -> Callable[[Any], Any]:
    def override(config: Any) -> Any:
        return config, scale

    return override


def other_override(config: Any) -> Any:
    return config


def test_an_override_that_is_a_function_counts_by_its_qualified_name(world: World) -> None:
    layout = world.describe()

    def overrides(value: Any) -> str:
        return namespace_of(layout, model_config__hf_overrides=value).fields.hf_overrides

    # Two objects at two addresses, as in two processes.
    one, again = override_maker(1), override_maker(1)
    assert overrides(one) == overrides(again)
    assert "override_maker.<locals>.override" in overrides(one)
    assert __name__ in overrides(one)
    assert overrides(one) != overrides(other_override)
    assert overrides({"fix": one}) == overrides({"fix": again})
    assert overrides({"fix": one}) != overrides({"fix": other_override})


@pytest.mark.parametrize(
    ("rope", "matters"),
    [
        pytest.param({}, False, id="none"),
        pytest.param({"rope_theta": 1e4}, False, id="theta"),
        pytest.param({"rope_parameters": {"rope_type": "default"}}, False, id="default"),
        pytest.param({"rope_parameters": {"rope_type": "linear"}}, False, id="linear"),
        pytest.param({"rope_parameters": {"rope_type": "llama3"}}, False, id="llama3"),
        pytest.param({"rope_parameters": {"rope_type": "dynamic"}}, True, id="dynamic"),
        pytest.param({"rope_parameters": {"rope_type": "longrope"}}, True, id="longrope"),
        pytest.param({"rope_parameters": {"rope_type": "yarn"}}, True, id="yarn"),
        pytest.param({"rope_scaling": {"type": "dynamic"}}, True, id="older spelling"),
        pytest.param(
            {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, True, id="by layer type"
        ),
    ],
)
def test_the_longest_sequence_matters_where_positions_are_scaled_by_it(
    world: World, rope: dict[str, Any], matters: bool
) -> None:
    layout = world.describe()
    short, long = (
        namespace_of(
            layout,
            model_config__hf_text_config=Config(**rope),
            model_config__max_model_len=length,
        )
        for length in (2048, 4096)
    )
    assert (short.id != long.id) == matters
    assert short.fields.max_model_len == (2048 if matters else 0)
