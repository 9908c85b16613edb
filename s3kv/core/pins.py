"""The pinned sets of a namespace as a sequencer or sweeper knows them.

Rule upheld here: as long as a set could not be read, nobody knows what it pins: `complete` is
false, and then no watermark is raised and nothing is swept.

Sans-IO (see `requests`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from s3kv.core import keys
from s3kv.core.ids import NamespaceId
from s3kv.core.pinset import SET_BYTES_MAX, decode_set
from s3kv.core.requests import Absent, Get, Listed, ListPrefix, Steps, ask, listed, work
from s3kv.errors import Corrupt, Mismatch

NOTHING_PINNED: Final = np.empty(0, np.uint64)


_Set: TypeAlias = tuple[Listed, NDArray[np.uint64]]
"""A set as it was listed, and its fingerprints."""


@dataclass(slots=True)
class Pins:
    """Owned by one task. fps: uint64[n], sorted: the fingerprints of all pinned chunks."""

    namespace: NamespaceId
    complete: bool = False
    problem: str = ""
    fps: NDArray[np.uint64] = field(default_factory=lambda: NOTHING_PINNED)
    _read: dict[str, _Set] = field(default_factory=dict)

    def refresh(self) -> Steps[None]:
        """Read what has changed: one listing, and a GET per new set. Raises as `ask`."""
        self.complete = False
        reply = yield from ask(ListPrefix(keys.sets_prefix(self.namespace)))
        known, problem = self._read, ""
        read: dict[str, _Set] = {}
        for found in listed(reply):
            name = keys.parse_set_key(found.key)
            if name is None:
                continue
            before = known.get(found.key)
            if before is not None and before[0].upload == found.upload:
                read[found.key] = before
                continue
            answer = yield from ask(Get(found.key, SET_BYTES_MAX))
            if isinstance(answer.value, Absent):
                continue  # unpinned since it was listed
            try:
                if not isinstance(answer.value, bytes):
                    raise Corrupt("too large")  # noqa: TRY301 (one way to refuse)
                decoding = partial(decode_set, answer.value, self.namespace, name.name)
                pinned = yield from work(decoding)
            except (Corrupt, Mismatch) as error:
                problem = f"set {name.name} cannot be read: {error}"
                continue
            read[found.key] = (found, pinned.fps)
        if _uploads(read) != _uploads(known):
            columns = [fps for _, fps in read.values()]
            self.fps = yield from work(partial(_union, columns))
            self._read = read
        self.problem = problem
        self.complete = not problem


def _uploads(read: Mapping[str, _Set]) -> list[tuple[str, int, float, str]]:
    return sorted(found.upload for found, _ in read.values())


def _union(columns: list[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    """Sorted, each once; a set may have a million."""
    if not columns:
        return NOTHING_PINNED
    ordered = np.sort(np.concatenate(columns))
    is_first = np.ones(len(ordered), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    return ordered[is_first]
