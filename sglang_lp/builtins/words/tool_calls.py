"""A limit on the number of tool calls."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta

from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.caches import shared_by_copies
from sglang_lp.edits import MAX_BIAS
from sglang_lp.errors import InvalidParameter
from sglang_lp.params import FewTokenIds, PositiveInt, Text, replaced
from sglang_lp.processor import LogitProcessor
from sglang_lp.served_model import ends_for
from sglang_lp.text.banned import banned_texts
from sglang_lp.text.encoding import check_texts, known_ids
from sglang_lp.text.triggers import text_trigger
from sglang_lp.text.vocabulary import vocabulary_of

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel
    from sglang_lp.text.banned import BannedTexts
    from sglang_lp.text.pieces import Pieces
    from sglang_lp.text.vocabulary import Vocabulary

# Few tokens contain a text of four characters, so the ban of a step stays short.
_Start = Annotated[str, Meta(min_length=4, max_length=256)]
_Starts = Annotated[tuple[_Start, ...], Meta(min_length=1, max_length=16)]


#: The end of a call in JSON, and the beginning of the next call in another line.
_NEXT_LINE = re.compile(rb"\}[^\S\n]*\n\s*\{")
_AFTER_BRACE = re.compile(rb"\}\s*\Z")


class _JsonLineStarts:
    """The tokens that begin a line with ``{`` after a line that ends with ``}``.

    Attributes:
        inside: Tokens that hold both braces.
        on_line: Tokens that begin with ``{``, after white space or not.
        after_brace: Those of them that begin with a line break.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        begin = [
            (token_id, token)
            for token_id, token in enumerate(vocabulary.tokens)
            if b"{" in token and token.lstrip()[:1] == b"{"
        ]
        self.on_line = [token_id for token_id, _ in begin]
        self.after_brace = [token_id for token_id, token in begin if b"\n" in token.split(b"{")[0]]
        self.inside = [
            token_id
            for token_id, token in enumerate(vocabulary.tokens)
            if b"}" in token and _NEXT_LINE.search(token)
        ]

    def starting(self, said: bytes) -> Iterator[Sequence[int]]:
        """Yield the tokens that begin such a line after an output."""
        yield self.inside
        if found := _AFTER_BRACE.search(said):
            yield self.on_line if b"\n" in found[0] else self.after_brace


@lru_cache(maxsize=4)
def _json_lines_of(vocabulary: Vocabulary) -> _JsonLineStarts:
    return _JsonLineStarts(vocabulary)


class _Marks:
    """The compiled texts around a call, as one text of the output shows them.

    Args:
        pieces: The tokens.
        starts: Texts that open a call, or a block of calls.
        end: The text that closes one call.
        block_end: The text that closes a block of calls; empty if there are no blocks.
        banned: The ban of ``starts``.
        lines: The tokens that open a call in another line of JSON; ``None`` if none does.
    """

    def __init__(  # noqa: PLR0913, PLR0917 - called in one place
        self,
        pieces: Pieces,
        starts: Sequence[str],
        end: str,
        block_end: str,
        banned: BannedTexts,
        lines: _JsonLineStarts | None,
    ) -> None:
        self.tokens = tokens = pieces.of
        self.starts = frozenset(text.encode() for text in starts)
        self.end, self.block_end = end.encode(), block_end.encode()
        texts = sorted({*self.starts, self.end, self.block_end} - {b""}, key=len, reverse=True)
        patterns = [*map(re.escape, texts), *([_NEXT_LINE.pattern] if lines else [])]
        self.any = re.compile(b"|".join(patterns))
        self.longest = len(texts[0])
        self.banned, self.lines = banned, lines
        self.first = frozenset(text[0] for text in texts)
        found = pieces.containing([bytes([byte]) for byte in self.first])
        #: The tokens that may hold the beginning of a text around a call.
        self.telling = frozenset(found.tolist())
        #: Of the tokens that contain a start, those with other text before it.
        self.later = [
            token_id
            for token_id in banned.always
            if not tokens[token_id].lstrip().startswith((*self.starts,))
        ]


class _Calls:
    """The calls in one text of the output.

    Attributes:
        begun: Number of calls that began. Starts with only white space between them begin one call:
            a block, and the first call in it.
        is_over: Whether the latest call has ended, with its block.
        written: The suffix of the output that may be the beginning of a start.
        at_start: Whether ``said`` follows a start, perhaps with white space in between.
        said: The last bytes of the output, which may hold a part of a mark.
    """

    __slots__ = ("_marks", "at_start", "begun", "is_over", "said", "written")

    def __init__(self, marks: _Marks) -> None:
        self._marks = marks
        self.begun = 0
        self.is_over = self.at_start = False
        self.said = b""
        self.written = marks.banned.start

    @property
    def is_settled(self) -> bool:
        """Whether a call can begin only with one of ``telling``."""
        marks = self._marks
        return marks.first.isdisjoint(self.said) and not (marks.lines and self.begun)

    @property
    def telling(self) -> frozenset[int]:
        """The tokens that may hold the beginning of a text around a call."""
        return self._marks.telling

    def read(self, token_id: int) -> None:
        """Follow one token."""
        marks = self._marks
        self.written = marks.banned.step(self.written, token_id)
        if token_id < len(marks.tokens):
            self.said += marks.tokens[token_id]
        while found := marks.any.search(self.said):
            is_start = found[0] in marks.starts
            if not is_start and found.start() >= len(self.said) - len(self.written):
                break  # this end may turn out to begin a start
            self._leave(found.start())
            self._pass(found[0])
            self.said = self.said[len(found[0]) :]
        kept = max(marks.longest - 1, len(self.written))
        if marks.lines and self.begun and (found := _AFTER_BRACE.search(self.said)):
            line = found[0].find(b"\n") + 1  # white space may be long
            self.said = self.said[: found.start() + 1] + found[0][line - 1 : line]
            kept = max(kept, 2)
        self._leave(len(self.said) - kept)

    def starting(self) -> Iterator[Sequence[int]]:
        """Yield the tokens that complete the start of another call."""
        banned, written = self._marks.banned, self.written
        if self.at_start and not self.said[: len(self.said) - len(written)].strip():
            # A start here belongs to the call that has begun, unless it leaves a begun one behind.
            yield banned.always if written else self._marks.later
        else:
            yield banned.always
            yield banned.completing(written)
        if self._marks.lines:
            yield from self._marks.lines.starting(self.said)

    def _leave(self, count: int) -> None:
        """Forget some bytes, which are not part of a mark."""
        if count > 0:
            self.at_start = self.at_start and not self.said[:count].strip()
            self.said = self.said[count:]

    def _pass(self, mark: bytes) -> None:
        """Follow a start or an end."""
        marks = self._marks
        if mark in marks.starts:
            self.begun += not self.at_start
            # A name follows an open tag. SGLang's parsers read even a start there as a name.
            self.at_start, self.is_over = not _is_open(mark), False
        elif mark not in {marks.end, marks.block_end}:  # another line of JSON
            self.begun += bool(self.begun)
        elif self.begun:
            self.at_start = False
            self.is_over = self.is_over or mark == (marks.block_end or marks.end)


class ToolCallLimitLogitProcessor(LogitProcessor):
    """End the answer after a number of tool calls.

    A call starts with one of ``tool_call_starts`` and ends with ``tool_call_end``, or with its
    block, whichever tokens spell them. Only generated tokens count. Starts with only white space
    between them begin one call: a block, and the first call in it. Once ``max_tool_calls`` calls
    have begun, another start is banned, also before the end of the last call, because SGLang's
    parsers find a call without an end as well. After the last call the answer ends: the end tokens
    get the largest bias, so the next token is one of them. If another rule bans them, or a grammar
    needs more text first, the answer goes on until it may end.

    On a server with a reasoning parser, ``where`` decides whether calls inside of thinking count.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    example: ClassVar[Mapping[str, Any]] = {
        "max_tool_calls": 1,
        "tool_call_starts": ["<tool_call>"],
        "tool_call_end": "</tool_call>",
    }

    class Params(PhasedParams, frozen=True):
        """The parameters of a request.

        Attributes:
            max_tool_calls: Most calls in the answer.
            tool_call_starts: Up to 16 texts of 4 to 256 characters that open a call. Left out: the
                texts of the served tool-call parser (``--tool-call-parser``).
            tool_call_end: The text that closes one call; given exactly if ``tool_call_starts`` is.
            tool_block_end: The text that closes a block of calls, for formats with blocks: the
                answer ends after it.
            json_lines: Whether a line that begins with ``{`` opens a call as well, after a line of
                a call that ends with ``}``: SGLang's parser ``qwen`` reads streams so.
            eos_token_ids: The tokens that end an answer. Left out: the end tokens of the served
                model.
        """

        max_tool_calls: PositiveInt
        tool_call_starts: _Starts | None = None
        tool_call_end: Text | None = None
        tool_block_end: Text | None = None
        json_lines: bool = False
        eos_token_ids: FewTokenIds | None = None

        def __post_init__(self) -> None:
            """Refuse starts without an end, and an end without starts."""
            if (self.tool_call_starts is None) != (self.tool_call_end is None):
                name = "tool_call_end" if self.tool_call_end is None else "tool_call_starts"
                raise ValueError(f"{name}: expected tool_call_starts and tool_call_end together")
            if self.tool_block_end is not None and self.tool_call_end is None:
                raise ValueError("tool_block_end: expected tool_call_end as well")
            check_texts("tool_call_starts", self.tool_call_starts or ())
            check_texts("tool_call_end", [self.tool_call_end or ""])
            check_texts("tool_block_end", [self.tool_block_end or ""])

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Any:
        """Fill in the texts of the served tool-call parser, and the model's end tokens.

        Raises:
            InvalidParameter: The texts or the end tokens are unknown, or the model cannot write a
                text.
        """
        ends = ends_for(cls.__name__, "eos_token_ids", params.eos_token_ids, served)
        params = replaced(params, cls.__name__, eos_token_ids=ends)
        if params.tool_call_starts is None:
            form = served.tool_calls
            if form is None or not form.end:
                raise InvalidParameter(
                    cls.__name__,
                    "tool_call_starts",
                    "required with tool_call_end: this server has no tool-call parser by which "
                    "the end of one call can be told",
                )
            params = replaced(
                params,
                cls.__name__,
                tool_call_starts=form.starts,
                tool_call_end=form.end,
                tool_block_end=form.block_end or None,
                json_lines=form.json_lines,
            )
        cls._marks(params, served.tokenizer)  # made now, while no step waits for it
        return super().fit_params(params, served)

    @classmethod
    def _marks(cls, params: Any, tokenizer: Any) -> tuple[_Marks, ...]:
        """Compile the texts around a call, for each text of the output that a client may get."""
        starts, end = params.tool_call_starts, params.tool_call_end
        block_end = params.tool_block_end or ""
        for name in ("tool_call_end", "tool_block_end"):
            if text := getattr(params, name):
                text_trigger(cls.__name__, name, tokenizer, text)  # checks it
        banned = banned_texts(cls.__name__, "tool_call_starts", tokenizer, starts)
        vocabulary = vocabulary_of(tokenizer)
        texts = (vocabulary, vocabulary.named)
        return tuple(
            _marks_of(text, starts, end, block_end, one, params.json_lines)
            for text, one in zip(texts, banned, strict=False)
        )

    def start(self, request: Request) -> tuple[_Calls, ...]:
        """Begin outside of a call."""
        return tuple(map(_Calls, self._marks(request.params, request.tokenizer)))

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Count the calls."""
        for calls in request.state:
            for token_id in token_ids:
                calls.read(token_id)

    def fork(self, request: Request) -> tuple[_Calls, ...]:
        """Copy the state; the compiled texts are shared."""
        return tuple(map(copy, request.state))

    def edit(self, request: Request, edits: Edits) -> None:
        """Once the last call has begun ban what completes a start; after it push the end tokens."""
        for calls in request.state:
            if calls.begun < request.params.max_tool_calls:
                continue
            if calls.is_over:
                edits.bias(request.params.eos_token_ids, MAX_BIAS)
            for token_ids in calls.starting():
                edits.ban(known_ids(token_ids, edits.vocab_size))

    @classmethod
    def allows(cls, params: Any, tokenizer: Any, token_ids: Iterable[int]) -> bool:
        """Tell whether no token of an answer is banned.

        Args:
            params: Fitted parameters.
            tokenizer: The served model's.
            token_ids: The answer.
        """
        every = [*map(_Calls, cls._marks(params, tokenizer))]
        for token_id in token_ids:
            for calls in every:
                if calls.begun >= params.max_tool_calls and any(
                    token_id in banned for banned in calls.starting()
                ):
                    return False
                calls.read(token_id)
        return True

    def explain(self, request: Request) -> str:
        """Say how many calls have come."""
        params = request.params
        begun = max(calls.begun for calls in request.state)
        return f"{begun} of {params.max_tool_calls} tool calls have begun"


def _is_open(start: bytes) -> bool:
    """Tell whether a start is a tag that goes on, such as ``<function=``."""
    return start.startswith(b"<") and not start.endswith(b">")


@shared_by_copies
def _marks_of(  # noqa: PLR0913, PLR0917 - called in one place
    vocabulary: Vocabulary,
    starts: tuple[str, ...],
    end: str,
    block_end: str,
    banned: BannedTexts,
    has_lines: bool,  # noqa: FBT001
) -> _Marks:
    lines = _json_lines_of(vocabulary) if has_lines else None
    return _Marks(vocabulary.exact, starts, end, block_end, banned, lines)
