"""What a sweep deletes on real servers, as if hours and days had passed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from s3kv.core.survey import Heap
from s3kv.core.sweep import SweepRules
from s3kv.runtime.clock import Clock
from s3kv.runtime.sweeping import NamespaceReport, Orders, sweep_namespace
from tests.bucket.stores import uploads_by
from tests.fakes.sweep_archive import SweepArchive, aged
from tests.integration.test_cli_store import uploads_under
from tests.integration.test_cli_sweep import (
    DAY_S,
    FULL_BYTES,
    everything,
    keys_in_data,
    shards_of,
    used_and_unused,
    with_archive,
)

pytestmark = pytest.mark.timeout(60)

HOUR_S = 3_600.0


@pytest.fixture(params=["seaweed", "moto"])
def endpoint(request: pytest.FixtureRequest) -> str:
    """Each test server's endpoint URL."""
    url: str = request.getfixturevalue(f"{request.param}_endpoint")
    return url


async def sweep_later(
    archive: SweepArchive, age_s: float, orders: Orders | None = None
) -> NamespaceReport:
    store = aged(archive.store, age_s)
    return await sweep_namespace(
        store, archive.subject, archive.clock, orders or Orders(deed="sweep")
    )


def test_what_is_condemned_is_deleted_and_nothing_else(endpoint: str, fresh_uri: str) -> None:
    async def work(archive: SweepArchive) -> tuple[SweepArchive, list[NamespaceReport]]:
        await used_and_unused(archive)
        await archive.save("lost", age_s=4 * HOUR_S)
        await archive.report_lost("lost", age_s=3 * HOUR_S)
        await archive.store.put(archive.keys("odd")[0], b"odd", timeout_s=5.0)
        first = await sweep_later(archive, 2 * HOUR_S)
        cutoff_s = int(Clock().unix_s() - DAY_S)
        second = await sweep_later(archive, 2 * DAY_S, Orders(deed="sweep", cutoff_s=cutoff_s))
        return archive, [first, second]

    archive, reports = with_archive(endpoint, fresh_uri, work)

    assert all(report.is_whole for report in reports)
    went = [{why: heap.count for why, heap in report.now.items()} for report in reports]
    assert went == [{"lost": 1, "misshapen": 1}, {"expired": 1}]
    assert [report.deleted.count for report in reports] == [2, 1]
    assert [report.adopted for report in reports] == [1, 0]
    left = keys_in_data(everything(endpoint, fresh_uri))
    assert left == shards_of(archive, "used", "orphan")


def test_old_uploads_are_given_up(endpoint: str, fresh_uri: str) -> None:
    async def work(archive: SweepArchive) -> int:
        begin = uploads_by(endpoint, fresh_uri)
        await begin(archive.keys("upload")[0])
        await begin("backup/upload")
        return (await sweep_later(archive, 2 * DAY_S)).upload_count

    assert with_archive(endpoint, fresh_uri, work) == 1
    (left,) = uploads_under(endpoint, fresh_uri)
    assert left.endswith("backup/upload")


def test_what_is_used_is_renewed_and_stays_readable(endpoint: str, fresh_uri: str) -> None:
    async def work(archive: SweepArchive) -> tuple[NamespaceReport, bool]:
        await archive.save("used")
        (key,) = archive.keys("used")
        before = await archive.store.get(key, max_bytes=1 << 20, timeout_s=5.0)
        rules = SweepRules(renew_after_s=9 * DAY_S)
        report = await sweep_later(archive, 9 * DAY_S, Orders(deed="sweep", rules=rules))
        after = await archive.store.get(key, max_bytes=1 << 20, timeout_s=5.0)
        return report, before == after

    report, is_same = with_archive(endpoint, fresh_uri, work)

    assert (report.renewed, report.stays, is_same) == (1, Heap(1, FULL_BYTES), True)


def test_sweeps_at_once_beside_an_engine_that_writes(endpoint: str, fresh_uri: str) -> None:
    old = [f"old {number}" for number in range(12)]
    new = [f"new {number}" for number in range(12)]

    async def engine(archive: SweepArchive) -> None:
        for number in range(12):
            await archive.save(new[number])
            if number % 3 == 0:
                await archive.announce(old[number])

    async def work(archive: SweepArchive) -> tuple[SweepArchive, bool, list[NamespaceReport]]:
        await archive.save(*old, age_s=10 * DAY_S)
        await archive.fold()
        cutoff_s = int(Clock().unix_s() - DAY_S)
        orders = Orders(deed="sweep", cutoff_s=cutoff_s)
        sweeps: list[Awaitable[NamespaceReport]] = [
            sweep_later(archive, 0.0, orders) for _ in range(2)
        ]
        await asyncio.gather(*sweeps, engine(archive))
        reports = await asyncio.gather(*(sweep_later(archive, 2 * DAY_S) for _ in range(2)))
        live = await archive.live() == archive.names(*old[::3], *new)
        return archive, live, list(reports)

    archive, live, reports = with_archive(endpoint, fresh_uri, work)

    assert live
    assert all(report.is_whole for report in reports)
    left = keys_in_data(everything(endpoint, fresh_uri))
    assert left == shards_of(archive, *old[::3], *new)
