"""The engine process of `s3kv.runtime.offline`: reads a spec, then phases, from standard input.

Used by the demo, by preseeding and by tests, so that nothing but this package imports vLLM. Ends
with the engine's clean shutdown when its input is closed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping
from typing import IO, TYPE_CHECKING

from pydantic import JsonValue

from s3kv.runtime.offline import Completion, Failed, Phase, PhaseResult, Prompt, Ready, Spec

if TYPE_CHECKING:
    from vllm import LLM, SamplingParams
    from vllm.outputs import RequestOutput

GREEDY: Mapping[str, JsonValue] = {"temperature": 0.0, "logprobs": 0, "ignore_eos": True}


def _sampling(prompt: Prompt) -> SamplingParams:
    from vllm import SamplingParams

    chosen = {**GREEDY, **prompt.sampling}
    if prompt.s3kv is not None:
        chosen["extra_args"] = {"kv_transfer_params": {"s3kv": prompt.s3kv}}
    return SamplingParams(**chosen)


def _engine_prompt(prompt: Prompt) -> dict[str, str | list[int]]:
    if prompt.token_ids is not None:
        return {"prompt_token_ids": prompt.token_ids}
    if prompt.text is None:
        raise ValueError("a prompt needs text or token_ids")
    return {"prompt": prompt.text}


def _completion(output: RequestOutput) -> Completion:
    first = output.outputs[0]
    token_ids = list(first.token_ids)
    logprobs = [
        float(table[token].logprob)
        for token, table in zip(token_ids, first.logprobs or [], strict=False)
    ]
    stats = output.metrics
    return Completion(
        prompt_token_count=len(output.prompt_token_ids or []),
        token_ids=token_ids,
        logprobs=logprobs,
        text=first.text,
        finish_reason=first.finish_reason,
        ttft_s=stats.first_token_latency,
        # The two ends of decoding lie on the engine's clock, the start on the front end's.
        latency_s=stats.first_token_latency + stats.last_token_ts - stats.first_token_ts,
        cached_token_count=output.num_cached_tokens or 0,
        kv_transfer_params=output.kv_transfer_params,
    )


def _run(engine: LLM, phase: Phase) -> PhaseResult:
    if phase.forget_local and not engine.reset_prefix_cache():
        raise RuntimeError("the engine refused to reset its prefix cache: blocks are in use")
    began_s = time.monotonic()
    outputs = engine.generate(
        [_engine_prompt(prompt) for prompt in phase.prompts],
        [_sampling(prompt) for prompt in phase.prompts],
        use_tqdm=False,
    )
    return PhaseResult(
        phase=phase.name,
        completions=[_completion(output) for output in outputs],
        elapsed_s=time.monotonic() - began_s,
    )


def _start(spec: Spec) -> LLM:
    from vllm import LLM
    from vllm.config import KVTransferConfig

    transfer = spec.kv_transfer_config
    return LLM(
        model=spec.model,
        disable_log_stats=False,  # the source of `ttft_s`
        kv_transfer_config=None if transfer is None else KVTransferConfig(**transfer),
        **spec.engine_args,
    )


def _serve(lines: Iterable[str], answers: IO[str]) -> None:
    source = iter(lines)

    def answer(message: Ready | PhaseResult) -> None:
        answers.write(message.model_dump_json() + "\n")
        answers.flush()

    began_s = time.monotonic()
    engine = _start(Spec.model_validate_json(next(source)))
    try:
        import vllm

        start_s = time.monotonic() - began_s
        answer(Ready(ready=True, engine_version=vllm.__version__, start_s=start_s))
        for line in source:
            answer(_run(engine, Phase.model_validate_json(line)))
    finally:
        engine.llm_engine.engine_core.shutdown()


def main() -> int:
    """Serve one engine until standard input closes; 1 if it failed."""
    # Whatever the engine prints belongs into the log; the conversation keeps the real stdout.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        _serve(sys.stdin, answers)
    except Exception as error:  # noqa: BLE001  task root: the parent gets the reason as a message
        import traceback

        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}"
        answers.write(Failed(error=reason).model_dump_json() + "\n")
        answers.flush()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
