"""Records on their way into the index, and who waits for them.

Bounded. A commit leaves the queue exactly once: durable, failed, or withdrawn by its caller. Owned
by the loop thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from s3kv.core.records import RECORDS_MAX, RecordSet, merge
from s3kv.errors import Throttled, Transient


def _new_future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True, eq=False)
class Commit:
    """At most `RECORDS_MAX` records; announce_by_s: monotonic, not to be written later (R5)."""

    records: RecordSet
    announce_by_s: float
    durable: asyncio.Future[None] = field(default_factory=_new_future)


class CommitQueue:
    """Commits in the order of their arrival; several may be written together."""

    def __init__(self, records_max: int) -> None:
        """records_max: records of all unfinished commits together."""
        self._records_max = records_max
        self._unfinished: list[Commit] = []

    @property
    def record_count(self) -> int:
        """Records that are not durable yet."""
        return sum(len(each.records) for each in self._unfinished)

    def next_deadline_s(self) -> float:
        """Earliest announce_by_s of all, inf for none."""
        return earliest_s(self._unfinished)

    async def offer(self, records: RecordSet, announce_by_s: float) -> None:
        """Queue records and wait until they are durable. Raises `Throttled`, or what `fail` got.

        Records whose caller gives up waiting are withdrawn, unless they are being written.
        """
        if self.record_count + len(records) > self._records_max:
            raise Throttled(f"{self.record_count} records wait for the index already")
        parts = [
            Commit(records.take(slice(at, at + RECORDS_MAX)), announce_by_s)
            for at in range(0, len(records), RECORDS_MAX)
        ]
        self._unfinished.extend(parts)
        try:
            await asyncio.gather(*(part.durable for part in parts))
        finally:
            self._remove(parts)

    def batch(self) -> list[Commit]:
        """The oldest commits that fit into one file together; they stay queued until settled."""
        chosen: list[Commit] = []
        count = 0
        for each in self._unfinished:
            count += len(each.records)
            if count > RECORDS_MAX:
                break
            chosen.append(each)
        return chosen

    def settle(self, commits: Sequence[Commit]) -> None:
        """They are durable."""
        self._remove(commits)
        for each in commits:
            if not each.durable.done():
                each.durable.set_result(None)

    def fail(self, commits: Sequence[Commit], error: Exception) -> None:
        """Given up: each caller gets the error."""
        self._remove(commits)
        for each in commits:
            if not each.durable.done():
                each.durable.set_exception(error)

    def expire(self, now_s: float) -> int:
        """Give up what may not be announced any more; how many records that was."""
        late = [each for each in self._unfinished if each.announce_by_s <= now_s]
        self.fail(late, Transient("the index could not be written in time"))
        return sum(len(each.records) for each in late)

    def fail_all(self, error: Exception) -> int:
        """Give up everything; how many records that was."""
        count = self.record_count
        self.fail(list(self._unfinished), error)
        return count

    def _remove(self, commits: Sequence[Commit]) -> None:
        gone = {id(each) for each in commits}
        self._unfinished = [each for each in self._unfinished if id(each) not in gone]


def earliest_s(commits: Sequence[Commit]) -> float:
    """When the first of some commits must not be written any more; inf for none."""
    return min((each.announce_by_s for each in commits), default=float("inf"))


def merged(commits: Sequence[Commit]) -> RecordSet:
    """All records of some commits."""
    return merge([each.records for each in commits])
