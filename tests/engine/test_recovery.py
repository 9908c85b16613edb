"""Every way in which a shard can fail to arrive ends as if it had never been archived.

A real engine, a real store, and a proxy between them. Each case archives a prompt of its own, harms
some of its shards, empties the engine's own cache, and asks again: same tokens, bounded work, all
blocks and slots back, and the next identical request neither loops nor fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from s3kv.connector.staging import FencedDeliverer
from s3kv.connector.tracked import MAX_LOAD_ATTEMPTS
from tests.engine.harms import CASES, Kind, gone
from tests.engine.harness import BLOCK_TOKENS, CHUNK_TOKENS, Answer, Engine
from tests.engine.recovery_bench import (
    ARCHIVED_TOKENS,
    ATTEMPTS,
    CHUNK_COUNT,
    Archived,
    Bench,
    Stepped,
)
from tests.faults.proxy import Action, Cut, Drop, Fail, Hold, Proxy

if TYPE_CHECKING:
    from s3kv.cli.local_store import LocalStore

ENGINE_OPTIONS = {
    "load_deadline_s": 120.0,
    "engine_args": {"num_gpu_blocks_override": 400},
}


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


def same(answer: Answer, reference: Answer) -> None:
    """A client could not tell the two apart."""
    assert answer.token_ids == reference.token_ids
    assert answer.logprobs == pytest.approx(reference.logprobs, abs=1e-4)
    assert answer.finish_reason == "length"


def asked_again(bench: Bench, one: Archived) -> Answer:
    """The next identical request of the healthy store: right, and without a second attempt."""
    bench.proxy.heal()
    bench.rest()
    bench.forget()
    bench.whole()
    loads, gets = bench.loads(), bench.data_gets()
    again = bench.engine.ask(one.prompt)
    same(again, one.reference)
    assert bench.loads() <= loads + 1
    assert bench.data_gets() <= gets + CHUNK_COUNT
    return again


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
    again = asked_again(bench, one)
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


def assert_wrong_with(
    bench: Bench, one: Archived, monkeypatch: pytest.MonkeyPatch, deliver: Callable[..., None]
) -> None:
    """A hit whose loads end in this `deliver` gives another answer than the right one."""
    bench.forget()
    with monkeypatch.context() as patch:
        patch.setattr(FencedDeliverer, "deliver", deliver)
        answer = bench.engine.ask(one.prompt)
    assert answer.hit_tokens == ARCHIVED_TOKENS
    assert answer.token_ids != one.reference.token_ids


def test_wrong_bytes_in_the_blocks_change_the_answer(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: equality in the other tests proves that the right bytes were loaded."""
    one = bench.take()
    deliver = FencedDeliverer.deliver

    def garbled(self: FencedDeliverer, ids: Sequence[int], data: memoryview, *rest: Any) -> None:
        data[:] = bytes(len(data))
        deliver(self, ids, data, *rest)

    assert_wrong_with(bench, one, monkeypatch, garbled)
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

    assert_wrong_with(bench, one, monkeypatch, nothing)
