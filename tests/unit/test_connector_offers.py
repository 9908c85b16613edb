"""From a match to a promise: who may load at all, how much, and who waits for whom."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from s3kv.config import parse_settings
from s3kv.core.chunking import Chunk, prompt_chunks
from s3kv.core.ids import BlockHash
from s3kv.core.lookup import Match, Miss, Unknown
from s3kv.core.reasons import MissReason
from tests.unit.connector_values import (
    BLOCK,
    GEOMETRY,
    NS,
    FakeRequest,
    LoadBook,
    Promise,
    Tracked,
    address_of,
    chain_of,
    track,
)
from tests.unit.engine_values import facts_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from s3kv.connector.offers import Offers
    from s3kv.connector.tracked import MAX_LOAD_ATTEMPTS

ROOT = BlockHash(b"\0" * 32)
CHAIN = chain_of(14)
CHUNKS = tuple(prompt_chunks(CHAIN, 14, 4, 2))
FOUND = Match(CHUNKS)
LOAD_DEADLINE_S = 3.0


def offers_of(loads: LoadBook | None = None, *, may_load: bool = True, **settings: Any) -> Offers:
    raw = {"uri": "s3://bucket/prefix", "load_deadline_s": LOAD_DEADLINE_S, **settings}
    book = LoadBook() if loads is None else loads
    return Offers(facts_of(loads=may_load), parse_settings(raw), book)


def tracked(token_count: int = 14 * BLOCK + 3, name: str = "r", **request: Any) -> Tracked:
    one: Any = FakeRequest.of(token_count, name=name, **request)
    return track(one, GEOMETRY, 0.0)


def options(**values: Any) -> dict[str, Any]:
    return {"kv_transfer_params": {"s3kv": values}}


def end_of(offered: object) -> int:
    assert isinstance(offered, Promise), offered
    return offered.end_block


def begin(book: LoadBook, name: str, chunks: tuple[Chunk, ...]) -> None:
    """Another request's load of these chunks."""
    first, end = chunks[0].start_block, chunks[-1].end_block
    addresses = {c.chunk_hash: address_of(CHAIN, c, ROOT) for c in chunks}
    ids = tuple(range(20, 20 + end - first))
    book.begin(tracked(name=name), Promise(chunks, first, end), ids, addresses, NS)


# ------------------------------------------------------------------------- refusals
@pytest.mark.parametrize(
    ("request_fields", "word"),
    [
        pytest.param({}, None, id="plain"),
        pytest.param(options(load=True), None, id="asked for"),
        pytest.param(options(save=False), None, id="without a save"),
        pytest.param(options(load=False), "not_wanted", id="not wanted"),
        pytest.param({"skip_reading_prefix_cache": True}, "prefix_cache_skipped", id="skipped"),
        pytest.param({"lora_request": object()}, "adapter", id="adapter"),
        pytest.param(options(lode=True), "bad_options", id="bad options"),
    ],
)
def test_a_request_that_may_not_load_has_one_word_for_it(
    request_fields: dict[str, Any], word: str | None
) -> None:
    assert offers_of().refusal_of(tracked(**request_fields)) == word


def test_an_engine_that_only_produces_loads_nothing() -> None:
    assert offers_of(may_load=False).refusal_of(tracked()) == "role"


@pytest.mark.parametrize("attempts", range(MAX_LOAD_ATTEMPTS + 2))
def test_a_request_is_offered_loads_a_few_times_only(attempts: int) -> None:
    one = tracked()
    one.attempts = attempts
    word = MissReason.ATTEMPTS_USED if attempts >= MAX_LOAD_ATTEMPTS else None
    assert offers_of().refusal_of(one) == word


# ------------------------------------------------------------------------- how much
def test_a_match_is_promised_up_to_its_last_block() -> None:
    assert offers_of().offer(tracked(), FOUND, 0, 0.0) == Promise(CHUNKS, 0, 14)
    assert offers_of().offer(tracked(), FOUND, 6, 0.0) == Promise(CHUNKS, 6, 14)


def test_the_engine_keeps_a_token_to_compute() -> None:
    assert end_of(offers_of().offer(tracked(14 * BLOCK), FOUND, 0, 0.0)) == 13
    assert end_of(offers_of().offer(tracked(14 * BLOCK + 1), FOUND, 0, 0.0)) == 14


@pytest.mark.parametrize("local_blocks", [13, 14])
def test_a_match_that_the_engine_holds_itself_is_a_miss(local_blocks: int) -> None:
    offered = offers_of().offer(tracked(14 * BLOCK), FOUND, local_blocks, 0.0)
    assert offered == Miss(MissReason.NOTHING_BEYOND_LOCAL)


@pytest.mark.parametrize(
    ("min_load_tokens", "local_blocks", "end_block"),
    [
        (14 * BLOCK, 0, 14),
        (14 * BLOCK + 1, 0, None),
        (4 * BLOCK, 10, 14),
        (4 * BLOCK + 1, 10, None),
    ],
)
def test_a_hit_shorter_than_min_load_tokens_is_computed(
    min_load_tokens: int, local_blocks: int, end_block: int | None
) -> None:
    offers = offers_of(min_load_tokens=min_load_tokens)
    offered = offers.offer(tracked(), FOUND, local_blocks, 0.0)
    if end_block is None:
        assert offered == Miss(MissReason.NOTHING_BEYOND_LOCAL)
    else:
        assert end_of(offered) == end_block


@pytest.mark.parametrize(
    ("max_load_tokens", "local_blocks", "end_block"),
    [
        (5 * BLOCK, 0, 5),
        (5 * BLOCK + BLOCK - 1, 0, 5),
        (5 * BLOCK, 6, 11),
        (100 * BLOCK, 0, 14),
        (BLOCK - 1, 0, None),
        (0, 0, None),
    ],
)
def test_a_request_s_max_load_tokens_ends_the_promise_at_a_block(
    max_load_tokens: int, local_blocks: int, end_block: int | None
) -> None:
    one = tracked(**options(max_load_tokens=max_load_tokens))
    offered = offers_of().offer(one, FOUND, local_blocks, 0.0)
    if end_block is None:
        assert offered == Miss(MissReason.NOTHING_BEYOND_LOCAL)
    else:
        assert end_of(offered) == end_block


# ------------------------------------------------------------------------- waiting
def test_what_another_request_is_loading_is_waited_for_and_then_loaded_anyway() -> None:
    book, one, started_s = LoadBook(), tracked(), 500.0
    begin(book, "other", CHUNKS[:1])
    offers = offers_of(book)
    for waited_s in (0.0, LOAD_DEADLINE_S, 2 * LOAD_DEADLINE_S):
        assert offers.offer(one, FOUND, 0, started_s + waited_s) == Unknown()
    late_s = started_s + 2 * LOAD_DEADLINE_S + 0.1
    assert end_of(offers.offer(one, FOUND, 0, late_s)) == 14


def test_the_wait_ends_when_the_other_load_does() -> None:
    book, one = LoadBook(), tracked()
    begin(book, "other", CHUNKS[:1])
    offers = offers_of(book)
    assert offers.offer(one, FOUND, 0, 500.0) == Unknown()
    book.reported("other", ())
    assert end_of(offers.offer(one, FOUND, 0, 500.1)) == 14


def test_a_request_does_not_wait_for_itself() -> None:
    book = LoadBook()
    begin(book, "r", CHUNKS)
    assert end_of(offers_of(book).offer(tracked(), FOUND, 0, 500.0)) == 14


@pytest.mark.parametrize(
    ("loading", "local_blocks", "request_fields"),
    [
        pytest.param(CHUNKS[:1], 4, {}, id="held locally"),
        pytest.param(CHUNKS[1:2], 0, options(max_load_tokens=4 * BLOCK), id="past the limit"),
    ],
)
def test_nobody_waits_for_a_load_of_what_he_would_not_load_himself(
    loading: tuple[Chunk, ...], local_blocks: int, request_fields: dict[str, Any]
) -> None:
    book, one = LoadBook(), tracked(**request_fields)
    begin(book, "other", loading)
    assert isinstance(offers_of(book).offer(one, FOUND, local_blocks, 500.0), Promise)


def test_a_hit_too_short_to_load_is_a_miss_at_once_even_while_another_loads_it() -> None:
    book = LoadBook()
    begin(book, "other", CHUNKS[:1])
    offers = offers_of(book, min_load_tokens=100 * BLOCK)
    assert offers.offer(tracked(), FOUND, 0, 500.0) == Miss(MissReason.NOTHING_BEYOND_LOCAL)
