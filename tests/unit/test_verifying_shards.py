"""What a look into one shard sees: every kind of damage, and what is none."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from s3kv.bucket.base import Missing, Received
from s3kv.bucket.faults import Fail, Faulty, Hold, Truncate, Vanish
from s3kv.core.geometry import GroupGeometry, ShardGeometry
from s3kv.core.keys import shard_key
from s3kv.core.shard import read_header, seal
from s3kv.core.verifying import Shape, UnknownFormat, Wrong, pieces
from s3kv.errors import Closed, Denied, S3KVError, Transient
from s3kv.runtime.inspecting import (
    FAILURES_MAX,
    Bad,
    Depth,
    Good,
    Inspector,
    Unchecked,
    Verdict,
)
from tests.fakes.shards import MANY, ONE, TWO, identity_of, sealed
from tests.fakes.small_archive import GEOMETRY, small_namespace
from tests.fakes.verify_archive import (
    CHUNK_BLOCKS,
    VerifyArchive,
    chunk_hashes,
    flipped,
    make_archive,
    namespace_of,
    resealed,
    shard_of,
)

HEADER_BYTES, SHARD_BYTES = GEOMETRY.header_bytes, GEOMETRY.slot_bytes
DEPTHS: tuple[Depth, Depth] = ("headers", "bodies")


async def look(archive: VerifyArchive, key: str, depth: Depth = "bodies") -> Verdict:
    inspector = Inspector(await archive.opened(), archive.shape, depth, 4)
    return await inspector.look(archive.part(key))


def look_at(body: bytes, depth: Depth) -> Verdict:
    """The verdict on a shard of the first chunk, whatever its bytes are."""

    async def run() -> Verdict:
        archive = await make_archive(1)
        archive.harm(archive.shard_keys[0], body)
        return await look(archive, archive.shard_keys[0], depth)

    return asyncio.run(run())


def wrong(verdict: Verdict) -> Wrong:
    assert isinstance(verdict, Bad), verdict
    return verdict.fault.wrong


def intact() -> bytes:
    return shard_of(small_namespace().id, chunk_hashes(0))


class TestOneShard:
    @given(at=st.integers(0, SHARD_BYTES - 1), bits=st.integers(1, 255))
    def test_every_flipped_byte_is_seen_by_a_deep_look(self, at: int, bits: int) -> None:
        found = wrong(look_at(flipped(intact(), at, bits), "bodies"))

        assert found is (Wrong.HEADER if at < HEADER_BYTES else Wrong.CHECKSUM)

    @given(at=st.integers(0, HEADER_BYTES - 1), bits=st.integers(1, 255))
    def test_every_flipped_byte_of_the_header_is_seen_without_the_body(
        self, at: int, bits: int
    ) -> None:
        assert wrong(look_at(flipped(intact(), at, bits), "headers")) is Wrong.HEADER

    def test_the_body_is_not_looked_at_unless_asked(self) -> None:
        body = flipped(intact(), HEADER_BYTES)

        assert isinstance(look_at(body, "headers"), Good)

    @given(size=st.integers(0, 2 * SHARD_BYTES).filter(lambda n: n != SHARD_BYTES))
    def test_every_other_length_is_seen_at_any_depth(self, size: int) -> None:
        body = intact().ljust(size, b"x")[:size]

        assert {wrong(look_at(body, depth)) for depth in DEPTHS} == {Wrong.SIZE}

    @pytest.mark.parametrize("depth", DEPTHS)
    async def test_an_intact_shard_is_good(self, depth: Depth) -> None:
        archive = await make_archive(1)

        verdict = await look(archive, archive.shard_keys[0], depth)

        assert isinstance(verdict, Good)
        assert verdict.block_count == CHUNK_BLOCKS

    async def test_a_tail_is_good(self) -> None:
        archive = await make_archive(1)
        hashes = chunk_hashes(9, block_count=2)
        key = shard_key(archive.ns, hashes[-1], 0, 1)
        archive.harm(key, shard_of(archive.ns, hashes))

        assert isinstance(await look(archive, key), Good)

    @pytest.mark.parametrize("depth", DEPTHS)
    async def test_a_shard_of_another_chunk_under_this_name(self, depth: Depth) -> None:
        archive = await make_archive(2)
        first, second = archive.shard_keys
        archive.harm(first, archive.store.objects[second])

        assert wrong(await look(archive, first, depth)) is Wrong.NAME

    async def test_a_shard_of_another_writer_under_this_name(self) -> None:
        archive = await make_archive(1, writer_count=2)
        first, second = archive.shard_keys
        archive.harm(first, archive.store.objects[second])

        assert wrong(await look(archive, first)) is Wrong.NAME

    async def test_a_name_with_another_number_of_writers(self) -> None:
        archive = await make_archive(1)
        hashes = chunk_hashes(0)
        key = shard_key(archive.ns, hashes[-1], 1, 2)
        archive.harm(key, shard_of(archive.ns, hashes, 1, 2))

        assert wrong(await look(archive, key)) is Wrong.NAME

    async def test_a_shard_of_another_namespace(self) -> None:
        archive = await make_archive(1)
        other = namespace_of(1, "other").id
        archive.harm(archive.shard_keys[0], shard_of(other, chunk_hashes(0)))

        verdict = await look(archive, archive.shard_keys[0])

        assert wrong(verdict) is Wrong.NAMESPACE
        assert isinstance(verdict, Bad)
        assert other in verdict.fault.says

    async def test_a_shard_that_states_other_groups(self) -> None:
        archive = await make_archive(1)
        body = archive.store.objects[archive.shard_keys[0]]
        text = body[:HEADER_BYTES].replace(b'"shape":[4,2,96]', b'"shape":[4,4,48]')
        archive.harm(archive.shard_keys[0], resealed(text) + body[HEADER_BYTES:])

        verdict = await look(archive, archive.shard_keys[0])

        assert wrong(verdict) is Wrong.HEADER
        assert isinstance(verdict, Bad)
        assert "other groups" in verdict.fault.says

    @pytest.mark.parametrize(
        ("before", "after"),
        [(b'"format":"s3kv/1"', b'"format":"s3kv/2"'), (b'"none    "', b'"zstd    "')],
    )
    async def test_an_intact_shard_of_an_unknown_format_is_not_called_wrong(
        self, before: bytes, after: bytes
    ) -> None:
        archive = await make_archive(1)
        body = archive.store.objects[archive.shard_keys[0]]
        head = resealed(body[:HEADER_BYTES].replace(before, after))
        # Whatever its size: coded shards are smaller.
        archive.harm(archive.shard_keys[0], head + body[HEADER_BYTES:-100])

        assert isinstance(await look(archive, archive.shard_keys[0]), UnknownFormat)

    async def test_a_longer_header_of_an_unknown_format_is_read_whole(self) -> None:
        archive = await make_archive(1)
        head = archive.store.objects[archive.shard_keys[0]][:HEADER_BYTES]
        length = 2 * HEADER_BYTES - 8
        head = length.to_bytes(8, "little") + head[8:].ljust(length).replace(b"s3kv/1", b"s3kv/2")
        archive.harm(archive.shard_keys[0], resealed(head) + bytes(99))

        assert isinstance(await look(archive, archive.shard_keys[0]), UnknownFormat)

    def test_pipeline_stages_have_shapes_of_their_own(self) -> None:
        later = ShardGeometry((GroupGeometry("later", 1, 8),), GEOMETRY.chunk_blocks)
        shape = Shape(small_namespace().id, 4, (GEOMETRY, later))

        assert [shape.geometry(i) is later for i in range(4)] == [False, False, True, True]


class TestPieces:
    @pytest.mark.parametrize("geometry", [ONE, TWO, MANY])
    @given(data=st.data())
    def test_pieces_are_bounded_and_cover_every_byte_of_the_body_once(
        self, geometry: ShardGeometry, data: st.DataObject
    ) -> None:
        block_count = data.draw(st.integers(1, geometry.chunk_blocks))
        piece_bytes = data.draw(st.integers(1, 2 * geometry.slot_bytes))
        header = read_header(sealed(geometry, identity_of(block_count)))

        cut = list(pieces(header, piece_bytes))

        at = geometry.header_bytes
        for piece in cut:
            block_bytes = geometry.groups[piece.group_index].block_bytes
            assert piece.start == at
            assert piece.length <= max(piece_bytes, block_bytes)
            at += piece.length
        assert at == geometry.shard_bytes(block_count)


class TestReading:
    async def test_a_shard_that_was_deleted_since_it_was_listed_is_no_failure(self) -> None:
        archive = await make_archive(2)
        faulty = Faulty(archive.store)
        faulty.inject(Vanish(), "get_into", "stat", keys=archive.shard_keys[0], times=None)

        tally = await archive.verified(faulty)

        assert (tally.vanished, tally.good, tally.checked) == (1, 1, 1)
        assert tally.is_all_good

    async def test_bytes_of_two_uploads_are_never_mixed(self) -> None:
        archive = await make_archive(1)
        key = archive.shard_keys[0]
        faulty, hold = Faulty(archive.store), Hold()
        faulty.inject(hold, "get_into", skip=1)  # the body, when the header is read
        tool = await archive.opened(faulty)
        part = archive.part(key)

        looking = asyncio.create_task(Inspector(tool, archive.shape, "bodies", 4).look(part))
        await hold.entered.wait()
        archive.harm(key, other_pages(archive, key))
        hold.released.set()
        verdict = await looking

        assert isinstance(verdict, Good)
        assert verdict.part.found.etag == archive.part(key).found.etag != part.found.etag

    async def test_what_is_written_anew_at_every_look_is_not_judged(self) -> None:
        archive = await make_archive(1)
        tool = await archive.opened(Rewriting(archive))

        verdict = await Inspector(tool, archive.shape, "headers", 4).look(
            archive.part(archive.shard_keys[0])
        )

        assert isinstance(verdict, Unchecked)

    @pytest.mark.parametrize("error", [Transient("broken"), Denied("not yours")])
    async def test_a_shard_that_cannot_be_read_is_counted_and_no_more(
        self, error: S3KVError
    ) -> None:
        archive = await make_archive(3)
        faulty = Faulty(archive.store)
        faulty.inject(Fail(error), "get_into", keys=archive.shard_keys[1], times=None)

        tally = await archive.verified(faulty)

        assert (tally.unchecked, tally.good, tally.bad_count) == (1, 2, 0)
        assert tally.unchecked_names == [f"{archive.shard_keys[1]}: {error}"]
        assert not tally.is_all_good

    async def test_nothing_is_asked_of_an_empty_object(self) -> None:
        """Stores refuse ranges of it."""
        archive = await make_archive(1)
        archive.harm(archive.shard_keys[0], b"")
        faulty = Faulty(archive.store)

        tally = await archive.verified(faulty)

        assert tally.bad == {Wrong.SIZE: 1}
        assert "get_into" not in {operation for operation, _ in faulty.calls}

    async def test_a_shard_of_an_unknown_format_is_counted_and_left(self) -> None:
        archive = await make_archive(2)
        body = archive.store.objects[archive.shard_keys[0]]
        newer = resealed(body[:HEADER_BYTES].replace(b"s3kv/1", b"s3kv/2")) + body[HEADER_BYTES:]
        archive.harm(archive.shard_keys[0], newer)

        tally = await archive.verified(bad="quarantine")

        assert (tally.unknown_format, tally.good, tally.checked) == (1, 1, 2)
        assert archive.store.objects[archive.shard_keys[0]] == newer
        assert not tally.is_all_good

    async def test_an_answer_that_breaks_off_is_not_damage(self) -> None:
        archive = await make_archive(1)
        faulty = Faulty(archive.store)
        faulty.inject(Truncate(100), "get_into", times=None)

        tally = await archive.verified(faulty)

        assert (tally.unchecked, tally.bad_count) == (1, 0)

    async def test_a_store_that_does_not_answer_any_more_ends_the_walk(self) -> None:
        archive = await make_archive(FAILURES_MAX + 10)
        faulty = Faulty(archive.store)
        faulty.inject(Fail(Transient("gone fishing")), "get_into", times=None)

        with pytest.raises(Transient, match="gone fishing"):
            await archive.verified(faulty)

    async def test_failures_that_are_not_in_a_row_do_not_end_it(self) -> None:
        archive = await make_archive(3 * FAILURES_MAX // 2)
        faulty = Faulty(archive.store)
        for key in sorted(archive.shard_keys)[::10]:
            faulty.inject(Truncate(SHARD_BYTES), "get_into", keys=key, times=None)
        faulty.inject(Fail(Transient("no")), "get_into", times=None)

        tally = await archive.verified(faulty, folder_count=1, chunk_count=1)

        assert tally.unchecked == len(archive.keys) - tally.good > FAILURES_MAX

    async def test_a_closed_store_ends_the_walk(self) -> None:
        archive = await make_archive(1)
        faulty = Faulty(archive.store)
        faulty.inject(Fail(Closed("closed")), "get_into", times=None)

        with pytest.raises(Closed):
            await archive.verified(faulty)


def other_pages(archive: VerifyArchive, key: str) -> bytes:
    """The same chunk, uploaded by another engine: other rounding, hence other checksums."""
    identity = read_header(archive.store.objects[key]).identity
    slot = bytearray(b"\x5a" * SHARD_BYTES)
    return bytes(seal(memoryview(slot), GEOMETRY, identity, b"n" * 16))


class Rewriting(Faulty):
    """A store in which somebody writes a shard anew before every GET."""

    def __init__(self, archive: VerifyArchive) -> None:
        super().__init__(archive.store)
        self._archive = archive

    async def get_into(
        self, key: str, start: int, buffer: memoryview, *, timeout_s: float
    ) -> Received | Missing:
        self._archive.harm(key, shard_of(self._archive.ns, chunk_hashes(0)))
        return await super().get_into(key, start, buffer, timeout_s=timeout_s)
