"""The sweep as a command: its options, its place in a file, its service, what it says."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.capabilities import PROBE_PREFIX
from s3kv.bucket.connect import BucketSettings, parse_uri
from s3kv.bucket.faults import Fail, Faulty, Hold
from s3kv.bucket.memory import MemoryStore
from s3kv.cli.output import Output
from s3kv.cli.sweep import Passes, repeated
from s3kv.cli.sweep_options import SweepOptions
from s3kv.cli.sweep_view import document_of, line_of, show
from s3kv.cli.sweep_wishes import SweepWishes, wishes_of
from s3kv.core.ids import NamespaceId
from s3kv.core.keys import namespace_key, set_key, tick_key
from s3kv.core.sweep import FOLDERS
from s3kv.errors import ConfigError, Transient
from tests.fakes.careless_store import CarelessStore
from tests.fakes.clock import FakeClock
from tests.fakes.sweep_archive import SweepArchive

DAY_S = 86_400
SETTINGS = BucketSettings(address=parse_uri("s3://bucket/prefix"))
NS = NamespaceId("0" * 32)


def wishes(**given: Any) -> SweepWishes:
    return wishes_of(SweepOptions(**given))


def passes(store: ObjectStore, clock: FakeClock, **given: Any) -> Passes:
    return Passes(store, SETTINGS, wishes(**given), Output("human"), clock)


# ---------------------------------------------------------------------- options
def test_options_become_numbers() -> None:
    made = wishes(ttl="30d", max_bytes="500GiB", quarantine_ttl="12h", yes=True, every="90m")

    assert (made.ttl_s, made.max_bytes) == (30 * DAY_S, 500 << 30)
    assert (made.quarantine_age_s, made.every_s, made.acts) == (43_200, 5_400, True)


@pytest.mark.parametrize(("days", "renew_days"), [(2, 1.0), (10, 9.0), (37, 33.3), (None, None)])
def test_objects_are_renewed_well_before_the_rule(days: int | None, renew_days: float) -> None:
    after_s = wishes(lifecycle_days=days).renew_after_s

    assert after_s == (None if days is None else pytest.approx(renew_days * DAY_S))


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"ttl": "soon"}, "--ttl"),
        ({"ttl": "0d"}, "--ttl"),
        ({"max_bytes": "500GB"}, "--max-bytes"),
        ({"every": "1h"}, "--every"),
        ({"every": "x", "yes": True}, "--every"),
        ({"state": Path("place")}, "--state"),
        ({"lifecycle_days": 1}, "--lifecycle-days"),
        ({"quarantine_ttl": ""}, "--quarantine-ttl"),
    ],
)
def test_a_wrong_option_is_named(given: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        wishes(**given)

    assert caught.value.field == field


# ----------------------------------------------------------------- interruption
async def test_a_killed_sweep_goes_on_where_it_was(tmp_path: Path) -> None:
    clock = FakeClock()
    memory = MemoryStore(unix_s=clock.unix_s)
    archive = SweepArchive(memory, clock)
    await archive.begin()
    names = [f"chunk {i}" for i in range(30)]
    for name in names:
        memory.write(archive.keys(name)[0], b"odd")
    clock.jump(DAY_S)
    faulty, hold, path = Faulty(memory), Hold(), tmp_path / "place"
    faulty.inject(hold, "list", keys="*/data/f0/")
    killed = asyncio.create_task(passes(faulty, clock, yes=True, state=path).once())
    await hold.entered.wait()
    killed.cancel()
    await asyncio.gather(killed, return_exceptions=True)
    left = [name for name in names if archive.keys(name)[0] in memory.objects]
    assert 0 < len(left) < len(names)

    again = Faulty(memory)
    result = await passes(again, clock, yes=True, state=path).once()

    folders = [
        key.split("/")[-2]
        for operation, key in again.calls
        if "/data/" in key and operation == "list"
    ]
    done = result.reports[0].skipped_folder_count
    assert sorted(folders) == list(FOLDERS[done:])
    assert done > 0
    assert not [key for key in memory.objects if "/data/" in key]
    assert result.total("deleted").count == len(left)
    assert not path.exists()


# ---------------------------------------------------------------------- service
async def test_a_service_sweeps_again_until_it_is_stopped() -> None:
    clock, stop, began = FakeClock(), asyncio.Event(), list[float]()

    async def work() -> int:
        began.append(clock.monotonic_s())
        return len(began)

    service = asyncio.create_task(repeated(work, 60.0, clock, stop))
    await clock.advance(130.0)
    stop.set()

    assert await service == 3
    assert [at - began[0] for at in began] == [0.0, 60.0, 120.0]


async def test_a_pass_that_is_under_way_is_stopped_too() -> None:
    clock, stop, entered = FakeClock(), asyncio.Event(), asyncio.Event()

    async def work() -> int:
        entered.set()
        await asyncio.Event().wait()
        return 1

    service = asyncio.create_task(repeated(work, 60.0, clock, stop))
    await entered.wait()
    stop.set()

    assert await service == 0


async def test_bad_input_ends_a_service() -> None:
    async def work() -> int:
        raise ConfigError("--state", "x", "cannot be written", "name another")

    with pytest.raises(ConfigError):
        await repeated(work, 60.0, FakeClock(), asyncio.Event())


async def test_a_failed_pass_is_reported_and_the_next_one_tried(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = FakeClock()
    memory = MemoryStore(unix_s=clock.unix_s)
    await SweepArchive(memory, clock).begin()
    faulty = Faulty(memory)
    faulty.inject(Fail(Transient("no route")), "list_prefixes")
    service = passes(faulty, clock, yes=True, every="1h")

    assert [await service.report_once(), await service.report_once()] == [1, 0]

    failed, good = capsys.readouterr().out.splitlines()
    assert failed.startswith("2027-01-15T08:00:00Z deleted 0 objects")
    assert "no route" in failed
    assert "no route" not in good


async def test_a_service_does_not_end_on_a_namespace_that_is_gone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = FakeClock()
    store = MemoryStore(unix_s=clock.unix_s)
    archive = SweepArchive(store, clock)
    await archive.begin()
    service = passes(store, clock, yes=True, every="1h", namespace=archive.id[:8])

    assert await service.report_once() == 0
    await store.delete(list(store.objects), timeout_s=1)

    assert await service.report_once() == 1
    assert "there is no NAMESPACE.json" in capsys.readouterr().out.splitlines()[1]


async def test_a_service_asks_once_what_the_store_can(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    faulty = Faulty(MemoryStore(unix_s=clock.unix_s))
    await SweepArchive(faulty, clock).begin()
    faulty.inject(Fail(Transient("no route")), "create", keys=f"{PROBE_PREFIX}*")
    service = passes(faulty, clock, yes=True, every="1h")

    codes = [await service.report_once() for _ in range(3)]

    assert codes == [1, 0, 0]
    assert "cannot tell whether the store can carry an index" in capsys.readouterr().out
    probes = [key for what, key in faulty.calls if what == "create" and PROBE_PREFIX in key]
    asked = len(probes)
    assert await service.report_once() == 0
    assert len([k for what, k in faulty.calls if what == "create" and PROBE_PREFIX in k]) == asked


async def test_a_service_prints_one_document_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    clock = FakeClock()
    store = MemoryStore(unix_s=clock.unix_s)
    await SweepArchive(store, clock).begin()
    service = Passes(store, SETTINGS, wishes(yes=True, every="1h"), Output("json"), clock)

    await service.report_once()
    await service.report_once()

    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["exit_code"] for each in documents] == [0, 0]


def test_another_endpoint_is_another_sweep() -> None:
    one, other = (wishes().sameness("s3://bucket/p", f"http://{host}") for host in ("a", "b"))

    assert one != other
    assert one == wishes().sameness("s3://bucket/p", "http://a")


# ------------------------------------------------------- what stands against it
async def old_archive(store: MemoryStore, clock: FakeClock) -> SweepArchive:
    archive = SweepArchive(store, clock)
    await archive.begin()
    await archive.save("old")
    clock.jump(10 * DAY_S)
    return archive


async def test_without_conditional_put_nothing_is_swept() -> None:
    clock = FakeClock()
    store = CarelessStore(unix_s=clock.unix_s)
    archive = await old_archive(store, clock)
    store.write(archive.keys("odd")[0], b"odd")
    clock.jump(2 * 3_600.0)

    with pytest.raises(ConfigError, match=r"If-None-Match is ignored.*every object for an orphan"):
        await passes(store, clock, yes=True, ttl="1d").once()

    assert await archive.live() == archive.names("old")
    assert archive.keys("odd")[0] in store.objects, "nothing is deleted without an index"
    assert not (await passes(store, clock, ttl="1d").once()).total("deleted").count


async def test_a_clock_that_is_off_forgets_nothing() -> None:
    clock = FakeClock()
    store = MemoryStore(unix_s=lambda: clock.unix_s() - 3_600.0)
    archive = await old_archive(store, clock)

    result = await passes(store, clock, yes=True, ttl="1d").once()

    assert "clock is 1.0 h off" in result.limits[0]
    assert await archive.live() == archive.names("old")


async def test_a_namespace_that_cannot_be_understood_is_left_alone_and_the_others_swept() -> None:
    clock = FakeClock()
    store = MemoryStore(unix_s=clock.unix_s)
    lost, other = (SweepArchive(store, clock, label) for label in ("a", "b"))
    for archive in (lost, other):
        await archive.begin()
        store.write(archive.keys("odd")[0], b"odd")
    await store.delete([namespace_key(lost.id)], timeout_s=1)
    clock.jump(DAY_S)

    result = await passes(store, clock, yes=True).once()

    assert result.unknown == {lost.id: "there is no NAMESPACE.json"}
    assert result.exit_code == 1
    assert lost.keys("odd")[0] in store.objects
    assert other.keys("odd")[0] not in store.objects


async def test_one_namespace_may_be_chosen() -> None:
    clock = FakeClock()
    store = MemoryStore(unix_s=clock.unix_s)
    archives = [SweepArchive(store, clock, label) for label in ("a", "b")]
    for archive in archives:
        await archive.begin()

    result = await passes(store, clock, namespace=archives[1].id[:8]).once()

    assert [report.namespace for report in result.reports] == [archives[1].id]
    with pytest.raises(ConfigError, match="no such namespace"):
        await passes(store, clock, namespace="zz").once()


# ------------------------------------------------------------------ what is said
async def said(
    store: MemoryStore, clock: FakeClock, capsys: pytest.CaptureFixture[str], **given: Any
) -> tuple[str, dict[str, Any]]:
    """The words for people, and the document."""
    result = await passes(store, clock, **given).once()
    show(result, Output("human"))
    document: dict[str, Any] = json.loads(json.dumps(document_of(result)))
    return capsys.readouterr().out, document


async def test_a_dry_run_says_what_goes_now_what_later_and_how(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = FakeClock()
    store = MemoryStore(unix_s=clock.unix_s)
    archive = await old_archive(store, clock)
    store.write(archive.keys("odd")[0], b"odd")
    clock.jump(2 * 3_600.0)
    await archive.upload("young")
    await archive.save("used")
    store.write("backup/notes", b"mine")
    store.write(f"{archive.keys('used')[0]}.bak", b"mine")

    text, document = await said(store, clock, capsys, ttl="1d")

    assert "DRY RUN" in text
    assert "Nothing was deleted or written. The same command with --yes does it." in text
    assert "goes now              misshapen" in text
    assert "goes after the grace  expired" in text
    assert "not s3kv's, left alone: backup/" in text
    assert f"not s3kv's, left alone: 1 object: {archive.keys('used')[0]}.bak" in text
    assert "$0.023 per GiB and month" in text
    (row,) = document["namespaces"]
    assert document["dry_run"] is True
    assert row["condemned"]["misshapen"]["objects"] == 1
    assert row["goes_after_grace"]["expired"]["objects"] == 1
    assert (row["waits"]["objects"], row["stays"]["objects"]) == (0, 2)
    assert document["goes_after_grace"]["objects"] == 1
    assert document["deleted"]["objects"] == 0


async def test_a_sweep_says_what_is_gone_and_what_comes_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = FakeClock()
    store = MemoryStore(unix_s=clock.unix_s)
    archive = await old_archive(store, clock)
    await archive.upload("nobody lists it")
    store.write(archive.keys("odd")[0], b"odd")
    clock.jump(2 * 3_600.0)

    text, document = await said(store, clock, capsys, ttl="1d", yes=True)

    assert "Deleted 1 object, 3 B. A sweep in an hour or later deletes 1 object more." in text
    assert "1 chunk adopted: whole, and nobody listed it" in text
    assert document["deleted"] == {"objects": 1, "bytes": 3, "usd_per_month": 0.0}
    assert document["namespaces"][0]["adopted_chunks"] == 1


async def test_an_empty_prefix_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    text, document = await said(MemoryStore(), FakeClock(), capsys)

    assert "no archive under s3://bucket/prefix" in text
    assert document["exit_code"] == 0


async def test_a_line_per_pass_names_what_was_done() -> None:
    clock = FakeClock()
    store = MemoryStore(unix_s=clock.unix_s)
    archive = await old_archive(store, clock)
    await archive.announce("gone")

    result = await passes(store, clock, yes=True, ttl="1d").once()

    line = line_of(result, 1_800_000_000.0)
    assert line.startswith("2027-01-15T08:00:00Z deleted 0 objects 0 B ($0.00 a month); ")
    assert "after the grace 1" in line
    assert "reported lost 1" in line


async def test_what_keeps_everything_comes_with_its_remedy() -> None:
    clock = FakeClock()
    store = MemoryStore(unix_s=clock.unix_s)
    torn, unread = (SweepArchive(store, clock, label) for label in ("a", "b"))
    for archive in (torn, unread):
        await archive.begin()
        for name in ("one", "two"):
            await archive.save(name)
            await archive.fold()
    store.write(set_key(torn.id, "keep"), b"?")
    store.write(tick_key(unread.id, 1), b"?")

    result = await passes(store, clock, yes=True).once()

    told = {line.split()[0]: line for line in result.problems}
    assert told[torn.id[:12]].endswith("; s3kv unpin removes the set, if it cannot be mended")
    assert "; s3kv doctor --rebuild announces what is there" in told[unread.id[:12]]


async def test_files_of_the_index_that_are_renewed_are_counted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = FakeClock()
    store = MemoryStore(unix_s=clock.unix_s)
    archive = SweepArchive(store, clock)
    await archive.begin()
    await archive.save("used")
    clock.jump(28 * DAY_S)
    await archive.announce("used")

    text, document = await said(store, clock, capsys, yes=True, lifecycle_days=30)

    count = document["namespaces"][0]["renewed_files"]
    assert count > 0
    assert f"{count} file of the index and its sets renewed as well" in text
