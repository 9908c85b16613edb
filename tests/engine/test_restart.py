"""What was durable when an engine ended is found by the next one (engines in own processes)."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pydantic import JsonValue
from safetensors.numpy import load

from s3kv.errors import Closed
from s3kv.runtime.offline import Completion, EngineProcess, Phase, Prompt, Spec
from tests.engine.fixtures_lifecycle import (
    BLOCK_TOKENS,
    CHUNK_TOKENS,
    ENGINE_ARGUMENTS,
    ENGINE_MARKS,
    Archive,
    extra_config,
    model_folder,
    prompt_of,
    wait_until,
)

pytestmark = ENGINE_MARKS

START_S = 150.0
PHASE_S = 60.0
MAX_TOKENS = 8


def spec(archive: Archive, kv_role: str = "kv_both", **options: JsonValue) -> Spec:
    extra = extra_config(archive.endpoint_url, archive.bucket, archive.prefix, **options)
    return Spec(
        model=str(model_folder()),
        engine_args=dict(ENGINE_ARGUMENTS),
        kv_transfer_config={
            "kv_connector": "S3KVConnector",
            "kv_connector_module_path": "s3kv.connector",
            "kv_role": kv_role,
            "kv_connector_extra_config": extra,
        },
    )


def process(spec: Spec, log: Path) -> EngineProcess:
    # The engine processes of vLLM proper; the in-process suites set the contrary.
    environment = {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "INFO",
    }
    return EngineProcess(spec, log, environment)


def ask(running: EngineProcess, name: str, *prompts: list[int]) -> list[Completion]:
    sampling: Mapping[str, JsonValue] = {"max_tokens": MAX_TOKENS, "detokenize": False}
    phase = Phase(
        name=name, prompts=[Prompt(token_ids=p, sampling=dict(sampling)) for p in prompts]
    )
    return running.run(phase, PHASE_S).completions


def test_the_last_prompt_before_a_clean_shutdown_is_found_after_the_restart(
    archive: Archive, tmp_path: Path
) -> None:
    earlier = prompt_of(2 * CHUNK_TOKENS + 3, seed=1)
    last = prompt_of(5 * CHUNK_TOKENS + BLOCK_TOKENS + 3, seed=2)
    with process(spec(archive), tmp_path / "first.log") as running:
        running.start(START_S)
        ask(running, "earlier", earlier)
        ask(running, "last", last)
        (local,) = ask(running, "local", last)
    with process(spec(archive), tmp_path / "second.log") as running:
        running.start(START_S)
        (warm,) = ask(running, "warm", last)
        assert warm.hit_token_count == 5 * CHUNK_TOKENS + BLOCK_TOKENS
        assert warm.token_ids == local.token_ids
        assert warm.logprobs == local.logprobs
    assert len(archive.namespaces()) == 1


KILL_ATTEMPTS = 3
"""On a machine that stalls for seconds the engine may have written a tick before it is killed."""


def durable_records(archive: Archive) -> int:
    """Records in segments, as any reader of safetensors counts them."""
    return sum(len(load(body)["fps"]) for body in archive.bodies(archive.segments()))


def kill_before_any_tick(archive: Archive, prompt: list[int], log: Path) -> None:
    """Archive a prompt and kill every process of the engine once its segments are there."""
    # Asked to stop at the end, a killed process has no answer.
    with suppress(Closed), process(spec(archive), log) as running:
        running.start(START_S)
        ask(running, "cold", prompt)
        wait_until(
            lambda: durable_records(archive) == 5 or bool(archive.ticks()), "five chunks durable"
        )
        os.killpg(running.pid, signal.SIGKILL)


def test_what_a_killed_engine_made_durable_is_hit_by_one_that_only_loads(
    seaweed_endpoint: str, bucket: str, tmp_path: Path
) -> None:
    prompt = prompt_of(4 * CHUNK_TOKENS + 2 * BLOCK_TOKENS + 1, seed=3)
    for attempt in range(KILL_ATTEMPTS):
        archive = Archive(seaweed_endpoint, bucket, f"killed-{os.urandom(4).hex()}")
        kill_before_any_tick(archive, prompt, tmp_path / f"first-{attempt}.log")
        if not archive.ticks():
            break
    shards = archive.shards()
    assert not archive.ticks()
    assert archive.segments()
    assert len(shards) == 5
    reader = spec(archive, "kv_consumer", probe="off", save="nothing")
    with process(reader, tmp_path / "second.log") as running:
        running.start(START_S)
        (warm,) = ask(running, "warm", prompt)
        (local,) = ask(running, "local", prompt)
        assert warm.hit_token_count == 4 * CHUNK_TOKENS + 2 * BLOCK_TOKENS
        assert warm.token_ids == local.token_ids
    # It saves nothing.
    assert archive.shards() == shards
