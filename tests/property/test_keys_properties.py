"""Names and what they name are inverses of each other, and foreign names name nothing."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from s3kv.core.ids import BlockHash, NamespaceId
from s3kv.core.keys import (
    RunName,
    SegmentName,
    SetName,
    ShardName,
    TickName,
    parse_quarantine_key,
    parse_run_key,
    parse_segment_key,
    parse_set_key,
    parse_shard_key,
    parse_tick_key,
    quarantine_key,
    run_key,
    segment_key,
    set_key,
    shard_key,
    tick_key,
)
from tests.property.strategies import block_hashes, namespace_ids

Name = ShardName | SegmentName | TickName | RunName | SetName

PARSERS: tuple[Callable[[str], Name | None], ...] = (
    parse_shard_key,
    parse_segment_key,
    parse_tick_key,
    parse_run_key,
    parse_set_key,
)


def key_of(named: Name) -> str:
    match named:
        case ShardName(ns, chunk_hash, index, count):
            return shard_key(ns, chunk_hash, index, count)
        case SegmentName(ns, writer, seq):
            return segment_key(ns, writer, seq)
        case TickName(ns, tick):
            return tick_key(ns, tick)
        case RunName(ns, lo, hi):
            return run_key(ns, lo, hi)
        case SetName(ns, name):
            return set_key(ns, name)


@st.composite
def names(draw: st.DrawFn) -> Name:
    """Any name of any kind."""
    ns = draw(namespace_ids())
    kind = draw(st.sampled_from([ShardName, SegmentName, TickName, RunName, SetName]))
    if kind is SetName:
        return SetName(ns, draw(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,99}", fullmatch=True)))
    if kind is ShardName:
        count = draw(st.integers(1, 999))
        return ShardName(ns, draw(block_hashes()), draw(st.integers(0, count - 1)), count)
    if kind is SegmentName:
        writer = draw(st.binary(min_size=16, max_size=16))
        return SegmentName(ns, writer, draw(st.integers(0, 2**32 - 1)))
    lo, hi = sorted(draw(st.tuples(st.integers(1, 2**64 - 1), st.integers(1, 2**64 - 1))))
    return TickName(ns, lo) if kind is TickName else RunName(ns, lo, hi)


@settings(deadline=None)
@given(names())
def test_every_key_parses_back_to_its_name_and_to_no_other_kind(name: Name) -> None:
    key = key_of(name)

    assert [found for parse in PARSERS if (found := parse(key)) is not None] == [name]


@settings(deadline=None)
@given(names(), names())
def test_different_names_have_different_keys(left: Name, right: Name) -> None:
    assert (key_of(left) == key_of(right)) == (left == right)


@settings(deadline=None)
@given(names(), st.data())
def test_a_key_with_one_character_changed_is_foreign_or_the_key_of_what_it_parses_to(
    name: Name, data: st.DataObject
) -> None:
    key = key_of(name)
    at = data.draw(st.integers(0, len(key)))
    insert = data.draw(st.sampled_from(["", "0", "1", "f", "F", "g", "/", "-", ".", "\n", "٣"]))
    changed = key[:at] + insert + key[at + data.draw(st.integers(0, 1)) :]

    for parse in PARSERS:
        found = parse(changed)
        assert found is None or key_of(found) == changed


@settings(deadline=None)
@given(st.text(max_size=120))
def test_no_text_makes_a_parser_raise(text: str) -> None:
    assert all(parse(text) is None for parse in PARSERS)


@settings(deadline=None)
@given(namespace_ids(), block_hashes(), block_hashes())
def test_shards_of_a_chunk_lie_together_and_chunks_apart(
    ns: NamespaceId, left: BlockHash, right: BlockHash
) -> None:
    folders = [shard_key(ns, h, w, 8).rsplit("/", 1)[0] for h in (left, right) for w in (0, 7)]

    assert folders[0] == folders[1]
    assert (folders[0] == folders[2]) == (left == right)


@settings(deadline=None)
@given(names(), st.text(max_size=120))
def test_a_shard_in_quarantine_keeps_its_name_and_is_nothing_else(name: Name, text: str) -> None:
    if isinstance(name, ShardName):
        parts = (name.namespace, name.chunk_hash, name.writer_index, name.writer_count)
        key = quarantine_key(*parts)

        assert parse_quarantine_key(key) == name
        assert all(parse(key) is None for parse in PARSERS)
    assert parse_quarantine_key(key_of(name)) is None
    assert parse_quarantine_key(text) is None
