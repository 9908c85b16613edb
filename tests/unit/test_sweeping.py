"""A pass over a namespace, carried out against a store: what goes, what stays, what is told."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from s3kv.bucket.faults import Fail, Faulty
from s3kv.bucket.memory import MemoryStore
from s3kv.core.keys import data_prefix, quarantine_key, run_key, set_key, tick_key
from s3kv.core.survey import Heap
from s3kv.core.sweep import FOLDERS, SweepRules
from s3kv.errors import Denied, Transient
from s3kv.runtime.sweeping import (
    Orders,
    choose_cutoff,
    sweep_namespace,
)
from tests.fakes.clock import FakeClock
from tests.fakes.small_archive import GEOMETRY
from tests.fakes.sweep_archive import Place, SweepArchive, hash_of

HOUR_S = 3_600.0
DAY_S = 24 * HOUR_S
FULL_BYTES = GEOMETRY.header_bytes + 4 * GEOMETRY.block_bytes
SWEEP = Orders(deed="sweep")


@pytest.fixture
async def place() -> Place:
    made = Place()
    await made.archive.begin()
    return made


def counts(heaps: dict[str, Heap]) -> dict[str, int]:
    return {why: heap.count for why, heap in heaps.items()}


# ------------------------------------------------------------------- forgetting
async def test_a_look_tells_what_would_go_later_and_changes_nothing(place: Place) -> None:
    await place.archive.save("old", blocks=2)
    place.clock.jump(10 * DAY_S)
    await place.archive.save("new")
    place.clock.jump(2 * HOUR_S)
    before = place.memory.objects

    report = await place.sweep(Orders(cutoff_s=await place.cutoff(ttl_s=DAY_S)))

    old_bytes = GEOMETRY.header_bytes + 2 * GEOMETRY.block_bytes
    assert (report.now, report.later) == ({}, {"expired": Heap(1, old_bytes)})
    assert (report.stays, report.young) == (Heap(1, FULL_BYTES), Heap())
    assert place.memory.objects == before


async def test_a_sweep_forgets_at_once_and_deletes_when_the_grace_is_over(place: Place) -> None:
    await place.archive.save("old")
    place.clock.jump(10 * DAY_S)
    await place.archive.save("new")
    orders = Orders(deed="sweep", cutoff_s=await place.cutoff(ttl_s=DAY_S))

    first = await place.sweep(orders)

    assert (first.deleted.count, counts(first.later)) == (0, {"expired": 1})
    assert await place.archive.live() == place.archive.names("new")
    assert place.there("old", "new") == ["old", "new"]

    place.clock.jump(HOUR_S + 10)
    second = await place.sweep()

    assert (counts(second.now), second.deleted) == ({"expired": 1}, Heap(1, FULL_BYTES))
    assert (second.later, second.young, second.stays.count) == ({}, Heap(), 1)
    assert place.there("old", "new") == ["new"]
    assert second.is_whole


async def test_without_a_cutoff_only_what_is_condemned_already_goes(place: Place) -> None:
    await place.archive.save("old")
    place.clock.jump(100 * DAY_S)

    report = await place.sweep()

    assert (report.deleted.count, report.stays.count) == (0, 1)
    assert await place.archive.live() == place.archive.names("old")


async def test_a_size_limit_forgets_the_least_recently_used_of_all_namespaces() -> None:
    clock = FakeClock()
    store = MemoryStore(unix_s=clock.unix_s)
    archives = [SweepArchive(store, clock, label) for label in ("a", "b")]
    for number in range(4):
        archive = archives[number % 2]
        await archive.begin()
        await archive.save(f"chunk {number}")
        clock.jump(DAY_S)
    block_bytes = archives[0].subject.bytes_per_block
    subjects = [archive.subject for archive in archives]

    cutoff_s = await choose_cutoff(store, subjects, clock, None, 3 * 4 * block_bytes)
    for archive in archives:
        await sweep_namespace(
            store, archive.subject, clock, Orders(deed="sweep", cutoff_s=cutoff_s)
        )

    assert await archives[0].live() == archives[0].names("chunk 2")
    assert await archives[1].live() == archives[1].names("chunk 1", "chunk 3")


async def test_what_cannot_be_forgotten_takes_its_room_of_a_size_limit() -> None:
    clock = FakeClock()
    store = MemoryStore(unix_s=clock.unix_s)
    archives = [SweepArchive(store, clock, label) for label in ("a", "b")]
    for archive in archives:
        await archive.begin()
        await archive.save("one")
        clock.jump(DAY_S)
    store.write(set_key(archives[0].id, "torn"), b"?")
    subjects = [archive.subject for archive in archives]

    one_chunk = 4 * subjects[0].bytes_per_block
    cutoff_s = await choose_cutoff(store, subjects, clock, None, one_chunk)

    assert cutoff_s == int(clock.unix_s() - DAY_S) + 1, "the other namespace's chunk has to go"


async def test_pinned_chunks_stay_whatever_the_limit(place: Place) -> None:
    await place.archive.save("pinned", "other")
    await place.archive.pin("demo", "pinned")
    place.clock.jump(10 * DAY_S)

    for _ in range(2):
        cutoff_s = await place.cutoff(max_bytes=1)
        await place.sweep(Orders(deed="sweep", cutoff_s=cutoff_s))
        place.clock.jump(HOUR_S + 10)

    assert place.there("pinned", "other") == ["pinned"]
    assert await place.archive.live() == place.archive.names("pinned")


async def test_many_pinned_chunks_are_called_used_before_the_watermark_rises(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    pinned = [f"pinned {i}" for i in range(5)]
    await place.archive.save("other", *pinned)
    await place.archive.fold()
    await place.archive.pin("demo", *pinned)
    place.clock.jump(10 * DAY_S)
    monkeypatch.setattr("s3kv.core.sequencer.RECORDS_MAX", 2)

    await place.sweep(Orders(deed="sweep", cutoff_s=await place.cutoff(ttl_s=DAY_S)))

    assert await place.archive.live() == place.archive.names(*pinned)


async def test_a_use_from_a_fast_clock_forgets_no_other(place: Place) -> None:
    await place.archive.save("fast", age_s=-DAY_S)

    assert await place.cutoff(max_bytes=1) == int(place.clock.unix_s())


# ------------------------------------------------------- orphans and leftovers
async def test_what_nobody_lists_is_adopted_or_goes(place: Place) -> None:
    two = Place(writers=2)
    await two.archive.begin()
    await two.archive.upload("whole")
    await two.archive.upload("half", writers=[0])
    two.memory.write(two.archive.keys("odd")[0], b"x")
    two.memory.write(two.archive.keys("odd")[1], b"x")

    report = await two.sweep()
    assert (report.deleted.count, report.young.count) == (0, 3)

    two.clock.jump(2 * HOUR_S)
    assert (await two.sweep(Orders())).adopted == 1
    assert (await two.sweep(Orders(cutoff_s=int(two.clock.unix_s())))).adopted == 0, "forgotten"
    report = await two.sweep()

    assert counts(report.now) == {"incomplete": 1, "misshapen": 2}
    assert (report.deleted.count, report.adopted) == (3, 1)
    assert await two.archive.live() == two.archive.names("whole")


async def test_chunks_that_are_listed_and_gone_are_reported(place: Place) -> None:
    await place.archive.announce("gone")

    assert (await place.sweep(Orders())).reported_lost == 1
    assert await place.archive.live() == place.archive.names("gone")
    assert (await place.sweep()).reported_lost == 1
    assert await place.archive.live() == set()


async def test_old_uploads_and_quarantined_shards_go_and_foreign_ones_stay(place: Place) -> None:
    ns = place.archive.id
    ours, foreign = place.archive.keys("chunk")[0], f"{ns}/data/notes.txt"
    kept = quarantine_key(ns, hash_of("kept"), 0, 1)
    place.memory.begin_upload(ours)
    place.memory.begin_upload(run_key(ns, 1, 2))
    place.memory.begin_upload(foreign)
    gone = quarantine_key(ns, hash_of("gone"), 0, 1)
    place.memory.write(gone, b"bad")
    place.memory.write(f"{ns}/quarantine/notes.txt", b"mine")
    place.clock.jump(40 * DAY_S)
    place.memory.begin_upload(place.archive.keys("now")[0])
    place.memory.write(kept, b"bad")

    looked = await place.sweep(Orders())
    assert (looked.upload_count, counts(looked.now)) == (2, {"quarantine": 1})
    assert gone in place.memory.objects
    report = await place.sweep()

    assert (report.upload_count, report.deleted) == (2, Heap(1, 3))
    left = [each.key for each in await place.memory.list_uploads("", timeout_s=1)]
    assert sorted(left) == sorted([foreign, place.archive.keys("now")[0]])
    assert kept in place.memory.objects
    assert f"{ns}/quarantine/notes.txt" in place.memory.objects


async def test_everything_in_quarantine_counts_whatever_the_pages() -> None:
    clock = FakeClock()
    memory = MemoryStore(unix_s=clock.unix_s, page_keys=2)
    archive = SweepArchive(memory, clock)
    await archive.begin()
    for at in range(5):
        memory.write(quarantine_key(archive.id, hash_of(f"bad {at}"), 0, 1), b"bad")
    clock.jump(40 * DAY_S)

    report = await sweep_namespace(memory, archive.subject, clock, Orders(deed="sweep"))

    assert counts(report.now) == {"quarantine": 5}
    assert report.deleted == Heap(5, 15)
    assert not [key for key in memory.objects if "/quarantine/" in key]


async def test_foreign_objects_are_counted_named_and_left_alone(place: Place) -> None:
    ns, name = place.archive.id, place.archive.keys("chunk")[0]
    names = [f"{name}.bak", f"{ns}/data/zz/x", f"{ns}/backup/x", f"{data_prefix(ns)}00/readme"]
    for each in names:
        place.memory.write(each, b"mine")
    place.clock.jump(100 * DAY_S)

    report = await place.sweep()

    assert report.foreign_count == 2
    assert set(report.foreign_names) == {names[0], f"{ns}/data/zz/", f"{ns}/backup/", names[3]}
    assert set(names) <= set(place.memory.objects)
    assert report.deleted == Heap()


async def test_what_is_used_is_renewed_before_a_lifecycle_rule_takes_it(place: Place) -> None:
    await place.archive.save("used", "forgotten")
    place.clock.jump(27 * DAY_S)
    await place.archive.announce("used")
    rules = SweepRules(renew_after_s=27 * DAY_S)
    cutoff_s = await place.cutoff(ttl_s=DAY_S)

    looked = await place.sweep(Orders(rules=rules, cutoff_s=cutoff_s))
    report = await place.sweep(Orders(deed="sweep", rules=rules, cutoff_s=cutoff_s))

    assert (looked.renewed, report.renewed) == (1, 1)
    found = await place.memory.stat(place.archive.keys("used")[0], timeout_s=1)
    assert getattr(found, "age_s", None) == 0.0


# ------------------------------------------------------------ what stands against
async def test_a_set_that_cannot_be_read_keeps_everything(place: Place) -> None:
    await place.archive.save("old")
    place.clock.jump(10 * DAY_S)
    place.memory.write(set_key(place.archive.id, "torn"), b"?")
    before = place.memory.objects

    report = await place.sweep(Orders(deed="sweep", cutoff_s=await place.cutoff(ttl_s=DAY_S)))

    assert "torn" in report.problem
    assert not report.has_failed
    assert not report.is_whole
    shards = {key for key in place.memory.objects if "/data/" in key}
    assert shards == {key for key in before if "/data/" in key}
    assert await place.archive.live() == place.archive.names("old"), "the watermark stayed"


async def test_an_index_that_cannot_be_read_whole_keeps_everything(place: Place) -> None:
    for name in ("torn", "old"):
        await place.archive.save(name)
        await place.archive.fold()
    place.memory.write(tick_key(place.archive.id, 1), b"?")
    place.clock.jump(10 * DAY_S)
    before = place.memory.objects

    report = await place.sweep(Orders(deed="sweep", cutoff_s=await place.cutoff(ttl_s=DAY_S)))

    assert "index cannot be read" in report.problem
    assert place.memory.objects == before


async def test_a_failure_half_way_is_told_and_what_was_done_counts(place: Place) -> None:
    chunks = [f"chunk {i}" for i in range(30)]
    for name in chunks:
        await place.archive.upload(name)
        place.memory.write(place.archive.keys(name)[0], b"odd")
    place.clock.jump(DAY_S)
    faulty = Faulty(place.memory)
    faulty.inject(Fail(Transient("no route")), "list", keys="*/data/f0/", times=None)
    done: list[str] = []

    report = await place.sweep(store=faulty, on_folders=done.extend)

    assert report.has_failed
    assert "1 requests without an answer" in report.problem
    before = [name for name in chunks if hash_of(name).hex() < "f0"]
    assert report.deleted.count == len(before) < len(chunks)
    assert done == list(FOLDERS[:0xF0])
    assert report.folder_count == 0xF0


async def test_a_store_that_lists_no_uploads_is_swept_for_the_rest(place: Place) -> None:
    place.memory.write(place.archive.keys("odd")[0], b"odd")
    place.clock.jump(DAY_S)
    faulty = Faulty(place.memory)
    faulty.inject(Fail(Denied("AccessDenied")), "list_uploads")

    report = await place.sweep(store=faulty)

    assert (report.deleted.count, report.problem) == (1, "")
    assert report.remarks == ["unfinished uploads cannot be listed: AccessDenied"]
    assert report.is_whole, "a lifecycle rule must do: it is no failure that can be mended here"


async def test_a_stopped_walk_goes_on_with_the_folders_that_are_left(place: Place) -> None:
    chunks = [f"chunk {i}" for i in range(30)]
    for name in chunks:
        place.memory.write(place.archive.keys(name)[0], b"odd")
    place.clock.jump(DAY_S)
    done = [folder for folder in FOLDERS if folder < "80"]

    report = await place.sweep(done=done)

    left = place.there(*chunks)
    assert left == [name for name in chunks if hash_of(name).hex() < "80"]
    assert (report.folder_count, report.skipped_folder_count) == (128, 128)


async def test_batches_shrink_where_folders_are_full(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("s3kv.runtime.sweeping.BATCH_OBJECTS", 8)
    for number in range(1_000):
        place.memory.write(place.archive.keys(f"chunk {number}")[0], b"odd")
    place.clock.jump(DAY_S)
    batches: list[int] = []

    report = await place.sweep(on_folders=lambda folders: batches.append(len(folders)))

    assert report.deleted.count == 1_000
    assert sum(batches) == len(FOLDERS)
    assert max(batches) <= 8


# ------------------------------------------------------------------ side by side
async def test_two_sweeps_and_an_engine_at_once_do_each_other_no_harm(place: Place) -> None:
    chunks = [f"chunk {i}" for i in range(40)]
    await place.archive.save(*chunks)
    place.clock.jump(10 * DAY_S)
    used, fresh = chunks[:10], [f"fresh {i}" for i in range(10)]
    orders = Orders(deed="sweep", cutoff_s=await place.cutoff(ttl_s=DAY_S))

    async def engine() -> None:
        for name, new in zip(used, fresh, strict=True):
            await place.archive.announce(name)
            await place.archive.save(new)

    for _ in range(2):
        reports = await asyncio.gather(place.sweep(orders), place.sweep(orders), engine())
        place.clock.jump(HOUR_S + 10)
        orders = replace(orders, cutoff_s=await place.cutoff(ttl_s=DAY_S))

    assert all(report.is_whole for report in reports[:2])
    assert place.there(*chunks, *fresh) == [*used, *fresh]
    assert await place.archive.live() == place.archive.names(*used, *fresh)
