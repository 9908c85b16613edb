"""An engine, the store behind a proxy, and archived prompts to harm."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from s3kv.bucket.retry import RetryPolicy
from s3kv.core.chunking import Chunk, prompt_chunks
from s3kv.core.ids import BlockHash, fingerprints
from s3kv.core.keys import shard_key
from tests.engine.harness import BLOCK_TOKENS, CHUNK_TOKENS, Answer, Engine, answer_of, prompt_of
from tests.faults.proxy import Proxy

PROMPT_TOKENS = 1100
ARCHIVED_TOKENS = PROMPT_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS
CHUNK_COUNT = 9
"""8 full chunks and a tail of two blocks."""
PARTS = {"first": (0,), "middle": (4,), "last": (8,), "all": tuple(range(CHUNK_COUNT))}
ATTEMPTS = RetryPolicy().attempt_count
SHORT_S = 2.0
WAIT_S = 60.0
POISON = 3.0
STOCK = 4
"""Prompts that are archived together: the index is written once a second only."""


@dataclass(frozen=True)
class Archived:
    """A prompt whose chunks are all in the bucket, and its answer without the archive's help."""

    prompt: tuple[int, ...]
    reference: Answer
    chunks: list[Chunk]
    keys: list[str]


class Bench:
    """The engine under test, the store behind the proxy, and what to do with both."""

    def __init__(self, engine: Engine, between: Proxy, s3: Any, bucket: str) -> None:
        self.engine = engine
        self.proxy = between
        self._s3 = s3
        self._bucket = bucket
        uri = engine.worker._settings.uri
        self._prefix = uri.removeprefix(f"s3://{bucket}/")
        self._seeds = itertools.count(1000)
        self._stock: list[Archived] = []
        self._donor: list[bytes] = []
        self._caught: dict[str, int] = {}

    # ------------------------------------------------------------------ names
    def chunks(self, prompt: Sequence[int]) -> list[Chunk]:
        """The chunks of a prompt, named by the engine's own hash function."""
        from vllm.utils.hashing import get_hash_fn_by_name
        from vllm.v1.core.kv_cache_utils import hash_block_tokens

        algorithm = self.engine.core.vllm_config.cache_config.prefix_caching_hash_algo
        function = get_hash_fn_by_name(algorithm)
        chain: list[BlockHash] = []
        for at in range(0, ARCHIVED_TOKENS, BLOCK_TOKENS):
            parent = chain[-1] if chain else None
            block = tuple(prompt[at : at + BLOCK_TOKENS])
            chain.append(BlockHash(bytes(hash_block_tokens(function, parent, block, None))))
        return prompt_chunks(chain, len(chain), CHUNK_TOKENS // BLOCK_TOKENS, 1)

    def keys(self, prompt: Sequence[int]) -> list[str]:
        """Their shards' names below the prefix."""
        archive = self.engine.scheduler._archive
        assert archive is not None
        return [shard_key(archive.namespace.id, c.chunk_hash, 0, 1) for c in self.chunks(prompt)]

    # --------------------------------------------------------------- the store
    def read(self, key: str) -> bytes:
        body = self._s3.get_object(Bucket=self._bucket, Key=f"{self._prefix}/{key}")["Body"]
        with body:
            return bytes(body.read())

    def write(self, key: str, body: bytes) -> None:
        self._s3.put_object(Bucket=self._bucket, Key=f"{self._prefix}/{key}", Body=body)

    def delete(self, key: str) -> None:
        self._s3.delete_object(Bucket=self._bucket, Key=f"{self._prefix}/{key}")

    def donor(self, index: int) -> bytes:
        """An intact shard of the same size that belongs to another prompt."""
        if not self._donor:
            self._donor = [self.read(key) for key in self.take().keys]
        return self._donor[index]

    # -------------------------------------------------------------- the engine
    def take(self) -> Archived:
        """An archived prompt that no other test knows."""
        if not self._stock:
            prompts = [prompt_of(PROMPT_TOKENS, seed=next(self._seeds)) for _ in range(STOCK)]
            answers = self.engine.generate(prompts, s3kv={"load": False})
            self.rest()
            self._stock = [
                Archived(tuple(prompt), answer, self.chunks(prompt), self.keys(prompt))
                for prompt, answer in zip(prompts, answers, strict=True)
            ]
            for one in self._stock:
                assert one.reference.hit_tokens == 0
            self.until(
                lambda: all(self.listed(one.chunks) for one in self._stock),
                "a prompt is not listed",
            )
        return self._stock.pop()

    def listed(self, chunks: Sequence[Chunk]) -> bool:
        """Whether the scheduler side's index lists all of these."""
        archive = self.engine.scheduler._archive
        assert archive is not None
        return bool(archive.snapshot.present(fingerprints([c.chunk_hash for c in chunks])).all())

    def rest(self) -> None:
        """Wait until nothing is under way any more."""
        engine = self.engine
        engine.settle(WAIT_S)
        self.until(lambda: engine.free_slots() == engine.slot_count(), "slots are missing")

    def until(self, holds: Callable[[], bool], complaint: str) -> None:
        """Step the idle engine until something holds."""
        end_s = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < end_s, complaint
            self.engine.step_idle()
            time.sleep(0.005)

    def forget(self) -> None:
        """Nothing that was computed before can help, not even by lying where it lay."""
        self.engine.forget_local()
        for layer in self.engine.core.model_executor.driver_worker.worker.model_runner.kv_caches:
            layer.fill_(POISON)

    def set_deadline(self, monkeypatch: pytest.MonkeyPatch, deadline_s: float) -> None:
        worker = self.engine.worker
        settings = worker._settings.model_copy(update={"load_deadline_s": deadline_s})
        monkeypatch.setattr(worker, "_settings", settings)

    def begin_again(self) -> None:
        """After a new epoch: what is in stock lies in the old one."""
        self._stock, self._donor = [], []

    def whole(self) -> None:
        """All blocks and slots are back, and no hook failed."""
        pool = self.engine.core.scheduler.kv_cache_manager.block_pool
        assert self.engine.free_blocks() == pool.num_gpu_blocks - 1
        assert self.engine.free_slots() == self.engine.slot_count()
        assert self.engine.caught() == self._caught

    def expect_caught(self, hook: str) -> None:
        """A test made a hook fail."""
        assert hook in self.engine.caught()
        self._caught = self.engine.caught()

    def loads(self) -> int:
        """Loads planned so far."""
        counts = self.engine.scheduler._loads.counts
        return counts["planned"] + counts["abandoned"]

    def data_gets(self) -> int:
        return self.proxy.count("GET", "data")


class Stepped:
    """A request whose engine steps the test makes, so that it can act in between."""

    def __init__(self, bench: Bench, prompt: Sequence[int]) -> None:
        self._engine = bench.engine
        self._prompt = prompt
        self._answer: Answer | None = None

    def __enter__(self) -> Stepped:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        params = SamplingParams(
            temperature=0,
            max_tokens=8,
            detokenize=False,
            ignore_eos=True,
            logprobs=0,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        prompt = {"prompt_token_ids": list(self._prompt)}
        self._engine.llm.llm_engine.add_request("stepped", prompt, params)
        return self

    def __exit__(self, *_: object) -> None:
        if self._answer is None:
            self._engine.llm.llm_engine.abort_request(["stepped"])

    def _step(self) -> None:
        for output in self._engine.llm.llm_engine.step():
            if output.finished:
                self._answer = answer_of(output)

    def step_until(self, holds: Callable[[], bool]) -> None:
        end_s = time.monotonic() + WAIT_S
        while not holds():
            assert time.monotonic() < end_s, "it did not happen"
            assert self._answer is None, "the request ended before"
            self._step()

    def finish(self, max_steps: int | None = None) -> Answer:
        end_s = time.monotonic() + WAIT_S
        steps = 0
        while self._answer is None:
            steps += 1
            assert max_steps is None or steps < max_steps, "the engine goes round in circles"
            assert time.monotonic() < end_s, "the request does not end"
            self._step()
        return self._answer
