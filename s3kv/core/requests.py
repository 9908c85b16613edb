"""What the index state machines ask of the outside world, and what they hear back.

The protocols in `core` are generators: they yield a `Request` and receive a `Reply`. They never
see a clock: time comes with each reply and with the `Moment` given at the start. `ask` and
`ask_all` repeat what was lost (every request here may be repeated) and turn "still nothing" into
`Transient`, "refused" into `Denied`, so that a protocol only sees answers.

The protocol, and the rules that are cited as R1 to R8, are in docs/adr/0002-index-on-the-bucket.md.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias, TypeVar

from s3kv.errors import Denied, Transient

T = TypeVar("T")

TRIES: Final = 4
"""How often one request is sent before its protocol gives up (the store retries below this)."""

PARALLEL_MAX: Final = 64
"""Requests in one `All`: bounds memory and connections."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant on both clocks: Unix seconds, and monotonic seconds that count suspend."""

    unix_s: float
    monotonic_s: float


@dataclass(frozen=True, slots=True)
class Get:
    """The object whole. Answer: bytes, `Absent`, or `Unreadable` if larger than max_bytes."""

    key: str
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Put:
    """Unconditional PUT. Answer: `Done`, or `Late` unsent.

    by_s: monotonic seconds after which it must not be sent any more (R5).
    """

    key: str
    body: bytes
    by_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Create:
    """PUT if absent. Answer: `Created` or `Taken` (perhaps by our own lost attempt); or `Late`.

    by_s: as for `Put`.
    """

    key: str
    body: bytes
    by_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class ListPrefix:
    """All names under a prefix. Answer: a tuple of `Listed`, in no particular order."""

    prefix: str


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete names; absent ones are no error. Answer: `Done`."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Stat:
    """HEAD. Answer: `Listed` or `Absent`."""

    key: str


@dataclass(frozen=True, slots=True)
class Listed:
    """One object in a listing.

    age_s: by the store's own clock, 0.0 where it does not tell; etag: tells this upload from every
    other one under the name, empty where the store has none.
    """

    key: str
    size: int
    modified_s: float
    age_s: float
    etag: str = ""

    @property
    def upload(self) -> tuple[str, int, float, str]:
        """Equal in two listings if, as far as they tell, nobody has written it in between."""
        return self.key, self.size, self.modified_s, self.etag


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of the names under a prefix. Answer: `PageOf`.

    token: of the page before, None for the first.
    """

    prefix: str
    token: str | None = None


@dataclass(frozen=True, slots=True)
class DeleteListed:
    """Delete objects, each only if it is still the upload that was listed. Answer: `Kept`, `Late`.

    by_s: as for `Put`: what was decided by a listing is not true for ever.
    """

    found: tuple[Listed, ...]
    by_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy inside the store if the source is still what was listed. Answer: `Done` or `Absent`.

    Onto its own name it renews LastModified and changes nothing else.
    """

    source: Listed
    key: str


Timed: TypeAlias = Put | Create | DeleteListed
"""Requests with a time after which they are not sent any more."""

Single: TypeAlias = Get | Put | Create | ListPrefix | Delete | Stat | ListPage | DeleteListed | Copy


@dataclass(frozen=True, slots=True)
class All:
    """At most `PARALLEL_MAX` requests at once. Answer: a tuple of `Reply` in the same order."""

    requests: tuple[Single, ...]


@dataclass(frozen=True, slots=True)
class Work:
    """A long computation, to be done off the loop thread. Answer: `Computed`.

    function: pure, of immutable values only: it runs beside everything else of this process.
    """

    function: Callable[[], object]


Request: TypeAlias = Single | All | Work


@dataclass(frozen=True, slots=True)
class Absent:
    """404."""


@dataclass(frozen=True, slots=True)
class Created:
    """Our conditional PUT made the object."""


@dataclass(frozen=True, slots=True)
class Taken:
    """412: the name exists."""


@dataclass(frozen=True, slots=True)
class Done:
    """The request was carried out."""


@dataclass(frozen=True, slots=True)
class PageOf:
    """Names, and the token of the next page (None: this is the last)."""

    found: tuple[Listed, ...]
    token: str | None


@dataclass(frozen=True, slots=True)
class Kept:
    """The names that were not deleted, since another upload lies there by now."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Computed:
    """What the function returned."""

    value: object


@dataclass(frozen=True, slots=True)
class Unreadable:
    """The object is there, but not in a form that may be read (larger than allowed)."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer: the request may or may not have had its effect."""

    reason: str


@dataclass(frozen=True, slots=True)
class Late:
    """Not sent, because its time was over: this attempt had no effect."""


@dataclass(frozen=True, slots=True)
class Refused:
    """401 or 403: it had no effect, and asking again cannot help."""

    reason: str


Value: TypeAlias = (
    bytes
    | Listed
    | tuple[Listed, ...]
    | Absent
    | Created
    | Taken
    | Done
    | PageOf
    | Kept
    | Computed
    | Unreadable
    | Lost
    | Late
    | Refused
    | tuple["Reply", ...]
)


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, and when its request was sent and received (monotonic seconds)."""

    value: Value
    sent_s: float
    received_s: float


Steps: TypeAlias = Generator[Request, Reply, T]


def ask(request: Single) -> Steps[Reply]:
    """Send one request until it is answered.

    sent_s of the reply is that of the attempt which was answered. Raises `Transient` after
    `TRIES` lost attempts or if it is too late to send it, `Denied` if refused.
    """
    reason = ""
    for _ in range(TRIES):
        reply = yield request
        if isinstance(reply.value, Lost):
            reason = reply.value.reason
            continue
        return _accepted(reply)
    raise Transient(f"no answer after {TRIES} attempts: {reason}")


def ask_all(requests: Sequence[Single]) -> Steps[list[Reply]]:
    """Send many requests, `PARALLEL_MAX` at a time, the lost ones again; replies in order.

    Raises as `ask` does, for the whole.
    """
    answers: list[Reply | None] = [None] * len(requests)
    for start in range(0, len(requests), PARALLEL_MAX):
        waiting = list(range(start, min(start + PARALLEL_MAX, len(requests))))
        for _ in range(TRIES):
            reply = yield All(tuple(requests[i] for i in waiting))
            assert isinstance(reply.value, tuple)
            for i, part in zip(waiting, reply.value, strict=True):
                assert isinstance(part, Reply)
                if not isinstance(part.value, Lost):
                    answers[i] = _accepted(part)
            waiting = [i for i in waiting if answers[i] is None]
            if not waiting:
                break
        else:
            raise Transient(f"{len(waiting)} requests without an answer after {TRIES} attempts")
    return [answer for answer in answers if answer is not None]


def work(function: Callable[[], T]) -> Steps[T]:
    """Compute off the loop thread; what the function raises comes through."""
    reply = yield Work(partial(_attempted, function))
    assert isinstance(reply.value, Computed)
    outcome = reply.value.value
    if isinstance(outcome, _Raised):
        raise outcome.error
    # The runtime hands back exactly what the function returned.
    return outcome  # type: ignore[return-value]


def listed(reply: Reply) -> tuple[Listed, ...]:
    """The names in the answer to a `ListPrefix`."""
    assert isinstance(reply.value, tuple)
    return tuple(found for found in reply.value if isinstance(found, Listed))


@dataclass(frozen=True, slots=True)
class _Raised:
    error: Exception


def _attempted(function: Callable[[], object]) -> object:
    """An error belongs to the protocol that asked, not to who carries the work out."""
    try:
        return function()
    except Exception as error:  # noqa: BLE001  raised again in `work`
        return _Raised(error)


def _accepted(reply: Reply) -> Reply:
    if isinstance(reply.value, Refused):
        raise Denied(reply.value.reason)
    if isinstance(reply.value, Late):
        raise Transient("too late to act on what was known before")
    return reply
