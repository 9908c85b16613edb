"""Gather and scatter move exactly the right bytes in every layout, and refuse what they cannot."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from s3kv.device import paged
from s3kv.device.paged import PagedGroup
from s3kv.errors import Mismatch
from tests.fakes.paged_caches import (
    BLOCKS,
    CACHES,
    COMPACT_ORDERS,
    LAYERS,
    PAGE,
    POISON,
    SCATTERED_ORDERS,
    Cache,
    one_block_cache,
    ordered_cache,
    over,
    random_bytes,
)

IDS = [5, 0, 3]


every_cache = pytest.mark.parametrize("build", CACHES.values(), ids=CACHES.keys())


@pytest.fixture(params=["host path", "device path"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups formed in the test copy this way. All of the device path but its streams is torch,
    so it runs on the CPU too: here in pieces of two blocks."""
    if request.param == "device path":
        monkeypatch.setattr(paged, "_HostPath", paged._DevicePath)
        monkeypatch.setattr(paged, "STAGING_BYTES", 2 * LAYERS * PAGE)


either_path = pytest.mark.usefixtures("path")


@either_path
@every_cache
def test_gather_yields_the_blocks_in_order_and_touches_nothing_else(
    build: Callable[[], Cache],
) -> None:
    cache = build()
    group = cache.group()
    before = [bytes(raw) for raw in cache.raws]
    size = len(IDS) * group.block_bytes
    buffer = torch.full((size + 16,), POISON, dtype=torch.uint8)
    group.gather_into(IDS, buffer[8 : 8 + size])
    assert buffer[8 : 8 + size].numpy().tobytes() == cache.expected_gather(IDS)
    assert (buffer[:8] == POISON).all()
    assert (buffer[8 + size :] == POISON).all()
    assert [bytes(raw) for raw in cache.raws] == before


@either_path
@every_cache
def test_scatter_writes_the_blocks_and_touches_nothing_else(
    build: Callable[[], Cache],
) -> None:
    cache = build()
    group = cache.group()
    for raw in cache.raws:
        raw[:] = bytes([POISON]) * len(raw)
    flat = random_bytes(len(IDS) * group.block_bytes, seed=9)
    expected = cache.expected_scatter(IDS, bytes(flat))
    group.scatter_from(IDS, torch.frombuffer(flat, dtype=torch.uint8))
    assert [bytes(raw) for raw in cache.raws] == expected


@either_path
@every_cache
def test_what_was_gathered_can_be_scattered_into_other_blocks(
    build: Callable[[], Cache],
) -> None:
    cache = build()
    group = cache.group()
    before = cache.expected_gather(IDS)
    flat = torch.empty(len(IDS) * group.block_bytes, dtype=torch.uint8)
    group.gather_into(IDS, flat)
    group.scatter_from([1, 2, 6], flat)
    assert cache.expected_gather([1, 2, 6]) == before


@either_path
def test_a_cache_of_one_block_works_whatever_its_strides() -> None:
    cache = one_block_cache()
    flat = torch.empty(2 * PAGE, dtype=torch.uint8)
    cache.group().gather_into([0], flat)
    assert flat.numpy().tobytes() == bytes(cache.raws[0])


@pytest.mark.parametrize("order", COMPACT_ORDERS)
def test_sizes_are_those_of_the_cache(order: str) -> None:
    group = ordered_cache(order).group()
    assert (group.layer_count, group.page_bytes, group.block_bytes, group.block_count) == (
        LAYERS,
        PAGE,
        LAYERS * PAGE,
        BLOCKS,
    )
    assert group.device == torch.device("cpu")


def test_groups_over_the_same_bytes_see_each_others_blocks() -> None:
    raw = random_bytes(BLOCKS * 2 * PAGE, seed=5)
    pages = over(raw, torch.int8).view(2, BLOCKS, PAGE)
    full = PagedGroup.from_tensors({"full.0": pages[0], "full.1": pages[1]}, PAGE, BLOCKS)
    sliding = PagedGroup.from_tensors({"win.0": pages[0], "win.1": pages[1]}, PAGE, BLOCKS)
    flat = torch.frombuffer(random_bytes(2 * full.block_bytes, seed=6), dtype=torch.uint8)
    full.scatter_from([1, 4], flat)
    seen = torch.full_like(flat, POISON)
    sliding.gather_into([1, 4], seen)
    assert torch.equal(seen, flat)


def test_no_tensor_is_copied() -> None:
    cache = ordered_cache("BLHNC")
    group = cache.group()
    cache.raws[0][:] = bytes([7]) * len(cache.raws[0])
    flat = torch.empty(group.block_bytes, dtype=torch.uint8)
    group.gather_into([2], flat)
    assert (flat == 7).all()


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float32, torch.uint8])
def test_the_element_type_does_not_matter(dtype: torch.dtype) -> None:
    cache = ordered_cache("LBHNC")
    tensors = {
        name: tensor.reshape(BLOCKS, -1).view(dtype) for name, tensor in cache.tensors.items()
    }
    assert all(t.data_ptr() == cache.tensors[n].data_ptr() for n, t in tensors.items())
    group = PagedGroup.from_tensors(tensors, PAGE, BLOCKS)
    flat = torch.empty(group.block_bytes, dtype=torch.uint8)
    group.gather_into([3], flat)
    assert flat.numpy().tobytes() == cache.expected_gather([3])


@either_path
def test_a_group_formed_in_inference_mode_can_be_written_outside_it() -> None:
    with torch.inference_mode():
        tensors = {f"l{i}": torch.zeros(BLOCKS, PAGE, dtype=torch.int8) for i in range(2)}
        group = PagedGroup.from_tensors(tensors, PAGE, BLOCKS)
    group.scatter_from([2], torch.full((2 * PAGE,), 9, dtype=torch.uint8))
    assert (tensors["l1"][2] == 9).all()


@pytest.mark.parametrize("order", SCATTERED_ORDERS)
def test_pages_that_are_not_one_run_of_bytes_are_refused(order: str) -> None:
    with pytest.raises(Mismatch, match="not one run of bytes"):
        ordered_cache(order).group()


def test_a_page_size_other_than_declared_is_refused() -> None:
    cache = ordered_cache("LBHNC")
    with pytest.raises(Mismatch, match="l0: a page holds 256 bytes"):
        PagedGroup.from_tensors(cache.tensors, PAGE + 64, BLOCKS)


def test_page_sizes_may_be_declared_by_layer() -> None:
    cache = ordered_cache("LBHNC")
    declared = dict.fromkeys(cache.tensors, PAGE)
    assert PagedGroup.from_tensors(cache.tensors, declared, BLOCKS).page_bytes == PAGE
    with pytest.raises(Mismatch, match="l2"):
        PagedGroup.from_tensors(cache.tensors, {**declared, "l2": 1}, BLOCKS)


def test_layers_with_unequal_pages_are_refused_by_name() -> None:
    tensors = {
        "wide": torch.zeros(BLOCKS, 64, dtype=torch.int8),
        "narrow": torch.zeros(BLOCKS, 32, dtype=torch.int8),
    }
    with pytest.raises(Mismatch, match=r"wide and narrow.*not supported yet"):
        PagedGroup.from_tensors(tensors, {"wide": 64, "narrow": 32}, BLOCKS)


def test_a_block_count_that_does_not_divide_the_tensor_is_refused() -> None:
    cache = ordered_cache("LBHNC")
    with pytest.raises(Mismatch, match="does not divide"):
        PagedGroup.from_tensors(cache.tensors, PAGE, BLOCKS + 1)


def test_kernel_blocks_that_do_not_lie_side_by_side_are_refused() -> None:
    raw = torch.zeros(4 * BLOCKS * PAGE, dtype=torch.int8)
    apart = raw.as_strided((2 * BLOCKS, PAGE // 2), (PAGE, 1))
    with pytest.raises(Mismatch, match="side by side"):
        PagedGroup.from_tensors({"l0": apart}, PAGE, BLOCKS)


def test_blocks_that_overlap_are_refused() -> None:
    raw = torch.zeros(4096, dtype=torch.int8)
    with pytest.raises(Mismatch, match="every 100 bytes"):
        PagedGroup.from_tensors({"l0": raw.as_strided((4, 128), (100, 1))}, 128, 4)


@pytest.mark.parametrize("offset", [0, 64, 192, 2 * 256 + 64, 2 * 256 + 192])
def test_layers_over_the_same_bytes_are_refused(offset: int) -> None:
    raw = torch.zeros(4096, dtype=torch.int8)
    one = raw.as_strided((4, 128), (256, 1))
    two = raw.as_strided((4, 128), (256, 1), offset)
    with pytest.raises(Mismatch, match="overlap"):
        PagedGroup.from_tensors({"l0": one, "l1": two}, 128, 4)


@pytest.mark.parametrize("offset", [128, 3 * 256 + 128, 3 * 256 + 192, 4 * 256 + 64])
def test_layers_that_only_touch_are_accepted(offset: int) -> None:
    raw = torch.zeros(4096, dtype=torch.int8)
    one = raw.as_strided((4, 128), (256, 1))
    two = raw.as_strided((4, 128), (256, 1), offset)
    assert PagedGroup.from_tensors({"l0": one, "l1": two}, 128, 4).layer_count == 2


def test_no_layers_are_refused() -> None:
    with pytest.raises(Mismatch, match="needs layers"):
        PagedGroup.from_tensors({}, PAGE, BLOCKS)


@pytest.mark.parametrize("ids", [[], [-1], [BLOCKS], [0, BLOCKS]])
def test_ids_that_cannot_be_are_refused_before_anything_moves(ids: list[int]) -> None:
    cache = ordered_cache("LBHNC")
    group = cache.group()
    flat = torch.full((max(1, len(ids)) * group.block_bytes,), POISON, dtype=torch.uint8)
    before = bytes(cache.raws[0])
    with pytest.raises(ValueError, match="block ids"):
        group.gather_into(ids, flat)
    with pytest.raises(ValueError, match="block ids"):
        group.scatter_from(ids, flat)
    assert (flat == POISON).all()
    assert bytes(cache.raws[0]) == before


def test_a_block_written_twice_in_one_copy_is_refused() -> None:
    group = ordered_cache("LBHNC").group()
    with pytest.raises(ValueError, match="twice"):
        group.scatter_from([1, 1], torch.zeros(2 * group.block_bytes, dtype=torch.uint8))


@pytest.mark.parametrize(
    "flat",
    [
        torch.zeros(LAYERS * PAGE - 1, dtype=torch.uint8),
        torch.zeros(LAYERS * PAGE, dtype=torch.int8),
        torch.zeros(2 * LAYERS * PAGE, dtype=torch.uint8)[::2],
    ],
    ids=["too short", "signed", "not contiguous"],
)
def test_buffers_of_another_size_or_kind_are_refused(flat: torch.Tensor) -> None:
    group = ordered_cache("LBHNC").group()
    with pytest.raises(ValueError, match=r"bytes|uint8"):
        group.gather_into([1], flat)


def test_the_model_itself_knows_every_byte() -> None:
    cache = ordered_cache("BLNHC")
    everything = cache.expected_gather(list(range(BLOCKS)))
    assert sorted(everything) == sorted(cache.raws[0])
    assert len(everything) == math.prod((LAYERS, BLOCKS, PAGE))
