"""`s3kv demo`: a real engine, a real model, a real object store, across a restart.

Three engine processes, one after the other, on one bucket: the first computes a long prompt and
archives it, the second loads it, the third meets a damaged shard. The archive's answers are
compared with a *local* prefix-cache hit of the same length: a cold prefill multiplies matrices of
another shape and may differ in the last bits of bf16. For the same reason the damaged shard is the
first one: then the whole prompt is computed as in the cold run.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from s3kv.cli.demo_bucket import REGION, DemoBucket
from s3kv.cli.demo_report import Measured, problems, show
from s3kv.cli.demo_text import chat_prompt, day_book
from s3kv.cli.local_store import HOST, LocalStore, free_ports
from s3kv.cli.model import ModelUnavailable, smollm2
from s3kv.errors import ConfigError, S3KVError
from s3kv.runtime.offline import Completion, EngineProcess, Phase, Prompt, Spec

BUCKET = "s3kv-demo"
PREFIX = "archive"
DAYS = 62  # about 7,100 tokens
ANSWER_TOKENS = 32
ENGINE_START_TIMEOUT_S = 240.0
PHASE_TIMEOUT_S = 240.0
SETTLE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class _Stage:
    """What every engine process of one demo shares."""

    model: Path
    bucket: DemoBucket
    credentials: Mapping[str, str]
    logs: Path
    console: Console

    def spec(self) -> Spec:
        return Spec(
            model=str(self.model),
            engine_args={
                "dtype": "bfloat16",
                "enforce_eager": True,
                "max_model_len": 8192,
                "seed": 0,
            },
            kv_transfer_config={
                "kv_connector": "S3KVConnector",
                "kv_connector_module_path": "s3kv.connector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "uri": f"s3://{self.bucket.name}/{PREFIX}",
                    "endpoint_url": self.bucket.endpoint_url,
                    "region": REGION,
                    "addressing_style": "path",
                    "ttl_s": "7d",
                },
            },
        )

    @contextmanager
    def engine(self, name: str) -> Iterator[EngineProcess]:
        """A warmed-up engine process; ends with a clean shutdown."""
        environment = {
            **self.credentials,
            "HF_HUB_OFFLINE": "1",
            "VLLM_CPU_KVCACHE_SPACE": "2",
        }
        log = self.logs / f"engine-{name}.log"
        with EngineProcess(self.spec(), log, environment) as engine:
            with self.console.status(f"starting the engine ({name}) ..."):
                ready = engine.start(ENGINE_START_TIMEOUT_S)
                # The first prefill of a process pays for lazy initialisation, several times its
                # own cost; it would flatter the archive. Neither loaded nor archived.
                warm_up = Prompt(
                    text=day_book(12, seed=99),
                    sampling={"max_tokens": 4},
                    s3kv={"load": False, "save": False},
                )
                engine.run(Phase(name="warm-up", prompts=[warm_up]), PHASE_TIMEOUT_S)
            self.console.print(
                f"engine [bold]{name}[/]: up in {ready.start_s:.0f} s, pid {engine.pid}"
            )
            yield engine

    def ask(self, engine: EngineProcess, name: str) -> Completion:
        """The long prompt, once."""
        prompt = Prompt(text=chat_prompt(DAYS), sampling={"max_tokens": ANSWER_TOKENS})
        with self.console.status(f"running the prompt ({name}) ..."):
            result = engine.run(Phase(name=name, prompts=[prompt]), PHASE_TIMEOUT_S)
        answer = result.completions[0]
        reason = answer.report().get("miss_reason")
        self.console.print(
            f"  {name}: {answer.prompt_token_count:,} prompt tokens, first token after "
            f"{answer.ttft_s:.2f} s, {answer.hit_token_count:,} tokens from the archive"
            + (f" ({reason})" if reason else "")
        )
        return answer


def _play(stage: _Stage) -> Measured:
    """The three acts; raises `S3KVError` when an engine does not come up or fails."""
    with stage.engine("cold") as engine:
        cold = stage.ask(engine, "cold")
        with stage.console.status("waiting until the archive is durable ..."):
            stage.bucket.wait_until_settled(SETTLE_TIMEOUT_S)
    shards = stage.bucket.shards()
    stage.console.print(f"  archived: {len(shards)} shards, {sum(shards.values()):,} bytes")
    with stage.engine("warm") as engine:
        warm = stage.ask(engine, "warm")
        local = stage.ask(engine, "local")
    if shards:
        damaged_key = stage.bucket.first_shard()
        stage.bucket.flip_byte(damaged_key)
        stage.console.print(f"  flipped one byte of {damaged_key}")
    with stage.engine("damaged") as engine:
        damaged = stage.ask(engine, "damaged")
    return Measured(
        prompt_tokens=cold.prompt_token_count,
        cold_ttft_s=cold.ttft_s,
        warm_ttft_s=warm.ttft_s,
        local_ttft_s=local.ttft_s,
        damaged_ttft_s=damaged.ttft_s,
        warm_external_tokens=warm.hit_token_count,
        damaged_external_tokens=damaged.hit_token_count,
        warm_equals_local_hit=warm.token_ids == local.token_ids,
        damaged_equals_cold=damaged.token_ids == cold.token_ids,
        bytes_archived=sum(shards.values()),
        shards=len(shards),
        requests=stage.bucket.requests_by_kind() or {},
        answer=cold.text.strip().partition("\n")[0],
    )


class _CountingStore(LocalStore):
    """A local store that also tells how many requests it served."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._metrics_port = free_ports(1)[0]

    @property
    def metrics_url(self) -> str:
        return f"http://{HOST}:{self._metrics_port}/metrics"

    def _command(self, config: Path) -> list[str]:
        return [*super()._command(config), f"-metricsPort={self._metrics_port}"]


@contextmanager
def _store() -> Iterator[_CountingStore]:
    """A started store in an empty folder that goes away with it."""
    # Not below the work folder: the server's socket must have a short path.
    with tempfile.TemporaryDirectory(prefix="s3kv-demo-") as folder:
        store = _CountingStore(Path(folder))
        store.start()
        try:
            yield store
        finally:
            store.stop()


def run_demo(work_dir: Path, console: Console) -> int:
    """Play the demo and write `work_dir/demo.json`; the exit code: 0 when every promise held."""
    work_dir.mkdir(parents=True, exist_ok=True)
    result = work_dir / "demo.json"
    result.unlink(missing_ok=True)  # an old success must not outlive a new failure
    try:
        with console.status("preparing the model ..."):
            model = smollm2(work_dir, console.print)
        with _store() as store:
            console.print(f"object store: SeaweedFS at {store.endpoint_url}")
            bucket = DemoBucket(store.endpoint_url, BUCKET, store.metrics_url)
            bucket.create()
            stage = _Stage(model, bucket, store.environment(), work_dir / "logs", console)
            measured = _play(stage)
    except (S3KVError, ConfigError, ModelUnavailable) as error:
        console.print(f"[red]demo failed:[/] {error}")
        return 1
    result.write_text(json.dumps(measured.document(), indent=2) + "\n", "utf-8")
    show(measured, console)
    found = problems(measured)
    for problem in found:
        console.print(f"[red]not as promised:[/] {problem}")
    console.print(f"details: {result}, engine logs: {work_dir / 'logs'}")
    return 1 if found else 0


def main() -> int:
    """`python -m s3kv.cli.demo`: the demo in `./build`."""
    return run_demo(Path("build"), Console())


if __name__ == "__main__":
    sys.exit(main())
