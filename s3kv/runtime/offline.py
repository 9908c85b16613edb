"""An engine in a process of its own: the messages, and the parent's side of the conversation.

The child is `python -m s3kv.connector.offline`. One JSON document per line: the parent writes a
`Spec`, then one `Phase` at a time; the child answers `Ready`, then one `PhaseResult` per phase, or
`Failed` and ends. Closing the child's input is the request for a clean shutdown. The engine's own
output goes to a log file, never into the conversation.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from s3kv.errors import Closed

MODULE = "s3kv.connector.offline"
STOP_TIMEOUT_S = 30.0  # the engine allows itself 5 s; a loaded machine needs more to exit


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Spec(_Message):
    """Which engine to start: vLLM's own argument names and values."""

    model: str
    engine_args: dict[str, JsonValue] = Field(default_factory=dict)
    kv_transfer_config: dict[str, JsonValue] | None = None


class Prompt(_Message):
    """One request: text or token ids, greedy unless `sampling` says otherwise."""

    text: str | None = None
    token_ids: list[int] | None = None
    sampling: dict[str, JsonValue] = Field(default_factory=dict)
    s3kv: dict[str, JsonValue] | None = None
    """Per-request options, sent as `kv_transfer_params["s3kv"]`."""


class Phase(_Message):
    """Requests that run together; the answer comes when all have finished."""

    name: str
    prompts: list[Prompt]
    forget_local: bool = False
    """Reset the engine's own prefix cache first (the archive's state is not touched)."""


class Completion(_Message):
    """What became of one request. Times in seconds, as the engine's front end measured them."""

    prompt_token_count: int
    token_ids: list[int]
    logprobs: list[float]
    """Log probability of each chosen token: float[len(token_ids)]."""
    text: str
    finish_reason: str | None
    ttft_s: float
    latency_s: float
    cached_token_count: int
    """The engine's own count; it over-reports after a failed load."""
    kv_transfer_params: dict[str, JsonValue] | None

    def report(self) -> Mapping[str, JsonValue]:
        """The connector's report about this request; empty without one."""
        found = (self.kv_transfer_params or {}).get("s3kv")
        return found if isinstance(found, dict) else {}

    @property
    def hit_token_count(self) -> int:
        """Tokens that came from the archive."""
        found = self.report().get("hit_tokens", 0)
        return int(found) if isinstance(found, int | float) else 0


class Ready(_Message):
    """The engine accepts phases."""

    ready: bool
    engine_version: str
    start_s: float


class PhaseResult(_Message):
    """Completions in the order of the phase's prompts."""

    phase: str
    completions: list[Completion]
    elapsed_s: float


class Failed(_Message):
    """The child gave up; its log has the details."""

    error: str


_Answer: TypeAdapter[Ready | PhaseResult | Failed] = TypeAdapter(Ready | PhaseResult | Failed)


class EngineProcess:
    """Parent's side of one engine process; owned by one thread.

    As a context manager it ends the process and everything the process started, whatever happens.
    """

    def __init__(
        self, spec: Spec, log_path: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Describe the engine; `environment` is added to this process's own."""
        self._spec = spec
        self._log_path = log_path
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self._unread = b""

    def __enter__(self) -> Self:
        """Start the process; `start` waits for the engine."""
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log = self._log_path.open("wb")
        # A session of its own: one signal reaches the engine's whole family, and Ctrl-C in the
        # terminal reaches us first, so that we decide how it ends.
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=self._environment,
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process: cleanly if nothing went wrong, at once otherwise."""
        try:
            if kind is None:
                self.stop()
        finally:
            self._kill()

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self._running().pid

    def start(self, timeout_s: float) -> Ready:
        """Send the spec and wait until the engine is up. Raises `Closed` if it does not come up."""
        self._send(self._spec)
        answer = self._receive(timeout_s)
        if not isinstance(answer, Ready):
            raise Closed(f"engine said {type(answer).__name__} where Ready was due")
        return answer

    def run(self, phase: Phase, timeout_s: float) -> PhaseResult:
        """Run one phase. Raises `Closed` if the engine failed, died or took too long."""
        self._send(phase)
        answer = self._receive(timeout_s)
        if not isinstance(answer, PhaseResult) or answer.phase != phase.name:
            raise Closed(f"engine did not answer phase {phase.name!r}")
        return answer

    def stop(self) -> float:
        """Ask for a clean shutdown and wait for it; returns its seconds. Raises `Closed`."""
        process = self._running()
        began_s = time.monotonic()
        assert process.stdin is not None
        process.stdin.close()
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired as late:
            raise Closed(f"engine did not stop within {STOP_TIMEOUT_S:.0f} s") from late
        if code != 0:
            raise Closed(f"engine ended with {code}; see {self._log_path}")
        return time.monotonic() - began_s

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise Closed("engine process is not started")
        return self._process

    def _send(self, message: Spec | Phase) -> None:
        stdin = self._running().stdin
        assert stdin is not None
        try:
            stdin.write(message.model_dump_json().encode() + b"\n")
            stdin.flush()
        except OSError as gone:
            raise Closed(f"engine is gone; see {self._log_path}") from gone

    def _receive(self, timeout_s: float) -> Ready | PhaseResult:
        line = self._read_line(time.monotonic() + timeout_s)
        answer = _Answer.validate_json(line)
        if isinstance(answer, Failed):
            raise Closed(f"engine failed: {answer.error}; see {self._log_path}")
        return answer

    def _read_line(self, deadline_s: float) -> bytes:
        stdout = self._running().stdout
        assert stdout is not None
        while b"\n" not in self._unread:
            left_s = deadline_s - time.monotonic()
            readable, _, _ = select.select([stdout], [], [], max(0.0, left_s))
            if not readable:
                raise Closed(f"engine did not answer in time; see {self._log_path}")
            piece = os.read(stdout.fileno(), 1 << 16)
            if not piece:
                raise Closed(f"engine ended without an answer; see {self._log_path}")
            self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _kill(self) -> None:
        process = self._process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):  # the whole family ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):  # bytes the child never read
                        pipe.close()
        if self._log is not None:
            self._log.close()
