"""A limit on how long a model thinks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn

import msgspec
from msgspec import Meta

from sglang_lp._engine.recording import NEVER
from sglang_lp.builtins.thinking.delimiters import check_family, resolve
from sglang_lp.builtins.thinking.known import FAMILIES, Family
from sglang_lp.builtins.thinking.progress import Block, Markers, Progress, blocks, markers_for
from sglang_lp.builtins.thinking.stock import close_unseen
from sglang_lp.errors import InvalidParameter, RequestError, Unsupported
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

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel

__all__ = ["ThinkingBudgetLogitProcessor"]

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

#: Tokens that may come before they are read: 256 rows that wake at once read them in 6 ms.
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
    delimiter. ``inside`` is the number of tokens since then. At each step inside a block, the
    first of these that applies:

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
    cannot finish, and rule 3 waits until one is finished.

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
    delimiters of one token still works: the model may not close a block at the last token of its
    budget, so the processor knows that the block is open. Anything else ends the request with an
    error.

    Rules 2 (with a wait token), 3 and 4 wait for the device once a step, where they apply.
    """

    __module__ = "sglang_lp.builtins"
    early = True
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
        """

        thinking_budget: _Budget = None
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
            ):  # else the check takes 1 µs for nothing, and attach() has 5: benchmarks/cost.py
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
        if custom_params is None or isinstance(custom_params, Mapping):
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
        if params.start is not None:
            family = cls.family
            by_class = family and (params.start == family.start_ids or params.end == family.end_ids)
            if family and by_class and tokenizer is not None:
                try:
                    check_family(tokenizer, family)
                except RequestError as error:
                    raise InvalidParameter(cls.__name__, None, str(error)) from None
            return params
        if tokenizer is None:
            raise InvalidParameter(
                cls.__name__,
                "thinking_start_token_id",
                "required, with thinking_end_token_id: this class knows no model's ids, and the "
                "server has no tokenizer to ask",
            )
        try:
            found = resolve(tokenizer, params.thinking_start, params.thinking_end)
        except RequestError as error:
            raise InvalidParameter(cls.__name__, None, str(error)) from None
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
    def _with_ids(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the request's parameters, with the class's ids for those it left out."""
        own = cls._own_ids
        if _IDS.isdisjoint(given):  # the loop takes 2 µs, and attach() has 5: benchmarks/cost.py
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
        return Progress(self._markers(params), params.wait_token_id, request.prompt_ids)

    @staticmethod
    def _markers(params: Any) -> Markers:
        newline = params.new_line_token_id
        before_end = params.closing_token_ids or (() if newline is None else (newline,))
        return markers_for(params.start, params.end, before_end, params.eos_token_ids)

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow where blocks open and close, and how far the closing is written."""
        request.state.read(token_ids)

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
        markers = self._markers(params)
        found = blocks(markers, prompt_ids, output_ids)
        return {"thinking": [_reported(params, one, output_ids, forced) for one in found]}

    def edit(self, request: Request, edits: Edits) -> None:
        """Apply the rules of the class to this step, or sleep until one could apply."""
        params, progress, position = request.params, request.state, request.position
        if request.may_lag and _is_plain(params):
            close_unseen(request, edits, params.limit)
            return
        if not request.exact:
            raise Unsupported(f"{self.name}: {_NO_LAG}")
        # A stock server would make the vocabulary while its batch waits.
        stock = request.may_lag
        characters = None if stock else characters_of(request.tokenizer, edits.vocab_size)
        if progress.opened < 0:
            # A block opens with the next token at the earliest.
            edits.wake_at(position + min(1 + _quiet(params, 0, characters), _LONGEST_SLEEP))
        else:
            inside = progress.length - progress.opened
            if inside >= params.limit:
                edits.force(progress.markers.next_token[progress.begun])
            elif inside < params.min_thinking_tokens:
                if not _keep_open(request, edits) and characters:
                    edits.ban(characters.cutting(params.limit - inside - 1))
            elif not _close_well(request, edits, inside, characters):
                if characters:
                    edits.ban(characters.cutting(params.limit - inside - 1))
                quiet = _quiet(params, inside, characters)
                edits.wake_at(position + min(quiet, _LONGEST_SLEEP))
        if request.may_lag and not position:
            edits.wake_at(1)  # the second token shows whether this server lags

    def explain(self, request: Request) -> str:
        """Say which rule applied."""
        params, progress = request.params, request.state
        if progress.opened < 0:
            return ""
        inside, budget = progress.length - progress.opened, params.limit
        if inside >= budget:
            return f"{budget} of {budget} tokens thought"
        if inside < params.min_thinking_tokens:
            return f"{inside} of at least {params.min_thinking_tokens} tokens thought"
        if params.soft_thinking_budget is not None and inside >= params.soft_thinking_budget:
            return f"{inside} tokens thought, and the soft budget is {params.soft_thinking_budget}"
        if params.eos_token_ids:
            return "the answer may not end while it thinks"
        return f"characters end within the {budget - inside} tokens that are left"


def _reported(
    params: ThinkingBudgetLogitProcessor.Params,
    block: Block,
    output_ids: Sequence[int],
    forced: Sequence[Sequence[int]],
) -> dict[str, Any]:
    """Return the length of a block in tokens, and who closed it."""
    ended = None if block.end is None else "model"
    if block.end is not None and _holds_position(forced, block.end):
        # Back to where forcing the closing began, which tells the rule.
        begun, closing = block.end, block.closing
        for back in range(1, len(closing)):
            at = block.end - back
            if output_ids[at] != closing[-1 - back] or not _holds_position(forced, at):
                break
            begun = at
        inside, soft = begun - block.start, params.soft_thinking_budget
        ended = "early_end"
        if inside >= params.limit:
            ended = "budget"
        elif soft is not None and inside >= soft:
            ended = "soft"
    return {"tokens": block.tokens, "ended": ended}


def _holds_position(spans: Sequence[Sequence[int]], position: int) -> bool:
    return any(start <= position < stop for start, stop in spans)


def _is_plain(params: ThinkingBudgetLogitProcessor.Params) -> bool:
    """Tell whether the request has only a budget, and delimiters of one token each."""
    return (
        params.soft_thinking_budget is None
        and not (params.min_thinking_tokens or params.closing_token_ids or params.eos_token_ids)
        and len(params.start or ()) == len(params.end or ()) == 1
    )


def _quiet(
    params: ThinkingBudgetLogitProcessor.Params, inside: int, characters: Characters | None
) -> int:
    """Return how many more tokens of a block no rule can apply to, after ``inside`` of them."""
    soft = params.soft_thinking_budget
    due = params.limit - MOST_LACKING if characters else params.limit
    if params.min_thinking_tokens or params.eos_token_ids:
        return 0  # beyond the minimum too: any token may open the next block inside this one
    return max(0, (due if soft is None else min(soft, due)) - inside)


def _keep_open(request: Request, edits: Edits) -> bool:
    """Keep the end out of a block that is too short.

    Returns:
        Whether a token was forced in its place.
    """
    params, progress = request.params, request.state
    markers, of_end = progress.markers, progress.of_end
    early = markers.others
    if of_end == len(markers.end) - 1:
        early = markers.closing_signs[of_end]
    wait = params.wait_token_id
    if (
        wait is not None
        and len(early)
        and progress.waits < params.max_waits
        and request.is_among_top(early, 1)
    ):
        edits.force(wait)
        return True
    edits.ban(early)
    return False


def _close_well(request: Request, edits: Edits, inside: int, characters: Characters | None) -> bool:
    """Close the block at a good moment.

    Returns:
        Whether a token was forced to close it.
    """
    params, progress = request.params, request.state
    markers = progress.markers
    soft = params.soft_thinking_budget is not None and inside >= params.soft_thinking_budget
    if soft and characters and not progress.begun:
        soft = not characters.is_inside(request.output_ids)
    if soft and (progress.begun or progress.newest == params.new_line_token_id):
        edits.force(progress.markers.next_token[progress.begun])
        return True
    if soft:
        if request.is_among_top(markers.closing_signs[progress.of_end], params.soft_top_n):
            edits.force(markers.next_token[progress.begun])
            return True
    elif len(markers.others) and request.is_among_top(markers.others, 1):
        edits.force(markers.end[progress.of_end])
        return True
    edits.ban(markers.others)
    return False


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
