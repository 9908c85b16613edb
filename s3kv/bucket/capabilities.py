"""What the store at hand can do, found out once at start-up (FAULTS 42) and said in one line.

Writes nothing but `.s3kv-probe/{nonce}` under the prefix, and deletes it. A store that refuses
writes is a read-only archive; a store that ignores `If-None-Match` cannot sequence an index. How
objects are deleted on condition is tried here as well, for the store's own use.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from s3kv.bucket.base import (
    ConditionalDelete,
    Created,
    Exists,
    Missing,
    ObjectInfo,
    ObjectStore,
    Received,
)
from s3kv.errors import Denied, S3KVError, Transient

DeleteListed: TypeAlias = Callable[[Sequence[ObjectInfo]], Awaitable[Collection[str]]]
"""One way to delete what is still the listed upload; returns the keys of what was kept."""

PROBE_PREFIX = ".s3kv-probe/"
_BODY = b"s3kv probe"
_OTHER_ETAG = "0" * 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What was seen to work. False means refused, wrong or, with `certain` false, not seen.

    conditional_delete: how objects are deleted only while they are the listed upload.
    certain: no failure that may pass got in the way; if false, ask again later. problems: one
    sentence for each of the other things that is missing.
    """

    readable: bool = False
    writable: bool = False
    conditional_put: bool = False
    ranged_get: bool = False
    listing: bool = False
    deletable: bool = False
    conditional_delete: ConditionalDelete = "none"
    certain: bool = True
    problems: tuple[str, ...] = ()

    @property
    def carries_index(self) -> bool:
        """Whether an index can be kept here: ticks are created once, and cleaned up (ADR 0004)."""
        return self.conditional_put and self.deletable

    def describe(self) -> str:
        """One line for the start-up log."""
        if not self.certain and not self.readable:
            return f"store: not reachable ({'; '.join(self.problems)})"
        found = {
            "read": self.readable,
            "write": self.writable,
            "create-if-absent": self.conditional_put,
            "ranges": self.ranged_get,
            "list": self.listing,
            "delete": self.deletable,
        }
        words = [f"{name}={'yes' if works else 'no'}" for name, works in found.items()]
        words.append(f"conditional-delete={self.conditional_delete}")
        return f"store: {' '.join(words)}" + "".join(f"; {line}" for line in self.problems)


class _Probe:
    """One run; every step notes what it saw and leaves errors to `run`."""

    def __init__(self, store: ObjectStore, key: str, timeout_s: float) -> None:
        self.store = store
        self.key = key
        self.timeout_s = timeout_s
        self.seen: dict[str, bool] = {}
        self.conditional_delete: ConditionalDelete = "none"
        self.problems: list[str] = []
        self.certain = True

    async def read(self) -> None:
        await self.store.get(self.key, max_bytes=1024, timeout_s=self.timeout_s)
        self.seen["readable"] = True

    async def create_twice(self) -> None:
        try:
            await self.store.create(self.key, _BODY, timeout_s=self.timeout_s)
        except Denied:
            # Either nothing may be written, or the condition is what the store refuses.
            await self.store.put(self.key, _BODY, timeout_s=self.timeout_s)
            self.seen["writable"] = True
            self.problems.append("If-None-Match is refused: no index can be written")
            return
        self.seen["writable"] = True
        again: Created | Exists = await self.store.create(self.key, _BODY, timeout_s=self.timeout_s)
        self.seen["conditional_put"] = isinstance(again, Exists)
        if isinstance(again, Created):
            self.problems.append("If-None-Match is ignored: no index can be written")

    async def read_range(self) -> None:
        found = bytearray(4)
        with memoryview(found) as buffer:
            outcome = await self.store.get_into(self.key, 5, buffer, timeout_s=self.timeout_s)
        right = isinstance(outcome, Received) and outcome.total_bytes == len(_BODY)
        self.seen["ranged_get"] = right and bytes(found) == _BODY[5:9]
        if not self.seen["ranged_get"]:
            self.problems.append("ranged GET answers other bytes than asked for")

    async def list_it(self) -> None:
        pages = self.store.list(PROBE_PREFIX, timeout_s=self.timeout_s)
        async for page in pages:
            if any(found.key == self.key for found in page):
                self.seen["listing"] = True
                return
        self.problems.append("a new object is missing from the listing")

    async def delete_it(self) -> None:
        await self.store.delete([self.key], timeout_s=self.timeout_s)
        left = await self.store.stat(self.key, timeout_s=self.timeout_s)
        self.seen["deletable"] = isinstance(left, Missing)
        if not self.seen["deletable"]:
            self.problems.append("a deleted object is still there")

    async def delete_on_condition(self) -> None:
        # A store that deletes nothing has said so already.
        if self.seen.get("deletable"):
            found = await self.store.conditional_delete(timeout_s=self.timeout_s)
            self.conditional_delete = found


async def probe_capabilities(store: ObjectStore, *, timeout_s: float = 5.0) -> Capabilities:
    """Try every kind of request once; timeout_s bounds each.

    Raises only `Denied`, if the prefix cannot be read (no such bucket, no credentials, policy);
    every other failure is a line in `problems`.
    """
    probe = _Probe(store, PROBE_PREFIX + secrets.token_hex(16), timeout_s)
    try:
        await probe.read()
    except Transient as error:
        return Capabilities(certain=False, problems=(str(error),))
    steps = (
        probe.create_twice,
        probe.read_range,
        probe.list_it,
        probe.delete_it,
        probe.delete_on_condition,
    )
    for step in steps:
        try:
            await step()
        except S3KVError as error:
            probe.problems.append(str(error))
            probe.certain = probe.certain and not isinstance(error, Transient)
        if step == probe.create_twice and not probe.seen.get("writable"):
            break
    return Capabilities(
        **probe.seen,
        conditional_delete=probe.conditional_delete,
        certain=probe.certain,
        problems=tuple(probe.problems),
    )


async def find_conditional_delete(
    store: ObjectStore, ways: Mapping[ConditionalDelete, DeleteListed], *, timeout_s: float
) -> ConditionalDelete:
    """The first of the ways that keeps an object with another ETag and deletes one with its own.

    Each is tried on an object of its own. Answers `none` only if that object could be deleted
    without a condition: else raises `Denied`, or `Transient`, as the store does.
    """
    for name, delete in ways.items():
        key = PROBE_PREFIX + secrets.token_hex(16)
        await store.put(key, _BODY, timeout_s=timeout_s)
        try:
            if await _keeps_its_word(store, key, delete, timeout_s):
                return name
        except Denied:
            pass  # refused as a whole: no way for this store
        except Transient:
            with contextlib.suppress(S3KVError):
                await store.delete([key], timeout_s=timeout_s)
            raise
        await store.delete([key], timeout_s=timeout_s)
    return "none"


async def _keeps_its_word(
    store: ObjectStore, key: str, delete: DeleteListed, timeout_s: float
) -> bool:
    listed = await store.stat(key, timeout_s=timeout_s)
    if isinstance(listed, Missing):
        return False
    kept = await delete([replace(listed, etag=_OTHER_ETAG)])
    left = await store.stat(key, timeout_s=timeout_s)
    # Some stores answer "refused" and delete, or "deleted" and keep.
    if key not in kept or isinstance(left, Missing):
        return False
    kept = await delete([listed])
    return not kept and isinstance(await store.stat(key, timeout_s=timeout_s), Missing)
