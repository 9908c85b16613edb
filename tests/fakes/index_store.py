"""A bucket in a dictionary that answers the requests of the sans-IO index protocols."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from s3kv.core import requests as core
from s3kv.core.ids import NamespaceId
from s3kv.core.indexfile import Header, Kind

T = TypeVar("T")

NS = NamespaceId("0123456789abcdef0123456789abcdef")

Fault = Callable[[core.Single], core.Value | None]
"""Looks at a request before it is carried out; what it returns is the answer instead."""


class IndexStore:
    """Objects with their times. `now_s` is the store's clock and everybody's monotonic clock."""

    def __init__(self, now_s: float = 1_000.0) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.now_s = now_s
        self.request_s = 0.01
        self.requests: list[core.Single] = []
        self.has_conditional_put = True

    def carry_out(self, request: core.Single) -> core.Value:
        """The effect and the answer of one request."""
        match request:
            case core.Get(key, max_bytes):
                if key not in self.objects:
                    return core.Absent()
                body = self.objects[key][0]
                return body if len(body) <= max_bytes else core.Unreadable("too large")
            case core.Put(key, body):
                self.objects[key] = (body, self.now_s)
            case core.Create(key, body):
                if key in self.objects and self.has_conditional_put:
                    return core.Taken()
                self.objects[key] = (body, self.now_s)
                return core.Created()
            case core.ListPrefix(prefix):
                return tuple(
                    self.listed(key) for key in sorted(self.objects) if key.startswith(prefix)
                )
            case core.Delete(keys):
                for key in keys:
                    self.objects.pop(key, None)
            case core.Stat(key):
                return self.listed(key) if key in self.objects else core.Absent()
        return core.Done()

    def listed(self, key: str) -> core.Listed:
        """What a listing says of an object."""
        body, modified_s = self.objects[key]
        return core.Listed(key, len(body), modified_s, self.now_s - modified_s)

    def answer(self, request: core.Request, fault: Fault | None = None) -> core.Reply:
        """A reply that takes `request_s`; the parts of an `All` go one after the other."""
        sent_s = self.now_s
        value: core.Value
        if isinstance(request, core.All):
            value = tuple(self.answer(part, fault) for part in request.requests)
        else:
            if isinstance(request, core.Put | core.Create) and sent_s > request.by_s:
                return core.Reply(core.Late(), sent_s, sent_s)
            self.requests.append(request)
            self.now_s += self.request_s / 2
            scripted = fault(request) if fault is not None else None
            value = self.carry_out(request) if scripted is None else scripted
            self.now_s += self.request_s / 2
        return core.Reply(value, sent_s, self.now_s)

    def run(self, steps: core.Steps[T], fault: Fault | None = None) -> T:
        """Carry a protocol out to its end."""
        try:
            request = next(steps)
            while True:
                request = steps.send(self.answer(request, fault))
        except StopIteration as end:
            result: T = end.value
            return result

    def abandon(self, steps: core.Steps[T], reply_count: int) -> None:
        """Carry a protocol out for so many replies, or to its end if that comes first; drop it."""
        request = next(steps)
        for _ in range(reply_count):
            try:
                request = steps.send(self.answer(request))
            except StopIteration:
                break
        steps.close()

    def now(self) -> core.Moment:
        """The moment, with a Unix clock that is 1,000,000 s ahead of the monotonic one."""
        return core.Moment(self.now_s + 1_000_000.0, self.now_s)

    def count(self, kind: type[core.Single]) -> int:
        """How many requests of a kind were sent."""
        return sum(isinstance(request, kind) for request in self.requests)

    def keys(self, part: str) -> list[str]:
        """Names that contain `part`, in order."""
        return sorted(key for key in self.objects if part in key)


def make_header(
    kind: Kind,
    lo: int,
    hi: int | None = None,
    *,
    writer: bytes = b"w" * 16,
    watermark_s: int = 0,
    interval_ms: int = 1_000,
    created_s: int = 0,
    pause_bits: int = 0,
) -> Header:
    """A header with unremarkable fields."""
    return Header(
        kind=kind,
        namespace=NS,
        lo=lo,
        hi=lo if hi is None else hi,
        writer=writer,
        watermark_s=watermark_s,
        interval_ms=interval_ms,
        created_s=created_s,
        pause_bits=pause_bits,
    )
