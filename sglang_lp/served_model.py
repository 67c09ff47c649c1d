"""What a processor may know of the model that is served, before any request of it runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sglang_lp.errors import InvalidParameter

if TYPE_CHECKING:
    from sglang_lp.builtins.thinking.known import ReasoningFormat

__all__ = ["ServedModel", "ends_for"]


class ServedModel(NamedTuple):
    """The model that a server serves.

    Attributes:
        tokenizer: Its tokenizer, or ``None`` (``--skip-tokenizer-init``, a unit test).
        vocab_size: Number of logits in a row of it, if known.
        eos_token_ids: All tokens that end an answer of it, in order; empty if none are known.
        reasoning: How the served reasoning parser tells reasoning; ``None`` without a parser.
    """

    tokenizer: Any = None
    vocab_size: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    reasoning: ReasoningFormat | None = None

    @classmethod
    def of(
        cls, tokenizer: Any, vocab_size: int | None = None, configured: Iterable[int] | None = ()
    ) -> Self:
        """Return what is served, with the end tokens that SGLang knows.

        Args:
            tokenizer: As SGLang loaded it; SGLang adds ``additional_stop_token_ids``.
            vocab_size: Number of logits in a row, if known.
            configured: The end tokens of the model's own configuration, if known: SGLang's
                ``model_config.hf_eos_token_id``.
        """
        found = {*(configured or ())}
        for name in ("eos_token_id", "additional_stop_token_ids"):
            known = getattr(tokenizer, name, None)
            found.update([known] if isinstance(known, int) else known or ())
        limit = vocab_size or 1 << 31  # tokenizers may have more tokens than the model has logits
        return cls(tokenizer, vocab_size, tuple(sorted(i for i in found if 0 <= i < limit)))

    def by_effort(self) -> list[Self]:
        """Return this, and the same as it thinks at other levels of effort."""
        others = () if self.reasoning is None else self.reasoning.others
        return [self, *(self._replace(reasoning=one) for one in others)]


def ends_for(
    processor: str, name: str, given: tuple[int, ...] | None, served: ServedModel
) -> tuple[int, ...]:
    """Return a request's end tokens; those of the served model where it left them out.

    Args:
        processor: The class whose parameter they are, for the message.
        name: Of the parameter.
        given: What the request gave, or ``None``.
        served: The model.

    Raises:
        InvalidParameter: They are left out, and nobody knows the model's.
    """
    if given is not None:
        return given
    if not served.eos_token_ids:
        raise InvalidParameter(
            processor,
            name,
            "required: neither the configuration of the served model nor its tokenizer says which "
            "tokens end an answer",
        )
    return served.eos_token_ids
