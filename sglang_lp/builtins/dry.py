"""Don't Repeat Yourself: a penalty that grows with the length of a repetition."""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta

from sglang_lp.edits import MAX_BIAS
from sglang_lp.params import Parameters, TokenIdSet
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

Factor = Annotated[float, Meta(gt=0, le=MAX_BIAS)]
Base = Annotated[float, Meta(ge=1, le=100)]
AllowedLength = Annotated[int, Meta(ge=1, le=64)]
LastN = Annotated[int, Meta(ge=2, le=2048)]

#: Logarithm of the largest float32: llama.cpp stops raising the base there.
_LOG_MAX = 88.7228391


class _Repetition:
    """Earlier occurrences of the newest tokens within the window, and how long each match is.

    A token costs one dict entry for each earlier occurrence of the newest ``allowed_length``
    tokens: a few in most texts, as many as the window is long at worst.
    """

    __slots__ = (
        "_allowed",
        "_base",
        "_breakers",
        "_entries",
        "_grams",
        "_matches",
        "_tokens",
        "_unbroken",
        "_window",
    )

    def __init__(
        self,
        allowed_length: int,
        window: int,
        breakers: frozenset[int],
        prompt_ids: Sequence[int],
    ) -> None:
        self._allowed = allowed_length
        self._window = window
        self._breakers = breakers
        #: The tokens of the window and some before it; the first of them is number ``_base``.
        self._tokens: array[int] = array("q")
        self._base = 0
        #: For ``allowed_length`` tokens in a row, the numbers of the tokens that they end with.
        self._grams: dict[bytes, deque[int]] = {}
        #: The same in the order of those numbers, to know what leaves the window.
        self._entries: deque[tuple[bytes, int]] = deque()
        #: For each place where the newest tokens have stood: how many of them.
        self._matches: dict[int, int] = {}
        #: How many tokens came since the last breaker.
        self._unbroken = 0
        places: Iterable[int] = ()
        for token_id in prompt_ids[-window:]:
            places = self._place(token_id)
        # Counted once for the whole prompt, not along with every token of it.
        back = _common_prefixes(self._tokens[::-1])
        last = len(self._tokens) - 1
        self._matches = {place: back[last - place] for place in places if place != last}

    def push(self, token_id: int) -> None:
        """Take in a token."""
        before, shortest = self._matches, self._allowed - 1
        places = self._place(token_id)
        self._matches = {place: before.get(place - 1, shortest) + 1 for place in places}
        self._matches.pop(self._base + len(self._tokens) - 1, None)

    def _place(self, token_id: int) -> Iterable[int]:
        """Note where a token stands; return where the newest ones have stood, that included."""
        tokens, allowed, window = self._tokens, self._allowed, self._window
        here = self._base + len(tokens)
        tokens.append(token_id)
        if len(tokens) == 2 * window + 1:
            del tokens[:window]
            self._base += window
        self._unbroken = 0 if token_id in self._breakers else self._unbroken + 1
        if len(tokens) < allowed:
            return ()
        while self._entries and here - self._entries[0][1] > window - allowed:
            self._leave(self._entries.popleft()[0])
        gram = tokens[-allowed:].tobytes()
        places = self._grams.setdefault(gram, deque())
        places.append(here)
        self._entries.append((gram, here))
        return places

    def _leave(self, gram: bytes) -> None:
        places = self._grams[gram]
        places.popleft()
        if not places:
            del self._grams[gram]

    def lengths(self) -> dict[int, int]:
        """Return each token that would continue a repetition, and how long the longest is."""
        tokens, most = self._tokens, self._unbroken
        longest: dict[int, int] = {}
        if most < self._allowed:
            return longest
        after = 1 - self._base
        # A match lies in the window as a whole.
        outside = max(-1, self._base + len(tokens) - 1 - self._window)
        for place, match in self._matches.items():
            length = min(match, most, place - outside)
            token_id = tokens[place + after]
            if length > longest.get(token_id, 0):
                longest[token_id] = length
        for breaker in self._breakers.intersection(longest):
            del longest[breaker]
        return longest


def _common_prefixes(tokens: Sequence[int]) -> list[int]:
    """Return for each index how many tokens from there on are the first ones over again.

    The Z algorithm (Gusfield, Algorithms on Strings, Trees, and Sequences, 1997, section 1.3),
    in a time proportional to the number of tokens.
    """
    length = len(tokens)
    same = [length] * length
    left = right = 0  # the known stretch that reaches furthest
    for index in range(1, length):
        count = min(same[index - left], right - index) if index < right else 0
        while index + count < length and tokens[count] == tokens[index + count]:
            count += 1
        same[index] = count
        if index + count > right:
            left, right = index, index + count
    return same


class DRYLogitProcessor(LogitProcessor):
    """Penalise each token that would continue a repetition, more for a longer one.

    If the last ``n`` tokens, ``dry_allowed_length`` or more, have occurred before, the token that
    followed them there loses ``dry_multiplier * dry_base ** (n - dry_allowed_length)``. Prompt
    and output count alike. A repetition does not reach across a sequence breaker, and breakers
    are never penalised.

    Parameters and semantics are those of llama.cpp's DRY sampler, with these differences:
    breakers are single token ids, not texts; a penalty ends at 10,000; and
    ``dry_penalty_last_n`` has an upper limit instead of a value for the whole context, because
    a step on a text that repeats one token takes time in proportion to it (docs/performance.md
    has the figure). ``dry_base`` and ``dry_allowed_length`` have llama.cpp's defaults; its
    multiplier is 0 for off, and 0.8 is what the sampler's author recommends.
    """

    __module__ = "sglang_lp.builtins"
    example: ClassVar[Mapping[str, Any]] = {
        "dry_multiplier": 0.8,
        "dry_sequence_breaker_ids": [198, 25],
    }
    reads_prompt = True

    class Params(Parameters, frozen=True):
        """What a request may set.

        Attributes:
            dry_multiplier: Penalty at ``dry_allowed_length`` tokens, in logits.
            dry_base: Factor on the penalty for each token more, 1 to 100.
            dry_allowed_length: Longest repetition without a penalty plus one, 1 to 64 tokens.
            dry_penalty_last_n: How many tokens to look back over, 2 to 2,048.
            dry_sequence_breaker_ids: Tokens that end every repetition; llama.cpp takes those
                with a newline, a colon, a double quote or an asterisk.
        """

        dry_multiplier: Factor = 0.8
        dry_base: Base = 1.75
        dry_allowed_length: AllowedLength = 2
        dry_penalty_last_n: LastN = 1024
        dry_sequence_breaker_ids: TokenIdSet = frozenset()

        def __post_init__(self) -> None:
            """Refuse a window in which nothing can be repeated."""
            if self.dry_penalty_last_n <= self.dry_allowed_length:
                raise ValueError(
                    "dry_penalty_last_n: expected more than dry_allowed_length, which is "
                    f"{self.dry_allowed_length}, got {self.dry_penalty_last_n}"
                )

        def penalty(self, length: int) -> float:
            """Return the penalty for continuing a repetition of so many tokens."""
            exponent = length - self.dry_allowed_length
            if self.dry_base > 1.000001:  # noqa: PLR2004 - llama.cpp's threshold
                exponent = min(exponent, int(_LOG_MAX / math.log(self.dry_base)))
            return min(MAX_BIAS, self.dry_multiplier * self.dry_base**exponent)

    def start(self, request: Request) -> _Repetition:
        """Take in what the window holds of the prompt."""
        params = request.params
        return _Repetition(
            params.dry_allowed_length,
            params.dry_penalty_last_n,
            params.dry_sequence_breaker_ids,
            request.prompt_ids,
        )

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Slide the window."""
        for token_id in token_ids:
            request.state.push(token_id)

    def edit(self, request: Request, edits: Edits) -> None:
        """Penalise what would continue a repetition."""
        lengths = request.state.lengths()
        if lengths:
            # Pad values of image prompts are in the history but not in the vocabulary.
            ids = [token_id for token_id in lengths if token_id < edits.vocab_size]
            edits.bias(ids, [-request.params.penalty(lengths[token_id]) for token_id in ids])

    def explain(self, request: Request) -> str:
        """Say how long the longest repetition is."""
        longest = max(request.state.lengths().values(), default=0)
        return f"each would continue a repetition, the longest one of {longest} tokens"
