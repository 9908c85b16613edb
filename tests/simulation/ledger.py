"""Everything that reached a store, one request at a time, with its outcome.

Dealt with alike, the bucket of the simulation must answer alike; and no request may be there that
no state machine yielded.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from s3kv.bucket.base import Created, Exists, Missing, ObjectInfo, ObjectStore, Page
from s3kv.bucket.faults import Faulty
from s3kv.core import requests as core
from tests.fakes.index_store import IndexStore
from tests.simulation.replay import Tape

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Deal:
    """A request that reached the store, and the outcome without times and ETags."""

    request: core.Single
    outcome: object


class Ledger(Faulty):
    """A store that does one thing at a time and writes it down. Owned by one event loop."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.deals: list[Deal] = []
        self._turn = asyncio.Lock()
        self._doing: set[asyncio.Future[Any]] = set()

    async def stat(self, key: str, *, timeout_s: float) -> ObjectInfo | Missing:
        return await self._do(core.Stat(key), super().stat(key, timeout_s=timeout_s))

    async def get(self, key: str, *, max_bytes: int, timeout_s: float) -> bytes | Missing:
        got = super().get(key, max_bytes=max_bytes, timeout_s=timeout_s)
        return await self._do(core.Get(key, max_bytes), got)

    async def put(self, key: str, body: bytes | memoryview, *, timeout_s: float) -> str:
        return await self._do(
            core.Put(key, bytes(body)), super().put(key, body, timeout_s=timeout_s)
        )

    async def create(self, key: str, body: bytes, *, timeout_s: float) -> Created | Exists:
        return await self._do(
            core.Create(key, body), super().create(key, body, timeout_s=timeout_s)
        )

    async def list_page(self, prefix: str, token: str | None, *, timeout_s: float) -> Page:
        listed = super().list_page(prefix, token, timeout_s=timeout_s)
        return await self._do(core.ListPage(prefix, token), listed)

    async def delete(self, keys: Sequence[str], *, timeout_s: float) -> None:
        await self._do(core.Delete(tuple(keys)), super().delete(keys, timeout_s=timeout_s))

    async def settle(self) -> None:
        """Return when what was begun has ended."""
        await asyncio.gather(*self._doing, return_exceptions=True)

    async def _do(self, request: core.Single, call: Awaitable[T]) -> T:
        # Whoever asked may be gone before the answer comes; the request has its effect.
        doing = asyncio.ensure_future(self._deal(request, call))
        self._doing.add(doing)
        doing.add_done_callback(self._doing.discard)
        return await asyncio.shield(doing)

    async def _deal(self, request: core.Single, call: Awaitable[T]) -> T:
        async with self._turn:
            outcome = await call
            self.deals.append(Deal(request, _plain(outcome)))
        return outcome

    def unasked(self, tapes: Sequence[Tape]) -> list[core.Single]:
        """Requests for index files that reached the store, and that no state machine yielded."""
        asked = Counter(_as_sent(request) for tape in tapes for request in tape.asked())
        sent = Counter(
            _as_sent(deal.request) for deal in self.deals if "/idx/" in _names(deal.request)
        )
        return list((sent - asked).elements())


def differences(deals: Sequence[Deal]) -> list[str]:
    """Where the simulator's bucket, dealt with alike, answers otherwise than the store did."""
    bucket = IndexStore()
    found = []
    for at, deal in enumerate(deals):
        outcome = _plain(bucket.carry_out(deal.request))
        if outcome != deal.outcome:
            found.append(f"deal {at}, {deal.request}: {outcome} instead of {deal.outcome}")
    return found


def _as_sent(request: core.Single) -> core.Single:
    """As it looks on the wire: without a time, a listing as its first page."""
    match request:
        case core.Put(key, body):
            return core.Put(key, body)
        case core.Create(key, body):
            return core.Create(key, body)
        case core.ListPrefix(prefix):
            return core.ListPage(prefix)
    return request


def _names(request: core.Single) -> str:
    match request:
        case core.ListPrefix(prefix) | core.ListPage(prefix):
            return prefix
        case core.Delete(keys):
            return " ".join(keys)
        case core.DeleteListed(found):
            return " ".join(each.key for each in found)
    return request.key


def _plain(outcome: object) -> object:
    match outcome:
        case Missing() | core.Absent():
            return "absent"
        case Created() | core.Created():
            return "created"
        case Exists() | core.Taken():
            return "taken"
        case ObjectInfo(key=key, size=size) | core.Listed(key=key, size=size):
            return key, size
        case Page(objects=found, next_token=token) | core.PageOf(found=found, token=token):
            return sorted((each.key, each.size) for each in found), token
        case bytes():
            return outcome
    return "done"
