"""The device shell on a real GPU: page-locked slots, side stream, fences, every layout."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import pytest
import torch

from s3kv.device.copier import Copier, Outcome
from s3kv.device.paged import STAGING_BYTES, PagedGroup
from s3kv.device.selfcheck import CACHE_BLOCKS, MIB, CacheLayout, check_case, sample_cache
from s3kv.device.slots import SLOT_ALIGNMENT, Purpose, Slot, SlotPool

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

POISON = 0xA5
WAIT_S = 60.0
LONG_KERNEL_CYCLES = 400_000_000  # a few tenths of a second


@pytest.fixture
def device() -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device on this machine")
    return torch.device("cuda", torch.cuda.current_device())


@contextmanager
def lent_slot(slot_bytes: int) -> Iterator[Slot]:
    pool = SlotPool(slot_bytes, 1)
    slot = pool.try_lend(Purpose.SAVE)
    assert slot is not None
    try:
        yield slot
    finally:
        pool.give_back(slot)
        pool.close()


@contextmanager
def copier_over(group: PagedGroup) -> Iterator[Copier]:
    copier = Copier(group)
    try:
        yield copier
    finally:
        copier.close(WAIT_S)


def two_layers(device: torch.device, page_bytes: int, blocks: int) -> torch.Tensor:
    """int8[blocks, 2, page_bytes] of zeros."""
    return torch.zeros(blocks, 2, page_bytes, dtype=torch.int8, device=device)


def group_over(cache: torch.Tensor) -> PagedGroup:
    tensors = {f"l{i}": cache[:, i] for i in range(cache.shape[1])}
    return PagedGroup.from_tensors(tensors, cache.shape[2], cache.shape[0])


@pytest.mark.parametrize("layer_count", [1, 3, 32])
@pytest.mark.parametrize("layout", CacheLayout)
def test_both_directions_move_exactly_the_right_bytes(
    device: torch.device, layout: CacheLayout, layer_count: int
) -> None:
    shard_bytes = layer_count * 16 * 4096
    result = check_case(layout, layer_count, shard_bytes, device, round_count=1)
    assert result.problems == []


@pytest.mark.parametrize("page_bytes", [20, 36, 44, 4096 + 4])
@pytest.mark.parametrize("layout", CacheLayout)
def test_pages_of_odd_sizes_are_moved_whole(
    device: torch.device, layout: CacheLayout, page_bytes: int
) -> None:
    result = check_case(layout, 3, 3 * 16 * page_bytes, device, round_count=1)
    assert result.page_bytes == page_bytes
    assert result.problems == []


def test_slots_are_page_locked_and_aligned(device: torch.device) -> None:
    with lent_slot(3 * MIB + 5) as slot:
        assert slot.tensor.is_pinned()
        assert slot.tensor.data_ptr() % SLOT_ALIGNMENT == 0
        assert torch.frombuffer(slot.memory, dtype=torch.uint8).is_pinned()


def test_copies_larger_than_the_staging_buffer_go_in_pieces(device: torch.device) -> None:
    layer_count = 8
    page_bytes = STAGING_BYTES // layer_count // 3  # three blocks a piece, seven blocks to move
    page_bytes -= page_bytes % 8
    sample = sample_cache(CacheLayout.LAYER_OUTERMOST, layer_count, page_bytes, device)
    group = PagedGroup.from_tensors(sample.tensors, page_bytes, CACHE_BLOCKS)
    ids = [3, 1, 39, 0, 20, 21, 2]
    with lent_slot(len(ids) * group.block_bytes) as slot, copier_over(group) as copier:
        staged: Future[BaseException | None] = Future()
        copier.stage(ids, slot.memory, copier.fence(), staged.set_result)
        assert staged.result(WAIT_S) is None
        assert torch.equal(slot.tensor, sample.flat(sample.raws, ids).cpu())
        for raw in sample.raws:
            raw.fill_(POISON)
        written: Future[Outcome] = Future()
        copier.deliver(ids, slot.memory, copier.fence(), lambda: True, written.set_result)
        assert written.result(WAIT_S) is Outcome.WRITTEN
        assert torch.equal(sample.flat(sample.raws, ids).cpu(), slot.tensor)


def test_a_save_sees_what_the_forward_pass_before_its_fence_writes(device: torch.device) -> None:
    cache = two_layers(device, page_bytes=4096, blocks=4)
    group = group_over(cache)
    with lent_slot(group.block_bytes) as slot, copier_over(group) as copier:
        slot.tensor.fill_(POISON)
        staged: Future[BaseException | None] = Future()
        torch.cuda._sleep(LONG_KERNEL_CYCLES)
        cache[2] = 42
        fence = copier.fence()
        assert fence is not None
        assert not fence.query()  # the forward pass is still running when the hook is called
        copier.stage([2], slot.tensor, fence, staged.set_result)
        assert staged.result(WAIT_S) is None
        assert (slot.tensor == 42).all()


def test_a_load_does_not_wait_for_a_forward_pass_after_its_fence(device: torch.device) -> None:
    cache = two_layers(device, page_bytes=4096, blocks=4)
    group = group_over(cache)
    with lent_slot(group.block_bytes) as slot, copier_over(group) as copier:
        slot.tensor.fill_(7)
        load_fence = copier.fence()
        torch.cuda.synchronize(device)
        torch.cuda._sleep(LONG_KERNEL_CYCLES)
        save_fence = copier.fence()
        assert save_fence is not None
        staged: Future[BaseException | None] = Future()
        out = torch.empty(group.block_bytes, dtype=torch.uint8)
        copier.stage([1], out, save_fence, staged.set_result)
        written: Future[Outcome] = Future()
        copier.deliver([1], slot.tensor, load_fence, lambda: True, written.set_result)
        assert written.result(WAIT_S) is Outcome.WRITTEN
        assert not save_fence.query()
        assert staged.result(WAIT_S) is None
        assert (out == 7).all()


def test_bytes_are_visible_to_the_compute_stream_once_reported(device: torch.device) -> None:
    cache = two_layers(device, page_bytes=64 * 1024, blocks=8)
    group = group_over(cache)
    with lent_slot(4 * group.block_bytes) as slot, copier_over(group) as copier:
        for value in range(1, 60):
            slot.tensor.fill_(value)
            written: Future[Outcome] = Future()
            copier.deliver(
                [6, 1, 3, 0], slot.tensor, copier.fence(), lambda: True, written.set_result
            )
            assert written.result(WAIT_S) is Outcome.WRITTEN
            assert bool((cache[[6, 1, 3, 0]] == value).all())
            assert bool((cache[[2, 4, 5, 7]] == 0).all())


def test_a_delivery_no_longer_wanted_writes_nothing(device: torch.device) -> None:
    cache = two_layers(device, page_bytes=4096, blocks=4)
    group = group_over(cache)
    with lent_slot(group.block_bytes) as slot, copier_over(group) as copier:
        slot.tensor.fill_(POISON)
        ended: Future[Outcome] = Future()
        copier.deliver([1], slot.tensor, copier.fence(), lambda: False, ended.set_result)
        assert ended.result(WAIT_S) is Outcome.SKIPPED
        torch.cuda.synchronize(device)
        assert bool((cache == 0).all())


def test_a_wrong_block_id_fails_the_copy_and_not_the_device(device: torch.device) -> None:
    cache = two_layers(device, page_bytes=4096, blocks=4)
    group = group_over(cache)
    with lent_slot(group.block_bytes) as slot, copier_over(group) as copier:
        failed: Future[Outcome] = Future()
        copier.deliver([4], slot.tensor, None, lambda: True, failed.set_result)
        assert failed.result(WAIT_S) is Outcome.FAILED
        staged: Future[BaseException | None] = Future()
        copier.stage([3], slot.tensor, copier.fence(), staged.set_result)
        assert staged.result(WAIT_S) is None
        assert bool((slot.tensor == 0).all())


def test_a_group_formed_in_inference_mode_can_be_written_by_the_copy_thread(
    device: torch.device,
) -> None:
    with torch.inference_mode():
        cache = two_layers(device, page_bytes=4096, blocks=4)
        group = group_over(cache)
        pool = SlotPool(group.block_bytes, 1)
    slot = pool.try_lend(Purpose.LOAD)
    assert slot is not None
    slot.tensor.fill_(5)
    with copier_over(group) as copier:
        written: Future[Outcome] = Future()
        copier.deliver([2], slot.tensor, copier.fence(), lambda: True, written.set_result)
        assert written.result(WAIT_S) is Outcome.WRITTEN
    assert bool((cache[2] == 5).all())
    pool.give_back(slot)
    pool.close()
