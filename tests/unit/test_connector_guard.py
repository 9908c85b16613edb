"""No exception leaves a hook; interrupts do."""

from __future__ import annotations

import logging

import pytest

from tests.unit.connector_values import Guard


def fails(*args: object) -> int:
    raise ValueError("injected")


def test_a_body_that_works_is_all_that_happens() -> None:
    guard = Guard()
    assert guard.run("hook", lambda: -1, lambda a, b: a + b, 1, b=2) == 3
    assert guard.caught == {}


def test_an_exception_is_answered_by_the_fallback_and_counted() -> None:
    guard = Guard()
    assert guard.run("one", lambda: -1, fails, 1) == -1
    guard.run("one", lambda: -1, fails)
    guard.run("two", lambda: -1, fails)
    assert guard.caught == {"one": 2, "two": 1}


def test_a_hook_that_fails_every_step_is_logged_once_a_minute(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard, now = Guard(), [100.0]
    monkeypatch.setattr("s3kv.connector.guard.time.monotonic", lambda: now[0])
    # An engine that ran before in this process may have taken our log lines for its own.
    monkeypatch.setattr(logging.getLogger("s3kv"), "propagate", True)
    with caplog.at_level(logging.ERROR, logger="s3kv"):
        for _ in range(50):
            guard.run("one", lambda: None, fails)
        guard.run("two", lambda: None, fails)
        assert len(caplog.records) == 2
        assert caplog.records[0].exc_info is not None
        now[0] += 61.0
        guard.run("one", lambda: None, fails)
        assert len(caplog.records) == 3
    assert guard.caught["one"] == 51


@pytest.mark.parametrize("signal", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_is_not_swallowed(signal: type[BaseException]) -> None:
    def stopped() -> None:
        raise signal

    guard = Guard()
    with pytest.raises(signal):
        guard.run("hook", lambda: None, stopped)
    assert guard.caught == {}
