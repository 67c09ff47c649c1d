"""A tiny chat model, made on the spot, that overthinks every question and loops over a table.

`python -m demo.model [--out DIR]` makes it in about a minute and downloads nothing. The model
answers `QUESTIONS`, after more than a hundred tokens of thought, also where a `</think>` that is
forced on it cuts the thought short. Asked for `LOOP_PROMPT` it repeats a table for ever.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from demo import corpus
from demo.corpus import LOOP_PROMPT, QUESTIONS

__all__ = [
    "DEFAULT_DIRECTORY",
    "LOOP_PROMPT",
    "QUESTIONS",
    "SpecialTokens",
    "ensure_bench_model",
    "ensure_model",
]

DEFAULT_DIRECTORY = Path(".cache/demo-model")
FINGERPRINT_FILE = "demo-model.sha256"


@dataclass(frozen=True)
class SpecialTokens:
    """The ids of the tokens that steer the model."""

    think: int
    end_think: int
    start_turn: int
    end_turn: int
    cell: int
    end_cell: int
    newline: int

    @classmethod
    def of(cls, model: Path) -> SpecialTokens:
        """Read the ids from the tokenizer in the directory `model`."""
        tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

        def token_id(text: str) -> int:
            (only,) = tokenizer.encode(text, add_special_tokens=False).ids
            return int(only)

        return cls(
            think=token_id(corpus.THINK),
            end_think=token_id(corpus.END_THINK),
            start_turn=token_id(corpus.START_TURN),
            end_turn=token_id(corpus.END_TURN),
            cell=token_id(corpus.CELL),
            end_cell=token_id(corpus.END_CELL),
            newline=token_id("\n"),
        )


def ensure_model(out: Path | None = None) -> Path:
    """Make the chat model, unless this version of it is there already.

    Args:
        out: The directory of the checkpoint; `DEFAULT_DIRECTORY` if left out.

    Returns:
        The directory, which SGLang and Transformers load as they stand.

    Raises:
        TrainingError: The trained model did not pass its examination.

    """
    out = DEFAULT_DIRECTORY if out is None else out
    fingerprint = _fingerprint("chat")
    if not _is_signed(out, fingerprint):
        from demo import training  # takes seconds, and only the making needs it

        training.make_chat_model(out)
        _sign(out, fingerprint)
    return out


def ensure_bench_model(out: Path) -> Path:
    """Make an untrained model with a vocabulary of real size, unless it is there already.

    It has one narrow layer, random weights and no tokenizer: start SGLang with
    `skip_tokenizer_init`.

    Args:
        out: The directory of the checkpoint.

    Returns:
        The directory.

    """
    fingerprint = _fingerprint("bench")
    if not _is_signed(out, fingerprint):
        from demo import training  # takes seconds, and only the making needs it

        training.make_bench_model(out)
        _sign(out, fingerprint)
    return out


def _fingerprint(kind: str) -> str:
    digest = hashlib.sha256(kind.encode())
    for name in ("corpus.py", "model.py", "training.py"):
        digest.update(Path(__file__).with_name(name).read_bytes())
    return digest.hexdigest()


def _is_signed(out: Path, fingerprint: str) -> bool:
    file = out / FINGERPRINT_FILE
    return file.is_file() and file.read_text() == fingerprint


def _sign(out: Path, fingerprint: str) -> None:
    (out / FINGERPRINT_FILE).write_text(fingerprint)


def main() -> int:
    """Make the chat model where the command line says; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo.model", description=__doc__)
    parser.add_argument("--out", type=Path, metavar="DIR", help="directory of the checkpoint")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    try:
        out = ensure_model(arguments.out)
    except RuntimeError as error:
        print(f"No model: {error}", file=sys.stderr)
        return 1
    print(f"{out} is ready ({time.perf_counter() - begin:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
