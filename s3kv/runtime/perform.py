"""Carries out what a sans-IO protocol of `core` asks for, against an object store.

Translation only, no decisions: failures that may pass become `Lost`, refusals `Refused`, and a body
that is too large `Unreadable`; what a protocol then raises is its own conclusion. `Closed` goes
through: the process is ending.
"""

from __future__ import annotations

import asyncio
from typing import TypeVar

from s3kv.bucket import base
from s3kv.core import requests as core
from s3kv.errors import Corrupt, Denied, Transient
from s3kv.runtime.clock import Clock

T = TypeVar("T")

LISTED_MAX = 4_000_000
"""Names in one listing: a bound on memory, weeks of ticks that nobody compacted."""


async def perform(
    steps: core.Steps[T], store: base.ObjectStore, clock: Clock, request_timeout_s: float
) -> T:
    """Run a protocol to its end and return its result; raises what it raises.

    request_timeout_s bounds each request (each page of a listing). A cancelled protocol is closed
    where it stands.
    """
    try:
        request = next(steps)
        while True:
            request = steps.send(await _answer(request, store, clock, request_timeout_s))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        steps.close()


async def _answer(
    request: core.Request, store: base.ObjectStore, clock: Clock, timeout_s: float
) -> core.Reply:
    sent_s = clock.monotonic_s()
    value: core.Value
    if isinstance(request, core.All):
        assert len(request.requests) <= core.PARALLEL_MAX
        parts = [_answer(part, store, clock, timeout_s) for part in request.requests]
        value = tuple(await asyncio.gather(*parts))
    else:
        is_late = isinstance(request, core.Put | core.Create) and sent_s > request.by_s
        value = core.Late() if is_late else await _value(request, store, timeout_s)
    return core.Reply(value, sent_s, clock.monotonic_s())


async def _value(request: core.Single, store: base.ObjectStore, timeout_s: float) -> core.Value:
    try:
        match request:
            case core.Get(key, max_bytes):
                body = await store.get(key, max_bytes=max_bytes, timeout_s=timeout_s)
                return core.Absent() if isinstance(body, base.Missing) else body
            case core.Put(key, body):
                await store.put(key, body, timeout_s=timeout_s)
            case core.Create(key, body):
                made = await store.create(key, body, timeout_s=timeout_s)
                return core.Created() if isinstance(made, base.Created) else core.Taken()
            case core.ListPrefix(prefix):
                return await _listing(store, prefix, timeout_s)
            case core.Delete(keys):
                await store.delete(keys, timeout_s=timeout_s)
            case core.Stat(key):
                found = await store.stat(key, timeout_s=timeout_s)
                return core.Absent() if isinstance(found, base.Missing) else _listed(found)
    except Corrupt as error:
        return core.Unreadable(str(error))
    except Denied as error:
        return core.Refused(str(error))
    except Transient as error:
        return core.Lost(str(error))
    return core.Done()


async def _listing(
    store: base.ObjectStore, prefix: str, timeout_s: float
) -> tuple[core.Listed, ...]:
    found: list[core.Listed] = []
    async for page in store.list(prefix, timeout_s=timeout_s):
        found.extend(_listed(each) for each in page)
        if len(found) > LISTED_MAX:
            raise Transient(f"more than {LISTED_MAX} names under {prefix}")
    return tuple(found)


def _listed(found: base.ObjectInfo) -> core.Listed:
    return core.Listed(found.key, found.size, found.modified_s, found.age_s)
