"""Namespaces for tests that need one but do not care which."""

from __future__ import annotations

from s3kv.core.namespace import (
    NAMESPACE_FORMAT_VERSION,
    GroupLayout,
    LayoutDescriptor,
    Namespace,
    NamespaceFields,
    form_namespace,
)


def make_namespace(label: str = "", weights: str = "w" * 64) -> Namespace:
    """A namespace of a small model on one rank."""
    group = GroupLayout(
        spec="FullAttentionSpec",
        attention_backend="CPU_ATTN",
        dtype="bfloat16",
        block_size=16,
        kv_head_count=2,
        head_size=64,
        head_size_v=64,
        page_bytes=8_192,
        window_tokens=0,
        state_shapes=(),
        layer_names=("layers.0", "layers.1"),
    )
    layout = LayoutDescriptor(kv_cache_layout="NHD", cpu_isa="avx2", groups=(group,))
    return form_namespace(
        NamespaceFields(
            format_version=NAMESPACE_FORMAT_VERSION,
            engine="vllm",
            label=label,
            weights=weights,
            weights_epoch=0,
            model_config="m" * 64,
            model_dtype="bfloat16",
            kv_cache_dtype="auto",
            kv_scales="",
            quantization="",
            hf_overrides="",
            rope="",
            max_model_len=0,
            drafter="",
            layout=(layout,),
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
    )
