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
        self.page_keys = 1_000
        self._uploads: dict[str, int] = {}

    def carry_out(self, request: core.Single) -> core.Value:
        """The effect and the answer of one request."""
        match request:
            case core.Get(key, max_bytes):
                if key not in self.objects:
                    return core.Absent()
                body = self.objects[key][0]
                return body if len(body) <= max_bytes else core.Unreadable("too large")
            case core.Put(key, body):
                self._write(key, body)
            case core.Create(key, body):
                if key in self.objects and self.has_conditional_put:
                    return core.Taken()
                self._write(key, body)
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
            case _:
                return self._upkeep(request)
        return core.Done()

    def _upkeep(self, request: core.Single) -> core.Value:
        match request:
            case core.ListPage(prefix, token):
                return self._page(prefix, token)
            case core.DeleteListed(found):
                changed = [each.key for each in found if not self._is_still(each)]
                for each in found:
                    if self._is_still(each):
                        del self.objects[each.key]
                return core.Kept(tuple(key for key in changed if key in self.objects))
            case core.Copy(source, key):
                if not self._is_still(source):
                    return core.Absent()
                self._write(key, self.objects[source.key][0])
        return core.Done()

    def _page(self, prefix: str, token: str | None) -> core.PageOf:
        names = sorted(
            key for key in self.objects if key.startswith(prefix) and key > (token or "")
        )
        page = names[: self.page_keys]
        rest = len(names) > len(page)
        return core.PageOf(tuple(map(self.listed, page)), page[-1] if rest else None)

    def _write(self, key: str, body: bytes) -> None:
        self.objects[key] = (body, self.now_s)
        self._uploads[key] = self._uploads.get(key, 0) + 1

    def _is_still(self, found: core.Listed) -> bool:
        return found.key in self.objects and self.listed(found.key).etag == found.etag

    def listed(self, key: str) -> core.Listed:
        """What a listing says of an object."""
        body, modified_s = self.objects[key]
        etag = str(self._uploads.get(key, 0))
        return core.Listed(key, len(body), modified_s, self.now_s - modified_s, etag)

    def answer(self, request: core.Request, fault: Fault | None = None) -> core.Reply:
        """A reply that takes `request_s`; the parts of an `All` go one after the other."""
        sent_s = self.now_s
        value: core.Value
        if isinstance(request, core.Work):
            value = core.Computed(request.function())
        elif isinstance(request, core.All):
            value = tuple(self.answer(part, fault) for part in request.requests)
        else:
            if isinstance(request, core.Timed) and sent_s > request.by_s:
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
