"""One KV-cache group seen as bytes, and the two copies between its blocks and a flat buffer.

The rule: a page (one layer's bytes of one block) is opaque. Tensors only tell where pages lie; the
bytes in them are moved unread, so that every backend, dtype and packing works that keeps a page in
one run. What does not is refused when the group is formed, never met while copying.

Flat buffers are block-major: uint8[n, layer_count, page_bytes], the order of blocks in a shard.

On the CPU each copy is as few numpy calls as the layout allows: they run at the speed of memcpy on
one thread, and give up the interpreter lock once, not once a block (torch's forms start a team of
OpenMP threads beside the engine's own; a loop over blocks waits for the lock in every turn).
On CUDA the blocks meet in a contiguous device buffer, so that the bus sees one large copy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from s3kv.errors import Mismatch

MIN_CELL_BYTES: Final = 64
"""Smallest piece moved by index on the CPU: still 3/4 of memcpy's speed; indices cost the rest."""

STAGING_BYTES: Final = 32 << 20
"""Bound of a group's device buffer, which comes out of what the engine left free; larger copies go
in pieces, each of them long enough to fill the bus."""


@dataclass(frozen=True, slots=True)
class _Placement:
    """Byte address of a layer's page of block b: offset + b * block_stride in its storage."""

    name: str
    storage: torch.UntypedStorage
    offset: int
    block_stride: int
    page_bytes: int


class PagedGroup:
    """The pages of layer_count layers in block_count blocks. One thread at a time may copy.

    Several groups may lie over the same bytes (hybrid models): a block id belongs to one of them.
    """

    def __init__(self, placements: Sequence[_Placement], block_count: int) -> None:
        """Use `from_tensors`."""
        first = placements[0]
        self._layer_count = len(placements)
        self._page_bytes = first.page_bytes
        self._block_count = block_count
        self._device = first.storage.device
        # Views must be writable by the copy thread, which is not in inference mode.
        with torch.inference_mode(mode=False):
            path = _HostPath if self._device.type == "cpu" else _DevicePath
            self._path: _HostPath | _DevicePath = path(placements, block_count)

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, torch.Tensor],
        page_bytes: int | Mapping[str, int],
        block_count: int,
    ) -> PagedGroup:
        """Form a group from registered cache tensors, in layer order.

        tensors: layer name -> [block_count * ratio, ...], any dtype, each block's content in one
        run of bytes (in any order of its dimensions); ratio is 1 unless kernel blocks subdivide the
        engine's blocks. page_bytes: size of a layer's page without padding, for all layers or by
        name. Blocks may lie further apart than a page. No tensor is copied; the group keeps their
        storages alive.

        Raises `Mismatch` if a page is not one run of bytes, if sizes disagree with page_bytes or
        block_count or (for now) between layers, if layers lie on different devices or overlap.
        """
        if not tensors or block_count < 1:
            raise Mismatch(f"a cache group needs layers and blocks: {len(tensors)}, {block_count}")
        placements = [_place(name, tensor, block_count) for name, tensor in tensors.items()]
        for placement in placements:
            declared = page_bytes if isinstance(page_bytes, int) else page_bytes[placement.name]
            if placement.page_bytes != declared:
                raise Mismatch(
                    f"layer {placement.name}: a page holds {placement.page_bytes} bytes, "
                    f"the engine's description says {declared}"
                )
        _refuse_unlike(placements)
        _refuse_overlap(placements, block_count)
        return cls(placements, block_count)

    @property
    def layer_count(self) -> int:
        """Layers in the group."""
        return self._layer_count

    @property
    def page_bytes(self) -> int:
        """Bytes of one layer in one block."""
        return self._page_bytes

    @property
    def block_bytes(self) -> int:
        """Bytes of one block in a flat buffer: all layers' pages, without padding."""
        return self._layer_count * self._page_bytes

    @property
    def block_count(self) -> int:
        """Blocks in the cache; ids are below it."""
        return self._block_count

    @property
    def device(self) -> torch.device:
        """Where the cache lies."""
        return self._device

    def gather_into(self, block_ids: Sequence[int], out: torch.Tensor) -> None:
        """Copy blocks into a flat buffer.

        out: torch.uint8[len(block_ids) * block_bytes] on the CPU. On CUDA the copy is only queued
        on the current stream: `out` and the blocks must stay as they are until it has passed.
        Raises ValueError, before anything is touched, for ids or sizes that cannot be.
        """
        ids = self._checked_ids(block_ids, out)
        self._path.gather(ids, out)

    def scatter_from(self, block_ids: Sequence[int], flat: torch.Tensor) -> None:
        """Copy a flat buffer into blocks; the mirror image of `gather_into`.

        Raises ValueError for a repeated id too: which of its two contents stays is undefined.
        """
        ids = self._checked_ids(block_ids, flat)
        if np.unique(ids).size != ids.size:
            raise ValueError("a block is written twice in one copy")
        self._path.scatter(ids, flat)

    def _checked_ids(self, block_ids: Sequence[int], flat: torch.Tensor) -> NDArray[np.int64]:
        """Block ids as an array. An id out of range would trap on CUDA and end the engine."""
        ids = np.asarray(block_ids, dtype=np.int64)
        if ids.size == 0 or ids.min() < 0 or ids.max() >= self._block_count:
            raise ValueError(f"block ids must be 0..{self._block_count - 1}: {list(block_ids)}")
        wanted_bytes = ids.size * self.block_bytes
        if flat.dtype != torch.uint8 or flat.device.type != "cpu" or not flat.is_contiguous():
            raise ValueError("a flat buffer is contiguous uint8 on the CPU")
        if flat.numel() != wanted_bytes:
            raise ValueError(f"{ids.size} blocks are {wanted_bytes} bytes, not {flat.numel()}")
        return ids


class _HostPath:
    """Copies of a cache in main memory, done when they return.

    Where layers share a storage it is also seen as rows of one cell each, a cell dividing pages,
    distances and strides: a gather is then one call, whatever the order of the layers.
    """

    def __init__(self, placements: Sequence[_Placement], block_count: int) -> None:
        self._views = [(layers, v.numpy()) for layers, v in _views(placements, block_count)]
        self._shape = (len(placements), placements[0].page_bytes)
        self._cells: NDArray[np.uint8] | None = None  # uint8[rows, cell_bytes]
        first = min(placements, key=lambda p: p.offset)
        offsets = [p.offset - first.offset for p in placements]
        cell = math.gcd(first.page_bytes, first.block_stride, *offsets)
        if cell < min(MIN_CELL_BYTES, first.page_bytes):
            return
        if all(_share_blocks(p, first) for p in placements):
            span = max(offsets) + (block_count - 1) * first.block_stride + first.page_bytes
            self._cells = _bytes_view(first, (span // cell, cell), (cell, 1)).numpy()
            page_cells = np.arange(first.page_bytes // cell)
            self._block_cells = (np.array(offsets)[:, None] // cell + page_cells).ravel()
            self._block_rows = first.block_stride // cell

    def gather(self, ids: NDArray[np.int64], out: torch.Tensor) -> None:
        if self._cells is not None:
            rows = self._rows(ids)
            # mode: "raise" would go through a second buffer; the ids are checked already.
            cells = out.numpy().reshape(rows.size, -1)
            np.take(self._cells, rows, axis=0, out=cells, mode="clip")
            return
        blocks = out.numpy().reshape(ids.size, *self._shape)
        for layers, view in self._views:
            blocks[:, layers] = view[ids]

    def scatter(self, ids: NDArray[np.int64], flat: torch.Tensor) -> None:
        if self._cells is not None and len(self._views) > 1:
            rows = self._rows(ids)
            self._cells[rows] = flat.numpy().reshape(rows.size, -1)
            return
        blocks = flat.numpy().reshape(ids.size, *self._shape)
        for layers, view in self._views:
            view[ids] = blocks[:, layers]

    def _rows(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of all cells of the blocks, block-major."""
        rows: NDArray[np.int64] = ids[:, None] * self._block_rows + self._block_cells
        return rows.ravel()


class _DevicePath:
    """Copies of a cache in device memory through a buffer there, queued on the current stream."""

    def __init__(self, placements: Sequence[_Placement], block_count: int) -> None:
        views = _views(placements, block_count)
        word = _word([view for _, view in views])
        self._views = [(layers, view.view(word)) for layers, view in views]
        device, page_bytes = placements[0].storage.device, placements[0].page_bytes
        self._block_bytes = len(placements) * page_bytes
        self._piece_blocks = max(1, min(block_count, STAGING_BYTES // self._block_bytes))
        shape = (self._piece_blocks, len(placements), page_bytes // word.itemsize)
        self._staging = torch.empty(shape, dtype=word, device=device)
        if device.type == "cuda":
            # Recycled memory may still be in use on this stream; copies run on another.
            torch.cuda.current_stream(device).synchronize()

    def gather(self, ids: NDArray[np.int64], out: torch.Tensor) -> None:
        for some, staged, staged_bytes, host_bytes in self._pieces(ids, out):
            for layers, view in self._views:
                if len(self._views) == 1:
                    torch.index_select(view, 0, some, out=staged)
                else:
                    staged[:, layers].copy_(view.index_select(0, some))
            host_bytes.copy_(staged_bytes, non_blocking=True)

    def scatter(self, ids: NDArray[np.int64], flat: torch.Tensor) -> None:
        for some, staged, staged_bytes, host_bytes in self._pieces(ids, flat):
            staged_bytes.copy_(host_bytes, non_blocking=True)
            for layers, view in self._views:
                view.index_copy_(0, some, staged[:, layers])

    def _pieces(
        self, ids: NDArray[np.int64], flat: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Per piece: ids on the device, the buffer by blocks and as bytes, the host's bytes."""
        index = torch.from_numpy(ids).to(self._staging.device)
        for start in range(0, ids.size, self._piece_blocks):
            some = index[start : start + self._piece_blocks]
            staged = self._staging[: some.numel()]
            start_byte = start * self._block_bytes
            host_bytes = flat[start_byte : start_byte + some.numel() * self._block_bytes]
            yield some, staged, staged.view(-1).view(torch.uint8), host_bytes


def _place(name: str, tensor: torch.Tensor, block_count: int) -> _Placement:
    """Where a registered tensor's pages lie. Raises `Mismatch` if a page is not one run."""
    shape, strides = tensor.shape, tensor.stride()
    if not shape or shape[0] == 0 or shape[0] % block_count:
        raise Mismatch(
            f"layer {name}: shape {tuple(shape)} does not divide into {block_count} blocks"
        )
    ratio = shape[0] // block_count
    run = 1
    for stride, size in sorted(zip(strides[1:], shape[1:], strict=True)):
        if size != 1 and stride != run:
            raise Mismatch(
                f"layer {name}: a block is not one run of bytes (shape {tuple(shape)}, strides "
                f"{strides}); choose a block-compact cache layout such as LBNHC"
            )
        run *= size
    if ratio > 1 and strides[0] != run:
        raise Mismatch(f"layer {name}: {ratio} kernel blocks of a block do not lie side by side")
    item = tensor.element_size()
    page_bytes = run * ratio * item
    # A tensor of one block may have any stride.
    block_stride = strides[0] * ratio * item if block_count > 1 else page_bytes
    if page_bytes == 0 or block_stride < page_bytes:
        raise Mismatch(f"layer {name}: pages of {page_bytes} bytes every {block_stride} bytes")
    storage = tensor.untyped_storage()
    return _Placement(name, storage, tensor.storage_offset() * item, block_stride, page_bytes)


def _refuse_unlike(placements: Sequence[_Placement]) -> None:
    first = placements[0]
    for other in placements[1:]:
        if other.page_bytes != first.page_bytes:
            raise Mismatch(
                f"layers {first.name} and {other.name} have pages of {first.page_bytes} and "
                f"{other.page_bytes} bytes: groups of unequal pages are not supported yet"
            )
        if other.storage.device != first.storage.device:
            raise Mismatch(f"layers {first.name} and {other.name} lie on different devices")


def _share_blocks(one: _Placement, two: _Placement) -> bool:
    return one.storage.data_ptr() == two.storage.data_ptr() and one.block_stride == two.block_stride


def _refuse_overlap(placements: Sequence[_Placement], block_count: int) -> None:
    """Two layers over the same bytes would each be delivered over the other."""
    for i, one in enumerate(placements):
        for two in placements[i + 1 :]:
            if one.storage.data_ptr() != two.storage.data_ptr():
                continue
            if one.block_stride != two.block_stride:
                raise Mismatch(f"layers {one.name} and {two.name}: one storage, unequal strides")
            distance = abs(two.offset - one.offset)
            blocks, rest = divmod(distance, one.block_stride)
            gap = rest if blocks < block_count else one.page_bytes
            if blocks + 1 < block_count:
                gap = min(gap, one.block_stride - rest)
            if gap < one.page_bytes:
                raise Mismatch(f"layers {one.name} and {two.name} overlap")


def _views(placements: Sequence[_Placement], block_count: int) -> list[tuple[slice, torch.Tensor]]:
    """Views uint8[block_count, layers, page_bytes] with the layers each of them holds.

    One view if all layers lie in one storage at a constant distance (layer-outermost and
    block-outermost layouts alike), else one per layer.
    """
    first, page = placements[0], placements[0].page_bytes
    count = len(placements)
    layer_stride = placements[1].offset - first.offset if count > 1 else page
    even = layer_stride > 0 and all(
        _share_blocks(p, first) and p.offset == first.offset + i * layer_stride
        for i, p in enumerate(placements)
    )
    if even:
        strides = (first.block_stride, layer_stride, 1)
        return [(slice(0, count), _bytes_view(first, (block_count, count, page), strides))]
    return [
        (slice(i, i + 1), _bytes_view(p, (block_count, 1, page), (p.block_stride, page, 1)))
        for i, p in enumerate(placements)
    ]


def _bytes_view(
    placement: _Placement, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    """uint8 view over a placement's storage, starting at its first page."""
    view = torch.empty(0, dtype=torch.uint8, device=placement.storage.device)
    return view.set_(placement.storage, placement.offset, shape, strides)


def _word(views: Sequence[torch.Tensor]) -> torch.dtype:
    """The widest type that the pages can be moved as: CUDA's indexing works by element."""
    counts = [n for v in views for n in (v.storage_offset(), v.shape[2], *v.stride()[:2])]
    common = math.gcd(*counts)
    words = (torch.int64, torch.int32, torch.int16)
    return next((word for word in words if common % word.itemsize == 0), torch.uint8)
