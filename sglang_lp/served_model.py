"""What a processor may know of the model that is served, before any request of it runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple, Self

from sglang_lp.errors import InvalidParameter

__all__ = ["ReasoningFormat", "ServedModel", "ends_for"]


class ReasoningFormat(NamedTuple):
    """How reasoning is told from the rest of an answer, as a reasoning parser of SGLang does it.

    Attributes:
        start: Opens a block.
        end: Closes it; what a budget forces.
        tool_starts: Seen in an open block, each ends it without ``end``, and stays in the answer.
        tool_start_at_line_start: Whether a tool start counts at the start of a line alone.
        tool_end: After a tool call in a block the block goes on from here; empty if it does not.
        other_ends: More texts that end a block.
        can_begin_inside: Whether reasoning may be open from the first token, without ``start``.
        others: The same with the delimiters of other levels of effort.
        strict: Whether SGLang masks what is no end once a budget of its own is spent.
    """

    start: str
    end: str
    tool_starts: tuple[str, ...] = ()
    tool_start_at_line_start: bool = False
    tool_end: str = ""
    other_ends: tuple[str, ...] = ()
    can_begin_inside: bool = False
    others: tuple[ReasoningFormat, ...] = ()
    strict: bool = False


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
