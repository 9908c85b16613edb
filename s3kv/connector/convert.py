"""Turn a GGUF file into a plain folder of bf16 weights that vLLM serves.

    python -m s3kv.connector.convert SOURCE_FOLDER GGUF_NAME OUT_FOLDER

A process of its own, so that the command line needs neither torch nor transformers.
"""

from __future__ import annotations

import sys
from pathlib import Path


def convert(source: Path, gguf_name: str, out: Path) -> None:
    """Write config, weights (bf16, dequantised) and tokenizer of `source/gguf_name` into `out`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=gguf_name,
        quantization_config=GgufConfig(dequantize=True),
        dtype=torch.bfloat16,
    )
    # The weights are plain now; a remaining quantisation note would make vLLM look for GGUF blocks.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(source, gguf_file=gguf_name).save_pretrained(out)


def main() -> int:
    """Command line as in the module's docstring."""
    if len(sys.argv) != 4:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    convert(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
