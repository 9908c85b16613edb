"""Asks a whole fleet not to load or not to save, or to go on: a few bits in the newest tick.

Rule upheld here: a change touches its own bits only. Two people who pause loads and saves at the
same moment both get what they asked for, and bits that a newer version defined are passed on. So a
tick is sent only while the bits in it are the newest ones with our change: whoever loses the slot
looks again before trying the next.

Sans-IO (see `requests`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from s3kv.core.requests import Moment, Steps
from s3kv.core.sequencer import Sequencer
from s3kv.errors import Transient

CHANGES_MAX: Final = 8
"""How often others may change the pause under our hands before `Transient`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseChange:
    """Bits to set and bits to clear; every other bit stays as it is."""

    set_bits: int = 0
    clear_bits: int = 0

    def applied_to(self, bits: int) -> int:
        """The bits after the change."""
        return (bits | self.set_bits) & ~self.clear_bits


@dataclass(frozen=True, slots=True)
class Changed:
    """The bits that were in force before, and those that are now."""

    before: int
    now: int


def change_pause(sequencer: Sequencer, now: Moment, change: PauseChange) -> Steps[Changed]:
    """Make a change durable, in a tick of our own; nothing is written if it is in force already.

    Only where the store is known to honour `If-None-Match`. The follower must have been opened.
    Raises `Transient` (perhaps it was made), `Denied`.
    """
    follower = sequencer.follower
    yield from follower.poll()
    for _ in range(CHANGES_MAX):
        before = follower.pause_bits
        wanted = change.applied_to(before)
        if wanted == before or (yield from _write(sequencer, now, change, wanted)):
            return Changed(before, wanted)
    raise Transient(f"others changed the pause {CHANGES_MAX} times meanwhile")


def _write(sequencer: Sequencer, now: Moment, change: PauseChange, wanted: int) -> Steps[bool]:
    """Sequence a tick with these bits; False, with nothing written, if they are out of date."""
    steps = sequencer.sequence(now, pause_bits=wanted)
    try:
        request = next(steps)
        while change.applied_to(sequencer.follower.pause_bits) == wanted:
            request = steps.send((yield request))
    except StopIteration:
        return True
    finally:
        steps.close()  # a protocol may be abandoned at any request
    return False
