"""Check on this machine that the copies move the right bytes, and how fast: needs torch only.

`python -m s3kv.device.selfcheck --json` fills caches of every layout with random bytes, moves
blocks through the slot pool and the copy thread in both directions into poisoned memory, compares
every byte (also those that must not change) with a model that slices the raw storage, and measures
each direction beside a plain copy of the same size. Exit status 1 if one byte differs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Final

import numpy as np
import torch

from s3kv.device.copier import Copier, Outcome
from s3kv.device.paged import PagedGroup
from s3kv.device.slots import Purpose, Slot, SlotPool

MIB: Final = 1 << 20
SHARD_BLOCKS: Final = 16
CACHE_BLOCKS: Final = 40
POISON: Final = 0xA5
PADDING_BYTES: Final = 64
WAIT_S: Final = 60.0


class CacheLayout(Enum):
    """How the layers of a cache lie in memory."""

    LAYER_OUTERMOST = "layer_outermost"
    BLOCK_OUTERMOST = "block_outermost"
    PADDED_BLOCKS = "padded_blocks"
    SEPARATE_LAYERS = "separate_layers"


@dataclass(frozen=True, slots=True)
class CacheSample:
    """A cache with known addresses, to check copies against.

    raws: uint8 storages; places: per layer (raw index, first byte of block 0, block stride);
    tensors: what an engine would register, bf16[block_count, 2, page_bytes / 4].
    """

    raws: tuple[torch.Tensor, ...]
    places: tuple[tuple[int, int, int], ...]
    page_bytes: int
    tensors: dict[str, torch.Tensor]

    def page(self, raws: Sequence[torch.Tensor], layer: int, block: int) -> torch.Tensor:
        """uint8[page_bytes]: the page of one layer in one block, by plain address arithmetic."""
        raw_index, offset, stride = self.places[layer]
        start = offset + block * stride
        return raws[raw_index][start : start + self.page_bytes]

    def flat(self, raws: Sequence[torch.Tensor], block_ids: Sequence[int]) -> torch.Tensor:
        """uint8[len(block_ids) * layers * page_bytes]: what a gather must yield."""
        layers = range(len(self.places))
        return torch.cat([self.page(raws, layer, block) for block in block_ids for layer in layers])


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One layout and size. Rates in GiB/s, medians; problems is empty if every byte was right."""

    layout: str
    layer_count: int
    page_bytes: int
    shard_bytes: int
    stage_gib_s: float
    deliver_gib_s: float
    plain_from_device_gib_s: float
    plain_to_device_gib_s: float
    problems: list[str]


def sample_cache(
    layout: CacheLayout, layer_count: int, page_bytes: int, device: torch.device
) -> CacheSample:
    """A cache of CACHE_BLOCKS blocks of random bytes. page_bytes: a multiple of 4."""
    padding = PADDING_BYTES if layout is CacheLayout.PADDED_BLOCKS else 0
    layer_bytes, block_bytes = CACHE_BLOCKS * page_bytes, layer_count * page_bytes + padding
    layers = range(layer_count)
    match layout:
        case CacheLayout.LAYER_OUTERMOST:
            places = [(0, layer * layer_bytes, page_bytes) for layer in layers]
        case CacheLayout.SEPARATE_LAYERS:
            places = [(layer, 0, page_bytes) for layer in layers]
        case CacheLayout.BLOCK_OUTERMOST | CacheLayout.PADDED_BLOCKS:
            places = [(0, layer * page_bytes, block_bytes) for layer in layers]
    separate = layout is CacheLayout.SEPARATE_LAYERS
    sizes = [layer_bytes] * layer_count if separate else [CACHE_BLOCKS * block_bytes]
    raws = tuple(_random_bytes(size, device) for size in sizes)
    tensors = {
        f"layer.{layer}": raws[raw_index]
        .view(torch.bfloat16)
        .as_strided(
            (CACHE_BLOCKS, 2, page_bytes // 4), (stride // 2, page_bytes // 4, 1), offset // 2
        )
        for layer, (raw_index, offset, stride) in enumerate(places)
    }
    return CacheSample(raws, tuple(places), page_bytes, tensors)


def check_case(
    layout: CacheLayout,
    layer_count: int,
    shard_bytes: int,
    device: torch.device,
    round_count: int,
) -> CaseResult:
    """Both directions of one layout and size, checked and measured."""
    page_bytes = shard_bytes // (SHARD_BLOCKS * layer_count)
    sample = sample_cache(layout, layer_count, page_bytes, device)
    group = PagedGroup.from_tensors(sample.tensors, page_bytes, CACHE_BLOCKS)
    pool = SlotPool(shard_bytes + PADDING_BYTES, 1)
    copier = Copier(group)
    slot = pool.try_lend(Purpose.LOAD)
    assert slot is not None
    try:
        ids = torch.randperm(CACHE_BLOCKS)[:SHARD_BLOCKS].tolist()
        flat = slot.tensor[:shard_bytes]
        problems = _check_stage(copier, sample, ids, slot)
        problems += _check_deliver(copier, sample, ids, slot)
        plain = _random_bytes(shard_bytes, device)

        def rate(action: Callable[[], object]) -> float:
            return _rate(action, shard_bytes, round_count)

        return CaseResult(
            layout=layout.value,
            layer_count=layer_count,
            page_bytes=page_bytes,
            shard_bytes=shard_bytes,
            stage_gib_s=rate(lambda: _stage(copier, ids, flat)),
            deliver_gib_s=rate(lambda: _deliver(copier, ids, flat)),
            plain_from_device_gib_s=rate(lambda: _plain_copy(flat, plain, device)),
            plain_to_device_gib_s=rate(lambda: _plain_copy(plain, flat, device)),
            problems=problems,
        )
    finally:
        copier.close(WAIT_S)
        pool.give_back(slot)
        pool.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; the exit status."""
    parser = argparse.ArgumentParser(prog="s3kv.device.selfcheck", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--shard-mib", type=int, nargs="+", help="default: 2 8, on CUDA 32 too")
    parser.add_argument("--layers", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--rounds", type=int, default=0, help="0: 5 on the CPU, 50 on CUDA")
    options = parser.parse_args(arguments)
    name = options.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(name)
    round_count = options.rounds or (50 if name == "cuda" else 5)
    shard_mib = options.shard_mib or ([2, 8, 32] if name == "cuda" else [2, 8])
    torch.manual_seed(7)
    results = [
        check_case(layout, layer_count, mib * MIB, device, round_count)
        for mib in shard_mib
        for layer_count in options.layers
        for layout in CacheLayout
    ]
    is_right = not any(result.problems for result in results)
    _print(results, device, is_right, as_json=options.json)
    return 0 if is_right else 1


def _print(
    results: Sequence[CaseResult], device: torch.device, is_right: bool, *, as_json: bool
) -> None:
    on_cuda = device.type == "cuda"
    document = {
        "ok": is_right,
        "device": torch.cuda.get_device_name(device) if on_cuda else "cpu",
        "torch": torch.__version__,
        "torch_threads": torch.get_num_threads(),
        "cases": [asdict(result) for result in results],
    }
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    for result in results:
        sys.stdout.write(
            f"{result.layout:16} {result.layer_count:3} layers {result.shard_bytes // MIB:3} MiB: "
            f"stage {result.stage_gib_s:6.2f} of {result.plain_from_device_gib_s:6.2f}, "
            f"deliver {result.deliver_gib_s:6.2f} of {result.plain_to_device_gib_s:6.2f} GiB/s "
            f"{'; '.join(result.problems) or 'right'}\n"
        )


def _check_stage(copier: Copier, sample: CacheSample, ids: Sequence[int], slot: Slot) -> list[str]:
    expected = sample.flat(sample.raws, ids).cpu()
    before = [raw.clone() for raw in sample.raws]
    slot.tensor.fill_(POISON)
    _stage(copier, ids, slot.tensor[: expected.numel()])
    problems = []
    if not torch.equal(slot.tensor[: expected.numel()], expected):
        problems.append("stage: bytes in the slot differ")
    if (slot.tensor[expected.numel() :] != POISON).any():
        problems.append("stage: wrote past its end of the slot")
    if not all(map(torch.equal, before, sample.raws)):
        problems.append("stage: changed the cache")
    return problems


def _check_deliver(
    copier: Copier, sample: CacheSample, ids: Sequence[int], slot: Slot
) -> list[str]:
    """Into a poisoned cache: the blocks change, nothing else (padding, other blocks) does."""
    payload = slot.tensor[: len(ids) * len(sample.places) * sample.page_bytes]
    payload.copy_(_random_bytes(payload.numel(), torch.device("cpu")))
    expected = [torch.full_like(raw, POISON) for raw in sample.raws]
    pages = payload.to(sample.raws[0].device).view(len(ids), len(sample.places), -1)
    for i, block in enumerate(ids):
        for layer in range(len(sample.places)):
            sample.page(expected, layer, block).copy_(pages[i, layer])
    for raw in sample.raws:
        raw.fill_(POISON)
    _deliver(copier, ids, payload)
    same = all(map(torch.equal, expected, sample.raws))
    return [] if same else ["deliver: bytes in the cache differ"]


def _stage(copier: Copier, ids: Sequence[int], flat: torch.Tensor) -> None:
    ended = threading.Event()
    errors: list[BaseException | None] = []

    def on_done(error: BaseException | None) -> None:
        errors.append(error)
        ended.set()

    copier.stage(ids, flat, copier.fence(), on_done)
    if not ended.wait(WAIT_S) or errors != [None]:
        raise RuntimeError(f"stage did not succeed: {errors}")


def _deliver(copier: Copier, ids: Sequence[int], flat: torch.Tensor) -> None:
    ended = threading.Event()
    outcomes: list[Outcome] = []

    def on_done(outcome: Outcome) -> None:
        outcomes.append(outcome)
        ended.set()

    copier.deliver(ids, flat, copier.fence(), lambda: True, on_done)
    if not ended.wait(WAIT_S) or outcomes != [Outcome.WRITTEN]:
        raise RuntimeError(f"deliver did not succeed: {outcomes}")


def _plain_copy(target: torch.Tensor, source: torch.Tensor, device: torch.device) -> None:
    if device.type == "cpu":
        np.copyto(target.numpy(), source.numpy())  # one thread, as ours; torch would use them all
        return
    target.copy_(source, non_blocking=True)
    torch.cuda.current_stream(device).synchronize()


def _rate(action: Callable[[], object], moved_bytes: int, round_count: int) -> float:
    action()
    seconds = []
    for _ in range(round_count):
        started_s = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started_s)
    return round(moved_bytes / statistics.median(seconds) / (1 << 30), 2)


def _random_bytes(size: int, device: torch.device) -> torch.Tensor:
    words = torch.empty(-(-size // 8), dtype=torch.int64, device=device).random_()
    return words.view(torch.uint8)[:size]


if __name__ == "__main__":
    sys.exit(main())
