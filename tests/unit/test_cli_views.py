"""What the command makes of a bucket's contents, on a store in memory."""

from __future__ import annotations

import array
from dataclasses import replace

import pytest

from s3kv.bucket.base import CREATED, Created, Exists, ObjectInfo, ObjectStore
from s3kv.bucket.capabilities import PROBE_PREFIX
from s3kv.bucket.connect import BucketSettings, parse_uri
from s3kv.bucket.faults import Fail, Faulty, Flip
from s3kv.bucket.memory import MemoryStore
from s3kv.cli.checks import Examination, Stores
from s3kv.cli.findings import Finding, clock_finding, engine_words, exit_code_of
from s3kv.cli.listing import (
    IndexView,
    Unread,
    archived_tokens,
    read_index,
    read_namespace,
    take_stock,
)
from s3kv.cli.shard_view import read_shard
from s3kv.cli.tally import ArchiveTally
from s3kv.core.keys import (
    namespace_key,
    parse_shard_key,
    quarantine_key,
    set_key,
    shard_key,
    tick_key,
)
from s3kv.errors import Denied, S3KVError, Transient
from s3kv.runtime.clock import Clock
from tests.fakes.small_archive import GEOMETRY, SmallArchive, small_namespace, write_archive

SETTINGS = BucketSettings(address=parse_uri("s3://bucket/prefix"))


def ignore(text: str) -> None:
    pass


async def examine(store: ObjectStore) -> dict[str, Finding]:
    stores = Stores(SETTINGS, usual=store, parts=store, other_mode=store, sdk=None)
    findings = await Examination(stores, Clock(), ignore).run()
    found = {finding.check: finding for finding in findings}
    assert len(found) == len(findings)
    return found


async def filled() -> tuple[MemoryStore, SmallArchive]:
    store = MemoryStore()
    return store, await write_archive(store)


def listed(key: str, size: int = 10, age_s: float = 5.0) -> ObjectInfo:
    return ObjectInfo(key, size, "", 1_000.0 - age_s, age_s)


class TestDoctor:
    async def test_a_good_store_passes_every_check_and_is_left_as_it_was(self) -> None:
        store = MemoryStore()

        findings = await examine(store)

        assert {finding.state for finding in findings.values()} == {"ok"}
        assert exit_code_of(list(findings.values())) == 0
        assert not store.objects

    async def test_an_existing_archive_is_neither_read_nor_changed(self) -> None:
        store, archive = await filled()
        before = dict(store.objects)
        faulty = Faulty(store)

        findings = await examine(faulty)

        assert store.objects == before
        assert "1 namespace here" in findings["bucket"].says
        touched = {key for _, key in faulty.calls if key}
        assert all(key.startswith(PROBE_PREFIX) for key in touched)
        assert archive.shard_keys

    async def test_without_a_conditional_put_there_is_no_index(self) -> None:
        class Careless(MemoryStore):
            async def create(self, key: str, body: bytes, *, timeout_s: float) -> Created | Exists:
                await self.put(key, body, timeout_s=timeout_s)
                return CREATED

        findings = await examine(Careless())

        assert findings["conditional PUT"].state == "warning"
        assert findings["write"].state == "ok"
        assert exit_code_of(list(findings.values())) == 1
        assert "without an index" in engine_words(list(findings.values()))

    async def test_a_read_only_store_is_load_only_and_measured_on_what_is_there(self) -> None:
        store, _ = await filled()
        faulty = Faulty(store)
        refusal = Fail(Denied("PUT: AccessDenied"))
        faulty.inject(refusal, "put", "create", "delete", times=None)

        findings = await examine(faulty)

        assert findings["write"].state == "warning"
        assert findings["ranged GET"].state == "ok"
        assert findings["clock"].state == "ok"
        assert "clean-up" not in findings
        assert exit_code_of(list(findings.values())) == 1

    @pytest.mark.parametrize("error", [Denied("LIST: NoSuchBucket"), Transient("refused")])
    async def test_what_cannot_be_listed_is_unusable_and_asked_nothing_more(
        self, error: S3KVError
    ) -> None:
        faulty = Faulty(MemoryStore())
        faulty.inject(Fail(error), times=None)

        findings = await examine(faulty)

        assert list(findings) == ["bucket"]
        assert exit_code_of(list(findings.values())) == 2
        assert {operation for operation, _ in faulty.calls} == {"list"}

    async def test_wrong_bytes_in_a_range_make_it_unusable(self) -> None:
        faulty = Faulty(MemoryStore())
        faulty.inject(Flip(0), "get_into", times=None)

        findings = await examine(faulty)

        assert findings["ranged GET"].state == "failed"
        assert exit_code_of(list(findings.values())) == 2

    @pytest.mark.parametrize(
        ("body", "check"),
        [("parts", "multipart upload"), ("body", "bandwidth"), ("mode", "checksum mode")],
    )
    async def test_a_body_that_comes_back_changed_is_a_warning(self, body: str, check: str) -> None:
        faulty = Faulty(MemoryStore())
        faulty.inject(Flip(70), "get_into", keys=f"*-{body}")

        findings = await examine(faulty)

        assert findings[check].state == "warning"
        assert "other bytes came back" in findings[check].says
        assert exit_code_of(list(findings.values())) == 1

    @pytest.mark.parametrize("is_cured", [True, False])
    async def test_refused_checksums_are_told_from_refused_writes(self, is_cured: bool) -> None:
        faulty = Faulty(MemoryStore())
        refusal = Fail(Denied("PUT: refused"))
        faulty.inject(refusal, "put", "create", times=None)
        other = MemoryStore() if is_cured else faulty
        settings = replace(SETTINGS, checksum_mode="when_supported")
        stores = Stores(settings, usual=faulty, parts=faulty, other_mode=other, sdk=None)

        findings = await Examination(stores, Clock(), ignore).run()

        remedies = [found.remedy for found in findings if found.check == "checksum mode"]
        assert len(remedies) == is_cured
        assert all("--checksum-mode when_required" in remedy for remedy in remedies)
        deletes = [operation for operation, _ in faulty.calls if operation == "delete"]
        assert len(deletes) == is_cured  # nothing was written, so nothing is cleaned up

    async def test_what_cannot_be_deleted_is_named_as_left_behind(self) -> None:
        faulty = Faulty(MemoryStore())
        faulty.inject(Fail(Denied("DELETE: AccessDenied")), "delete", times=None)

        findings = await examine(faulty)

        assert findings["delete"].state == findings["clean-up"].state == "warning"
        assert "without an index" in engine_words(list(findings.values()))
        assert f"prefix/{PROBE_PREFIX}" in findings["clean-up"].remedy
        assert exit_code_of(list(findings.values())) == 1

    @pytest.mark.parametrize(
        ("operation", "check"), [("list", "list"), ("delete", "delete"), ("create", "write")]
    )
    async def test_each_refusal_of_the_probe_is_told_at_its_own_check(
        self, operation: str, check: str
    ) -> None:
        faulty = Faulty(MemoryStore())
        refusal = Fail(Denied(f"only {operation} is refused"))
        if operation == "create":
            faulty.inject(refusal, "create", "put", times=None)
        elif operation == "list":
            faulty.inject(refusal, "list", keys=f"{PROBE_PREFIX}*", times=None)
        else:
            faulty.inject(refusal, "delete", times=1)

        findings = await examine(faulty)

        assert findings[check].state == "warning"
        assert findings[check].says == f"only {operation} is refused"

    @pytest.mark.parametrize(
        ("skew_s", "state"), [(-1.0, "ok"), (1.5, "ok"), (59.0, "ok"), (-61.0, "warning")]
    )
    def test_a_clock_that_is_a_minute_off_is_a_warning(self, skew_s: float, state: str) -> None:
        assert clock_finding(skew_s).state == state

    async def test_a_store_with_another_clock_is_told_by_how_much(self) -> None:
        ahead = Clock().unix_s() + 300

        findings = await examine(MemoryStore(unix_s=lambda: ahead))

        assert findings["clock"].state == "warning"
        assert findings["clock"].says.startswith("the store is ")
        assert 290 < findings["clock"].numbers["skew_s"] < 310


class TestTally:
    async def test_a_small_archive_is_counted_right(self) -> None:
        store, archive = await filled()

        tally = await take_stock(store, "", ignore)

        (found,) = tally.archives()
        assert found.id == archive.namespace.id
        assert found.chunk_count == found.shards.count == 3
        assert found.shards.total_bytes == archive.shard_bytes
        assert (found.ticks.count, found.segments.count, found.runs.count) == (1, 1, 0)
        assert archived_tokens(found, archive.namespace) == 160
        assert tally.foreign.pile.count == 0

    async def test_pinned_sets_and_quarantined_shards_are_ours_and_no_shards(self) -> None:
        store, archive = await filled()
        ns, shard = archive.namespace.id, parse_shard_key(archive.shard_keys[0])
        assert shard is not None
        store.write(set_key(ns, "hot"), bytes(7))
        store.write(quarantine_key(ns, shard.chunk_hash, 0, 1), bytes(11))
        store.write(f"{ns}/sets/Not Ours", b"x")

        tally = await take_stock(store, "", ignore)

        found = tally.namespaces[ns]
        assert (found.sets.total_bytes, found.quarantine.total_bytes) == (7, 11)
        assert (found.shards.count, found.chunk_count) == (3, 3)
        ours = sum(len(body) for key, body in store.objects.items() if "Not Ours" not in key)
        assert found.total_bytes == ours - len(archive.namespace.document)
        assert tally.foreign.names == [f"{ns[:12]}/sets/Not Ours"]

    async def test_foreign_objects_are_counted_and_named(self) -> None:
        store, archive = await filled()
        ns = archive.namespace.id
        for key in ("README.txt", "backup/a", "backup/b", f"{ns}/data/x", f"{ns}/NAMESPACE.json~"):
            store.write(key, b"12345")

        tally = await take_stock(store, "", ignore)

        assert tally.foreign.pile.count == 5
        assert tally.foreign.pile.total_bytes == 25
        assert sorted(tally.foreign.names) == sorted(
            ["README.txt", "backup/", f"{ns[:12]}/data/x", f"{ns[:12]}/NAMESPACE.json~"]
        )

    def test_a_folder_that_only_looks_like_a_namespace_is_no_archive(self) -> None:
        tally = ArchiveTally()

        tally.add([listed(f"{'ab' * 16}/cat.jpg")])

        assert tally.archives() == []
        assert tally.foreign.pile.count == 1

    def test_a_chunk_counts_when_all_its_writers_shards_are_there(self) -> None:
        ns = small_namespace().id
        tally = ArchiveTally()

        tally.add(
            [
                listed(shard_key(ns, bytes(32), 1, 2)),
                listed(shard_key(ns, b"\xff" * 32, 0, 2)),
                listed(shard_key(ns, bytes(32), 0, 2)),
            ]
        )

        found = tally.namespaces[ns]
        assert (found.chunk_count, found.incomplete_count, found.shards.count) == (1, 1, 3)
        assert found.fps == array.array("Q", [0])

    def test_the_ages_are_those_of_the_oldest_and_the_youngest(self) -> None:
        ns = small_namespace().id
        tally = ArchiveTally()

        tally.add([listed(shard_key(ns, bytes([i]) * 32, 0, 1), age_s=i) for i in (7, 2, 9)])

        shards = tally.namespaces[ns].shards
        assert (shards.oldest_age_s, shards.newest_age_s) == (9, 2)

    @pytest.mark.parametrize("size", [9, GEOMETRY.header_bytes, GEOMETRY.slot_bytes - 1, 1 << 20])
    async def test_a_shard_of_odd_size_holds_no_tokens(self, size: int) -> None:
        store, archive = await filled()
        store.write(archive.shard_keys[0], bytes(size))

        tally = await take_stock(store, "", ignore)

        assert archived_tokens(tally.archives()[0], archive.namespace) == 96


class TestViews:
    async def test_the_index_is_read_with_its_inbox(self) -> None:
        store, archive = await filled()

        index = await read_index(store, archive.namespace.id, Clock())

        assert isinstance(index, IndexView)
        assert len(index.live) == 3
        assert index.follower.snapshot.head == 1
        assert index.last_used_age_s is not None
        assert 119 <= index.last_used_age_s < 200

    async def test_an_index_that_may_not_be_read_is_told_and_no_failure(self) -> None:
        store, archive = await filled()
        faulty = Faulty(store)
        faulty.inject(Fail(Denied("no")), keys="*/idx/*", times=None)

        index = await read_index(faulty, archive.namespace.id, Clock())

        assert index == Unread("no")

    async def test_a_damaged_tick_is_counted(self) -> None:
        store, archive = await filled()
        store.write(tick_key(archive.namespace.id, 1), b"nonsense")

        index = await read_index(store, archive.namespace.id, Clock())

        assert isinstance(index, IndexView)
        assert index.follower.skipped_count == 1
        assert index.follower.snapshot.incomplete

    async def test_a_damaged_or_exchanged_namespace_document_is_told(self) -> None:
        store, archive = await filled()
        key = namespace_key(archive.namespace.id)
        assert await read_namespace(store, archive.namespace.id) == archive.namespace

        for document in (b"{}", small_namespace("other").document):
            store.write(key, document)
            assert isinstance(await read_namespace(store, archive.namespace.id), Unread)

        await store.delete([key], timeout_s=1.0)
        assert isinstance(await read_namespace(store, archive.namespace.id), Unread)

    async def test_an_intact_shard_verifies(self) -> None:
        store, archive = await filled()

        view = await read_shard(store, archive.shard_keys[0])

        assert view.problem == ""
        assert view.document()["block_count"] == 4

    @pytest.mark.parametrize("offset", [0, 100, GEOMETRY.header_bytes - 1, GEOMETRY.header_bytes])
    async def test_a_flipped_byte_anywhere_is_found(self, offset: int) -> None:
        store, archive = await filled()
        key = archive.shard_keys[0]
        body = bytearray(store.objects[key])
        body[offset] ^= 0xFF
        store.write(key, bytes(body))

        assert (await read_shard(store, key)).problem

    async def test_missing_short_long_and_exchanged_shards_are_found(self) -> None:
        store, archive = await filled()
        first, second, _ = archive.shard_keys
        whole = store.objects[first]
        for body in (b"", whole[:-1], whole + b"x", store.objects[second]):
            store.write(first, body)
            assert (await read_shard(store, first)).problem

        await store.delete([first], timeout_s=1.0)
        assert (await read_shard(store, first)).problem == "there is no such shard"
