"""The parameters of a thinking budget, and the ids that cannot work together."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NoReturn

from msgspec import Meta

from sglang_lp.builtins.repetition.loop_breaker import LoopCount, PatternSize
from sglang_lp.builtins.repetition.novelty import (
    NGRAM_SIZE,
    WINDOW_SIZE,
    NgramSize,
    Share,
    WindowSize,
    check_window,
)
from sglang_lp.builtins.thinking.finder import BlockTokens, Finder, finder_for
from sglang_lp.edits import NEVER
from sglang_lp.errors import InvalidParameter
from sglang_lp.params import MAX_INT, NonNegativeInt, OrNoLimit, Parameters, PositiveInt, TokenId
from sglang_lp.text.encoding import check_texts

#: A delimiter of more tokens is a mistake: the longest known one has 7 (Hunyuan-A13B).
MAX_DELIMITER = 16
_DelimiterIds = Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=MAX_DELIMITER)]
_DelimiterText = Annotated[str, Meta(min_length=1, max_length=64)]
#: Some paragraphs; a message is matched token by token while the batch waits.
MAX_MESSAGE = 1024
_MessageIds = Annotated[tuple[TokenId, ...], Meta(max_length=MAX_MESSAGE)]
_MessageText = Annotated[str, Meta(min_length=1, max_length=1024)]
_EndIds = Annotated[tuple[TokenId, ...], Meta(max_length=64)]
#: As in SGLang's own classes, ``None`` and any negative number are no limit.
_Budget = OrNoLimit[Annotated[int, Meta(le=MAX_INT)]]
_TopCount = Annotated[int, Meta(ge=1, le=1000)]

#: The names under which a request can give each delimiter.
START = "thinking_start_token_id", "thinking_start_token_ids", "thinking_start"
END = "thinking_end_token_id", "thinking_end_token_ids", "thinking_end"


class BudgetParams(Parameters, frozen=True):
    """The parameters of a request. Numbers are tokens; ``None`` means the class's own id.

    Attributes:
        thinking_budget: Tokens that a block may have before it is closed. Left out or negative: no
            limit.
        total_thinking_tokens: Tokens that all blocks of the answer may have together. When
            they are spent, a block that opens is closed at once, with the end only. Left out: no
            limit.
        at_limit: What happens to a block whose budget is spent: ``"close"`` closes it,
            ``"stop"`` ends the answer with ``finish_reason`` ``length``. A block that opens after
            its budget is spent, as with a budget of 0, is closed first.
        max_pattern_size: Most tokens of a pattern that is a loop, 1 to 1,024. A block that
            ends with a loop is closed. Left out: loops are not searched for.
        min_pattern_size: Fewest tokens of such a pattern.
        min_count: Number of times in a row from which a pattern is a loop.
        min_new_share: Smallest share of new n-grams: a block that ends with a window in which fewer
            are new is closed, as by ``LoopBreakerLogitProcessor``. Left out: new n-grams are not
            counted.
        ngram_size: Tokens of such an n-gram, 1 to 16.
        window_size: Tokens of the window, up to 512.
        soft_thinking_budget: Tokens after which the block is closed at a good moment; at most
            ``thinking_budget``. Left out: never.
        soft_top_n: A moment is good if the end is among this many likeliest tokens.
        min_thinking_tokens: Fewest tokens of a block, at most ``soft_thinking_budget``.
        wait_token_id: Forced in place of an end that comes before the minimum.
        max_waits: Most wait tokens in a block, forced or written by the model.
        closing: A message to close with, instead of a newline: a text of up to 1,024
            characters, in the tokens that the served tokenizer writes it with.
        closing_token_ids: The message as tokens.
        eos_token_ids: Tokens that end the answer; inside a block they end the block instead.
            Tokens of the end itself do not count.
        min_answer_tokens: Fewest tokens of the answer after a block, without white space. More
            than 0 guarantees an answer: ``eos_token_ids`` then include the end tokens of the served
            model, and ``answer_room`` is at least this number.
        answer_room: Tokens of ``max_new_tokens`` that are left for the answer when the last block
            is closed.
        thinking_start_token_id: Opens a block.
        thinking_end_token_id: Closes a block.
        thinking_start_token_ids: Opens a block, in several tokens.
        thinking_end_token_ids: Closes a block, in several tokens.
        thinking_start: Opens a block, as text for the served tokenizer.
        thinking_end: Closes a block, as text.
        new_line_token_id: Forced before the end.
        tool_start_token_ids: Tokens that open a tool call, and so end a block. Left out:
            those of the served reasoning parser, or of the model's family.
        force_reasoning: Whether the answer begins inside a block, without a start.
    """

    thinking_budget: _Budget = None
    total_thinking_tokens: OrNoLimit[NonNegativeInt] = None
    at_limit: Literal["close", "stop"] = "close"
    max_pattern_size: PatternSize | None = None
    min_pattern_size: PatternSize = 4
    min_count: LoopCount = 4
    min_new_share: Share | None = None
    ngram_size: NgramSize = NGRAM_SIZE
    window_size: WindowSize = WINDOW_SIZE
    soft_thinking_budget: NonNegativeInt | None = None
    soft_top_n: _TopCount = 5
    min_thinking_tokens: NonNegativeInt = 0
    wait_token_id: TokenId | None = None
    max_waits: PositiveInt = 1
    closing: _MessageText | None = None
    closing_token_ids: _MessageIds = ()
    eos_token_ids: _EndIds = ()
    min_answer_tokens: NonNegativeInt = 0
    answer_room: NonNegativeInt = 0
    thinking_start_token_id: TokenId | None = None
    thinking_end_token_id: TokenId | None = None
    thinking_start_token_ids: _DelimiterIds | None = None
    thinking_end_token_ids: _DelimiterIds | None = None
    thinking_start: _DelimiterText | None = None
    thinking_end: _DelimiterText | None = None
    new_line_token_id: TokenId | None = None
    tool_start_token_ids: _EndIds | None = None
    force_reasoning: bool = False

    def __post_init__(self) -> None:
        """Refuse limits that contradict each other, and things given in two ways."""
        soft, budget = self.soft_thinking_budget, self.limit
        if soft is not None and soft > budget:
            raise ValueError(
                f"soft_thinking_budget: expected at most the thinking_budget of "
                f"{budget}, got {soft}"
            )
        most = budget if soft is None else soft
        if self.min_thinking_tokens > most:
            raise ValueError(
                f"min_thinking_tokens: expected at most the smaller budget of {most}, "
                f"got {self.min_thinking_tokens}"
            )
        if self.max_pattern_size is not None and self.min_pattern_size > self.max_pattern_size:
            raise ValueError(
                f"min_pattern_size: expected at most max_pattern_size, which is "
                f"{self.max_pattern_size}, got {self.min_pattern_size}"
            )
        check_window(self.ngram_size, self.window_size)
        if self.wait_token_id is not None and not self.min_thinking_tokens:
            raise ValueError(
                "wait_token_id: expected min_thinking_tokens with it, because it is only put "
                "in place of an end that comes too early"
            )
        if self.room and self.at_limit == "stop":
            name = "min_answer_tokens" if self.min_answer_tokens else "answer_room"
            raise ValueError(f"{name}: expected at_limit close, got stop, which ends the answer")
        if self.closing is not None:
            check_texts("closing", [self.closing])
            if self.closing_token_ids:
                raise ValueError("closing: given together with closing_token_ids; give one")
        if (
            self.thinking_start
            or self.thinking_end
            or self.thinking_start_token_ids
            or self.thinking_end_token_ids
        ):  # skipped otherwise, because attach() has 5 µs (benchmarks/cost)
            self._check_ways()

    @property
    def watched(self) -> int:
        """How many tokens at the end of a block are searched for a loop; 0 for none."""
        repeated = (self.max_pattern_size or 0) * self.min_count
        return repeated if self.min_new_share is None else max(repeated, self.window_size)

    def _check_ways(self) -> None:
        """Refuse a delimiter that is given in two ways, or only one of the two texts."""
        for names in (START, END):
            given = [name for name in names if getattr(self, name) is not None]
            if len(given) > 1:
                raise ValueError(f"{given[1]}: given together with {given[0]}; give one")
        if (self.thinking_start is None) != (self.thinking_end is None):
            name = "thinking_start" if self.thinking_start is None else "thinking_end"
            raise ValueError(f"{name}: required, because the other delimiter is given")

    @property
    def limit(self) -> int:
        """Tokens that a block may have; without a limit, more than any request gets."""
        budget = self.thinking_budget
        return NEVER if budget is None or budget < 0 else budget

    @property
    def total(self) -> int:
        """Tokens that all blocks may have together, as :attr:`limit`."""
        total = self.total_thinking_tokens
        return NEVER if total is None else total

    @property
    def room(self) -> int:
        """Tokens that are left for the answer when the last block is closed."""
        return max(self.answer_room, self.min_answer_tokens)

    @property
    def start(self) -> tuple[int, ...] | None:
        """The tokens that open a block; ``None`` if the tokenizer decides."""
        if self.thinking_start_token_id is not None:
            return (self.thinking_start_token_id,)
        return self.thinking_start_token_ids

    @property
    def end(self) -> tuple[int, ...] | None:
        """The tokens that close a block; ``None`` if the tokenizer decides."""
        if self.thinking_end_token_id is not None:
            return (self.thinking_end_token_id,)
        return self.thinking_end_token_ids

    @property
    def before_end(self) -> tuple[int, ...]:
        """The tokens that are forced before the end."""
        newline = self.new_line_token_id
        return self.closing_token_ids or (() if newline is None else (newline,))


class FittedParams(BudgetParams, frozen=True):
    """The parameters as one server runs them.

    Attributes:
        finder: The delimiters as the served model writes them.
        close_by: Position in the answer at which an open block is closed at the latest.
        blank: The tokens that are no part of an answer: white space and special tokens.
    """

    finder: Finder | None = None
    close_by: int = NEVER
    blank: frozenset[int] = frozenset()


def block_tokens_of(params: Any, tool_starts: tuple[int, ...]) -> BlockTokens:
    """Return the tokens that open, close and interrupt the blocks of a request.

    Args:
        params: The parameters; their start and end are known.
        tool_starts: The tokens that open a tool call.
    """
    return BlockTokens(
        params.start, params.end, params.before_end, params.eos_token_ids, tool_starts
    )


def finder_of(params: Any) -> Finder:
    """Return the finder of parameters; before a served model fits them, it compares tokens only."""
    finder: Finder | None = getattr(params, "finder", None)
    return finder or finder_for(block_tokens_of(params, params.tool_start_token_ids or ()))


def check_ids(processor: str, params: BudgetParams) -> None:
    """Refuse ids that are valid one by one and cannot work together.

    Args:
        processor: The processor's class name, for the message.
        params: The parameters.

    Raises:
        InvalidParameter: One delimiter without the other; or delimiters, a closing or a wait token
            that would open or close the wrong block.
    """
    start, end = params.start, params.end
    if start is None and end is None:
        return
    if start is None or end is None:
        missing = "start" if start is None else "end"
        raise InvalidParameter(
            processor, f"thinking_{missing}_token_id", "required with the other delimiter"
        )
    if start[-1] == end[-1] and (start[-len(end) :] == end or end[-len(start) :] == start):
        raise InvalidParameter(
            processor,
            "thinking_end_token_id" + "s" * (params.thinking_end_token_id is None),
            f"expected other tokens than the start, got {_listed(end)} and {_listed(start)}: "
            "one ends with the other",
        )
    closing = params.before_end + end
    after = start[1:] + closing
    # Most requests need the first comparison only: attach() has 5 µs (benchmarks/cost).
    if (start[0] in after and _holds(after, start)) or (
        params.closing_token_ids and _holds(closing[:-1], end)
    ):
        _refuse_closing(processor, params, start, end)
    wait = params.wait_token_id
    if wait is not None and wait in (*start, *end, *params.eos_token_ids):
        raise InvalidParameter(
            processor,
            "wait_token_id",
            f"expected a token that ends nothing, got {wait}, which is part of a "
            "delimiter or ends the answer",
        )


def _refuse_closing(
    processor: str, params: BudgetParams, start: tuple[int, ...], end: tuple[int, ...]
) -> NoReturn:
    """Refuse a closing that opens another block, or contains the end before it is complete."""
    if _holds(start[1:] + end, start):
        name = "thinking_start_token_ids"
        problem = (
            f"expected a start that the end does not begin again, got {_listed(start)} and "
            f"{_listed(end)}: forcing the end would open the next block"
        )
    elif params.closing_token_ids:
        name = "closing_token_ids"
        problem = "expected a message without thinking delimiters: the end is forced after it"
    else:
        name = "new_line_token_id"
        problem = (
            f"expected a token that begins no block, got {params.new_line_token_id}, which is "
            "part of the start: forcing it would open the next one"
        )
    raise InvalidParameter(processor, name, problem)


def _holds(tokens: tuple[int, ...], part: tuple[int, ...]) -> bool:
    return any(tokens[i : i + len(part)] == part for i in range(len(tokens) - len(part) + 1))


def _listed(token_ids: tuple[int, ...]) -> str:
    return ", ".join(map(str, token_ids))
