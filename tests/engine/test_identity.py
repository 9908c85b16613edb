"""Engines that differ in anything that matters never share; equal ones always do (real engines)."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.engine.fixtures_lifecycle import (
    CHUNK_TOKENS,
    ENGINE_MARKS,
    MODELS,
    Archive,
    Engine,
    engine,
    local_answer,
    model_folder,
    our_log,
    prompt_of,
    settle,
)

pytestmark = ENGINE_MARKS

PROMPT = prompt_of(3 * CHUNK_TOKENS + 9, seed=1)
PROCESS_TIMEOUT_S = 200


@dataclass(frozen=True)
class First:
    """What the first engine left behind."""

    archive: Archive
    namespace: str
    token_ids: tuple[int, ...]
    salted_hits: tuple[tuple[str, int], ...]


def namespace_of(running: Engine) -> str:
    archive = running.scheduler._archive
    assert archive is not None, running.scheduler._agreement.refusal
    return str(archive.namespace.id)


@pytest.fixture(scope="module")
def first(seaweed_endpoint: str, bucket: str) -> First:
    archive = Archive(seaweed_endpoint, bucket, f"identity-{os.urandom(4).hex()}")
    with engine(model_folder(), seaweed_endpoint, bucket, archive.prefix) as running:
        answer = local_answer(running, PROMPT)
        hits = tuple((salt, salted_hit(running, salt)) for salt in ("one", "two", "one"))
        return First(archive, namespace_of(running), answer.token_ids, hits)


def salted_hit(running: Engine, salt: str) -> int:
    """Tokens of PROMPT that the archive delivers under a salt; what was missing is archived."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=1, detokenize=False, ignore_eos=True)
    prompt = {"prompt_token_ids": list(PROMPT), "cache_salt": salt}
    (output,) = running.llm.generate([prompt], params, use_tqdm=False)
    settle(running)
    running.forget_local()
    return int(output.kv_transfer_params["s3kv"]["hit_tokens"])


@pytest.fixture
def model_copy(tmp_path: Path) -> Path:
    return shutil.copytree(model_folder(), tmp_path / "copy")


def flip_one_weight_byte(folder: Path) -> None:
    """The last byte of the last tensor, far from every header."""
    path = folder / "model.safetensors"
    with path.open("r+b") as weights:
        weights.seek(-1, os.SEEK_END)
        last = weights.read(1)[0]
        weights.seek(-1, os.SEEK_END)
        weights.write(bytes([last ^ 1]))


def start_again(first: First, model: Path, **options: Any) -> tuple[str, int, tuple[int, ...]]:
    """Another engine on the same prefix: its namespace, its hit, its tokens."""
    archive = first.archive
    with engine(model, archive.endpoint_url, archive.bucket, archive.prefix, **options) as running:
        answer = running.ask(PROMPT)
        settle(running)
        return namespace_of(running), answer.hit_tokens, answer.token_ids


def test_an_equal_engine_with_its_model_in_another_folder_hits(
    first: First, model_copy: Path
) -> None:
    namespace, hit, token_ids = start_again(first, model_copy)
    assert namespace == first.namespace
    assert hit == 3 * CHUNK_TOKENS
    assert token_ids == first.token_ids


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"engine_args": {"dtype": "bfloat16"}}, id="dtype"),
        pytest.param({"engine_args": {"block_size": 64}}, id="block size"),
        pytest.param({"chunk_tokens": 2 * CHUNK_TOKENS}, id="chunk tokens"),
        pytest.param({"namespace": "another"}, id="label"),
    ],
)
def test_an_engine_with_another_setting_never_hits(first: First, options: dict[str, Any]) -> None:
    namespace, hit, _ = start_again(first, model_folder(), **options)
    assert namespace != first.namespace
    assert hit == 0


def test_an_engine_with_other_weights_never_hits(first: First) -> None:
    namespace, hit, token_ids = start_again(first, model_folder(seed=8))
    assert namespace != first.namespace
    assert hit == 0
    assert token_ids != first.token_ids


def test_one_changed_byte_of_one_weight_file_is_another_namespace(
    first: First, model_copy: Path
) -> None:
    flip_one_weight_byte(model_copy)
    namespace, hit, _ = start_again(first, model_copy)
    assert namespace != first.namespace
    assert hit == 0


def test_the_same_prompt_under_another_salt_never_hits(first: First) -> None:
    # The archive already held the prompt without a salt when the first of these was asked.
    assert first.salted_hits == (("one", 0), ("two", 0), ("one", 3 * CHUNK_TOKENS))


# ------------------------------------------------------------------------ processes
KEYS_SCRIPT = """
import json, sys
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core import kv_cache_utils
from vllm.v1.request import Request
from s3kv.config import parse_settings
from s3kv.connector.identity import EngineFacts, namespace_for
from s3kv.core.chunking import prompt_chunks
from s3kv.core.ids import BlockHash
from s3kv.core.keys import shard_key
from s3kv.core.namespace import GroupLayout, LayoutDescriptor
from s3kv.runtime.weight_files import weights_digest
from pathlib import Path

model, prompt = sys.argv[1], json.loads(sys.argv[2])
config = EngineArgs(model=model, skip_tokenizer_init=True, dtype="float32", max_model_len=2048,
                    block_size=32, enforce_eager=True).create_engine_config()
facts = EngineFacts("", True, True, 1, 32, 32, model, "auto")
group = GroupLayout(spec="FullAttentionSpec", attention_backend="CPU_ATTN", dtype="torch.float32",
                    block_size=32, kv_head_count=4, head_size=32, head_size_v=32,
                    page_bytes=32768, window_tokens=0, page_shapes=(), layer_names=("a", "b"))
layout = LayoutDescriptor(kv_cache_layout="LBHNC", cpu_isa="vec", groups=(group,))
settings = parse_settings({"uri": "s3://bucket/prefix", "chunk_tokens": 128})
weights = weights_digest(Path(model), "auto")
namespace = namespace_for(config, facts, settings, layout, weights, 0)
hash_fn = get_hash_fn_by_name(config.cache_config.prefix_caching_hash_algo)
kv_cache_utils.init_none_hash(hash_fn)
request = Request(request_id="any", prompt_token_ids=prompt, pooling_params=None,
                  sampling_params=SamplingParams(max_tokens=1),
                  block_hasher=kv_cache_utils.get_request_block_hasher(32, hash_fn))
chain = [BlockHash(bytes(h)) for h in request.block_hashes]
chunks = prompt_chunks(chain, len(chain), 4, 1)
print(json.dumps({"namespace": namespace.id,
                  "names": [shard_key(namespace.id, c.chunk_hash, 0, 1) for c in chunks],
                  "builtin": hash("a string")}))
"""


def test_keys_are_equal_in_processes_with_other_hash_seeds() -> None:
    environment = {n: v for n, v in os.environ.items() if n != "PYTHONHASHSEED"}
    environment |= {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", KEYS_SCRIPT, str(model_folder()), json.dumps(PROMPT)]
    root = Path(__file__).parents[2]
    started = [
        subprocess.Popen(
            command, env=env, cwd=root, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for env in (environment, environment, environment | {"PYTHONHASHSEED": "7"})
    ]
    found = []
    for process in started:
        out, errors = process.communicate(timeout=PROCESS_TIMEOUT_S)
        assert process.returncode == 0, errors
        found.append(json.loads(out.splitlines()[-1]))
    a, b, seeded = found
    assert a["builtin"] != b["builtin"], "the interpreters must differ for this to mean something"
    assert a["names"] == b["names"]
    assert len(a["names"]) == 3
    # A seed that the operator sets is the engine's own salt of every chain, not of the namespace.
    assert a["namespace"] == b["namespace"] == seeded["namespace"]
    assert not set(seeded["names"]) & set(a["names"])


# ---------------------------------------------------------------------- refusals
def two_group_model() -> Path:
    """A tiny model with sliding-window and full layers, hence several KV-cache groups."""
    folder = MODELS / "tiny-two-groups"
    if not folder.exists():
        from transformers import Gemma3ForCausalLM, Gemma3TextConfig

        config = Gemma3TextConfig(
            vocab_size=1000,
            hidden_size=128,
            intermediate_size=256,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=32,
            max_position_embeddings=4096,
            sliding_window=64,
            query_pre_attn_scalar=32,
            bos_token_id=1,
            eos_token_id=2,
            layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        )
        Gemma3ForCausalLM(config).save_pretrained(folder)
    return folder


@dataclass(frozen=True)
class Refused:
    """An engine that the archive cannot serve, and what it said while it started."""

    running: Engine
    archive: Archive
    warnings: list[str]
    reason: str


REFUSALS = {
    "two groups": ({}, "KV-cache groups"),
    "unstable hash": ({"prefix_caching_hash_algo": "xxhash"}, "xxhash"),
    "dummy weights": ({"load_format": "dummy"}, "dummy"),
}


@pytest.fixture(scope="module", params=list(REFUSALS))
def refused(
    request: pytest.FixtureRequest, seaweed_endpoint: str, bucket: str
) -> Iterator[Refused]:
    archive = Archive(seaweed_endpoint, bucket, f"refused-{os.urandom(4).hex()}")
    engine_args, reason = REFUSALS[request.param]
    model = two_group_model() if request.param == "two groups" else model_folder()
    with (
        our_log() as log,
        engine(model, seaweed_endpoint, bucket, archive.prefix, engine_args=engine_args) as running,
    ):
        prompt = prompt_of(3 * CHUNK_TOKENS, seed=4)
        cold, local = running.ask(prompt), running.ask(prompt)
        running.forget_local()
        again = running.ask(prompt, s3kv={"load": True})
        assert len(cold.token_ids) == len(again.token_ids) == len(local.token_ids) == 8
        assert again.hit_tokens == 0
        yield Refused(running, archive, log.texts(logging.WARNING), reason)


def test_an_unsupported_engine_says_so_once_works_and_archives_nothing(refused: Refused) -> None:
    assert len(refused.warnings) == 1
    assert "the archive stays off" in refused.warnings[0]
    assert refused.reason in refused.warnings[0]
    assert refused.archive.objects() == {}
    assert refused.running.caught() == {}
    assert refused.running.scheduler._tracked == {}


def test_an_unsupported_engine_keeps_the_hybrid_allocator(refused: Refused) -> None:
    config = refused.running.core.vllm_config.scheduler_config
    assert config.disable_hybrid_kv_cache_manager is False
    groups = refused.running.scheduler_connector._kv_cache_config.kv_cache_groups
    assert (len(groups) > 1) == (refused.reason == "KV-cache groups")
