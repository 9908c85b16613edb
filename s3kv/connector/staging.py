"""A worker's staging: its cache seen as bytes, the slot pool, the copy thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from s3kv.config import Settings
from s3kv.connector.identity import EngineFacts, page_bytes_of
from s3kv.core.chunking import chunk_blocks_for
from s3kv.core.geometry import GroupGeometry, ShardGeometry
from s3kv.device.copier import Copier, Fence, Outcome
from s3kv.device.paged import PagedGroup
from s3kv.device.slots import Purpose, Slot, SlotPool
from s3kv.errors import ConfigError
from s3kv.runtime.ports import LentSlot

if TYPE_CHECKING:
    import torch
    from vllm.v1.kv_cache_interface import KVCacheConfig


@dataclass(frozen=True, slots=True)
class Staging:
    """What a rank needs to copy blocks. Made once, when the caches are registered."""

    geometry: ShardGeometry
    pool: SlotPool
    copier: Copier

    async def lend_for_load(self, timeout_s: float) -> Slot | None:
        """Wait for a slot; loads go before saves (`s3kv.runtime.ports.Slots`)."""
        return await self.pool.lend(Purpose.LOAD, timeout_s)

    def give_back(self, slot: LentSlot) -> None:
        """Return a slot; any thread."""
        assert isinstance(slot, Slot)
        self.pool.give_back(slot)


@dataclass(frozen=True, slots=True)
class FencedDeliverer:
    """Copies into device blocks after a point in the engine's stream."""

    copier: Copier
    after: Fence | None

    def deliver(
        self,
        block_ids: Sequence[int],
        data: memoryview,
        still_wanted: Callable[[], bool],
        on_done: Callable[[bool], None],
    ) -> None:
        """Queue one copy; see `s3kv.runtime.ports.Deliverer`."""
        self.copier.deliver(
            block_ids,
            data,
            self.after,
            still_wanted,
            lambda outcome: on_done(outcome is Outcome.WRITTEN),
        )


def make_staging(
    kv_cache_config: KVCacheConfig,
    kv_caches: Mapping[str, torch.Tensor],
    facts: EngineFacts,
    settings: Settings,
) -> Staging:
    """View the caches as bytes and allocate slots.

    Raises `Mismatch` if the bytes of a page do not lie together, and `ConfigError` if
    `staging_bytes` cannot hold one shard.
    """
    paged = _paged(kv_cache_config, kv_caches)
    chunk_blocks = chunk_blocks_for(settings.chunk_tokens, facts.block_tokens)
    group = GroupGeometry("full", paged.layer_count, paged.page_bytes)
    geometry = ShardGeometry((group,), chunk_blocks)
    slot_count = settings.staging_bytes // geometry.slot_bytes
    if slot_count < 1:
        raise ConfigError(
            "staging_bytes",
            settings.staging_bytes,
            f"smaller than one shard of {geometry.slot_bytes} bytes",
            "raise staging_bytes or lower chunk_tokens",
        )
    return Staging(geometry, SlotPool(geometry.slot_bytes, slot_count), Copier(paged))


def _paged(kv_cache_config: KVCacheConfig, kv_caches: Mapping[str, torch.Tensor]) -> PagedGroup:
    """The one group's layers, in the engine's order (the mapping may hold more names)."""
    group = kv_cache_config.kv_cache_groups[0]
    tensors = {name: kv_caches[name] for name in group.layer_names}
    page_bytes = page_bytes_of(group.kv_cache_spec)
    return PagedGroup.from_tensors(tensors, page_bytes, kv_cache_config.num_blocks)
