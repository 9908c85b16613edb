"""Tiny random-weight models for the engine suite, made once per machine under build/models.

The weights are scaled up so that every layer's output matters: a wrong KV block changes tokens,
which a freshly initialised model would mostly hide.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

VOCABULARY = 1000
LAYERS = 4
SEED = 7
SCALE = 0.12


def tiny_llama(root: Path, seed: int = SEED) -> Path:
    """Folder of a Llama of hidden size 256, 4 layers, 8 query and 4 KV heads of 32, float32.

    Same seed, same bytes. There is no tokenizer: start the engine with `skip_tokenizer_init` and
    give token ids below `VOCABULARY`.
    """
    folder = root / f"tiny-llama-{LAYERS}x256-seed{seed}"
    if folder.exists():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        made = Path(scratch) / "model"
        _write_llama(made, seed)
        # Whole or not at all, also when two runs make it at once: the first rename wins.
        try:
            os.rename(made, folder)
        except OSError:
            if not folder.exists():
                raise
    return folder


def _write_llama(folder: Path, seed: int) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=LAYERS,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config).to(torch.float32)
    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() >= 2:
                weights.normal_(0.0, SCALE, generator=random)
            else:
                weights.fill_(1.0)
    model.save_pretrained(folder)
