"""What a verification comes to, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from s3kv.bucket.meter import Traffic
from s3kv.cli.output import Column, Document, Output
from s3kv.cli.verify_options import VerifyOptions
from s3kv.cli.words import age_text, bytes_text, counted
from s3kv.core.bounds import GET_USD, PUT_USD
from s3kv.core.ids import NamespaceId
from s3kv.core.verified import Fate, Tally

SHOWN_MAX: Final = 20

_READ_KINDS: Final = ("get", "head")
_WRITE_KINDS: Final = ("list", "put", "create", "copy", "multipart")
_COLUMNS: Final = (Column("shard"), Column("wrong"), Column("what"), Column("now"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """tally: of everything, also of earlier runs that this one went on from at folder resumed_at;
    traffic, duration_s: of this run; unreadable_count: index files that could not be read.
    """

    uri: str
    namespace: NamespaceId
    wishes: VerifyOptions
    seed: int
    tally: Tally
    traffic: Traffic
    duration_s: float
    resumed_at: int
    unreadable_count: int

    @property
    def is_all_good(self) -> bool:
        """Nothing is wrong, and nothing could not be checked."""
        return self.tally.is_all_good and not self.unreadable_count

    @property
    def usd(self) -> float:
        """List price of this run's requests."""
        requests = self.traffic.requests
        reads = sum(requests.get(kind, 0) for kind in _READ_KINDS)
        writes = sum(requests.get(kind, 0) for kind in _WRITE_KINDS)
        return reads * GET_USD + writes * PUT_USD

    def document(self, exit_code: int) -> Document:
        """For programs."""
        tally, wishes = self.tally, self.wishes
        return {
            "uri": self.uri,
            "exit_code": exit_code,
            "namespace": self.namespace,
            "depth": "bodies" if wishes.deep else "headers",
            "sample": None if wishes.sample is None else wishes.sample,
            "seed": None if wishes.sample is None else self.seed,
            "quarantines": wishes.yes,
            "listed": tally.shards,
            "listed_bytes": tally.shard_bytes,
            "checked": tally.checked,
            "good": tally.good,
            "bad": {wrong.value: count for wrong, count in tally.bad.items()},
            "fates": {fate.value: count for fate, count in tally.fates.items()},
            "unknown_format": tally.unknown_format,
            "unchecked": tally.unchecked,
            "unchecked_names": tally.unchecked_names,
            "vanished": tally.vanished,
            "shards": [
                {
                    "key": found.key,
                    "bytes": found.size,
                    "wrong": found.wrong.value,
                    "what": found.says,
                    "fate": found.fate.value,
                }
                for found in tally.findings
            ],
            "chunks": self._chunks(),
            "index": {"unreadable_files": self.unreadable_count},
            "foreign": {"objects": tally.foreign, "names": tally.foreign_names},
            "resumed_at_folder": self.resumed_at,
            "read_bytes": self.traffic.received_bytes,
            "requests": dict(self.traffic.requests),
            "usd": self.usd,
            "duration_s": self.duration_s,
        }

    def _chunks(self) -> Mapping[str, object]:
        tally = self.tally
        return {
            "incomplete": tally.incomplete_chunks,
            "incomplete_names": tally.incomplete_names,
            "waiting": tally.waiting_chunks,
            "live_without_shards": tally.gone_chunks,
            "reported_dead": tally.reported_chunks,
            "unlisted": tally.unlisted_chunks,
            "unlisted_young": tally.young_chunks,
            "forgotten": tally.forgotten_chunks,
        }

    def show(self, output: Output) -> None:
        """For people."""
        output.pairs(f"namespace {self.namespace}: {self._subject()}", self._pairs())
        tally = self.tally
        if tally.findings:
            rows = [
                (found.key.partition("/data/")[2], found.wrong.value, found.says, found.fate.value)
                for found in tally.findings[:SHOWN_MAX]
            ]
            output.line()
            output.table(_COLUMNS, rows)
        if tally.bad_count > SHOWN_MAX:
            output.line(f"and {tally.bad_count - SHOWN_MAX:,} more: --json names them")
        for text in (*tally.incomplete_names[:SHOWN_MAX], *tally.unchecked_names[:SHOWN_MAX]):
            output.line(text, "yellow")
        if not self.wishes.yes and (tally.bad_count or tally.gone_chunks):
            output.line("nothing was changed: with --yes bad shards go to quarantine/", "bold")

    def _subject(self) -> str:
        what = "every byte" if self.wishes.deep else "headers"
        if self.wishes.sample is None:
            return f"{what} of all shards"
        return f"{what} of {counted(self.tally.checked, 'shard')}, seed {self.seed}"

    def _pairs(self) -> list[tuple[str, str]]:
        tally = self.tally
        bad = ", ".join(f"{count:,} {wrong.value}" for wrong, count in tally.bad.items())
        pairs = [
            ("listed", f"{counted(tally.shards, 'shard')}, {bytes_text(tally.shard_bytes)}"),
            ("checked", f"{tally.checked:,}"),
            ("good", f"{tally.good:,}"),
            ("bad", f"{tally.bad_count:,} ({bad})" if bad else "0"),
        ]
        fates = {fate: count for fate, count in tally.fates.items() if fate is not Fate.REPORTED}
        rare = [
            *((fate.value, counted(count, "shard")) for fate, count in fates.items()),
            ("could not be checked", _unless_zero(tally.unchecked, "shard")),
            ("unknown format", _unless_zero(tally.unknown_format, "shard")),
            ("deleted meanwhile", _unless_zero(tally.vanished, "shard")),
            ("a shard missing", _unless_zero(tally.incomplete_chunks, "chunk")),
            ("still being written", _unless_zero(tally.waiting_chunks, "chunk")),
            ("in the index, not in the bucket", _unless_zero(tally.gone_chunks, "chunk")),
            ("reported dead", _unless_zero(tally.reported_chunks, "chunk")),
            ("in the bucket, not in the index", self._unlisted()),
            ("dead, a sweep deletes them", _unless_zero(tally.forgotten_chunks, "chunk")),
            ("unreadable index files", _unless_zero(self.unreadable_count, "file")),
            ("not s3kv's, left alone", _unless_zero(tally.foreign, "object")),
        ]
        pairs += [(name, text) for name, text in rare if text]
        return [*pairs, *self._costs()]

    def _unlisted(self) -> str:
        tally = self.tally
        text = _unless_zero(tally.unlisted_chunks, "chunk")
        if text and tally.young_chunks:
            text += f", {tally.young_chunks:,} of them too young to tell"
        which = "those that are still whole" if Fate.QUARANTINED in tally.fates else "them"
        return f"{text}; a sweep or s3kv doctor --rebuild adopts {which}" if text else ""

    def _costs(self) -> list[tuple[str, str]]:
        requests = self.traffic.requests
        told = ", ".join(f"{count:,} {kind.upper()}" for kind, count in sorted(requests.items()))
        run = "this run" if self.resumed_at else "read"
        return [
            (run, f"{bytes_text(self.traffic.received_bytes)} in {age_text(self.duration_s)}"),
            ("requests", f"{told}: about ${self.usd:.4f}"),
        ]


def _unless_zero(count: int, noun: str) -> str:
    return counted(count, noun) if count else ""
