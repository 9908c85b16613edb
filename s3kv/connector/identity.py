"""What this engine is: read once from the engine's configuration, field by field.

Everything that decides whether two engines may share bytes is collected here, and every setting
that is not supported yet is refused here, by name (FAULTS 3, 47). Fail closed: what cannot be
identified is not shared.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from s3kv.config import Settings
from s3kv.core.ids import BlockHash
from s3kv.core.namespace import (
    NAMESPACE_FORMAT_VERSION,
    GroupLayout,
    LayoutDescriptor,
    Namespace,
    NamespaceFields,
    Refused,
    canonical_json,
    check_hash_algorithm,
    form_namespace,
)

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig

SUPPORTED_SPECS = ("FullAttentionSpec", "MLAAttentionSpec")
VOLATILE_CONFIG_KEYS = ("transformers_version", "_name_or_path", "name_or_path")
"""Keys of a model's configuration that say where it came from, not what it computes."""
ENGINE_MODEL_KEYS = ("quantization_config", "model_impl", "model_class_overrides")
"""Engine settings beside config.json that change what the model computes."""
MEDIA_KEYS = (
    "mm_processor_kwargs",
    "media_io_kwargs",
    "mm_device_do_normalize",
    "mm_hasher_algorithm",
    "mm_encoder_attn_backend",
    "mm_encoder_attn_dtype",
    "mm_encoder_fp8_scale_path",
    "mm_encoder_fp8_scale_save_path",
    "video_pruning_rate",
    "video_pruning_method",
    "interleave_mm_strings",
)
"""Engine settings that change what an image or a video becomes, and are in no block hash."""


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What both sides of a connector need to know of their engine.

    refusal: why the archive cannot serve this engine, or the empty string; loads and saves: what
    the KV role allows; block_tokens: the scheduler's block size; hash_block_size: tokens per block
    hash of a request; model_path, revision, download_dir: where the weights were loaded from; rank:
    of this process in its engine.
    """

    refusal: str
    loads: bool
    saves: bool
    world_size: int
    block_tokens: int
    hash_block_size: int
    model_path: str
    load_format: str
    revision: str | None = None
    download_dir: str | None = None
    rank: int = 0

    @property
    def hashes_per_block(self) -> int:
        """Engine hashes per scheduler block."""
        return max(1, self.block_tokens // self.hash_block_size)


def read_facts(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> EngineFacts:
    """Collect the facts; never raises for an unsupported engine, says so in `refusal`."""
    from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes

    transfer = vllm_config.kv_transfer_config
    refusal = refusal_of(vllm_config, kv_cache_config)
    block_tokens, hash_block_size = (
        (1, 1) if refusal else resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    )
    return EngineFacts(
        refusal=refusal,
        loads=bool(transfer.is_kv_consumer),
        saves=bool(transfer.is_kv_producer),
        world_size=vllm_config.parallel_config.world_size,
        block_tokens=block_tokens,
        hash_block_size=hash_block_size,
        model_path=str(vllm_config.model_config.model),
        revision=getattr(vllm_config.model_config, "revision", None),
        download_dir=getattr(vllm_config.load_config, "download_dir", None),
        rank=int(getattr(vllm_config.parallel_config, "rank", 0) or 0),
        load_format=str(vllm_config.load_config.load_format),
    )


def refusal_of(vllm_config: VllmConfig, kv_cache_config: KVCacheConfig) -> str:
    """Why this engine cannot be served yet, in words for the user; empty if it can."""
    parallel = vllm_config.parallel_config
    sizes = {
        "tensor parallelism": parallel.tensor_parallel_size,
        "pipeline parallelism": parallel.pipeline_parallel_size,
        "prefill context parallelism": getattr(parallel, "prefill_context_parallel_size", 1),
        "decode context parallelism": getattr(parallel, "decode_context_parallel_size", 1),
    }
    for name, size in sizes.items():
        if size != 1:
            return f"{name} of size {size} is not supported yet"
    if not vllm_config.cache_config.enable_prefix_caching:
        return "prefix caching is off (by option, or because hits are unsafe for this model)"
    if getattr(vllm_config, "weight_transfer_config", None) is not None:
        return "weights that are transferred into the running engine are not supported yet"
    if getattr(vllm_config, "speculative_config", None) is not None:
        return "speculative decoding is not supported yet"
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        return "KV scales that are calculated at run time are not supported yet"
    algorithm = check_hash_algorithm(str(vllm_config.cache_config.prefix_caching_hash_algo))
    if isinstance(algorithm, Refused):
        return algorithm.reason
    return _refused_groups(kv_cache_config)


def _refused_groups(kv_cache_config: KVCacheConfig) -> str:
    groups = kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        return f"models with {len(groups)} KV-cache groups are not supported yet"
    spec = groups[0].kv_cache_spec
    name = type(spec).__name__
    if name not in SUPPORTED_SPECS:
        return f"KV caches of kind {name} are not supported yet"
    if getattr(spec, "non_causal", False) or getattr(spec, "non_causal_multi_token_decode", False):
        return "non-causal attention is not supported: a block depends on later tokens"
    if getattr(spec, "sliding_window", None) or getattr(spec, "attention_chunk_size", None):
        return "sliding-window and chunked attention are not supported yet"
    if not _is_block_compact(kv_cache_config):
        return (
            f"KV cache layout {kv_cache_config.kv_cache_layout} scatters the bytes of a block; "
            "set VLLM_KV_CACHE_LAYOUT to LBNHC, LBHNC, BLNHC or BLHNC"
        )
    return ""


def _is_block_compact(kv_cache_config: KVCacheConfig) -> bool:
    from vllm.v1.kv_cache_layout import KVCacheLayout

    layout = kv_cache_config.kv_cache_layout
    return layout is None or bool(KVCacheLayout[layout].is_block_compact)


def none_hash() -> BlockHash:
    """Parent of every first block: defined by the engine after start-up, chained into every key."""
    from vllm.v1.core import kv_cache_utils

    return BlockHash(bytes(kv_cache_utils.NONE_HASH))


def describe_layout(
    vllm_config: VllmConfig, kv_cache_config: KVCacheConfig, kv_caches: Mapping[str, torch.Tensor]
) -> LayoutDescriptor:
    """This rank's byte layout. kv_caches: as registered, layer name -> tensor [B, H, N, C]."""
    group = kv_cache_config.kv_cache_groups[0]
    spec: Any = group.kv_cache_spec
    layer_names = tuple(group.layer_names)
    first = kv_caches[layer_names[0]]
    head_size = int(getattr(spec, "head_size", 0))
    return LayoutDescriptor(
        kv_cache_layout=str(kv_cache_config.kv_cache_layout or ""),
        cpu_isa=_cpu_isa(vllm_config, spec, first),
        groups=(
            GroupLayout(
                spec=type(spec).__name__,
                attention_backend=_backend_names(vllm_config, layer_names),
                dtype=str(first.dtype),
                block_size=int(spec.block_size),
                kv_head_count=int(getattr(spec, "num_kv_heads", 0)),
                head_size=head_size,
                head_size_v=int(getattr(spec, "head_size_v", None) or head_size),
                page_bytes=page_bytes_of(spec),
                window_tokens=0,
                page_shapes=_page_shapes(kv_cache_config, [kv_caches[n] for n in layer_names]),
                layer_names=layer_names,
            ),
        ),
    )


def _page_shapes(
    kv_cache_config: KVCacheConfig, tensors: Sequence[torch.Tensor]
) -> tuple[tuple[int, ...], ...]:
    """How the backend divides a block: (kernel blocks, heads, states, content), one per shape."""
    ratios = {
        (t.shape[0] // kv_cache_config.num_blocks, *(int(n) for n in t.shape[1:])) for t in tensors
    }
    return tuple(sorted(ratios))


def page_bytes_of(spec: Any) -> int:
    """Stored bytes of one layer's page: without the padding that some specs carry."""
    return int(getattr(spec, "unpadded_page_size_bytes", None) or spec.page_size_bytes)


def _backend_names(vllm_config: VllmConfig, layer_names: tuple[str, ...]) -> str:
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    layers = get_layers_from_vllm_config(vllm_config, AttentionLayerBase, list(layer_names))
    names = {layer.get_attn_backend().get_name() for layer in layers.values()}
    return ",".join(sorted(names))


def _cpu_isa(vllm_config: VllmConfig, spec: Any, tensor: torch.Tensor) -> str:
    """The CPU backend packs keys differently for each instruction set."""
    if tensor.device.type != "cpu":
        return ""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    return str(
        _get_attn_isa(
            vllm_config.model_config.dtype,
            spec.block_size,
            getattr(spec, "head_size", None),
            vllm_config.cache_config.cache_dtype,
        )
    )


def namespace_for(
    vllm_config: VllmConfig,
    facts: EngineFacts,
    settings: Settings,
    layout: LayoutDescriptor,
    weights: str,
    weights_epoch: int,
) -> Namespace:
    """Form the namespace of this engine. weights: digest or the user's literal value."""
    model, cache, parallel = (
        vllm_config.model_config,
        vllm_config.cache_config,
        vllm_config.parallel_config,
    )
    rope = _rope(model)
    return form_namespace(
        NamespaceFields(
            format_version=NAMESPACE_FORMAT_VERSION,
            engine="vllm",
            label=settings.namespace,
            weights=weights,
            weights_epoch=weights_epoch,
            model_config=_config_digest(model),
            model_dtype=str(model.dtype),
            kv_cache_dtype=str(cache.cache_dtype),
            kv_scales="",
            quantization=str(model.quantization or ""),
            hf_overrides=_stable_json(model.hf_overrides or {}),
            rope=rope,
            max_model_len=int(model.max_model_len) if _depends_on_length(rope) else 0,
            drafter="",
            layout=(layout,),
            tensor_parallel_size=parallel.tensor_parallel_size,
            pipeline_parallel_size=parallel.pipeline_parallel_size,
            prefill_context_parallel_size=getattr(parallel, "prefill_context_parallel_size", 1),
            decode_context_parallel_size=getattr(parallel, "decode_context_parallel_size", 1),
            cp_interleave_tokens=1,
            replicas=1,
            hash_algorithm=str(cache.prefix_caching_hash_algo),
            hash_block_size=facts.hash_block_size,
            block_tokens=facts.block_tokens,
            chunk_tokens=settings.chunk_tokens,
        )
    )


def _rope(model: Any) -> str:
    config = model.hf_text_config
    found = {
        name: value
        for name in ("rope_parameters", "rope_scaling", "rope_theta")
        if (value := getattr(config, name, None)) is not None
    }
    return _stable_json(found) if found else ""


def _depends_on_length(rope: str) -> bool:
    """Dynamic and long-context scaling look at the longest sequence the engine may see."""
    return any(kind in rope for kind in ('"dynamic"', '"longrope"', '"yarn"'))


def _config_digest(model: Any) -> str:
    """Digest of everything that the engine's model settings and config.json change in results."""
    fields = dict(model.hf_config.to_dict())
    for key in VOLATILE_CONFIG_KEYS:
        fields.pop(key, None)
    engine = {name: getattr(model, name, None) for name in ENGINE_MODEL_KEYS}
    media = getattr(model, "multimodal_config", None)
    if media is not None:
        engine["media"] = {name: getattr(media, name, None) for name in MEDIA_KEYS}
    return hashlib.sha256(_stable_json([fields, engine]).encode()).hexdigest()


def _stable_json(value: object) -> str:
    """Canonical JSON of configuration values; anything that JSON does not know by its name."""
    return canonical_json(_plain(json.loads(json.dumps(value, default=_name_of, sort_keys=True))))


def _plain(value: object) -> object:
    """JSON has no infinity and no NaN, model configurations do: these become their names."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _name_of(value: object) -> str:
    """Functions by qualified name (their address differs in every process), the rest by `str`."""
    qualified = getattr(value, "__qualname__", None)
    return f"{getattr(value, '__module__', '')}.{qualified}" if qualified else str(value)
