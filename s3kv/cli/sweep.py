"""`s3kv sweep URI`: what nobody uses any more goes, what nobody lists is adopted or goes too.

A dry run unless `--yes`: it tells what would go now and what when the grace is over. What is
deleted, and when it may be, is decided in `core.sweep`; the walk is `runtime.sweeping`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.capabilities import PROBE_PREFIX
from s3kv.bucket.connect import BucketSettings
from s3kv.cli.choosing import choose_namespace, namespaces, require_index
from s3kv.cli.connection import (
    EXIT_OK,
    REQUEST_TIMEOUT_S,
    bucket_settings,
    explain,
    opened,
)
from s3kv.cli.listing import SHORT_ID
from s3kv.cli.options import Options
from s3kv.cli.output import Output
from s3kv.cli.service import stop_signals, unless
from s3kv.cli.subjects import SKEW_MAX_S, Subjects, read_subjects
from s3kv.cli.sweep_options import SweepOptions
from s3kv.cli.sweep_state import SweepState, load_state
from s3kv.cli.sweep_view import SweepResult, document_of, line_of, show
from s3kv.cli.sweep_wishes import SweepWishes, wishes_of
from s3kv.cli.words import age_text
from s3kv.core.ids import NamespaceId
from s3kv.core.sweep import FOLDERS, SweepRules
from s3kv.errors import S3KVError
from s3kv.runtime.clock import Clock
from s3kv.runtime.sweeping import NamespaceReport, Orders, choose_cutoff, sweep_namespace

_WITHOUT_INDEX = "without an index a sweep would take every object for an orphan"


async def sweep(options: Options, given: SweepOptions, output: Output) -> int:
    """Sweep once, or again and again until SIGINT or SIGTERM; returns the last exit code.

    Raises `ConfigError`, `S3KVError` (the latter in the only pass).
    """
    wishes = wishes_of(given)
    settings = bucket_settings(options)
    async with opened(settings) as store:
        passes = Passes(store, settings, wishes, output, Clock())
        if wishes.every_s is None:
            result = await passes.once()
            output.answer(document_of(result), lambda: show(result, output))
            return result.exit_code
        with stop_signals() as stop:
            return await repeated(passes.report_once, wishes.every_s, Clock(), stop)


async def repeated(
    work: Callable[[], Coroutine[None, None, int]],
    every_s: float,
    clock: Clock,
    stop: asyncio.Event,
) -> int:
    """Work, wait, and again until `stop` is set, which ends either; the last work's exit code."""
    exit_code = EXIT_OK
    while not stop.is_set():
        exit_code = await unless(stop, work(), exit_code)
        await unless(stop, clock.sleep(every_s), None)
    return exit_code


class Passes:
    """One pass after the other over the same prefix. Owned by one task."""

    def __init__(
        self,
        store: ObjectStore,
        settings: BucketSettings,
        wishes: SweepWishes,
        output: Output,
        clock: Clock,
    ) -> None:
        """store: at the place that the settings name; closed by whoever opened it."""
        self._store = store
        self._settings = settings
        self._uri = settings.address.uri
        self._wishes = wishes
        self._output = output
        self._clock = clock
        self._has_begun = False
        self._chosen: NamespaceId | None = None

    async def report_once(self) -> int:
        """A pass of a service: one line or document, also when it fails.

        Raises `ConfigError`: for what the place lacks, only before the first pass.
        """
        began_s = self._clock.unix_s()
        try:
            result = await self.once()
        except S3KVError as error:
            says = explain(error, self._settings).line
            result = SweepResult(self._settings, self._wishes, limits=[says])
        self._output.event(document_of(result), line_of(result, began_s))
        return result.exit_code

    async def once(self) -> SweepResult:
        """One pass over everything that is chosen. Raises `ConfigError`, `S3KVError`."""
        with self._output.progress(f"reading {self._uri}:"):
            if not self._has_begun:
                await self._begin()
                self._has_begun = True
            subjects = await self._subjects()
            result = SweepResult(self._settings, self._wishes, unknown=subjects.unknown)
            result.foreign_folders = await self._foreign_folders()
            result.cutoff_s = await self._cutoff(subjects, result.limits)
        state = load_state(
            self._wishes.state,
            self._wishes.sameness(self._uri, self._settings.endpoint_url),
            self._clock.unix_s(),
        )
        result.remarks += [state.note] if state.note else []
        result.reports = await self._walk(subjects, self._orders(result.cutoff_s), state)
        if not any(report.has_failed for report in result.reports):
            state.clear()
        return result

    async def _begin(self) -> None:
        """What is asked once: a service must not end on it later."""
        if self._wishes.acts:
            await require_index(self._store, self._uri, _WITHOUT_INDEX)
        if self._wishes.namespace is not None:
            wanted = self._wishes.namespace
            self._chosen = await choose_namespace(self._store, self._uri, wanted)

    async def _subjects(self) -> Subjects:
        chosen = [self._chosen] if self._chosen else await namespaces(self._store)
        return await read_subjects(self._store, self._clock, chosen)

    async def _foreign_folders(self) -> Sequence[str]:
        ours = {f"{ns}/" for ns in await namespaces(self._store)} | {PROBE_PREFIX}
        found = await self._store.list_prefixes("", timeout_s=REQUEST_TIMEOUT_S)
        return [name for name in found if name not in ours]

    async def _cutoff(self, subjects: Subjects, limits: list[str]) -> int:
        """How far to forget now; what stands against it is told, and then nothing more is."""
        wishes = self._wishes
        if not wishes.forgets or not subjects.known:
            return 0
        if abs(subjects.skew_s) > SKEW_MAX_S:
            skew = age_text(abs(subjects.skew_s))
            limits.append(f"nothing more is forgotten: this machine's clock is {skew} off")
            return 0
        try:
            return await choose_cutoff(
                self._store, subjects.known, self._clock, wishes.ttl_s, wishes.max_bytes
            )
        except S3KVError as error:
            limits.append(f"nothing more is forgotten: {error}")
            return 0

    def _orders(self, cutoff_s: int) -> Orders:
        wishes = self._wishes
        return Orders(
            deed="sweep" if wishes.acts else "look",
            rules=SweepRules(renew_after_s=wishes.renew_after_s),
            cutoff_s=cutoff_s,
            quarantine_age_s=wishes.quarantine_age_s,
        )

    async def _walk(
        self, subjects: Subjects, orders: Orders, state: SweepState
    ) -> list[NamespaceReport]:
        reports, walked = [], 0
        total = len(subjects.known) * len(FOLDERS)
        with self._output.bar("sweeping" if orders.deed == "sweep" else "looking", total) as tell:
            for at, subject in enumerate(subjects.known):
                ns = subject.namespace
                done = tuple(state.done.get(ns, ()))
                walked = at * len(FOLDERS) + len(done)

                def on_folders(folders: Sequence[str], ns: NamespaceId = ns) -> None:
                    nonlocal walked
                    walked += len(folders)
                    tell(walked, ns[:SHORT_ID])
                    state.finish(ns, folders, self._clock.unix_s())

                reports.append(
                    await sweep_namespace(
                        self._store, subject, self._clock, orders, done=done, on_folders=on_folders
                    )
                )
        return reports
