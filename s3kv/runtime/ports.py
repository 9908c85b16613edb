"""What the transfer pipelines need of the device side, as protocols: no torch in runtime."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class LentSlot(Protocol):
    """A slot of the staging pool in our hands until it is given back."""

    @property
    def memory(self) -> memoryview:
        """Writable uint8[slot_bytes]."""
        ...


class Slots(Protocol):
    """The bounded staging pool as the loader sees it."""

    async def lend_for_load(self, timeout_s: float) -> LentSlot | None:
        """Wait for a slot; None when the time is over."""
        ...

    def give_back(self, slot: LentSlot) -> None:
        """Return a slot; any thread."""
        ...


class Deliverer(Protocol):
    """Copies verified bytes into device blocks."""

    def deliver(
        self,
        block_ids: Sequence[int],
        data: memoryview,
        still_wanted: Callable[[], bool],
        on_done: Callable[[bool], None],
    ) -> None:
        """Queue one copy.

        still_wanted is asked at the moment of copying; on_done(written) is called exactly once,
        from another thread, when no byte of `data` or of the blocks is touched any more.
        """
        ...
