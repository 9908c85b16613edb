"""Promises of chunking, for any chain."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from s3kv.core.chunking import block_chain, full_chunks, prompt_chunks, tail_candidates
from s3kv.core.ids import BlockHash
from tests.property.strategies import chain_of, chains

sizes = st.integers(1, 7)


@settings(deadline=None)
@given(chains(), sizes)
def test_full_chunks_join_from_block_zero_and_leave_less_than_a_chunk(
    chain: list[BlockHash], chunk_blocks: int
) -> None:
    chunks = full_chunks(chain, chunk_blocks)

    assert [c.start_block for c in chunks] == [i * chunk_blocks for i in range(len(chunks))]
    assert all(c.block_count == chunk_blocks for c in chunks)
    assert 0 <= len(chain) - len(chunks) * chunk_blocks < chunk_blocks


@settings(deadline=None)
@given(chains(), chains(), sizes)
def test_prompts_share_exactly_the_chunks_of_their_common_prefix(
    left: list[BlockHash], right: list[BlockHash], chunk_blocks: int
) -> None:
    common = 0
    while common < min(len(left), len(right)) and left[common] == right[common]:
        common += 1

    shared = set(full_chunks(left, chunk_blocks)) & set(full_chunks(right, chunk_blocks))

    assert len(shared) == common // chunk_blocks


@settings(deadline=None)
@given(chains(), st.data(), sizes, st.integers(0, 8))
def test_a_prompts_chunks_cover_it_without_hole_but_for_a_short_tail(
    chain: list[BlockHash], data: st.DataObject, chunk_blocks: int, min_tail: int
) -> None:
    prompt = data.draw(st.integers(0, len(chain)))

    chunks = prompt_chunks(chain, prompt, chunk_blocks, min_tail)

    covered = [block for c in chunks for block in range(c.start_block, c.end_block)]
    assert covered == list(range(len(covered)))
    assert all(c.chunk_hash == chain[c.end_block - 1] for c in chunks)
    rest = prompt - len(covered)
    assert rest == 0 or 0 < rest < min(chunk_blocks, max(1, min_tail))


@settings(deadline=None)
@given(chains(min_size=1), st.data(), sizes, st.integers(0, 3))
def test_a_grown_prompt_finds_the_tail_of_every_earlier_prompt(
    chain: list[BlockHash], data: st.DataObject, chunk_blocks: int, min_tail: int
) -> None:
    earlier = data.draw(st.integers(1, len(chain)))
    stored = prompt_chunks(chain, earlier, chunk_blocks, min_tail)
    full = len(full_chunks(chain[:earlier], chunk_blocks))

    candidates = tail_candidates(chain, chunk_blocks, full, min_tail)

    assert set(stored[full:]) <= set(candidates)


@settings(deadline=None)
@given(chains(), sizes, st.integers(0, 8), st.integers(0, 8))
def test_tail_candidates_are_all_boundaries_inside_the_missing_chunk(
    chain: list[BlockHash], chunk_blocks: int, hit_count: int, min_tail: int
) -> None:
    start = hit_count * chunk_blocks
    naive = [
        (start, end, chain[end - 1])
        for end in range(len(chain), start, -1)
        if end < start + chunk_blocks and end - start >= min_tail
    ]

    candidates = tail_candidates(chain, chunk_blocks, hit_count, min_tail)

    assert [(c.start_block, c.end_block, c.chunk_hash) for c in candidates] == naive


@settings(deadline=None)
@given(st.integers(0, 40), st.integers(1, 8))
def test_block_chain_keeps_the_hash_at_the_end_of_each_whole_block(
    count: int, per_block: int
) -> None:
    fine = chain_of(range(count))

    chain = block_chain(fine, per_block)

    assert chain == [fine[(i + 1) * per_block - 1] for i in range(count // per_block)]
