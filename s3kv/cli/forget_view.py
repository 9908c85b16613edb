"""What `s3kv forget` prints. Pure."""

from __future__ import annotations

from typing import Final

from s3kv.cli.forget import Forgotten, Target
from s3kv.cli.listing import SHORT_ID
from s3kv.cli.output import Column, Document, Output
from s3kv.cli.words import bytes_text, counted

_NAMED_MAX: Final = 20

_COLUMNS: Final = (
    Column("namespace"),
    Column("chunks", "right"),
    Column("tokens", "right"),
    Column("objects", "right"),
    Column("bytes", "right"),
    Column("outcome"),
)


def document_of(found: Forgotten) -> Document:
    """The answer for programs. `left` names at most the first few objects."""
    return {
        "dry_run": found.is_dry,
        "namespaces": [_target_document(target) for target in found.targets],
        "unread": dict(found.unread),
    }


def _target_document(target: Target) -> Document:
    survey, left = target.survey, target.left
    return {
        "namespace": target.namespace,
        "chunks": len(target.found),
        "chunks_at_least": survey.is_cut,
        "tokens": target.tokens,
        "objects": survey.version_count,
        "bytes": survey.total_bytes,
        "unfinished_uploads": len(survey.uploads),
        "uploads_problem": survey.uploads_problem,
        "listed_chunks": target.listed_count,
        "pinned_chunks": target.pinned_count,
        "pins_problem": target.pins_problem,
        "saves_paused": target.saves_paused,
        "foreign": {"objects": survey.foreign_count, "names": survey.foreign_names},
        "gone": None if left is None else left.is_nothing,
        "left": [] if left is None else list(left.names[:_NAMED_MAX]),
        "left_objects": 0 if left is None else len(left.names),
        "left_listed": 0 if left is None else left.listed_count,
    }


def _outcome(target: Target) -> str:
    if target.left is not None:
        return "gone" if target.left.is_nothing else "LEFT"
    return "nothing there" if target.is_empty else "would go"


def _cells(target: Target) -> tuple[str, ...]:
    return (
        target.namespace[:SHORT_ID],
        f"{'at least ' if target.survey.is_cut else ''}{len(target.found):,}",
        "-" if target.tokens is None else f"{target.tokens:,}",
        f"{target.survey.version_count:,}",
        bytes_text(target.survey.total_bytes),
        _outcome(target),
    )


def show(found: Forgotten, output: Output) -> None:
    """The answer for people."""
    if found.targets:
        output.table(_COLUMNS, [_cells(target) for target in found.targets])
    for target in found.targets:
        for text, style in _remarks(target):
            output.line(f"{target.namespace[:SHORT_ID]}: {text}", style)
    for ns, reason in found.unread.items():
        output.line(f"{ns[:SHORT_ID]}: not looked into: {reason}", "yellow")
    if found.is_dry and not all(target.is_empty for target in found.targets):
        is_pinned = any(target.is_pinned for target in found.targets)
        needed = "--yes and --including-pinned" if is_pinned else "--yes"
        output.line(f"nothing was deleted; with {needed} it is")


def _remarks(target: Target) -> list[tuple[str, str]]:
    """Lines about one namespace, and their style."""
    remarks = []
    if target.saves_paused is False and not target.is_empty:
        remarks.append(
            (
                "saves are not paused: an engine that computes this again archives it again "
                "(s3kv pause --save)",
                "yellow",
            )
        )
    if target.survey.uploads_problem:
        text = f"unfinished uploads, if there are any, stay: {target.survey.uploads_problem}"
        remarks.append((text, "yellow"))
    if not target.hashes:
        remarks.append(("engines that use it go on writing: end them first", "yellow"))
    if target.pins_problem:
        remarks.append((f"what is pinned is not known: {target.pins_problem}", "yellow"))
    elif target.pinned_count:
        remarks.append((f"{counted(target.pinned_count, 'chunk')} of it pinned", "yellow"))
    if target.survey.foreign_count:
        names = ", ".join(target.survey.foreign_names)
        count = counted(target.survey.foreign_count, "object")
        remarks.append((f"not s3kv's, left alone: {count}: {names}", "dim"))
    if target.left is not None and not target.left.is_nothing:
        remarks += _left_remarks(target)
    return remarks


def _left_remarks(target: Target) -> list[tuple[str, str]]:
    left, remarks = target.left, []
    assert left is not None
    if left.names:
        names = ", ".join(left.names[:_NAMED_MAX])
        remarks.append((f"still there: {counted(len(left.names), 'object')}: {names}", "bold red"))
    if left.listed_count:
        count = counted(left.listed_count, "chunk")
        remarks.append((f"still listed in the index: {count}", "bold red"))
    return remarks
