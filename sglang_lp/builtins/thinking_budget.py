"""A limit on how long a model thinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from sglang_lp.errors import InvalidParameter
from sglang_lp.params import NonNegativeInt, Parameters, TokenId, check_vocabulary, parse
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request


class _Block:
    """Where the request is with its thinking, as far as its tokens can be seen."""

    __slots__ = ("forced", "forced_at", "length", "opened")

    def __init__(self) -> None:
        #: Number of tokens seen, prompt included.
        self.length = 0
        #: Index of the first token inside the open block, or -1 if none is open.
        self.opened = -1
        #: The last token forced and its position. Known without being seen.
        self.forced = -1
        self.forced_at = -1


class ThinkingBudgetLogitProcessor(LogitProcessor):
    """Close the thinking block after a number of tokens.

    Once ``thinking_budget`` tokens follow the latest open start token, a newline is forced
    (unless the last generated token is one) and then the end token. The next block, if there is
    one, gets the same budget.

    ``custom_params``: ``thinking_budget``, the number of tokens; ``thinking_start_token_id``,
    ``thinking_end_token_id`` and ``new_line_token_id``, which a subclass for a model family sets
    as class attributes. Without a newline id only the end token is forced.

    Same as SGLang 0.5.23's class of this name given the same history, except that a budget or
    ids that cannot work are refused. On a server without the plugin, whose history lacks the
    newest token, a block cannot be closed by the model itself at the last token of its budget:
    that is how the processor knows, without seeing it, that the block is still open.
    """

    __module__ = "sglang_lp.builtins"
    tolerates_lag = True

    THINKING_START_TOKEN_ID: ClassVar[int | None] = None
    THINKING_END_TOKEN_ID: ClassVar[int | None] = None
    NEW_LINE_TOKEN_ID: ClassVar[int | None] = None

    class Params(Parameters, frozen=True):
        """What a request may set. ``None`` stands for the class's own id."""

        thinking_budget: NonNegativeInt
        thinking_start_token_id: TokenId | None = None
        thinking_end_token_id: TokenId | None = None
        new_line_token_id: TokenId | None = None

    @classmethod
    def parse_params(cls, custom_params: Any, vocab_size: int | None = None) -> Parameters:
        """Check the parameters and fill in the class's ids."""
        given = parse(cls.Params, cls.__name__, custom_params)
        defaults = {
            "thinking_start_token_id": cls.THINKING_START_TOKEN_ID,
            "thinking_end_token_id": cls.THINKING_END_TOKEN_ID,
            "new_line_token_id": cls.NEW_LINE_TOKEN_ID,
        }
        missing = {key: id_ for key, id_ in defaults.items() if getattr(given, key) is None}
        params = msgspec.structs.replace(given, **missing)
        for key in ("thinking_start_token_id", "thinking_end_token_id"):
            if getattr(params, key) is None:
                raise InvalidParameter(
                    cls.__name__, key, "required, because this class knows no model's ids"
                )
        if params.thinking_start_token_id == params.thinking_end_token_id:
            raise InvalidParameter(
                cls.__name__,
                "thinking_end_token_id",
                f"expected another token than the start, got {params.thinking_end_token_id} twice",
            )
        if params.thinking_start_token_id == params.new_line_token_id:
            raise InvalidParameter(
                cls.__name__,
                "new_line_token_id",
                f"expected another token than the start, got {params.new_line_token_id} twice: "
                "forcing it would open the next block",
            )
        if vocab_size is not None:
            check_vocabulary(params, cls.__name__, vocab_size)
        return params

    def start(self, request: Request) -> _Block:
        """Find out whether the prompt leaves a block open."""
        block = _Block()
        self._read(request, block, request.prompt_ids)
        return block

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Note where blocks open and close."""
        self._read(request, request.state, token_ids)

    def edit(self, request: Request, edits: Edits) -> None:
        """Close the block if its budget is spent, else sleep until that could be."""
        params, block, position = request.params, request.state, request.position
        end = params.thinking_end_token_id
        newest = self._newest(request, block)
        if block.opened < 0 or newest == end:
            self._await_opening(request, edits)
            return
        due = block.opened + params.thinking_budget - len(request.prompt_ids)
        if position < due:
            if position == due - 1 and request.may_lag:
                edits.ban((end, params.thinking_start_token_id))
            edits.wake_at(due - 1 if request.may_lag and position < due - 1 else due)
            return
        newline = params.new_line_token_id
        block.forced = end if newline is None or newest == newline else newline
        block.forced_at = position
        edits.force(block.forced)

    def _await_opening(self, request: Request, edits: Edits) -> None:
        """Sleep until a block could open and spend its budget."""
        budget = request.params.thinking_budget
        if request.may_lag and budget <= 1:
            # A block would be over budget before its start can be seen. None may open with no
            # budget; with one token, none may end unseen.
            edits.ban(
                (
                    request.params.thinking_end_token_id
                    if budget
                    else request.params.thinking_start_token_id,
                )
            )
            return
        edits.wake_at(request.position + budget + (-1 if request.may_lag else 1))

    def _newest(self, request: Request, block: _Block) -> int | None:
        """Return the newest generated token, if it can be known."""
        if request.exact:
            return request.output_ids[-1] if request.position else None
        return block.forced if block.forced_at == request.position - 1 else None

    def _read(self, request: Request, block: _Block, token_ids: Sequence[int]) -> None:
        start = request.params.thinking_start_token_id
        end = request.params.thinking_end_token_id
        for offset in range(len(token_ids) - 1, -1, -1):
            token_id = token_ids[offset]
            if token_id == start:
                block.opened = block.length + offset + 1
                break
            if token_id == end:
                block.opened = -1
                break
        block.length += len(token_ids)


# Token ids: SGLang 0.5.23, sampling/custom_logit_processor.py.


class Qwen3ThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """A thinking budget for Qwen3."""

    __module__ = "sglang_lp.builtins"
    THINKING_START_TOKEN_ID = 151667
    THINKING_END_TOKEN_ID = 151668
    NEW_LINE_TOKEN_ID = 198


class DeepSeekR1ThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """A thinking budget for DeepSeek-R1."""

    __module__ = "sglang_lp.builtins"
    THINKING_START_TOKEN_ID = 128798
    THINKING_END_TOKEN_ID = 128799
    NEW_LINE_TOKEN_ID = 201


class Glm4MoeThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """A thinking budget for GLM-4.5, GLM-4.6, GLM-4.5V and GLM-4.6V."""

    __module__ = "sglang_lp.builtins"
    THINKING_START_TOKEN_ID = 151350
    THINKING_END_TOKEN_ID = 151351
    NEW_LINE_TOKEN_ID = 198


class InklingThinkingBudgetLogitProcessor(ThinkingBudgetLogitProcessor):
    """A thinking budget for Inkling."""

    __module__ = "sglang_lp.builtins"
    THINKING_START_TOKEN_ID = 200008
    THINKING_END_TOKEN_ID = 200010
    NEW_LINE_TOKEN_ID = 198
