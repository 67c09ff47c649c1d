"""The trace of an answer: its tokens as text, and the edits at each token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.builtins.thinking.blocks import find_blocks
from sglang_lp.builtins.thinking.delimiters import resolve
from sglang_lp.builtins.thinking.finder import BlockTokens, EndCause, Finder, finder_for
from sglang_lp.builtins.thinking.params import finder_of
from sglang_lp.errors import RequestError, Unsupported
from sglang_lp.params import is_private
from sglang_lp.processor import LogitProcessor
from sglang_lp.served_model import ServedModel
from sglang_lp.trace.replay import Edit, Replay, ReplayedStep, What, replay
from sglang_lp.trace.spelling import Spelling

if TYPE_CHECKING:
    from sglang_lp.trace.answers import Exchange, Likely

__all__ = ["Block", "Token", "Trace", "trace_answer"]

#: Most tokens of an edit that are named; the rest are counted.
SHOWN = 100

#: Where SGLang's pad values begin.
_PAD = 1_000_000


class Token(NamedTuple):
    """One token of the answer.

    Attributes:
        token_id: Its id.
        text: The text that the token adds to the answer; empty for a special token.
        name: Name for a token without text; see ``sglang_lp.trace.spelling``.
        edits: Indices into :attr:`Trace.edits` of the edits at this token.
        looked: Number of likeliest tokens that a processor read; 0 for none. In the replay the
            token of the answer is the likeliest.
        problem: Contradiction between the token and the request; empty if there is none.
    """

    token_id: int
    text: str
    name: str
    edits: tuple[int, ...]
    looked: int
    problem: str


class Block(NamedTuple):
    """A thinking block of the answer.

    Attributes:
        start: Index of the first token inside that was generated.
        stop: Index after its last token, which is the last token of its end, if it has an end.
        spent: Index of the first token after the budget; ``None`` if it was not spent.
        closed: The cause of its end, in words; empty if it is open.
    """

    start: int
    stop: int
    spent: int | None
    closed: str


class Trace(NamedTuple):
    """The edits of the processors of a request at each token of its answer.

    Attributes:
        processors: Name and ``custom_params`` of each processor; a chain's links. May be empty.
        tokens: The tokens of the answer.
        edits: Each distinct edit once.
        blocks: The thinking blocks.
        names: Names of edited tokens by id, for the first tokens of each edit.
        likely: The ``top_logprobs`` of each token; may be empty.
        finish: Finish reason, in words.
        notes: Contradictions between request and answer, in words.
    """

    processors: list[tuple[str, Mapping[str, Any]]]
    tokens: list[Token]
    edits: list[Edit]
    blocks: list[Block]
    names: Mapping[int, str]
    likely: Sequence[Sequence[Likely]]
    finish: str
    notes: Sequence[str]

    @property
    def problems(self) -> list[int]:
        """Indices of the tokens that contradict the request."""
        return [place for place, token in enumerate(self.tokens) if token.problem]

    @property
    def text(self) -> str:
        """The text of the answer."""
        return "".join(token.text for token in self.tokens)

    def words(self, edit: Edit) -> str:
        """Return a description of an edit."""
        ids, why = edit.token_ids, f": {edit.why}" if edit.why else ""
        count = f"{len(ids):,} token{'s' * (len(ids) != 1)}"
        match edit.what:
            case What.FORCED:
                said = f"`{self.names[ids[0]]}` forced"
            case What.BIASED:
                low, high = min(edit.values), max(edit.values)
                by = f"{low:+g}" if low == high else f"{low:+g} to {high:+g}"
                said = f"{count} biased by {by}"
            case What.NEAR_TOP:
                (sigmas,) = edit.values
                said = f"tokens excluded whose logit is over {sigmas:g} sigma below the largest"
            case What.SCALED:
                (factor,) = edit.values
                said = f"all logits times {factor:.3g}"
            case What.POOLED:
                into = self.names[edit.into] if edit.into is not None else ""
                said = f"{count} give way to `{into}`"
            case What.ENDED:
                said = "answer ended"
            case What.REWRITTEN:
                shut = f", {count} banned" if ids else ""
                said = f"logits changed, as far as a replay can tell{shut}"
            case _:
                said = f"{count} {edit.what}"
        return said + why

    def listed(self, edit: Edit) -> list[str]:
        """Return the names of an edit's first tokens, with their biases if any."""
        names = [self.names[token_id] for token_id in edit.token_ids[:SHOWN]]
        if edit.what is What.BIASED:
            return [f"{name} {value:+.3g}" for name, value in zip(names, edit.values, strict=False)]
        return names

    def to_dict(self) -> dict[str, Any]:
        """Return the trace as JSON values: ``sglang-lp trace --format json``."""
        return {
            "processors": [
                {"name": name, "custom_params": params} for name, params in self.processors
            ],
            "tokens": [
                {key: value for key, value in self._token(place) if value or key == "token_id"}
                for place in range(len(self.tokens))
            ],
            "edits": [
                {
                    "by": edit.by,
                    "what": edit.what.value,
                    "words": self.words(edit),
                    "token_ids": edit.token_ids,
                    "values": edit.values,
                    "into": edit.into,
                    "always": edit.always,
                }
                for edit in self.edits
            ],
            "blocks": [block._asdict() for block in self.blocks],
            "problems": self.problems,
            "finish": self.finish,
            "notes": self.notes,
        }

    def _token(self, place: int) -> Iterator[tuple[str, Any]]:
        yield from zip(Token._fields, self.tokens[place], strict=True)
        if self.likely:
            yield "likely", [one._asdict() for one in self.likely[place]]

    def _repr_html_(self) -> str:
        """Return the page, in a frame of its own, for notebooks."""
        from html import escape

        from sglang_lp.trace.page import write_page

        return (
            '<iframe style="width: 100%; height: 36rem; border: 0" sandbox="allow-scripts" '
            f'srcdoc="{escape(write_page(self))}"></iframe>'
        )


def trace_answer(
    processor: type[Any] | None, exchange: Exchange, served: ServedModel | None = None
) -> Trace:
    """Replay a processor over an answer.

    Args:
        processor: The class that the request names, ``None`` for none.
        exchange: Request and answer, from ``read_exchange``.
        served: The model, as far as it is known. Without a tokenizer tokens are numbers, and text
            parameters cannot be replayed; without end tokens the request has to name them.

    Raises:
        RequestError: The parameters do not fit the processor or the model: a server would have
            refused the request. Or the class is no ``LogitProcessor``.
        Unsupported: torch or numpy is not installed.
    """
    check_packages()
    served = ServedModel() if served is None else served
    tokenizer, spelling = served.tokenizer, Spelling(served.tokenizer)
    prompt_ids, output_ids = exchange.prompt_ids, exchange.output_ids
    if processor is None:
        done = Replay([], [], [ReplayedStep((), 0, "")] * len(output_ids))
    elif issubclass(processor, LogitProcessor):
        done = replay(
            processor(),
            exchange.custom_params,
            prompt_ids,
            output_ids,
            vocab_size=max(served.vocab_size or 0, _vocab_size(exchange, spelling)),
            served=served,
            limit=exchange.limit,
        )
    else:
        raise RequestError(
            f"{processor.__name__} follows only SGLang's contract: its edits cannot be replayed "
            "from tokens; a trace needs a LogitProcessor"
        )
    pieces = spelling.spell(output_ids)
    tokens = [
        Token(
            token_id,
            piece.text,
            piece.name,
            step.edits,
            step.looked,
            step.problem or _unknown(token_id, tokenizer, known=piece.known),
        )
        for token_id, piece, step in zip(output_ids, pieces, done.steps, strict=True)
    ]
    about = {
        token_id
        for edit in done.edits
        for token_id in (*edit.token_ids[:SHOWN], *(() if edit.into is None else (edit.into,)))
    }
    notes = [*exchange.notes]
    found = Trace(
        [*zip(_names(done), _given(exchange.custom_params, len(done.processors)), strict=True)],
        tokens,
        done.edits,
        [],
        {token_id: spelling.name(token_id) for token_id in about},
        exchange.likely if len(exchange.likely) == len(output_ids) else (),
        exchange.finish,
        notes,
    )
    budget = _budget(done)
    finder = _finder(budget, tokenizer)
    if finder is not None:
        found.blocks.extend(_blocks(found, budget, finder, prompt_ids))
    if tokenizer is not None and exchange.text is not None:
        notes.extend(_other_text(found, exchange.text))
    return found


def check_packages() -> None:
    """Refuse a replay without its packages, which a client may not have.

    Raises:
        Unsupported: A package is not installed.
    """
    for package in ("torch", "numpy"):
        if find_spec(package) is None:
            raise Unsupported(
                f"a trace needs {package}, which a server has: pip install 'sglang-lp[trace]'"
            )


def _unknown(token_id: int, tokenizer: Any, *, known: bool) -> str:
    return "" if known or tokenizer is None else f"the tokenizer has no token {token_id}"


def _names(done: Replay) -> list[str]:
    return [processor.name for processor, _ in done.processors]


def _given(custom_params: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the parameters of each processor, without the place of a link."""
    own = {key: value for key, value in custom_params.items() if not is_private(key)}
    if "chain" not in own:
        return [own] * count
    return [
        {key.partition(".")[2]: value for key, value in own.items() if key.startswith(f"{place}.")}
        for place in range(count)
    ]


def _vocab_size(exchange: Exchange, spelling: Spelling) -> int:
    """Return a sufficient number of logits: a model may have more than its tokenizer."""
    given = [
        number
        for key, value in exchange.custom_params.items()
        for number in (value if isinstance(value, list | tuple) else [value])
        if isinstance(number, int) and "token_id" in key
    ]
    # SGLang's pad values in the prompts of images are no ids.
    ids = [i for i in (*exchange.prompt_ids, *exchange.output_ids, *given) if i < _PAD]
    return max([spelling.size, *(i + 1 for i in ids)])


def _budget(done: Replay) -> Any:
    """Return the parameters of the thinking budget; ``None`` without one."""
    return next(
        (p for one, p in done.processors if isinstance(one, ThinkingBudgetLogitProcessor)), None
    )


def _finder(budget: Any, tokenizer: Any) -> Finder | None:
    """Return the finder of thinking blocks; ``None`` if the delimiters are unknown."""
    if budget is not None:
        return finder_of(budget)
    try:
        found = resolve(tokenizer) if tokenizer is not None else None
    except RequestError:
        found = None
    return finder_for(BlockTokens(found.start_ids, found.end_ids)) if found else None


def _blocks(
    trace: Trace, budget: Any, finder: Finder, prompt_ids: Sequence[int]
) -> Iterator[Block]:
    output_ids = [token.token_id for token in trace.tokens]
    inside = budget is not None and budget.force_reasoning
    for block in find_blocks(finder, prompt_ids, output_ids, inside=inside):
        first = max(0, block.start)
        stop = len(output_ids) if block.end is None else block.end + 1
        spent = stop if budget is None else max(first, block.spent_at(budget.limit))
        closed = "" if block.end is None else _closer(trace, block.end)
        if block.ended is EndCause.TOOL_CALL:
            closed = "a tool call"
        yield Block(first, stop, spent if spent < stop else None, closed)


def _closer(trace: Trace, place: int) -> str:
    for index in trace.tokens[place].edits:
        edit = trace.edits[index]
        if edit.what is What.FORCED:
            return f"{trace.processors[edit.by][0]}{f': {edit.why}' if edit.why else ''}"
    return "the model"


def _other_text(trace: Trace, text: str) -> Iterator[str]:
    """Yield a note if the tokens do not spell the text of the answer."""
    plain = trace.text
    named = "".join(token.text or token.name for token in trace.tokens)
    # A stop string is cut off, and a tokenizer of SentencePiece drops the first space.
    if not any(one.lstrip().startswith(text.strip()) for one in (plain, named)):
        yield (
            "the tokens of the answer do not spell its text: the tokenizer may be another model's"
        )
