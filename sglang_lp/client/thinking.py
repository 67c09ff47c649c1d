"""The thinking blocks of an answer, counted from its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp import builtins
from sglang_lp.client.attachment import Attachment
from sglang_lp.errors import RequestError, shown
from sglang_lp.links import parse_links
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.builtins.thinking.blocks import AnswerBlock

__all__ = ["ThinkingBlock", "thinking_blocks"]


class ThinkingBlock(NamedTuple):
    """One thinking block that has generated tokens.

    Attributes:
        tokens: Number of tokens between the delimiters, generated or in the prompt.
        ended: Whether the end was generated, or a tool call that ends the block.
        forced: Number of generated tokens, including the end, after the ``thinking_budget`` was
            spent: all of them were forced. Zero if the model, a soft budget or an early end of
            sequence closed the block.
        message: Whether ``closing_token_ids`` come right before the end.
        waits: Number of generated ``wait_token_id``, forced or not.
    """

    tokens: int
    ended: bool
    forced: int
    message: bool
    waits: int


def thinking_blocks(
    attachment: Attachment, prompt_ids: Sequence[int], output_ids: Sequence[int]
) -> list[ThinkingBlock]:
    """Report on each thinking block of an answer.

    Args:
        attachment: Of a thinking budget, or of several processors with one thinking budget. Its
            token ids are the class's own, or given, or filled in by ``Attachment.resolve``.
        prompt_ids: Token ids of the prompt; the ids from the last start delimiter on are enough.
        output_ids: Token ids of the answer: ``output_ids`` of ``/generate``.

    Raises:
        RequestError: ``attachment`` has no thinking budget, or only the server knows its ids.
    """
    # Not above: only a client that asks loads the thinking budget.
    from sglang_lp.builtins.thinking.blocks import find_blocks
    from sglang_lp.builtins.thinking.params import finder_of

    params = _find_budget(attachment)
    if params.start is None:
        raise RequestError(
            "thinking_blocks: only the server knows these delimiters; give their token ids to "
            "attach(), or the model to resolve()"
        )
    if params.closing is not None:
        raise RequestError(
            "thinking_blocks: only the server knows the tokens of this closing; give "
            "closing_token_ids to attach(), or the model to resolve()"
        )
    found = find_blocks(
        finder_of(params),
        prompt_ids,
        output_ids,
        inside=params.force_reasoning,
        counted=params.wait_token_id,
    )
    return [_report_block(params, block, output_ids) for block in found]


def _find_budget(attachment: Any) -> Any:
    """Return the parameters of the one thinking budget that is attached."""
    got = shown(attachment)
    if isinstance(attachment, Attachment):
        processor = attachment.processor
        got = processor.__name__
        if issubclass(processor, LogitProcessor):
            links = parse_links(processor, attachment.custom_params)
            for link in links:  # a chain has one at most
                if issubclass(link.processor, builtins.ThinkingBudgetLogitProcessor):
                    return link.params
            got = "a chain without" if links[0].place else got
    raise RequestError(
        f"thinking_blocks: expected a thinking budget, or a chain with one, got {got}; give "
        "the attachment of the budget itself"
    )


def _report_block(params: Any, block: AnswerBlock, output_ids: Sequence[int]) -> ThinkingBlock:
    from sglang_lp.builtins.thinking.finder import EndCause

    stop = len(output_ids) if block.end is None else block.end + 1
    message, end = params.closing_token_ids, block.start + block.tokens
    by_end = block.ended is EndCause.END
    return ThinkingBlock(
        tokens=block.tokens,
        ended=block.ended is not None,
        forced=max(0, stop - max(block.spent_at(params.limit), 0)),
        message=bool(message) and by_end and (*output_ids[:end],)[-len(message) :] == message,
        waits=block.waits,
    )
