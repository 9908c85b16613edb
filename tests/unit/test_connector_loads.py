"""The load book: promises in, jobs out, every load reported exactly once."""

from __future__ import annotations

from typing import Any

import pytest

from s3kv.core.chunking import prompt_chunks
from s3kv.core.ids import BlockHash
from tests.unit.connector_values import (
    BLOCK,
    GEOMETRY,
    NS,
    ChunkAddress,
    FakeRequest,
    LoadBook,
    Promise,
    Tracked,
    address_of,
    chain_of,
    track,
)

ROOT = BlockHash(b"\0" * 32)
CHAIN = chain_of(14)
CHUNKS = tuple(prompt_chunks(CHAIN, 14, 4, 2))
ADDRESSES: dict[BlockHash, ChunkAddress] = {
    c.chunk_hash: address_of(CHAIN, c, ROOT) for c in CHUNKS
}


def tracked(name: str = "r") -> Tracked:
    request: Any = FakeRequest.of(14 * BLOCK + 1, name=name)
    return track(request, GEOMETRY, 0.0)


def begin(book: LoadBook, name: str, local: int, end: int, first_id: int = 20) -> None:
    block_ids = tuple(range(first_id, first_id + end - local))
    book.begin(tracked(name), Promise(CHUNKS, local, end), block_ids, ADDRESSES, NS)


def test_a_load_s_parts_cover_the_promise_in_order() -> None:
    book = LoadBook()
    begin(book, "r", local=6, end=13)
    (job,), abandoned, ended = book.ship()
    assert [(p.address.chunk_hash, p.first_block, p.block_ids) for p in job.parts] == [
        (CHAIN[7], 2, (20, 21)),
        (CHAIN[11], 0, (22, 23, 24, 25)),
        (CHAIN[13], 0, (26,)),
    ]
    assert job.block_ids == tuple(range(20, 27))
    assert (abandoned, ended) == ((), frozenset())
    assert book.ship() == ((), (), frozenset()), "shipped once"


@pytest.mark.parametrize(
    ("bad", "arrived"), [(set(), 8), ({20}, 0), ({23}, 3), ({27, 24}, 4), ({27}, 7), ({99}, 8)]
)
def test_what_counts_as_arrived_ends_before_the_first_bad_block(
    bad: set[int], arrived: int
) -> None:
    book = LoadBook()
    begin(book, "r", local=0, end=8)
    assert book.reported("r", bad) == (arrived, 8)
    assert book.counts["complete" if arrived == 8 else "failed"] == 1
    assert book.in_flight_count == 0


def test_a_load_is_reported_once() -> None:
    book = LoadBook()
    begin(book, "r", local=0, end=8)
    book.reported("r", ())
    assert book.reported("r", ()) == (0, 0)
    assert book.reported("never", ()) == (0, 0)


def test_a_chunk_counts_as_loading_for_others_only_and_until_reported() -> None:
    book = LoadBook()
    assert not book.is_loading(CHUNKS, "other")
    begin(book, "r", local=0, end=8)
    assert book.is_loading(CHUNKS, "other")
    assert not book.is_loading(CHUNKS, "r")
    assert not book.is_loading(CHUNKS[2:], "other"), "not part of that load"
    book.reported("r", ())
    assert not book.is_loading(CHUNKS, "other")


def test_the_second_loader_of_a_chunk_is_the_one_that_counts() -> None:
    book = LoadBook()
    begin(book, "first", local=0, end=8)
    begin(book, "second", local=0, end=8, first_id=40)
    book.reported("first", ())
    assert book.is_loading(CHUNKS, "third")
    book.reported("second", ())
    assert not book.is_loading(CHUNKS, "third")


def test_an_abandoned_load_is_shipped_as_such_and_reported() -> None:
    book = LoadBook()
    book.abandon("r", [5, 6])
    loads, (abandoned,), _ = book.ship()
    assert loads == ()
    assert (abandoned.request_id, abandoned.block_ids) == ("r", (5, 6))
    assert book.reported("r", {5, 6}) == (0, 2)
    assert book.counts == {"abandoned": 1, "failed": 1}


def test_abandoning_a_planned_load_withdraws_it() -> None:
    book = LoadBook()
    begin(book, "r", local=0, end=4)
    book.abandon("r", [20, 21, 22, 23])
    loads, abandoned, _ = book.ship()
    assert loads == ()
    assert len(abandoned) == 1
    book.reported("r", {20, 21, 22, 23})
    assert not book.is_loading(CHUNKS, "other")


def test_an_ended_request_is_told_to_the_workers_once_and_still_expected() -> None:
    book = LoadBook()
    begin(book, "r", local=0, end=4)
    book.ship()
    book.end("r")
    book.end("r")
    book.end("never")
    assert book.ship() == ((), (), frozenset({"r"}))
    assert book.in_flight_count == 1
    book.reported("r", ())
    assert book.in_flight_count == 0


def test_blocks_that_do_not_match_the_promise_are_refused() -> None:
    book = LoadBook()
    with pytest.raises(AssertionError):
        book.begin(tracked(), Promise(CHUNKS, 0, 4), (1, 2, 3), ADDRESSES, NS)
    with pytest.raises(AssertionError):
        book.begin(tracked(), Promise(CHUNKS, 0, 4), (1, 2, 0, 4), ADDRESSES, NS)
    assert book.ship() == ((), (), frozenset())
    assert book.in_flight_count == 0
