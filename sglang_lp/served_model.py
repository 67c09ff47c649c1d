"""The served model, as far as a processor knows it before a request runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sglang_lp.errors import InvalidParameter

if TYPE_CHECKING:
    from sglang_lp.catalogue.opened import Catalogue
    from sglang_lp.watermark.marks import Scheme

__all__ = [
    "UNKNOWN",
    "ReasoningFormat",
    "ServedModel",
    "ToolCallFormat",
    "ends_for",
    "shows_ends",
]


class ReasoningFormat(NamedTuple):
    """The delimiters by which SGLang's reasoning parser separates reasoning from the answer.

    Attributes:
        start: Text that opens a block.
        end: Text that closes a block, and that a budget forces.
        tool_starts: Texts that end an open block without ``end`` and remain in the answer.
        tool_start_at_line_start: Whether a tool start counts only at the start of a line.
        tool_end: Text after which a block continues, after a tool call in it; empty if none.
        other_ends: More texts that end a block.
        answer_starts: Texts that open the answer after a block; empty if it follows at once.
        headed: Whether text that follows none of ``answer_starts`` is no content.
        can_begin_inside: Whether reasoning may be open from the first token, without ``start``.
        others: Formats of other levels of effort.
        strict: Whether SGLang masks all other tokens than the end once its own budget is spent.
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
    answer_starts: tuple[str, ...] = ()
    headed: bool = False


class ToolCallFormat(NamedTuple):
    """The texts around a tool call, in the format of SGLang's tool-call parser.

    Attributes:
        starts: Texts that open a call, or a block of calls.
        end: Text that closes one call; empty if it cannot be told.
        block_end: Text that closes the block of calls; empty if the format has no blocks.
        json_lines: Whether a line that begins with ``{`` after a call's line in JSON opens a call.
        where: The phase of the answer in which calls count: ``"everywhere"`` or ``"answer"``.
    """

    starts: tuple[str, ...]
    end: str = ""
    block_end: str = ""
    json_lines: bool = False
    where: str = "everywhere"


class ServedModel(NamedTuple):
    """The model that a server serves.

    Attributes:
        tokenizer: Its tokenizer, or ``None`` (``--skip-tokenizer-init``, a unit test).
        vocab_size: Number of logits in a row, if known.
        eos_token_ids: All tokens that end an answer, in order; empty if none are known.
        reasoning: Delimiters of the served reasoning parser; ``None`` without a parser.
        catalogues: The newest version of each catalogue of the server, by name.
        tool_calls: Format of the served tool-call parser; ``None`` if it is not known.
        watermark: The scheme of the server's watermark with its key; ``None`` without a key.
        splits: Whether SGLang splits the answer of this request into reasoning and content.
        scores: Whether this process scores the choices of a request.
    """

    tokenizer: Any = None
    vocab_size: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    reasoning: ReasoningFormat | None = None
    catalogues: Mapping[str, Catalogue] = MappingProxyType({})
    tool_calls: ToolCallFormat | None = None
    watermark: Scheme | None = None
    splits: bool = False
    scores: bool = False

    @classmethod
    def of(
        cls, tokenizer: Any, vocab_size: int | None = None, configured: Iterable[int] | None = ()
    ) -> Self:
        """Return the served model with all end tokens that SGLang knows.

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
        """Return this model, and the model with the reasoning format of each other effort."""
        others = () if self.reasoning is None else self.reasoning.others
        return [self, *(self._replace(reasoning=one) for one in others)]


#: A model that is not known yet: parameters are checked against their schema only.
UNKNOWN = ServedModel()


def shows_ends(sampling: Any) -> bool:
    """Tell whether a client may get the name of an end token, which SGLang takes off an answer.

    Args:
        sampling: SGLang's ``SamplingParams`` of the request, or ``None``.
    """
    return any(getattr(sampling, name, False) for name in ("ignore_eos", "no_stop_trim"))


def ends_for(
    processor: str, name: str, given: tuple[int, ...] | None, served: ServedModel
) -> tuple[int, ...]:
    """Return a request's end tokens, by default the end tokens of the served model.

    Args:
        processor: Class name of the processor, for the message.
        name: Name of the parameter.
        given: The end tokens of the request, or ``None``.
        served: The served model.

    Raises:
        InvalidParameter: Neither the request nor the served model has end tokens.
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
