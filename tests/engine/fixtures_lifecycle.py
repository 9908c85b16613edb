"""What the lifecycle suites share: buckets seen from outside, requests driven step by step.

Every suite that uses these has engines of its own, one at a time: vLLM keeps its distributed state
and the worker's connector in globals of the process.
"""

from __future__ import annotations

import asyncio
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from s3kv.errors import Transient
from tests.engine.archives import Archive
from tests.engine.models import tiny_llama

# vLLM's libraries warn while they are imported, and collecting tests makes warnings errors.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from s3kv.connector import S3KVConnector
    from tests.engine.harness import (
        BLOCK_TOKENS,
        CHUNK_TOKENS,
        ENGINE_ARGUMENTS,
        Answer,
        Engine,
        engine,
        extra_config,
        our_threads,
        prompt_of,
    )

if TYPE_CHECKING:
    from s3kv.connector.messages import Plan

__all__ = [
    "BLOCK_TOKENS",
    "CHUNK_TOKENS",
    "ENGINE_ARGUMENTS",
    "ENGINE_MARKS",
    "Answer",
    "Archive",
    "Driver",
    "Engine",
    "Gate",
    "HeldFence",
    "S3KVConnector",
    "assert_whole",
    "engine",
    "engine_on",
    "extra_config",
    "gated",
    "grown",
    "guards_refused",
    "local_answer",
    "model_folder",
    "our_log",
    "our_threads",
    "prompt_of",
    "puts",
    "seen_plans",
    "settle",
    "wait_until",
]

MODELS = Path(__file__).parents[2] / "build" / "models"
NUDGE = [11, 12, 13]
"""A prompt without a full block: nothing of it is looked up or saved."""
WAIT_S = 60.0
"""Bound of every wait; only a failure takes that long."""

ENGINE_MARKS = [
    pytest.mark.engine,
    pytest.mark.timeout(240),
    # The engine and its libraries warn a lot; faults of our own threads still fail a test.
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning"),
]


def model_folder(seed: int | None = None) -> Path:
    return tiny_llama(MODELS) if seed is None else tiny_llama(MODELS, seed)


def engine_on(archive: Archive, **options: Any) -> AbstractContextManager[Engine]:
    """An engine with the tiny model on an archive; options as for `engine`."""
    return engine(model_folder(), archive.endpoint_url, archive.bucket, archive.prefix, **options)


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    """Poll a condition that needs no engine step."""
    end_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < end_s, f"waited in vain: {what}"
        time.sleep(0.01)


class Driver:
    """Requests of a running engine, one engine step at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.finished: dict[str, Any] = {}
        self._ids: dict[str, str] = {}
        self._next = 0

    def submit(
        self,
        prompt: Sequence[int],
        max_tokens: int = 8,
        s3kv: Mapping[str, object] | None = None,
        **sampling: Any,
    ) -> str:
        """Add a request; returns the name under which `finished` will have it."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        extra = {"kv_transfer_params": {"s3kv": dict(s3kv)}} if s3kv is not None else None
        name = f"driven-{self._next}"
        self._next += 1
        self._ids[name] = self.engine.llm.llm_engine.add_request(
            name,
            {"prompt_token_ids": list(prompt)},
            SamplingParams(
                max_tokens=max_tokens,
                detokenize=False,
                ignore_eos=True,
                extra_args=extra,
                output_kind=RequestOutputKind.FINAL_ONLY,
                **{"temperature": 0, **sampling},
            ),
        )
        return name

    def step(self) -> None:
        for output in self.engine.llm.llm_engine.step():
            if output.finished:
                self.finished[output.request_id] = output

    def step_until(
        self, condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S
    ) -> None:
        end_s = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end_s, f"stepped in vain: {what}"
            self.step()

    def finish(self, *names: str) -> list[tuple[int, ...]]:
        """Step until these requests are done; their tokens."""
        self.step_until(lambda: all(n in self.finished for n in names), f"end of {names}")
        return [tuple(self.finished[n].outputs[0].token_ids) for n in names]

    def abort(self, *names: str) -> None:
        self.engine.llm.llm_engine.abort_request(list(names))

    def status(self, name: str) -> str:
        """The engine's own word for the state of a request; empty when it forgot it."""
        request = self.engine.core.scheduler.requests.get(self._ids[name])
        return "" if request is None else str(request.status.name)

    def all_steps(self) -> None:
        """Step until the engine has nothing left to do."""
        scheduler = self.engine.core.scheduler
        self.step_until(lambda: not scheduler.has_requests(), "an idle engine")

    def is_tracked(self, name: str) -> bool:
        return self._ids[name] in self.engine.scheduler._tracked


class Gate:
    """Holds calls to a live store until it is opened: only their moment changes."""

    def __init__(self) -> None:
        self.waiting = 0
        self.is_open = False

    async def passed(self) -> None:
        self.waiting += 1
        try:
            # Opened by another thread, so no event of this loop.
            while not self.is_open:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        finally:
            self.waiting -= 1

    def open(self) -> None:
        self.is_open = True


@contextmanager
def gated(store: Any, *kinds: str) -> Iterator[Gate]:
    """While this lasts, calls of these kinds wait for the gate; afterwards it is open."""
    gate = Gate()
    for kind in kinds:
        setattr(store, kind, _held(gate, getattr(store, kind)))
    try:
        yield gate
    finally:
        gate.open()
        for kind in kinds:
            delattr(store, kind)


def _held(gate: Gate, real: Callable[..., Any]) -> Callable[..., Any]:
    async def held(*args: Any, timeout_s: float, **kwargs: Any) -> Any:
        # The caller's own time limit keeps running, as with a slow network.
        try:
            async with asyncio.timeout(timeout_s):
                await gate.passed()
        except TimeoutError:
            raise Transient("the gate was closed") from None
        return await real(*args, timeout_s=timeout_s, **kwargs)

    return held


class HeldFence:
    """A point in the device's work that is reached when the test says so."""

    def __init__(self) -> None:
        self.reached = False

    def query(self) -> bool:
        return self.reached


def seen_plans(running: Engine, monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """Every plan that the scheduler side ships from now on."""
    plans: list[Plan] = []
    real = running.scheduler.plan_step

    def noted(output: Any) -> Plan:
        plan = real(output)
        plans.append(plan)
        return plan

    monkeypatch.setattr(running.scheduler, "plan_step", noted)
    return plans


def local_answer(running: Engine, prompt: Sequence[int], **options: Any) -> Answer:
    """Archive a prompt; the answer of a hit in the running's *own* prefix cache.

    The cold run is no reference: a prefill of another shape may round differently.
    """
    running.ask(prompt, **options)
    answer = running.ask(prompt, **options)
    settle(running)
    running.forget_local()
    return answer


def guards_refused(running: Engine) -> int:
    """Bucket requests that were refused because they came from a thread of the running."""
    stores = (running.worker._store, running.scheduler._clients.store)
    return sum(_guard_of(store).refused_count for store in stores if store is not None)


def _guard_of(store: Any) -> Any:
    while not hasattr(store, "guard"):
        store = store._store
    return store.guard


def puts(running: Engine) -> int:
    """Shard and segment bodies that the worker has sent so far."""
    return running.worker._meter.snapshot().requests.get("put", 0)


class LogLines(logging.Handler):
    """Our own log lines, kept."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def texts(self, level: int) -> list[str]:
        return [r.getMessage() for r in self.records if r.levelno == level]


@contextmanager
def our_log() -> Iterator[LogLines]:
    """Collect what `s3kv` logs, whatever vLLM did to the logging configuration."""
    logger, lines = logging.getLogger("s3kv"), LogLines()
    before = logger.level
    logger.addHandler(lines)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.removeHandler(lines)
        logger.setLevel(before)


def settle(running: Engine) -> None:
    """Until every save and load has an outcome that the scheduler side knows.

    An idle engine does not step, so a tiny request carries the last reports up.
    """
    end_s = time.monotonic() + WAIT_S
    side = running.scheduler
    while not running.is_settled() or side._loads.in_flight_count:
        assert time.monotonic() < end_s, (
            f"{side._loads.in_flight_count} loads and saves {vars(side._saves)} have no outcome"
        )
        if not running.core.scheduler.has_requests():
            running.ask(NUDGE, max_tokens=1)
        running.step_idle()
        time.sleep(0.02)
    # What the scheduler side heard goes into its view of the index on the loop thread.
    loop = side._clients.loop
    if loop is not None:
        loop.submit(asyncio.sleep(0)).result(WAIT_S)


def assert_whole(running: Engine) -> None:
    """Everything borrowed is back: blocks, slots, pins, loads, tracked requests."""
    settle(running)
    side = running.scheduler
    # A load that was given up may hold its slot until its late request has ended.
    wait_until(lambda: running.free_slots() == running.slot_count(), "all slots free")
    assert side._tracked == {}
    assert side._loads._loading == {}
    pool = running.core.scheduler.kv_cache_manager.block_pool
    # All but the null block.
    assert running.free_blocks() == pool.num_gpu_blocks - 1
    assert guards_refused(running) == 0


def grown(
    prompt: Sequence[int], answer: Sequence[int], question_tokens: int, seed: int
) -> list[int]:
    """A conversation's next prompt."""
    return [*prompt, *answer, *prompt_of(question_tokens, seed)]
