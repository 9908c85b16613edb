"""Pauses, pinned sets and the sequencer's process, against real servers."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from s3kv.bucket.base import ObjectStore
from s3kv.cli.local_store import end_with_parent
from s3kv.cli.options import Options
from s3kv.cli.output import Output
from s3kv.cli.pause import PauseOptions, pause
from s3kv.cli.pin_options import PinOptions
from s3kv.cli.pinning import pin
from s3kv.cli.prompt_options import PromptOptions
from s3kv.core.ids import BlockHash, NamespaceId, fingerprints
from s3kv.core.keys import parse_shard_key, set_key
from s3kv.core.pins import Pins
from s3kv.core.records import make_records
from s3kv.core.snapshot import Pause
from s3kv.runtime.clock import Clock
from s3kv.runtime.index_client import IndexReader, IndexSettings
from s3kv.runtime.index_tool import IndexTool
from s3kv.runtime.index_writer import IndexWriter
from tests.bucket.stores import connected_store
from tests.fakes.small_archive import small_namespace
from tests.integration.test_cli_store import (
    archive_at,
    document_of,
    keys_under,
    s3kv,
    with_store,
)

pytestmark = pytest.mark.timeout(60)

PATIENCE_S = 20.0
FAST = IndexSettings(poll_interval_s=0.05)
MISSING = hashlib.sha256(b"never archived").hexdigest()


@pytest.fixture(params=["seaweed", "moto"])
def endpoint(request: pytest.FixtureRequest) -> str:
    """Each test server's endpoint URL."""
    url: str = request.getfixturevalue(f"{request.param}_endpoint")
    return url


async def until(is_true: Callable[[], bool]) -> None:
    """Wait for what other processes and threads bring about."""
    async with asyncio.timeout(PATIENCE_S):
        while not is_true():  # noqa: ASYNC110  other processes set no event of ours
            await asyncio.sleep(0.02)


@asynccontextmanager
async def following(endpoint_url: str, uri: str, *labels: str) -> AsyncIterator[list[IndexReader]]:
    """Readers that follow an index as engines do."""
    async with connected_store(endpoint_url, uri) as store:
        readers = [IndexReader(store, small_namespace(each), Clock(), FAST) for each in labels]
        running = [asyncio.create_task(reader.run()) for reader in readers]
        try:
            for reader in readers:
                await reader.wait_opened()
            yield readers
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


def options_of(endpoint_url: str, uri: str) -> Options:
    """For commands that are begun side by side, in one process."""
    return Options(uri=uri, endpoint_url=endpoint_url)


# ------------------------------------------------------------------------- pause and resume
class TestPause:
    async def test_it_reaches_whoever_follows_and_is_taken_back(
        self, endpoint: str, fresh_uri: str
    ) -> None:
        for label in ("", "other"):
            await asyncio.to_thread(archive_at, endpoint, fresh_uri, label)

        async with following(endpoint, fresh_uri, "", "other") as readers:
            steps = [
                (("pause", "--load"), Pause(loads=True)),
                (("pause", "--save"), Pause(loads=True, saves=True)),
                (("resume", "--load"), Pause(saves=True)),
                (("resume",), Pause()),
                (("pause",), Pause(loads=True, saves=True)),
            ]
            for (command, *flags), expected in steps:
                given = (command, fresh_uri, *flags, "--json")
                result = await asyncio.to_thread(s3kv, endpoint, *given)
                document = document_of(result)
                assert [row["changed"] for row in document["namespaces"]] == [True, True]
                assert 1.0 < document["obeyed_within_s"] < 2.0
                await until(
                    lambda wanted=expected: all(  # type: ignore[misc]
                        reader.snapshot.pause == wanted for reader in readers
                    )
                )

    async def test_only_the_namespace_that_is_named_is_paused(
        self, moto_endpoint: str, fresh_uri: str
    ) -> None:
        for label in ("", "other"):
            await asyncio.to_thread(archive_at, moto_endpoint, fresh_uri, label)
        named = small_namespace("other").id

        result = await asyncio.to_thread(s3kv, moto_endpoint, "pause", fresh_uri, named[:10])

        assert result.exit_code == 0
        assert f"{named[:12]}  nothing paused  loads and saves paused" in result.stdout
        assert "obeys within 1.2 s" in result.stdout
        async with following(moto_endpoint, fresh_uri, "", "other") as (first, second):
            assert first.snapshot.pause == Pause()
            assert second.snapshot.pause == Pause(loads=True, saves=True)

    def test_what_is_in_force_already_leaves_the_bucket_as_it_is(
        self, endpoint: str, fresh_uri: str
    ) -> None:
        archive_at(endpoint, fresh_uri)
        s3kv(endpoint, "pause", fresh_uri)
        before = keys_under(endpoint, fresh_uri)

        result = s3kv(endpoint, "pause", fresh_uri, "--save")

        assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "Nothing to change.")
        assert keys_under(endpoint, fresh_uri) == before

    async def test_two_changes_at_once_are_both_in_force(
        self, endpoint: str, fresh_uri: str
    ) -> None:
        await asyncio.to_thread(archive_at, endpoint, fresh_uri)
        options = options_of(endpoint, fresh_uri)

        exit_codes = await asyncio.gather(
            *(
                pause(options, None, which, Output("json"))
                for which in (PauseOptions(True, False), PauseOptions(False, True))
            )
        )

        assert exit_codes == [0, 0]
        async with following(endpoint, fresh_uri, "") as (reader,):
            assert reader.snapshot.pause == Pause(loads=True, saves=True)

    def test_a_prefix_without_an_archive_is_bad_input_and_stays_empty(
        self, moto_endpoint: str, fresh_uri: str
    ) -> None:
        result = s3kv(moto_endpoint, "pause", fresh_uri, "--json")

        assert document_of(result)["error"]["says"] == "no archive under this prefix"
        assert keys_under(moto_endpoint, fresh_uri) == []


class TestBounds:
    def test_the_doctor_states_them_with_their_price(
        self, moto_endpoint: str, fresh_uri: str
    ) -> None:
        bounds = document_of(s3kv(moto_endpoint, "doctor", fresh_uri, "--json"))["bounds"]

        assert bounds["staleness"]["paused_worst_s"] >= 1.2
        assert bounds["monthly_price"]["following_usd"] == pytest.approx(2.10, abs=0.01)
        assert bounds["meaning"].keys() == {"busy", "quiet", "abandoned", "paused", "view"}

    def test_people_read_the_same(self, moto_endpoint: str, fresh_uri: str) -> None:
        told = s3kv(moto_endpoint, "doctor", fresh_uri).stdout

        assert "abandoned" in told
        assert "2.10 per engine: 2 processes, a GET every 1 s" in told


# ------------------------------------------------------------------------- pinned sets
def hashes_file(folder: Path, *names: str) -> str:
    file = folder / os.urandom(6).hex()
    file.write_text("".join(f"{name}\n" for name in names), "ascii")
    return str(file)


def archived_hashes(endpoint_url: str, uri: str, label: str = "") -> list[str]:
    """The chunks of a small archive, written just now."""
    names = [parse_shard_key(key) for key in archive_at(endpoint_url, uri, label).shard_keys]
    return [name.chunk_hash.hex() for name in names if name is not None]


def sets_of(endpoint_url: str, uri: str) -> dict[str, Any]:
    """What the list says, by name."""
    document = document_of(s3kv(endpoint_url, "pin", uri, "--json"))
    return {row["name"]: row for row in document["sets"]}


class TestPin:
    def test_a_set_is_made_listed_and_removed(
        self, endpoint: str, fresh_uri: str, tmp_path: Path
    ) -> None:
        chunks = archived_hashes(endpoint, fresh_uri)
        before = keys_under(endpoint, fresh_uri)
        file = hashes_file(tmp_path, *chunks, MISSING)

        made = document_of(s3kv(endpoint, "pin", fresh_uri, "hot", "--hashes", file, "--json"))

        assert (made["chunks"], made["added"], made["archived"], made["not_archived"]) == (
            4,
            4,
            3,
            1,
        )
        row = sets_of(endpoint, fresh_uri)["hot"]
        assert (row["chunks"], row["archived"], row["problem"]) == (4, 3, "")
        assert row["archived_bytes"] == made["archived_bytes"] > 0
        assert 0 <= row["age_s"] < 60

        assert s3kv(endpoint, "unpin", fresh_uri, "hot").exit_code == 0
        assert keys_under(endpoint, fresh_uri) == before
        assert s3kv(endpoint, "unpin", fresh_uri, "hot").exit_code == 2

    def test_a_sequencer_reads_what_is_pinned(
        self, moto_endpoint: str, fresh_uri: str, tmp_path: Path
    ) -> None:
        chunks = archived_hashes(moto_endpoint, fresh_uri)
        file = hashes_file(tmp_path, *chunks)
        s3kv(moto_endpoint, "pin", fresh_uri, "hot", "--hashes", file)
        ns = small_namespace().id

        async def read(store: ObjectStore) -> Pins:
            pins = Pins(ns)
            await IndexTool(store, ns, Clock()).perform(pins.refresh())
            return pins

        pins = with_store(moto_endpoint, fresh_uri, read)
        assert pins.complete
        hashes = [BlockHash(bytes.fromhex(chunk)) for chunk in chunks]
        assert set(pins.fps.tolist()) == set(fingerprints(hashes).tolist())

    def test_a_name_is_not_used_twice_without_being_told_to_add(
        self, moto_endpoint: str, fresh_uri: str, tmp_path: Path
    ) -> None:
        first, second, third = archived_hashes(moto_endpoint, fresh_uri)
        pin = ("pin", fresh_uri, "hot", "--hashes")
        s3kv(moto_endpoint, *pin, hashes_file(tmp_path, first))
        before = keys_under(moto_endpoint, fresh_uri)

        refused = s3kv(moto_endpoint, *pin, hashes_file(tmp_path, second))
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert "--add" in refused.stderr
        assert keys_under(moto_endpoint, fresh_uri) == before

        added = s3kv(moto_endpoint, *pin, hashes_file(tmp_path, first, third), "--add")
        assert added.exit_code == 0
        assert "2 chunks (1 of them before)" in added.stdout
        assert sets_of(moto_endpoint, fresh_uri)["hot"]["chunks"] == 2

    async def test_of_several_who_pin_at_once_none_loses_a_chunk(
        self, endpoint: str, fresh_uri: str, tmp_path: Path
    ) -> None:
        chunks = await asyncio.to_thread(archived_hashes, endpoint, fresh_uri)
        options = options_of(endpoint, fresh_uri)

        exit_codes = await asyncio.gather(
            *(
                pin(
                    options,
                    "hot",
                    PinOptions(hashes=hashes_file(tmp_path, chunk, MISSING), add=True),
                    PromptOptions(),
                    Output("json"),
                )
                for chunk in chunks
            )
        )

        assert exit_codes == [0, 0, 0]
        row = (await asyncio.to_thread(sets_of, endpoint, fresh_uri))["hot"]
        assert (row["chunks"], row["objects"]) == (4, 3)
        unpinned = await asyncio.to_thread(s3kv, endpoint, "unpin", fresh_uri, "hot")
        assert unpinned.exit_code == 0
        assert await asyncio.to_thread(sets_of, endpoint, fresh_uri) == {}

    def test_a_prompt_pins_its_own_chunks_in_the_namespace_that_is_named(
        self, moto_endpoint: str, fresh_uri: str, tmp_path: Path
    ) -> None:
        for label in ("", "other"):
            archive_at(moto_endpoint, fresh_uri, label)
        ids = tmp_path / "ids.json"
        ids.write_text(json.dumps(list(range(160))), "ascii")
        ns = small_namespace("other").id

        result = s3kv(
            moto_endpoint,
            *("pin", fresh_uri, "system", "--token-ids", str(ids)),
            *("--namespace", ns[:8], "--min-tail-tokens", "16", "--json"),
        )

        document = document_of(result)
        assert (document["namespace"], document["chunks"], document["archived"]) == (ns, 3, 0)
        assert f"{ns}/sets/system" in keys_under(moto_endpoint, fresh_uri)

    def test_a_set_that_cannot_be_read_is_told_and_can_be_removed(
        self, moto_endpoint: str, fresh_uri: str
    ) -> None:
        ns = archive_at(moto_endpoint, fresh_uri).namespace.id

        async def damage(store: ObjectStore) -> None:
            await store.put(set_key(ns, "hot"), b"nonsense", timeout_s=5.0)
            await store.put(f"{ns}/sets/My Notes", b"mine", timeout_s=5.0)

        with_store(moto_endpoint, fresh_uri, damage)
        listed = s3kv(moto_endpoint, "pin", fresh_uri)

        assert listed.exit_code == 1
        assert "nothing is forgotten there" in listed.stdout
        assert s3kv(moto_endpoint, "unpin", fresh_uri, "hot").exit_code == 0
        result = s3kv(moto_endpoint, "pin", fresh_uri)
        assert (result.exit_code, result.stdout) == (0, f"nothing is pinned under {fresh_uri}\n")
        assert f"{ns}/sets/My Notes" in keys_under(moto_endpoint, fresh_uri)

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("Hot", "--hashes", os.devnull), "not the name of a set"),
            (("hot.plus-0002", "--hashes", os.devnull), "not the name of a set"),
            (("hot",), "no chunks are named"),
            (("hot", "--hashes", os.devnull), "no chunk hash in it"),
            (("--add",), "no set to pin them in"),
            (("hot", "--hashes", "/no/such/file"), "No such file"),
        ],
    )
    def test_bad_input_is_one_line(
        self, arguments: tuple[str, ...], says: str, moto_endpoint: str, fresh_uri: str
    ) -> None:
        result = s3kv(moto_endpoint, "pin", fresh_uri, *arguments)

        assert (result.exit_code, result.stdout) == (2, "")
        (line,) = result.stderr.splitlines()
        assert says in line


# ------------------------------------------------------------------------- the sequencer
MAIN = "from s3kv.cli import main; main()"


class Process:
    """A sequencer in a process of its own, and what it has said."""

    def __init__(self, endpoint_url: str, *arguments: str) -> None:
        command = [sys.executable, "-c", MAIN, "sequencer", *arguments]
        self._process = subprocess.Popen(
            end_with_parent([*command, "--endpoint-url", endpoint_url, "--json"]),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[dict[str, Any]] = []
        self._reading = threading.Thread(target=self._read)
        self._reading.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(json.loads(line))

    def leads(self, ns: NamespaceId) -> bool:
        return any(line["leads"] and line["namespace"] == ns for line in list(self.lines))

    def end(self, how: signal.Signals) -> tuple[int, str]:
        """Exit code, and what it wrote to stderr."""
        self._process.send_signal(how)
        exit_code = self._process.wait(PATIENCE_S)
        self._reading.join(PATIENCE_S)
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        with self._process.stdout, self._process.stderr:
            return exit_code, self._process.stderr.read()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None


@contextmanager
def sequencers() -> Iterator[Callable[..., Process]]:
    """Begins processes; ends those that a failed test leaves."""
    begun: list[Process] = []

    def begin(endpoint_url: str, *arguments: str) -> Process:
        begun.append(Process(endpoint_url, *arguments))
        return begun[-1]

    try:
        yield begin
    finally:
        for process in begun:
            if process.is_running:
                process.end(signal.SIGKILL)


async def commit(store: ObjectStore, fp: int) -> None:
    """A segment of an engine that has ended since."""
    clock = Clock()
    writer = IndexWriter(store, small_namespace(), clock, FAST)
    records = make_records([fp], int(clock.unix_s()), 4)
    committing = asyncio.create_task(writer.commit(records))
    await asyncio.sleep(0)
    assert await writer.drain(PATIENCE_S) == 0
    await committing


class TestSequencer:
    async def test_it_leads_folds_and_ends_cleanly(self, endpoint: str, fresh_uri: str) -> None:
        await asyncio.to_thread(archive_at, endpoint, fresh_uri)
        ns = small_namespace().id

        with sequencers() as begin:
            process = begin(endpoint, fresh_uri)
            async with (
                following(endpoint, fresh_uri, "") as (reader,),
                connected_store(endpoint, fresh_uri) as store,
            ):
                await until(lambda: process.leads(ns))
                head = reader.snapshot.head
                await commit(store, 7)
                await until(lambda: has(reader, 7))
                assert reader.snapshot.head > head, "it is in a tick, not only in the inbox"

            exit_code, complaints = await asyncio.to_thread(process.end, signal.SIGTERM)

        assert (exit_code, complaints) == (0, "")
        keys = await asyncio.to_thread(keys_under, endpoint, fresh_uri)
        assert not [key for key in keys if "/inbox/" in key or ".s3kv-probe" in key]
        assert [line["event"] for line in process.lines] == ["begins", "sequencing"]
        begins = process.lines[0]
        assert (begins["namespaces"], begins["ttl_s"], begins["max_bytes"]) == (None, None, None)
        assert "WARNING: neither --ttl nor --max-bytes" in begins["reason"]

    async def test_a_second_one_takes_over_when_the_first_is_killed(
        self, seaweed_endpoint: str, fresh_uri: str
    ) -> None:
        await asyncio.to_thread(archive_at, seaweed_endpoint, fresh_uri)
        ns = small_namespace().id

        with sequencers() as begin:
            first, second = (
                begin(seaweed_endpoint, fresh_uri),
                begin(seaweed_endpoint, fresh_uri, ns[:8]),
            )
            await until(lambda: first.leads(ns) or second.leads(ns))
            killed, _ = await asyncio.to_thread(first.end, signal.SIGKILL)
            async with (
                following(seaweed_endpoint, fresh_uri, "") as (reader,),
                connected_store(seaweed_endpoint, fresh_uri) as store,
            ):
                await commit(store, 9)
                await until(lambda: has(reader, 9))
                folded_by = reader.follower.leader
                await commit(store, 10)
                await until(lambda: has(reader, 10))
                assert reader.follower.leader == folded_by is not None
            ended, complaints = await asyncio.to_thread(second.end, signal.SIGINT)

        assert killed == -signal.SIGKILL
        assert (ended, complaints) == (0, "")

    def test_bad_input_ends_it_before_it_begins(self, moto_endpoint: str, fresh_uri: str) -> None:
        archive_at(moto_endpoint, fresh_uri)
        before = keys_under(moto_endpoint, fresh_uri)

        for arguments, says in (
            (("zz",), "no such namespace"),
            (("--ttl", "soon"), "--ttl"),
            (("--max-bytes", "0"), "--max-bytes"),
        ):
            result = s3kv(moto_endpoint, "sequencer", fresh_uri, *arguments)

            assert (result.exit_code, result.stdout) == (2, "")
            (line,) = result.stderr.splitlines()
            assert says in line
        assert keys_under(moto_endpoint, fresh_uri) == before


def has(reader: IndexReader, fp: int) -> bool:
    return fp in reader.snapshot.live().fps
