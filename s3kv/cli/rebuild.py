"""`s3kv doctor URI --rebuild`: the index is made again from what lies in the bucket.

Lists every shard, announces the whole chunks that nobody lists and reports those that are listed
and gone. Only writes index records: what an emptied or damaged index has forgotten is known again
to every reader, but for when it was last used (its upload counts as that).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from s3kv.bucket.base import ObjectStore
from s3kv.cli.choosing import choose_namespace, namespaces, require_index
from s3kv.cli.connection import EXIT_LIMITED, EXIT_OK, bucket_settings, opened
from s3kv.cli.listing import SHORT_ID
from s3kv.cli.options import Options
from s3kv.cli.output import Column, Document, Output
from s3kv.cli.subjects import read_subjects
from s3kv.core.ids import NamespaceId
from s3kv.core.sweep import FOLDERS
from s3kv.errors import ConfigError
from s3kv.runtime.clock import Clock
from s3kv.runtime.sweeping import NamespaceReport, Orders, sweep_namespace

_COLUMNS = (
    Column("namespace"),
    Column("folders", "right"),
    Column("chunks adopted", "right"),
    Column("chunks reported lost", "right"),
)


@dataclass(frozen=True, slots=True)
class _Rebuilt:
    uri: str
    reports: Sequence[NamespaceReport] = ()
    unknown: Mapping[NamespaceId, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        is_whole = all(report.is_whole for report in self.reports)
        return EXIT_OK if is_whole and not self.unknown else EXIT_LIMITED


async def rebuild(options: Options, namespace: str | None, output: Output) -> int:
    """Rebuild one namespace, or all of them (None). Raises `ConfigError`, `S3KVError`."""
    settings = bucket_settings(options)
    uri = settings.address.uri
    async with opened(settings) as store:
        if namespace is None:
            chosen = await namespaces(store)
        else:
            chosen = [await choose_namespace(store, uri, namespace)]
        if not chosen:
            raise ConfigError("uri", uri, "no archive under this prefix", "s3kv ls shows what is")
        await require_index(store, uri)
        result = await _rebuild(store, uri, chosen, output)
    output.answer(_document(result), lambda: _show(result, output))
    return result.exit_code


async def _rebuild(
    store: ObjectStore, uri: str, chosen: Sequence[NamespaceId], output: Output
) -> _Rebuilt:
    clock = Clock()
    subjects = await read_subjects(store, clock, chosen)
    reports: list[NamespaceReport] = []
    walked = 0
    with output.bar("rebuilding", len(subjects.known) * len(FOLDERS)) as tell:

        def on_folders(folders: Sequence[str]) -> None:
            nonlocal walked
            walked += len(folders)
            tell(walked, "")

        for subject in subjects.known:
            orders = Orders(deed="rebuild")
            report = await sweep_namespace(store, subject, clock, orders, on_folders=on_folders)
            reports.append(report)
    return _Rebuilt(uri, reports, subjects.unknown)


def _document(result: _Rebuilt) -> Document:
    return {
        "uri": result.uri,
        "exit_code": result.exit_code,
        "namespaces": [
            {
                "id": report.namespace,
                "problem": report.problem,
                "folders": report.folder_count,
                "adopted_chunks": report.adopted,
                "lost_chunks_reported": report.reported_lost,
                "index_incomplete": report.index_incomplete,
            }
            for report in result.reports
        ],
        "left_alone": [{"id": ns, "problem": why} for ns, why in result.unknown.items()],
    }


def _show(result: _Rebuilt, output: Output) -> None:
    output.line(f"index of {result.uri}, rebuilt from a listing", "bold")
    output.table(_COLUMNS, [_row(report) for report in result.reports])
    for report in result.reports:
        name = report.namespace[:SHORT_ID]
        if report.index_incomplete:
            output.line(
                f"{name}: parts of the old index cannot be read; what was adopted is right all the "
                "same, and known to every reader"
            )
        if report.problem:
            output.line(f"{name} is not rebuilt to its end: {report.problem}", "yellow")
    for ns, reason in result.unknown.items():
        output.line(f"{ns[:SHORT_ID]} is left alone: {reason}", "yellow")
    output.line("Nothing was deleted. An adopted chunk counts as used when it was uploaded.")


def _row(report: NamespaceReport) -> tuple[str, ...]:
    counts = (report.folder_count, report.adopted, report.reported_lost)
    return (report.namespace[:SHORT_ID], *(f"{count:,}" for count in counts))
