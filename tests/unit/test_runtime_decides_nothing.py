"""What happens to the index is decided in `core`: the runtime carries out what is yielded there.

Shown twice. By the text of `s3kv/runtime`: only the module that carries requests out may write to
the store (the exceptions have nothing to do with the index), none makes a name or a file of the
index, none asks for a write of its own. By what happens: every request for an index file that
reaches the store during a writer's life was yielded, byte for byte, by a state machine.
"""

from __future__ import annotations

import ast
import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from s3kv.bucket.memory import MemoryStore
from s3kv.core import keys
from s3kv.core import requests as core
from s3kv.core.compactor import CompactorSettings
from s3kv.runtime.index_client import IndexSettings
from tests.fakes.clock import FakeClock
from tests.fakes.index_bench import NAMESPACE, chunk
from tests.simulation.ledger import Ledger
from tests.simulation.replay import Draws, TapedReader, TapedWriter, known, play

RUNTIME = Path(__file__).resolve().parents[2] / "s3kv/runtime"

# ------------------------------------------------------------------------------ by its text

WRITES = frozenset({"put", "create", "delete", "delete_listed", "delete_versions", "copy"})

WRITERS = {
    "perform": WRITES,
    "uploader": {"put"},  # shards
    "index_writer": {"put", "create"},  # NAMESPACE.json
    "leftovers": {"delete_listed"},  # what has been in quarantine for long
}
"""Which modules call which of these methods of a store. All that touches index files goes through
`perform`."""

NAMES = frozenset({"tick_key", "run_key", "segment_key", "tick_prefix", "run_prefix"}) | {
    "inbox_prefix"
}
CONTENT = frozenset({"columnfile", "inbox", "indexfile", "maintenance"})
"""Modules of `core` that only state machines need."""
ORDERS = frozenset({"Create", "Delete", "Put"})
"""Requests that write index files."""


def trespasses(module: str, source: str) -> list[str]:
    """What a module of the runtime must not do, as `line: what`."""
    return [
        f"{node.lineno}: {what}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.stmt | ast.expr)
        for what in _wrong(module, node)
    ]


def _wrong(module: str, node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ImportFrom(module="s3kv.core", names=names):
            yield from (f"imports {each.name}" for each in names if each.name in CONTENT)
        case ast.ImportFrom(module=str(origin), names=names) if origin.startswith("s3kv.core."):
            if origin.rpartition(".")[2] in CONTENT:
                yield f"imports {origin}"
            forbidden = NAMES | (ORDERS if module != "perform" else frozenset())
            yield from (f"imports {each.name}" for each in names if each.name in forbidden)
        case ast.Import(names=names):
            yield from (f"imports {x.name}" for x in names if x.name.startswith("s3kv.core"))
        case ast.Attribute(attr=name) if name in NAMES:
            yield f"makes a name with {name}"
        case ast.Attribute(value=ast.Name(id="core" | "requests"), attr=name) if (
            name in ORDERS and module != "perform"
        ):
            yield f"makes a {name}"
        case ast.Call(func=ast.Attribute(value=owner, attr=name)) if name in WRITES:
            is_store = ast.unparse(owner).rpartition(".")[2].lstrip("_") == "store"
            if is_store and name not in WRITERS.get(module, ()):
                yield f"writes with {name}"
        case ast.Constant(value=str(text)) if "/idx/" in text or "idx/" in text[1:]:
            yield "names an index file"


@pytest.mark.parametrize("path", sorted(RUNTIME.glob("*.py")), ids=lambda path: path.stem)
def test_no_module_of_the_runtime_makes_or_writes_index_files(path: Path) -> None:
    assert trespasses(path.stem, path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("index_client", "from s3kv.core.keys import tick_key"),
        ("index_client", "from s3kv.core import indexfile"),
        ("index_client", "from s3kv.core.maintenance import plan_cover"),
        ("index_client", "import s3kv.core.inbox"),
        ("index_tool", "from s3kv.core import keys\nname = keys.inbox_prefix(namespace)"),
        ("sweeping", "from s3kv.core.requests import Delete"),
        ("sweeping", "from s3kv.core import requests as core\nask(core.Create(key, body))"),
        ("verifying", "await self._tool.store.delete([key], timeout_s=1.0)"),
        ("index_client", "await self._store.put(key, body, timeout_s=1.0)"),
        ("index_writer", "await self._store.delete([key], timeout_s=1.0)"),
        ("index_tool", 'key = f"{namespace}/idx/tick/{number}"'),
    ],
)
def test_each_of_these_would_be_noticed(module: str, source: str) -> None:
    assert trespasses(module, source)


# ------------------------------------------------------------------------ by what it does


class Meddler(TapedWriter):
    """A writer whose runtime tidies up the inbox on its own account."""

    async def _sequence(self) -> None:
        await super()._sequence()
        async for page in self._store.list(keys.inbox_prefix(NAMESPACE.id), timeout_s=1.0):
            for found in page:
                await self._store.delete([found.key], timeout_s=1.0)


async def lives(kind: type[TapedWriter]) -> tuple[Ledger, list[TapedReader]]:
    """Two writers and a reader, take-over and compaction included."""
    clock = FakeClock()
    ledger = Ledger(MemoryStore(unix_s=clock.unix_s))
    settings = IndexSettings(compactor=CompactorSettings(ticks_min=3, check_s=1.0))
    first, second = (kind(ledger, NAMESPACE, clock, settings, Draws(seed)) for seed in (1, 2))
    reader = TapedReader(ledger, NAMESPACE, clock, settings, Draws(3))
    following = [asyncio.create_task(client.run()) for client in (first, second, reader)]
    dice = random.Random(0)
    for step in range(12):
        if step == 6:
            following[0].cancel()
        for writer in (first, second) if step < 6 else (second,):
            records = chunk(dice.randrange(1, 50))
            writer.note(records)
            following.append(asyncio.create_task(writer.commit(records)))
        await clock.advance(1.5)
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)
    await ledger.settle()
    return ledger, [first, second, reader]


async def test_a_store_hears_only_what_state_machines_ask_for() -> None:
    ledger, clients = await lives(TapedWriter)

    requests = [deal.request for deal in ledger.deals]
    written = [each.key for each in requests if isinstance(each, core.Put | core.Create)]
    for folder in ("inbox", "tick", "run"):
        assert any(f"/idx/{folder}/" in key for key in written), f"no {folder} proves nothing"
    assert any(isinstance(each, core.Delete) for each in requests)
    assert ledger.unasked([client.tape for client in clients]) == []


async def test_state_machines_alone_come_to_the_same_end() -> None:
    _, clients = await lives(TapedWriter)

    for client in clients:
        machines = client.fresh()
        play(client.tape, machines)
        assert known(machines.follower.snapshot) == known(client.snapshot)


async def test_a_runtime_that_acts_on_its_own_account_is_noticed() -> None:
    ledger, clients = await lives(Meddler)

    unasked = ledger.unasked([client.tape for client in clients])
    assert any(isinstance(request, core.Delete) for request in unasked)
