"""What is remembered of one request."""

from __future__ import annotations

import json
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from s3kv.core.reasons import MissReason
from tests.unit.connector_values import (
    BLOCK,
    GEOMETRY,
    ChainGeometry,
    FakeRequest,
    Promise,
    RequestTotals,
    Tracked,
    chain_of,
    track,
)


def tracked(token_count: int, **more: Any) -> Tracked:
    request: Any = FakeRequest.of(token_count, **more)
    return track(request, GEOMETRY, 5.0)


@pytest.mark.parametrize(
    ("token_count", "ends"),
    [
        (BLOCK, []),
        (2 * BLOCK - 1, []),
        (2 * BLOCK, [2]),
        (4 * BLOCK - 1, [3]),
        (4 * BLOCK, [4]),
        (5 * BLOCK, [4]),
        (6 * BLOCK, [4, 6]),
        (9 * BLOCK + 3, [4, 8]),
    ],
)
def test_a_prompt_is_saved_in_full_chunks_and_a_tail_that_is_long_enough(
    token_count: int, ends: list[int]
) -> None:
    assert [c.end_block for c in tracked(token_count).save_chunks] == ends


def test_the_chain_grows_with_decoding_but_what_is_saved_does_not() -> None:
    one = tracked(5 * BLOCK)
    request: Any = one.request
    assert one.chain() == chain_of(5)
    request.block_hashes.append(chain_of(6)[5])
    assert one.chain() == chain_of(6)
    assert [c.end_block for c in one.save_chunks] == [4]


def test_finer_engine_hashes_become_one_per_block() -> None:
    request: Any = FakeRequest("r", 8 * BLOCK, chain_of(16))
    geometry = ChainGeometry(
        block_tokens=BLOCK, hashes_per_block=2, chunk_blocks=4, min_tail_blocks=2
    )
    assert track(request, geometry, 0.0).chain() == chain_of(16)[1::2]


def test_a_request_with_an_adapter_takes_no_part() -> None:
    assert tracked(64, lora_request=object()).refusal is MissReason.ADAPTER
    assert tracked(64).refusal is None


@pytest.mark.parametrize("params", [None, {}, {"s3kv": None}, {"somebody": {"else": 1}}])
def test_a_request_without_options_has_the_defaults(params: dict[str, Any] | None) -> None:
    options = tracked(64, kv_transfer_params=params).options
    assert (options.load, options.save, options.max_load_tokens) == (True, True, None)


def test_options_of_a_request_are_read() -> None:
    params = {"s3kv": {"load": False, "save": False, "max_load_tokens": 7}}
    options = tracked(64, kv_transfer_params=params).options
    assert (options.load, options.save, options.max_load_tokens) == (False, False, 7)


@pytest.mark.parametrize("bad", [7, "load", ["load"], {"laod": True}, {"load": 1}])
def test_bad_options_are_refused(bad: object) -> None:
    one = tracked(64, kv_transfer_params={"s3kv": bad})
    assert one.refusal is MissReason.BAD_OPTIONS
    assert one.save_chunks == []


def test_a_promise_counts_the_blocks_that_will_be_written() -> None:
    assert Promise((), local_blocks=3, end_block=8).block_count == 5


@pytest.mark.parametrize(
    ("name", "refusal"),
    [
        ("ab" * 32, None),
        ("ab" * 64, None),
        ("img1", MissReason.NAMED_MEDIA),
        ("renderer0-mm-3-image-0", MissReason.NAMED_MEDIA),
    ],
)
def test_images_count_only_if_they_are_named_by_their_content(
    name: str, refusal: MissReason | None
) -> None:
    one = tracked(64, mm_features=[SimpleNamespace(identifier=name)])
    assert one.refusal is refusal
    assert bool(one.save_chunks) is (not refusal)


def test_a_chain_that_was_cut_and_regrown_to_the_same_length_is_read_anew() -> None:
    one = tracked(64)
    before = one.chain()
    other = chain_of(len(before), "another")
    one.request.block_hashes[:] = other
    assert one.chain() == other


def test_ended_requests_are_counted_by_what_their_clients_were_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An engine that ran before in this process may have taken our log lines for its own.
    monkeypatch.setattr(logging.getLogger("s3kv"), "propagate", True)
    caplog.set_level(logging.INFO, "s3kv")
    totals = RequestTotals()
    ends = [
        (0, MissReason.EXPIRED),
        (0, MissReason.EXPIRED),
        (0, None),
        (64, MissReason.NOTHING_BEYOND_LOCAL),
        (32, MissReason.LOAD_FAILED),
    ]
    for hit_tokens, reason in ends:
        one = tracked(64)
        one.external_tokens, one.miss_reason = hit_tokens, reason
        totals.add(one)
    totals.log()

    (line,) = [record.getMessage() for record in caplog.records]
    assert json.loads(line.removeprefix("s3kv: summary ")) == {
        "side": "scheduler",
        "ended_requests": 5,
        "hit_requests": 2,
        "hit_tokens": 96,
        "misses": {"expired": 2, "not_looked_up": 1, "load_failed": 1},
    }
