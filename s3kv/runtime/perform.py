"""Carries out what a sans-IO protocol of `core` asks for, against an object store.

Translation only, no decisions: failures that may pass become `Lost`, refusals `Refused`, and a body
that is too large `Unreadable`; what a protocol then raises is its own conclusion. `Closed` goes
through: the process is ending.

A computation has a thread `s3kv-index_0` of its own, which ends with it: nothing is left to shut
down or to be lost in a fork, and the threads on which asyncio resolves names stay free. A protocol
has one computation at a time and a client drives two protocols, so there are never more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from s3kv.bucket import base
from s3kv.core import requests as core
from s3kv.errors import Closed, Corrupt, Denied, Transient
from s3kv.runtime.clock import Clock
from s3kv.runtime.loop import THREAD_PREFIX

T = TypeVar("T")

SMALL_BYTES = 4 << 20
LARGE_FACTOR = 12
"""How much longer a file above SMALL_BYTES may take: 100 MB in 2 minutes at the usual 10 s."""
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
    if isinstance(request, core.Work):
        value = core.Computed(await _computed(request.function))
    elif isinstance(request, core.All):
        assert len(request.requests) <= core.PARALLEL_MAX
        parts = [_answer(part, store, clock, timeout_s) for part in request.requests]
        value = tuple(await asyncio.gather(*parts))
    else:
        is_late = isinstance(request, core.Timed) and sent_s > request.by_s
        patience_s = _patience_s(request, timeout_s)
        value = core.Late() if is_late else await _value(request, store, patience_s)
    return core.Reply(value, sent_s, clock.monotonic_s())


async def _computed(function: Callable[[], object]) -> object:
    thread = ThreadPoolExecutor(1, thread_name_prefix=f"{THREAD_PREFIX}index")
    try:
        running = thread.submit(function)
    except RuntimeError as error:  # the interpreter is going down
        raise Closed("no more computations: the process is ending") from error
    finally:
        thread.shutdown(wait=False)
    return await asyncio.wrap_future(running)


def _patience_s(request: core.Single, timeout_s: float) -> float:
    """Runs are large: a slow line gets the time to move one."""
    match request:
        case core.Get(_, max_bytes) if max_bytes > SMALL_BYTES:
            return timeout_s * LARGE_FACTOR
        case core.Put(_, body) if len(body) > SMALL_BYTES:
            return timeout_s * LARGE_FACTOR
    return timeout_s


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
            case core.Stat(key):
                found = await store.stat(key, timeout_s=timeout_s)
                return core.Absent() if isinstance(found, base.Missing) else _listed(found)
            case _:
                return await _upkeep_value(request, store, timeout_s)
    except Corrupt as error:
        return core.Unreadable(str(error))
    except Denied as error:
        return core.Refused(str(error))
    except Transient as error:
        return core.Lost(str(error))
    return core.Done()


async def _upkeep_value(
    request: core.Delete | core.ListPage | core.DeleteListed | core.Copy,
    store: base.ObjectStore,
    timeout_s: float,
) -> core.Value:
    match request:
        case core.Delete(keys):
            await store.delete(keys, timeout_s=timeout_s)
        case core.ListPage(prefix, token):
            page = await store.list_page(prefix, token, timeout_s=timeout_s)
            return core.PageOf(tuple(map(_listed, page.objects)), page.next_token)
        case core.DeleteListed(found):
            kept = await store.delete_listed(tuple(map(_info, found)), timeout_s=timeout_s)
            return core.Kept(tuple(kept))
        case core.Copy(source, key):
            copied = await store.copy(_info(source), key, timeout_s=timeout_s)
            return core.Done() if copied else core.Absent()
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
    return core.Listed(found.key, found.size, found.modified_s, found.age_s, found.etag)


def _info(found: core.Listed) -> base.ObjectInfo:
    return base.ObjectInfo(found.key, found.size, found.etag, found.modified_s, found.age_s)
