"""A process's way to the bucket in a storm: it tells who sequences, and dies at its own requests.

What is killed by a clock dies between two requests, most of the time. The faults of a protocol show
where a process dies with one request done and the next not: so each that writes may be its last,
before it is sent or before its answer is read.

Words that it reports: `ticking` (a tick is about to be made), `tick` (it was: count, its number;
text, when the inbox that it folds was listed, monotonic seconds), `merged` (a run was written),
`slow` (a request took longer than any of this process before; text: how long, seconds),
`unanswered` (a request failed and may be repeated; it is not known who waits for how long then),
`dies`.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from s3kv.bucket.base import Created, Exists, ObjectInfo, ObjectStore, Page
from s3kv.bucket.faults import Fault, Faulty
from s3kv.core.keys import (
    inbox_prefix,
    parse_run_key,
    parse_segment_key,
    parse_shard_key,
    parse_tick_key,
)
from s3kv.errors import Throttled, Transient
from s3kv.runtime.clock import Clock
from tests.fakes.storm_spec import NAMESPACE, StormSpec

T = TypeVar("T")

Tell = Callable[..., None]

SLOW_S = 0.1
"""What `core/bounds.py` allows for a request."""


class MortalStore(Faulty):
    """Owned by one event loop. Kills nobody until `mortal` is set."""

    def __init__(self, store: ObjectStore, spec: StormSpec, rng: random.Random, tell: Tell) -> None:
        """tell: says one word, see `storm_roles.Role.tell`."""
        super().__init__(store)
        self.mortal = False
        self._spec = spec
        self._rng = rng
        self._tell = tell
        self._clock = Clock()
        self._listed_s = float("-inf")
        self._slowest_s = SLOW_S

    async def put(self, key: str, body: bytes | memoryview, *, timeout_s: float) -> str:
        """PUT, perhaps the last."""
        put = super().put
        etag = await self._last(self._chance(key), lambda: put(key, body, timeout_s=timeout_s))
        if parse_run_key(key) is not None:
            self._tell("merged")
        return etag

    async def create(self, key: str, body: bytes, *, timeout_s: float) -> Created | Exists:
        """Conditional PUT, perhaps the last."""
        create, tick = super().create, parse_tick_key(key)
        if tick is not None:
            self._tell("ticking", count=tick.tick)
        listed_s = self._listed_s
        made = await self._last(self._chance(key), lambda: create(key, body, timeout_s=timeout_s))
        if tick is not None and isinstance(made, Created):
            self._tell("tick", count=tick.tick, text=repr(listed_s))
        return made

    async def delete(self, keys: Sequence[str], *, timeout_s: float) -> None:
        """Delete, perhaps the last."""
        delete = super().delete
        await self._last(self._spec.fold_death, lambda: delete(keys, timeout_s=timeout_s))

    async def delete_listed(
        self, found: Sequence[ObjectInfo], *, timeout_s: float
    ) -> Sequence[str]:
        """Conditional delete, perhaps the last."""
        delete = super().delete_listed
        chance = self._spec.fold_death
        return await self._last(chance, lambda: delete(found, timeout_s=timeout_s))

    async def list_page(self, prefix: str, token: str | None, *, timeout_s: float) -> Page:
        """A page; what is durable before the first page of the inbox is asked for is in it."""
        if prefix == inbox_prefix(NAMESPACE.id) and token is None:
            self._listed_s = self._clock.monotonic_s()
        return await super().list_page(prefix, token, timeout_s=timeout_s)

    async def _go(self, fault: Fault | None, call: Callable[[], Awaitable[T]]) -> T:
        """Every request."""
        began_s = self._clock.monotonic_s()
        try:
            return await super()._go(fault, call)
        except (Throttled, Transient):
            self._tell("unanswered")
            raise
        finally:
            took_s = self._clock.monotonic_s() - began_s
            if took_s > self._slowest_s:
                self._slowest_s = took_s
                self._tell("slow", text=repr(took_s))

    async def _last(self, chance: float, call: Callable[[], Awaitable[T]]) -> T:
        fate = self._rng.random() if self.mortal else 1.0
        if fate < chance / 2:
            self._die()
        outcome = await call()
        if chance / 2 <= fate < chance:
            self._die()
        return outcome

    def _chance(self, key: str) -> float:
        if parse_shard_key(key) is not None:
            return self._spec.data_death
        if parse_segment_key(key) is not None:
            return self._spec.segment_death
        return self._spec.fold_death

    def _die(self) -> None:
        self._tell("dies")
        os.kill(os.getpid(), signal.SIGKILL)
