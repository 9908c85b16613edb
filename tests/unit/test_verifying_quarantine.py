"""What becomes of what is wrong: out of service, then set aside; nothing else is touched."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from s3kv.bucket.faults import Fail, Faulty, Hold
from s3kv.core.ids import fingerprints
from s3kv.core.keys import inbox_prefix, quarantine_key, shard_key
from s3kv.core.records import DEAD, RecordSet, make_records
from s3kv.core.snapshot import Snapshot
from s3kv.core.verified import Fate
from s3kv.core.verifying import Choice, Wrong, unchanged
from s3kv.errors import Corrupt, Denied, S3KVError, Transient
from s3kv.runtime import verifying
from tests.fakes.verify_archive import (
    CHUNK_BLOCKS,
    HOUR_S,
    VerifyArchive,
    chunk_hashes,
    flipped,
    make_archive,
    shard_of,
)


def damage(archive: VerifyArchive, *indices: int) -> dict[str, bytes]:
    """Flip a byte in the header of the shards with these indices. Returns what lies there now."""
    harmed = {}
    for index in indices:
        key = archive.shard_keys[index]
        harmed[key] = flipped(archive.store.objects[key], 77)
        archive.harm(key, harmed[key])
    return harmed


def set_aside(archive: VerifyArchive, key: str) -> str:
    """Where a shard goes."""
    name = archive.part(key).name
    return quarantine_key(name.namespace, name.chunk_hash, name.writer_index, name.writer_count)


async def live(archive: VerifyArchive) -> list[bool]:
    """Which chunks an engine that opens the index is offered."""
    snapshot = (await archive.opened()).snapshot
    return [bool(there) for there in snapshot.present(fingerprints(archive.names))]


class TestSettingAside:
    async def test_a_bad_shard_is_reported_dead_copied_byte_for_byte_and_deleted(self) -> None:
        archive = await make_archive(4)
        places = {key: set_aside(archive, key) for key in archive.shard_keys}
        harmed = damage(archive, 1, 3)
        before = dict(archive.store.objects)

        tally = await archive.verified(bad="quarantine")

        assert {found.key: found.fate for found in tally.findings} == dict.fromkeys(
            harmed, Fate.QUARANTINED
        )
        assert tally.reported_chunks == 2
        after = {
            k: v for k, v in archive.store.objects.items() if inbox_prefix(archive.ns) not in k
        }
        moved = {places[key]: body for key, body in harmed.items()}
        assert after == {k: v for k, v in before.items() if k not in harmed} | moved
        assert await live(archive) == [True, False, True, False]

    async def test_the_next_walk_finds_nothing_wrong(self) -> None:
        archive = await make_archive(3)
        damage(archive, 0)
        await archive.verified(bad="quarantine")

        tally = await archive.verified()

        assert tally.is_all_good
        assert tally.good == 2

    async def test_what_is_deleted_is_known_dead_before(self) -> None:
        archive = await make_archive(2)
        damage(archive, 0)
        faulty = Faulty(archive.store)

        await archive.verified(faulty, bad="quarantine")

        steps = [
            operation
            for operation, key in faulty.calls
            if operation in ("put", "copy", "delete_listed") and "NAMESPACE" not in key
        ]
        assert steps == ["put", "copy", "delete_listed"]

    async def test_nothing_is_moved_if_the_index_cannot_be_told(self) -> None:
        archive = await make_archive(2)
        damage(archive, 0)
        before = archive.store.objects
        faulty = Faulty(archive.store)
        faulty.inject(Fail(Transient("no")), "put", times=None)

        with pytest.raises(Transient):
            await archive.verified(faulty, bad="quarantine")

        assert archive.store.objects == before

    @pytest.mark.parametrize(
        ("operation", "error"),
        [
            ("copy", Transient("no")),
            ("copy", Corrupt("larger than one copy takes")),
            ("delete_listed", Transient("no")),
        ],
    )
    async def test_one_that_cannot_be_moved_stays_and_is_told(
        self, operation: str, error: S3KVError
    ) -> None:
        archive = await make_archive(3)
        harmed = damage(archive, 0, 1)
        stuck = archive.shard_keys[0]
        faulty = Faulty(archive.store)
        faulty.inject(Fail(error), operation, keys=f"*{stuck}*", times=None)  # type: ignore[arg-type]

        tally = await archive.verified(faulty, bad="quarantine")

        assert archive.store.objects[stuck] == harmed[stuck]
        assert tally.fates == {Fate.LEFT: 1, Fate.QUARANTINED: 1}

    async def test_a_store_that_refuses_to_delete_ends_the_walk(self) -> None:
        archive = await make_archive(2)
        damage(archive, 0)
        faulty = Faulty(archive.store)
        faulty.inject(Fail(Denied("s3:DeleteObject")), "delete_listed", times=None)

        with pytest.raises(Denied):
            await archive.verified(faulty, bad="quarantine")

    async def test_a_chunk_is_reported_once_however_many_of_its_shards_are_bad(self) -> None:
        archive = await make_archive(1, writer_count=3)
        damage(archive, 0, 1, 2)

        tally = await archive.verified(bad="quarantine")

        assert (tally.reported_chunks, tally.fates) == (1, {Fate.QUARANTINED: 3})

    async def test_the_good_shards_of_a_bad_chunk_stay(self) -> None:
        archive = await make_archive(1, writer_count=2)
        damage(archive, 0)

        await archive.verified(bad="quarantine")

        assert archive.shard_keys[1] in archive.store.objects
        assert await live(archive) == [False]

    async def test_a_name_with_other_writers_takes_its_chunk_not_out_of_service(self) -> None:
        archive = await make_archive(1)
        stray = shard_key(archive.ns, archive.names[0], 1, 2)
        archive.harm(stray, b"whatever")

        tally = await archive.verified(bad="quarantine")

        assert tally.bad == {Wrong.NAME: 1}
        assert stray not in archive.store.objects
        assert await live(archive) == [True]

    async def test_foreign_objects_and_good_shards_are_never_written_or_deleted(self) -> None:
        archive = await make_archive(3)
        folder = archive.shard_keys[0].rpartition("/")[0]
        archive.harm(f"{folder}/notes.txt", b"mine")
        damage(archive, 0)
        faulty = Faulty(archive.store)

        await archive.verified(faulty, bad="quarantine", depth="bodies")

        changed = {
            key
            for operation, key in faulty.calls
            if operation in ("put", "create", "copy", "delete", "delete_listed")
            and not key.startswith(inbox_prefix(archive.ns))
        }
        assert changed == {archive.shard_keys[0]}

    async def test_bad_ones_of_a_sample_are_set_aside(self) -> None:
        archive = await make_archive(6)
        damage(archive, *range(6))

        tally = await archive.verified(bad="quarantine", choice=Choice(2, 5))

        assert tally.fates == {Fate.QUARANTINED: 2}
        assert sum(await live(archive)) == 4

    async def test_many_bad_ones_are_set_aside_before_the_folder_ends(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(verifying, "SET_ASIDE_MAX", 3)
        archive = await make_archive(1, writer_count=12)
        archive.store._page_keys = 2
        archive.harm(archive.shard_keys[0], None)  # looked at only when the folder is listed
        strays = [shard_key(archive.ns, archive.names[0], i, 20) for i in range(20)]
        for key in strays:
            archive.harm(key, b"no shard")
        faulty = Faulty(archive.store)

        tally = await archive.verified(faulty, bad="quarantine")

        moves = [i for i, (what, _) in enumerate(faulty.calls) if what == "delete_listed"]
        lists = [
            i for i, (what, key) in enumerate(faulty.calls) if what == "list" and "/data/" in key
        ]
        in_folder = [i for i in lists if faulty.calls[i][1] in strays[0]]
        assert tally.fates == {Fate.QUARANTINED: 20}
        assert moves[0] < in_folder[-1]


class TestReplaced:
    @pytest.mark.parametrize("operation", ["stat", "copy", "delete_listed"])
    async def test_a_shard_that_is_uploaded_anew_meanwhile_stays(self, operation: str) -> None:
        archive = await make_archive(2)
        damage(archive, 0)
        key = archive.shard_keys[0]
        faulty, hold = Faulty(archive.store), Hold()
        faulty.inject(hold, operation, keys=f"*{key}*")  # type: ignore[arg-type]

        walk = asyncio.create_task(archive.verified(faulty, bad="quarantine"))
        await hold.entered.wait()
        fresh = shard_of(archive.ns, chunk_hashes(0))
        archive.harm(key, fresh)
        hold.released.set()
        tally = await walk

        assert archive.store.objects[key] == fresh
        assert [found.fate for found in tally.findings] == [Fate.REPLACED]
        assert (await archive.verified()).bad_count == 0

    async def test_one_that_was_replaced_before_anything_was_said_stays_in_service(self) -> None:
        archive = await make_archive(2)
        damage(archive, 0)
        key = archive.shard_keys[0]
        faulty, hold = Faulty(archive.store), Hold()
        faulty.inject(hold, "stat", keys=key)

        walk = asyncio.create_task(archive.verified(faulty, bad="quarantine"))
        await hold.entered.wait()
        archive.harm(key, shard_of(archive.ns, chunk_hashes(0)))
        hold.released.set()
        tally = await walk

        assert tally.reported_chunks == 0
        assert await live(archive) == [True, True]

    async def test_a_decision_is_not_acted_on_half_an_hour_later(self) -> None:
        archive = await make_archive(1)
        damage(archive, 0)
        key = archive.shard_keys[0]
        faulty, hold = Faulty(archive.store), Hold()
        faulty.inject(hold, "copy")

        walk = asyncio.create_task(archive.verified(faulty, bad="quarantine"))
        await hold.entered.wait()
        archive.clock.jump(HOUR_S)
        hold.released.set()
        tally = await walk

        assert key in archive.store.objects
        assert tally.fates == {Fate.LEFT: 1}


class TestIndex:
    async def test_what_is_live_and_not_in_the_bucket_is_counted_and_with_yes_reported(
        self,
    ) -> None:
        archive = await make_archive(4)
        for key in archive.shard_keys[:2]:
            archive.harm(key, None)

        looked = await archive.verified()
        assert (looked.gone_chunks, looked.reported_chunks) == (2, 0)
        assert await live(archive) == [True] * 4

        mended = await archive.verified(bad="quarantine")
        assert (mended.gone_chunks, mended.reported_chunks) == (2, 2)
        assert await live(archive) == [False, False, True, True]
        assert (await archive.verified()).gone_chunks == 0

    async def test_an_incomplete_chunk_that_the_index_lists_is_reported(self) -> None:
        archive = await make_archive(2, writer_count=2)
        archive.harm(archive.keys[0][0], None)

        tally = await archive.verified(bad="quarantine")

        assert tally.fates == {}  # its other shard is not bad
        assert archive.keys[0][1] in archive.store.objects
        assert await live(archive) == [False, True]

    async def test_a_use_that_is_newer_than_what_was_known_wins_over_the_report(self) -> None:
        archive = await make_archive(1)
        body = archive.store.objects[archive.shard_keys[0]]
        archive.harm(archive.shard_keys[0], None)
        await archive.verified(bad="quarantine")

        archive.harm(archive.shard_keys[0], body)
        uploaded_s = int(archive.clock.unix_s()) - int(HOUR_S)  # known a little earlier
        await announce(archive, make_records(fingerprints(archive.names), uploaded_s, 4))

        assert await live(archive) == [True]

    async def test_what_was_deleted_on_purpose_meanwhile_is_not_missed(self) -> None:
        archive = await make_archive(2)
        key = archive.shard_keys[0]
        faulty, hold = Faulty(archive.store), Hold()
        faulty.inject(hold, "list", keys=f"{archive.ns}/data/{key.split('/')[2]}/")

        walk = asyncio.create_task(archive.verified(faulty, bad="quarantine"))
        await hold.entered.wait()
        other = await archive.opened()
        fps = fingerprints(archive.names[:1])
        await other.commit(other.snapshot.dead_records(fps, archive.clock.unix_s()))
        await other.sequence()
        archive.harm(key, None)
        hold.released.set()
        tally = await walk

        assert tally.gone_chunks == tally.reported_chunks == 0

    async def test_what_the_index_does_not_know_is_counted(self) -> None:
        archive = await make_archive(2)
        for seed, age_s in ((10, 2 * HOUR_S), (11, 0.0)):
            archive.clock.jump(-age_s)
            hashes = chunk_hashes(seed)
            key = shard_key(archive.ns, hashes[-1], 0, 1)
            archive.harm(key, shard_of(archive.ns, hashes))
            archive.clock.jump(age_s)

        tally = await archive.verified()

        assert (tally.unlisted_chunks, tally.young_chunks) == (2, 1)
        assert tally.is_all_good  # somebody adopts them, or a sweep deletes them

    async def test_what_the_index_knows_as_dead_is_a_sweeps_business(self) -> None:
        archive = await make_archive(3)
        fps = fingerprints(archive.names[:1])
        tool = await archive.opened()
        await tool.commit(tool.snapshot.dead_records(fps, archive.clock.unix_s()))

        tally = await archive.verified()

        assert (tally.forgotten_chunks, tally.unlisted_chunks) == (1, 0)
        assert tally.is_all_good

    async def test_an_archive_without_an_index_has_only_unlisted_chunks(self) -> None:
        archive = await make_archive(3)
        for key in [key for key in archive.store.objects if "/idx/" in key]:
            archive.harm(key, None)

        tally = await archive.verified()

        assert (tally.unlisted_chunks, tally.gone_chunks, tally.good) == (3, 0, 3)

    async def test_a_long_walk_follows_the_index(self) -> None:
        """What was announced before its folder is listed is not unlisted."""
        archive = await make_archive(3)
        first, *_, last = sorted(archive.names)
        hashes = next(h for h in map(chunk_hashes, range(3, 5_000)) if h[-1][0] == last[0])
        faulty, hold = Faulty(archive.store), Hold()
        faulty.inject(hold, "list", keys=f"{archive.ns}/data/{first[:1].hex()}/")

        walk = asyncio.create_task(archive.verified(faulty, folder_count=1))
        await hold.entered.wait()
        archive.harm(shard_key(archive.ns, hashes[-1], 0, 1), shard_of(archive.ns, hashes))
        unix_s = int(archive.clock.unix_s())
        await announce(archive, make_records(fingerprints(hashes[-1:]), unix_s, CHUNK_BLOCKS))
        archive.clock.jump(31.0)
        hold.released.set()
        tally = await walk

        assert (tally.good, tally.unlisted_chunks) == (4, 0)

    def test_only_what_nobody_has_said_anything_about_since_is_gone(self) -> None:
        fps = [10, 20, 30, 40]
        gone = make_records(fps, [100, 200, 300, 400], CHUNK_BLOCKS)
        news = make_records(
            [10, 20, 30], [101, 200, 300], [CHUNK_BLOCKS, 0, CHUNK_BLOCKS], [0, int(DEAD), 0]
        )
        later = replace(Snapshot().absorb(gone).absorb(news), watermark_s=301)

        assert list(unchanged(Snapshot().absorb(gone), gone).fps) == fps
        assert list(unchanged(later, gone).fps) == [40]

    async def test_an_empty_bucket_is_asked_once_and_misses_all(self) -> None:
        archive = await make_archive(3)
        for key in archive.shard_keys:
            archive.harm(key, None)
        faulty = Faulty(archive.store)

        tally = await archive.verified(faulty)

        asked = [what for what, key in faulty.calls if key.startswith(f"{archive.ns}/data/")]
        assert asked == ["list_prefixes"]
        assert tally.gone_chunks == 3


async def announce(archive: VerifyArchive, records: RecordSet) -> None:
    """Commit records as an engine would, into a tick."""
    tool = await archive.opened()
    await tool.commit(records)
    await tool.sequence()
