"""The hooks that vLLM calls in the scheduler's process, guarded, for the scheduler side."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
)

from s3kv.connector.guard import Guard, nothing
from s3kv.connector.messages import EMPTY_PLAN, LayoutHandshake

if TYPE_CHECKING:
    from vllm.distributed.kv_events import KVCacheEvent
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

    from s3kv.connector.scheduler import SchedulerSide


class SchedulerHooks:
    """Mixin of `S3KVConnector`. Every hook does nothing in a worker's instance."""

    _guard: Guard
    _scheduler: SchedulerSide | None
    _kv_cache_config: KVCacheConfig

    # -------------------------------------------------------- scheduler: start-up
    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        """The pool in which sources of saves are pinned."""
        if self._scheduler is not None:
            self._guard.run(
                "bind_gpu_block_pool", nothing, self._scheduler.bind_pool, gpu_block_pool
            )

    def set_xfer_handshake_metadata(
        self, metadata: dict[int, KVConnectorHandshakeMetadata]
    ) -> None:
        """Layouts by rank, from engines without pipeline parallelism."""
        self._hear(metadata.values())

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Layouts by (pipeline rank, tensor rank); empty when no worker answered."""
        self._hear(metadata.values())

    def _hear(self, handshakes: Iterable[KVConnectorHandshakeMetadata]) -> None:
        if self._scheduler is None:
            return
        ours = [one for one in handshakes if isinstance(one, LayoutHandshake)]
        self._guard.run("set_xfer_handshake_metadata", nothing, self._scheduler.hear_at_start, ours)

    # ----------------------------------------------------------- scheduler: steps
    @property
    def supports_divergent_local_hybrid_hits(self) -> bool:
        """Recurrent states are not restored yet."""
        return False

    def on_new_request(self, request: Request) -> None:
        """Start the lookup while the request queues."""
        if self._scheduler is not None:
            self._guard.run("on_new_request", nothing, self._scheduler.arrived, request)

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Archived tokens beyond the local ones; answered from memory."""
        if self._scheduler is None:
            return 0, False
        return self._guard.run(
            "get_num_new_matched_tokens",
            _miss,
            self._scheduler.matched,
            request,
            num_computed_tokens,
        )

    def get_loaded_kv_cache_group_ids(self, request: Request) -> tuple[int, ...]:
        """Groups that a load writes completely, so that they need no zeroing."""
        groups = range(len(self._kv_cache_config.kv_cache_groups))
        return tuple(getattr(self._kv_cache_config, "prefix_cacheable_group_ids", None) or groups)

    def get_external_cache_hit_sources(
        self, request: Request, num_external_tokens: int
    ) -> dict[Any, int]:
        """Where hits came from, for the engine's statistics."""
        if num_external_tokens == 0:
            return {}
        return self._guard.run(
            "get_external_cache_hit_sources", dict, _hit_sources, num_external_tokens
        )

    def update_state_after_alloc(
        self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int
    ) -> None:
        """Plan the load of a promised hit, or have it reported as failed: never forget it."""
        scheduler = self._scheduler
        if scheduler is None:
            return

        def fallback() -> None:
            if num_external_tokens > 0:
                scheduler.abandon(request, blocks, num_external_tokens)

        self._guard.run(
            "update_state_after_alloc",
            fallback,
            scheduler.allocated,
            request,
            blocks,
            num_external_tokens,
        )

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """This step's plan."""
        if self._scheduler is None:
            return EMPTY_PLAN
        return self._guard.run(
            "build_connector_meta",
            self._scheduler.plan_fallback,
            self._scheduler.plan_step,
            scheduler_output,
        )

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """What the workers reported."""
        scheduler = self._scheduler
        if scheduler is not None:
            guard = self._guard.run
            guard(
                "update_connector_output",
                lambda: scheduler.postpone(connector_output),
                scheduler.unpin,
                connector_output,
            )
            guard(
                "update_connector_output",
                lambda: guard(
                    "update_connector_output", nothing, scheduler.forget_ended, connector_output
                ),
                scheduler.absorb,
                connector_output,
            )

    def request_finished(
        self, request: Request, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """As below; engines call it only for connectors without hybrid support."""
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Blocks are never held: sources of saves are pinned. The dictionary goes to the client."""
        scheduler = self._scheduler
        if scheduler is None:
            return False, None
        report = self._guard.run(
            "request_finished", lambda: scheduler.forget(request), scheduler.finished, request
        )
        return False, report

    def register_finished_partial_tail(
        self,
        request: Request,
        block_ids: tuple[list[int], ...],
        partial_tail_offloads: list[tuple[int, int, int]],
    ) -> bool:
        """Partial tails of recurrent states are not archived."""
        return False

    def take_events(self) -> Iterable[KVCacheEvent]:
        """No events yet."""
        return ()

    def has_pending_block_frees(self) -> bool:
        """Pins drop within milliseconds, but nobody should wait for them instead of preempting."""
        return False

    def has_pending_push_work(self) -> bool:
        """Keep stepping while copies are under way, so that their pins drop."""
        return self._scheduler is not None and self._scheduler.awaits_copies

    def get_finished_count(self) -> int | None:
        """Every rank reports every load."""
        return None

    def reset_cache(self) -> bool | None:
        """Begin a new epoch; the bucket is left alone."""
        if self._scheduler is not None:
            self._guard.run("reset_cache", self._scheduler.turn_off, self._scheduler.reset)
        return True


def _miss() -> tuple[int | None, bool]:
    return 0, False


def _hit_sources(token_count: int) -> dict[Any, int]:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource

    return {CacheHitSource.EXTERNAL_UNSPECIFIED: token_count}
