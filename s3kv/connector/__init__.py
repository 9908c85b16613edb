"""The vLLM connector: `S3KVConnector`, one instance per scheduler and one per worker process.

The hooks are answered in `worker_hooks` and `scheduler_hooks`, guarded, by the side they belong to.
Importing this touches no network, no device and no SDK; the sides are imported when an engine makes
an instance.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorRole,
    SupportsHMA,
)

from s3kv.config import parse_settings
from s3kv.connector.guard import Guard, nothing
from s3kv.connector.scheduler_hooks import SchedulerHooks
from s3kv.connector.worker_hooks import WorkerHooks

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorStats
    from vllm.v1.kv_cache_interface import KVCacheConfig

    from s3kv.connector.scheduler import SchedulerSide
    from s3kv.connector.worker import WorkerSide

logger = logging.getLogger(__name__)


class S3KVConnector(SchedulerHooks, WorkerHooks, KVConnectorBase_V1, SupportsHMA):
    """Keeps prompt KV cache in an S3 bucket. See README for the options."""

    def __init__(
        self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig
    ) -> None:
        """Parse the options and build one side.

        Raises `ConfigError` for a bad option: that is the one thing that stops an engine.
        """
        super().__init__(vllm_config, role, kv_cache_config)
        from s3kv.connector.identity import read_facts

        _share_engine_logging()
        self._guard = Guard()
        self._step_bad_blocks: set[int] = set()
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        transfer = self._kv_transfer_config
        settings = parse_settings(transfer.kv_connector_extra_config)
        facts = read_facts(vllm_config, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER:
            from s3kv.connector.scheduler import SchedulerSide

            if not facts.refusal:
                apply_failure_policy(transfer, settings.load_failure_policy)
            if facts.refusal:
                logger.warning("s3kv: the archive stays off: %s", facts.refusal)
            self._scheduler = SchedulerSide(vllm_config, facts, settings)
        else:
            from s3kv.connector.worker import WorkerSide

            self._worker = WorkerSide(vllm_config, kv_cache_config, facts, settings)

    @property
    def requires_kv_delivery(self) -> bool:
        """An archive is best effort: a dropped save is a later miss."""
        return False

    # ------------------------------------------------------------ class level
    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: VllmConfig) -> str | None:
        """No layout is forced; the resolved one is part of the namespace."""
        return None

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: dict[str, Any]) -> bool:
        """No layer hooks are used, so full CUDA graphs are fine."""
        return False

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """No address is registered with a network card (vLLM 0.33)."""
        return True

    @classmethod
    def build_kv_connector_stats(
        cls, data: dict[str, Any] | None = None
    ) -> KVConnectorStats | None:
        """No statistics are emitted through the engine yet."""
        return None

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        """No Prometheus metrics are emitted through the engine yet."""
        return

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """No statistics are emitted through the engine yet."""
        return None

    def shutdown(self) -> None:
        """Bounded: what is staged is uploaded and published, the rest counted and logged."""
        if self._scheduler is not None:
            self._guard.run("shutdown", nothing, self._scheduler.shutdown)
        if self._worker is not None:
            self._guard.run("shutdown", nothing, self._worker.shutdown)


def apply_failure_policy(transfer: Any, policy: str) -> None:
    """vLLM fails a request whose load failed unless told otherwise; warns if that stays."""
    if transfer.kv_load_failure_policy == "recompute":
        return
    if policy == "recompute":
        transfer.kv_load_failure_policy = "recompute"
        logger.info(
            "s3kv: kv_load_failure_policy is set to 'recompute', so that a failed load costs time "
            'only (load_failure_policy "engine" leaves vLLM\'s own)'
        )
    else:
        logger.warning(
            "s3kv: kv_load_failure_policy is %r: a request whose load fails ends with an error",
            transfer.kv_load_failure_policy,
        )


def _share_engine_logging() -> None:
    """Engine processes configure only vLLM's logger; without handlers our lines would be lost."""
    ours, engines = logging.getLogger("s3kv"), logging.getLogger("vllm")
    if not ours.handlers and engines.handlers:
        ours.handlers = list(engines.handlers)
        ours.setLevel(engines.level)
        ours.propagate = False
