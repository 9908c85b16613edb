"""`s3kv stat URI [NAMESPACE]`: one namespace in detail, or one shard.

Says what the fields are, how far the index goes, what the shards amount to and how the two agree,
and verifies one whole shard, the newest. Reads only. Exit code 1: something seen is damaged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from s3kv.bucket.base import ObjectInfo, ObjectStore
from s3kv.bucket.prefix import BucketAddress, parse_uri
from s3kv.cli.choosing import choose_namespace
from s3kv.cli.connection import EXIT_LIMITED, EXIT_OK, bucket_settings, opened
from s3kv.cli.listing import (
    IndexView,
    NamespaceView,
    Unread,
    archived_tokens,
    model_words,
    read_index,
    read_namespace,
    show_foreign,
    take_stock,
)
from s3kv.cli.options import Options
from s3kv.cli.output import Document, Output
from s3kv.cli.shard_view import ShardView, read_shard
from s3kv.cli.tally import (
    ArchiveTally,
    Foreign,
    NamespaceTally,
    Pile,
    contents_of,
    geometry_of,
)
from s3kv.cli.words import age_text, bytes_text
from s3kv.core.ids import NamespaceId
from s3kv.core.keys import parse_shard_key
from s3kv.runtime.clock import Clock

_SHARD_SEGMENTS = 5


async def stat(options: Options, namespace: str | None, output: Output) -> int:
    """Print the details. namespace: an id or the beginning of one; None if there is only one.

    Raises `ConfigError` if no or several namespaces fit, `S3KVError`.
    """
    shard = _shard_address(parse_uri(options.uri))
    settings = bucket_settings(options, None if shard is None else shard[0])
    async with opened(settings) as store:
        if shard is not None:
            return await _stat_shard(store, options.uri, shard[1], output)
        with output.progress(f"reading {settings.address.uri}:") as tell:
            ns = await choose_namespace(store, settings.address.uri, namespace)
            details = await _read(store, ns, Clock(), tell)
    exit_code = EXIT_LIMITED if details.is_damaged else EXIT_OK
    document = {"uri": settings.address.uri, "exit_code": exit_code, **_document(details)}
    output.answer(document, lambda: _show(details, output))
    return exit_code


def _shard_address(address: BucketAddress) -> tuple[BucketAddress, str] | None:
    """The archive and the key of the shard that an address names, if it names one."""
    segments = address.prefix.split("/")
    key = "/".join(segments[-_SHARD_SEGMENTS:])
    if parse_shard_key(key) is None:
        return None
    return BucketAddress(address.bucket, "/".join(segments[:-_SHARD_SEGMENTS])), key


async def _stat_shard(store: ObjectStore, uri: str, key: str, output: Output) -> int:
    view = await read_shard(store, key)
    exit_code = EXIT_LIMITED if view.problem else EXIT_OK
    document = {"uri": uri, "exit_code": exit_code, "shard": view.document()}
    output.answer(document, lambda: output.pairs("shard", view.pairs()))
    return exit_code


@dataclass(frozen=True, slots=True)
class _Details:
    tally: NamespaceTally
    foreign: Foreign
    namespace: NamespaceView
    index: IndexView | Unread
    sample: ShardView | None

    @property
    def is_damaged(self) -> bool:
        is_sample_bad = self.sample is not None and bool(self.sample.problem)
        return isinstance(self.namespace, Unread) or is_sample_bad


async def _read(
    store: ObjectStore, ns: NamespaceId, clock: Clock, tell: Callable[[str], None]
) -> _Details:
    archive: ArchiveTally = await take_stock(store, f"{ns}/", tell)
    tally = archive.namespaces.get(ns) or NamespaceTally(ns)
    tell("reading the index")
    namespace = await read_namespace(store, ns)
    index = await read_index(store, ns, clock)
    tell("verifying the newest shard")
    newest: ObjectInfo | None = tally.newest_shard
    sample = None if newest is None else await read_shard(store, newest.key)
    return _Details(tally, archive.foreign, namespace, index, sample)


def _document(details: _Details) -> Document:
    namespace = details.namespace
    is_known = not isinstance(namespace, Unread)
    return {
        "namespace": details.tally.id,
        "fields": asdict(namespace.fields) if not isinstance(namespace, Unread) else None,
        "problem": "" if is_known else namespace_problem(namespace),
        "index": _index_document(details),
        "shards": _shards_document(details),
        "sample": None if details.sample is None else details.sample.document(),
        "foreign": {"objects": details.foreign.pile.count, "names": details.foreign.names},
    }


def namespace_problem(namespace: NamespaceView) -> str:
    """Why the fields are not known, or the empty string."""
    return namespace.reason if isinstance(namespace, Unread) else ""


def _pile_document(pile: Pile) -> Document:
    return {
        "count": pile.count,
        "bytes": pile.total_bytes,
        "oldest_age_s": pile.oldest_age_s,
        "newest_age_s": pile.newest_age_s,
    }


def _index_document(details: _Details) -> Document:
    tally, index = details.tally, details.index
    files = {
        "ticks": _pile_document(tally.ticks),
        "runs": _pile_document(tally.runs),
        "inbox_segments": _pile_document(tally.segments),
        "pinned_sets": _pile_document(tally.sets),
    }
    if isinstance(index, Unread):
        return {"problem": index.reason, **files}
    snapshot, follower = index.follower.snapshot, index.follower
    known = np.union1d(snapshot.base.fps, snapshot.recent.fps)
    return {
        "problem": "",
        "head_tick": snapshot.head,
        "watermark_s": snapshot.watermark_s,
        "pause": {"loads": snapshot.pause.loads, "saves": snapshot.pause.saves},
        "leader": None if follower.leader is None else follower.leader.hex(),
        "interval_ms": follower.interval_ms,
        "live_records": len(index.live),
        "dead_records": len(known) - len(index.live),
        "last_used_age_s": index.last_used_age_s,
        "unreadable_files": follower.skipped_count,
        "incomplete": snapshot.incomplete,
        **files,
        **_agreement(tally, index),
    }


def _agreement(tally: NamespaceTally, index: IndexView) -> Mapping[str, int]:
    """Where listing and index differ: hints without shards, chunks without a live record."""
    listed = np.array(tally.fps, np.uint64)
    return {
        "live_without_shards": int((~np.isin(index.live.fps, listed)).sum()),
        "chunks_without_live_record": int((~np.isin(listed, index.live.fps)).sum()),
    }


def _shards_document(details: _Details) -> Document:
    tally = details.tally
    document = {
        **_pile_document(tally.shards),
        "chunks": tally.chunk_count,
        "incomplete_chunks": tally.incomplete_count,
        "tokens": archived_tokens(tally, details.namespace),
        "quarantined": _pile_document(tally.quarantine),
    }
    if isinstance(details.namespace, Unread):
        return document
    geometry = geometry_of(details.namespace)
    contents = contents_of(tally, geometry)
    return {
        **document,
        "full_shard_bytes": geometry.slot_bytes,
        "header_bytes": geometry.header_bytes,
        "block_bytes": geometry.block_bytes,
        "tail_shards": contents.tail_count,
        "shards_of_odd_size": contents.odd_count,
    }


def _show(details: _Details, output: Output) -> None:
    namespace = details.namespace
    if isinstance(namespace, Unread):
        output.pairs(f"namespace {details.tally.id}", [("problem", namespace.reason)])
    else:
        fields = namespace.fields
        shown = [("model", model_words(fields))]
        shown += [
            (name, str(value) if value != "" else "-")
            for name, value in asdict(fields).items()
            if name != "layout"
        ]
        shown += [
            (f"layout {stage}", f"{layout.kv_cache_layout} {layout.cpu_isa}".strip())
            for stage, layout in enumerate(fields.layout)
        ]
        output.pairs(f"namespace {namespace.id}", shown)
    output.pairs("index", _index_pairs(details))
    output.pairs("shards", _pairs_of(_shards_document(details)))
    if details.sample is not None:
        output.pairs("sample: the newest shard", details.sample.pairs())
    show_foreign(details.foreign, output)


def _index_pairs(details: _Details) -> list[tuple[str, str]]:
    document = dict(_index_document(details))
    watermark_s = document.get("watermark_s")
    if isinstance(watermark_s, int) and isinstance(details.index, IndexView):
        age = age_text(details.index.read_s - watermark_s)
        document["watermark_s"] = f"{watermark_s} ({age} ago)" if watermark_s else "none"
    return _pairs_of(document)


def _pairs_of(document: Mapping[str, object]) -> list[tuple[str, str]]:
    """A document's fields in words; empty problems are left out."""
    pairs = []
    for name, value in document.items():
        if name == "problem" and not value:
            continue
        words = name.removesuffix("_s").removesuffix("_ms").removesuffix("_age").replace("_", " ")
        pairs.append((words, _value_text(name, value)))
    return pairs


def _value_text(name: str, value: object) -> str:
    if isinstance(value, Mapping):
        inner: Sequence[tuple[str, str]] = _pairs_of(value)
        return ", ".join(f"{key} {text}" for key, text in inner)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "-"
    if name.endswith("_age_s") and isinstance(value, float | int):
        return age_text(value)
    if name.endswith("bytes") and isinstance(value, int):
        return bytes_text(value)
    unit = " ms" if name.endswith("_ms") else ""
    return f"{value:,}{unit}" if isinstance(value, int) else str(value)
