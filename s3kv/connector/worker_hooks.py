"""The hooks that vLLM calls in worker processes, guarded and handed to the worker side."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
)

from s3kv.connector.guard import Guard, nothing
from s3kv.connector.messages import EMPTY_PLAN, Plan

if TYPE_CHECKING:
    import torch
    from vllm.distributed.kv_events import KVConnectorKVEvents
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata

    from s3kv.connector.worker import WorkerSide


class WorkerHooks:
    """Mixin of `S3KVConnector`. Every hook does nothing in a scheduler's instance."""

    _guard: Guard
    _worker: WorkerSide | None
    _step_bad_blocks: set[int]
    _connector_metadata: KVConnectorMetadata | None

    # ---------------------------------------------------------- worker: start-up
    def get_mem_pool_context(self) -> AbstractContextManager[Any] | None:
        """The engine's own memory pool is fine."""
        return None

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        """Raises `ConfigError` if `staging_bytes` cannot hold one shard."""
        if self._worker is not None:
            self._worker.register(kv_caches)

    def unregister_kv_caches(self) -> None:
        """Before the caches go away (vLLM 0.33 sleep mode): no copy may be under way."""
        if self._worker is not None:
            self._guard.run("unregister_kv_caches", nothing, self._worker.suspend)

    def restore_kv_caches(self) -> None:
        """After wake-up (vLLM 0.33): the caches are back at their addresses."""
        if self._worker is not None:
            self._guard.run("restore_kv_caches", nothing, self._worker.resume)

    def set_host_xfer_buffer_ops(self, copy_operation: Any) -> None:
        """Host buffers are our own."""
        return

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """This worker's layout; repeated in the first report where this is not forwarded."""
        if self._worker is None:
            return None
        return self._guard.run("get_handshake_metadata", nothing, self._worker.handshake)

    # ------------------------------------------------------------- worker: steps
    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Sources of saves are pinned: nothing can overwrite them."""
        return

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Enqueue this step's loads."""
        plan, worker = self._connector_metadata, self._worker
        if not isinstance(plan, Plan) or worker is None or plan is EMPTY_PLAN:
            return
        guard = self._guard.run
        guard("start_load_kv", nothing, worker.open, plan)
        for one in plan.abandoned:
            worker.fail(one.request_id, one.block_ids)
        for job in plan.loads:
            guard(
                "start_load_kv",
                lambda j=job: worker.fail(j.request_id, j.block_ids),  # type: ignore[misc]
                worker.start_load,
                job,
            )

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are asynchronous and whole: no layer waits."""
        return

    def save_kv_layer(
        self,
        layer_name: str,
        kv_layer: torch.Tensor,
        attn_metadata: AttentionMetadata,
        **kwargs: Any,
    ) -> None:
        """Saves are whole blocks after the step, not layers."""
        return

    def wait_for_save(self) -> None:
        """Enqueue this step's copies; never waits."""
        plan, worker = self._connector_metadata, self._worker
        if not isinstance(plan, Plan) or worker is None or not plan.saves:
            return
        fence = self._guard.run("wait_for_save", nothing, worker.fence)
        for job in plan.saves:
            self._guard.run(
                "wait_for_save",
                lambda j=job: worker.outbox.dropped([j.job_id], "error"),  # type: ignore[misc]
                worker.stage,
                job,
                fence,
            )

    def finish_forward(self) -> None:
        """Nothing depends on the end of the forward pass but the fence of `wait_for_save`."""
        return

    def reset_capture_state(self) -> None:
        """Nothing is captured."""
        return

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Loads that ended; their bad blocks are set aside for the next call in the same step."""
        if self._worker is None:
            return KVConnectorTransferResults()
        ended, bad_blocks = self._guard.run(
            "get_transfer_results", _no_results, self._worker.outbox.take_ended
        )
        self._step_bad_blocks |= bad_blocks
        return KVConnectorTransferResults(finished_recving=ended)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that the loads of this step's `get_transfer_results` did not fill."""
        bad_blocks, self._step_bad_blocks = self._step_bad_blocks, set()
        return bad_blocks

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """What the scheduler side should know."""
        if self._worker is None:
            return None
        return self._guard.run(
            "build_connector_worker_meta", nothing, self._worker.outbox.take_report
        )

    def get_kv_connector_kv_cache_events(self) -> KVConnectorKVEvents | None:
        """No events yet."""
        return None


def _no_results() -> tuple[set[str], set[int]]:
    return set(), set()
