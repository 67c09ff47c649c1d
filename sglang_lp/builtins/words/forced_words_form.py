"""The form of forced words that are sequences of tokens, while none of them is begun."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp.edits import NEVER
from sglang_lp.forms.held import Held, HeldForm, HeldQuestion

if TYPE_CHECKING:
    from sglang_lp.request import Request


class ForcedWordsForm(HeldForm):
    """Rows of forced words. A word that is begun is forced in a few steps, row by row."""

    def fits(self, params: Any, vocab_size: int) -> bool:
        return params.words is None and self.most(params) < vocab_size

    def most(self, params: Any) -> int:
        return len(params.eos_token_ids)

    def held(self, request: Request) -> Held | None:
        params, progress = request.params, request.state
        if not progress.missing or not progress.is_settled:
            return None
        until = NEVER
        if params.within_tokens is not None:
            until = params.within_tokens - progress.missing - progress.words.spare
        ends = [*dict.fromkeys(params.eos_token_ids)]
        return Held(until, progress.words.telling, ends, HeldQuestion(ends, 1, progress.next_of(0)))
