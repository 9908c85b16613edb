"""Which objects go when chunks, or a namespace, are forgotten on purpose. Pure names.

Rule upheld here: an object goes only if its name is exactly ours and means something that is to be
forgotten. Of a namespace the index goes first: whoever opens it from then on misses, instead of
being promised what is about to go; NAMESPACE.json goes last, so that what an interruption leaves
behind is still known to be ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from s3kv.core import keys
from s3kv.core.ids import BlockHash, NamespaceId
from s3kv.core.sweep import FOLDERS

_PARSERS: Final = (
    keys.parse_shard_key,
    keys.parse_quarantine_key,
    keys.parse_tick_key,
    keys.parse_run_key,
    keys.parse_segment_key,
    keys.parse_set_key,
)


@dataclass(frozen=True, slots=True)
class Erasure:
    """What goes. Everything meant lies under `look_under`, and under the prefixes of `stages`.

    stages: deleted one after the other, the prefixes of each in any order; uploads_under: where
    unfinished uploads of it lie; is_meant: whether the object of this name goes.
    """

    namespace: NamespaceId
    look_under: tuple[str, ...]
    stages: tuple[tuple[str, ...], ...]
    uploads_under: str
    is_meant: Callable[[str], bool]


def erase_chunks(ns: NamespaceId, chunk_hashes: Sequence[BlockHash]) -> Erasure:
    """These chunks' shards, of however many ranks, also those in quarantine."""
    wanted = frozenset(chunk_hashes)

    def is_meant(key: str) -> bool:
        name = keys.parse_shard_key(key) or keys.parse_quarantine_key(key)
        return name is not None and name.namespace == ns and name.chunk_hash in wanted

    folders = tuple(
        folder
        for chunk_hash in wanted
        for folder in (
            _folder(keys.shard_key(ns, chunk_hash, 0, 1)),
            _folder(keys.quarantine_key(ns, chunk_hash, 0, 1)),
        )
    )
    return Erasure(ns, folders, (folders,), keys.data_prefix(ns), is_meant)


def erase_namespace(ns: NamespaceId) -> Erasure:
    """Everything of ours in a namespace."""
    document = keys.namespace_key(ns)

    def is_meant(key: str) -> bool:
        names = (parse(key) for parse in _PARSERS)
        return key == document or any(name is not None and name.namespace == ns for name in names)

    index = (keys.inbox_prefix(ns), keys.tick_prefix(ns), keys.run_prefix(ns))
    shards = tuple(keys.data_prefix(ns, folder) for folder in FOLDERS)
    stages = (index, (*shards, keys.quarantine_prefix(ns)), (keys.sets_prefix(ns),), (document,))
    return Erasure(ns, (f"{ns}/",), stages, f"{ns}/", is_meant)


def _folder(key: str) -> str:
    return key.rpartition("/")[0] + "/"
