"""What is erased: exactly our names, of what is meant, index first and the document last."""

from __future__ import annotations

import pytest

from s3kv.core import keys
from s3kv.core.erasure import Erasure, erase_chunks, erase_namespace
from s3kv.core.ids import BlockHash, NamespaceId
from tests.fakes.index_store import NS

OTHER_NS = NamespaceId("f" * 32)
MINE, OTHER = BlockHash(b"\x01" * 32), BlockHash(b"\x02" * 32)


def names_in(ns: NamespaceId, chunk_hash: BlockHash = MINE) -> dict[str, str]:
    return {
        "shard": keys.shard_key(ns, chunk_hash, 3, 4),
        "aside": keys.quarantine_key(ns, chunk_hash, 0, 1),
        "tick": keys.tick_key(ns, 7),
        "run": keys.run_key(ns, 1, 6),
        "segment": keys.segment_key(ns, bytes(16), 1),
        "set": keys.set_key(ns, "keep"),
        "document": keys.namespace_key(ns),
    }


FOREIGN = (f"{NS}/notes.txt", f"{NS}/data/01/x", keys.shard_key(NS, MINE, 0, 1) + ".bak", "top")


def is_under(key: str, prefixes: tuple[str, ...]) -> bool:
    return key.startswith(prefixes)


@pytest.mark.parametrize(
    "erasure", [erase_chunks(NS, [MINE]), erase_namespace(NS)], ids=["chunks", "namespace"]
)
def test_foreign_names_and_other_namespaces_are_never_meant(erasure: Erasure) -> None:
    for key in (*FOREIGN, *names_in(OTHER_NS).values()):
        assert not erasure.is_meant(key)


def test_of_chunks_only_their_shards_go_of_any_rank_also_those_set_aside() -> None:
    erasure = erase_chunks(NS, [MINE])

    meant = {kind for kind, key in names_in(NS).items() if erasure.is_meant(key)}

    assert meant == {"shard", "aside"}
    assert not any(erasure.is_meant(key) for key in names_in(NS, OTHER).values())


def test_a_namespace_goes_as_a_whole() -> None:
    assert all(erase_namespace(NS).is_meant(key) for key in names_in(NS).values())


@pytest.mark.parametrize(
    "erasure", [erase_chunks(NS, [MINE, OTHER]), erase_namespace(NS)], ids=["chunks", "namespace"]
)
def test_everything_meant_is_looked_at_and_deleted(erasure: Erasure) -> None:
    for name in (MINE, OTHER):
        for key in names_in(NS, name).values():
            if erasure.is_meant(key):
                assert is_under(key, erasure.look_under)
                assert sum(is_under(key, stage) for stage in erasure.stages) == 1


def test_the_index_goes_before_the_shards_and_the_document_after_everything() -> None:
    stages, names = erase_namespace(NS).stages, names_in(NS)
    stage_of = {
        kind: next(i for i, stage in enumerate(stages) if is_under(key, stage))
        for kind, key in names.items()
    }

    assert stage_of["tick"] == stage_of["run"] == stage_of["segment"] == 0
    assert 0 < stage_of["shard"] == stage_of["aside"] < stage_of["document"]
    assert stages[stage_of["document"]] == (keys.namespace_key(NS),)
    assert stage_of["document"] == len(stages) - 1
