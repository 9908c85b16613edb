"""How an engine's two sides agree on one namespace (Identity, docs/ARCHITECTURE.md).

Only workers see the real byte layout, only the scheduler side is asked for hits. Each worker sends
its layout up, the scheduler side reads the weights and forms the namespace, and nothing is looked
up before that. Layouts that differ between ranks, unidentifiable weights and refusals leave the
archive off, with one message.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from s3kv.config import Settings
from s3kv.connector.identity import EngineFacts, namespace_for
from s3kv.connector.messages import LayoutHandshake
from s3kv.core.geometry import ShardGeometry
from s3kv.core.namespace import LayoutDescriptor, Namespace
from s3kv.core.weights import Unidentified
from s3kv.runtime.loop import THREAD_PREFIX
from s3kv.runtime.weight_files import weights_digest

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = logging.getLogger(__name__)

EPOCH_BITS = 48
IDENTIFIED_FORMATS = (
    "auto",
    "hf",
    "safetensors",
    "fastsafetensors",
    "instanttensor",
    "runai_streamer",
)
"""Loaders that read the safetensors files of a folder, or its other weight files without those."""


class Agreement:
    """Collects layouts and the weights digest. Owned by the scheduling thread."""

    def __init__(self, vllm_config: VllmConfig, facts: EngineFacts, settings: Settings) -> None:
        """Start to read the weights on a thread of their own."""
        self._vllm_config = vllm_config
        self._facts = facts
        self._settings = settings
        self._epoch = 0
        self._layouts: dict[int, LayoutDescriptor] = {}
        self._geometry: ShardGeometry | None = None
        self._refusal = facts.refusal
        self._reset_failed = False
        self._weights: Future[str | Unidentified] = Future()
        if self._refusal:
            return
        if settings.weights_digest in ("auto", "full"):
            # A daemon: `full` may take minutes, and nobody's exit should wait for it.
            threading.Thread(
                target=self._find_weights, name=f"{THREAD_PREFIX}weights", daemon=True
            ).start()
        else:
            self._weights.set_result(f"given:{settings.weights_digest}")

    def _find_weights(self) -> None:
        try:
            self._weights.set_result(self._read_weights())
        except Exception as error:
            logger.exception("s3kv: weights could not be digested")
            self._weights.set_result(Unidentified(f"{type(error).__name__}: {error}"))

    def _read_weights(self) -> str | Unidentified:
        if self._facts.load_format == "dummy":
            return Unidentified("dummy weights are different in every engine")
        if self._facts.load_format not in IDENTIFIED_FORMATS:
            return Unidentified(
                f"load format {self._facts.load_format} may read other files than the digest does"
            )
        folder = local_folder(self._facts)
        if folder is None:
            return Unidentified(f"no local files of model {self._facts.model_path} were found")
        mode: Literal["auto", "full"] = "auto"
        if self._settings.weights_digest == "full":
            mode = "full"
        return weights_digest(folder, mode)

    def hear(self, handshakes: Iterable[LayoutHandshake]) -> None:
        """Take workers' layouts, from the handshake or from their first reports."""
        for one in handshakes:
            if self._refusal:
                return
            if one.layout is None or one.geometry is None:
                self._refuse(one.refusal or "a worker takes no part")
            else:
                self._layouts[one.rank] = one.layout
                self._geometry = one.geometry
        if len(set(self._layouts.values())) > 1:
            self._refuse("workers of this engine lay out their KV cache differently")

    @property
    def refusal(self) -> str:
        """Why the archive is off, or the empty string."""
        return self._refusal or ("reset_cache failed" if self._reset_failed else "")

    def _refuse(self, reason: str) -> None:
        self._refusal = reason
        logger.warning("s3kv: the archive stays off: %s", reason)

    def result(self, wait_s: float = 0.0) -> tuple[Namespace, ShardGeometry] | None:
        """The namespace once everything is known; None before that and after a refusal.

        wait_s: how long to wait for the weights; only start-up waits at all.
        """
        if self.refusal or self._geometry is None or len(self._layouts) < self._facts.world_size:
            return None
        if not self._weights.done() and wait_s <= 0:
            return None
        try:
            weights = self._weights.result(timeout=wait_s)
        except TimeoutError:
            return None
        if isinstance(weights, Unidentified):
            self._refuse(
                f'{weights.reason}; set "weights_digest" to a value of your own to share anyway'
            )
            return None
        namespace = namespace_for(
            self._vllm_config,
            self._facts,
            self._settings,
            next(iter(self._layouts.values())),
            weights,
            self._epoch,
        )
        return namespace, self._geometry

    def new_epoch(self) -> None:
        """Weights may have changed in place: share with nobody who loaded them from files."""
        self._reset_failed = False
        self._epoch = secrets.randbits(EPOCH_BITS) | 1

    def suspect(self) -> None:
        """A reset failed: whose bytes these are is not certain until the next one."""
        self._reset_failed = True


def local_folder(facts: EngineFacts) -> Path | None:
    """Where the engine's own copy of a model lies: the folder itself, or the hub cache's snapshot.

    Exactly the revision and cache folder that the engine loads from; None if that is not certain.
    """
    folder = Path(facts.model_path)
    if folder.is_dir():
        return folder
    if os.environ.get("VLLM_USE_MODELSCOPE", "").lower() in ("1", "true"):
        return None
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        return None
    try:
        found = snapshot_download(
            facts.model_path,
            revision=facts.revision,
            cache_dir=facts.download_dir,
            local_files_only=True,
        )
    except (OSError, ValueError):
        return None
    return Path(found)
