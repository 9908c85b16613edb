"""What a verification has found so far: counts and names, kept small, put together in any order.

Pure. A verification that is killed goes on from its `Progress`, so all that its end will report is
in there: whatever happened in folders that are not done is forgotten and done again.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, fields
from typing import Final, TypeVar

from s3kv.core.requests import Listed
from s3kv.core.sweep import FOLDERS
from s3kv.core.verifying import Fault, Wrong

K = TypeVar("K")

FINDINGS_MAX: Final = 10_000
"""Bad shards that are named; more are only counted."""

NAMES_MAX: Final = 100
"""Of everything else that is named."""


class Fate(enum.Enum):
    """What became of a bad shard."""

    REPORTED = "reported"
    QUARANTINED = "quarantined"
    REPLACED = "replaced meanwhile"
    LEFT = "could not be quarantined"


@dataclass(frozen=True, slots=True)
class Finding:
    """One bad shard."""

    key: str
    size: int
    wrong: Wrong
    says: str
    fate: Fate


@dataclass(slots=True)
class Tally:
    """Counts of shards; those of chunks say so. Owned by the task that counts.

    shards, shard_bytes: listed; vanished: deleted between listing and look; unknown_format: left
    alone; unchecked: could not be looked at; waiting_chunks, incomplete_chunks: without all their
    shards, younger and older than a chunk's upload may last; gone_chunks: live in the index but not
    whole in the bucket, reported_chunks: of those and of the bad ones, reported as dead;
    unlisted_chunks: not in the index, of which young_chunks may be announced yet; forgotten_chunks:
    dead in the index, a sweep's business; foreign: objects that are not ours.
    """

    shards: int = 0
    shard_bytes: int = 0
    good: int = 0
    vanished: int = 0
    unknown_format: int = 0
    unchecked: int = 0
    waiting_chunks: int = 0
    incomplete_chunks: int = 0
    gone_chunks: int = 0
    reported_chunks: int = 0
    unlisted_chunks: int = 0
    young_chunks: int = 0
    forgotten_chunks: int = 0
    foreign: int = 0
    bad: dict[Wrong, int] = field(default_factory=dict)
    fates: dict[Fate, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    incomplete_names: list[str] = field(default_factory=list)
    unchecked_names: list[str] = field(default_factory=list)
    foreign_names: list[str] = field(default_factory=list)

    @property
    def bad_count(self) -> int:
        """Shards that are wrong."""
        return sum(self.bad.values())

    @property
    def checked(self) -> int:
        """Shards that were looked into."""
        return self.good + self.bad_count + self.unknown_format

    @property
    def is_all_good(self) -> bool:
        """Nothing is wrong, and nothing could not be checked."""
        doubtful = self.unknown_format + self.unchecked
        return not (self.bad_count + doubtful + self.incomplete_chunks + self.gone_chunks)

    def add_bad(self, found: Listed, fault: Fault, fate: Fate) -> None:
        """One more bad shard."""
        _count(self.bad, fault.wrong)
        _count(self.fates, fate)
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(found.key, found.size, fault.wrong, fault.says, fate))

    def add(self, other: Tally) -> None:
        """All that the other one has counted, too."""
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            if isinstance(mine, int):
                setattr(self, each.name, mine + theirs)
            elif isinstance(mine, dict):
                for key, count in theirs.items():
                    _count(mine, key, count)
            else:
                limit = FINDINGS_MAX if each.name == "findings" else NAMES_MAX
                mine.extend(theirs[: max(0, limit - len(mine))])


def remember(names: list[str], text: str) -> None:
    """Remember one more name, if there are not too many."""
    if len(names) < NAMES_MAX:
        names.append(text)


def _count(counts: dict[K, int], key: K, count: int = 1) -> None:
    counts[key] = counts.get(key, 0) + count


@dataclass(slots=True)
class Progress:
    """How far a walk over all folders has come. Owned by the task that verifies.

    folders_done: the first so many of `FOLDERS` are done, and tally is what was found in them.
    """

    folders_done: int = 0
    tally: Tally = field(default_factory=Tally)
    _ahead: dict[int, Tally] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to do."""
        return self.folders_done == len(FOLDERS)

    @property
    def finished_count(self) -> int:
        """Folders done, also those before which another is still under way."""
        return self.folders_done + len(self._ahead)

    def finish(self, index: int, tally: Tally) -> None:
        """A folder is done; they may come in any order, each once."""
        self._ahead[index] = tally
        while (next_tally := self._ahead.pop(self.folders_done, None)) is not None:
            self.tally.add(next_tally)
            self.folders_done += 1
