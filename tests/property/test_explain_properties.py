"""What `explain` says a prompt gets is what an engine's lookup finds, whatever is archived."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from s3kv.bucket.memory import MemoryStore
from s3kv.cli.prompt_view import Candidate, PromptView, read_candidate, read_view
from s3kv.core.plans import usable_blocks
from s3kv.core.reasons import ChunkState
from s3kv.runtime.clock import Clock
from tests.fakes.prompt_archive import PromptArchive, prompt_of, token_ids
from tests.fakes.small_archive import BLOCK_TOKENS

BLOCKS = 11


async def view_of(ends: set[int], waiting: set[int], extra: int) -> tuple[PromptView, Candidate]:
    """Of a prompt of which the chunks that end at these blocks are archived."""
    prompt = prompt_of(token_ids(BLOCKS, seed=1, extra=extra))
    archive = PromptArchive(MemoryStore())
    derived = archive.derived(prompt)
    chunks = [chunk for chunk in derived.every_chunk() if chunk.end_block in ends]
    await archive.describe()
    for chunk in chunks:
        await archive.upload(derived, chunk)
    ticked = [chunk for chunk in chunks if chunk.end_block not in waiting]
    if ticked:
        await archive.announce(ticked)
    await archive.leave_in_inbox([chunk for chunk in chunks if chunk.end_block in waiting])
    candidate = await read_candidate(archive.store, archive.namespace.id, prompt, Clock())
    assert isinstance(candidate, Candidate)
    return await read_view(archive.store, candidate, lambda done, text: None), candidate


@given(
    ends=st.sets(st.integers(1, BLOCKS)),
    waiting=st.sets(st.integers(1, BLOCKS)),
    extra=st.sampled_from([0, 1]),
)
def test_the_hit_is_the_one_that_an_engine_finds(
    ends: set[int], waiting: set[int], extra: int
) -> None:
    view, candidate = asyncio.run(view_of(ends, waiting, extra))

    tokens = BLOCKS * BLOCK_TOKENS + extra
    listed_blocks = candidate.listed_tokens // BLOCK_TOKENS
    usable = usable_blocks(listed_blocks, 0, tokens, BLOCK_TOKENS, None, 0)
    assert view.hit_tokens == usable * BLOCK_TOKENS
    assert view.is_whole is ({4, 8, 11} <= ends)
    for seen in view.rows:
        end = seen.chunk.end_block
        if end not in ends:
            assert seen.state is ChunkState.ABSENT
        else:
            expected = ChunkState.WAITING if end in waiting else ChunkState.PRESENT
            assert seen.state is expected
