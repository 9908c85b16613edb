"""The doctor's checks: each asks the store for one thing an engine needs and says what it saw.

What an engine itself probes at start-up is probed here by the same code
(`bucket.capabilities`), so the two cannot disagree. Everything written lies under
`.s3kv-probe/` and is deleted again, also when a check is interrupted.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from s3kv.bucket.base import ConditionalDelete, Missing, ObjectInfo, ObjectStore, Received
from s3kv.bucket.capabilities import PROBE_PREFIX, probe_capabilities
from s3kv.bucket.settings import KIB, MIB, BucketSettings
from s3kv.cli.connection import CREDENTIALS_REMEDY, REQUEST_TIMEOUT_S, explain
from s3kv.cli.findings import Finding, State, capability_findings, clock_finding
from s3kv.cli.sdk_view import SdkView
from s3kv.cli.words import bytes_text, counted
from s3kv.errors import Corrupt, Denied, S3KVError
from s3kv.runtime.clock import Clock

PART_BYTES: Final = 5 * MIB
BODY_BYTES: Final = 8 * MIB
SMALL_BODY_BYTES: Final = 128 * KIB
HEAD_COUNT: Final = 7
BODY_TIMEOUT_S: Final = 120.0

_CONDITIONAL_DELETES: Final[Mapping[ConditionalDelete, str]] = {
    "batch": "only what is unchanged is deleted, 1,000 names a request",
    "single": "only what is unchanged is deleted, one name a request",
    "none": "not offered: a sweep looks at each object, then deletes it",
}


@dataclass(frozen=True, slots=True)
class Stores:
    """The place under examination, connected in three ways.

    usual: as asked for; parts: bodies above 5 MiB go in parts; other_mode: with the other checksum
    mode than `settings` names; sdk: None for a store that is not S3.
    """

    settings: BucketSettings
    usual: ObjectStore
    parts: ObjectStore
    other_mode: ObjectStore
    sdk: SdkView | None


class _Stop(Exception):
    """Nothing further can be found out."""


class Examination:
    """One run over all checks; owned by one task."""

    def __init__(self, stores: Stores, clock: Clock, on_check: Callable[[str], None]) -> None:
        """on_check: told each check's name before it begins."""
        self._stores = stores
        self._store = stores.usual
        self._clock = clock
        self._on_check = on_check
        self._findings: list[Finding] = []
        self._key = PROBE_PREFIX + os.urandom(16).hex()
        self._written: list[str] = []
        self._sample: ObjectInfo | None = None

    async def run(self) -> tuple[Finding, ...]:
        """All findings, in order; those after a hopeless one are missing."""
        try:
            await self._run()
        except _Stop:
            pass
        finally:
            await self._clean_up()
        return tuple(self._findings)

    async def _run(self) -> None:
        await self._credentials()
        await self._bucket()
        if await self._capabilities():
            await self._checksum_mode()
            await self._multipart()
            await self._abort()
            await self._bandwidth()
        else:
            await self._read_bandwidth()
        await self._clock_skew()
        await self._latency()

    def _note(
        self,
        check: str,
        state: State,
        says: str,
        remedy: str = "",
        numbers: Mapping[str, float] | None = None,
    ) -> None:
        finding = Finding(check=check, state=state, says=says, remedy=remedy, numbers=numbers or {})
        self._findings.append(finding)

    def _trouble(self, check: str, state: State, error: S3KVError, remedy: str = "") -> None:
        failure = explain(error, self._stores.settings)
        self._note(check, state, failure.says, failure.remedy or remedy)

    async def _credentials(self) -> None:
        self._on_check("credentials")
        if self._stores.sdk is None:
            return
        try:
            source = await self._stores.sdk.credentials_source()
        except S3KVError as error:
            self._trouble("credentials", "failed", error, CREDENTIALS_REMEDY)
            raise _Stop from error
        self._note("credentials", "ok", f"found (from: {source})")

    async def _bucket(self) -> None:
        self._on_check("bucket")
        try:
            page = await anext(self._store.list("", timeout_s=REQUEST_TIMEOUT_S), ())
            folders = await self._store.list_prefixes("", timeout_s=REQUEST_TIMEOUT_S)
        except S3KVError as error:
            self._trouble("bucket", "failed", error)
            raise _Stop from error
        self._sample = next((found for found in page if found.size), None)
        archives = sum(len(folder) == 33 for folder in folders)
        here = f"{counted(archives, 'namespace')} here" if archives else "no archive here yet"
        self._note("bucket", "ok", f"reachable, can be listed; {here}")

    async def _capabilities(self) -> bool:
        """What an engine probes; True if objects can be written."""
        self._on_check("what an engine probes at start-up")
        try:
            found = await probe_capabilities(self._store, timeout_s=REQUEST_TIMEOUT_S)
        except S3KVError as error:
            self._trouble("read", "failed", error)
            raise _Stop from error
        self._findings += capability_findings(found)
        if not found.readable:
            raise _Stop
        if found.deletable and found.certain:
            self._note("conditional delete", "ok", _CONDITIONAL_DELETES[found.conditional_delete])
        if not found.writable:
            await self._try_other_mode()
        return found.writable

    async def _try_other_mode(self) -> None:
        """Writes fail: perhaps only because of the checksums that the SDK adds."""
        if self._stores.settings.checksum_mode == "when_required":
            return
        with contextlib.suppress(S3KVError):
            await self._put(self._stores.other_mode, "mode", b"s3kv probe")
            self._note(
                "checksum mode",
                "warning",
                "the store refuses when_supported, and takes when_required",
                "use --checksum-mode when_required (checksum_mode for the engine)",
            )

    async def _put(self, store: ObjectStore, name: str, body: bytes) -> str:
        """Write one object that is deleted at the end; its key."""
        key = f"{self._key}-{name}"
        self._written.append(key)
        try:
            await store.put(key, body, timeout_s=BODY_TIMEOUT_S)
        except Denied:
            self._written.remove(key)
            raise
        return key

    async def _read_back(self, store: ObjectStore, key: str, body: bytes) -> None:
        """Raises `Corrupt` unless the object is exactly `body`."""
        got = bytearray(len(body))
        with memoryview(got) as buffer:
            outcome = await store.get_into(key, 0, buffer, timeout_s=BODY_TIMEOUT_S)
        is_whole = isinstance(outcome, Received) and outcome.total_bytes == len(body)
        if not is_whole or got != body:
            raise Corrupt(f"{key}: other bytes came back than were written")

    async def _checksum_mode(self) -> None:
        self._on_check("checksum mode")
        chosen = self._stores.settings.checksum_mode
        other = "when_required" if chosen == "when_supported" else "when_supported"
        body = os.urandom(SMALL_BODY_BYTES)
        try:
            key = await self._put(self._store, "mode", body)
            await self._read_back(self._store, key, body)
        except S3KVError as error:
            self._trouble("checksum mode", "warning", error, f"use --checksum-mode {other}")
            return
        try:
            key = await self._put(self._stores.other_mode, "other-mode", body)
            await self._read_back(self._stores.other_mode, key, body)
            rest = f"{other} would work too"
        except S3KVError:
            rest = f"{other} would not work here"
        self._note("checksum mode", "ok", f"{chosen} is accepted; {rest}")

    async def _multipart(self) -> None:
        self._on_check("multipart upload")
        body = os.urandom(2 * PART_BYTES)
        try:
            key = await self._put(self._stores.parts, "parts", body)
            await self._read_back(self._stores.parts, key, body)
        except S3KVError as error:
            remedy = f"keep shards below {bytes_text(self._stores.settings.multipart_bytes)}"
            self._trouble("multipart upload", "warning", error, remedy)
            return
        says = f"2 parts of {bytes_text(PART_BYTES)} became one object"
        self._note("multipart upload", "ok", says)

    async def _abort(self) -> None:
        self._on_check("multipart abort")
        if self._stores.sdk is None:
            return
        check = "multipart abort"
        remedy = (
            "allow s3:AbortMultipartUpload, and let a lifecycle rule abort incomplete uploads: "
            "their parts cost money for ever"
        )
        try:
            outcome = await self._stores.sdk.abort_upload(f"{self._key}-abort")
        except S3KVError as error:
            self._trouble(check, "warning", error, remedy)
            return
        if outcome.left_count is None:
            self._note(check, "ok", "accepted (uploads cannot be listed to see that nothing stays)")
        elif outcome.left_count:
            self._note(check, "warning", "an aborted upload is still listed", remedy)
        else:
            self._note(check, "ok", "an aborted upload leaves nothing")

    async def _bandwidth(self) -> None:
        self._on_check("bandwidth")
        body = os.urandom(BODY_BYTES)
        try:
            start_s = self._clock.monotonic_s()
            key = await self._put(self._store, "body", body)
            put_s = self._clock.monotonic_s() - start_s
            await self._read_back(self._store, key, body)
            get_s = self._clock.monotonic_s() - start_s - put_s
        except S3KVError as error:
            self._trouble("bandwidth", "warning", error)
            return
        rates = {
            "put_bytes_per_s": BODY_BYTES / max(put_s, 1e-9),
            "get_bytes_per_s": BODY_BYTES / max(get_s, 1e-9),
        }
        put, get = (bytes_text(rate) for rate in rates.values())
        says = f"PUT {put}/s, GET {get}/s: one body of {bytes_text(BODY_BYTES)}, one connection"
        self._note("bandwidth", "ok", says, numbers=rates)

    async def _read_bandwidth(self) -> None:
        """Of a store that takes no writes: an object that is there already must do."""
        self._on_check("bandwidth")
        for check in ("multipart upload", "multipart abort"):
            self._note(check, "skipped", "nothing can be written")
        if self._sample is None:
            for check in ("ranged GET", "bandwidth"):
                self._note(check, "skipped", "nothing can be written, and no object is there")
            return
        wanted = min(self._sample.size, BODY_BYTES)
        start = self._sample.size - wanted
        with memoryview(bytearray(wanted)) as buffer:
            try:
                start_s = self._clock.monotonic_s()
                outcome = await self._store.get_into(
                    self._sample.key, start, buffer, timeout_s=BODY_TIMEOUT_S
                )
                get_s = self._clock.monotonic_s() - start_s
            except S3KVError as error:
                self._trouble("ranged GET", "failed", error)
                return
        if isinstance(outcome, Missing) or outcome.received_bytes != wanted:
            self._note("ranged GET", "warning", "a listed object could not be read", "try again")
            return
        rate = wanted / max(get_s, 1e-9)
        self._note("ranged GET", "ok", "an object that was here already could be read")
        says = f"GET {bytes_text(rate)}/s: one body of {bytes_text(wanted)}"
        self._note("bandwidth", "ok", says, numbers={"get_bytes_per_s": rate})

    async def _clock_skew(self) -> None:
        self._on_check("clock")
        key = self._written[-1] if self._written else self._sample.key if self._sample else None
        if key is None:
            self._note("clock", "skipped", "no object to ask for, so the store tells no time")
            return
        try:
            before_s = self._clock.unix_s()
            found = await self._store.stat(key, timeout_s=REQUEST_TIMEOUT_S)
            now_s = (before_s + self._clock.unix_s()) / 2
        except S3KVError as error:
            self._trouble("clock", "warning", error)
            return
        if isinstance(found, Missing):
            self._note("clock", "warning", "an object that was just there is missing", "try again")
            return
        self._findings.append(clock_finding(found.modified_s + found.age_s - now_s))

    async def _latency(self) -> None:
        self._on_check("latency")
        seconds = []
        try:
            for _ in range(HEAD_COUNT):
                start_s = self._clock.monotonic_s()
                await self._store.stat(self._key, timeout_s=REQUEST_TIMEOUT_S)
                seconds.append(self._clock.monotonic_s() - start_s)
        except S3KVError as error:
            self._trouble("latency", "warning", error)
            return
        median_s = statistics.median(seconds)
        says = f"HEAD takes {1000 * median_s:.1f} ms (median of {HEAD_COUNT})"
        if median_s > 0.1:
            says += "; probes would miss the default lookup_deadline_s of 0.1, the index does not"
        self._note("latency", "ok", says, numbers={"head_median_s": median_s})

    async def _clean_up(self) -> None:
        """Delete what was written, also what a refused or interrupted request may have written."""
        self._on_check("cleaning up")
        if not self._written:
            return
        try:
            await self._store.delete(self._written, timeout_s=REQUEST_TIMEOUT_S)
        except S3KVError as error:
            where = f"{self._stores.settings.address.root}{PROBE_PREFIX}"
            failure = explain(error, self._stores.settings)
            remedy = f"delete the objects under {where}"
            self._note("clean-up", "warning", failure.says, remedy)
