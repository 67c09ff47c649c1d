"""A limit on the number of tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from msgspec import Meta

from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.edits import MAX_BIAS
from sglang_lp.errors import InvalidParameter
from sglang_lp.params import FewTokenIds, PositiveInt, Text, replaced
from sglang_lp.processor import LogitProcessor
from sglang_lp.served_model import ends_for
from sglang_lp.text.banned import banned_texts
from sglang_lp.text.encoding import check_texts, known_ids
from sglang_lp.text.triggers import text_trigger

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel
    from sglang_lp.text.banned import BannedTexts
    from sglang_lp.text.triggers import Trigger

# Few tokens contain a text of four characters, so the ban of a step stays short.
_Start = Annotated[str, Meta(min_length=4, max_length=256)]
_Starts = Annotated[tuple[_Start, ...], Meta(min_length=1, max_length=16)]


class _Texts(NamedTuple):
    """The compiled texts around a call."""

    starts: tuple[Trigger, ...]
    end: tuple[Trigger, ...]
    block_end: tuple[Trigger, ...]
    banned: tuple[BannedTexts, ...]


class _Progress:
    """The number of calls so far, and the text that comes next: a start or an end."""

    __slots__ = ("begun", "calls", "is_over", "left", "texts", "waits", "written")

    def __init__(self, texts: _Texts, most: int) -> None:
        self.texts = texts
        self.calls = 0
        #: Number of calls that may still start.
        self.left = most
        #: Whether the last call has ended, with its block.
        self.is_over = False
        #: The texts that are waited for, and the part of each that has come.
        self.waits = texts.starts
        self.begun = [one.start for one in texts.starts]
        #: For each ban, the suffix of the output that may be the beginning of a start.
        self.written = [one.start for one in texts.banned]

    def read(self, token_id: int) -> None:
        """Follow one token. The rest of a token that completes a text is no part of the next."""
        both = zip(self.texts.banned, self.written, strict=True)
        self.written = [one.step(written, token_id) for one, written in both]
        steps = zip(self.waits, self.begun, strict=True)
        self.begun = [one.step(begun, token_id) for one, begun in steps]
        if None in self.begun:
            self._pass()

    def _pass(self) -> None:
        """Wait for the next text."""
        texts = self.texts
        if self.waits is texts.starts:
            self.waits = texts.end
        elif self.waits is texts.end:
            self.calls += 1
            self.left -= 1
            self.waits = texts.starts if self.left else texts.block_end
        else:
            self.waits = ()
        self.is_over = not self.waits
        self.begun = [one.start for one in self.waits]


class ToolCallLimitLogitProcessor(LogitProcessor):
    """End the answer after a number of tool calls.

    A call starts with one of ``tool_call_starts`` and ends with ``tool_call_end``, whichever tokens
    spell them. Only generated tokens count. After ``max_tool_calls`` calls another start is banned,
    and the answer ends: the end tokens get the largest bias, so the next token is one of them. If
    another rule bans them, or a grammar needs more text first, the answer goes on until it may end.

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
            eos_token_ids: The tokens that end an answer. Left out: the end tokens of the served
                model.
        """

        max_tool_calls: PositiveInt
        tool_call_starts: _Starts | None = None
        tool_call_end: Text | None = None
        tool_block_end: Text | None = None
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
            )
        cls._texts(params, served.tokenizer)  # made now, while no step waits for it
        return super().fit_params(params, served)

    @classmethod
    def _texts(cls, params: Any, tokenizer: Any) -> _Texts:
        """Compile the texts around a call."""

        def triggers(name: str, texts: Iterable[str | None]) -> tuple[Trigger, ...]:
            return tuple(text_trigger(cls.__name__, name, tokenizer, one) for one in texts if one)

        starts = params.tool_call_starts
        return _Texts(
            triggers("tool_call_starts", starts),
            triggers("tool_call_end", (params.tool_call_end,)),
            triggers("tool_block_end", (params.tool_block_end,)),
            banned_texts(cls.__name__, "tool_call_starts", tokenizer, starts),
        )

    def start(self, request: Request) -> _Progress:
        """Begin outside of a call."""
        params = request.params
        return _Progress(self._texts(params, request.tokenizer), params.max_tool_calls)

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Count the calls."""
        for token_id in token_ids:
            request.state.read(token_id)

    def fork(self, request: Request) -> _Progress:
        """Copy the state; the compiled texts are shared."""
        return copy(request.state)  # type: ignore[no-any-return]

    def edit(self, request: Request, edits: Edits) -> None:
        """After the last call ban what completes a start, and push the end tokens."""
        progress = request.state
        if progress.left:
            return
        if progress.is_over:
            edits.bias(request.params.eos_token_ids, MAX_BIAS)
        for one, written in zip(progress.texts.banned, progress.written, strict=True):
            for token_ids in (one.always, one.completing(written)):
                edits.ban(known_ids(token_ids, edits.vocab_size))

    def explain(self, request: Request) -> str:
        """Say how many calls have come."""
        params = request.params
        return f"{request.state.calls} of {params.max_tool_calls} tool calls have come"
