"""Where the worker's own threads leave results for the engine's thread to collect each step.

The one rule that matters: a load and its bad blocks become visible together. An engine that saw a
load as complete and learned of its bad blocks later would deliver wrong tokens.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Collection, Iterable

from s3kv.connector.messages import FailedChunk, LayoutHandshake, Report
from s3kv.core.ids import NamespaceId


class Outbox:
    """The lock is between the engine's thread, which takes, and all others, which put."""

    def __init__(self) -> None:
        """Empty."""
        self._lock = threading.Lock()
        self._ended: list[tuple[str, frozenset[int]]] = []
        self._report = Report()
        self._counts: Counter[str] = Counter()

    # ------------------------------------------------------------------- put
    def load_ended(
        self,
        request_id: str,
        bad_blocks: Collection[int],
        failed: tuple[FailedChunk, ...] = (),
        load_s: float = 0.0,
        received_bytes: int = 0,
    ) -> None:
        """A load is over: `bad_blocks` were not filled."""
        with self._lock:
            self._ended.append((request_id, frozenset(bad_blocks)))
            self._report.failed += failed
            self._report.load_s[request_id] = load_s
            self._counts["loads_failed" if bad_blocks else "loads_complete"] += 1
            self._counts["received_bytes"] += received_bytes

    def staged(self, job_id: int) -> None:
        """The source blocks of a save are no longer read."""
        with self._lock:
            self._report.staged[job_id] = 1
            self._counts["saves_staged"] += 1

    def dropped(self, job_ids: Iterable[int], reason: str) -> None:
        """Saves that were not even staged: source blocks free, nothing archived."""
        with self._lock:
            for job_id in job_ids:
                self._report.staged[job_id] = 1
                self._report.unsaved[job_id] = reason
                self._counts[f"saves_dropped_{reason}"] += 1

    def saved(self, job_id: int, word: str) -> None:
        """A staged save became durable."""
        with self._lock:
            self._report.saved[job_id] = 1
            self._counts[f"saves_{word}"] += 1

    def unsaved(self, job_id: int, word: str) -> None:
        """A staged save was lost."""
        with self._lock:
            self._report.unsaved[job_id] = word
            self._counts[f"saves_{word}"] += 1

    def opened(self, namespace_id: NamespaceId) -> None:
        """This rank serves the namespace."""
        with self._lock:
            self._report.opened[namespace_id] = 1

    def read_only(self, reason: str) -> None:
        """This rank cannot write."""
        with self._lock:
            self._report.read_only = reason

    def layout(self, handshake: LayoutHandshake) -> None:
        """This rank's layout, for a scheduler side that did not get the handshake."""
        with self._lock:
            self._report.layouts = (handshake,)

    # ------------------------------------------------------------------ take
    def take_ended(self) -> tuple[set[str], set[int]]:
        """Requests whose load ended since the last call, and the blocks that were not filled."""
        with self._lock:
            ended, self._ended = self._ended, []
        bad = {block_id for _, blocks in ended for block_id in blocks}
        return {request_id for request_id, _ in ended}, bad

    def take_report(self) -> Report | None:
        """What the scheduler side should know; None when there is nothing."""
        with self._lock:
            if self._report.is_empty:
                return None
            report, self._report = self._report, Report()
        return report

    @property
    def counts(self) -> dict[str, int]:
        """Everything counted so far."""
        with self._lock:
            return dict(self._counts)
