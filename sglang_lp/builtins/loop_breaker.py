"""An end to endless repetition."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta

from sglang_lp.params import Parameters
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

#: Taking in a token costs at most one dict entry for each place in a longest pattern.
PatternSize = Annotated[int, Meta(ge=1, le=1024)]


class Action(StrEnum):
    """What ends the loop."""

    #: The token that would continue it is banned.
    BAN = "ban"
    #: The request ends, with a finish reason that names the loop.
    END = "end"


class _Tail:
    """How long the output has repeated itself, for each size of a pattern."""

    __slots__ = ("_last", "_length", "_places", "_runs")

    def __init__(self, max_pattern_size: int) -> None:
        self._length = 0
        #: The newest tokens, as many as a longest pattern has, and where each of them stands.
        self._last: deque[int] = deque(maxlen=max_pattern_size)
        self._places: dict[int, deque[int]] = {}
        #: For each size, how many of the newest tokens are the same as the one so much earlier.
        self._runs: dict[int, int] = {}

    def push(self, token_id: int) -> None:
        """Take in a token."""
        here, runs = self._length, self._runs
        places = self._places.get(token_id, ())
        self._runs = {here - place: runs.get(here - place, 0) + 1 for place in places}
        if len(self._last) == self._last.maxlen:
            leaving = self._places[self._last[0]]
            leaving.popleft()
            if not leaving:
                del self._places[self._last[0]]
        self._last.append(token_id)
        self._places.setdefault(token_id, deque()).append(here)
        self._length += 1

    def loops(self, min_size: int, min_count: int) -> list[tuple[int, int]]:
        """Return each size of a pattern that is repeated, and the token that comes next in it."""
        return [
            (size, self._last[-size])
            for size, run in self._runs.items()
            if size >= min_size and run >= size * (min_count - 1)
        ]


class LoopBreakerLogitProcessor(LogitProcessor):
    """End a loop: the same tokens again and again at the end of the output.

    A loop is a pattern of ``min_pattern_size`` to ``max_pattern_size`` tokens that ends the output
    ``min_count`` times or more in a row. Rule and names are those of ``repetition_detection`` in
    vLLM. The prompt does not count.

    ``action="ban"`` bans the token that would begin the next repetition, so that the model must
    continue in another way. ``action="end"`` ends the request with the token that is sampled then;
    its finish reason is ``stop``, and the loop is named in place of a matched stop string
    (``matched`` of ``/generate``, ``matched_stop`` of the OpenAI endpoints).
    """

    __module__ = "sglang_lp.builtins"
    example: ClassVar[Mapping[str, Any]] = {
        "max_pattern_size": 64,
        "min_count": 4,
        "action": "end",
    }

    class Params(Parameters, frozen=True):
        """What a request may set.

        Attributes:
            max_pattern_size: Most tokens of a pattern, 1 to 1,024.
            min_count: Number of times in a row from which a pattern is a loop.
            min_pattern_size: Fewest tokens of a pattern. More than 1 spares short runs of one
                token, such as the lines of a table: a run of ``min_pattern_size * min_count``
                tokens is a loop of larger patterns too.
            action: ``"ban"`` or ``"end"``.
        """

        max_pattern_size: PatternSize
        min_count: Annotated[int, Meta(ge=2, le=2**31 - 1)]
        min_pattern_size: PatternSize = 1
        action: Action = Action.BAN

        def __post_init__(self) -> None:
            """Refuse a smallest size above the largest."""
            if self.min_pattern_size > self.max_pattern_size:
                raise ValueError(
                    "min_pattern_size: expected at most max_pattern_size, which is "
                    f"{self.max_pattern_size}, got {self.min_pattern_size}"
                )

    def start(self, request: Request) -> _Tail:
        """Begin with no output."""
        return _Tail(request.params.max_pattern_size)

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the output."""
        for token_id in token_ids:
            request.state.push(token_id)

    def edit(self, request: Request, edits: Edits) -> None:
        """Break the loop, if the output ends with one."""
        params = request.params
        loops = request.state.loops(params.min_pattern_size, params.min_count)
        if not loops:
            return
        if params.action is Action.BAN:
            edits.ban({token_id for _, token_id in loops})
        else:
            size = min(size for size, _ in loops)
            edits.finish(f"loop: {size} tokens, {params.min_count} times")
