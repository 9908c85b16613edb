"""From index and bucket to the state of a chunk, and to what a prompt gets."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from s3kv.core.chunking import Chunk
from s3kv.core.explaining import (
    Mark,
    Seen,
    Shards,
    first_missing,
    hit_blocks,
    marks,
    marks_beyond,
    request_says,
    state_of,
    why_absent,
    writer_count_of,
)
from s3kv.core.ids import BlockHash
from s3kv.core.packed import pack
from s3kv.core.reasons import ChunkState, MissReason
from s3kv.core.records import DEAD, make_records
from s3kv.core.snapshot import Snapshot
from tests.fakes.namespaces import LAYOUT, namespace_fields

WATERMARK_S = 1_000
ANNOUNCE_S = 1_800.0
WHOLE = Shards(2, there=(0, 1), youngest_age_s=5.0, oldest_s=5_000.0)
NONE = Shards(2)


def fps(*values: int) -> Any:
    return np.array(values, np.uint64)


def snapshot() -> Snapshot:
    """1, 5 live, 2 below the watermark, 3, 6 dead; 5 and 6 are news over other records."""
    base = make_records([1, 2, 3, 5, 6], [2_000, 999, 2_000, 999, 2_000], 4, [0, 0, 1, 0, 0])
    news = make_records([5, 6], [3_000, 3_000], 4, [0, int(DEAD)])
    return Snapshot(base=pack(base), opened=True, watermark_s=WATERMARK_S).absorb(news)


# ------------------------------------------------------------------------------ marks
def test_marks_come_in_the_order_they_are_asked_for_and_news_win() -> None:
    found = marks(snapshot(), fps(6, 1, 2, 9, 3, 5))

    assert found == [Mark.LOST, Mark.LIVE, Mark.EXPIRED, Mark.UNKNOWN, Mark.LOST, Mark.LIVE]
    assert marks(snapshot(), fps()) == []


def test_a_mark_is_live_exactly_where_the_snapshot_offers_the_chunk() -> None:
    asked = fps(*range(10))

    offered = snapshot().present(asked).tolist()

    assert [mark is Mark.LIVE for mark in marks(snapshot(), asked)] == offered


def test_what_only_the_inbox_lists_is_told_apart() -> None:
    log = snapshot()
    whole = log.absorb(make_records([1, 3, 8], [4_000, 4_000, 4_000], 4, [0, 0, 0]))
    whole = whole.absorb(make_records([5], [4_000], 0, [int(DEAD)]))

    found = marks_beyond(log, whole, fps(1, 2, 3, 5, 8, 9))

    expected = [Mark.LIVE, Mark.EXPIRED, Mark.WAITING, Mark.LOST, Mark.WAITING, Mark.UNKNOWN]
    assert found == expected


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ((9,), MissReason.ABSENT),
        ((), MissReason.ABSENT),
        ((9, 2), MissReason.EXPIRED),
        ((2, 3), MissReason.LOST),
    ],
)
def test_a_first_chunk_is_absent_for_the_most_telling_reason(
    names: tuple[int, ...], reason: MissReason
) -> None:
    assert why_absent(snapshot(), fps(*names)) is reason


# ------------------------------------------------------------------------------ states
@pytest.mark.parametrize(
    ("mark", "shards", "state"),
    [
        (Mark.LIVE, WHOLE, ChunkState.PRESENT),
        (Mark.UNREAD, WHOLE, ChunkState.PRESENT),
        (Mark.NO_INDEX, WHOLE, ChunkState.PRESENT),
        (Mark.NO_INDEX, replace(WHOLE, oldest_s=999.0), ChunkState.PRESENT),
        (Mark.WAITING, WHOLE, ChunkState.WAITING),
        (Mark.EXPIRED, WHOLE, ChunkState.EXPIRED),
        (Mark.LOST, WHOLE, ChunkState.LOST),
        (Mark.UNKNOWN, WHOLE, ChunkState.UNANNOUNCED),
        (Mark.UNKNOWN, replace(WHOLE, youngest_age_s=ANNOUNCE_S), ChunkState.UNANNOUNCED),
        (Mark.UNKNOWN, replace(WHOLE, youngest_age_s=ANNOUNCE_S + 1), ChunkState.ORPHAN),
        (Mark.UNKNOWN, replace(WHOLE, oldest_s=999.0), ChunkState.EXPIRED),
        (Mark.LIVE, NONE, ChunkState.GONE),
        (Mark.WAITING, NONE, ChunkState.GONE),
        (Mark.LOST, NONE, ChunkState.LOST),
        (Mark.EXPIRED, NONE, ChunkState.EXPIRED),
        (Mark.UNKNOWN, NONE, ChunkState.ABSENT),
        (Mark.UNREAD, NONE, ChunkState.ABSENT),
        (Mark.NO_INDEX, NONE, ChunkState.ABSENT),
        (Mark.NO_INDEX, Shards(2, there=(1,)), ChunkState.INCOMPLETE),
        (Mark.LIVE, Shards(2, there=(1,)), ChunkState.INCOMPLETE),
        (Mark.UNKNOWN, Shards(2, there=(0,)), ChunkState.INCOMPLETE),
        (Mark.LIVE, Shards(2, there=(0,), misshapen=(1,)), ChunkState.MISSHAPEN),
        (Mark.LOST, Shards(2, there=(0,), quarantined=(1,)), ChunkState.QUARANTINED),
        (Mark.LIVE, replace(WHOLE, quarantined=(1,)), ChunkState.PRESENT),
    ],
)
def test_every_combination_has_one_state(mark: Mark, shards: Shards, state: ChunkState) -> None:
    assert state_of(mark, shards, WATERMARK_S, ANNOUNCE_S) is state


def test_missing_shards_are_those_that_are_not_there_in_any_size() -> None:
    assert Shards(4, there=(2,), misshapen=(0,)).missing == (1, 3)


# ------------------------------------------------------------------------------ prompts
def seen(start: int, end: int, state: ChunkState, mark: Mark = Mark.LIVE) -> Seen:
    return Seen(Chunk(start, end, BlockHash(bytes([end]) * 32)), mark, WHOLE, state)


def test_a_prompt_gets_what_joins_from_its_start() -> None:
    there, waiting, gone = ChunkState.PRESENT, ChunkState.WAITING, ChunkState.GONE
    whole = [seen(0, 4, there), seen(4, 8, waiting), seen(8, 10, there)]
    holed = [seen(0, 4, there), seen(4, 8, gone), seen(8, 10, there)]
    bridged = [seen(0, 4, there), seen(4, 6, there), seen(4, 7, gone), seen(4, 8, gone)]

    assert [hit_blocks(each) for each in (whole, holed, bridged, [])] == [10, 4, 6, 0]
    assert first_missing(whole) is None
    assert first_missing(holed) is holed[1]
    assert hit_blocks([seen(4, 8, there)]) == 0


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (seen(0, 4, ChunkState.PRESENT), None),
        (seen(0, 4, ChunkState.WAITING, Mark.WAITING), MissReason.ABSENT),
        (seen(0, 4, ChunkState.GONE), MissReason.LOAD_FAILED),
        (seen(0, 4, ChunkState.MISSHAPEN), MissReason.LOAD_FAILED),
        (seen(0, 4, ChunkState.QUARANTINED, Mark.LOST), MissReason.LOST),
        (seen(0, 4, ChunkState.EXPIRED, Mark.EXPIRED), MissReason.EXPIRED),
        (seen(0, 4, ChunkState.ORPHAN, Mark.UNKNOWN), MissReason.ABSENT),
        (seen(0, 4, ChunkState.PRESENT, Mark.NO_INDEX), None),
        (seen(0, 4, ChunkState.INCOMPLETE, Mark.NO_INDEX), MissReason.ABSENT),
        (seen(0, 4, ChunkState.INCOMPLETE, Mark.UNKNOWN), MissReason.ABSENT),
    ],
)
def test_an_engine_calls_a_miss_by_what_its_index_says(
    first: Seen, reason: MissReason | None
) -> None:
    assert request_says(first) is reason


@pytest.mark.parametrize(
    ("sizes", "replicas", "count"),
    [((1, 1, 1), 1, 1), ((4, 2, 1), 1, 8), ((8, 1, 1), 4, 2), ((1, 1, 2), 1, 2), ((1, 1, 1), 4, 1)],
)
def test_every_rank_with_bytes_of_its_own_writes_one_shard(
    sizes: tuple[int, int, int], replicas: int, count: int
) -> None:
    tensor, pipeline, prefill = sizes
    fields = replace(
        namespace_fields(),
        layout=(LAYOUT,) * pipeline,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        prefill_context_parallel_size=prefill,
        replicas=replicas,
    )

    assert writer_count_of(fields) == count
