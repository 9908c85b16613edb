"""Stand-ins for an engine's configuration; its cache specs and layouts are vLLM's own."""

from __future__ import annotations

import dataclasses
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from s3kv.config import parse_settings
from s3kv.core.namespace import LayoutDescriptor, Namespace

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.base")
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    from s3kv.connector.identity import EngineFacts, describe_layout, namespace_for, read_facts

LAYERS = ("model.layers.0.attn", "model.layers.1.attn")
BLOCK_TOKENS = 16
BLOCKS = 8
SPEC = {"block_size": BLOCK_TOKENS, "num_kv_heads": 2, "head_size": 64, "dtype": torch.bfloat16}


class Config:
    """A Hugging Face configuration: attributes, and all of them as a dictionary."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def to_dict(self) -> dict[str, Any]:
        return dict(self.__dict__)


def engine_of(**changes: Any) -> Any:
    """A supported engine's configuration; `part__name` changes one value of one part."""
    config: dict[str, dict[str, Any]] = {
        "kv_transfer_config": {"is_kv_consumer": True, "is_kv_producer": True},
        "parallel_config": {
            "world_size": 1,
            "tensor_parallel_size": 1,
            "pipeline_parallel_size": 1,
            "prefill_context_parallel_size": 1,
            "decode_context_parallel_size": 1,
        },
        "cache_config": {
            "prefix_caching_hash_algo": "sha256_cbor",
            "block_size": BLOCK_TOKENS,
            "prefix_match_unit": None,
            "enable_prefix_caching": True,
            "cache_dtype": "auto",
        },
        "model_config": {
            "model": "/models/one",
            "revision": None,
            "dtype": torch.bfloat16,
            "quantization": None,
            "hf_overrides": {},
            "max_model_len": 2048,
            "hf_config": Config(vocab_size=1000, rms_norm_eps=1e-5),
            "hf_text_config": Config(),
        },
        "load_config": {"load_format": "auto", "download_dir": None},
    }
    whole = {"speculative_config": None, "weight_transfer_config": None}
    whole |= {name: changes.pop(name) for name in list(changes) if "__" not in name}
    for name, value in changes.items():
        part, _, field = name.partition("__")
        config[part][field] = value
    parts = {name: SimpleNamespace(**values) for name, values in config.items()}
    return SimpleNamespace(**parts, **whole)


def full_spec(**changes: Any) -> FullAttentionSpec:
    return FullAttentionSpec(**{**SPEC, **changes})


def caches_of(*specs: Any, layout: str | None = "LBHNC", layers: tuple[str, ...] = LAYERS) -> Any:
    groups = [KVCacheGroupSpec(list(layers), spec) for spec in specs or (full_spec(),)]
    return KVCacheConfig(
        num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups, kv_cache_layout=layout
    )


def facts_of(**changes: Any) -> EngineFacts:
    return dataclasses.replace(read_facts(engine_of(), caches_of()), **changes)


class World:
    """What vLLM would answer when it is asked for backends and for the CPU's instruction set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.backends = {LAYERS[0]: "CPU_ATTN", LAYERS[1]: "CPU_ATTN"}
        self.isa = "vec"
        self.dtype: Any = torch.bfloat16
        self.device = "cpu"
        self.shape: tuple[int, ...] = (BLOCKS, 2, BLOCK_TOKENS, 128)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            monkeypatch.setattr("vllm.config.get_layers_from_vllm_config", self._layers)
            monkeypatch.setattr(
                "vllm.v1.attention.backends.cpu_attn._get_attn_isa", lambda *asked: self.isa
            )

    def _layers(self, config: Any, kind: Any, names: list[str]) -> dict[str, Any]:
        return {name: self._layer(self.backends[name]) for name in names}

    @staticmethod
    def _layer(backend: str) -> Any:
        named = SimpleNamespace(get_name=lambda: backend)
        return SimpleNamespace(get_attn_backend=lambda: named)

    def describe(self, caches: Any | None = None, **engine: Any) -> LayoutDescriptor:
        caches = caches_of() if caches is None else caches
        tensors = {n: torch.zeros(self.shape, dtype=self.dtype, device=self.device) for n in LAYERS}
        return describe_layout(engine_of(**engine), caches, tensors)


def namespace_of(layout: LayoutDescriptor, **engine: Any) -> Namespace:
    settings = parse_settings({"uri": "s3://bucket/prefix"})
    return namespace_for(engine_of(**engine), facts_of(), settings, layout, "auto:ab", 0)
