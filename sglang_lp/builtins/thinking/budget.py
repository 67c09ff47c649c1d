"""A limit on how long a model thinks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

from sglang_lp.builtins.thinking.block_report import report_blocks
from sglang_lp.builtins.thinking.blocks import find_blocks
from sglang_lp.builtins.thinking.delimiters import check_family, resolve
from sglang_lp.builtins.thinking.explaining import why
from sglang_lp.builtins.thinking.known import TOOL_STARTS, Family
from sglang_lp.builtins.thinking.loops import ends_with_loop
from sglang_lp.builtins.thinking.params import (
    END,
    MAX_DELIMITER,
    MAX_MESSAGE,
    START,
    BudgetParams,
    FittedParams,
    block_tokens_of,
    check_ids,
    finder_of,
)
from sglang_lp.builtins.thinking.progress import Progress
from sglang_lp.builtins.thinking.rules import (
    LONGEST_SLEEP,
    close_by,
    edit_inside,
    end_block,
    forced_tokens,
    quiet_tokens,
    tokens_left,
)
from sglang_lp.builtins.thinking.served import delimiter_texts, served_finder
from sglang_lp.builtins.thinking.stock import NO_LAG, close_unseen, works_unseen
from sglang_lp.errors import InvalidParameter, RequestError, Unsupported, refusing
from sglang_lp.params import check_vocabulary, parse
from sglang_lp.processor import LogitProcessor
from sglang_lp.served_model import ends_for
from sglang_lp.text.characters import characters_of
from sglang_lp.text.encoding import forced_text
from sglang_lp.text.vocabulary import vocabulary_of

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel

_NEW_LINE = ("new_line_token_id",)
#: The parameters that have the class's ids as their defaults.
_IDS = frozenset(START + END + _NEW_LINE)


class ThinkingBudgetLogitProcessor(LogitProcessor):
    """Close the thinking block after a number of tokens.

    A block begins after a start delimiter and ends with an end delimiter or the start of a tool
    call. In the prompt the latest delimiter decides whether a block is open; in the answer a start
    inside an open block is part of the block. ``inside`` is the number of tokens of the open block.
    A start after a tool call, with no end in between, continues the count.

    At each step inside a block the first rule applies whose condition holds:

    1. ``inside >= thinking_budget``: the closing is forced, token by token. It is the message
       ``closing``, or without a message a newline (``new_line_token_id``, if known); then the end.
       If the model has already written part of the closing, forcing continues from there.
    2. ``inside < min_thinking_tokens``: the end and ``eos_token_ids`` are banned. If one of them is
       the likeliest token, ``wait_token_id`` is forced instead, provided that it is given and the
       block has fewer than ``max_waits`` of it.
    3. ``inside >= soft_thinking_budget``: the closing is forced once the model has begun it, after
       a generated newline, or when the next token of the end or one of ``eos_token_ids`` is among
       the ``soft_top_n`` likeliest.
    4. ``eos_token_ids``: if one of them is the likeliest token, the next token of the end is
       forced; otherwise they are banned.

    Each block of an answer gets the same budget. A budget of 0 closes a block as soon as it opens,
    which leaves an empty block in the answer.

    Outside a block nothing is edited, so an end that also ends other messages stays allowed there,
    with two exceptions:

    - ``min_answer_tokens``: ``eos_token_ids`` are banned until the answer has so many tokens after
      the last block. In the block rule 4 replaces them. An answer without a block is not made to
      think, and only has to be long enough.
    - ``answer_room``: when no more tokens are left than the answer and the closing need, an open
      block is closed as by rule 1, and the start of another is banned if it is one token. Needs
      ``max_new_tokens``, which a server always knows.

    No budget ends inside a character, if the bytes of the served tokenizer's tokens are known:

    - Each of the last three tokens before ``thinking_budget`` is banned if it would begin a
      character that the remaining tokens cannot finish.
    - Rule 3 waits until a character is finished.
    - With byte fallback, where a wrong byte spoils the bytes around it, the last token of a budget
      leaves no run of bytes broken, so that a closing that begins with a byte comes out. Rule 3
      waits for that as well.

    The delimiters come from the first of these sources that exists:

    1. the request's token ids: ``thinking_start_token_id`` and ``thinking_end_token_id``, or with
       several tokens ``thinking_start_token_ids`` and ``thinking_end_token_ids``;
    2. the request's texts for the served tokenizer: ``thinking_start`` and ``thinking_end``;
    3. the class's own ids, which are checked against the served tokenizer;
    4. the served reasoning parser (``--reasoning-parser``);
    5. the only known pair that the served tokenizer has.

    Given the same history, the parameters of SGLang 0.5.23's class of this name have the same
    effect as there, with three exceptions:

    - a start inside an open block does not begin the count anew, as it does in SGLang;
    - characters stay whole;
    - a budget or ids that cannot work are refused.

    A server without the plugin may lack the newest token of the history. There a plain budget with
    delimiters of one token each still works: at the last token of the budget the end and tool
    starts are banned, so the processor knows that the block is open. The other options end the
    request with an error.

    Rules that ask for the likeliest tokens do not wait for the device, except in a chain in which
    another link also asks, or bans the token that would be forced.
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

    #: A subclass for other models sets these, under the names of SGLang's class.
    THINKING_START_TOKEN_ID: ClassVar[int | None] = None
    THINKING_END_TOKEN_ID: ClassVar[int | None] = None
    NEW_LINE_TOKEN_ID: ClassVar[int | None] = None
    #: The model family of a class in ``families``; its single tokens set the ids above.
    family: ClassVar[Family | None] = None
    #: The class's ids as parameters.
    _own_ids: ClassVar[Mapping[str, Any]] = {"new_line_token_id": None}

    Params = BudgetParams

    def __init_subclass__(cls, *, family: Family | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if family is not None:
            cls.family = family
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
    def parse_params(cls, custom_params: Any, vocab_size: int | None = None) -> Any:
        """Check the parameters and fill in the class's ids."""
        # The fast test of params.parse; that function refuses everything else.
        if type(custom_params) is dict or isinstance(custom_params, Mapping | None):
            custom_params = cls._with_ids(custom_params or {})
        params = parse(cls.Params, cls.__name__, custom_params)
        cls._check(params, vocab_size)
        return params

    @classmethod
    def _with_ids(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request's parameters, with the class's ids for those it left out."""
        own = cls._own_ids
        if _IDS.isdisjoint(given):  # the usual case: attach() has 5 µs (benchmarks/cost)
            return {**given, **own}
        filled = dict(given)
        for names in (START, END, _NEW_LINE):
            if all(given.get(name) is None for name in names):
                filled |= {name: own[name] for name in names if name in own}
        return filled

    @classmethod
    def _check(cls, params: BudgetParams, vocab_size: int | None) -> None:
        """Refuse token ids that cannot work together, or that the model does not have."""
        check_ids(cls.__name__, params)
        if vocab_size is None:
            return
        try:
            check_vocabulary(params, cls.__name__, vocab_size)
        except InvalidParameter as error:
            if cls.family is None or error.parameter not in _IDS:
                raise
            problem = (
                f"{error.problem}; this class is for {cls.family.models}: use "
                "ThinkingBudgetLogitProcessor, which asks the tokenizer"
            )
            raise InvalidParameter(cls.__name__, error.parameter, problem) from None

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Any:
        """Check the class's ids against the served tokenizer, or look the ids up there."""
        tokenizer = served.tokenizer
        if params.closing is not None:
            message = forced_text(
                cls.__name__, "closing", tokenizer, params.closing, served.vocab_size
            )
            if len(message) > MAX_MESSAGE:
                raise InvalidParameter(
                    cls.__name__,
                    "closing",
                    f"expected a text of at most {MAX_MESSAGE} tokens of the served model, got "
                    f"{len(message)}",
                )
            params = msgspec.structs.replace(params, closing=None, closing_token_ids=message)
            cls._check(params, served.vocab_size)
        if params.min_answer_tokens:
            params = cls._with_ends(params, served)
        if params.start is None:
            params = cls._with_delimiters(params, served)
        family = cls.family
        by_class = family and (params.start == family.start_ids or params.end == family.end_ids)
        if family and by_class and tokenizer is not None:
            with refusing(cls.__name__, None):
                check_family(tokenizer, family)
        return cls._with_finder(params, served)

    @classmethod
    def _with_ends(cls, params: Any, served: ServedModel) -> Any:
        """Add the end tokens of the served model, which a guaranteed answer needs."""
        ends = ends_for(cls.__name__, "eos_token_ids", params.eos_token_ids or None, served)
        ends = tuple(dict.fromkeys((*ends, *served.eos_token_ids)))
        params = msgspec.structs.replace(params, eos_token_ids=ends)
        cls._check(params, served.vocab_size)
        return params

    @classmethod
    def _with_delimiters(cls, params: Any, served: ServedModel) -> Any:
        """Add the delimiters of the served reasoning parser, or of the tokenizer."""
        tokenizer = served.tokenizer
        if tokenizer is None:
            raise InvalidParameter(
                cls.__name__,
                "thinking_start_token_id",
                "required, with thinking_end_token_id: this class knows no model's ids, and the "
                "server has no tokenizer to ask",
            )
        with refusing(cls.__name__, None):
            found = resolve(tokenizer, *delimiter_texts(params, served))
        for name, ids in (("thinking_start", found.start_ids), ("thinking_end", found.end_ids)):
            if len(ids) > MAX_DELIMITER:
                raise InvalidParameter(
                    cls.__name__,
                    name,
                    f"expected a text of at most {MAX_DELIMITER} tokens of the served model, "
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
    def _with_finder(cls, params: Any, served: ServedModel) -> FittedParams:
        """Add the finder of blocks.

        It finds delimiters by their text if they are those of the served reasoning parser, and
        otherwise by their ids.
        """
        known = TOOL_STARTS if cls.family is None else cls.family.tool_starts
        tools = params.tool_start_token_ids
        tokens = block_tokens_of(params, tools or ())
        finder = served_finder(tokens, served, None if tools is not None else known)
        tools = finder.tool_starts
        given = {name: getattr(params, name) for name in params.__struct_fields__}
        found: dict[str, Any] = {"tool_start_token_ids": tools or None, "finder": finder}
        if params.min_answer_tokens and served.tokenizer is not None:
            with suppress(RequestError):  # no bytes are known: each token counts
                found["blank"] = vocabulary_of(served.tokenizer).blank
        return FittedParams(**{**given, **found})

    @classmethod
    def limit_params(cls, params: Any, limit: int) -> Any:
        """Set the position by which the last block is closed, so that the answer has its room.

        Args:
            params: Fitted parameters.
            limit: Number of generated tokens after which the request ends.
        """
        if not params.room:
            return params
        latest = max(0, limit - params.room - len(finder_of(params).closing))
        return msgspec.structs.replace(params, close_by=latest)

    @classmethod
    def begin_inside(cls, params: Any) -> Any:
        """Return fitted parameters for an answer that SGLang may parse as thinking from its start.

        Parameters whose delimiters are not those of the served reasoning parser stay as they are.
        """
        inside = params.finder is not None and params.finder.reads_text
        return msgspec.structs.replace(params, force_reasoning=True) if inside else params

    @classmethod
    def read_of_prompt(cls, params: Any, length: int) -> int:  # noqa: ARG003 - all search alike
        """Count a search in arrays as a sixteenth of reading, which is more than it takes."""
        return length // 16

    def start(self, request: Request) -> Progress:
        """Find out whether the prompt leaves a block open."""
        params = request.params
        if params.start is None:
            raise InvalidParameter(self.name, "thinking_start_token_id", "required here")
        progress = Progress(
            finder_of(params),
            params.wait_token_id,
            request.prompt_ids,
            inside=params.force_reasoning,
        )
        if params.min_answer_tokens:
            progress.owe(_fewest(request), params.blank)
        return progress

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow blocks, the closing and loops."""
        progress, params = request.state, request.params
        progress.read(token_ids)
        if params.watched and progress.state.is_open:
            progress.looped = progress.looped or _finds_loop(request, len(token_ids))

    def fork(self, request: Request) -> Progress:
        """Copy the state."""
        return copy(request.state)  # type: ignore[no-any-return]

    def report(
        self,
        params: Any,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        forced: Sequence[Sequence[int]],
    ) -> dict[str, Any]:
        """Return ``thinking``: ``tokens`` and ``ended`` of each block."""
        finder = finder_of(params)
        found = find_blocks(finder, prompt_ids, output_ids, inside=params.force_reasoning)
        return {"thinking": report_blocks(params, finder.closing, found, output_ids, forced)}

    def edit(self, request: Request, edits: Edits) -> None:
        """Apply the rules of the class to this step, or sleep until one could apply."""
        params, progress, position = request.params, request.state, request.position
        if request.may_lag and works_unseen(params):
            close_unseen(request, edits, params.limit)
            return
        if not request.exact:
            raise Unsupported(f"{self.name}: {NO_LAG}")
        left, is_open = tokens_left(params, progress), progress.state.is_open
        if progress.finder.strict and is_open and _leaves_only_end(request):
            return  # SGLang closes the block, and masks every other token
        if is_open and (left <= 0 or progress.looped):
            end_block(request, edits)
        else:
            # A stock server would make the vocabulary while its batch waits.
            stock = request.may_lag
            characters = None if stock else characters_of(request.tokenizer, edits.vocab_size)
            if is_open:
                edit_inside(request, edits, left, characters)
            else:
                # A block opens with the next token at the earliest.
                if progress.owed:
                    edits.ban(progress.finder.eos)
                quiet = quiet_tokens(params, left, progress.inside, characters)
                start, latest = progress.finder.start, close_by(params)
                if len(start) == 1 and position >= latest:
                    edits.ban(start)  # there is no room to close another block
                wake = position + min(1 + quiet, LONGEST_SLEEP)
                edits.wake_at(max(position + 1, min(wake, latest)))
        if request.may_lag and not position:
            edits.wake_at(1)  # the second token shows whether this server lags

    def foresee(self, request: Request) -> Iterator[int]:
        """Name the rest of a closing that has to be written now."""
        yield from forced_tokens(request.params, request.state)

    def explain(self, request: Request) -> str:
        """Say which rule applied."""
        return why(request.params, request.state)


def _fewest(request: Request) -> int:
    """Return the minimum length of the answer; at most 1 with a grammar, which ends the answer."""
    sampling = getattr(request, "sampling", None)
    kinds = ("json_schema", "regex", "ebnf", "structural_tag")
    has_grammar = any(getattr(sampling, kind, None) for kind in kinds)
    least: int = request.params.min_answer_tokens
    return min(least, 1) if has_grammar else least


def _leaves_only_end(request: Request) -> bool:
    """Tell whether SGLang masks every token of this step but the next token of the end.

    SGLang looks for the beginning of an end in the generated tokens only.
    """
    end = request.state.finder.end
    newest = tuple(request.output_ids[1 - len(end) :]) if len(end) > 1 else ()
    begun = next((n for n in range(len(newest), 0, -1) if newest[-n:] == end[:n]), 0)
    return request.top(2) == [end[begun]]


def _finds_loop(request: Request, count: int) -> bool:
    """Tell whether the open block has come to a loop in its last ``count`` tokens.

    A loop is searched for after every ``LONGEST_SLEEP`` tokens of the block. The answer is
    therefore the same however the tokens come, and a block without a loop sleeps in between.
    """
    progress, params, output_ids = request.state, request.params, request.output_ids
    generated = progress.generated
    begun = progress.length - len(request.prompt_ids) - generated
    newest = generated // LONGEST_SLEEP * LONGEST_SLEEP
    return any(
        ends_with_loop(params, output_ids[begun + max(0, at - params.watched) : begun + at])
        for at in range(newest, max(0, generated - count), -LONGEST_SLEEP)
    )
