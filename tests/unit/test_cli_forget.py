"""Forgetting on a store in memory: the proof believes nobody, and warnings say what they should."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from s3kv.bucket.base import ObjectVersion
from s3kv.bucket.memory import MemoryStore
from s3kv.cli.erasing import Survey
from s3kv.cli.forget import Forgotten, Wanted, forgotten
from s3kv.cli.forget_options import ForgetOptions, check_forget
from s3kv.cli.forget_view import document_of, show
from s3kv.cli.output import Output
from s3kv.cli.prompt_options import PromptOptions
from s3kv.core.follower import SAVES_BIT
from s3kv.core.keys import set_key
from s3kv.core.pinset import encode_set, make_set
from s3kv.errors import ConfigError
from tests.fakes.prompt_archive import PromptArchive, prompt_of, token_ids
from tests.fakes.small_archive import TIMEOUT_S

URI = "s3://bucket/prefix"
PROMPT = prompt_of(token_ids(10, seed=1))


class Stubborn(MemoryStore):
    """Says that it deletes versions."""

    async def delete_versions(self, versions: Sequence[ObjectVersion], *, timeout_s: float) -> None:
        return


class Resaving(MemoryStore):
    """An engine archives what is deleted at once."""

    def __init__(self) -> None:
        super().__init__(versioned=True)
        self.archive = PromptArchive(self)

    async def delete_versions(self, versions: Sequence[ObjectVersion], *, timeout_s: float) -> None:
        await super().delete_versions(versions, timeout_s=timeout_s)
        derived = self.archive.derived(PROMPT)
        await self.archive.upload(derived, derived.chunks[0])
        tool = await self.archive.tool()
        fps_of_first = self.archive.fps(derived.chunks[:1])
        await tool.commit(
            tool.snapshot.live_records(fps_of_first, np.array([4], np.uint16), tool.now().unix_s)
        )


async def forget(store: MemoryStore, **given: Any) -> Forgotten:
    options = ForgetOptions(**{"yes": True, **given})
    wanted = Wanted() if options.everything else Wanted(PROMPT)
    return await forgotten(store, URI, wanted, options, Output("human"))


def told(found: Forgotten) -> list[dict[str, Any]]:
    """What programs are told of each namespace."""
    namespaces: Any = document_of(found)["namespaces"]
    return list(namespaces)


def printed(found: Forgotten, capsys: pytest.CaptureFixture[str]) -> str:
    show(found, Output("human"))
    return capsys.readouterr().out


async def test_a_store_that_deletes_nothing_is_found_out(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = Stubborn()
    archive = PromptArchive(store)
    derived = await archive.save(PROMPT)

    found = await forget(store)

    (target,) = found.targets
    assert found.exit_code == 1
    assert target.left is not None
    assert set(target.left.names) == {archive.key(chunk) for chunk in derived.chunks}
    assert target.left.listed_count == 0
    text = printed(found, capsys)
    assert "still there: 3 objects" in text
    assert archive.key(derived.chunks[0]) in text
    assert document_of(found)["namespaces"][0]["gone"] is False  # type: ignore[index]


async def test_what_an_engine_archives_meanwhile_is_found_in_bucket_and_index(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = Resaving()
    derived = await store.archive.save(PROMPT)

    found = await forget(store)

    (target,) = found.targets
    assert found.exit_code == 1
    assert target.left is not None
    assert target.left.names == (store.archive.key(derived.chunks[0]),)
    assert target.left.listed_count == 1
    assert "still listed in the index: 1 chunk" in printed(found, capsys)


async def test_the_index_forgets_before_the_first_object_goes() -> None:
    class Watched(MemoryStore):
        def __init__(self) -> None:
            super().__init__()
            self.listed: list[int] = []

        async def delete_versions(
            self, versions: Sequence[ObjectVersion], *, timeout_s: float
        ) -> None:
            archive = PromptArchive(self)
            tool = await archive.tool()
            fps = archive.fps(archive.derived(PROMPT).chunks)
            self.listed.append(int(tool.snapshot.present(fps).sum()))
            await super().delete_versions(versions, timeout_s=timeout_s)

    store = Watched()
    await PromptArchive(store).save(PROMPT)

    await forget(store)

    assert store.listed == [0, 0, 0]


async def test_chunks_that_only_the_index_lists_are_forgotten_there() -> None:
    store = MemoryStore()
    archive = PromptArchive(store)
    derived = await archive.save(PROMPT)
    for chunk in derived.chunks:
        await archive.delete(chunk)

    found = await forget(store)

    (target,) = found.targets
    assert (target.listed_count, target.survey.version_count, found.exit_code) == (3, 0, 0)
    tool = await archive.tool()
    assert not tool.snapshot.present(archive.fps(derived.chunks)).any()


async def test_a_prompt_that_is_nowhere_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    store = MemoryStore()
    await PromptArchive(store).save(prompt_of(token_ids(10, seed=2)))
    before = dict(store.objects)

    found = await forget(store)

    assert (found.exit_code, store.objects) == (0, before)
    assert "saves are not paused" not in printed(found, capsys)


@pytest.mark.parametrize("is_paused", [True, False])
async def test_saves_that_go_on_are_warned_of(
    is_paused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore()
    archive = PromptArchive(store)
    await archive.save(PROMPT)
    if is_paused:
        await (await archive.tool()).sequence(pause_bits=SAVES_BIT)

    found = await forget(store, yes=False)

    assert found.targets[0].saves_paused is is_paused
    assert ("saves are not paused" in printed(found, capsys)) is not is_paused


@pytest.mark.parametrize("is_all", [True, False])
async def test_a_dry_run_shows_what_is_pinned_and_refuses_nothing(
    is_all: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore()
    archive = PromptArchive(store)
    derived = await archive.save(PROMPT)
    ns = archive.namespace.id
    pinned = make_set(ns, "keep", {derived.chunks[0].chunk_hash: 4})
    await store.put(set_key(ns, "keep"), encode_set(pinned), timeout_s=TIMEOUT_S)
    before = dict(store.objects)

    dry = await forget(store, yes=False, everything=is_all)

    assert (dry.exit_code, dry.targets[0].pinned_count) == (0, 1)
    text = printed(dry, capsys)
    assert "would go" in text
    assert "1 chunk of it pinned" in text
    assert "nothing was deleted; with --yes and --including-pinned it is" in text
    with pytest.raises(ConfigError, match="1 of these chunks are pinned"):
        await forget(store, everything=is_all)
    assert store.objects == before


async def test_more_names_than_are_remembered_are_at_least_so_many_chunks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore()
    await PromptArchive(store).save(PROMPT)

    whole = await forget(store, yes=False, everything=True)
    (target,) = told(whole)
    assert (target["chunks"], target["chunks_at_least"]) == (3, False)
    assert "at least" not in printed(whole, capsys)
    monkeypatch.setattr("s3kv.cli.erasing.NAMES_MAX", 2)

    cut = await forget(store, yes=False, everything=True)

    (target,) = told(cut)
    assert target["chunks_at_least"] is True
    assert f"at least {target['chunks']}" in printed(cut, capsys)


async def test_a_set_that_cannot_be_read_may_pin_everything(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = MemoryStore()
    archive = PromptArchive(store)
    await archive.save(PROMPT)
    key = set_key(archive.namespace.id, "keep")
    await store.put(key, b"damaged", timeout_s=TIMEOUT_S)

    before = dict(store.objects)

    with pytest.raises(ConfigError, match="is not known: set keep cannot be read"):
        await forget(store)
    dry = await forget(store, yes=False)
    assert (dry.exit_code, store.objects) == (0, before)
    text = printed(dry, capsys)
    assert "what is pinned is not known: set keep cannot be read" in text
    assert "with --yes and --including-pinned it is" in text
    assert (await forget(store, including_pinned=True)).exit_code == 0


async def test_a_namespace_that_cannot_be_read_is_not_called_clean(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = MemoryStore()
    archive = PromptArchive(store)
    await archive.save(PROMPT)
    store.write(f"{'e' * 32}/NAMESPACE.json", b"{}")

    found = await forget(store)

    assert (found.exit_code, list(found.unread)) == (1, ["e" * 32])
    assert "eeeeeeeeeeee: not looked into: NAMESPACE.json" in printed(found, capsys)
    assert found.targets[0].left is not None
    assert found.targets[0].left.is_nothing


async def test_all_needs_one_namespace() -> None:
    store = MemoryStore()
    await PromptArchive(store).save(PROMPT)
    store.write(f"{'e' * 32}/NAMESPACE.json", b"{}")

    with pytest.raises(ConfigError, match="2 namespaces fit"):
        await forget(store, everything=True)
    found = await forget(store, everything=True, namespace="eee")
    assert found.exit_code == 0
    assert not any(key.startswith("eee") for key in store.objects)


def test_prefixes_under_which_nothing_is_are_left_out() -> None:
    survey = Survey(names={"a/1", "c/2"})

    assert survey.worth_deleting(["a/", "b/", "c/", "d/", "a/1"]) == ["a/", "c/", "a/1"]


@pytest.mark.parametrize(
    ("given", "prompt", "field"),
    [
        ({"adapter": "x"}, {}, "--adapter"),
        ({"everything": True, "hashes": "f"}, {}, "--hashes"),
        ({"hashes": "f"}, {"token_ids": "f"}, "--prompt-file"),
        ({"everything": True}, {"salt": "s"}, "--salt"),
        ({}, {"salt": "s"}, "--salt"),
        ({}, {"model": "m"}, "--prompt-file"),
        ({"everything": True}, {"min_tail_tokens": 32}, "--min-tail-tokens"),
        ({"everything": True}, {"hash_seed": "0"}, "--hash-seed"),
        ({"hashes": "f"}, {"model": "m"}, "--model"),
        ({"hashes": "f"}, {"chat": True}, "--chat"),
        ({"hashes": "f", "keep_shared_with": "g"}, {}, "--keep-shared-with"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    given: dict[str, Any], prompt: dict[str, Any], field: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        check_forget(ForgetOptions(**given), PromptOptions(**prompt))
    assert refused.value.field == field
