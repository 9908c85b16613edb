"""Names of objects: golden values, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from s3kv.core import keys
from s3kv.core.ids import BlockHash, NamespaceId

NS = NamespaceId("0123456789abcdef0123456789abcdef")
HASH = BlockHash(bytes.fromhex("ab" + "01" * 31))
GOLDEN = json.loads((Path(__file__).parent / "golden" / "keys.json").read_text())


def test_names_are_those_of_the_golden_vectors() -> None:
    namespace = NamespaceId(GOLDEN["namespace"])
    chunk_hash, writer = bytes.fromhex(GOLDEN["chunk_hash"]), bytes.fromhex(GOLDEN["writer_id"])

    assert GOLDEN["names"] == {
        "namespace": keys.namespace_key(namespace),
        "shard": keys.shard_key(namespace, chunk_hash, 3, 8),
        "segment": keys.segment_key(namespace, writer, 258),
        "tick": keys.tick_key(namespace, 1025),
        "run": keys.run_key(namespace, 1, 1024),
        "set": keys.set_key(namespace, "system-prompts.v2"),
        "quarantine": keys.quarantine_key(namespace, chunk_hash, 3, 8),
    }


def test_names_begin_with_the_prefix_that_lists_them() -> None:
    assert keys.shard_key(NS, HASH, 0, 1).startswith(keys.data_prefix(NS))
    assert keys.segment_key(NS, b"w" * 16, 0).startswith(keys.inbox_prefix(NS))
    assert keys.tick_key(NS, 1).startswith(keys.tick_prefix(NS))
    assert keys.run_key(NS, 1, 1).startswith(keys.run_prefix(NS))
    assert keys.set_key(NS, "a").startswith(keys.sets_prefix(NS))
    assert keys.quarantine_key(NS, HASH, 0, 1).startswith(keys.quarantine_prefix(NS))


def test_the_folder_of_two_hex_digits_holds_exactly_the_chunks_that_begin_with_them() -> None:
    folders = [f"{first:02x}" for first in range(256)]

    key = keys.shard_key(NS, HASH, 0, 1)

    assert [each for each in folders if key.startswith(keys.data_prefix(NS, each))] == ["ab"]
    for odd in ("a", "AB", "abc", "../", "ab/"):
        with pytest.raises(ValueError, match="two lower-case hex digits"):
            keys.data_prefix(NS, odd)


def test_ticks_and_segments_sort_by_their_number() -> None:
    numbers = [1, 9, 10, 255, 256, 4096]

    ticks = [keys.tick_key(NS, n) for n in numbers]
    segments = [keys.segment_key(NS, b"w" * 16, n) for n in numbers]

    assert ticks == sorted(ticks)
    assert segments == sorted(segments)


@pytest.mark.parametrize("namespace", ["", "..", "A" * 32, "0" * 31, "0" * 33, f"{'0' * 31}/"])
def test_a_namespace_that_would_lead_elsewhere_is_refused(namespace: str) -> None:
    with pytest.raises(ValueError, match="not a namespace id"):
        keys.data_prefix(NamespaceId(namespace))


def test_numbers_outside_their_field_are_refused() -> None:
    for writer, writers in [(1, 1), (-1, 1), (0, 0), (0, 1000)]:
        with pytest.raises(ValueError, match="writer"):
            keys.shard_key(NS, HASH, writer, writers)
        with pytest.raises(ValueError, match="writer"):
            keys.quarantine_key(NS, HASH, writer, writers)
    with pytest.raises(ValueError, match="chunk hash"):
        keys.shard_key(NS, HASH[:16], 0, 1)
    with pytest.raises(ValueError, match="writer id"):
        keys.segment_key(NS, b"short", 0)
    with pytest.raises(ValueError, match="not in 0"):
        keys.segment_key(NS, b"w" * 16, 1 << 32)
    with pytest.raises(ValueError, match="not in 1"):
        keys.tick_key(NS, 0)
    with pytest.raises(ValueError, match="no ticks"):
        keys.run_key(NS, 3, 2)


@pytest.mark.parametrize(
    "key",
    [
        f"{NS}/data/ac/{HASH.hex()}/000of001.safetensors",
        f"{NS}/data/ab/{HASH.hex()}/001of001.safetensors",
        f"{NS}/data/ab/{HASH.hex()}/0of1.safetensors",
        f"{NS}/data/ab/{HASH.hex()}/000of001.safetensors.tmp",
        f"{NS}/data/ab/{HASH.hex()}/000of001.safetensors\n",
        f"{NS}/data/AB/{HASH.hex().upper()}/000of001.safetensors",
        f"x/{NS}/data/ab/{HASH.hex()}/000of001.safetensors",
    ],
)
def test_names_that_only_look_like_shards_are_foreign(key: str) -> None:
    assert keys.parse_shard_key(key) is None


def test_tick_zero_and_backward_runs_are_foreign() -> None:
    assert keys.parse_tick_key(f"{NS}/idx/tick/{0:016x}") is None
    assert keys.parse_run_key(f"{NS}/idx/run/{0:016x}-{1:016x}") is None
    assert keys.parse_run_key(f"{NS}/idx/run/{3:016x}-{2:016x}") is None


@pytest.mark.parametrize("name", ["", "A", ".a", "-a", "_a", "a/b", "a b", "a\n", "ä", "a" * 101])
def test_names_that_no_set_may_have_are_refused_and_foreign(name: str) -> None:
    with pytest.raises(ValueError, match="not the name of a set"):
        keys.set_key(NS, name)
    assert keys.parse_set_key(f"{NS}/sets/{name}") is None


def test_a_quarantined_shard_is_no_shard_and_the_other_way_round() -> None:
    assert keys.parse_shard_key(keys.quarantine_key(NS, HASH, 0, 1)) is None
    assert keys.parse_quarantine_key(keys.shard_key(NS, HASH, 0, 1)) is None
