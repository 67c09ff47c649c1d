"""A limit on how long a model thinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NoReturn

import msgspec
from msgspec import Meta

from sglang_lp.builtins.repetition.loop_breaker import LoopCount, PatternSize
from sglang_lp.builtins.thinking.block_report import ends_with_loop, report_blocks
from sglang_lp.builtins.thinking.delimiters import check_family, find_tool_starts, resolve
from sglang_lp.builtins.thinking.finder import (
    Closing,
    Finder,
    Progress,
    find_blocks,
    finder_for,
)
from sglang_lp.builtins.thinking.known import FAMILIES, TOOL_STARTS, Family, ReasoningFormat
from sglang_lp.builtins.thinking.stock import close_unseen
from sglang_lp.edits import LENGTH, NEVER
from sglang_lp.errors import InvalidParameter, RequestError, Unsupported, refusing
from sglang_lp.params import (
    MAX_INT,
    NonNegativeInt,
    Parameters,
    PositiveInt,
    TokenId,
    check_vocabulary,
    parse,
)
from sglang_lp.processor import LogitProcessor
from sglang_lp.text.characters import MOST_LACKING, Characters, characters_of
from sglang_lp.text.encoding import check_texts, forced_text
from sglang_lp.text.vocabulary import vocabulary_of

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel

__all__ = ["ThinkingBudgetLogitProcessor", "finder_of"]

#: A delimiter of more tokens is a mistake: the longest known one has 7 (Hunyuan-A13B).
_MAX_DELIMITER = 16
_DelimiterIds = Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=_MAX_DELIMITER)]
_DelimiterText = Annotated[str, Meta(min_length=1, max_length=64)]
#: Some paragraphs; it is matched token by token while the batch waits.
_MAX_MESSAGE = 1024
_MessageIds = Annotated[tuple[TokenId, ...], Meta(max_length=_MAX_MESSAGE)]
_MessageText = Annotated[str, Meta(min_length=1, max_length=1024)]
_EndIds = Annotated[tuple[TokenId, ...], Meta(max_length=64)]
#: As SGLang's own classes take it: ``None`` and any negative number are no limit.
_Budget = Annotated[int, Meta(le=MAX_INT)] | None
_TopCount = Annotated[int, Meta(ge=1, le=1000)]

#: Tokens that may come before they are read, and a loop in them is looked for: 256 rows that wake
#: at once read them in 6 ms.
_LONGEST_SLEEP = 512

#: The parameters that say how a block opens and closes.
_START = "thinking_start_token_id", "thinking_start_token_ids", "thinking_start"
_END = "thinking_end_token_id", "thinking_end_token_ids", "thinking_end"
_NEW_LINE = ("new_line_token_id",)
_IDS = frozenset(_START + _END + _NEW_LINE)

_NO_LAG = (
    "this server does not show the newest token of a request in time, and only a plain "
    "thinking_budget with delimiters of one token each works without it: run the server with the "
    "sglang-lp plugin, set SGLANG_ENABLE_DELAY_SAMPLE=1, or start it with "
    "--disable-overlap-schedule"
)


class ThinkingBudgetLogitProcessor(LogitProcessor):
    """Close the thinking block after a number of tokens.

    A block is open after the latest start delimiter, in the prompt or generated, until an end
    delimiter or the start of a tool call. ``inside`` is the number of tokens since then; a start
    after a tool call, with no end in between, goes on with the count. At each step inside a block,
    the first of these that applies:

    1. ``inside >= thinking_budget``: the closing is forced, token by token: the message
       ``closing``, or without one a newline (``new_line_token_id``, if known); then the end. If
       the model has already written part of the closing, forcing continues from there.
    2. ``inside < min_thinking_tokens``: the end and ``eos_token_ids`` are banned. If one of them is
       the likeliest token, ``wait_token_id`` is forced instead, provided that it is given and the
       block has fewer than ``max_waits`` of it.
    3. ``inside >= soft_thinking_budget``: the closing is forced once the model has begun it, after
       a generated newline, or when the next token of the end or one of ``eos_token_ids`` is among
       the ``soft_top_n`` likeliest.
    4. ``eos_token_ids``: if one of them is the likeliest token, the next token of the end is
       forced; otherwise they are banned.

    No budget ends inside a character, if the served tokenizer tells what its tokens spell: of the
    last three tokens before ``thinking_budget`` none may begin a character that the tokens left
    cannot finish, and rule 3 waits until one is finished. Where a wrong byte takes back those
    around it (byte fallback), the last token of a budget leaves no such run of bytes broken, so
    that a closing that begins with a byte comes out; rule 3 waits for that, too.

    Each block of an answer gets the same budget. A budget of 0 closes a block as soon as it opens,
    which leaves an empty block in the answer. Outside a block nothing is edited, so an end that
    also ends other messages stays free there.

    The delimiters are, in this order: the request's token ids (``thinking_start_token_id`` and
    ``thinking_end_token_id``, or with several tokens ``thinking_start_token_ids`` and
    ``thinking_end_token_ids``); the request's texts for the served tokenizer (``thinking_start``
    and ``thinking_end``); the class's own, which are checked against the served tokenizer; the only
    known pair that the served tokenizer has.

    Given the same history, the parameters of SGLang 0.5.23's class of this name do the same as
    there, except that characters stay whole, and a budget or ids that cannot work are refused. A
    server without the plugin may lack the newest token of the history. There a plain budget with
    delimiters of one token still works: at the last token of its budget a block may not be closed,
    nor a tool be called, so the processor knows that the block is open. Anything else ends the
    request with an error.

    The rules that ask for the likeliest tokens make nobody wait for the device.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    tolerates_lag = True
    example: ClassVar[Mapping[str, Any]] = {
        "thinking_budget": 512,
        "thinking_start": "<think>",
        "thinking_end": "</think>",
    }
    reads_prompt = True

    #: What a subclass for other models sets, under the names of SGLang's class.
    THINKING_START_TOKEN_ID: ClassVar[int | None] = None
    THINKING_END_TOKEN_ID: ClassVar[int | None] = None
    NEW_LINE_TOKEN_ID: ClassVar[int | None] = None
    #: The model family of a class in ``families``; its single tokens set the ids above.
    family: ClassVar[Family | None] = None
    #: The same ids as parameters.
    _own_ids: ClassVar[Mapping[str, Any]] = {"new_line_token_id": None}

    class Params(Parameters, frozen=True):
        """What a request may set. Numbers are tokens; ``None`` stands for the class's own id.

        Attributes:
            thinking_budget: Tokens that a block may have before it is closed. Left out, ``None``
                or negative: no limit.
            total_thinking_tokens: Tokens that all blocks of the answer may have together. When
                they are spent, a block that opens is closed at once. ``None``: no limit.
            at_limit: What becomes of a block whose budget is spent: ``"close"`` closes it,
                ``"stop"`` ends the answer with ``finish_reason`` ``length``.
            max_pattern_size: Most tokens of a pattern that is a loop, 1 to 1,024. A block that
                ends with a loop is closed. ``None``: loops are not looked for.
            min_pattern_size: Fewest tokens of such a pattern.
            min_count: Number of times in a row from which a pattern is a loop.
            soft_thinking_budget: Tokens after which the block is closed at a good moment; at most
                ``thinking_budget``. ``None``: never.
            soft_top_n: It is a good moment if the end is among so many likeliest tokens.
            min_thinking_tokens: Fewest tokens of a block, at most ``soft_thinking_budget``.
            wait_token_id: Forced in place of an end that comes before the minimum.
            max_waits: Most wait tokens in a block, counting those that the model wrote itself.
            closing: A message to close with, instead of a newline: a text of up to 1,024
                characters, in the tokens that the served tokenizer writes it with.
            closing_token_ids: The same as tokens.
            eos_token_ids: Tokens that end the answer; inside a block they end the block instead.
                Tokens of the end itself do not count.
            thinking_start_token_id: Opens a block.
            thinking_end_token_id: Closes it.
            thinking_start_token_ids: Opens a block, in several tokens.
            thinking_end_token_ids: Closes it, in several tokens.
            thinking_start: Opens a block, as text for the served tokenizer.
            thinking_end: Closes it, as text.
            new_line_token_id: Forced before the end.
            tool_start_token_ids: Tokens that open a tool call, and so end a block. Left out:
                those of the served reasoning parser, or of the model's family.
            force_reasoning: Whether the answer begins inside a block, without a start.
        """

        thinking_budget: _Budget = None
        total_thinking_tokens: NonNegativeInt | None = None
        at_limit: Literal["close", "stop"] = "close"
        max_pattern_size: PatternSize | None = None
        min_pattern_size: PatternSize = 4
        min_count: LoopCount = 4
        soft_thinking_budget: NonNegativeInt | None = None
        soft_top_n: _TopCount = 5
        min_thinking_tokens: NonNegativeInt = 0
        wait_token_id: TokenId | None = None
        max_waits: PositiveInt = 1
        closing: _MessageText | None = None
        closing_token_ids: _MessageIds = ()
        eos_token_ids: _EndIds = ()
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
            if self.wait_token_id is not None and not self.min_thinking_tokens:
                raise ValueError(
                    "wait_token_id: expected min_thinking_tokens with it, because it is only put "
                    "in place of an end that comes too early"
                )
            if self.closing is not None:
                check_texts("closing", [self.closing])
                if self.closing_token_ids:
                    raise ValueError("closing: given together with closing_token_ids; give one")
            if (
                self.thinking_start
                or self.thinking_end
                or self.thinking_start_token_ids
                or self.thinking_end_token_ids
            ):  # else the check takes 1 µs for nothing, and attach() has 5: benchmarks/cost
                self._check_ways()

        def _check_ways(self) -> None:
            """Refuse a delimiter that is given in two ways, or only one of the two texts."""
            for names in (_START, _END):
                given = [name for name in names if getattr(self, name) is not None]
                if len(given) > 1:
                    raise ValueError(f"{given[1]}: given together with {given[0]}; give one")
            if (self.thinking_start is None) != (self.thinking_end is None):
                name = "thinking_start" if self.thinking_start is None else "thinking_end"
                raise ValueError(f"{name}: required, because the other one is given")

        @property
        def limit(self) -> int:
            """Tokens that a block may have; more than any request gets if there is no limit."""
            budget = self.thinking_budget
            return NEVER if budget is None or budget < 0 else budget

        @property
        def total(self) -> int:
            """Tokens that all blocks may have together, as ``limit``."""
            total = self.total_thinking_tokens
            return NEVER if total is None else total

        @property
        def start(self) -> tuple[int, ...] | None:
            """The tokens that open a block; ``None`` if the tokenizer has to tell."""
            if self.thinking_start_token_id is not None:
                return (self.thinking_start_token_id,)
            return self.thinking_start_token_ids

        @property
        def end(self) -> tuple[int, ...] | None:
            """The tokens that close it; ``None`` if the tokenizer has to tell."""
            if self.thinking_end_token_id is not None:
                return (self.thinking_end_token_id,)
            return self.thinking_end_token_ids

    class _Fitted(Params, frozen=True):
        """The parameters, and the delimiters as the served model writes them."""

        finder: Finder | None = None

    def __init_subclass__(cls, *, family: Family | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if family is not None:
            cls.family = family = family._replace(processor=cls.__name__)
            FAMILIES.append(family)
            cls.example = {"thinking_budget": 512}
            cls.NEW_LINE_TOKEN_ID = family.new_line_id
            if len(family.start_ids) == 1:
                (cls.THINKING_START_TOKEN_ID,) = family.start_ids
            if len(family.end_ids) == 1:
                (cls.THINKING_END_TOKEN_ID,) = family.end_ids
        own: dict[str, Any] = {"new_line_token_id": cls.NEW_LINE_TOKEN_ID}
        if cls.THINKING_START_TOKEN_ID is not None:
            own["thinking_start_token_id"] = cls.THINKING_START_TOKEN_ID
        elif cls.family:
            own["thinking_start_token_ids"] = cls.family.start_ids
        if cls.THINKING_END_TOKEN_ID is not None:
            own["thinking_end_token_id"] = cls.THINKING_END_TOKEN_ID
        elif cls.family:
            own["thinking_end_token_ids"] = cls.family.end_ids
        cls._own_ids = own

    @classmethod
    def _parse(cls, custom_params: Any, vocab_size: int | None) -> Any:
        """Check the parameters and fill in the class's ids."""
        # As in params.parse.
        if type(custom_params) is dict or isinstance(custom_params, Mapping | None):
            custom_params = cls._with_ids(custom_params or {})
        params = parse(cls.Params, cls.__name__, custom_params)
        cls._check(params, vocab_size)
        return params

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Any:
        """Check the class's ids against the served tokenizer, or take the ids from there."""
        tokenizer = served.tokenizer
        if params.closing is not None:
            message = forced_text(cls.__name__, "closing", tokenizer, params.closing)
            if len(message) > _MAX_MESSAGE:
                raise InvalidParameter(
                    cls.__name__,
                    "closing",
                    f"expected a text of at most {_MAX_MESSAGE} tokens of the served model, got "
                    f"{len(message)}",
                )
            params = msgspec.structs.replace(params, closing=None, closing_token_ids=message)
            cls._check(params, served.vocab_size)
        if params.start is None:
            params = cls._with_delimiters(params, served)
        family = cls.family
        by_class = family and (params.start == family.start_ids or params.end == family.end_ids)
        if family and by_class and tokenizer is not None:
            with refusing(cls.__name__, None):
                check_family(tokenizer, family)
        return cls._fitted(params, served)

    @classmethod
    def _with_delimiters(cls, params: Any, served: ServedModel) -> Any:
        """Take the delimiters from the served reasoning parser, or from the tokenizer."""
        tokenizer, form = served.tokenizer, served.reasoning
        if tokenizer is None:
            raise InvalidParameter(
                cls.__name__,
                "thinking_start_token_id",
                "required, with thinking_end_token_id: this class knows no model's ids, and the "
                "server has no tokenizer to ask",
            )
        with refusing(cls.__name__, None):
            found = resolve(tokenizer, *_texts_of(params, form))
        for name, ids in (("thinking_start", found.start_ids), ("thinking_end", found.end_ids)):
            if len(ids) > _MAX_DELIMITER:
                raise InvalidParameter(
                    cls.__name__,
                    name,
                    f"expected a text of at most {_MAX_DELIMITER} tokens of the served model, "
                    f"got {len(ids)}",
                )
        new_line = params.new_line_token_id
        fitted = msgspec.structs.replace(
            params,
            thinking_start=None,
            thinking_end=None,
            thinking_start_token_ids=found.start_ids,
            thinking_end_token_ids=found.end_ids,
            new_line_token_id=found.new_line_id if new_line is None else new_line,
        )
        cls._check(fitted, served.vocab_size)
        return fitted

    @classmethod
    def _fitted(cls, params: Any, served: ServedModel) -> Any:
        """Add the finder: by text if these are the delimiters of the served reasoning parser."""
        tokenizer, form, vocabulary = served.tokenizer, served.reasoning, None
        tools = params.tool_start_token_ids
        if form is not None and tokenizer is not None:
            with suppress(RequestError):
                found = resolve(tokenizer, form.start, form.end)
                if (found.start_ids, found.end_ids) == (params.start, params.end):
                    vocabulary = vocabulary_of(tokenizer)
        if vocabulary is None:
            form = None
        if tools is None and tokenizer is not None:
            known = TOOL_STARTS if cls.family is None else cls.family.tool_starts
            tools = find_tool_starts(tokenizer, known if form is None else form.tool_starts)
        given = {name: getattr(params, name) for name in params.__struct_fields__}
        finder = finder_for(_closing(params, tools or ()), form, vocabulary)
        return cls._Fitted(**{**given, "tool_start_token_ids": tools or None, "finder": finder})

    @classmethod
    def begin_inside(cls, params: Any) -> Any:
        """Return fitted parameters for an answer that SGLang parses as one that may begin inside.

        Blocks of other delimiters than those of the served reasoning parser are left as they are.
        """
        inside = params.finder is not None and params.finder.reads_text
        return msgspec.structs.replace(params, force_reasoning=True) if inside else params

    @classmethod
    def _with_ids(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request's parameters, with the class's ids for those it left out."""
        own = cls._own_ids
        if _IDS.isdisjoint(given):  # the loop takes 2 µs, and attach() has 5: benchmarks/cost
            return {**given, **own}
        filled = dict(given)
        for names in (_START, _END, _NEW_LINE):
            if all(given.get(name) is None for name in names):
                filled |= {name: own[name] for name in names if name in own}
        return filled

    @classmethod
    def _check(cls, params: Params, vocab_size: int | None) -> None:
        """Refuse token ids that cannot work together, or that the model does not have."""
        start, end = params.start, params.end
        if start is not None and end is not None:
            _check_ids(cls.__name__, params, start, end)
        elif start is not None or end is not None:
            missing = "start" if start is None else "end"
            raise InvalidParameter(
                cls.__name__, f"thinking_{missing}_token_id", "required with the other one"
            )
        if vocab_size is not None:
            check_vocabulary(params, cls.__name__, vocab_size)

    def start(self, request: Request) -> Progress:
        """Find out whether the prompt leaves a block open."""
        params = request.params
        if params.start is None:
            raise InvalidParameter(self.name, "thinking_start_token_id", "required here")
        return Progress(
            finder_of(params),
            params.wait_token_id,
            request.prompt_ids,
            inside=params.force_reasoning,
        )

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow where blocks open and close, how far the closing is written, and loops."""
        progress, params = request.state, request.params
        progress.read(token_ids)
        if params.max_pattern_size is not None and progress.opened >= 0:
            progress.looped = progress.looped or _finds_loop(request, len(token_ids))

    def fork(self, request: Request) -> Progress:
        """Copy how far the block is."""
        return copy(request.state)  # type: ignore[no-any-return]

    def report(
        self,
        params: Any,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        forced: Sequence[Sequence[int]],
    ) -> dict[str, Any]:
        """Return ``thinking``: for each block its ``tokens``, and what ``ended`` it."""
        finder = finder_of(params)
        found = find_blocks(finder, prompt_ids, output_ids, inside=params.force_reasoning)
        return {"thinking": report_blocks(params, finder.closing, found, output_ids, forced)}

    def edit(self, request: Request, edits: Edits) -> None:
        """Apply the rules of the class to this step, or sleep until one could apply."""
        params, progress, position = request.params, request.state, request.position
        if request.may_lag and _is_plain(params):
            close_unseen(request, edits, params.limit)
            return
        if not request.exact:
            raise Unsupported(f"{self.name}: {_NO_LAG}")
        left = _left(params, progress)
        if progress.finder.strict and progress.opened >= 0 and len(request.top(2)) == 1:
            return  # SGLang closes the block, and masks whatever else this would force
        if progress.opened >= 0 and (left <= 0 or progress.looped):
            # The start of a tool call is markup, and ends the block by itself.
            if not progress.may_call(-left):
                _close(request, edits)
        else:
            # A stock server would make the vocabulary while its batch waits.
            stock = request.may_lag
            characters = None if stock else characters_of(request.tokenizer, edits.vocab_size)
            if progress.opened < 0:
                # A block opens with the next token at the earliest.
                quiet = _quiet(params, left, progress.inside, characters)
                edits.wake_at(position + min(1 + quiet, _LONGEST_SLEEP))
            else:
                _edit_inside(request, edits, left, characters)
        if request.may_lag and not position:
            edits.wake_at(1)  # the second token shows whether this server lags

    def foresee(self, request: Request) -> Iterator[int]:
        """Name the rest of a closing that has to be written now."""
        params, progress = request.params, request.state
        if not _is_closing(params, progress):
            return
        finder = progress.finder
        closer, state = finder.closer, progress.begun
        while True:
            token_id = finder.next_token[state]
            yield token_id
            state = closer.children[state].get(token_id) or closer.children[0][token_id]
            if closer.complete[state]:
                return

    def explain(self, request: Request) -> str:
        """Say which rule applied."""
        params, progress = request.params, request.state
        if progress.opened < 0:
            return ""
        inside, budget = progress.inside, params.limit
        if why := _why_over(params, progress):
            return why
        if inside < params.min_thinking_tokens:
            return f"{inside} of at least {params.min_thinking_tokens} tokens thought"
        if params.soft_thinking_budget is not None and inside >= params.soft_thinking_budget:
            return f"{inside} tokens thought, and the soft budget is {params.soft_thinking_budget}"
        if params.eos_token_ids:
            return "the answer may not end while it thinks"
        return f"characters end within the {budget - inside} tokens that are left"


def _why_over(params: ThinkingBudgetLogitProcessor.Params, progress: Progress) -> str:
    """Say why the open block is over; nothing if it is not."""
    if progress.inside >= params.limit:
        return f"{params.limit} of {params.limit} tokens thought"
    if _left(params, progress) <= 0:
        return f"{params.total} of {params.total} tokens thought in all blocks"
    return f"the same tokens came {params.min_count} times" if progress.looped else ""


def _texts_of(params: Any, form: ReasoningFormat | None) -> tuple[str | None, str | None]:
    """Return the delimiters to look for: the request's, or the served parser's."""
    if params.thinking_start is not None or form is None:
        return params.thinking_start, params.thinking_end
    return form.start, form.end


def finder_of(params: Any) -> Finder:
    """Return the finder of parameters; by their tokens alone if no model has been asked."""
    finder: Finder | None = getattr(params, "finder", None)
    return finder or finder_for(_closing(params, params.tool_start_token_ids or ()))


def _closing(params: Any, tool_starts: tuple[int, ...]) -> Closing:
    newline = params.new_line_token_id
    before_end = params.closing_token_ids or (() if newline is None else (newline,))
    return Closing(params.start, params.end, before_end, params.eos_token_ids, tool_starts)


def _left(params: ThinkingBudgetLogitProcessor.Params, progress: Progress) -> int:
    """Return after how many more tokens of the open block, or of a new one, it is over."""
    generated = progress.generated if progress.opened >= 0 else 0
    left = min(params.limit - progress.inside, params.total - progress.spent - generated)
    # An answer ends with the token that is sampled then.
    return left - (params.at_limit == "stop")


def _is_closing(params: ThinkingBudgetLogitProcessor.Params, progress: Progress) -> bool:
    """Tell whether each token is forced until the block is closed."""
    if progress.opened < 0:
        return False
    left, soft = _left(params, progress), params.soft_thinking_budget
    if left <= 0 or progress.looped:
        stops = params.at_limit == "stop" and not progress.looped
        return not stops and not progress.may_call(-left)
    return bool(progress.begun) and soft is not None and soft <= progress.inside


def _close(request: Request, edits: Edits) -> None:
    """Close the block, or end the answer in it."""
    progress = request.state
    if request.params.at_limit == "stop" and not progress.looped:
        edits.finish("thinking budget", LENGTH)
    else:
        edits.force(progress.finder.next_token[progress.begun])


def _finds_loop(request: Request, count: int) -> bool:
    """Tell whether the open block has come to a loop in its last tokens.

    It is looked for after every so many tokens of the block: so the answer is the same however
    the tokens come, and a block without a loop sleeps in between.
    """
    progress, params, output_ids = request.state, request.params, request.output_ids
    generated = progress.generated
    begun = progress.length - len(request.prompt_ids) - generated
    newest = generated // _LONGEST_SLEEP * _LONGEST_SLEEP
    longest = params.max_pattern_size * params.min_count
    return any(
        ends_with_loop(params, output_ids[begun + max(0, at - longest) : begun + at])
        for at in range(newest, max(0, generated - count), -_LONGEST_SLEEP)
    )


def _edit_inside(request: Request, edits: Edits, left: int, characters: Characters | None) -> None:
    """Apply the first rule that applies to a step within the budget of a block."""
    params, progress = request.params, request.state
    inside = progress.inside
    if inside < params.min_thinking_tokens:
        free, quiet = _keep_open(request, edits), 0
    else:
        free = _close_well(request, edits, inside, characters)
        quiet = _quiet(params, left, inside, characters)
    if params.max_pattern_size is not None:
        quiet = min(quiet, _LONGEST_SLEEP - progress.generated % _LONGEST_SLEEP)
    if characters:
        free.ban(characters.cutting(request.output_ids, left - 1))
    free.wake_at(request.position + min(quiet, _LONGEST_SLEEP))


def _is_plain(params: ThinkingBudgetLogitProcessor.Params) -> bool:
    """Tell whether the request has only a budget, and delimiters of one token each."""
    return (
        params.soft_thinking_budget is None
        and not (params.min_thinking_tokens or params.closing_token_ids or params.eos_token_ids)
        and params.total_thinking_tokens is params.max_pattern_size is None
        and params.at_limit == "close"
        and len(params.start or ()) == len(params.end or ()) == 1
    )


def _quiet(
    params: ThinkingBudgetLogitProcessor.Params,
    left: int,
    inside: int,
    characters: Characters | None,
) -> int:
    """Return how many more tokens of a block no rule can apply to, after ``inside`` of them."""
    if params.min_thinking_tokens or params.eos_token_ids:
        return 0  # beyond the minimum too: a block may close and another one open meanwhile
    soft = params.soft_thinking_budget
    due = left - MOST_LACKING if characters else left
    return max(0, due if soft is None else min(soft - inside, due))


def _keep_open(request: Request, edits: Edits) -> Edits:
    """Keep the end out of a block that is too short.

    Returns:
        What holds unless a token is forced in its place.
    """
    params, progress = request.params, request.state
    finder, of_end = progress.finder, progress.of_end
    early = finder.others
    if of_end == len(finder.end) - 1:
        early = finder.closing_signs[of_end]
    wait = params.wait_token_id
    if wait is not None and len(early) and progress.waits < params.max_waits:
        edits = edits.force_if(request.is_among_top(early, 1), wait)
    edits.ban(early)
    return edits


def _close_well(
    request: Request, edits: Edits, inside: int, characters: Characters | None
) -> Edits:
    """Close the block at a good moment.

    Returns:
        What holds unless a token is forced to close it.
    """
    params, progress = request.params, request.state
    finder = progress.finder
    soft = params.soft_thinking_budget is not None and inside >= params.soft_thinking_budget
    if soft and characters and not progress.begun:
        soft = not characters.is_inside(request.output_ids)
    if soft:
        is_good = (
            progress.begun > 0
            or progress.newest == params.new_line_token_id
            or request.is_among_top(finder.closing_signs[progress.of_end], params.soft_top_n)
        )
        edits = edits.force_if(is_good, finder.next_token[progress.begun])
    elif len(finder.others):
        is_ending = request.is_among_top(finder.others, 1)
        edits = edits.force_if(is_ending, finder.end[progress.of_end])
    edits.ban(finder.others)
    return edits


def _check_ids(
    processor: str,
    params: ThinkingBudgetLogitProcessor.Params,
    start: tuple[int, ...],
    end: tuple[int, ...],
) -> None:
    """Refuse ids that are valid one by one and cannot work together."""
    if start[-1] == end[-1] and (start[-len(end) :] == end or end[-len(start) :] == start):
        raise InvalidParameter(
            processor,
            "thinking_end_token_id" + "s" * (params.thinking_end_token_id is None),
            f"expected other tokens than the start, got {_listed(end)} and {_listed(start)}: "
            "one ends with the other",
        )
    message, newline = params.closing_token_ids, params.new_line_token_id
    closing = (message or (() if newline is None else (newline,))) + end
    after = start[1:] + closing
    # The first condition spares nearly all requests the rest; attach() has 5 µs.
    if (start[0] in after and _holds(after, start)) or (message and _holds(closing[:-1], end)):
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
    processor: str,
    params: ThinkingBudgetLogitProcessor.Params,
    start: tuple[int, ...],
    end: tuple[int, ...],
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
