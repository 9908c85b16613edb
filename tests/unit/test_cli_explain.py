"""Explaining on a store in memory: pauses, short prompts, an index that cannot be read."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.faults import Fail, Faulty
from s3kv.bucket.memory import MemoryStore
from s3kv.cli.explain import Explanation, explanation
from s3kv.cli.explain_view import document_of, show
from s3kv.cli.output import Output
from s3kv.cli.prompt_keys import Prompt
from s3kv.cli.tally import geometry_of
from s3kv.core.follower import LOADS_BIT, SAVES_BIT
from s3kv.core.keys import shard_key, tick_key
from s3kv.core.reasons import ChunkState, MissReason
from s3kv.errors import ConfigError, Denied
from tests.fakes.prompt_archive import PromptArchive, namespace_of, prompt_of, token_ids

URI = "s3://bucket/prefix"
PROMPT = prompt_of(token_ids(10, seed=1))


async def explained(
    store: ObjectStore, prompt: Prompt = PROMPT, namespace: str | None = None
) -> Explanation:
    return await explanation(store, URI, prompt, namespace, Output("human"))


def printed(found: Explanation, capsys: pytest.CaptureFixture[str]) -> str:
    json.dumps(document_of(found))  # plain values only
    show(found, Output("human"))
    return capsys.readouterr().out


async def test_paused_loads_come_before_every_other_reason(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = MemoryStore()
    archive = PromptArchive(store)
    await archive.save(PROMPT)
    await (await archive.tool()).sequence(pause_bits=LOADS_BIT)

    found = await explained(store)

    assert (found.reason, found.view.is_whole) == (MissReason.PAUSED, True)
    assert "loading is paused, s3kv resume ends that" in printed(found, capsys)


async def test_a_prompt_that_is_too_short_is_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    store = MemoryStore()
    await PromptArchive(store).save(PROMPT)

    found = await explained(store, prompt_of(token_ids(1, seed=1)))

    assert (found.reason, found.view.is_whole) == (MissReason.SHORT, False)
    assert "too short to be archived: less than 32 tokens" in printed(found, capsys)


async def test_one_token_is_always_computed() -> None:
    store = MemoryStore()
    exact = prompt_of(token_ids(10, seed=1, extra=0))
    await PromptArchive(store).save(exact)

    found = await explained(store, exact)

    assert (found.view.is_whole, found.view.hit_tokens) == (True, 144)


async def test_without_an_index_the_names_are_looked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = Faulty(MemoryStore())
    archive = PromptArchive(store)
    await archive.save(PROMPT)
    store.inject(Fail(Denied("GET: AccessDenied")), "get", keys="*/idx/*", times=None)

    found = await explained(store)

    assert [seen.state for seen in found.view.own] == [ChunkState.PRESENT] * 3
    text = printed(found, capsys)
    assert "the index could not be read: GET: AccessDenied" in text
    assert "not read" in text


async def test_an_index_with_a_hole_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    store = MemoryStore()
    archive = PromptArchive(store)
    derived = await archive.save(PROMPT)
    await archive.announce(derived.chunks[:1])
    store.write(tick_key(archive.namespace.id, 1), b"damaged")

    found = await explained(store)

    assert "parts of the index could not be read" in printed(found, capsys)
    assert found.view.own[1].state is ChunkState.UNANNOUNCED


async def test_of_several_namespaces_the_one_that_lists_most_is_explained() -> None:
    store = MemoryStore()
    less, more = namespace_of(label="less"), namespace_of(label="more")
    await PromptArchive(store, less).save(prompt_of(PROMPT.token_ids[:70]))
    await PromptArchive(store, more).save(PROMPT)

    found = await explained(store)
    named = await explained(store, namespace=less.id)

    assert found.view.candidate.namespace == more
    assert [each.namespace for each in found.elsewhere] == [less]
    assert named.view.candidate.namespace == less
    assert [each.namespace for each in named.elsewhere] == [more]
    (field,) = named.elsewhere[0].differences(less)
    assert (field.field, field.there, field.here) == ("label", '"more"', '"less"')


async def test_a_whole_prompt_in_the_named_namespace_needs_no_look_at_others() -> None:
    store = Faulty(MemoryStore())
    mine, other = namespace_of(label="mine"), namespace_of(label="other")
    for namespace in (mine, other):
        await PromptArchive(store, namespace).save(PROMPT)
    store.calls.clear()

    await explained(store, namespace=mine.id)

    assert not any(other.id in key for _, key in store.calls)


async def save_without_index(archive: PromptArchive, prompt: Prompt = PROMPT) -> None:
    """What engines leave on a store that cannot carry an index."""
    await archive.describe()
    derived = archive.derived(prompt)
    for chunk in derived.chunks:
        await archive.upload(derived, chunk)


async def test_where_there_is_no_index_chunks_are_found_by_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    store = MemoryStore()
    await save_without_index(PromptArchive(store))

    found = await explained(store)

    assert (found.view.is_whole, found.view.hit_tokens, found.reason) == (True, 160, None)
    assert {seen.state for seen in found.view.own} == {ChunkState.PRESENT}
    document: Any = document_of(found)
    assert document["index"]["unindexed"] is True
    assert document["chunks"][0]["why"] == "archived; no index here: found by name"
    text = printed(found, capsys)
    assert "there is no index here: engines find chunks by name until one is begun" in text
    assert "an engine gets 160 of 165 tokens" in text


async def test_a_hole_where_there_is_no_index_is_a_miss_from_there_on() -> None:
    store = MemoryStore()
    archive = PromptArchive(store)
    await save_without_index(archive)
    await save_without_index(archive, prompt_of(PROMPT.token_ids[: 7 * 16]))  # not asked for
    await archive.delete(archive.derived(PROMPT).chunks[1])

    found = await explained(store)

    assert [seen.state.value for seen in found.view.rows] == ["present", "absent", "present"]
    assert (found.view.is_whole, found.view.hit_tokens) == (False, 64)


async def test_of_several_namespaces_without_an_index_the_one_that_has_most_is_explained() -> None:
    store = MemoryStore()
    labelled = sorted((namespace_of(label="a"), namespace_of(label="b")), key=lambda ns: ns.id)
    await save_without_index(PromptArchive(store, labelled[0]), prompt_of(PROMPT.token_ids[:70]))
    await save_without_index(PromptArchive(store, labelled[1]))

    found = await explained(store)

    assert found.view.candidate.namespace == labelled[1]
    assert [(each.namespace, each.listed_tokens) for each in found.elsewhere] == [(labelled[0], 64)]


@pytest.mark.parametrize("is_paused", [True, False])
async def test_paused_saves_are_told_where_something_is_missing(
    is_paused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore()
    archive = PromptArchive(store)
    await archive.save(prompt_of(PROMPT.token_ids[:70]))
    await (await archive.tool()).sequence(pause_bits=SAVES_BIT if is_paused else 0)

    missing, whole = await explained(store), await explained(store, prompt_of(token_ids(4, seed=1)))

    assert missing.first_missing is not None
    assert missing.first_missing.state is ChunkState.ABSENT
    says = "nothing is saved now: saving is paused, s3kv resume ends that"
    assert (says in printed(missing, capsys)) is is_paused
    assert says not in printed(whole, capsys)


async def test_a_hash_algorithm_that_names_no_shards_is_said() -> None:
    store = MemoryStore()
    await PromptArchive(store, namespace_of(hash_algorithm="xxhash")).describe()

    with pytest.raises(ConfigError, match="xxhash differs from process to process"):
        await explained(store)


async def test_a_prefix_without_an_archive_is_said() -> None:
    with pytest.raises(ConfigError, match="no archive under this prefix"):
        await explained(MemoryStore())


@pytest.mark.parametrize(("stages", "state"), [((0, 1), "present"), ((1, 0), "misshapen")])
async def test_every_rank_s_shard_has_the_size_of_its_stage(
    stages: tuple[int, int], state: str
) -> None:
    store = MemoryStore()
    layout = namespace_of().fields.layout[0]
    narrow = replace(layout.groups[0], layer_names=("model.layers.2.attn",))
    both = (layout, replace(layout, groups=(narrow,)))
    namespace = namespace_of(pipeline_parallel_size=2, layout=both)
    archive = PromptArchive(store, namespace)
    await archive.describe()
    chunks = archive.derived(PROMPT).chunks
    for chunk in chunks:
        for rank, stage in enumerate(stages):
            size = geometry_of(namespace, stage).shard_bytes(chunk.block_count)
            store.write(shard_key(namespace.id, chunk.chunk_hash, rank, 2), bytes(size))
    await archive.announce(chunks)

    found = await explained(store)

    assert {seen.state.value for seen in found.view.own} == {state}
