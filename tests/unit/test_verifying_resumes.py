"""A verification that is killed goes on where it was, and reports all of it in the end."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from s3kv.bucket.faults import Fail, Faulty
from s3kv.cli.files import replace_file
from s3kv.cli.verify_state import SAVE_INTERVAL_S, Verification, VerifyState, load_state
from s3kv.core.requests import Listed
from s3kv.core.sweep import FOLDERS
from s3kv.core.verified import FINDINGS_MAX, NAMES_MAX, Fate, Progress, Tally, remember
from s3kv.core.verifying import Fault, Wrong
from s3kv.errors import ConfigError, Transient
from s3kv.runtime.verifying import Verifier, VerifySettings
from tests.fakes.verify_archive import VerifyArchive, flipped, make_archive

THIS = Verification(uri="s3://bucket/p", endpoint_url=None, namespace="ab" * 16, mode="headers")
CHUNK_COUNT = 40


class Killed(Exception):
    """The process ends here."""


def harmed_archive() -> tuple[VerifyArchive, set[str]]:
    """An archive over many folders, with every seventh shard damaged."""
    archive = asyncio.run(make_archive(CHUNK_COUNT))
    harmed = set(archive.shard_keys[::7])
    for key in harmed:
        archive.harm(key, flipped(archive.store.objects[key], 500))
    return archive, harmed


@pytest.fixture(scope="module")
def harmed() -> tuple[VerifyArchive, set[str]]:
    """No test changes it."""
    return harmed_archive()


async def run(
    archive: VerifyArchive, state: VerifyState, die_at_step: int, save_every: int, width: int = 4
) -> set[str]:
    """A walk that ends when it ends, or is killed; what was looked into."""
    faulty, steps = Faulty(archive.store), 0

    def on_step() -> None:
        nonlocal steps
        steps += 1
        if steps % save_every == 0:
            state.save()
        if steps == die_at_step:
            raise Killed

    wanted = VerifySettings(folder_count=width)
    verifier = Verifier(await archive.opened(faulty), archive.shape, wanted, on_step)
    try:
        await verifier.walk(state.progress)
        state.save()
    except Killed:
        pass
    return {key for operation, key in faulty.calls if operation == "get_into"}


class TestResume:
    # Each example is two walks over all folders.
    @settings(max_examples=20)
    @given(
        die_at_step=st.integers(1, CHUNK_COUNT + len(FOLDERS)),
        save_every=st.integers(5, 60),
        width=st.integers(1, 16),
    )
    def test_wherever_it_is_killed_every_shard_is_looked_into_and_reported(
        self,
        harmed: tuple[VerifyArchive, set[str]],
        die_at_step: int,
        save_every: int,
        width: int,
    ) -> None:
        archive, bad = harmed
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "state.json"
            first = load_state(path, THIS)
            looked = asyncio.run(run(archive, first, die_at_step, save_every, width))
            second = load_state(path, THIS)
            resumed_at = second.progress.folders_done
            looked_again = asyncio.run(run(archive, second, 0, 1_000, width))

        assert looked | looked_again == set(archive.shard_keys)
        done = {key for key in archive.shard_keys if FOLDERS.index(folder_of(key)) < resumed_at}
        assert looked_again == set(archive.shard_keys) - done
        tally = second.progress.tally
        assert second.progress.is_done
        assert (tally.shards, tally.good) == (CHUNK_COUNT, CHUNK_COUNT - len(bad))
        assert sorted(found.key for found in tally.findings) == sorted(bad)

    @pytest.mark.parametrize("at", [0, 2, 4])
    async def test_one_that_the_store_stopped_goes_on_at_that_folder(
        self, at: int, tmp_path: Path
    ) -> None:
        archive = await make_archive(5)
        folder = sorted(map(folder_of, archive.shard_keys))[at]
        faulty = Faulty(archive.store)
        faulty.inject(Fail(Transient("down")), "list", keys=f"*/data/{folder}/", times=None)
        state = load_state(tmp_path / "state.json", THIS)

        with pytest.raises(Transient):
            await archive.verified(faulty, state.progress, folder_count=1)
        state.save()

        resumed = load_state(tmp_path / "state.json", THIS)
        assert FOLDERS[resumed.progress.folders_done] == folder
        assert (await archive.verified(progress=resumed.progress)).good == 5

    async def test_one_that_came_to_its_end_begins_anew(self, tmp_path: Path) -> None:
        archive = await make_archive(3)
        path = tmp_path / "state.json"
        state = load_state(path, THIS)
        await archive.verified(progress=state.progress)
        state.save()
        assert json.loads(path.read_text())["done"] is True

        again = load_state(path, THIS)

        assert again.progress == Progress()
        assert json.loads(path.read_text())["done"] is False


def folder_of(key: str) -> str:
    return key.split("/")[2]


class TestStateFile:
    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"uri": "s3://bucket/q"}, "uri s3://bucket/p, not s3://bucket/q"),
            ({"endpoint_url": "http://x"}, "endpoint_url None"),
            ({"namespace": "cd" * 16}, "namespace"),
            ({"mode": "every byte"}, "mode headers, not every byte"),
        ],
    )
    @pytest.mark.parametrize("folders_done", [7, len(FOLDERS)])
    def test_that_of_another_verification_is_refused_and_kept(
        self, folders_done: int, change: dict[str, str], says: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "state.json"
        VerifyState(path, THIS, Progress(folders_done)).save()
        before = path.read_bytes()

        with pytest.raises(ConfigError, match=says):
            load_state(path, THIS.model_copy(update=change))
        assert path.read_bytes() == before

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"my diary",
            b"{}",
            b'{"format": "s3kv-sweep-state/1", "done": {}}',
            b"\xff\xfe",
        ],
    )
    def test_a_file_of_something_else_is_refused_and_kept(
        self, content: bytes, tmp_path: Path
    ) -> None:
        path = tmp_path / "diary.txt"
        path.write_bytes(content)

        with pytest.raises(ConfigError, match="not the state of a verification"):
            load_state(path, THIS)
        assert path.read_bytes() == content

    @pytest.mark.parametrize("folders_done", [-1, len(FOLDERS) + 1])
    def test_one_with_more_folders_than_there_are_is_refused(
        self, folders_done: int, tmp_path: Path
    ) -> None:
        path = tmp_path / "state.json"
        VerifyState(path, THIS).save()
        document = json.loads(path.read_text()) | {"folders_done": folders_done}
        path.write_text(json.dumps(document))

        with pytest.raises(ConfigError):
            load_state(path, THIS)

    def test_where_nothing_can_be_written_is_known_before_the_work(self, tmp_path: Path) -> None:
        for path, says in ((tmp_path / "no/such/state", "written"), (tmp_path, "read")):
            with pytest.raises(ConfigError, match=f"cannot be {says}"):
                load_state(path, THIS)

    def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(self, tmp_path: Path) -> None:
        path = tmp_path / "state.json"
        path.write_text("old")

        with pytest.raises(UnicodeEncodeError):
            replace_file(path, "new \ud800")  # no file can hold it
        assert path.read_text() == "old"
        assert list(tmp_path.iterdir()) == [path]

    def test_it_is_written_at_most_every_few_seconds_and_only_when_there_is_news(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "state.json"
        state = VerifyState(path, THIS)
        written = []
        for now_s, folders_done in ((0.0, 1), (1.0, 2), (SAVE_INTERVAL_S, 3), (99.0, 3)):
            state.progress.folders_done = folders_done
            path.unlink(missing_ok=True)
            state.save_if_due(now_s)
            written.append(path.exists())

        assert written == [True, False, True, False]

    def test_all_that_was_found_comes_back(self, tmp_path: Path) -> None:
        path = tmp_path / "state.json"
        state = VerifyState(path, THIS, Progress(9, full_tally()))
        state.save()

        assert load_state(path, THIS).progress == Progress(9, full_tally())


def full_tally() -> Tally:
    """Every field counts something."""
    tally = Tally()
    for count, name in enumerate(Tally.__slots__, 1):
        if isinstance(getattr(tally, name), int):
            setattr(tally, name, count)
    tally.add_bad(Listed("key", 5, 0.0, 0.0, "e"), Fault(Wrong.SIZE, "short"), Fate.LEFT)
    for names in (tally.incomplete_names, tally.unchecked_names, tally.foreign_names):
        names.append("name")
    return tally


class TestTally:
    def test_adding_adds_every_field(self) -> None:
        twice = Tally()
        twice.add(full_tally())
        twice.add(full_tally())

        for name in Tally.__slots__:
            one, two = getattr(full_tally(), name), getattr(twice, name)
            if isinstance(one, int):
                assert two == 2 * one > 0, name
            elif isinstance(one, dict):
                assert two == {key: 2 * count for key, count in one.items()} != {}, name
            else:
                assert two == one + one != [], name

    def test_what_is_named_is_bounded_and_counted_all_the_same(self) -> None:
        many, more = Tally(), Tally()
        count = FINDINGS_MAX + 5
        found = Listed("key", 5, 0.0, 0.0, "e")
        for tally in (many, more):
            for _ in range(count):
                tally.add_bad(found, Fault(Wrong.SIZE, "short"), Fate.REPORTED)
            for _ in range(NAMES_MAX + 10):
                remember(tally.foreign_names, "name")
        assert len(many.findings) == FINDINGS_MAX
        many.add(more)

        assert many.bad_count == 2 * count
        assert len(many.findings) == FINDINGS_MAX
        assert len(many.foreign_names) == NAMES_MAX

    @pytest.mark.parametrize(
        "name", ["unknown_format", "unchecked", "incomplete_chunks", "gone_chunks"]
    )
    def test_each_of_these_is_not_all_good(self, name: str) -> None:
        assert Tally(good=3, waiting_chunks=1, unlisted_chunks=1, vanished=1).is_all_good
        tally = Tally(good=3)
        setattr(tally, name, 1)
        assert not tally.is_all_good

    @given(order=st.permutations(range(8)))
    def test_folders_may_be_done_in_any_order(self, order: list[int]) -> None:
        progress, done = Progress(), set()
        for index in order:
            progress.finish(index, Tally(shards=10**index))
            done.add(index)
            leading = next(i for i in range(9) if i not in done)

            assert progress.folders_done == leading
            assert progress.tally.shards == sum(10**i for i in range(leading))
            assert progress.finished_count == len(done)
