"""Commands on a store that cannot carry an index: what writes the index refuses (ADR 0004)."""

from __future__ import annotations

import io
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Final

import pytest

from s3kv.bucket.base import ObjectStore
from s3kv.bucket.capabilities import PROBE_PREFIX
from s3kv.bucket.faults import Fail, Faulty
from s3kv.bucket.memory import MemoryStore
from s3kv.cli import pinning, rebuild, sequencer, verify
from s3kv.cli.forget import Wanted, forgotten
from s3kv.cli.forget_options import ForgetOptions
from s3kv.cli.options import Options
from s3kv.cli.output import Output
from s3kv.cli.pin_options import PinOptions
from s3kv.cli.prompt_options import PromptOptions
from s3kv.cli.verify_options import VerifyOptions
from s3kv.core.keys import set_key
from s3kv.core.pinset import encode_set, make_set
from s3kv.errors import ConfigError, Denied
from tests.fakes.careless_store import CarelessStore
from tests.fakes.prompt_archive import PromptArchive, prompt_of, token_ids
from tests.fakes.small_archive import TIMEOUT_S

URI: Final = "s3://bucket/prefix"
OPTIONS: Final = Options(uri=URI)
OUTPUT: Final = Output("json")
PROMPT: Final = prompt_of(token_ids(10, seed=1))


async def run_sequencer(ns: str) -> int:
    return await sequencer.sequencer(OPTIONS, [ns], None, None, OUTPUT)


async def run_rebuild(ns: str) -> int:
    return await rebuild.rebuild(OPTIONS, ns, OUTPUT)


async def run_pin(ns: str) -> int:
    return await pinning.pin(
        OPTIONS, "more", PinOptions(namespace=ns, hashes="-"), PromptOptions(), OUTPUT
    )


async def run_verify(ns: str) -> int:
    return await verify.verify(OPTIONS, VerifyOptions(namespace=ns, yes=True), OUTPUT)


async def archive_without_index(store: MemoryStore) -> PromptArchive:
    """What engines leave there: shards and NAMESPACE.json; here somebody copied a set to it."""
    archive = PromptArchive(store)
    await archive.describe()
    derived = archive.derived(PROMPT)
    for chunk in derived.chunks:
        await archive.upload(derived, chunk)
    ns = archive.namespace.id
    pinned = make_set(ns, "keep", {derived.chunks[0].chunk_hash: 4})
    await store.put(set_key(ns, "keep"), encode_set(pinned), timeout_s=TIMEOUT_S)
    return archive


@pytest.mark.parametrize(
    ("refuses_deletes", "says"), [(False, "If-None-Match is ignored"), (True, "no s3:DeleteObject")]
)
@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("pinning", run_pin),
        ("rebuild", run_rebuild),
        ("verify", run_verify),
        ("sequencer", run_sequencer),
    ],
)
async def test_what_writes_the_index_refuses_and_changes_nothing(
    module: str,
    command: Callable[[str], Awaitable[int]],
    refuses_deletes: bool,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memory = MemoryStore() if refuses_deletes else CarelessStore()
    archive = await archive_without_index(memory)
    before = dict(memory.objects)
    store = Faulty(memory)
    if refuses_deletes:
        store.inject(Fail(Denied("no s3:DeleteObject")), "delete", times=None)

    @asynccontextmanager
    async def opened(settings: object) -> AsyncIterator[ObjectStore]:
        yield store

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"ab" * 32)))
    monkeypatch.setattr(f"s3kv.cli.{module}.opened", opened)
    with pytest.raises(ConfigError, match=f"{says}.*s3kv doctor says"):
        await command(archive.namespace.id)

    assert {k: v for k, v in memory.objects.items() if not k.startswith(PROBE_PREFIX)} == before


async def test_a_prompt_is_forgotten_without_a_report_to_an_index() -> None:
    store = CarelessStore()
    archive = await archive_without_index(store)
    given = ForgetOptions(yes=True, including_pinned=True)

    found = await forgotten(store, URI, Wanted(PROMPT), given, OUTPUT)

    assert (found.exit_code, len(found.targets[0].found)) == (0, 3)
    ns = archive.namespace.id
    left = [key for key in store.objects if key.startswith(f"{ns}/")]
    assert sorted(left) == sorted([f"{ns}/NAMESPACE.json", set_key(ns, "keep")])
