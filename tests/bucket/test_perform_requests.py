"""What protocols ask for is carried out as it was meant, and failures become answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from s3kv.bucket.faults import Fail, Faulty
from s3kv.bucket.memory import MemoryStore
from s3kv.core import requests as core
from s3kv.errors import Closed, Denied, Throttled, Transient
from s3kv.runtime.perform import LARGE_FACTOR, SMALL_BYTES, perform
from tests.fakes.clock import FakeClock

TIMEOUT_S = 7.0


class Bench:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.memory = MemoryStore(unix_s=self.clock.unix_s)
        self.store = Faulty(self.memory)

    async def ask(self, request: core.Request) -> core.Value:
        """The bare answer to one request."""

        def once() -> core.Steps[core.Reply]:
            return (yield request)

        return (await perform(once(), self.store, self.clock, TIMEOUT_S)).value

    async def put(self, key: str, body: bytes = b"body") -> core.Listed:
        await self.memory.put(key, body, timeout_s=1.0)
        found = await self.ask(core.Stat(key))
        assert isinstance(found, core.Listed)
        return found


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_objects_are_read_written_created_and_deleted(bench: Bench) -> None:
    assert await bench.ask(core.Get("a", 10)) == core.Absent()
    assert await bench.ask(core.Put("a", b"one")) == core.Done()
    assert await bench.ask(core.Get("a", 10)) == b"one"
    assert isinstance(await bench.ask(core.Get("a", 2)), core.Unreadable)
    assert await bench.ask(core.Create("a", b"two")) == core.Taken()
    assert await bench.ask(core.Create("b", b"two")) == core.Created()
    assert await bench.ask(core.Delete(("a", "z"))) == core.Done()
    assert set(bench.memory.objects) == {"b"}
    assert await bench.ask(core.Stat("a")) == core.Absent()


async def test_listings_tell_age_and_upload(bench: Bench) -> None:
    found = await bench.put("x/a")
    bench.clock.jump(5.0)
    (listed,) = await bench.ask(core.ListPrefix("x/"))  # type: ignore[misc]
    assert isinstance(listed, core.Listed)
    assert (listed.key, listed.size, listed.etag) == ("x/a", 4, found.etag)
    assert (listed.age_s, found.age_s) == (5.0, 0.0)
    page = await bench.ask(core.ListPage("x/"))
    assert page == core.PageOf((listed,), None)


async def test_deletes_on_condition_say_what_was_kept(bench: Bench) -> None:
    old, other = await bench.put("a"), await bench.put("b")
    await bench.put("a", b"again")
    assert await bench.ask(core.DeleteListed((old, other))) == core.Kept(("a",))
    assert set(bench.memory.objects) == {"a"}


async def test_a_copy_renews_only_what_it_has_seen(bench: Bench) -> None:
    old = await bench.put("a")
    bench.clock.jump(100.0)
    assert await bench.ask(core.Copy(old, "a")) == core.Done()
    found = await bench.ask(core.Stat("a"))
    assert isinstance(found, core.Listed)
    assert found.age_s == 0.0
    await bench.put("a", b"other")
    assert await bench.ask(core.Copy(old, "c")) == core.Absent()
    assert "c" not in bench.memory.objects


@pytest.mark.parametrize(
    "make",
    [
        lambda by_s: core.Put("k", b"x", by_s),
        lambda by_s: core.Create("k", b"x", by_s),
        lambda by_s: core.DeleteListed((core.Listed("k", 1, 0.0, 0.0, "e"),), by_s),
    ],
)
async def test_what_is_late_is_not_sent(
    bench: Bench, make: Callable[[float], core.Request]
) -> None:
    now_s = bench.clock.monotonic_s()
    assert await bench.ask(make(now_s - 0.1)) == core.Late()
    assert bench.store.calls == []
    assert await bench.ask(make(now_s)) != core.Late()


@pytest.mark.parametrize("error", [Transient("reset"), Throttled("slow down")])
async def test_what_may_pass_is_lost_and_a_refusal_is_refused(
    bench: Bench, error: Transient
) -> None:
    bench.store.inject(Fail(error), "get")
    assert isinstance(await bench.ask(core.Get("a", 1)), core.Lost)
    bench.store.inject(Fail(Denied("policy")), "get")
    assert isinstance(await bench.ask(core.Get("a", 1)), core.Refused)
    bench.store.inject(Fail(Closed("ending")), "get")
    with pytest.raises(Closed):
        await bench.ask(core.Get("a", 1))


async def test_parts_of_all_are_answered_in_their_order_whatever_fails(bench: Bench) -> None:
    await bench.put("b")
    bench.store.inject(Fail(Transient("reset")), "get", keys="a")
    answers = await bench.ask(core.All((core.Get("a", 9), core.Get("b", 9), core.Get("c", 9))))
    assert isinstance(answers, tuple)
    values = [each.value for each in answers if isinstance(each, core.Reply)]
    assert [type(value) for value in values] == [core.Lost, bytes, core.Absent]


class Patient(MemoryStore):
    """Notes how long each request may take."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[float] = []

    async def get(self, key: str, *, max_bytes: int, timeout_s: float) -> bytes:
        self.timeouts.append(timeout_s)
        return b""


async def test_large_files_get_more_time() -> None:
    store = Patient()

    def both() -> core.Steps[None]:
        yield core.Get("a", SMALL_BYTES)
        yield core.Get("a", SMALL_BYTES + 1)

    await perform(both(), store, FakeClock(), TIMEOUT_S)
    assert store.timeouts == [TIMEOUT_S, TIMEOUT_S * LARGE_FACTOR]


async def test_a_protocol_that_is_given_up_is_closed_where_it_stands(bench: Bench) -> None:
    closed = []

    def waits() -> core.Steps[None]:
        try:
            yield core.Get("a", 1)
            yield core.Get("b", 1)
        finally:
            closed.append(True)

    bench.store.inject(Fail(Closed("ending")), "get", keys="b")
    with pytest.raises(Closed):
        await perform(waits(), bench.store, bench.clock, TIMEOUT_S)
    assert closed == [True]
