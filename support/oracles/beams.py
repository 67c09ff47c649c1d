"""Beam search in plain Python and float64, as SGLang defines it.

The best ``2 * width`` continuations are walked, best first, until ``width`` of them go on; one with
a stop token is complete. With fewer continuations that go on, the search ends, and these are cut.
Continuations that a rule makes impossible do not count. An answer's score is its logprob per token.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from support.oracles.greedy import Rule

#: From some histories with their prompt to their rows of logits.
Model = Callable[[list[list[int]]], "torch.Tensor"]


class Beam(NamedTuple):
    """An answer, or the beginning of one."""

    tokens: list[int]
    logprob: float

    @property
    def score(self) -> float:
        """Logprob per token."""
        return self.logprob / len(self.tokens)


def float64(directory: Path) -> Model:
    """Return the model in a directory."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)

    def logits(histories: list[list[int]]) -> torch.Tensor:
        with torch.no_grad():
            rows: torch.Tensor = model(torch.tensor(histories)).logits
        return rows[:, -1]

    return logits


def search(  # noqa: PLR0913 - what a beam search takes
    model: Model,
    prompt: Sequence[int],
    rule: Rule,
    *,
    width: int,
    length: int,
    stops: Collection[int] = (),
) -> list[Beam]:
    """Return the best answers, best first.

    Args:
        model: The model.
        prompt: Token ids.
        rule: Edits the logprobs of each beam; a row that it forces has one token with 0.0.
        width: Number of beams.
        length: Most tokens of an answer.
        stops: Token ids that end an answer.
    """
    alive, done = [Beam([], 0.0)], list[Beam]()
    for position in range(length):
        found = _extended(model, prompt, rule, alive, 2 * width)
        if position == length - 1:
            done += found[:width]
            break
        alive, is_full = [], len(found) == 2 * width
        for beam in found:
            if len(alive) == width:
                break
            (done if beam.tokens[-1] in stops else alive).append(beam)
        if not alive or (is_full and len(alive) < width):
            done += alive
            break
    return sorted(done, key=lambda beam: -beam.score)[:width]


def _extended(
    model: Model, prompt: Sequence[int], rule: Rule, beams: Sequence[Beam], count: int
) -> list[Beam]:
    """Return the best possible continuations of some beams, best first."""
    rows = model([[*prompt, *beam.tokens] for beam in beams]).log_softmax(-1)
    found = []
    for beam, row in zip(beams, rows, strict=True):
        values, best = rule([*prompt], beam.tokens, row).topk(min(count, len(row)))
        found += [
            Beam([*beam.tokens, token_id], beam.logprob + logprob)
            for token_id, logprob in zip(best.tolist(), values.tolist(), strict=True)
            if logprob > float("-inf")
        ]
    return sorted(found, key=lambda beam: -beam.logprob)[:count]
