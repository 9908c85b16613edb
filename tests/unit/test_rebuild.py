"""The index, made again from what lies in the bucket."""

from __future__ import annotations

import pytest

from s3kv.bucket.faults import Fail, Faulty
from s3kv.core.keys import tick_key
from s3kv.errors import Denied
from s3kv.runtime.sweeping import Orders
from tests.fakes.sweep_archive import Place

DAY_S = 86_400.0


@pytest.fixture
async def place() -> Place:
    made = Place()
    await made.archive.begin()
    return made


async def test_a_rebuild_makes_the_index_again_from_a_listing(place: Place) -> None:
    await place.archive.save("old")
    place.clock.jump(DAY_S)
    await place.archive.save("young")
    await place.archive.fold()
    index = [key for key in place.memory.objects if "/idx/" in key]
    await place.memory.delete(index, timeout_s=1)
    before = {key for key in place.memory.objects if "/data/" in key}

    report = await place.sweep(Orders(deed="rebuild"))

    assert (report.adopted, report.is_whole) == (2, True)
    assert await place.archive.live() == place.archive.names("old", "young")
    assert {key for key in place.memory.objects if "/data/" in key} == before


async def test_a_rebuild_heals_what_a_damaged_file_listed(place: Place) -> None:
    await place.archive.save("known")
    await place.archive.fold()
    await place.archive.save("torn")
    await place.archive.announce("gone")
    await place.archive.fold()
    place.memory.write(tick_key(place.archive.id, 1), b"?")
    assert await place.archive.live() == place.archive.names("torn", "gone")

    report = await place.sweep(Orders(deed="rebuild"))

    assert (report.adopted, report.reported_lost, report.index_incomplete) == (1, 1, True)
    assert await place.archive.live() == place.archive.names("known", "torn")


async def test_a_rebuild_leaves_alone_what_is_not_whole_or_partly_old(place: Place) -> None:
    two = Place(writers=2)
    await two.archive.begin()
    await two.archive.upload("half", writers=[0])
    await two.archive.upload("mixed", writers=[0])
    two.clock.jump(DAY_S)
    await two.archive.upload("mixed", writers=[1])
    before = two.memory.objects

    report = await two.sweep(Orders(deed="rebuild"))

    assert (report.adopted, two.memory.objects) == (0, before)


async def test_a_rebuild_has_nothing_to_do_with_uploads(place: Place) -> None:
    faulty = Faulty(place.memory)
    faulty.inject(Fail(Denied("AccessDenied")), "list_uploads")

    assert (await place.sweep(Orders(deed="rebuild"), store=faulty)).is_whole
