"""The start-up look at the store: what may not be saved and why, and what the log says."""

from __future__ import annotations

import asyncio
import logging
import warnings
from typing import Any

import pytest

from s3kv.bucket.base import CREATED, Created, Exists, ObjectStore
from s3kv.bucket.capabilities import Capabilities
from s3kv.bucket.faults import Fail, Faulty
from s3kv.bucket.memory import MemoryStore
from s3kv.config import Settings, parse_settings
from s3kv.errors import Denied, Transient
from tests.fakes.clock import FakeClock

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("vllm.distributed.kv_transfer.kv_connector.v1.base")
    from s3kv.connector.store_check import Verdict, judge, look_at_store

NS = "0123456789abcdef0123456789abcdef"
URI = "s3://bucket/prefix"
WARNING = "neither ttl_s nor max_bytes is set"


def settings_of(**more: Any) -> Settings:
    return parse_settings({"uri": URI, "ttl_s": "30d", **more})


async def asked(store: ObjectStore, settings: Settings) -> Verdict:
    return await look_at_store(store, settings, NS, FakeClock())


class Unconditional(MemoryStore):
    """A store that takes If-None-Match for a comment."""

    async def create(self, key: str, body: bytes, *, timeout_s: float) -> Created | Exists:
        await self.put(key, body, timeout_s=timeout_s)
        return CREATED


def refusing(*operations: Any) -> Faulty:
    """A store whose policy denies some operations."""
    store = Faulty(MemoryStore())
    store.inject(Fail(Denied("policy says no")), *operations, times=None)
    return store


@pytest.fixture
def log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> pytest.LogCaptureFixture:
    # An engine that ran before in this process may have taken our log lines for its own.
    monkeypatch.setattr(logging.getLogger("s3kv"), "propagate", True)
    caplog.set_level(logging.INFO, logger="s3kv")
    return caplog


def lines(log: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [r.getMessage() for r in log.records if r.levelno == level]


async def test_a_store_that_can_do_everything_is_written_to() -> None:
    store = MemoryStore()
    assert await asked(store, settings_of()) == Verdict()
    assert store.objects == {}, "the probe cleans up"


@pytest.mark.parametrize(
    ("store", "reason"),
    [
        pytest.param(refusing("create", "put"), "refuses writes", id="read-only"),
        pytest.param(refusing("get"), "policy says no", id="unreadable"),
    ],
)
async def test_what_cannot_be_written_safely_is_not_saved_to_and_says_why(
    store: ObjectStore, reason: str
) -> None:
    assert reason in (await asked(store, settings_of())).read_only


@pytest.mark.parametrize(
    "store",
    [
        pytest.param(Unconditional(), id="If-None-Match ignored"),
        pytest.param(refusing("create"), id="If-None-Match refused"),
        pytest.param(refusing("delete"), id="deletes refused"),
    ],
)
async def test_a_store_that_can_carry_no_index_is_served_by_names_and_says_what_that_costs(
    store: ObjectStore, request: pytest.FixtureRequest, log: pytest.LogCaptureFixture
) -> None:
    lack = "s3:DeleteObject" if "deletes" in request.node.callspec.id else "If-None-Match"
    assert await asked(store, settings_of()) == Verdict(names_only=True)
    (warning,) = lines(log, logging.WARNING)
    for part in (lack, "ttl_s and max_bytes are not kept", "cannot be paused"):
        assert part in warning


async def test_an_unreadable_prefix_is_named_by_kind_of_error() -> None:
    assert (await asked(refusing("get"), settings_of())).read_only.startswith("Denied: ")


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        ({"writable": True, "conditional_put": True, "deletable": True}, Verdict()),
        ({"writable": True, "conditional_put": True}, Verdict(names_only=True)),
        ({"writable": True, "conditional_put": False}, Verdict(names_only=True)),
        (
            {"writable": False, "conditional_put": False},
            Verdict(read_only="the store refuses writes under this prefix"),
        ),
    ],
)
def test_saving_takes_writes_and_an_index_conditional_ones(
    seen: dict[str, Any], verdict: Verdict
) -> None:
    assert judge(Capabilities(readable=True, **seen)) == verdict


def test_an_index_needs_neither_ranges_nor_conditional_deletes() -> None:
    found = Capabilities(readable=True, writable=True, conditional_put=True, deletable=True)
    assert judge(found) == Verdict()


async def test_one_line_says_which_namespace_where_and_what_the_store_can_do(
    log: pytest.LogCaptureFixture,
) -> None:
    await asked(MemoryStore(), settings_of(save="nothing"))
    (line,) = lines(log, logging.INFO)
    for part in (NS, URI, "create-if-absent=yes", "format 1", "load mode stream", "save nothing"):
        assert part in line
    assert lines(log, logging.WARNING) == []


async def test_the_line_names_what_is_missing(log: pytest.LogCaptureFixture) -> None:
    await asked(Unconditional(), settings_of())
    (line,) = lines(log, logging.INFO)
    assert "create-if-absent=no" in line
    assert "If-None-Match is ignored" in line


async def test_an_unreadable_prefix_is_logged_without_a_claim_about_the_store(
    log: pytest.LogCaptureFixture,
) -> None:
    await asked(refusing("get"), settings_of(ttl_s=None))
    (line,) = lines(log, logging.INFO)
    assert URI in line
    assert "policy says no" in line
    assert "read=" not in line
    assert lines(log, logging.WARNING) == []


@pytest.mark.parametrize(
    ("bounds", "warned"),
    [
        pytest.param({"ttl_s": None}, True, id="neither"),
        pytest.param({"ttl_s": "1h"}, False, id="ttl_s"),
        pytest.param({"ttl_s": None, "max_bytes": "1GiB"}, False, id="max_bytes"),
        pytest.param({"ttl_s": "1h", "max_bytes": "1GiB"}, False, id="both"),
    ],
)
async def test_only_an_archive_without_any_bound_is_warned_about(
    log: pytest.LogCaptureFixture, bounds: dict[str, Any], warned: bool
) -> None:
    await asked(MemoryStore(), settings_of(**bounds))
    assert [WARNING in line for line in lines(log, logging.WARNING)] == ([True] if warned else [])


# ------------------------------------------------------------------------- no answer yet
async def test_a_store_that_does_not_answer_yet_is_asked_again_until_it_does(
    log: pytest.LogCaptureFixture,
) -> None:
    store, clock = Faulty(MemoryStore()), FakeClock()
    store.inject(Fail(Transient("no route")), "get", times=4)
    asking = asyncio.create_task(look_at_store(store, settings_of(), NS, clock))
    await clock.settle()
    assert not asking.done()
    (warning,) = lines(log, logging.WARNING)
    assert "no route" in warning
    await clock.advance(3_600.0)
    assert asking.done()
    assert await asking == Verdict()
    assert len(lines(log, logging.WARNING)) == 1, "said once"
    assert "create-if-absent=yes" in lines(log, logging.INFO)[-1]


async def test_what_is_found_out_when_the_store_answers_again_counts() -> None:
    store, clock = Faulty(MemoryStore()), FakeClock()
    store.inject(Fail(Transient("no route")), "create", times=1)
    store.inject(Fail(Denied("policy says no")), "create", "put", times=None)
    asking = asyncio.create_task(look_at_store(store, settings_of(), NS, clock))
    await clock.advance(3_600.0)
    assert "refuses writes" in (await asking).read_only


async def test_the_pauses_between_questions_grow_up_to_a_minute() -> None:
    store, clock = Faulty(MemoryStore()), FakeClock()
    store.inject(Fail(Transient("no route")), "get", times=None)
    asking = asyncio.create_task(look_at_store(store, settings_of(), NS, clock))
    await clock.advance(3_600.0)
    assert 60 <= len(store.calls) <= 70
    store.heal()
    await clock.advance(60.0)
    assert await asking == Verdict()
