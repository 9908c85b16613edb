"""A process that leads for a whole prefix: what it begins, ends, and says. Fake clock and store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from s3kv.bucket.faults import Fail, Faulty
from s3kv.bucket.memory import MemoryStore
from s3kv.cli.sequencer import LINE_S, LOOK_S, Leaders, Line, beginning
from s3kv.cli.subjects import subject_of
from s3kv.core.ids import NamespaceId
from s3kv.core.keys import namespace_key, tick_key
from s3kv.core.namespace import Namespace
from s3kv.core.records import make_records
from s3kv.errors import Denied
from s3kv.runtime.index_client import IndexReader, IndexSettings
from s3kv.runtime.index_writer import IndexWriter
from tests.fakes.clock import FakeClock
from tests.fakes.index_bench import live
from tests.fakes.newer import as_newer
from tests.fakes.small_archive import small_namespace

SETTINGS = IndexSettings(takes_lead=True, segments_per_s=250.0)
A, B = small_namespace(), small_namespace("other")


@dataclass
class Bench:
    clock: FakeClock = field(default_factory=FakeClock)
    lines: list[Line] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.memory = MemoryStore(unix_s=self.clock.unix_s)
        self.store = Faulty(self.memory)

    def describe(self, *namespaces: Namespace) -> None:
        for namespace in namespaces:
            self.memory.write(namespace_key(namespace.id), namespace.document)

    async def lead(
        self, settings: IndexSettings = SETTINGS, named: Sequence[NamespaceId] | None = None
    ) -> Leaders:
        leaders = Leaders(self.store, self.clock, settings, named, self.lines.append)
        self.tasks.append(asyncio.create_task(leaders.run(self.stop)))
        await self.clock.advance(1.0)
        return leaders

    async def engine(self, namespace: Namespace = A) -> IndexWriter:
        writer = IndexWriter(self.store, namespace, self.clock, IndexSettings())
        writer.writes_allowed = False  # it commits, and never takes the lead
        self.tasks.append(asyncio.create_task(writer.run()))
        await self.clock.settle()
        return writer

    async def commit(self, engine: IndexWriter, *fps: int, age_s: int = 0) -> None:
        """Commit chunks of 16 blocks that were last used so long ago."""
        records = make_records(fps, int(self.clock.unix_s()) - age_s, 16)
        self.tasks.append(asyncio.create_task(engine.commit(records)))
        await self.clock.settle()

    async def reader(self, namespace: Namespace = A) -> IndexReader:
        reader = IndexReader(self.store, namespace, self.clock, IndexSettings())
        self.tasks.append(asyncio.create_task(reader.run()))
        await self.clock.settle()
        return reader

    async def delete_all(self) -> None:
        await self.memory.delete(list(self.memory.objects), timeout_s=1.0)

    def names(self, part: str) -> list[str]:
        return sorted(key for key in self.memory.objects if part in key)

    def told(self, event: str, namespace: Namespace | None = A) -> list[Line]:
        ns = None if namespace is None else namespace.id
        return [line for line in self.lines if (line.event, line.namespace) == (event, ns)]


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    made.stop.set()
    await made.clock.settle()
    for task in made.tasks:
        task.cancel()
    await asyncio.gather(*made.tasks, return_exceptions=True)


async def test_it_leads_at_once_and_folds_what_engines_commit(bench: Bench) -> None:
    bench.describe(A, B)
    await bench.lead()
    engine, reader = await bench.engine(), await bench.reader()

    await bench.commit(engine, 7)
    await bench.clock.advance(7.0)

    assert live(reader) == [7]
    assert not engine.sequencer.leads
    assert bench.names("/inbox/") == []
    assert [
        line.leads for line in (*bench.told("sequencing", A), *bench.told("sequencing", B))
    ] == [
        True,
        True,
    ]


async def test_it_says_what_was_done_once_a_minute_and_nothing_while_nothing_is(
    bench: Bench,
) -> None:
    bench.describe(A)
    await bench.lead()
    engine = await bench.engine()
    for i in range(5):
        await bench.clock.advance(2.0)
        await bench.commit(engine, i)
    assert len(bench.lines) == 1

    await bench.clock.advance(LINE_S)
    assert len(bench.lines) == 2
    line = bench.lines[1]
    assert (line.leads, line.ticks, line.segments_folded) == (True, 5, 5)
    assert line.head_tick == 6
    assert "leads at tick 6, 5 ticks, 5 segments folded" in line.text()

    await bench.clock.advance(5 * LINE_S)
    assert len(bench.lines) == 2


async def test_it_tells_how_many_engines_commit(bench: Bench) -> None:
    bench.describe(A)
    await bench.lead()
    engines = [await bench.engine() for _ in range(3)]
    await bench.clock.advance(LINE_S - 10)
    for i, engine in enumerate(engines):
        await bench.commit(engine, i)

    await bench.clock.advance(15.0)

    assert bench.lines[-1].writers == 3
    assert bench.lines[-1].text().endswith("3 writers")


async def test_a_namespace_that_comes_later_is_led_within_a_minute(bench: Bench) -> None:
    await bench.lead()
    assert bench.lines == []
    bench.describe(A)

    await bench.clock.advance(LOOK_S + 1)

    assert bench.told("sequencing", A)[0].leads


async def test_only_what_is_named_is_led(bench: Bench) -> None:
    bench.describe(A, B)
    await bench.lead(named=[B.id])

    await bench.clock.advance(2 * LOOK_S)

    assert bench.told("sequencing", A) == []
    assert bench.names(f"{A.id}/idx/") == []
    assert bench.told("sequencing", B)


async def test_a_namespace_that_is_deleted_is_not_led_back_into_being(bench: Bench) -> None:
    bench.describe(A)
    await bench.lead()
    await bench.delete_all()
    await bench.clock.advance(LOOK_S + 1)
    await bench.delete_all()
    bench.store.calls.clear()

    await bench.clock.advance(3 * LOOK_S)

    assert bench.names("") == []
    assert {operation for operation, _ in bench.store.calls} == {"list_prefixes"}
    assert bench.told("left_alone", A) == []  # nothing of it is listed any more


async def test_a_namespace_that_nobody_can_identify_is_left_alone_and_told_once(
    bench: Bench,
) -> None:
    bench.memory.write(namespace_key(A.id), B.document)
    await bench.lead()

    await bench.clock.advance(5 * LOOK_S)

    (line,) = bench.told("left_alone", A)
    assert B.id in line.reason
    assert bench.names("/idx/") == []


async def test_an_index_that_is_refused_ends_and_is_told_once(bench: Bench) -> None:
    bench.describe(A)
    await bench.lead()
    key = tick_key(A.id, 1)
    bench.memory.write(tick_key(A.id, 2), as_newer(bench.memory.objects[key]))

    await bench.clock.advance(5 * LOOK_S)

    (line,) = bench.told("ended", A)
    assert "upgrade s3kv" in line.text()
    assert len(bench.names("/tick/")) == 2


async def test_a_listing_that_fails_is_told_once_and_tried_again(bench: Bench) -> None:
    bench.describe(A)
    bench.store.inject(Fail(Denied("no list")), "list_prefixes", times=None)
    await bench.lead()
    await bench.clock.advance(3 * LOOK_S)
    assert [line.reason for line in bench.told("not_listed", None)] == ["no list"]

    bench.store.heal()
    await bench.clock.advance(LOOK_S)

    assert bench.told("sequencing", A)


async def test_a_namespace_is_led_on_while_it_cannot_be_looked_at(bench: Bench) -> None:
    bench.describe(A)
    await bench.lead()
    bench.store.inject(Fail(Denied("no")), "get", keys="*/NAMESPACE.json", times=None)
    engine, reader = await bench.engine(), await bench.reader()
    await bench.clock.advance(2 * LOOK_S)
    bench.store.heal()

    await bench.commit(engine, 7)
    await bench.clock.advance(LOOK_S)

    assert live(reader) == [7]
    assert bench.told("left_alone") == []


async def test_limits_are_those_of_the_options_and_of_each_namespaces_shards(bench: Bench) -> None:
    bench.describe(A)
    per_block = subject_of(A).bytes_per_block
    assert per_block > 0
    limits = replace(SETTINGS, ttl_s=7_200, max_bytes=20 * per_block)
    await bench.lead(limits)
    engine, reader = await bench.engine(), await bench.reader()
    await bench.commit(engine, 1, age_s=7_300)
    await bench.commit(engine, 2, age_s=10)
    await bench.clock.advance(100.0)
    assert live(reader) == [2], "forgotten by age; 16 blocks have room"

    await bench.commit(engine, 3, age_s=1)
    await bench.clock.advance(130.0)

    assert live(reader) == [3], "forgotten by size: 32 blocks have not"


async def test_it_ends_with_everything_that_it_began(bench: Bench) -> None:
    bench.describe(A, B)
    before = asyncio.all_tasks()
    await bench.lead()
    assert len(asyncio.all_tasks() - before) > 1

    bench.stop.set()
    await bench.clock.settle()

    assert bench.tasks[0].done()
    assert bench.tasks[0].exception() is None
    assert asyncio.all_tasks() - before <= {bench.tasks[0]}


@pytest.mark.parametrize(
    ("named", "limits", "says"),
    [
        (None, {"ttl_s": 7_200}, "every namespace under s3://b/p, later ones too; forgets what"),
        (None, {"ttl_s": 7_200}, "forgets what was not used for 2.0 h"),
        (None, {"max_bytes": 2 << 30}, "forgets the least recently used beyond 2.0 GiB each"),
        (
            None,
            {"ttl_s": 7_200, "max_bytes": 2 << 30},
            "was not used for 2.0 h and the least recently used beyond 2.0 GiB each",
        ),
        ([A.id], {}, f"{A.id[:12]} under s3://b/p; WARNING: neither --ttl nor --max-bytes"),
    ],
)
def test_it_says_at_the_start_what_it_leads_and_forgets(
    named: list[NamespaceId] | None, limits: dict[str, Any], says: str
) -> None:
    told = beginning("s3://b/p", named, replace(SETTINGS, **limits))

    assert says in told
    assert ("WARNING" in told) is (not limits)
