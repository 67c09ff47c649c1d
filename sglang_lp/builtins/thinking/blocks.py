"""The thinking blocks of a finished answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from sglang_lp.builtins.thinking.progress import Progress

if TYPE_CHECKING:
    from sglang_lp.builtins.thinking.finder import EndCause, Finder


class AnswerBlock(NamedTuple):
    """A thinking block of an answer.

    Attributes:
        start: Position in the output of its first token; negative if it opened in the prompt.
        tokens: Number of its tokens, in the prompt as well, without its delimiters.
        end: Position of the last token of its end; ``None`` if it has not ended.
        ended: The cause of its end; ``None`` if it has not ended.
        waits: How many generated tokens in it are the counted token.
        carried: Tokens that it had before a tool call interrupted it, which is a block of its own
            here.
    """

    start: int
    tokens: int
    end: int | None
    ended: EndCause | None
    waits: int
    carried: int

    def spent_at(self, budget: int) -> int:
        """Return the position in the output from which on a budget is spent."""
        return self.start + max(0, budget - self.carried)


def find_blocks(
    finder: Finder,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    *,
    inside: bool = False,
    counted: int | None = None,
) -> list[AnswerBlock]:
    """Return the blocks that have tokens in the output, in their order.

    Args:
        finder: The delimiters.
        prompt_ids: The prompt.
        output_ids: The output.
        inside: Whether a block is open after the prompt, whatever the prompt says.
        counted: A token to count.
    """
    progress = Progress(finder, counted, prompt_ids, inside=inside)
    begun, found = len(prompt_ids), []
    waits = carried = 0
    for position, token_id in enumerate(output_ids):
        before = progress.last
        progress.read((token_id,))
        last = progress.last
        if last is not None and last is not before:
            start = last.opened - begun
            found.append(AnswerBlock(start, last.tokens, position, last.cause, waits, carried))
        waits, carried = progress.waits, progress.carried
    opened = progress.opened
    if progress.state.is_open and begun + len(output_ids) > max(opened, begun):
        tokens = begun + len(output_ids) - opened
        found.append(AnswerBlock(opened - begun, tokens, None, None, waits, carried))
    return found
