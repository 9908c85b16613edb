"""`s3kv forget URI`: a prompt, some chunks or a whole namespace, afterwards provably gone.

A dry run unless `--yes`. Chunks are reported dead in the index, then all versions of their shards
are deleted, then bucket and index are asked whether anything is left. An engine that computes the
prompt again archives it again: who must be sure pauses saves first (`s3kv pause --save`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from s3kv.bucket.base import ObjectStore
from s3kv.cli.choosing import carries_index, choose_namespace, namespaces
from s3kv.cli.connection import EXIT_LIMITED, EXIT_OK, bucket_settings, opened
from s3kv.cli.erasing import Eraser, Survey
from s3kv.cli.forget_options import ForgetOptions, check_forget
from s3kv.cli.listing import Unread, read_namespace
from s3kv.cli.options import Options
from s3kv.cli.output import Output
from s3kv.cli.pin_source import read_hashes
from s3kv.cli.prompt_keys import Derived, Prompt, derive_chunks, read_prompt
from s3kv.cli.prompt_options import PromptOptions
from s3kv.core.chunking import Chunk
from s3kv.core.erasure import Erasure, erase_chunks, erase_namespace
from s3kv.core.ids import BlockHash, NamespaceId, fingerprints
from s3kv.core.keys import parse_quarantine_key, parse_shard_key
from s3kv.errors import ConfigError
from s3kv.runtime.clock import Clock
from s3kv.runtime.index_tool import IndexTool


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be forgotten: a prompt but for what it shares with `kept`, or chunks by name, or,
    with neither, everything."""

    prompt: Prompt | None = None
    kept: Prompt | None = None
    hashes: tuple[BlockHash, ...] = ()

    @property
    def is_all(self) -> bool:
        """Whether whole namespaces go."""
        return self.prompt is None and not self.hashes


@dataclass(frozen=True, slots=True)
class Left:
    """What the proof found. names: of objects; listed_count: chunks that the index still lists."""

    names: tuple[str, ...] = ()
    listed_count: int = 0

    @property
    def is_nothing(self) -> bool:
        """Whether all is gone."""
        return not self.names and not self.listed_count


@dataclass(slots=True)
class Target:
    """One namespace and what goes in it. Owned by the command.

    hashes: of all chunks meant, empty if the whole namespace is; tokens: of the prompt that are
    archived there, None if no prompt is named; listed_count: chunks that the index lists;
    saves_paused: None where nobody looked; left: None before the proof.
    """

    erasure: Erasure
    hashes: tuple[BlockHash, ...]
    survey: Survey = field(default_factory=Survey)
    tokens: int | None = None
    listed_count: int = 0
    pinned_count: int = 0
    pins_problem: str = ""
    saves_paused: bool | None = None
    left: Left | None = None

    @property
    def namespace(self) -> NamespaceId:
        """Where."""
        return self.erasure.namespace

    @property
    def found(self) -> set[BlockHash]:
        """Chunks of which anything is there."""
        names = (parse_shard_key(k) or parse_quarantine_key(k) for k in self.survey.names)
        return {name.chunk_hash for name in names if name is not None}

    @property
    def is_pinned(self) -> bool:
        """Whether a set keeps any of it, or may."""
        return bool(self.pinned_count or self.pins_problem)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to forget."""
        return self.survey.is_empty and not self.listed_count


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The answer. unread: namespaces of which nobody can tell what the prompt is called there."""

    targets: tuple[Target, ...]
    unread: Mapping[NamespaceId, str]
    is_dry: bool

    @property
    def exit_code(self) -> int:
        """1 if something is left, or may be."""
        is_left = any(
            t.left is not None and (not t.left.is_nothing or t.survey.uploads_problem)
            for t in self.targets
        )
        return EXIT_LIMITED if is_left or self.unread else EXIT_OK


async def forget(
    options: Options, given: ForgetOptions, prompt: PromptOptions, output: Output
) -> int:
    """Forget, or tell what would be forgotten. Raises `ConfigError`, `S3KVError`."""
    from s3kv.cli.forget_view import document_of, show

    check_forget(given, prompt)
    wanted = _read_wanted(given, prompt)
    settings = bucket_settings(options)
    uri = settings.address.uri
    async with opened(settings) as store:
        found = await forgotten(store, uri, wanted, given, output)
    document = {"uri": uri, "exit_code": found.exit_code, **document_of(found)}
    output.answer(document, lambda: show(found, output))
    return found.exit_code


def _read_wanted(given: ForgetOptions, prompt: PromptOptions) -> Wanted:
    if given.hashes is not None:
        hashes = read_hashes(given.hashes, "forget them in parts")
        return Wanted(hashes=tuple(hashes))
    if not prompt.is_given:
        return Wanted()
    if given.keep_shared_with is None:
        return Wanted(read_prompt(prompt))
    path = given.keep_shared_with
    as_ids = prompt.token_ids is not None
    other = replace(prompt, token_ids=path) if as_ids else replace(prompt, prompt_file=path)
    return Wanted(read_prompt(prompt), read_prompt(other))


async def forgotten(
    store: ObjectStore,
    uri: str,
    wanted: Wanted,
    given: ForgetOptions,
    output: Output,
) -> Forgotten:
    """Plan for every namespace that is meant, then carry it out if that is wished.

    output: for the progress only. Raises as `forget`; what was not deleted then goes when it is
    repeated.
    """
    chosen = await namespaces(store)
    if given.namespace is not None or wanted.is_all or not chosen:
        chosen = [await choose_namespace(store, uri, given.namespace)]
    targets: list[Target] = []
    unread: dict[NamespaceId, str] = {}
    for ns in chosen:
        with output.progress(f"looking into {ns}:") as tell:
            target = await _planned(store, ns, wanted, tell)
        if isinstance(target, Unread):
            unread[ns] = target.reason
            continue
        if given.yes and not given.including_pinned:
            _refuse_pinned(target)
        targets.append(target)
    if given.yes:
        # Where the store carries no index there is none to tell (docs/adr/0004).
        to_tell = [target for target in targets if target.hashes and not target.is_empty]
        if to_tell and await carries_index(store):
            for target in to_tell:
                await _report_dead(store, target)
        for target in targets:
            await _carry_out(store, target, output)
    return Forgotten(tuple(targets), unread, not given.yes)


def _refuse_pinned(target: Target) -> None:
    remedy = "unpin them first, or give --including-pinned"
    if target.pins_problem:
        problem = f"what is pinned in {target.namespace} is not known: {target.pins_problem}"
        raise ConfigError("--including-pinned", None, problem, remedy)
    if target.pinned_count:
        problem = f"{target.pinned_count} of these chunks are pinned in {target.namespace}"
        raise ConfigError("--including-pinned", None, problem, remedy)


async def _planned(
    store: ObjectStore, ns: NamespaceId, wanted: Wanted, tell: Callable[[str], None]
) -> Target | Unread:
    spans: dict[BlockHash, Chunk] = {}
    block_tokens: int | None = None
    if wanted.prompt is not None:
        derived = await _derived(store, ns, wanted.prompt)
        if isinstance(derived, Unread):
            return derived
        spans, block_tokens = _spans(derived), derived.block_tokens
        if wanted.kept is not None:
            kept = await _derived(store, ns, wanted.kept)
            shared = _spans(kept) if isinstance(kept, Derived) else {}
            spans = {name: chunk for name, chunk in spans.items() if name not in shared}
    hashes = tuple(spans) if wanted.prompt is not None else wanted.hashes
    erasure = erase_namespace(ns) if wanted.is_all else erase_chunks(ns, hashes)
    target = Target(erasure, hashes)
    target.survey = await Eraser(store, erasure).survey(tell)
    await _read_index(store, target)
    if block_tokens is not None:
        target.tokens = block_tokens * _covered([spans[name] for name in target.found])
    return target


async def _derived(store: ObjectStore, ns: NamespaceId, prompt: Prompt) -> Derived | Unread:
    namespace = await read_namespace(store, ns)
    if isinstance(namespace, Unread):
        return namespace
    try:
        return derive_chunks(prompt, namespace.fields)
    except ValueError as error:
        return Unread(str(error))


def _spans(derived: Derived) -> dict[BlockHash, Chunk]:
    return {chunk.chunk_hash: chunk for chunk in derived.every_chunk()}


def _covered(chunks: Sequence[Chunk]) -> int:
    """Blocks in any of the chunks."""
    return len({block for each in chunks for block in range(each.start_block, each.end_block)})


async def _read_index(store: ObjectStore, target: Target) -> None:
    """What the index, its pause and the pinned sets say of what goes. Raises `S3KVError`."""
    tool = IndexTool(store, target.namespace, Clock())
    pins = tool.sequencer.pins
    await tool.perform(pins.refresh())
    target.pins_problem = pins.problem
    if not target.hashes:
        target.pinned_count = len(pins.fps)
        return
    fps = fingerprints(target.hashes)
    target.pinned_count = int(np.isin(fps, pins.fps).sum())
    await tool.open()
    target.listed_count = int(tool.snapshot.present(fps).sum())
    target.saves_paused = tool.snapshot.pause.saves


async def _carry_out(store: ObjectStore, target: Target, output: Output) -> None:
    eraser = Eraser(store, target.erasure)
    with output.bar(f"deleting in {target.namespace}", target.survey.version_count) as done:
        await eraser.erase(target.survey, done)
    with output.progress("looking whether anything is left:") as tell:
        target.left = await _left(store, target, eraser, tell)


async def _left(
    store: ObjectStore, target: Target, eraser: Eraser, tell: Callable[[str], None]
) -> Left:
    """The proof: names of all versions, a HEAD of every name, and a fresh reader of the index."""
    after = await eraser.survey(tell)
    names = {*after.names, *(upload.key for upload in after.uploads)}
    if not target.hashes:
        return Left(tuple(sorted(names)))
    names.update(await eraser.still_there(sorted(target.survey.names)))
    reader = IndexTool(store, target.namespace, Clock())
    await reader.open()
    listed = int(reader.snapshot.present(fingerprints(target.hashes)).sum())
    return Left(tuple(sorted(names)), listed)


async def _report_dead(store: ObjectStore, target: Target) -> None:
    """In the index before anything is deleted: nobody is promised what is about to go."""
    tool = IndexTool(store, target.namespace, Clock())
    await tool.open()
    fps = fingerprints(target.hashes)
    known = tool.snapshot.present(fps) | np.isin(fps, fingerprints(list(target.found)))
    await tool.commit(tool.snapshot.dead_records(fps[known], tool.now().unix_s))
