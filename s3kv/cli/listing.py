"""`s3kv ls URI`: which namespaces lie under a prefix, how large, how old, last used when.

One LIST of everything under the prefix, NAMESPACE.json of each namespace, and its index where that
can be read (last use is written down nowhere else). Reads only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from s3kv.bucket.base import Missing, ObjectStore
from s3kv.cli.connection import EXIT_OK, REQUEST_TIMEOUT_S, bucket_settings, opened
from s3kv.cli.options import Options
from s3kv.cli.output import Column, Document, Output
from s3kv.cli.tally import (
    ArchiveTally,
    Foreign,
    NamespaceTally,
    contents_of,
    geometries_of,
    geometry_of,
)
from s3kv.cli.words import age_text, bytes_text, counted
from s3kv.core.follower import Follower
from s3kv.core.ids import NamespaceId
from s3kv.core.keys import namespace_key
from s3kv.core.namespace import (
    MAX_DOCUMENT_BYTES,
    Namespace,
    NamespaceFields,
    parse_namespace_document,
)
from s3kv.core.records import RecordSet
from s3kv.errors import Corrupt, Mismatch, S3KVError
from s3kv.runtime.clock import Clock
from s3kv.runtime.perform import perform

HEAD_TTL_S = 60.0
SHORT_ID = 12


@dataclass(frozen=True, slots=True)
class Unread:
    """Something that should be there and could not be read, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class IndexView:
    """An index, read to its head. live: all live records; read_s: when (Unix seconds)."""

    follower: Follower
    live: RecordSet
    read_s: float

    @property
    def last_used_age_s(self) -> float | None:
        """Since the last use of any chunk, None if there is no live chunk."""
        if not len(self.live):
            return None
        return max(0.0, self.read_s - int(self.live.seen_s.max()))


NamespaceView: TypeAlias = Namespace | Unread


async def take_stock(
    store: ObjectStore, prefix: str, on_count: Callable[[str], None]
) -> ArchiveTally:
    """Count everything whose key starts with `prefix`. Raises `S3KVError`."""
    tally = ArchiveTally()
    async for page in store.list(prefix, timeout_s=REQUEST_TIMEOUT_S):
        tally.add(page)
        on_count(counted(tally.object_count, "object"))
    return tally


async def read_namespace(store: ObjectStore, ns: NamespaceId) -> NamespaceView:
    """NAMESPACE.json, if it is there, intact, and that of this namespace. Raises `S3KVError`.

    Where it is given, every stage's fields describe a shard.
    """
    key = namespace_key(ns)
    try:
        document = await store.get(key, max_bytes=MAX_DOCUMENT_BYTES, timeout_s=REQUEST_TIMEOUT_S)
        if isinstance(document, Missing):
            return Unread("there is no NAMESPACE.json")
        namespace = parse_namespace_document(document)
        geometries_of(namespace)
    except (Corrupt, Mismatch) as error:
        return Unread(f"NAMESPACE.json: {error}")
    except ValueError as error:
        return Unread(f"NAMESPACE.json describes no shard: {error}")
    if namespace.id != ns:
        return Unread(f"NAMESPACE.json is that of {namespace.id}")
    return namespace


async def read_index(store: ObjectStore, ns: NamespaceId, clock: Clock) -> IndexView | Unread:
    """The index of one namespace, its inbox included."""
    follower = Follower(ns, HEAD_TTL_S)
    try:
        await perform(follower.open(), store, clock, REQUEST_TIMEOUT_S)
    except S3KVError as error:
        return Unread(str(error))
    return IndexView(follower, follower.snapshot.live(), clock.unix_s())


@dataclass(frozen=True, slots=True)
class _Row:
    tally: NamespaceTally
    namespace: NamespaceView
    index: IndexView | Unread

    @property
    def fields(self) -> NamespaceFields | None:
        return self.namespace.fields if isinstance(self.namespace, Namespace) else None

    @property
    def tokens(self) -> int | None:
        """Tokens archived; None where the layout is not known."""
        return archived_tokens(self.tally, self.namespace)


def archived_tokens(tally: NamespaceTally, namespace: NamespaceView) -> int | None:
    """Tokens in the listed shards; None where the layout that tells is not known."""
    if isinstance(namespace, Unread):
        return None
    contents = contents_of(tally, geometry_of(namespace))
    return contents.blocks * namespace.fields.block_tokens


async def listing(options: Options, output: Output) -> int:
    """Print the namespaces under a URI. Raises `ConfigError`, `S3KVError`."""
    settings = bucket_settings(options)
    async with opened(settings) as store:
        with output.progress(f"listing {settings.address.uri}:") as tell:
            tally, rows = await _read(store, Clock(), tell)
    document = {
        "uri": settings.address.uri,
        "endpoint_url": settings.endpoint_url,
        "exit_code": EXIT_OK,
        "objects": tally.object_count,
        "namespaces": [_row_document(row) for row in rows],
        "foreign": _foreign_document(tally.foreign),
    }
    output.answer(document, lambda: _show(settings.address.uri, rows, tally.foreign, output))
    return EXIT_OK


async def _read(
    store: ObjectStore, clock: Clock, tell: Callable[[str], None]
) -> tuple[ArchiveTally, list[_Row]]:
    tally = await take_stock(store, "", tell)
    rows = []
    for found in tally.archives():
        tell(f"reading the index of {found.id}")
        namespace = await read_namespace(store, found.id)
        rows.append(_Row(found, namespace, await read_index(store, found.id, clock)))
    return tally, rows


def model_words(fields: NamespaceFields) -> str:
    """A model and its cache in a few words: what its configuration says, which has no name."""
    group = fields.layout[0].groups[0]
    layers = sum(len(each.layer_names) for stage in fields.layout for each in stage.groups)
    words = [
        f"{layers} layers x {group.kv_head_count} heads x {group.head_size}",
        fields.model_dtype.removeprefix("torch."),
    ]
    if fields.kv_cache_dtype != "auto":
        words.append(f"kv {fields.kv_cache_dtype}")
    if fields.quantization:
        words.append(fields.quantization)
    if fields.tensor_parallel_size > 1:
        words.append(f"TP {fields.tensor_parallel_size}")
    words.append(f"config {fields.model_config[:8]}")
    return ", ".join(words)


def _row_document(row: _Row) -> Document:
    fields, tally = row.fields, row.tally
    index = row.index
    unread = [view.reason for view in (row.namespace, index) if isinstance(view, Unread)]
    return {
        "id": tally.id,
        "label": fields.label if fields else None,
        "engine": fields.engine if fields else None,
        "model": model_words(fields) if fields else None,
        "model_dtype": fields.model_dtype if fields else None,
        "kv_cache_dtype": fields.kv_cache_dtype if fields else None,
        "model_config": fields.model_config if fields else None,
        "chunks": tally.chunk_count,
        "incomplete_chunks": tally.incomplete_count,
        "indexed_chunks": len(index.live) if isinstance(index, IndexView) else None,
        "tokens": row.tokens,
        "shards": tally.shards.count,
        "shard_bytes": tally.shards.total_bytes,
        "index_bytes": tally.index_bytes,
        "pinned_sets": tally.sets.count,
        "quarantined_shards": tally.quarantine.count,
        "quarantined_bytes": tally.quarantine.total_bytes,
        "oldest_age_s": tally.shards.oldest_age_s,
        "newest_age_s": tally.shards.newest_age_s,
        "last_used_age_s": index.last_used_age_s if isinstance(index, IndexView) else None,
        "problems": unread,
    }


def _foreign_document(foreign: Foreign) -> Document:
    return {
        "objects": foreign.pile.count,
        "bytes": foreign.pile.total_bytes,
        "names": foreign.names,
    }


_COLUMNS = (
    Column("namespace"),
    Column("label"),
    Column("model"),
    Column("chunks", "right"),
    Column("bytes", "right"),
    Column("tokens", "right"),
    Column("oldest", "right"),
    Column("newest", "right"),
    Column("last used", "right"),
)


def _cells(row: _Row) -> tuple[str, ...]:
    tally, fields, tokens = row.tally, row.fields, row.tokens
    used_s = row.index.last_used_age_s if isinstance(row.index, IndexView) else None
    return (
        tally.id[:SHORT_ID],
        (fields.label or "-") if fields else "?",
        model_words(fields) if fields else "?",
        f"{tally.chunk_count:,}",
        bytes_text(tally.shards.total_bytes),
        "?" if tokens is None else f"{tokens:,}",
        age_text(tally.shards.oldest_age_s),
        age_text(tally.shards.newest_age_s),
        age_text(used_s),
    )


def _show(uri: str, rows: Sequence[_Row], foreign: Foreign, output: Output) -> None:
    if rows:
        output.table(_COLUMNS, [_cells(row) for row in rows])
    else:
        output.line(f"no archive under {uri}")
    for row in rows:
        for view in (row.namespace, row.index):
            if isinstance(view, Unread):
                output.line(f"{row.tally.id[:SHORT_ID]}: {view.reason}", "yellow")
        if row.tally.quarantine.count:
            shards = counted(row.tally.quarantine.count, "shard")
            size = bytes_text(row.tally.quarantine.total_bytes)
            output.line(f"{row.tally.id[:SHORT_ID]}: {shards} in quarantine, {size}", "yellow")
    show_foreign(foreign, output)


def show_foreign(foreign: Foreign, output: Output) -> None:
    """One line about objects that are not ours, if there are any."""
    if foreign.pile.count:
        names = ", ".join(foreign.names)
        output.line(
            f"not s3kv's, left alone: {counted(foreign.pile.count, 'object')}, "
            f"{bytes_text(foreign.pile.total_bytes)}: {names}",
            "dim",
        )
