"""LoRA adapters for the Llama of :mod:`support.models.draft_models`, as PEFT writes them.

Each comes with a checkpoint that has it merged into its weights, for the oracle.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import NamedTuple

__all__ = ["RANK", "Adapter", "make"]

RANK = 4
_ALPHA = 8
#: The standard deviations of both factors: enough to change nearly every token.
_NARROW, _WIDE = 0.1, 0.3
_MATRIX = 2


class Adapter(NamedTuple):
    """The directories of an adapter and of the model with the adapter merged into it."""

    path: Path
    merged: Path


def make(target: Path, directory: Path, seed: int) -> Adapter:
    """Write a random adapter of every projection.

    Args:
        target: Directory of the model's checkpoint.
        directory: The folder to write to.
        seed: Seed of the adapter's random weights.
    """
    import torch
    from safetensors.torch import load_file, save_file

    made = Adapter(directory / "adapter", directory / "merged")
    made.path.mkdir(parents=True)
    shutil.copytree(target, made.merged)
    generator = torch.Generator().manual_seed(seed)
    merged = load_file(target / "model.safetensors")
    factors: dict[str, torch.Tensor] = {}
    for name, weight in merged.items():
        if weight.dim() != _MATRIX or "_proj" not in name:
            continue
        rows, columns = weight.shape
        a = _WIDE * torch.randn(RANK, columns, generator=generator)
        b = _NARROW * torch.randn(rows, RANK, generator=generator)
        prefix = "base_model.model." + name.removesuffix(".weight")
        factors |= {f"{prefix}.lora_A.weight": a, f"{prefix}.lora_B.weight": b}
        merged[name] = weight + _ALPHA / RANK * (b @ a)
    save_file(factors, made.path / "adapter_model.safetensors", metadata={"format": "pt"})
    save_file(merged, made.merged / "model.safetensors", metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": _ALPHA,
        "target_modules": sorted({name.split(".")[-3] for name in factors}),
        "bias": "none",
    }
    (made.path / "adapter_config.json").write_text(json.dumps(config))
    return made
