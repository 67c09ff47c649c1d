"""An end to endless repetition."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Self

import msgspec
from msgspec import Meta

from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.builtins.repetition.novelty import (
    NGRAM_SIZE,
    WINDOW_SIZE,
    NgramSize,
    Novelty,
    Share,
    WindowSize,
    check_window,
)
from sglang_lp.builtins.repetition.repeats import Tail
from sglang_lp.caches import shared_by_copies
from sglang_lp.edits import LENGTH, STOP
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.builtins.repetition.repeats import Numbers
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

PatternSize = Annotated[int, Meta(ge=1, le=1024)]
LoopCount = Annotated[int, Meta(ge=2, le=2**31 - 1)]


#: Most tokens that may come before a sleeping request reads them: it bounds the work of a step in
#: which many rows wake.
_LONGEST_SLEEP = 32


class LoopPreset(StrEnum):
    """A kind of text in which models loop."""

    REASONING = "reasoning"
    CODE = "code"
    STRUCTURED_OUTPUT = "structured-output"


class _LoopSetting(NamedTuple):
    """The parameters of a preset, under their own names."""

    max_pattern_size: int
    min_pattern_size: int
    min_count: int


#: The configuration that vllm-project/vllm pull request 52677 documents for loops in reasoning;
#: the default profile of ggml-org/llama.cpp pull request 26039, made for coding agents that repeat
#: whole blocks; the values that vllm-project/vllm pull request 40097 sets for structured output.
_SETTINGS = {
    LoopPreset.REASONING: _LoopSetting(128, 4, 4),
    LoopPreset.CODE: _LoopSetting(1024, 16, 4),
    LoopPreset.STRUCTURED_OUTPUT: _LoopSetting(20, 1, 3),
}


class Action(StrEnum):
    """The way to end a loop."""

    #: The tokens that would continue it are banned.
    BAN = "ban"
    #: The request ends as finished, with a finish reason that names the loop.
    END = "end"
    #: The request ends as truncated.
    TRUNCATE = "truncate"


class _Loop(NamedTuple):
    """A loop that the output ends with.

    Attributes:
        told: A description for messages.
        following: The tokens that would continue it.
    """

    told: str
    following: Sequence[int]


class _Loops:
    """The patterns that the output repeats now, and the n-grams of its window."""

    __slots__ = ("_enough", "_params", "novelty", "tail")

    def __init__(self, params: Any) -> None:
        self._params = params
        self.tail = Tail(params.max_pattern_size)
        self._enough = enough(params.max_pattern_size, params.min_pattern_size, params.min_count)
        self.novelty: Novelty | None = None
        if params.min_new_share is not None:
            self.novelty = Novelty(params.ngram_size, params.window_size)

    def fork(self) -> _Loops:
        """Return loops of a copy of the output, which grows on its own."""
        forked = copy(self)
        forked.tail = self.tail.fork()
        if self.novelty is not None:
            forked.novelty = self.novelty.fork()
        return forked

    def push(self, token_id: int) -> None:
        """Append a token to the output."""
        self.tail.push(token_id)
        if self.novelty is not None:
            self.novelty.push(token_id)

    def quiet_for(self) -> int:
        """Return how many tokens have to come, at least, before a loop can be found."""
        # A run grows by at most one token at a time. A share of new n-grams may fall at each.
        return 0 if self.novelty is not None else self.tail.tokens_to(self._enough)

    def found(self) -> Iterator[_Loop]:
        """Yield the loop of each rule that finds one."""
        import numpy as np

        params = self._params
        places = self.tail.reached(self._enough)
        if len(places):
            following = np.unique(self.tail.following[places])
            told = f"{int(places[0]) + 1} tokens, {params.min_count} times"
            yield _Loop(told, array("q", following.tobytes()))
        if self.novelty is not None and self.novelty.few_are_new(params.min_new_share):
            told = (
                f"{self.novelty.new} new {params.ngram_size}-grams in {params.window_size} tokens"
            )
            yield _Loop(told, self.novelty.repeating())


@shared_by_copies
def enough(max_pattern_size: int, min_pattern_size: int, min_count: int) -> Numbers:
    """Return for each pattern size from 1 on how many repeating tokens make a loop."""
    import numpy as np

    found = np.arange(1, max_pattern_size + 1) * (min_count - 1)
    found[: min_pattern_size - 1] = 1 << 62  # never
    return found


class LoopBreakerLogitProcessor(LogitProcessor):
    """End a loop: the same tokens again and again at the end of the output.

    A loop is a pattern of ``min_pattern_size`` to ``max_pattern_size`` tokens that ends the output
    ``min_count`` times or more in a row. Rule and names are those of ``repetition_detection`` in
    vLLM. The prompt does not count. Without parameters the preset ``reasoning`` applies.

    With ``min_new_share``, output that hardly says anything new is a loop as well, although no
    pattern repeats exactly: fewer than this share of the n-grams of the last ``window_size`` tokens
    are new, which means that they do not occur earlier in this window.

    ``action`` decides what happens to a loop:

    - ``"ban"`` bans the tokens that would begin the next repetition, or repeat an n-gram of the
      window, so that the model must continue in another way.
    - ``"end"`` ends the request with the token that is sampled then. The finish reason is ``stop``,
      and the loop is named in place of a matched stop string (``matched`` of ``/generate``,
      ``matched_stop`` of the OpenAI endpoints).
    - ``"truncate"`` ends the request as ``max_new_tokens`` does, with the finish reason ``length``,
      so that trainers treat the answer as unfinished. ``/generate`` names the loop in
      ``finish_reason["reason"]``.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    finishes = True
    example: ClassVar[Mapping[str, Any]] = {"preset": "reasoning", "action": "end"}

    class Params(PhasedParams, frozen=True):
        """The parameters of a request.

        Attributes:
            preset: Published settings, in place of those parameters that are left out:
                ``reasoning`` (patterns of 4 to 128 tokens, 4 times), ``code`` (16 to 1,024 tokens,
                4 times) or ``structured-output`` (1 to 20 tokens, 3 times).
            max_pattern_size: Most tokens of a pattern, 1 to 1,024.
            min_count: Number of times in a row from which a pattern is a loop; given with
                ``max_pattern_size`` where there is no preset.
            min_pattern_size: Fewest tokens of a pattern. More than 1 spares short runs of one
                token, such as the lines of a table: a run of ``min_pattern_size * min_count``
                tokens is also a loop of larger patterns. Left out, and without a preset: 1.
            min_new_share: Smallest share of new n-grams, more than 0 and at most 1; below it the
                output is a loop. At 0.15, 3 of 1,058 texts without a loop count as one
                (``python -m benchmarks.evidence.novelty``). Left out: new n-grams are not counted.
            ngram_size: With ``min_new_share``, tokens of an n-gram, 1 to 16. Left out: 4.
            window_size: With ``min_new_share``, tokens of the window, up to 512; shorter output
                is no such loop. Left out: 128.
            action: What happens to a loop: ``"ban"``, ``"end"`` or ``"truncate"``.
        """

        preset: LoopPreset | None = None
        max_pattern_size: PatternSize | None = None
        min_count: LoopCount | None = None
        min_pattern_size: PatternSize | None = None
        min_new_share: Share | None = None
        ngram_size: NgramSize | None = None
        window_size: WindowSize | None = None
        action: Action = Action.BAN

        def __post_init__(self) -> None:
            """Fill in missing parameters, and refuse a smallest size above the largest."""
            setting: Mapping[str, int] = {"min_pattern_size": 1}
            if self.preset is not None or (
                self.max_pattern_size is None and self.min_count is None
            ):
                setting = _SETTINGS[self.preset or LoopPreset.REASONING]._asdict()
            for name, value in setting.items():
                if getattr(self, name) is None:
                    msgspec.structs.force_setattr(self, name, value)
            if self.max_pattern_size is None or self.min_count is None:
                names = "max_pattern_size", "min_count"
                missing, other = names if self.max_pattern_size is None else names[::-1]
                raise ValueError(f"{missing}: required with {other}, or give a preset")
            if (self.min_pattern_size or 1) > self.max_pattern_size:
                raise ValueError(
                    "min_pattern_size: expected at most max_pattern_size, which is "
                    f"{self.max_pattern_size}, got {self.min_pattern_size}"
                )
            self._fill_in_window()

        def _fill_in_window(self) -> None:
            """Fill in the sizes of n-grams and window, or refuse them without their share."""
            for name, size in (("ngram_size", NGRAM_SIZE), ("window_size", WINDOW_SIZE)):
                if getattr(self, name) is not None:
                    if self.min_new_share is None:
                        raise ValueError(f"{name}: expected min_new_share with it")
                elif self.min_new_share is not None:
                    msgspec.structs.force_setattr(self, name, size)
            if self.ngram_size is not None and self.window_size is not None:
                check_window(self.ngram_size, self.window_size)

    def serving(self, params: Any) -> Self:
        """Return a processor that knows whether it may end the answer."""
        made = type(self)()
        made.finishes = params.action is not Action.BAN
        return made

    def start(self, request: Request) -> _Loops:
        """Begin with no output."""
        return _Loops(request.params)

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the output."""
        for token_id in token_ids:
            request.state.push(token_id)

    def fork(self, request: Request) -> _Loops:
        """Copy the newest tokens, and how they repeat."""
        return request.state.fork()  # type: ignore[no-any-return]

    def edit(self, request: Request, edits: Edits) -> None:
        """Break the loop, if the output ends with one, or sleep until it can."""
        quiet = request.state.quiet_for()
        if quiet > 0:
            edits.wake_at(request.position + min(quiet, _LONGEST_SLEEP))
            return
        action = request.params.action
        for loop in request.state.found():
            if action is Action.BAN:
                edits.ban(loop.following)
            else:
                edits.finish(f"loop: {loop.told}", LENGTH if action is Action.TRUNCATE else STOP)
                return

    def explain(self, request: Request) -> str:
        """Describe the loop."""
        told = [loop.told for loop in request.state.found()]
        return f"the output ends with {' and '.join(told)}" if told else ""
