"""One real engine in this process, with both sides of the connector within reach.

`VLLM_ENABLE_V1_MULTIPROCESSING=0` puts scheduler and worker into the test's own process, so that a
test can look at slots, pins and blocks, inject an exception into any hook, and still run the real
scheduler, the real model runner and the real store.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from s3kv.connector import S3KVConnector
from s3kv.connector.scheduler import SchedulerSide
from s3kv.connector.worker import WorkerSide
from s3kv.runtime.loop import THREAD_PREFIX

BLOCK_TOKENS = 32
CHUNK_TOKENS = 128
MAX_MODEL_LEN = 2048
THREADS_END_S = 20.0


def prepare_environment() -> None:
    """Before vLLM is imported."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")


@dataclass(frozen=True)
class Answer:
    """What a client got: tokens, their log-probabilities, and our report."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str | None
    report: Mapping[str, Any]

    @property
    def hit_tokens(self) -> int:
        return int(self.report.get("hit_tokens", 0))


def prompt_of(token_count: int, seed: int) -> list[int]:
    """Random token ids of the tiny model's vocabulary; the same seed is a prefix of itself."""
    numbers = random.Random(seed)
    return [numbers.randrange(10, 990) for _ in range(token_count)]


class Engine:
    """A started `vllm.LLM` with the connector."""

    def __init__(self, llm: Any) -> None:
        self.llm = llm

    @property
    def core(self) -> Any:
        return self.llm.llm_engine.engine_core.engine_core

    @property
    def scheduler_connector(self) -> S3KVConnector:
        connector = self.core.scheduler.connector
        assert isinstance(connector, S3KVConnector)
        return connector

    @property
    def worker_connector(self) -> S3KVConnector:
        from vllm.distributed.kv_transfer import get_kv_transfer_group

        connector = get_kv_transfer_group()
        assert isinstance(connector, S3KVConnector)
        return connector

    @property
    def scheduler(self) -> SchedulerSide:
        side = self.scheduler_connector._scheduler
        assert side is not None
        return side

    @property
    def worker(self) -> WorkerSide:
        side = self.worker_connector._worker
        assert side is not None
        return side

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int = 8,
        s3kv: Mapping[str, object] | None = None,
        **sampling: Any,
    ) -> list[Answer]:
        """Run prompts to their end, greedily."""
        from vllm import SamplingParams

        extra = {"kv_transfer_params": {"s3kv": dict(s3kv)}} if s3kv is not None else None
        params = SamplingParams(
            temperature=0,
            max_tokens=max_tokens,
            detokenize=False,
            ignore_eos=True,
            logprobs=0,
            extra_args=extra,
            **sampling,
        )
        outputs = self.llm.generate(
            [{"prompt_token_ids": list(p)} for p in prompts], params, use_tqdm=False
        )
        return [answer_of(output) for output in outputs]

    def ask(self, prompt: Sequence[int], **options: Any) -> Answer:
        return self.generate([prompt], **options)[0]

    def forget_local(self) -> None:
        """Empty the engine's own prefix cache, so that only the archive can help."""
        assert self.llm.reset_prefix_cache(), "blocks are still in use"

    def settle(self, timeout_s: float = 30.0) -> None:
        """Step the idle engine until every save has an outcome and is visible to lookups."""
        end_s = time.monotonic() + timeout_s
        while not self.is_settled():
            assert time.monotonic() < end_s, "saves did not end"
            self.step_idle()
            time.sleep(0.01)

    def is_settled(self) -> bool:
        saves = self.scheduler._saves
        assert saves is not None
        worker = self.worker
        uploads = worker._archive._uploader.pending_count if worker._archive is not None else 0
        return saves.pinned_count == 0 and saves.in_flight_count == 0 and uploads == 0

    def step_idle(self) -> None:
        """One engine step without tokens, as a loaded engine would make.

        An engine without requests makes none; reports of saves would lie there until the next.
        """
        scheduler = self.core.scheduler
        scheduler.has_requests = lambda: True
        try:
            self.core.step()
        finally:
            del scheduler.has_requests

    def free_blocks(self) -> int:
        return int(self.core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def free_slots(self) -> int:
        staging = self.worker._staging
        assert staging is not None
        return staging.pool.free_count

    def slot_count(self) -> int:
        staging = self.worker._staging
        assert staging is not None
        return staging.pool.slot_count

    def caught(self) -> dict[str, int]:
        """Exceptions that hooks swallowed, by hook."""
        caught = self.scheduler_connector._guard.caught + self.worker_connector._guard.caught
        return dict(caught)


def answer_of(output: Any) -> Answer:
    """What a client got, from the engine's own output of a finished request."""
    first = output.outputs[0]
    logprobs = tuple(
        float(table[token].logprob)
        for token, table in zip(first.token_ids, first.logprobs or [], strict=False)
    )
    params = output.kv_transfer_params or {}
    return Answer(
        tuple(first.token_ids), logprobs, first.finish_reason, dict(params.get("s3kv", {}))
    )


ENGINE_ARGUMENTS: dict[str, JsonValue] = {
    "skip_tokenizer_init": True,
    "enforce_eager": True,
    "max_model_len": MAX_MODEL_LEN,
    "dtype": "float32",
    "seed": 0,
    "block_size": BLOCK_TOKENS,
}
"""Of every engine of this suite, whatever its process."""


def extra_config(
    endpoint_url: str, bucket: str, prefix: str, **options: JsonValue
) -> dict[str, JsonValue]:
    """The connector's configuration for `s3://bucket/prefix` with these options."""
    return {
        "uri": f"s3://{bucket}/{prefix}",
        "endpoint_url": endpoint_url,
        "region": "us-east-1",
        "addressing_style": "path",
        "chunk_tokens": CHUNK_TOKENS,
        "min_tail_tokens": BLOCK_TOKENS,
        "staging_bytes": "64MiB",
        "ttl_s": "30d",
        "lookup_deadline_s": 5.0,
        **options,
    }


@contextmanager
def engine(
    model: Path, endpoint_url: str, bucket: str, prefix: str, **options: Any
) -> Iterator[Engine]:
    """Start an engine on `s3://bucket/prefix`; none of our threads outlives it.

    options: extra-config keys, or engine arguments under `engine_args`.
    """
    prepare_environment()
    from vllm import LLM
    from vllm.config import KVTransferConfig

    engine_args = dict(options.pop("engine_args", {}))
    role = options.pop("kv_role", "kv_both")
    transfer = KVTransferConfig(
        kv_connector="S3KVConnector",
        kv_connector_module_path="s3kv.connector",
        kv_role=role,
        kv_connector_extra_config=extra_config(endpoint_url, bucket, prefix, **options),
    )
    arguments = {
        "model": str(model),
        "disable_log_stats": False,
        "kv_transfer_config": transfer,
        **ENGINE_ARGUMENTS,
        **engine_args,
    }
    llm = LLM(**arguments)
    try:
        yield Engine(llm)
    finally:
        llm.llm_engine.engine_core.shutdown()
        _forget_engine(llm)
    _assert_no_thread_left()


def our_threads() -> list[str]:
    """Names of this process's threads that the connector started."""
    return sorted(t.name for t in threading.enumerate() if t.name.startswith(THREAD_PREFIX))


def _assert_no_thread_left() -> None:
    """A late request may hold a thread until its own time limit."""
    end_s = time.monotonic() + THREADS_END_S
    while left := our_threads():
        assert time.monotonic() < end_s, (
            f"still alive {THREADS_END_S:.0f} s after the engine's shutdown: {', '.join(left)}"
        )
        time.sleep(0.02)


def _forget_engine(llm: Any) -> None:
    """Make room for the next engine in this process."""
    import gc

    from vllm.distributed import cleanup_dist_env_and_memory

    del llm
    gc.collect()
    cleanup_dist_env_and_memory()
