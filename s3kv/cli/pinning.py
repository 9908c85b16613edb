"""`s3kv pin URI [NAME]` and `s3kv unpin URI NAME`: chunks that no age and no size limit forgets.

A pin touches no chunk. Whoever leads the index and whoever sweeps reads the sets before forgetting
anything; how a set is written, so that several people may add to it at once, is in `core.pinning`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from s3kv.bucket.base import ObjectStore
from s3kv.cli.choosing import choose_namespace, namespaces, require_index
from s3kv.cli.connection import EXIT_LIMITED, EXIT_OK, bucket_settings, opened
from s3kv.cli.listing import SHORT_ID, IndexView, Unread, read_index, read_namespace
from s3kv.cli.options import Options
from s3kv.cli.output import Column, Document, Output
from s3kv.cli.pin_options import PinOptions
from s3kv.cli.pin_source import Source
from s3kv.cli.prompt_options import PromptOptions
from s3kv.cli.subjects import subject_of
from s3kv.cli.words import age_text, bytes_text, counted
from s3kv.core.ids import BlockHash, NamespaceId, fingerprints
from s3kv.core.keys import is_set_name
from s3kv.core.namespace import Namespace
from s3kv.core.pinning import (
    NamedSet,
    NameTaken,
    NoRoom,
    Pinned,
    add_to_set,
    archived_blocks,
    create_set,
    is_name,
    read_sets,
    remove_set,
)
from s3kv.core.snapshot import Snapshot
from s3kv.errors import ConfigError
from s3kv.runtime.clock import Clock
from s3kv.runtime.index_tool import IndexTool

REQUEST_TIMEOUT_S: Final = 120.0
"""A set may have 36 MB."""

_ABSENT_WORDS: Final = "not archived now, and kept from when an engine archives them"


@dataclass(frozen=True, slots=True)
class _Stock:
    """What of some chunks is archived. archived_bytes: None where the layout is not known."""

    chunk_count: int
    archived_count: int
    archived_bytes: int | None


async def pin(
    options: Options, name: str | None, given: PinOptions, prompt: PromptOptions, output: Output
) -> int:
    """Pin chunks under a name; without one, list the sets.

    Raises `ConfigError` for bad input, `S3KVError`.
    """
    source = Source(given.hashes, prompt, given.add)
    if name is not None:
        return await pin_chunks(options, name, given.namespace, source, output)
    if source.is_given or source.adds:
        remedy = "name the set behind the URI"
        raise ConfigError("NAME", None, "chunks are named, but no set to pin them in", remedy)
    prompt.check_alone()
    return await list_sets(options, given.namespace, output)


async def pin_chunks(
    options: Options, name: str, namespace: str | None, source: Source, output: Output
) -> int:
    """Pin chunks under a name, which is new unless the source adds. Raises as `pin`."""
    if not is_name(name):
        remedy = "use a-z, 0-9, then also . _ - (at most 90 characters, no part's .plus-0002)"
        raise ConfigError("NAME", name, "not the name of a set", remedy)
    source.read()
    settings = bucket_settings(options)
    uri = settings.address.uri
    async with opened(settings) as store:
        with output.progress(f"pinning in {uri}:") as tell:
            ns = await choose_namespace(store, uri, namespace)
            described = await _described(store, ns)
            chunks = source.chunks(described)
            await require_index(store, uri)
            tell("reading the index")
            tool = IndexTool(store, ns, Clock(), request_timeout_s=REQUEST_TIMEOUT_S)
            await tool.open()
            stock = _stock(chunks, tool.snapshot, described)
            pinned = await _write(tool, name, chunks, source)
    document = {
        "uri": uri,
        "exit_code": EXIT_OK,
        "namespace": ns,
        "set": name,
        "chunks": stock.chunk_count,
        "added": pinned.added_count,
        "archived": stock.archived_count,
        "not_archived": stock.chunk_count - stock.archived_count,
        "archived_bytes": stock.archived_bytes,
    }
    output.answer(document, lambda: _show_pinned(name, ns, stock, pinned, output))
    return EXIT_OK


async def list_sets(options: Options, namespace: str | None, output: Output) -> int:
    """List the sets. Exit code 1: one cannot be read, so nothing is forgotten in its namespace."""
    settings = bucket_settings(options)
    uri = settings.address.uri
    rows: list[tuple[NamespaceId, NamedSet, _Stock | None]] = []
    async with opened(settings) as store:
        with output.progress(f"reading the pinned sets of {uri}:") as tell:
            chosen = await namespaces(store)
            if namespace is not None:
                chosen = [await choose_namespace(store, uri, namespace)]
            for ns in chosen:
                tell(ns)
                rows += [(ns, *row) for row in await _sets_of(store, ns)]
    exit_code = EXIT_LIMITED if any(each.problem for _, each, _ in rows) else EXIT_OK
    document = {
        "uri": uri,
        "exit_code": exit_code,
        "sets": [_row_document(ns, each, stock) for ns, each, stock in rows],
    }
    output.answer(document, lambda: _show_sets(uri, rows, output))
    return exit_code


async def unpin(options: Options, name: str, namespace: str | None, output: Output) -> int:
    """Delete a set: the list, not the chunks. Raises `ConfigError` if there is none."""
    if not is_set_name(name):
        raise ConfigError("NAME", name, "not the name of a set", "s3kv pin URI lists them")
    settings = bucket_settings(options)
    uri = settings.address.uri
    async with opened(settings) as store:
        ns = await choose_namespace(store, uri, namespace)
        tool = IndexTool(store, ns, Clock())
        removed = await tool.perform(remove_set(ns, name))
    if not removed.part_count and not removed.kept:
        raise ConfigError("NAME", name, f"no such set in {ns}", "s3kv pin URI lists them")
    exit_code = EXIT_LIMITED if removed.kept else EXIT_OK
    document = {
        "uri": uri,
        "exit_code": exit_code,
        "namespace": ns,
        "set": name,
        "deleted_objects": removed.part_count,
        "kept_objects": list(removed.kept),
    }

    def show() -> None:
        if removed.part_count:
            output.line(f"unpinned {name} in {ns[:SHORT_ID]}: its chunks age like all others")
        for key in removed.kept:
            output.line(f"kept, since it was written anew meanwhile: {key}", "yellow")

    output.answer(document, show)
    return exit_code


async def _described(store: ObjectStore, ns: NamespaceId) -> Namespace:
    described = await read_namespace(store, ns)
    if isinstance(described, Unread):
        raise ConfigError("NAMESPACE", ns, described.reason, "s3kv stat shows what is there")
    return described


async def _write(tool: IndexTool, name: str, chunks: Sequence[BlockHash], source: Source) -> Pinned:
    _, blocks = archived_blocks(tool.snapshot, fingerprints(chunks))
    blocks_of = dict(zip(chunks, blocks.tolist(), strict=True))
    write = add_to_set if source.adds else create_set
    outcome = await tool.perform(write(tool.namespace, name, blocks_of))
    match outcome:
        case NameTaken():
            remedy = "add to it with --add, or choose another name"
            raise ConfigError("NAME", name, "there is such a set", remedy)
        case NoRoom():
            remedy = "unpin it and pin it anew, or choose another name"
            raise ConfigError("NAME", name, "was added to too often", remedy)
    return outcome


async def _sets_of(store: ObjectStore, ns: NamespaceId) -> list[tuple[NamedSet, _Stock | None]]:
    tool = IndexTool(store, ns, Clock(), request_timeout_s=REQUEST_TIMEOUT_S)
    sets = await tool.perform(read_sets(ns))
    if not sets:
        return []
    index, described = await read_index(store, ns, Clock()), await read_namespace(store, ns)
    if not isinstance(index, IndexView):
        return [(each, None) for each in sets]
    snapshot = index.follower.snapshot
    return [(each, _stock(list(each.blocks_of()), snapshot, described)) for each in sets]


def _stock(
    chunks: Sequence[BlockHash], snapshot: Snapshot, described: Namespace | Unread
) -> _Stock:
    known, blocks = archived_blocks(snapshot, fingerprints(chunks))
    archived_bytes = None
    if isinstance(described, Namespace):
        archived_bytes = int(blocks.sum(dtype=int)) * subject_of(described).bytes_per_block
    return _Stock(len(chunks), int(known.sum()), archived_bytes)


def _row_document(ns: NamespaceId, each: NamedSet, stock: _Stock | None) -> Document:
    return {
        "namespace": ns,
        "name": each.name,
        "objects": len(each.parts),
        "chunks": len(each.blocks_of()),
        "archived": None if stock is None else stock.archived_count,
        "archived_bytes": None if stock is None else stock.archived_bytes,
        "age_s": each.age_s,
        "problem": each.problem,
    }


_COLUMNS = (
    Column("namespace"),
    Column("set"),
    Column("chunks", "right"),
    Column("archived", "right"),
    Column("bytes", "right"),
    Column("age", "right"),
)


def _show_sets(
    uri: str, rows: Sequence[tuple[NamespaceId, NamedSet, _Stock | None]], output: Output
) -> None:
    if not rows:
        output.line(f"nothing is pinned under {uri}")
        return
    output.table(_COLUMNS, [_cells(*row) for row in rows])
    for ns, each, _ in rows:
        if each.problem:
            output.line(f"{ns[:SHORT_ID]}: {each.problem}", "yellow")
            output.line("nothing is forgotten there until it is unpinned, or readable", "yellow")


def _cells(ns: NamespaceId, each: NamedSet, stock: _Stock | None) -> tuple[str, ...]:
    size = None if stock is None else stock.archived_bytes
    return (
        ns[:SHORT_ID],
        each.name,
        f"{len(each.blocks_of()):,}",
        "?" if stock is None else f"{stock.archived_count:,}",
        "?" if size is None else bytes_text(size),
        age_text(each.age_s),
    )


def _show_pinned(name: str, ns: NamespaceId, stock: _Stock, pinned: Pinned, output: Output) -> None:
    size = "" if stock.archived_bytes is None else f", {bytes_text(stock.archived_bytes)}"
    known_count = stock.chunk_count - pinned.added_count
    known = f" ({known_count:,} of them before)" if known_count else ""
    output.line(
        f"pinned as {name} in {ns[:SHORT_ID]}: {counted(stock.chunk_count, 'chunk')}{known}"
    )
    output.line(f"archived: {stock.archived_count:,}{size}")
    missing_count = stock.chunk_count - stock.archived_count
    if missing_count:
        output.line(f"{missing_count:,} {_ABSENT_WORDS}", "yellow")
