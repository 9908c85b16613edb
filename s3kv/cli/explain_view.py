"""What `s3kv explain` prints: a table of chunks, then the conclusion in words. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Final

from s3kv.cli.explain import Elsewhere, Explanation
from s3kv.cli.listing import SHORT_ID
from s3kv.cli.output import Column, Document, Output
from s3kv.cli.prompt_view import ANNOUNCE_S
from s3kv.cli.words import age_text, counted
from s3kv.core.explaining import Mark, Seen
from s3kv.core.namespace import Namespace
from s3kv.core.reasons import ChunkState

_WHY: Final[Mapping[ChunkState, str]] = {
    ChunkState.PRESENT: "archived and listed",
    ChunkState.WAITING: "archived; engines that run hear of it within {quiet} s",
    ChunkState.ABSENT: "never saved here (or with another salt, hash seed or tokenisation), or "
    "swept so long ago that nobody remembers it",
    ChunkState.EXPIRED: "forgotten by age or by the size limit",
    ChunkState.LOST: "reported gone or wrong, or forgotten by command; it is archived anew when "
    "its prompt is next computed",
    ChunkState.INCOMPLETE: "shards of some ranks are missing",
    ChunkState.MISSHAPEN: "a shard has a size that no shard of this chunk can have",
    ChunkState.QUARANTINED: "a shard was found wrong and set aside",
    ChunkState.GONE: "listed, but its shards are gone: deleted from outside; the next load finds "
    "out, and then it is archived anew",
    ChunkState.UNANNOUNCED: "its shards are there and nobody has listed them yet: an engine does "
    "within {announce} of the upload, others hear of that within {quiet} s",
    ChunkState.ORPHAN: "its shards are there, and who uploaded them never listed them; a sweep "
    "does that",
}
_FOUND_BY_NAME: Final[Mapping[Mark, str]] = {
    Mark.NO_INDEX: "archived; no index here: found by name",
    Mark.UNREAD: "archived; the index could not be read: found by name",
}


def why(found: Explanation, seen: Seen) -> str:
    """The state of a chunk in words."""
    if seen.state is ChunkState.PRESENT and seen.mark in _FOUND_BY_NAME:
        return _FOUND_BY_NAME[seen.mark]
    words = _WHY[seen.state].format(quiet=_quiet_s(found), announce=age_text(ANNOUNCE_S))
    ranks = {
        ChunkState.INCOMPLETE: seen.shards.missing,
        ChunkState.MISSHAPEN: seen.shards.misshapen,
        ChunkState.QUARANTINED: seen.shards.quarantined,
    }.get(seen.state, ())
    if not ranks:
        return words
    named = ", ".join(str(rank) for rank in ranks)
    return f"{words} (rank {named} of {seen.shards.writer_count})"


def _quiet_s(found: Explanation) -> int:
    """Whole seconds until engines that run know what is committed."""
    return math.ceil(found.bounds.quiet_worst_s)


def document_of(found: Explanation) -> Document:
    """The answer for programs."""
    view, first = found.view, found.first_missing
    here, index = view.candidate.namespace, view.candidate.index
    return {
        "namespace": here.id,
        "label": here.fields.label,
        "tokens": view.candidate.derived.token_count,
        "hit_tokens": view.hit_tokens,
        "miss_reason": found.reason.value if found.reason else None,
        "index": {
            "problem": index.problem,
            "unindexed": index.is_unindexed,
            "head_tick": index.whole.head,
            "incomplete": index.whole.incomplete,
            "watermark_s": index.whole.watermark_s,
            "pause": asdict(index.whole.pause),
        },
        "chunks": [_chunk_document(found, seen) for seen in view.rows],
        "first_missing": _chunk_document(found, first) if first else None,
        "elsewhere": [
            {
                "namespace": each.namespace.id,
                "label": each.namespace.fields.label,
                "listed_tokens": each.listed_tokens,
                "differing_fields": [asdict(field) for field in each.differences(here)],
            }
            for each in found.elsewhere
        ],
        "unread": dict(found.unread),
        "staleness": asdict(found.bounds),
    }


def _chunk_document(found: Explanation, seen: Seen) -> Document:
    start, end = _tokens(found, seen)
    return {
        "hash": seen.chunk.chunk_hash.hex(),
        "start_token": start,
        "end_token": end,
        "own": seen in found.view.own,
        "index": seen.mark.value,
        "state": seen.state.value,
        "why": why(found, seen),
        "shards": seen.shards.writer_count,
        "missing": list(seen.shards.missing),
        "misshapen": list(seen.shards.misshapen),
        "quarantined": list(seen.shards.quarantined),
        "age_s": seen.shards.youngest_age_s,
    }


def _tokens(found: Explanation, seen: Seen) -> tuple[int, int]:
    """First token of a chunk, and the one after its last."""
    block_tokens = found.view.candidate.derived.block_tokens
    return seen.chunk.start_block * block_tokens, seen.chunk.end_block * block_tokens


_COLUMNS: Final = (
    Column("tokens", "right"),
    Column("chunk"),
    Column("index"),
    Column("shards", "right"),
    Column("age", "right"),
    Column("state"),
)


def _cells(found: Explanation, seen: Seen) -> tuple[str, ...]:
    shards, (start, end) = seen.shards, _tokens(found, seen)
    return (
        f"{start:,}-{end:,}",
        seen.chunk.chunk_hash.hex()[:SHORT_ID],
        seen.mark.value,
        f"{len(shards.there)}/{shards.writer_count}",
        age_text(shards.youngest_age_s),
        seen.state.value,
    )


def show(found: Explanation, output: Output) -> None:
    """The answer for people."""
    if found.view.own:
        output.table(_COLUMNS, [_cells(found, seen) for seen in found.view.rows])
    for line in _conclusion(found):
        output.line(line)
    for each in found.elsewhere:
        output.line()
        _show_elsewhere(each, found.view.candidate.namespace, output)
    for ns, problem in found.unread.items():
        output.line(f"{ns[:SHORT_ID]}: {problem}", "yellow")


def _conclusion(found: Explanation) -> list[str]:
    view, index = found.view, found.view.candidate.index
    derived, ns = view.candidate.derived, view.candidate.namespace.id
    lines = [
        f"namespace {ns[:SHORT_ID]}: an engine gets {view.hit_tokens:,} of "
        f"{counted(derived.token_count, 'token')} from the archive"
    ]
    if index.whole.pause.loads:
        lines.append("nothing is loaded now: loading is paused, s3kv resume ends that")
    if not view.own:
        least = min(derived.min_tail_blocks, derived.chunk_blocks) * derived.block_tokens
        lines.append(f"the prompt is too short to be archived: less than {least} tokens")
    elif (first := found.first_missing) is not None:
        start, end = _tokens(found, first)
        lines.append(f"first missing: tokens {start:,}-{end:,}, {first.state}: {why(found, first)}")
        if index.whole.pause.saves:
            lines.append("nothing is saved now: saving is paused, s3kv resume ends that")
    else:
        lines.append("all that can be archived of it is there; an engine computes the rest")
        if any(seen.state is ChunkState.WAITING for seen in view.own):
            bound_s = _quiet_s(found)
            lines.append(f"some of it is new: engines that run hear of it within {bound_s} s")
    if index.is_unindexed:
        lines.append("there is no index here: engines find chunks by name until one is begun")
    elif index.problem:
        lines.append(f"the index could not be read: {index.problem}")
    elif index.whole.incomplete:
        lines.append("parts of the index could not be read: what it does not list may be there")
    return lines


def _show_elsewhere(each: Elsewhere, here: Namespace, output: Output) -> None:
    there = each.namespace
    label = f" ({there.fields.label})" if there.fields.label else ""
    tokens = counted(each.listed_tokens, "token")
    output.line(f"namespace {there.id[:SHORT_ID]}{label} has {tokens} of it and differs in:")
    titles = ("field", f"in {there.id[:SHORT_ID]}", f"in {here.id[:SHORT_ID]}")
    rows = [(field.field, field.there, field.here) for field in each.differences(here)]
    output.table([Column(title) for title in titles], rows)
