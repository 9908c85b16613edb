"""The life of requests on a real engine: hits, aborts, preemption, resets; nothing is ever lost.

Answers are compared with those after a hit in the engine's own prefix cache, not with a cold run.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from s3kv.runtime.clock import Clock
from tests.engine.fixtures_lifecycle import (
    BLOCK_TOKENS,
    CHUNK_TOKENS,
    ENGINE_MARKS,
    Archive,
    Driver,
    Engine,
    HeldFence,
    assert_whole,
    gated,
    grown,
    local_answer,
    our_log,
    prompt_of,
    puts,
    seen_plans,
    settle,
    wait_until,
)

pytestmark = ENGINE_MARKS

ENGINE_OPTIONS = {"lookup_deadline_s": 1.0, "load_deadline_s": 20.0}


@pytest.fixture
def archive(shared_archive: Archive) -> Archive:
    return shared_archive


@pytest.fixture
def live(shared: Engine) -> Iterator[Engine]:
    """The shared engine, whole before and after every test."""
    shared.forget_local()
    caught = shared.caught()
    yield shared
    assert_whole(shared)
    assert shared.caught() == caught


@pytest.fixture
def drive(live: Engine) -> Driver:
    return Driver(live)


def hit_of(token_count: int) -> int:
    """A full hit leaves one token to compute and ends at a block boundary."""
    return (token_count - 1) // BLOCK_TOKENS * BLOCK_TOKENS


# ------------------------------------------------------------------------------ hits
EDGES = [
    *(edge + d for edge in (BLOCK_TOKENS, CHUNK_TOKENS, 2 * CHUNK_TOKENS) for d in (-1, 0, 1)),
    *(CHUNK_TOKENS + BLOCK_TOKENS + d for d in (-1, 0, 1)),
]


def test_archived_prompts_of_any_length_hit_all_but_what_must_be_computed(live: Engine) -> None:
    prompts = [prompt_of(n, seed=10_000 + n) for n in EDGES]
    live.generate(prompts)
    local = [live.ask(prompt) for prompt in prompts]
    settle(live)
    live.forget_local()
    warm = [live.ask(prompt) for prompt in prompts]
    assert {n: a.hit_tokens for n, a in zip(EDGES, warm, strict=True)} == {
        n: hit_of(n) for n in EDGES
    }
    assert [(a.token_ids, a.logprobs) for a in warm] == [(a.token_ids, a.logprobs) for a in local]


def test_prompts_with_a_common_prefix_share_its_shards(live: Engine, archive: Archive) -> None:
    common = prompt_of(2 * CHUNK_TOKENS, seed=1)
    first = [*common, *prompt_of(CHUNK_TOKENS, seed=2)]
    second = [*common, *prompt_of(CHUNK_TOKENS, seed=3)]
    before = archive.shards()
    live.ask(first)
    settle(live)
    after_first = archive.shards()
    assert len(after_first - before) == 3
    live.forget_local()
    hit = live.ask(second)
    settle(live)
    assert hit.hit_tokens == len(common)
    assert len(archive.shards() - after_first) == 1


def test_what_is_archived_is_not_uploaded_again(live: Engine, archive: Archive) -> None:
    prompt = prompt_of(3 * CHUNK_TOKENS + BLOCK_TOKENS, seed=4)
    live.ask(prompt)
    settle(live)
    shards, sent = archive.shards(), puts(live)
    live.ask(prompt)  # from the engine's own cache
    live.forget_local()
    live.ask(prompt)  # from the archive
    live.forget_local()
    live.ask(prompt, s3kv={"load": False})  # computed anew
    settle(live)
    assert archive.shards() == shards
    assert puts(live) == sent


def test_what_a_stale_index_does_not_show_is_found_by_its_name_instead_of_uploaded_again(
    live: Engine, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(2 * CHUNK_TOKENS, seed=5)
    live.ask(prompt)
    settle(live)
    shards, found = archive.shards(), live.worker.outbox.counts.get("saves_found", 0)
    uploaded = live.worker.outbox.counts["saves_uploaded"]
    live.forget_local()
    worker_archive = live.worker._archive
    assert worker_archive is not None
    monkeypatch.setattr(live.scheduler, "_clock", _AheadClock())
    monkeypatch.setattr(worker_archive, "knows", lambda chunk_hash: False)
    live.ask(prompt, s3kv={"load": False})
    settle(live)
    assert archive.shards() == shards
    assert live.worker.outbox.counts["saves_found"] - found == 2
    assert live.worker.outbox.counts["saves_uploaded"] == uploaded


class _AheadClock(Clock):
    """Tells the scheduler side that the index was last read an hour ago."""

    def monotonic_s(self) -> float:
        return super().monotonic_s() + 3_600


def test_a_grown_conversation_hits_the_tail_chunk_of_the_old_prompt(live: Engine) -> None:
    old = prompt_of(2 * CHUNK_TOKENS + 2 * BLOCK_TOKENS + 5, seed=6)
    answer = live.ask(old, max_tokens=40)
    settle(live)
    live.forget_local()
    prompt = grown(old, answer.token_ids, question_tokens=60, seed=7)
    warm = live.ask(prompt)
    assert warm.hit_tokens == 2 * CHUNK_TOKENS + 2 * BLOCK_TOKENS
    live.forget_local()
    assert warm.token_ids == local_answer(live, prompt, s3kv={"load": False}).token_ids


def test_a_local_hit_and_an_archived_one_join(live: Engine, archive: Archive) -> None:
    prompt = prompt_of(4 * CHUNK_TOKENS, seed=8)
    local = local_answer(live, prompt)
    held = CHUNK_TOKENS + BLOCK_TOKENS  # ends inside the second chunk
    live.ask(prompt[:held], s3kv={"load": False, "save": False})
    warm = live.ask(prompt)
    assert warm.hit_tokens == hit_of(len(prompt)) - held
    assert warm.token_ids == local.token_ids
    assert warm.logprobs == local.logprobs


# ------------------------------------------------------------------- per request
def test_a_request_may_decline_to_load(live: Engine) -> None:
    prompt = prompt_of(2 * CHUNK_TOKENS, seed=20)
    local = local_answer(live, prompt)
    cold = live.ask(prompt, s3kv={"load": False})
    assert (cold.hit_tokens, cold.report["miss_reason"]) == (0, "not_wanted")
    assert cold.token_ids == local.token_ids


def test_a_request_may_decline_to_be_saved(live: Engine, archive: Archive) -> None:
    prompt, before = prompt_of(2 * CHUNK_TOKENS, seed=21), archive.shards()
    live.ask(prompt, s3kv={"save": False})
    settle(live)
    assert archive.shards() == before
    live.ask(prompt)
    settle(live)
    assert len(archive.shards() - before) == 2


def test_a_request_may_limit_its_hit(live: Engine) -> None:
    prompt = prompt_of(2 * CHUNK_TOKENS, seed=22)
    local_answer(live, prompt)
    hits = {}
    for limit in (0, 31, 64, 100, 10_000):
        live.forget_local()
        hits[limit] = live.ask(prompt, s3kv={"max_load_tokens": limit}).hit_tokens
    assert hits == {0: 0, 31: 0, 64: 64, 100: 96, 10_000: hit_of(len(prompt))}


@pytest.mark.parametrize("option", [{"laod": False}, {"load": "no"}, {"max_load_tokens": -1}])
def test_a_bad_option_costs_the_request_the_archive_and_warns_and_nothing_else(
    live: Engine, archive: Archive, option: dict[str, object]
) -> None:
    prompt = prompt_of(2 * CHUNK_TOKENS, seed=23)
    local = local_answer(live, prompt)
    other, before = prompt_of(CHUNK_TOKENS, seed=24), archive.shards()
    with our_log() as log:
        answer = live.ask(prompt, s3kv=option)
        live.ask(other, s3kv=option)
    settle(live)
    assert (answer.hit_tokens, answer.report["miss_reason"]) == (0, "bad_options")
    assert answer.token_ids == local.token_ids
    assert archive.shards() == before
    warnings = log.texts(logging.WARNING)
    assert len(warnings) == 2
    assert all(next(iter(option)) in line for line in warnings)


def test_a_request_for_prompt_logprobs_computes_its_prompt(live: Engine, drive: Driver) -> None:
    prompt = prompt_of(2 * CHUNK_TOKENS, seed=25)
    local = local_answer(live, prompt)
    name = drive.submit(prompt, prompt_logprobs=1)
    (tokens,) = drive.finish(name)
    assert tokens == local.token_ids
    output = drive.finished[name]
    assert len(output.prompt_logprobs) == len(prompt)
    report = output.kv_transfer_params["s3kv"]
    assert (report["hit_tokens"], report["miss_reason"]) == (0, "prefix_cache_skipped")


# ------------------------------------------------------------------- identical prompts
def loaded_chunks(plans: Sequence[object]) -> Counter[bytes]:
    from s3kv.connector.messages import Plan

    return Counter(
        part.address.chunk_hash
        for plan in plans
        if isinstance(plan, Plan)
        for job in plan.loads
        for part in job.parts
    )


def test_identical_prompts_of_one_batch_are_loaded_once(
    live: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(3 * CHUNK_TOKENS + 10, seed=30)
    local = local_answer(live, prompt)
    plans = seen_plans(live, monkeypatch)
    answers = live.generate([prompt] * 4)
    assert {a.token_ids for a in answers} == {local.token_ids}
    assert set(loaded_chunks(plans).values()) == {1}
    assert len(loaded_chunks(plans)) == 3
    assert sorted(a.hit_tokens for a in answers) == [0, 0, 0, 3 * CHUNK_TOKENS]


def test_the_children_of_one_request_load_its_prompt_once(
    live: Engine, drive: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(3 * CHUNK_TOKENS, seed=31)
    local_answer(live, prompt)
    plans = seen_plans(live, monkeypatch)
    name = drive.submit(prompt, n=3, temperature=0.9, seed=5)
    drive.finish(name)
    assert len(drive.finished[name].outputs) == 3
    assert set(loaded_chunks(plans).values()) == {1}
    assert len(loaded_chunks(plans)) == 3


def test_identical_new_prompts_of_one_batch_are_saved_once(
    live: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans = seen_plans(live, monkeypatch)
    live.generate([prompt_of(2 * CHUNK_TOKENS, seed=32)] * 3)
    settle(live)
    saved = Counter(job.address.chunk_hash for plan in plans for job in plan.saves)
    assert len(saved) == 2
    assert set(saved.values()) == {1}


# ------------------------------------------------------------------------------ aborts
def test_abort_while_looking_up(live: Engine, drive: Driver) -> None:
    prompt = prompt_of(2 * CHUNK_TOKENS, seed=40)
    store = live.scheduler._clients.store
    # A new epoch has a new index to open and cannot: lookups ask for names and wait.
    with gated(store, "get", "stat") as gate:
        assert live.llm.reset_prefix_cache(reset_connector=True)
        name = drive.submit(prompt)
        drive.step_until(lambda: gate.waiting >= 2, "a probe under way")
        drive.step()
        assert drive.status(name) == "WAITING"
        assert drive.is_tracked(name)
        drive.abort(name)
        assert drive.status(name) == ""
        assert live.scheduler._tracked == {}
        drive.all_steps()
    assert live.ask(prompt).token_ids == local_answer(live, prompt).token_ids


def test_a_lookup_without_an_answer_becomes_a_miss(live: Engine) -> None:
    prompt = prompt_of(2 * CHUNK_TOKENS, seed=41)
    local = local_answer(live, prompt)
    with gated(live.scheduler._clients.store, "get", "stat"):
        assert live.llm.reset_prefix_cache(reset_connector=True)
        answer = live.ask(prompt)
    assert answer.token_ids == local.token_ids
    assert answer.report["miss_reason"] in ("lookup_deadline", "probe_failed")


def test_abort_while_loading_gives_everything_back_before_the_store_answers(
    live: Engine, drive: Driver
) -> None:
    prompt = prompt_of(3 * CHUNK_TOKENS, seed=42)
    local = local_answer(live, prompt)
    with gated(live.worker._store, "get_into") as gate:
        name = drive.submit(prompt)
        drive.step_until(lambda: gate.waiting > 0, "a load under way")
        assert drive.status(name) == "WAITING_FOR_REMOTE_KVS"
        free = live.free_blocks()
        drive.abort(name)
        drive.all_steps()
        assert live.free_blocks() > free
        assert live.scheduler._loads.in_flight_count == 0
        wait_until(lambda: live.free_slots() == live.slot_count(), "slots of the aborted load")
    again = live.ask(prompt)
    assert again.hit_tokens == hit_of(len(prompt))
    assert again.token_ids == local.token_ids


def test_abort_while_another_request_waits_for_the_same_load(live: Engine, drive: Driver) -> None:
    prompt = prompt_of(3 * CHUNK_TOKENS, seed=43)
    local = local_answer(live, prompt)
    with gated(live.worker._store, "get_into") as gate:
        names = [drive.submit(prompt), drive.submit(prompt)]
        drive.step_until(lambda: gate.waiting > 0, "a load under way")
        drive.step()
        # Whose look-up was answered first loads, and that need not be who came first.
        loading, waiting = sorted(names, key=drive.status, reverse=True)
        assert drive.status(loading) == "WAITING_FOR_REMOTE_KVS"
        assert drive.status(waiting) == "WAITING"
        drive.abort(loading)
        gate.open()
        assert drive.finish(waiting) == [local.token_ids]


def test_abort_while_copies_wait_keeps_the_sources_until_they_are_copied(
    live: Engine, drive: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = prompt_of(3 * CHUNK_TOKENS, seed=44)
    local = live.ask(prompt, s3kv={"save": False})
    local = live.ask(prompt, s3kv={"save": False})
    live.forget_local()
    held = HeldFence()
    saves = live.scheduler._saves
    assert saves is not None
    with monkeypatch.context() as patch:
        patch.setattr(live.worker, "fence", lambda: held)
        name = drive.submit(prompt)
        drive.step_until(lambda: saves.pinned_count == 3, "three saves pinned")
        drive.abort(name)
        drive.step()
        assert not live.llm.reset_prefix_cache(), "pinned blocks must not be forgotten"
        assert (
            live.free_blocks() < live.core.scheduler.kv_cache_manager.block_pool.num_gpu_blocks - 1
        )
        held.reached = True
        drive.all_steps()
    settle(live)
    live.forget_local()
    warm = live.ask(prompt)
    assert warm.hit_tokens == hit_of(len(prompt))
    assert warm.token_ids == local.token_ids
    assert warm.logprobs == local.logprobs


def test_abort_while_uploading_archives_what_was_copied(
    live: Engine, drive: Driver, archive: Archive
) -> None:
    prompt, before = prompt_of(3 * CHUNK_TOKENS, seed=45), archive.shards()
    saves = live.scheduler._saves
    assert saves is not None
    with gated(live.worker._store, "put") as gate:
        name = drive.submit(prompt, max_tokens=64)
        drive.step_until(lambda: gate.waiting > 0, "an upload under way")
        drive.step_until(lambda: saves.pinned_count == 0, "copies made while uploads wait")
        drive.abort(name)
        drive.all_steps()
        assert live.free_slots() < live.slot_count()
        assert archive.shards() == before
    settle(live)
    assert len(archive.shards() - before) == 3
    live.forget_local()
    assert live.ask(prompt).hit_tokens == hit_of(len(prompt))


def test_finishing_does_not_wait_for_uploads(live: Engine, archive: Archive) -> None:
    prompt, before = prompt_of(2 * CHUNK_TOKENS, seed=46), archive.shards()
    with gated(live.worker._store, "put") as gate:
        live.ask(prompt)
        wait_until(lambda: gate.waiting > 0, "an upload under way")
        live.forget_local()  # nothing is pinned any more
        assert archive.shards() == before
    settle(live)
    assert len(archive.shards() - before) == 2


# ------------------------------------------------------------------------------ resets
def test_a_reset_of_the_engine_s_cache_leaves_the_archive_s_namespace(
    live: Engine, archive: Archive
) -> None:
    prompt = prompt_of(2 * CHUNK_TOKENS, seed=50)
    local_answer(live, prompt)
    names = archive.namespaces()
    assert live.llm.reset_prefix_cache()
    assert live.ask(prompt).hit_tokens == hit_of(len(prompt))
    assert archive.namespaces() == names


def test_a_reset_of_the_connector_begins_a_namespace_and_leaves_the_bucket_alone(
    live: Engine, archive: Archive
) -> None:
    prompt = prompt_of(2 * CHUNK_TOKENS, seed=51)
    local = local_answer(live, prompt)
    before, names = archive.objects(), archive.namespaces()
    old = live.scheduler._archive
    assert old is not None
    assert live.llm.reset_prefix_cache(reset_connector=True)
    answer = live.ask(prompt)
    assert answer.hit_tokens == 0, "a hit from another epoch"
    assert answer.token_ids == local.token_ids
    settle(live)
    shards = {name: size for name, size in before.items() if "/data/" in name}
    assert shards.items() <= archive.objects().items()
    assert archive.namespaces() > names
    live.forget_local()
    again = live.ask(prompt)
    assert again.hit_tokens == hit_of(len(prompt)), "the new epoch has an archive too"
    assert again.token_ids == local.token_ids


def test_a_reset_while_uploads_wait_stores_nothing_under_the_new_name(
    live: Engine, archive: Archive
) -> None:
    prompt, before = prompt_of(2 * CHUNK_TOKENS, seed=52), archive.shards()
    old = live.scheduler._archive
    assert old is not None
    with gated(live.worker._store, "put") as gate:
        live.ask(prompt)
        wait_until(lambda: gate.waiting > 0, "an upload under way")
        assert live.llm.reset_prefix_cache(reset_connector=True)
        live.ask(prompt_of(8, seed=53), max_tokens=1)  # ships the new namespace
    settle(live)
    assert all(f"/{old.namespace.id}/" in name for name in archive.shards() - before)
    live.forget_local()
    assert live.ask(prompt).hit_tokens == 0


def test_a_reset_while_copies_wait_stores_nothing_under_the_new_name(
    live: Engine, drive: Driver, archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt, before = prompt_of(2 * CHUNK_TOKENS, seed=54), archive.shards()
    old, held, saves = live.scheduler._archive, HeldFence(), live.scheduler._saves
    assert old is not None
    assert saves is not None
    with monkeypatch.context() as patch:
        patch.setattr(live.worker, "fence", lambda: held)
        name = drive.submit(prompt)
        drive.step_until(lambda: saves.pinned_count > 0, "saves pinned")
        assert not live.llm.reset_prefix_cache(reset_connector=True), "blocks are in use"
        drive.finish(name)
        held.reached = True
        drive.all_steps()
    settle(live)
    assert all(f"/{old.namespace.id}/" in name for name in archive.shards() - before)


def test_a_reset_while_loading_never_passes_off_missing_blocks_as_loaded(
    live: Engine, drive: Driver
) -> None:
    prompt = prompt_of(3 * CHUNK_TOKENS, seed=55)
    local = local_answer(live, prompt)
    # Other bytes in the blocks that the load will get.
    live.ask(prompt_of(6 * CHUNK_TOKENS, seed=56), s3kv={"save": False})
    live.forget_local()
    with gated(live.worker._store, "get_into") as gate:
        name = drive.submit(prompt)
        drive.step_until(lambda: gate.waiting > 0, "a load under way")
        assert not live.llm.reset_prefix_cache(reset_connector=True), "blocks are in use"
        drive.step_until(lambda: live.scheduler._acknowledged, "the new namespace is taken up")
        gate.open()
        assert drive.finish(name) == [local.token_ids]


def test_while_the_caches_are_away_nothing_is_copied_and_afterwards_all_is_as_before(
    live: Engine,
) -> None:
    archived, fresh = prompt_of(3 * CHUNK_TOKENS, seed=71), prompt_of(2 * CHUNK_TOKENS, seed=72)
    live.ask(archived)
    right = live.ask(archived)
    settle(live)
    live.worker_connector.unregister_kv_caches()
    live.forget_local()
    asleep = live.ask(archived)
    assert (asleep.token_ids, asleep.hit_tokens) == (right.token_ids, 0)
    dropped = live.worker.outbox.counts.get("saves_dropped_not_open", 0)
    live.ask(fresh)
    assert live.worker.outbox.counts["saves_dropped_not_open"] > dropped
    live.worker_connector.restore_kv_caches()
    settle(live)
    live.forget_local()
    awake = live.ask(archived)
    assert (awake.token_ids, awake.hit_tokens) == (right.token_ids, hit_of(len(archived)))


def test_nothing_is_written_beside_the_prefix(live: Engine, archive: Archive) -> None:
    # From one listing each: between two of them the index folds and deletes its own segments.
    def outside() -> set[str]:
        ours = f"{archive.prefix}/"
        return {name for name in archive.objects("") if not name.startswith(ours)}

    before, known = outside(), set(archive.objects())
    live.ask(prompt_of(CHUNK_TOKENS, seed=60))
    settle(live)
    assert any("/data/" in name for name in set(archive.objects()) - known)
    assert outside() == before
