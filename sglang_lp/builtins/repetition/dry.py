"""Don't Repeat Yourself: a penalty that grows with the length of a repetition."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.builtins.prompt.prompts import ReadPrompts, numbers_of
from sglang_lp.builtins.repetition.repeats import Tail
from sglang_lp.caches import shared_by_copies
from sglang_lp.edits import MAX_BIAS
from sglang_lp.params import Text, TokenIdSet
from sglang_lp.processor import LogitProcessor
from sglang_lp.text.banned import banned_texts
from sglang_lp.text.encoding import check_texts, known_ids, served_vocabulary

if TYPE_CHECKING:
    from sglang_lp.builtins.repetition.repeats import Numbers
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel

Factor = Annotated[float, Meta(gt=0, le=MAX_BIAS)]
Base = Annotated[float, Meta(ge=1, le=100)]
AllowedLength = Annotated[int, Meta(ge=1, le=64)]
Breakers = Annotated[tuple[Text, ...], Meta(max_length=64)]
LastN = Annotated[int, Meta(ge=2, le=2048)]

#: llama.cpp's defaults.
_BREAKERS = ("\n", ":", '"', "*")

#: Logarithm of the largest float32: llama.cpp stops raising the base there.
_LOG_MAX = 88.7228391

#: Most tokens that are pushed one by one.
_FEW = 64
#: Fewest matches that are told apart with numpy instead of a dict.
_MANY = 48

#: Bits of a length, which a window limits.
_LENGTH_BITS = 12
_LENGTH_MASK = (1 << _LENGTH_BITS) - 1


class _Repetition:
    """Earlier occurrences of the newest tokens within the window, and the length of each match.

    Attributes:
        prompt: The part of the prompt in the window, as bytes.
        tail: The tokens of the window, and their runs.
        unbroken: Number of tokens since the last breaker.
    """

    __slots__ = (
        "__weakref__",
        "_allowed",
        "_breaks",
        "_read",
        "_window",
        "prompt",
        "tail",
        "unbroken",
    )

    def __init__(self, allowed: int, window: int, breakers: frozenset[int], text: bytes) -> None:
        import numpy as np

        self.prompt = text
        self._allowed = allowed
        self._window = window
        self._breaks = _breaks(breakers)
        # A match lies in the window as a whole, so it is no earlier than this.
        tokens = np.frombuffer(text, dtype=np.int64)
        self.tail = Tail(window - allowed, tokens)
        broken = self._is_breaker(tokens).nonzero()[0]
        self.unbroken = len(tokens) - 1 - int(broken[-1]) if len(broken) else len(tokens)
        #: The object that this is a fork of: other copies of the request find it while it lives.
        self._read: _Repetition | None = None

    def fork(self) -> _Repetition:
        """Return repetitions of a copy of the text, which grows on its own."""
        # Not copy(), which takes three times as long (``benchmarks/drafts/at_work``).
        forked = object.__new__(_Repetition)
        forked.prompt, forked._breaks = self.prompt, self._breaks
        forked._allowed, forked._window = self._allowed, self._window
        forked.tail, forked.unbroken = self.tail.fork(), self.unbroken
        forked._read = self._read or self
        return forked

    def push(self, token_id: int) -> None:
        """Append a token."""
        self.tail.push(token_id)
        breaks = self._breaks
        broken = token_id < len(breaks) and breaks[token_id]
        self.unbroken = 0 if broken else self.unbroken + 1

    def lengths(self) -> tuple[Sequence[int], Any] | None:
        """Return the tokens that would continue a repetition, and the longest repetition of each.

        Returns:
            The tokens in ascending order, and the lengths; ``None`` if no token would.
        """
        import numpy as np

        if self.unbroken < self._allowed:
            return None
        places = self.tail.reached(self._allowed)
        if not len(places):
            return None
        # Sorted together with its tokens, the longest repetition of each comes last.
        packed = self.tail.following[places] << _LENGTH_BITS
        lengths = np.minimum(self.tail.runs(places), self._window - 1 - places)
        packed |= np.minimum(lengths, self.unbroken, out=lengths)
        packed.sort()
        ids, lengths = packed >> _LENGTH_BITS, packed & _LENGTH_MASK
        if len(self._breaks):
            free = ~self._is_breaker(ids)
            ids, lengths = ids[free], lengths[free]
        if len(ids) < _MANY:
            longest = dict(zip(ids.tolist(), lengths.tolist(), strict=True))
            return [*longest], [*longest.values()]
        last = np.ones(len(ids), dtype=bool)
        np.not_equal(ids[1:], ids[:-1], out=last[:-1])
        return array("q", ids[last].tobytes()), lengths[last]

    def _is_breaker(self, tokens: Numbers) -> Any:
        import numpy as np

        if not len(self._breaks):
            return np.zeros(len(tokens), dtype=bool)
        return self._breaks[np.minimum(tokens, len(self._breaks) - 1)]


_ends: ReadPrompts[_Repetition] = ReadPrompts()


@shared_by_copies
def _breaks(breakers: frozenset[int]) -> Any:
    """Return for each token, up to the last breaker and one more, whether it is a breaker."""
    import numpy as np

    breaks = np.zeros(max(breakers) + 2 if breakers else 0, dtype=bool)
    breaks[[*breakers]] = True
    return breaks


@shared_by_copies
def penalties_of(multiplier: float, base: float, allowed: int, window: int) -> Numbers:
    """Return the bias for continuing a repetition, indexed by its number of tokens."""
    import numpy as np

    most = window
    if base > 1.000001:  # noqa: PLR2004 - llama.cpp's threshold
        most = int(_LOG_MAX / math.log(base))
    exponents = (min(max(0, length - allowed), most) for length in range(window + 1))
    return -np.array([min(MAX_BIAS, multiplier * base**exponent) for exponent in exponents])


class DRYLogitProcessor(LogitProcessor):
    """Penalise each token that would continue a repetition, more for a longer one.

    If the last ``n`` tokens, ``dry_allowed_length`` or more, have occurred before, the token that
    followed them there loses ``dry_multiplier * dry_base ** (n - dry_allowed_length)``. Prompt
    and output both count. A repetition does not reach across a sequence breaker, and breakers
    are never penalised.

    Parameters and semantics are those of llama.cpp's DRY sampler, with three exceptions:

    - Each token that contains one of ``dry_sequence_breakers`` is a breaker; a sequence of tokens
      is never one.
    - A penalty is at most 10,000.
    - ``dry_penalty_last_n`` has an upper limit instead of a value for the whole context, because
      a step on a text that repeats one token takes time in proportion to it.

    ``dry_base``, ``dry_allowed_length`` and ``dry_sequence_breakers`` have llama.cpp's defaults.
    The default of ``dry_multiplier`` is 0.8, which the sampler's author recommends; llama.cpp's is
    0, which is off.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    example: ClassVar[Mapping[str, Any]] = {
        "dry_multiplier": 0.8,
        "dry_sequence_breakers": ["\n", ":", "</td>"],
    }
    reads_prompt = True

    class Params(PhasedParams, frozen=True):
        """The parameters of a request.

        Attributes:
            dry_multiplier: Penalty at ``dry_allowed_length`` tokens, in logits.
            dry_base: Factor on the penalty for each further token, 1 to 100.
            dry_allowed_length: Tokens of the shortest repetition with a penalty, 1 to 64.
            dry_penalty_last_n: Tokens to look back over, 2 to 2,048.
            dry_sequence_breakers: Up to 64 texts that end every repetition. Left out, and without
                ids: a newline, a colon, a double quote and an asterisk; none on a server that has
                no tokenizer.
            dry_sequence_breaker_ids: The breakers as tokens.
        """

        dry_multiplier: Factor = 0.8
        dry_base: Base = 1.75
        dry_allowed_length: AllowedLength = 2
        dry_penalty_last_n: LastN = 1024
        dry_sequence_breakers: Breakers | None = None
        dry_sequence_breaker_ids: TokenIdSet | None = None

        def __post_init__(self) -> None:
            """Refuse a window in which nothing can be repeated, and breakers given twice."""
            if self.dry_sequence_breakers is not None:
                check_texts("dry_sequence_breakers", self.dry_sequence_breakers)
                if self.dry_sequence_breaker_ids is not None:
                    raise ValueError(
                        "dry_sequence_breakers: given together with dry_sequence_breaker_ids; "
                        "give one"
                    )
            if self.dry_penalty_last_n <= self.dry_allowed_length:
                raise ValueError(
                    "dry_penalty_last_n: expected more than dry_allowed_length, which is "
                    f"{self.dry_allowed_length}, got {self.dry_penalty_last_n}"
                )

    @classmethod
    def fit_params(cls, params: Any, served: ServedModel) -> Any:
        """Find the tokens of the served model that contain a breaker."""
        found = params.dry_sequence_breaker_ids
        if found is None:
            found = cls._breakers(params.dry_sequence_breakers, served)
        return msgspec.structs.replace(
            params, dry_sequence_breakers=None, dry_sequence_breaker_ids=found
        )

    @classmethod
    def _breakers(cls, texts: tuple[str, ...] | None, served: ServedModel) -> frozenset[int]:
        """Return the tokens that contain a breaker; without texts, one of llama.cpp's."""
        if texts is None:
            if served.tokenizer is None:
                return frozenset()
            name = "dry_sequence_breakers"
            alphabet = served_vocabulary(cls.__name__, name, served.tokenizer).exact.alphabet
            texts = tuple(text for text in _BREAKERS if alphabet.issuperset(text.encode()))
        if not texts:
            return frozenset()
        limit = served.vocab_size or 1 << 31
        return _containing(cls.__name__, served.tokenizer, texts, limit)

    @classmethod
    def read_of_prompt(cls, params: Any, length: int) -> int:
        """Return how much of a prompt is in the window."""
        window: int = params.dry_penalty_last_n
        return min(length, window)

    def start(self, request: Request) -> _Repetition:
        """Read the part of the prompt that is in the window."""
        params = request.params
        window = params.dry_penalty_last_n
        key = params.dry_allowed_length, window, params.dry_sequence_breaker_ids
        tokens = numbers_of(request.prompt_ids, -window)
        return _ends.of(tokens, key, lambda text: _Repetition(*key, text)).fork()

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Slide the window; read it anew where many tokens come at once."""
        if len(token_ids) <= _FEW:
            for token_id in token_ids:
                request.state.push(token_id)
            return
        params = request.params
        window = params.dry_penalty_last_n
        key = params.dry_allowed_length, window, params.dry_sequence_breaker_ids
        text = array("q", request.output_ids[-window:])
        if len(text) < window:
            text = array("q", request.prompt_ids[len(text) - window :]) + text
        request.state = _Repetition(*key, text.tobytes())

    def fork(self, request: Request) -> _Repetition:
        """Copy the window and its repetitions."""
        return request.state.fork()  # type: ignore[no-any-return]

    def edit(self, request: Request, edits: Edits) -> None:
        """Penalise the tokens that would continue a repetition."""
        found = request.state.lengths()
        if found is None:
            return
        ids, lengths = found
        params = request.params
        penalties = penalties_of(
            params.dry_multiplier,
            params.dry_base,
            params.dry_allowed_length,
            params.dry_penalty_last_n,
        )
        # Pad values of image prompts are in the history but not in the vocabulary.
        known = bisect_left(ids, edits.vocab_size)
        values = penalties[lengths[:known]]
        edits.bias(ids[:known], array("d", values.tobytes()))

    def explain(self, request: Request) -> str:
        """Say the length of the longest repetition."""
        found = request.state.lengths()
        longest = 0 if found is None else max(found[1], default=0)
        return f"each would continue a repetition, the longest one of {longest} tokens"


@shared_by_copies
def _containing(
    processor: str, tokenizer: Any, texts: tuple[str, ...], vocab_size: int
) -> frozenset[int]:
    """Return the tokens that contain a text, one set for all requests."""
    found = banned_texts(processor, "dry_sequence_breakers", tokenizer, texts)
    return frozenset(known_ids(found[-1].always, vocab_size))
