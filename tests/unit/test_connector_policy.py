"""A failed load costs time only, unless the user said otherwise, and that is said (FAULTS 24)."""

from __future__ import annotations

import logging
import warnings
from types import SimpleNamespace

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.base")
    from s3kv.connector import apply_failure_policy


@pytest.mark.parametrize(
    ("engines", "ours", "effective", "said"),
    [
        ("fail", "recompute", "recompute", "is set to 'recompute'"),
        ("fail", "engine", "fail", "ends with an error"),
        ("recompute", "recompute", "recompute", ""),
        ("recompute", "engine", "recompute", ""),
    ],
)
def test_the_policy_is_what_was_asked_for_and_is_said_aloud_when_it_matters(
    caplog: pytest.LogCaptureFixture, engines: str, ours: str, effective: str, said: str
) -> None:
    transfer = SimpleNamespace(kv_load_failure_policy=engines)
    caplog.set_level(logging.INFO, "s3kv")
    apply_failure_policy(transfer, ours)
    assert transfer.kv_load_failure_policy == effective
    assert bool(caplog.messages) is bool(said)
    assert said in " ".join(caplog.messages)
    warned = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert bool(warned) is (effective == "fail"), "only what costs requests is a warning"
