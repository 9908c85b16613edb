"""Namespaces for tests: one sample, which is the first golden vector, and variations of it."""

from __future__ import annotations

from dataclasses import replace

from s3kv.core.namespace import (
    GroupLayout,
    LayoutDescriptor,
    Namespace,
    NamespaceFields,
    form_namespace,
)

GROUP = GroupLayout(
    spec="FullAttentionSpec",
    attention_backend="CPU_ATTN",
    dtype="torch.bfloat16",
    block_size=16,
    kv_head_count=3,
    head_size=64,
    head_size_v=64,
    page_bytes=12288,
    window_tokens=0,
    page_shapes=((2, 3), (4,)),
    layer_names=("model.layers.0.self_attn.attn", "model.layers.1.self_attn.attn"),
)
LAYOUT = LayoutDescriptor(kv_cache_layout="LBHNC", cpu_isa="vec", groups=(GROUP,))


def namespace_fields() -> NamespaceFields:
    """A small model on one rank; every other sample of the tests changes some of these."""
    return NamespaceFields(
        format_version=1,
        engine="vllm",
        label="",
        weights="auto:" + "ab" * 32,
        weights_epoch=0,
        model_config="cd" * 32,
        model_dtype="torch.bfloat16",
        kv_cache_dtype="auto",
        kv_scales="",
        quantization="",
        hf_overrides="",
        rope='{"rope_theta":100000}',
        max_model_len=0,
        drafter="",
        layout=(LAYOUT,),
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        prefill_context_parallel_size=1,
        decode_context_parallel_size=1,
        cp_interleave_tokens=1,
        replicas=1,
        hash_algorithm="sha256_cbor",
        hash_block_size=16,
        block_tokens=16,
        chunk_tokens=256,
    )


def make_namespace(label: str = "", weights: str = "w" * 64) -> Namespace:
    """A namespace, for tests that need one but do not care which."""
    return form_namespace(replace(namespace_fields(), label=label, weights=weights))
