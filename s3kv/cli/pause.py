"""`s3kv pause|resume URI [NAMESPACE] [--load] [--save]`: the fleet stops or goes on, no restart.

Writes the change into the next tick of each namespace, where every engine that follows the index
finds it; what is in force already writes nothing. What a pause means is decided by the engines:
they promise no archived tokens any more, they begin no uploads any more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from s3kv.bucket.base import ObjectStore
from s3kv.cli.bounds_view import default_pace
from s3kv.cli.choosing import choose_namespace, namespaces, require_index
from s3kv.cli.connection import (
    EXIT_LIMITED,
    EXIT_OK,
    EXIT_UNUSABLE,
    bucket_settings,
    explain,
    opened,
)
from s3kv.cli.listing import SHORT_ID, Unread, read_namespace
from s3kv.cli.options import Options
from s3kv.cli.output import Column, Document, Output
from s3kv.core.bounds import staleness
from s3kv.core.follower import LOADS_BIT, SAVES_BIT
from s3kv.core.ids import NamespaceId
from s3kv.core.pausing import Changed, PauseChange, change_pause
from s3kv.errors import S3KVError
from s3kv.runtime.clock import Clock
from s3kv.runtime.index_tool import IndexTool

_UNDER_WAY = (
    "What has begun goes on: a load to its deadline, an upload to its end. "
    "An engine that starts learns of a pause when it has read the index."
)
_COLUMNS = (Column("namespace"), Column("before"), Column("now"))


@dataclass(frozen=True, slots=True)
class PauseOptions:
    """Which of the two a change is about; neither given: both."""

    loads: bool
    saves: bool

    @property
    def bits(self) -> int:
        """Their bits in a tick."""
        asked = LOADS_BIT * self.loads | SAVES_BIT * self.saves
        return asked or LOADS_BIT | SAVES_BIT


@dataclass(frozen=True, slots=True)
class Row:
    """One namespace, and what became of it."""

    namespace: NamespaceId
    outcome: Changed | Unread


async def pause(
    options: Options, namespace: str | None, which: PauseOptions, output: Output
) -> int:
    """Ask the fleet to stop. Raises `ConfigError` for bad input, `S3KVError`."""
    return await _change(options, namespace, PauseChange(set_bits=which.bits), output)


async def resume(
    options: Options, namespace: str | None, which: PauseOptions, output: Output
) -> int:
    """Ask the fleet to go on. Raises as `pause`."""
    return await _change(options, namespace, PauseChange(clear_bits=which.bits), output)


async def _change(
    options: Options, namespace: str | None, change: PauseChange, output: Output
) -> int:
    settings = bucket_settings(options)
    uri = settings.address.uri
    async with opened(settings) as store:
        with output.progress(f"changing the pause of {uri}:") as tell:
            rows = await change_all(store, uri, namespace, change, tell)
    failed_count = sum(isinstance(row.outcome, Unread) for row in rows)
    exit_code = EXIT_LIMITED if failed_count else EXIT_OK
    if failed_count == len(rows):
        exit_code = EXIT_UNUSABLE
    obeyed_s = staleness(default_pace()).paused_worst_s
    document = {
        "uri": uri,
        "exit_code": exit_code,
        "obeyed_within_s": obeyed_s,
        "namespaces": [_row_document(row) for row in rows],
    }
    output.answer(document, lambda: _show(rows, obeyed_s, output))
    return exit_code


async def change_all(
    store: ObjectStore,
    uri: str,
    namespace: str | None,
    change: PauseChange,
    tell: Callable[[str], None],
) -> list[Row]:
    """Make the change in every namespace that is meant; where it fails, its row says why.

    Raises `ConfigError` if no namespace fits or the store cannot carry a tick, `S3KVError`.
    """
    chosen = await namespaces(store)
    if namespace is not None or not chosen:
        chosen = [await choose_namespace(store, uri, namespace)]
    rows, is_proved = [], False
    for ns in chosen:
        tell(ns)
        tool = IndexTool(store, ns, Clock())
        found = await _opened(tool)
        bits = tool.follower.pause_bits
        if found is None and change.applied_to(bits) != bits:
            if not is_proved:  # only who writes has to
                await require_index(store, uri)
                is_proved = True
            rows.append(Row(ns, await _written(tool, change)))
        else:
            rows.append(Row(ns, found or Changed(bits, bits)))
    return rows


async def _opened(tool: IndexTool) -> Unread | None:
    """Read the index; why that is impossible, if it is. Nothing is written where no archive is."""
    try:
        described = await read_namespace(tool.store, tool.namespace)
        if isinstance(described, Unread):
            return described
        await tool.open()
    except S3KVError as error:
        return Unread(explain(error).line)
    return None


async def _written(tool: IndexTool, change: PauseChange) -> Changed | Unread:
    try:
        return await tool.perform(change_pause(tool.sequencer, tool.now(), change))
    except S3KVError as error:
        return Unread(explain(error).line)


def _row_document(row: Row) -> Document:
    outcome = row.outcome
    if isinstance(outcome, Unread):
        return {"namespace": row.namespace, "problem": outcome.reason, "changed": False}
    return {
        "namespace": row.namespace,
        "problem": "",
        "changed": outcome.before != outcome.now,
        "before": _bits_document(outcome.before),
        "now": _bits_document(outcome.now),
    }


def _bits_document(bits: int) -> Document:
    return {
        "loads_paused": bool(bits & LOADS_BIT),
        "saves_paused": bool(bits & SAVES_BIT),
        "other_bits": bits & ~(LOADS_BIT | SAVES_BIT),
    }


def _words(bits: int) -> str:
    paused = [name for name, bit in (("loads", LOADS_BIT), ("saves", SAVES_BIT)) if bits & bit]
    return f"{' and '.join(paused)} paused" if paused else "nothing paused"


def _show(rows: Sequence[Row], obeyed_s: float, output: Output) -> None:
    cells = [
        (row.namespace[:SHORT_ID], _words(changed.before), _words(changed.now))
        for row in rows
        if isinstance(changed := row.outcome, Changed)
    ]
    if cells:
        output.table(_COLUMNS, cells)
    for row in rows:
        if isinstance(row.outcome, Unread):
            output.line(f"{row.namespace[:SHORT_ID]}: not changed: {row.outcome.reason}", "yellow")
    if any(before != now for _, before, now in cells):
        output.line(f"Every engine that follows the index obeys within {obeyed_s:.1f} s.")
        output.line(_UNDER_WAY, "dim")
    elif cells:
        output.line("Nothing to change.")
