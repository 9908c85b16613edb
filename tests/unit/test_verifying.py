"""What a verification says of a namespace: shards, chunks that lack some, samples."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3kv.bucket.faults import Faulty, Hold
from s3kv.core.keys import shard_key
from s3kv.core.verified import Fate, Progress, Tally
from s3kv.core.verifying import Choice, Wrong
from s3kv.runtime.inspecting import Depth, Good, Inspector
from s3kv.runtime.verifying import Verifier, VerifySettings
from tests.fakes.small_archive import GEOMETRY
from tests.fakes.verify_archive import (
    HOUR_S,
    VerifyArchive,
    chunk_hashes,
    flipped,
    make_archive,
    shard_of,
)

SHARD_BYTES = GEOMETRY.slot_bytes
DEPTHS: tuple[Depth, Depth] = ("headers", "bodies")


@pytest.fixture(scope="module")
def thirty() -> VerifyArchive:
    """An archive that no test changes."""
    return asyncio.run(make_archive(30))


class TestWalk:
    @pytest.mark.parametrize("depth", DEPTHS)
    async def test_a_good_archive_is_good(self, depth: Depth) -> None:
        archive = await make_archive(5, writer_count=2)

        tally = await archive.verified(depth=depth)

        expected = Tally(shards=10, shard_bytes=10 * SHARD_BYTES, good=10)
        assert tally == expected
        assert tally.is_all_good

    async def test_every_bad_shard_is_named_with_its_reason(self) -> None:
        archive = await make_archive(6)
        keys, objects = archive.shard_keys, archive.store.objects
        harms = {
            keys[0]: (Wrong.HEADER, flipped(objects[keys[0]], 100)),
            keys[1]: (Wrong.CHECKSUM, flipped(objects[keys[1]], SHARD_BYTES - 1)),
            keys[2]: (Wrong.SIZE, objects[keys[2]][:-1]),
            keys[3]: (Wrong.NAME, objects[keys[4]]),
        }
        for key, (_, body) in harms.items():
            archive.harm(key, body)

        tally = await archive.verified(depth="bodies")

        assert {found.key: found.wrong for found in tally.findings} == {
            key: reason for key, (reason, _) in harms.items()
        }
        assert {found.fate for found in tally.findings} == {Fate.REPORTED}
        assert (tally.good, tally.bad_count, tally.checked) == (2, 4, 6)
        assert tally.bad == {reason: 1 for reason, _ in harms.values()}
        assert not tally.is_all_good

    async def test_a_walk_that_only_reports_changes_nothing(self) -> None:
        archive = await make_archive(3)
        archive.harm(archive.shard_keys[0], b"no shard")
        archive.harm(archive.shard_keys[1], None)
        before = archive.store.objects

        tally = await archive.verified(depth="bodies")

        assert (tally.bad_count, tally.gone_chunks) == (1, 1)
        assert archive.store.objects == before

    async def test_shards_of_one_chunk_with_different_lengths_are_all_wrong(self) -> None:
        archive = await make_archive(2, writer_count=2)
        hashes = chunk_hashes(0, block_count=2)
        archive.harm(archive.keys[0][1], shard_of(archive.ns, hashes, 1, 2))

        tally = await archive.verified()

        assert sorted(found.key for found in tally.findings) == sorted(archive.keys[0])
        assert tally.bad == {Wrong.SIZE: 2}
        assert "2 and 4 blocks" in tally.findings[0].says

    async def test_foreign_objects_are_counted_and_named_and_nothing_else(self) -> None:
        archive = await make_archive(1)
        folder = archive.shard_keys[0].rpartition("/")[0]
        for key in (f"{folder}/notes.txt", f"{archive.shard_keys[0]}.bak"):
            archive.harm(key, b"mine")

        tally = await archive.verified()

        assert (tally.foreign, tally.shards) == (2, 1)
        assert f"{folder}/notes.txt" in tally.foreign_names
        assert tally.is_all_good

    @pytest.mark.parametrize("page_keys", [1, 2, 1000])
    async def test_it_does_not_matter_how_a_listing_is_cut(self, page_keys: int) -> None:
        archive = await make_archive(4, writer_count=3)
        archive.store._page_keys = page_keys

        assert (await archive.verified()).good == 12

    async def test_no_more_chunks_are_looked_at_at_once_than_allowed(self) -> None:
        archive = await make_archive(40)
        faulty = Faulty(archive.store)
        hold = Hold()
        faulty.inject(hold, "get_into", times=None)
        tool = await archive.opened(faulty)
        settings = VerifySettings(chunk_count=5, folder_count=8)

        walk = asyncio.create_task(Verifier(tool, archive.shape, settings).walk(Progress()))
        await hold.entered.wait()
        await archive.clock.settle()
        begun = [operation for operation, _ in faulty.calls if operation == "get_into"]
        hold.released.set()
        await walk

        assert len(begun) == 5

    async def test_no_more_bodies_are_read_at_once_than_allowed(self) -> None:
        archive = await make_archive(20)
        faulty, hold = Faulty(archive.store), Hold()
        tool = await archive.opened(faulty)
        inspector = Inspector(tool, archive.shape, "bodies", 3)
        parts = [archive.part(key) for key in archive.shard_keys]
        faulty.inject(hold, "get_into", times=None, skip=len(parts))  # behind all headers

        looks = [asyncio.create_task(inspector.look(part)) for part in parts]
        await hold.entered.wait()
        await archive.clock.settle()
        begun = [operation for operation, _ in faulty.calls if operation == "get_into"]
        hold.released.set()
        verdicts = await asyncio.gather(*looks)

        assert len(begun) == len(parts) + 3
        assert all(isinstance(verdict, Good) for verdict in verdicts)


class TestIncomplete:
    async def test_a_chunk_that_lacks_a_rank_is_told_and_its_shard_is_no_bad_one(self) -> None:
        archive = await make_archive(2, writer_count=2)
        archive.harm(archive.keys[0][0], None)

        tally = await archive.verified()

        assert (tally.incomplete_chunks, tally.waiting_chunks, tally.bad_count) == (1, 0, 0)
        assert tally.incomplete_names == [f"{archive.names[0].hex()} lacks writer 0"]
        assert tally.gone_chunks == 1  # the index says that it is there
        assert not tally.is_all_good

    @pytest.mark.parametrize(("age_s", "is_waiting"), [(0.9 * HOUR_S, True), (HOUR_S, False)])
    async def test_one_that_is_still_being_written_is_nothing_wrong(
        self, age_s: float, is_waiting: bool
    ) -> None:
        archive = await make_archive(1, writer_count=2)
        hashes = chunk_hashes(7)
        key = shard_key(archive.ns, hashes[-1], 1, 2)
        archive.harm(key, shard_of(archive.ns, hashes, 1, 2))
        archive.clock.jump(age_s)

        tally = await archive.verified()

        assert (tally.waiting_chunks, tally.incomplete_chunks) == (is_waiting, not is_waiting)
        assert tally.is_all_good is is_waiting
        assert tally.good == 3

    async def test_a_bad_shard_of_an_incomplete_chunk_is_bad(self) -> None:
        archive = await make_archive(1, writer_count=2)
        archive.harm(archive.keys[0][0], None)
        archive.harm(archive.keys[0][1], flipped(archive.store.objects[archive.keys[0][1]], 50))

        assert (await archive.verified()).bad == {Wrong.HEADER: 1}


class TestSample:
    def chosen(self, archive: VerifyArchive, count: int, seed: int, step: int = 1) -> set[str]:
        choice = Choice(count, seed)
        choice.show([archive.part(key) for key in archive.shard_keys[::step]])
        return {part.found.key for part in choice.chosen}

    @given(count=st.integers(1, 40), seed=st.integers(0, 2**64 - 1))
    def test_so_many_different_ones_are_chosen_and_always_the_same(
        self, thirty: VerifyArchive, count: int, seed: int
    ) -> None:
        chosen = self.chosen(thirty, count, seed)

        assert len(chosen) == min(count, len(thirty.shard_keys))
        assert chosen == self.chosen(thirty, count, seed, step=-1)

    def test_each_shard_is_chosen_about_as_often(self, thirty: VerifyArchive) -> None:
        counts = dict.fromkeys(thirty.shard_keys, 0)
        for seed in range(2_000):
            for key in self.chosen(thirty, 6, seed):
                counts[key] += 1

        # 2000 x 6 / 30 = 400 expected, standard deviation 18.
        assert all(310 < count < 490 for count in counts.values())

    async def test_only_chosen_shards_are_read_and_all_are_listed(self) -> None:
        archive = await make_archive(20)
        faulty = Faulty(archive.store)

        tally = await archive.verified(faulty, choice=Choice(7, 1), depth="bodies")

        read = {key for operation, key in faulty.calls if operation == "get_into"}
        assert len(read) == 7
        assert (tally.shards, tally.checked, tally.good) == (20, 7, 7)

    async def test_a_bad_one_among_the_chosen_is_found(self) -> None:
        archive = await make_archive(10)
        for key in archive.shard_keys:
            archive.harm(key, flipped(archive.store.objects[key], 9))

        tally = await archive.verified(choice=Choice(4, 2))

        assert (tally.bad_count, tally.good) == (4, 0)

    async def test_a_sample_tells_what_the_listing_tells(self) -> None:
        archive = await make_archive(3, writer_count=2)
        archive.harm(archive.keys[0][0], None)

        tally = await archive.verified(choice=Choice(1, 3))

        assert (tally.incomplete_chunks, tally.gone_chunks, tally.checked) == (1, 1, 1)
