"""What a sweep says: a table, a document, or one line per pass of a service. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from s3kv.bucket.connect import BucketSettings
from s3kv.cli.connection import EXIT_LIMITED, EXIT_OK
from s3kv.cli.listing import SHORT_ID
from s3kv.cli.output import Column, Document, Output
from s3kv.cli.service import time_text
from s3kv.cli.sweep_wishes import SweepWishes
from s3kv.cli.words import bytes_text, counted
from s3kv.core.ids import NamespaceId
from s3kv.core.survey import Heap
from s3kv.runtime.sweeping import NamespaceReport

GIB: Final = 1 << 30
USD_PER_GIB_MONTH: Final = 0.023
PRICE_WORDS: Final = "at $0.023 per GiB and month (S3 Standard, us-east-1)"

_COLUMNS: Final = (
    Column("namespace"),
    Column("what"),
    Column("why"),
    Column("objects", "right"),
    Column("bytes", "right"),
    Column("USD/month", "right"),
)


@dataclass(slots=True)
class SweepResult:
    """One pass over an archive.

    unknown: namespaces left alone, and why; limits: what could not be done beside that; remarks:
    what is worth knowing; cutoff_s: what was last used before is forgotten, 0 for nothing new.
    """

    settings: BucketSettings
    wishes: SweepWishes
    reports: Sequence[NamespaceReport] = ()
    unknown: Mapping[NamespaceId, str] = field(default_factory=dict)
    limits: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    foreign_folders: Sequence[str] = ()
    cutoff_s: int = 0

    @property
    def exit_code(self) -> int:
        """1 if something could not be swept."""
        is_whole = all(report.is_whole for report in self.reports)
        return EXIT_OK if is_whole and not self.unknown and not self.limits else EXIT_LIMITED

    @property
    def problems(self) -> list[str]:
        """What could not be swept, in sentences."""
        lines = [f"{ns[:SHORT_ID]} is left alone: {reason}" for ns, reason in self.unknown.items()]
        for report in self.reports:
            name = report.namespace[:SHORT_ID]
            if report.problem:
                way = "not swept to its end" if report.has_failed else "left alone"
                lines.append(f"{name} is {way}: {report.problem}{_remedy(report)}")
            lines += [f"{name}: {limit}" for limit in report.limits]
        return [*lines, *self.limits]

    def total(self, name: str) -> Heap:
        """name: `now` or `later`, all reasons of all namespaces; or `deleted`, `young`, `stays`."""
        total = Heap()
        for report in self.reports:
            found = getattr(report, name)
            for heap in found.values() if isinstance(found, dict) else (found,):
                total.add(heap)
        return total


def _remedy(report: NamespaceReport) -> str:
    if report.has_failed:
        return ""  # it is in the failure's own words
    if report.pins_unread:
        return "; s3kv unpin removes the set, if it cannot be mended"
    if report.index_incomplete:
        return (
            "; s3kv doctor --rebuild announces what is there; the rest heals when the engines have "
            "merged the log, after about an hour"
        )
    return ""


def usd_per_month(byte_count: int) -> float:
    """What so many bytes cost."""
    return byte_count / GIB * USD_PER_GIB_MONTH


def _usd_text(byte_count: int) -> str:
    usd = usd_per_month(byte_count)
    return f"{usd:,.2f}" if usd >= 0.01 or not byte_count else "<0.01"


# --------------------------------------------------------------------- document
def document_of(result: SweepResult) -> Document:
    """Everything, for programs."""
    wishes = result.wishes
    return {
        "uri": result.settings.address.uri,
        "endpoint_url": result.settings.endpoint_url,
        "exit_code": result.exit_code,
        "dry_run": not wishes.acts,
        "ttl_s": wishes.ttl_s,
        "max_bytes": wishes.max_bytes,
        "cutoff_s": result.cutoff_s,
        "usd_per_gib_month": USD_PER_GIB_MONTH,
        "condemned": _heap_document(result.total("now")),
        "goes_after_grace": _heap_document(result.total("later")),
        "deleted": _heap_document(result.total("deleted")),
        "namespaces": [_report_document(report) for report in result.reports],
        "left_alone": [{"id": ns, "problem": why} for ns, why in result.unknown.items()],
        "foreign_folders": list(result.foreign_folders),
        "limits": result.limits,
        "remarks": result.remarks,
    }


def _heap_document(heap: Heap) -> Document:
    return {
        "objects": heap.count,
        "bytes": heap.total_bytes,
        "usd_per_month": round(usd_per_month(heap.total_bytes), 6),
    }


def _report_document(report: NamespaceReport) -> Document:
    return {
        "id": report.namespace,
        "problem": report.problem,
        "limits": report.limits,
        "remarks": report.remarks,
        "folders": report.folder_count,
        "folders_done_before": report.skipped_folder_count,
        "condemned": {why: _heap_document(heap) for why, heap in report.now.items()},
        "goes_after_grace": {why: _heap_document(heap) for why, heap in report.later.items()},
        "waits": _heap_document(report.young),
        "stays": _heap_document(report.stays),
        "deleted": _heap_document(report.deleted),
        "uploaded_anew_meanwhile": report.replaced,
        "unfinished_uploads": report.upload_count,
        "renewed": report.renewed,
        "renewed_files": report.renewed_files,
        "adopted_chunks": report.adopted,
        "lost_chunks_reported": report.reported_lost,
        "foreign": {"objects": report.foreign_count, "names": report.foreign_names},
    }


# ------------------------------------------------------------------- for people
def show(result: SweepResult, output: Output) -> None:
    """A table of what goes and what stays, then what else was seen, then what to do."""
    uri = result.settings.address.uri
    if result.wishes.acts:
        output.line(f"sweep of {uri}", "bold")
    else:
        output.line(f"DRY RUN: sweep of {uri}", "bold")
    if result.reports:
        output.table(_COLUMNS, [*_rows(result), *_total_rows(result)])
        output.line(f"USD/month: {PRICE_WORDS}", "dim")
    elif not result.unknown:
        output.line(f"no archive under {uri}")
    for line in (*_deeds(result), *result.remarks):
        output.line(line)
    for line in _foreign(result):
        output.line(line, "dim")
    for line in result.problems:
        output.line(line, "yellow")
    output.line(_conclusion(result), "bold")


def _rows(result: SweepResult) -> Iterable[tuple[str, ...]]:
    goes = "condemned" if result.wishes.acts else "goes now"
    for report in result.reports:
        name = report.namespace[:SHORT_ID]
        for what, heaps in ((goes, report.now), ("goes after the grace", report.later)):
            for why, heap in sorted(heaps.items()):
                yield _row(name, what, why, heap)
        if report.upload_count:
            uploads = Heap(report.upload_count)
            yield name, goes, "unfinished upload", f"{uploads.count:,}", "?", "?"
        if report.replaced:
            yield name, "stays", "uploaded anew meanwhile", f"{report.replaced:,}", "?", "?"
        yield _row(name, "waits", "young or not whole", report.young)
        yield _row(name, "stays", "used lately, pinned or new", report.stays)


def _total_rows(result: SweepResult) -> Iterable[tuple[str, ...]]:
    if result.wishes.acts:
        yield _row("all", "deleted", "", result.total("deleted"))
    else:
        yield _row("all", "goes now", "", result.total("now"))
    yield _row("all", "goes after the grace", "", result.total("later"))


def _row(name: str, what: str, why: str, heap: Heap) -> tuple[str, ...]:
    size, usd = bytes_text(heap.total_bytes), _usd_text(heap.total_bytes)
    return name, what, why, f"{heap.count:,}", size, usd


def _deeds(result: SweepResult) -> Iterable[str]:
    acts = result.wishes.acts
    for report in result.reports:
        name = report.namespace[:SHORT_ID]
        deeds = (
            (report.adopted, "chunk", "adopted: whole, and nobody listed it"),
            (report.reported_lost, "chunk", "reported lost: listed, and not there"),
            (report.renewed, "object", "renewed before the lifecycle rule takes it"),
            (report.renewed_files, "file", "of the index and its sets renewed as well"),
        )
        for count, noun, words in deeds:
            if count:
                yield f"{name}: {counted(count, noun)} {'' if acts else 'would be '}{words}"
        if report.skipped_folder_count:
            folders = counted(report.skipped_folder_count, "folder")
            yield f"{name}: {folders} done before; the table is of the rest"
        for remark in report.remarks:
            yield f"{name}: {remark}"


def _foreign(result: SweepResult) -> Iterable[str]:
    if result.foreign_folders:
        yield f"not s3kv's, left alone: {', '.join(result.foreign_folders)}"
    for report in result.reports:
        if report.foreign_names:
            count = f"{counted(report.foreign_count, 'object')}: " if report.foreign_count else ""
            yield f"not s3kv's, left alone: {count}{', '.join(report.foreign_names)}"


def _conclusion(result: SweepResult) -> str:
    if not result.wishes.acts:
        return "Nothing was deleted or written. The same command with --yes does it."
    deleted = result.total("deleted")
    text = f"Deleted {counted(deleted.count, 'object')}, {bytes_text(deleted.total_bytes)}."
    later = result.total("later")
    if later.count:
        text += f" A sweep in an hour or later deletes {counted(later.count, 'object')} more."
    return text


def line_of(result: SweepResult, began_s: float) -> str:
    """One pass of a service. began_s: Unix seconds."""
    deleted, later, stays = (result.total(name) for name in ("deleted", "later", "stays"))
    parts = [
        f"deleted {counted(deleted.count, 'object')} {bytes_text(deleted.total_bytes)} "
        f"(${_usd_text(deleted.total_bytes)} a month)",
        f"after the grace {later.count:,}",
        f"stay {stays.count:,} {bytes_text(stays.total_bytes)}",
    ]
    for name in ("adopted", "reported_lost", "renewed", "renewed_files", "upload_count"):
        count = sum(getattr(report, name) for report in result.reports)
        if count:
            parts.append(f"{name.replace('_', ' ').removesuffix(' count')} {count:,}")
    return f"{time_text(began_s)} {'; '.join([*parts, *result.problems, *result.remarks])}"
