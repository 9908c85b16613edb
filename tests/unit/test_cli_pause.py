"""What the pause commands write, and what they leave alone, on a store in memory."""

from __future__ import annotations

import pytest

from s3kv.bucket.base import CREATED, Created, Exists, ObjectStore
from s3kv.bucket.faults import Fail, Faulty
from s3kv.bucket.memory import MemoryStore
from s3kv.cli.listing import IndexView, Unread, read_index
from s3kv.cli.pause import PauseOptions, Row, change_all
from s3kv.core.follower import LOADS_BIT, SAVES_BIT
from s3kv.core.ids import NamespaceId
from s3kv.core.keys import namespace_key
from s3kv.core.pausing import Changed, PauseChange
from s3kv.core.snapshot import Pause
from s3kv.errors import ConfigError, Denied
from s3kv.runtime.clock import Clock
from tests.fakes.small_archive import write_archive

PAUSE = PauseChange(set_bits=LOADS_BIT | SAVES_BIT)
BOTH = Changed(0, LOADS_BIT | SAVES_BIT)


def ignore(text: str) -> None:
    pass


async def change(store: ObjectStore, change: PauseChange = PAUSE) -> list[Row]:
    return await change_all(store, "s3://bucket", None, change, ignore)


async def seen(store: ObjectStore, ns: NamespaceId) -> Pause:
    view = await read_index(store, ns, Clock())
    assert isinstance(view, IndexView)
    return view.follower.snapshot.pause


@pytest.mark.parametrize(
    ("loads", "saves", "bits"),
    [
        (False, False, LOADS_BIT | SAVES_BIT),
        (True, False, LOADS_BIT),
        (False, True, SAVES_BIT),
        (True, True, LOADS_BIT | SAVES_BIT),
    ],
)
def test_what_is_asked_for_and_both_if_nothing_is(loads: bool, saves: bool, bits: int) -> None:
    assert PauseOptions(loads, saves).bits == bits


async def test_every_namespace_is_changed_and_nothing_else_is_written() -> None:
    store = MemoryStore()
    archives = [await write_archive(store, label) for label in ("", "other")]
    before = set(store.objects)

    rows = await change(store)

    assert [row.outcome for row in rows] == [BOTH, BOTH]
    for archive in archives:
        assert await seen(store, archive.namespace.id) == Pause(loads=True, saves=True)
    written = sorted(set(store.objects) - before)
    assert written == sorted(f"{a.namespace.id}/idx/tick/{2:016x}" for a in archives)


async def test_nothing_to_change_asks_for_nothing_but_reads() -> None:
    store = MemoryStore()
    await write_archive(store)
    await change(store)
    faulty = Faulty(store)

    rows = await change(faulty)

    assert [row.outcome for row in rows] == [Changed(BOTH.now, BOTH.now)]
    assert {operation for operation, _ in faulty.calls} <= {"list_prefixes", "list", "get"}


async def test_a_namespace_that_nobody_can_identify_is_left_alone_and_named() -> None:
    store = MemoryStore()
    first, second = [await write_archive(store, label) for label in ("", "other")]
    await store.delete([namespace_key(first.namespace.id)], timeout_s=1.0)
    before = {key for key in store.objects if key.startswith(first.namespace.id)}

    outcomes = {row.namespace: row.outcome for row in await change(store)}

    assert outcomes[first.namespace.id] == Unread("there is no NAMESPACE.json")
    assert outcomes[second.namespace.id] == BOTH
    assert {key for key in store.objects if key.startswith(first.namespace.id)} == before


async def test_one_namespace_that_refuses_does_not_keep_the_others_from_the_change() -> None:
    store = MemoryStore()
    first, second = [await write_archive(store, label) for label in ("", "other")]
    faulty = Faulty(store)
    faulty.inject(Fail(Denied("no")), "create", keys=f"{first.namespace.id}/*", times=None)

    outcomes = {row.namespace: row.outcome for row in await change(faulty)}

    assert outcomes[first.namespace.id] == Unread("no")
    assert outcomes[second.namespace.id] == BOTH


async def test_a_store_that_ignores_conditions_gets_no_tick() -> None:
    class Careless(MemoryStore):
        async def create(self, key: str, body: bytes, *, timeout_s: float) -> Created | Exists:
            await self.put(key, body, timeout_s=timeout_s)
            return CREATED

    store = Careless()
    await write_archive(store)
    before = dict(store.objects)

    with pytest.raises(ConfigError, match="doctor"):
        await change(store)

    assert store.objects == before


async def test_an_empty_prefix_is_bad_input() -> None:
    with pytest.raises(ConfigError, match="no archive under this prefix"):
        await change(MemoryStore())
