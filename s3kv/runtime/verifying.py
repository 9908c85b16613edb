"""Walks over a namespace's shards, folder by folder, has each looked into, and adds up.

Rule upheld here: a folder is done when all of its shards have a verdict and all that is wrong with
them has been dealt with; only then does the progress say so. Bounded: folders, chunks and bodies at
a time, and the bad shards that are remembered before they are set aside.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from s3kv.core import keys
from s3kv.core.requests import Listed, ListPage, PageOf, ask
from s3kv.core.snapshot import Snapshot
from s3kv.core.sweep import FOLDERS
from s3kv.core.verified import Fate, Progress, Tally, remember
from s3kv.core.verifying import (
    Choice,
    Fault,
    Part,
    Roll,
    Shape,
    UnknownFormat,
    Wrong,
    compare,
    reports_of,
    unchanged,
)
from s3kv.runtime.groups import task_group
from s3kv.runtime.index_tool import HEAD_TTL_S, REQUEST_TIMEOUT_S, IndexTool
from s3kv.runtime.inspecting import Bad, Depth, Good, Inspector, Unchecked, Vanished, Verdict
from s3kv.runtime.quarantine import Quarantine

SET_ASIDE_MAX: Final = 1_000
"""Bad shards of one folder that wait to be set aside together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """How a walk goes.

    depth: headers, or every byte; bad: whether what is wrong is reported or set aside; min_age_s:
    how long an upload of a chunk may take, its announcement included; folder_count, chunk_count,
    body_count: of each so many at once.
    """

    depth: Depth = "headers"
    bad: Literal["report", "quarantine"] = "report"
    min_age_s: float = 3_600.0
    folder_count: int = 8
    chunk_count: int = 16
    body_count: int = 4


@dataclass(slots=True)
class _Folder:
    """What is collected in one folder. bad: waits to be set aside."""

    tally: Tally = field(default_factory=Tally)
    bad: list[Bad] = field(default_factory=list)


class Verifier:
    """One walk over one namespace. Owned by one task.

    looked_count, bad_count: shards so far, for whoever shows progress.
    """

    def __init__(
        self,
        tool: IndexTool,
        shape: Shape,
        settings: VerifySettings,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        """tool: opened, and used by nobody else; on_step: called after each shard and folder."""
        self.looked_count = 0
        self.bad_count = 0
        self._tool = tool
        self._shape = shape
        self._settings = settings
        self._on_step = on_step
        self._inspector = Inspector(tool, shape, settings.depth, settings.body_count)
        self._quarantine = Quarantine(tool, shape)
        self._room = asyncio.Semaphore(settings.chunk_count)

    async def walk(self, progress: Progress, choice: Choice | None = None) -> None:
        """Verify the folders that are not done yet.

        choice: list all, but look only into what it chooses. Raises `S3KVError` if the store does
        not answer or refuses; what is done by then is in `progress`.
        """
        left = range(progress.folders_done, len(FOLDERS))
        filled = await self._pass_empty_ones(left, progress)

        async def walker() -> None:
            for index in filled:
                progress.finish(index, await self._folder(FOLDERS[index], choice))
                self._on_step()

        async with task_group() as group:
            for _ in range(self._settings.folder_count):
                group.create_task(walker())
        if choice is not None:
            progress.tally.add(await self._chosen(choice.chosen))

    # ------------------------------------------------------------------------- folders
    async def _pass_empty_ones(self, left: Sequence[int], progress: Progress) -> Iterator[int]:
        """Finish the folders without objects, and give the others: 1 LIST may save nearly 256."""
        # In this order: what was live before the look has a folder, if it is still there.
        before = await self._quarantine.followed(0.0)
        prefix = keys.data_prefix(self._shape.namespace)
        found = await self._tool.store.list_prefixes(prefix, timeout_s=REQUEST_TIMEOUT_S)
        filled = {each[len(prefix) : -1] for each in found}
        for index in left:
            if FOLDERS[index] not in filled:
                tally = Tally()
                await self._compare(FOLDERS[index], before, Roll(), tally)
                progress.finish(index, tally)
        return iter([index for index in left if FOLDERS[index] in filled])

    async def _folder(self, folder: str, choice: Choice | None) -> Tally:
        snapshot = await self._quarantine.followed(HEAD_TTL_S / 2)
        here, roll = _Folder(), Roll()
        async with task_group() as group:

            async def take(parts: Sequence[Part]) -> None:
                if choice is None:
                    await self._start(group, parts, here)
                else:
                    choice.show(parts)

            async for page in self._pages(keys.data_prefix(self._shape.namespace, folder)):
                for part in _parts(page, here.tally):
                    is_misnamed = self._shape.misnamed(part.name) is not None
                    parts = [part] if is_misnamed else roll.add(part)
                    if parts is not None:
                        await take(parts)
                if len(here.bad) >= SET_ASIDE_MAX:
                    await self._set_aside(here)
            for parts in roll.waiting.values():
                self._count_incomplete(parts, here.tally)
                await take(parts)
        await self._set_aside(here)
        await self._compare(folder, snapshot, roll, here.tally)
        return here.tally

    async def _chosen(self, parts: Sequence[Part]) -> Tally:
        here = _Folder()
        async with task_group() as group:
            for part in parts:
                await self._start(group, [part], here)
        await self._set_aside(here)
        return here.tally

    async def _pages(self, prefix: str) -> AsyncIterator[tuple[Listed, ...]]:
        token = None
        while True:
            page = (await self._tool.perform(ask(ListPage(prefix, token)))).value
            assert isinstance(page, PageOf)
            yield page.found
            token = page.token
            if token is None:
                return

    def _count_incomplete(self, parts: Sequence[Part], tally: Tally) -> None:
        if min(part.found.age_s for part in parts) < self._settings.min_age_s:
            tally.waiting_chunks += 1
            return
        tally.incomplete_chunks += 1
        there = {part.name.writer_index for part in parts}
        lacking = [str(i) for i in range(self._shape.writer_count) if i not in there]
        chunk = parts[0].name.chunk_hash.hex()
        remember(tally.incomplete_names, f"{chunk} lacks writer {', '.join(lacking)}")

    async def _compare(self, folder: str, snapshot: Snapshot, roll: Roll, tally: Tally) -> None:
        seen = compare(folder, snapshot, roll, self._settings.min_age_s)
        tally.unlisted_chunks += seen.unlisted
        tally.young_chunks += seen.young
        tally.forgotten_chunks += seen.forgotten
        if not len(seen.gone):
            return
        # Whoever deletes on purpose says so first; who uploads again says so too.
        gone = unchanged(await self._quarantine.followed(0.0), seen.gone)
        tally.gone_chunks += len(gone)
        if self._settings.bad == "quarantine" and len(gone):
            await self._quarantine.report(reports_of(gone))
            tally.reported_chunks += len(gone)

    # -------------------------------------------------------------------------- shards
    async def _start(self, group: asyncio.TaskGroup, parts: Sequence[Part], here: _Folder) -> None:
        """Look into one chunk's shards, one after the other, as soon as there is room."""

        async def look() -> None:
            try:
                await self._look_into(parts, here)
            finally:
                self._room.release()

        await self._room.acquire()
        group.create_task(look())

    async def _look_into(self, parts: Sequence[Part], here: _Folder) -> None:
        verdicts: list[Verdict] = []
        for part in parts:
            verdicts.append(await self._inspector.look(part))
            self.looked_count += 1
            self.bad_count += isinstance(verdicts[-1], Bad)
            self._on_step()
        for part, verdict in zip(parts, _agreed(verdicts), strict=True):
            self._note(part, verdict, here)

    def _note(self, part: Part, verdict: Verdict, here: _Folder) -> None:
        tally = here.tally
        match verdict:
            case Good():
                tally.good += 1
            case Bad():
                if self._settings.bad == "quarantine":
                    here.bad.append(verdict)
                else:
                    tally.add_bad(verdict.part.found, verdict.fault, Fate.REPORTED)
            case Vanished():
                tally.vanished += 1
            case UnknownFormat(says):
                tally.unknown_format += 1
                remember(tally.unchecked_names, f"{part.found.key}: {says}")
            case Unchecked(says):
                tally.unchecked += 1
                remember(tally.unchecked_names, f"{part.found.key}: {says}")

    async def _set_aside(self, here: _Folder) -> None:
        bad, here.bad = here.bad, []
        fates, reported_count = await self._quarantine.set_aside([each.part for each in bad])
        here.tally.reported_chunks += reported_count
        for each, fate in zip(bad, fates, strict=True):
            here.tally.add_bad(each.part.found, each.fault, fate)


def _parts(page: Sequence[Listed], tally: Tally) -> Iterator[Part]:
    """The shards of a page; everything else is foreign."""
    for found in page:
        name = keys.parse_shard_key(found.key)
        if name is None:
            tally.foreign += 1
            remember(tally.foreign_names, found.key)
            continue
        tally.shards += 1
        tally.shard_bytes += found.size
        yield Part(name, found)


def _agreed(verdicts: Sequence[Verdict]) -> list[Verdict]:
    """The verdicts on one chunk's shards; if these differ in blocks, none of them is good."""
    counts = sorted({each.block_count for each in verdicts if isinstance(each, Good)})
    if len(counts) < 2:
        return list(verdicts)
    says = f"the chunk's shards have {' and '.join(map(str, counts))} blocks"
    fault = Fault(Wrong.SIZE, says)
    return [Bad(each.part, fault) if isinstance(each, Good) else each for each in verdicts]
