"""Every way in which a shard can fail to arrive ends as if it had never been archived.

A real engine, a real store, and a proxy between them. Each case archives a prompt of its own, harms
some of its shards, empties the engine's own cache, and asks again: same tokens, bounded work, all
blocks and slots back, and the next identical request neither loops nor fails.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from s3kv.bucket.retry import RetryPolicy
from s3kv.connector.staging import FencedDeliverer
from s3kv.connector.tracked import MAX_LOAD_ATTEMPTS
from s3kv.core.chunking import Chunk, prompt_chunks
from s3kv.core.ids import BlockHash, fingerprints
from s3kv.core.keys import shard_key
from tests.engine.harness import BLOCK_TOKENS, CHUNK_TOKENS, Answer, Engine, _answer, prompt_of
from tests.faults.proxy import Action, Cut, Drop, Fail, Hold, Proxy

if TYPE_CHECKING:
    from s3kv.cli.local_store import LocalStore

ENGINE_OPTIONS = {
    "load_deadline_s": 120.0,
    "engine_args": {"num_gpu_blocks_override": 400},
}
PROMPT_TOKENS = 1900
ARCHIVED_TOKENS = PROMPT_TOKENS // BLOCK_TOKENS * BLOCK_TOKENS
CHUNK_COUNT = 15
"""14 full chunks and a tail of three blocks."""
PARTS = {"first": (0,), "middle": (7,), "last": (14,), "all": tuple(range(CHUNK_COUNT))}
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


@pytest.fixture(scope="module")
def bench(
    shared_engine: Engine, between: Proxy, seaweed: LocalStore, bucket: str
) -> Iterator[Bench]:
    import boto3
    from botocore.config import Config

    s3 = boto3.client(
        "s3",
        endpoint_url=seaweed.endpoint_url,
        config=Config(
            s3={"addressing_style": "path"}, request_checksum_calculation="when_required"
        ),
    )
    yield Bench(shared_engine, between, s3, bucket)
    s3.close()


@pytest.fixture(autouse=True)
def whole_again(bench: Bench) -> Iterator[None]:
    """Every test leaves the proxy honest, the pools whole, and no hook failed."""
    yield
    bench.proxy.heal()
    bench.rest()
    bench.engine.forget_local()
    bench.whole()


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
                self._answer = _answer(output)

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


# ------------------------------------------------------------------------ the table
Harm = Callable[[Bench, Sequence[str], Sequence[int]], None]


def each(change: Callable[[bytes], bytes]) -> Harm:
    """Rewrite the stored shards."""

    def harm(bench: Bench, keys: Sequence[str], indices: Sequence[int]) -> None:
        for index in indices:
            bench.write(keys[index], change(bench.read(keys[index])))

    return harm


def answered(make: Callable[[], Action]) -> Harm:
    """Let GETs of these shards go wrong on the way."""

    def harm(bench: Bench, keys: Sequence[str], indices: Sequence[int]) -> None:
        for index in indices:
            bench.proxy.inject(make(), method="GET", part=keys[index])

    return harm


def deleted(bench: Bench, keys: Sequence[str], indices: Sequence[int]) -> None:
    for index in indices:
        bench.delete(keys[index])


def foreign(bench: Bench, keys: Sequence[str], indices: Sequence[int]) -> None:
    for index in indices:
        bench.write(keys[index], bench.donor(index))


def gone(bench: Bench, keys: Sequence[str], indices: Sequence[int]) -> None:
    bench.proxy.vanish()


def flipped(at: int) -> Callable[[bytes], bytes]:
    """at: index of the byte, from the end if negative."""

    def change(body: bytes) -> bytes:
        harmed = bytearray(body)
        harmed[at] ^= 0x10
        return bytes(harmed)

    return change


@dataclass(frozen=True)
class Kind:
    """lost: the archive's copy is bad, so whoever recomputes the chunk writes it anew.

    deadline_s: where only the deadline ends it; then an earlier chunk may be late as well.
    """

    harm: Harm
    lost: bool
    deadline_s: float | None = None


KINDS = {
    "deleted": Kind(deleted, lost=True),
    "empty": Kind(each(lambda body: b""), lost=True),
    "truncated": Kind(each(lambda body: body[: len(body) // 2]), lost=True),
    "data byte flipped": Kind(each(flipped(-40_000)), lost=True),
    "header byte flipped": Kind(each(flipped(300)), lost=True),
    "longer": Kind(each(lambda body: body + bytes(4096)), lost=True),
    "of another chunk": Kind(foreign, lost=True),
    "500": Kind(answered(Fail), lost=False),
    "503": Kind(answered(lambda: Fail(503, "SlowDown")), lost=False, deadline_s=SHORT_S),
    "silent": Kind(answered(Hold), lost=False, deadline_s=SHORT_S),
    "connection closed": Kind(answered(Drop), lost=False),
    "body cut": Kind(answered(Cut), lost=False),
    "server gone": Kind(gone, lost=False),
}
CASES = [
    pytest.param(KINDS[kind], PARTS[part], id=f"{kind}, {part}")
    for kind in KINDS
    for part in (PARTS if kind != "server gone" else ("all",))
]


def same(answer: Answer, reference: Answer) -> None:
    """A client could not tell the two apart."""
    assert answer.token_ids == reference.token_ids
    assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
    assert answer.finish_reason == "length"


@pytest.mark.parametrize(("kind", "failing"), CASES)
def test_a_failing_part_costs_time_only(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, kind: Kind, failing: tuple[int, ...]
) -> None:
    engine, one = bench.engine, bench.take()
    assert len(one.chunks) == CHUNK_COUNT
    before = one.chunks[failing[0]].start_block * BLOCK_TOKENS
    if kind.deadline_s is not None:
        bench.set_deadline(monkeypatch, kind.deadline_s)

    kind.harm(bench, one.keys, failing)
    bench.forget()
    loads, gets = bench.loads(), bench.data_gets()
    answer = engine.ask(one.prompt)
    same(answer, one.reference)
    assert bench.loads() == loads + 1, "the same load was tried again"
    assert bench.data_gets() <= gets + CHUNK_COUNT * ATTEMPTS
    if kind.deadline_s is None:
        assert answer.hit_tokens == before
    else:
        assert answer.hit_tokens <= before

    if kind.harm is gone:
        bench.proxy.come_back()
    bench.proxy.heal()
    bench.rest()
    bench.forget()
    bench.whole()
    loads, gets = bench.loads(), bench.data_gets()
    again = engine.ask(one.prompt)
    same(again, one.reference)
    assert bench.loads() <= loads + 1
    assert bench.data_gets() <= gets + CHUNK_COUNT
    if not kind.lost:
        # The store is healthy again, but the chunk is left alone for a while.
        assert again.hit_tokens <= before
        return
    # What was recomputed has been archived anew, and every engine will see it.
    archive = engine.worker._archive
    assert archive is not None
    assert archive.knows(one.chunks[failing[0]].chunk_hash)
    assert again.hit_tokens >= (CHUNK_TOKENS if len(failing) > 1 else ARCHIVED_TOKENS)


def test_one_bad_answer_costs_a_retry_and_not_the_hit(bench: Bench) -> None:
    one = bench.take()
    actions: tuple[Action, ...] = (Fail(), Drop(), Cut())
    for index, action in enumerate(actions):
        bench.proxy.inject(action, method="GET", part=one.keys[index], times=1)
    bench.forget()
    gets = bench.data_gets()
    answer = bench.engine.ask(one.prompt)
    same(answer, one.reference)
    assert answer.hit_tokens == ARCHIVED_TOKENS
    assert bench.data_gets() == gets + CHUNK_COUNT + 3


def test_a_late_answer_is_no_failure(bench: Bench) -> None:
    """Late, but in time: the load waits, the request is not recomputed."""
    one, hold = bench.take(), Hold()
    bench.proxy.inject(hold, method="GET", part=one.keys[7], times=1)
    bench.forget()
    with Stepped(bench, one.prompt) as asked:
        asked.step_until(hold.entered.is_set)
        hold.released.set()
        answer = asked.finish()
    same(answer, one.reference)
    assert answer.hit_tokens == ARCHIVED_TOKENS


def test_a_load_under_way_survives_a_reset_of_the_connector(bench: Bench) -> None:
    """The new epoch closes the old archive: its loads fail, and never count as complete."""
    one, hold = bench.take(), Hold()
    bench.proxy.inject(hold, method="GET", part=one.keys[0])
    bench.forget()
    with Stepped(bench, one.prompt) as asked:
        asked.step_until(hold.entered.is_set)
        bench.engine.llm.reset_prefix_cache(reset_connector=True)
        bench.begin_again()
        answer = asked.finish()
    same(answer, one.reference)


def test_a_promise_that_cannot_be_kept_costs_a_miss_and_not_the_engine(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = bench.take()

    def broken(*arguments: object) -> None:
        raise RuntimeError("injected")

    bench.forget()
    loads = bench.loads()
    with monkeypatch.context() as patch:
        patch.setattr(bench.engine.scheduler, "allocated", broken)
        with Stepped(bench, one.prompt) as asked:
            asked.step_until(lambda: bench.engine.caught().get("update_state_after_alloc", 0) > 0)
            answer = asked.finish(max_steps=5_000)
    same(answer, one.reference)
    assert loads < bench.loads() <= loads + MAX_LOAD_ATTEMPTS
    bench.expect_caught("update_state_after_alloc")


def test_wrong_bytes_in_the_blocks_change_the_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: equality in the other tests proves that the right bytes were loaded."""
    one = bench.take()
    deliver = FencedDeliverer.deliver

    def garbled(self: FencedDeliverer, ids: Sequence[int], data: memoryview, *rest: Any) -> None:
        data[:] = bytes(len(data))
        deliver(self, ids, data, *rest)

    bench.forget()
    with monkeypatch.context() as patch:
        patch.setattr(FencedDeliverer, "deliver", garbled)
        answer = bench.engine.ask(one.prompt)
    assert answer.hit_tokens == ARCHIVED_TOKENS
    assert answer.token_ids != one.reference.token_ids
    bench.forget()
    same(bench.engine.ask(one.prompt), one.reference)


def test_blocks_that_nothing_was_loaded_into_change_the_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other control: old contents of the blocks cannot stand in for a load."""
    one = bench.take()

    def nothing(
        self: FencedDeliverer, ids: Sequence[int], data: memoryview, wanted: Any, on_done: Any
    ) -> None:
        on_done(True)

    bench.forget()
    with monkeypatch.context() as patch:
        patch.setattr(FencedDeliverer, "deliver", nothing)
        answer = bench.engine.ask(one.prompt)
    assert answer.hit_tokens == ARCHIVED_TOKENS
    assert answer.token_ids != one.reference.token_ids
