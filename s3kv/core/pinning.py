"""Makes pinned sets, adds to them, lists and removes them.

Rule upheld here: what was pinned stays pinned until somebody removes the set. Objects of sets are
created if absent and deleted, never replaced: a replacement would lose what another person added
since we looked, and a deletion with a creation after it would pin nothing in between, or for ever
if the process dies there. So chunks that are added later lie in parts of their own, `NAME`, then
`NAME.plus-0002` and so on; together they are the set NAME. Sequencers and sweepers need not know
of that: to them each part is a set (`pins`).

Sans-IO (see `requests`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from s3kv.core import keys
from s3kv.core.ids import BlockHash, NamespaceId
from s3kv.core.pinset import SET_BYTES_MAX, PinSet, decode_set, encode_set, make_set
from s3kv.core.requests import (
    Absent,
    Create,
    Created,
    DeleteListed,
    Get,
    Kept,
    Listed,
    ListPrefix,
    Steps,
    ask,
    listed,
)
from s3kv.core.snapshot import Snapshot
from s3kv.errors import Corrupt, Mismatch, Transient

PARTS_MAX: Final = 9_999
"""Parts of one set: each costs every sequencer one GET."""

TRIES: Final = 16
"""How many parts others may add before ours, in one call, before `Transient`."""

_PART_PATTERN: Final = re.compile(r"(.+)\.plus-([0-9]{4})")


@dataclass(frozen=True, slots=True)
class Part:
    """One object of a set. pinned: None if it cannot be read; then `problem` says why."""

    found: Listed
    name: str
    index: int
    pinned: PinSet | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class NamedSet:
    """A set as people know it: its parts by index, at least one."""

    name: str
    parts: tuple[Part, ...]

    @property
    def problem(self) -> str:
        """Why it cannot be read whole, or the empty string."""
        return "; ".join(f"{part.name}: {part.problem}" for part in self.parts if part.problem)

    @property
    def age_s(self) -> float:
        """Since it was made."""
        return max(part.found.age_s for part in self.parts)

    def blocks_of(self) -> dict[BlockHash, int]:
        """Its chunks, as far as they can be read, and how many blocks they had when pinned."""
        merged: dict[BlockHash, int] = {}
        for part in self.parts:
            if part.pinned is not None:
                hashes = part.pinned.chunk_hashes()
                for chunk_hash, blocks in zip(hashes, part.pinned.blocks.tolist(), strict=True):
                    merged[chunk_hash] = max(blocks, merged.get(chunk_hash, 0))
        return merged


@dataclass(frozen=True, slots=True)
class Pinned:
    """The chunks are pinned. added_count: of them, not pinned under this name before."""

    added_count: int


@dataclass(frozen=True, slots=True)
class NameTaken:
    """There is a set of this name."""


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The set has `PARTS_MAX` parts."""


@dataclass(frozen=True, slots=True)
class Removed:
    """part_count: objects deleted; kept: objects that were uploaded anew meanwhile and stay."""

    part_count: int
    kept: tuple[str, ...]


Pinning: TypeAlias = Pinned | NameTaken | NoRoom


def is_name(name: str) -> bool:
    """Whether people may call a set so: a name that leaves room for parts, and is none itself."""
    return split_name(name)[1] == 1 and keys.is_set_name(part_name(name, PARTS_MAX))


def part_name(name: str, index: int) -> str:
    """The name of a set's index-th part, counted from 1."""
    assert 1 <= index <= PARTS_MAX
    return name if index == 1 else f"{name}.plus-{index:04d}"


def split_name(part: str) -> tuple[str, int]:
    """The set's name and the index of one of its parts; the inverse of `part_name`."""
    found = _PART_PATTERN.fullmatch(part)
    if found is None or int(found[2]) < 2:
        return part, 1
    return found[1], int(found[2])


def archived_blocks(
    snapshot: Snapshot, fps: NDArray[np.uint64]
) -> tuple[NDArray[np.bool_], NDArray[np.uint16]]:
    """bool[k]: which of uint64[k] fingerprints are live; uint16[k]: their blocks, else 0."""
    live = snapshot.live()
    at, known = live.find(fps)
    blocks = np.zeros(len(fps), np.uint16)
    blocks[known] = live.blocks[at[known]]
    return known, blocks


def read_sets(namespace: NamespaceId, only: str | None = None) -> Steps[list[NamedSet]]:
    """The namespace's sets by name, read one after the other: each may have 36 MB.

    only: the name of the one set that is wanted. A set without its first part is one as well:
    somebody added to it while it was being removed. Raises as `ask`.
    """
    parts: dict[str, list[Part]] = {}
    for name, index, found in (yield from _list_parts(namespace)):
        if only is not None and name != only:
            continue
        reply = yield from ask(Get(found.key, SET_BYTES_MAX))
        if not isinstance(reply.value, Absent):  # removed since it was listed
            parts.setdefault(name, []).append(_part(namespace, name, index, found, reply.value))
    return [
        NamedSet(name, tuple(sorted(parts[name], key=lambda part: part.index)))
        for name in sorted(parts)
    ]


def create_set(
    namespace: NamespaceId, name: str, blocks_of: Mapping[BlockHash, int]
) -> Steps[Pinning]:
    """Make a new set; of several who make one at once, one does. Raises as `ask`, `make_set`."""
    body = encode_set(make_set(namespace, name, blocks_of))
    if any(found[0] == name for found in (yield from _list_parts(namespace))):
        return NameTaken()
    is_ours = yield from _create(keys.set_key(namespace, name), body)
    return Pinned(len(blocks_of)) if is_ours else NameTaken()


def add_to_set(
    namespace: NamespaceId, name: str, blocks_of: Mapping[BlockHash, int]
) -> Steps[Pinning]:
    """Pin chunks under a name, whether there is such a set or not.

    Any number may do this at once. Raises as `ask`, `make_set`, and `Transient` if others are
    always faster.
    """
    for _ in range(TRIES):
        sets = yield from read_sets(namespace, name)
        known = sets[0].blocks_of() if sets else {}
        news = {chunk: blocks for chunk, blocks in blocks_of.items() if chunk not in known}
        if not news:
            return Pinned(0)
        index = sets[0].parts[-1].index + 1 if sets else 1
        if index > PARTS_MAX:
            return NoRoom()
        part = part_name(name, index)
        body = encode_set(make_set(namespace, part, news))
        if (yield from _create(keys.set_key(namespace, part), body)):
            return Pinned(len(news))
    raise Transient(f"others added to {name} {TRIES} times meanwhile")


def remove_set(namespace: NamespaceId, name: str) -> Steps[Removed]:
    """Delete the set's objects as they are listed now, and nothing else. Raises as `ask`."""
    found = [part for part in (yield from _list_parts(namespace)) if part[0] == name]
    if not found:
        return Removed(0, ())
    reply = yield from ask(DeleteListed(tuple(part[2] for part in found)))
    assert isinstance(reply.value, Kept)
    kept = reply.value.keys
    return Removed(len(found) - len(kept), kept)


def _list_parts(namespace: NamespaceId) -> Steps[Sequence[tuple[str, int, Listed]]]:
    """(name of the set, index, object) of everything under the prefix that is a set of ours."""
    reply = yield from ask(ListPrefix(keys.sets_prefix(namespace)))
    names = [(keys.parse_set_key(found.key), found) for found in listed(reply)]
    return [(*split_name(name.name), found) for name, found in names if name is not None]


def _part(namespace: NamespaceId, name: str, index: int, found: Listed, value: object) -> Part:
    part = part_name(name, index)
    try:
        if not isinstance(value, bytes):
            raise Corrupt("too large")  # noqa: TRY301 (one way to refuse)
        return Part(found, part, index, decode_set(value, namespace, part))
    except (Corrupt, Mismatch) as error:
        return Part(found, part, index, None, str(error))


def _create(key: str, body: bytes) -> Steps[bool]:
    """Whether the object is ours: it was not there, or has our bytes (a lost reply of ours)."""
    reply = yield from ask(Create(key, body))
    if isinstance(reply.value, Created):
        return True
    reply = yield from ask(Get(key, SET_BYTES_MAX))
    return reply.value == body
