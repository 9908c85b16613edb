"""KV caches in every layout, with a model of what lies where."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from s3kv.device.paged import PagedGroup

BLOCKS = 7
LAYERS = 3
HEADS, TOKENS, CONTENT = 2, 4, 16  # bf16: 256 bytes a page
PAGE = HEADS * TOKENS * CONTENT * 2


POISON = 0xA5

# Physical orders of L, B, H, N, C with L and B outermost, as vLLM names them.
COMPACT_ORDERS = ("LBHNC", "LBNHC", "BLHNC", "BLNHC")
SCATTERED_ORDERS = ("LHBNC", "BHLNC")


@dataclass
class Cache:
    """Raw storages and, as plain numbers, the address of every layer's block 0 and its stride."""

    raws: list[bytearray]
    places: list[tuple[int, int, int]]
    page_bytes: int
    tensors: dict[str, torch.Tensor]
    block_count: int = BLOCKS

    def group(self) -> PagedGroup:
        return PagedGroup.from_tensors(self.tensors, self.page_bytes, self.block_count)

    def expected_gather(self, block_ids: list[int]) -> bytes:
        out = bytearray()
        for block in block_ids:
            for raw, offset, stride in self.places:
                for i in range(self.page_bytes):
                    out.append(self.raws[raw][offset + block * stride + i])
        return bytes(out)

    def expected_scatter(self, block_ids: list[int], flat: bytes) -> list[bytes]:
        after = [bytearray(raw) for raw in self.raws]
        source = iter(flat)
        for block in block_ids:
            for raw, offset, stride in self.places:
                for i in range(self.page_bytes):
                    after[raw][offset + block * stride + i] = next(source)
        return [bytes(raw) for raw in after]


def random_bytes(size: int, seed: int) -> bytearray:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)
    return bytearray(values.numpy().tobytes())


def over(raw: bytearray, dtype: torch.dtype) -> torch.Tensor:
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype)


def ordered_cache(order: str) -> Cache:
    """One storage in the given physical order; views are logical [B, H, N, C] in bf16."""
    sizes = dict(zip("LBHNC", (LAYERS, BLOCKS, HEADS, TOKENS, CONTENT), strict=True))
    strides, run = {}, 1
    for name in reversed(order):
        strides[name] = run
        run *= sizes[name]
    raw = random_bytes(run * 2, seed=1)
    whole = over(raw, torch.bfloat16)
    shape = tuple(sizes[n] for n in "BHNC")
    stride = tuple(strides[n] for n in "BHNC")
    offsets = [layer * strides["L"] for layer in range(LAYERS)]
    tensors = {f"l{i}": whole.as_strided(shape, stride, o) for i, o in enumerate(offsets)}
    places = [(0, offset * 2, strides["B"] * 2) for offset in offsets]
    return Cache([raw], places, PAGE, tensors)


def placed_cache(places: list[tuple[int, int, int]], page_bytes: int = PAGE) -> Cache:
    """Layers at explicit places (raw, offset, block stride), as int8 [B, page] views."""
    raws = []
    for index in range(1 + max(raw for raw, _, _ in places)):
        ends = [o + (BLOCKS - 1) * s + page_bytes for raw, o, s in places if raw == index]
        raws.append(random_bytes(max(ends) + 32, seed=index))
    tensors = {
        f"l{i}": over(raws[raw], torch.int8).as_strided((BLOCKS, page_bytes), (stride, 1), offset)
        for i, (raw, offset, stride) in enumerate(places)
    }
    return Cache(raws, places, page_bytes, tensors)


def subdivided_cache() -> Cache:
    """Kernel blocks of half a block: dim 0 is twice the number of blocks."""
    cache = ordered_cache("LBHNC")
    tensors = {
        name: tensor.view(BLOCKS * 2, 1, TOKENS, CONTENT) for name, tensor in cache.tensors.items()
    }
    return Cache(cache.raws, cache.places, PAGE, tensors)


def one_block_cache() -> Cache:
    raw = random_bytes(2 * PAGE, seed=3)
    whole = over(raw, torch.int8)
    tensors = {f"l{i}": whole[i * PAGE : (i + 1) * PAGE].view(1, PAGE) for i in range(2)}
    return Cache([raw], [(0, i * PAGE, PAGE) for i in range(2)], PAGE, tensors, block_count=1)


CACHES: dict[str, Callable[[], Cache]] = {
    **{order: partial(ordered_cache, order) for order in COMPACT_ORDERS},
    "separate storages": lambda: placed_cache([(i, 0, PAGE) for i in range(LAYERS)]),
    "padded blocks": lambda: placed_cache([(0, i * PAGE, 3 * PAGE + 64) for i in range(LAYERS)]),
    "oddly padded": lambda: placed_cache([(0, i * PAGE, 3 * PAGE + 7) for i in range(LAYERS)]),
    "padded pages": lambda: placed_cache([(0, i * 512, 3 * 512) for i in range(LAYERS)]),
    "one layer": lambda: placed_cache([(0, 64, 2 * PAGE)]),
    "odd page": lambda: placed_cache([(0, i * 21, 3 * 21) for i in range(LAYERS)], page_bytes=21),
    "layers in reverse": lambda: placed_cache([(0, i * PAGE, 3 * PAGE) for i in (2, 1, 0)]),
    "layers out of order": lambda: placed_cache([(0, i * PAGE, 3 * PAGE) for i in (2, 0, 1)]),
    "uneven distances": lambda: placed_cache([(0, i * PAGE, 8 * PAGE) for i in (0, 1, 5)]),
    "two storages": lambda: placed_cache([(0, 0, 2 * PAGE), (0, PAGE, 2 * PAGE), (1, 0, PAGE)]),
    "interleaved": lambda: placed_cache([(0, i * PAGE, 2 * PAGE) for i in (0, 1, 14)]),
    "kernel blocks": subdivided_cache,
}
