"""Transformers' ``LogitsProcessor`` and ``LogitsProcessorList``: ``(input_ids, scores)``.

The object of a request gets what ``generate`` would give it for a batch of one: all tokens, prompt
and output, as one tensor of shape ``(1, tokens)``, and float32 scores of shape ``(1, vocab)``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp.adapters.rowwise import ConstructedProcessor, Run, checked
from sglang_lp.errors import PolicyError

if TYPE_CHECKING:
    import torch

_UNCONDITIONAL = "the logits of a second, unconditional request for each request"
_CALLED = ("__init__", "__call__")
#: Classes that cannot work in a server, each with the input that a server lacks.
_NEVER = {
    "ClassifierFreeGuidanceLogitsProcessor": _UNCONDITIONAL,
    "DiaClassifierFreeGuidanceLogitsProcessor": _UNCONDITIONAL,
    "PrefixConstrainedLogitsProcessor": "a function, which neither a request nor a policy can hold",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "the model itself",
    "WhisperNoSpeechDetection": "the model itself, and its input",
    "WhisperTimeStampLogitsProcessor": "Whisper's configuration of generate()",
}

#: Number of generated tokens that the first tensor has room for.
_ROOM = 256


class _TransformersRun(Run):
    """One processor at work on one request.

    One tensor that grows holds its tokens, so that a step costs one write.
    """

    _ids: torch.Tensor | None = None
    _filled = 0

    def call(self, made: Any, position: int, row: torch.Tensor) -> torch.Tensor:
        scores = row[None]
        return checked(made(self._seen(position, row), scores), row, tuple(scores.shape))[0]

    def branch_from(self, parent: Run) -> None:
        super().branch_from(parent)
        self._ids = None if self._ids is None else self._ids.clone()

    def _seen(self, position: int, row: torch.Tensor) -> torch.Tensor:
        """Return all tokens before a position, shape ``(1, tokens)``."""
        import torch

        prompt = self.prompt(len(row))
        count = len(prompt) + position
        if self._ids is None or count > len(self._ids):
            tokens = torch.zeros(2 * count + _ROOM, dtype=torch.long)
            tokens[:count] = torch.tensor(prompt + self.output_ids[:position])
            self._ids, self._filled = tokens.to(row.device), count
        while self._filled < count:
            self._ids[self._filled] = self.output_ids[self._filled - len(prompt)]
            self._filled += 1
        return self._ids[None, :count]


class TransformersProcessor(ConstructedProcessor):
    """Runs a processor, or a list of them, of Transformers."""

    interface = "transformers"
    calling = "processor(input_ids, scores), tensors of one row"
    library = ("transformers", frozenset({"LogitsProcessor", "LogitsProcessorList"}))
    run = _TransformersRun

    @classmethod
    def check_class(cls, found: Any, where: str) -> None:
        super().check_class(found, where)
        for base in found.__mro__ if isinstance(found, type) else ():
            own = base.__module__.partition(".")[0] == "transformers"
            # A class derived from it may bring what is missing.
            same = all(getattr(found, name) is getattr(base, name) for name in _CALLED)
            if own and same and base.__name__ in _NEVER:
                raise PolicyError(
                    f"{where}: cannot work in a server: it needs {_NEVER[base.__name__]}"
                )
