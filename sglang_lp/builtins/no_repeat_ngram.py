"""No n-gram twice within a sliding window."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import msgspec

from sglang_lp.builtins.ngrams import PRIME, Bases, Text, draw_bases, text_of
from sglang_lp.builtins.ocr import SETTINGS, Preset
from sglang_lp.params import Parameters, PositiveInt, TokenIdSet
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp._engine.ids import Ids
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

#: Tokens that may come before they are read: 256 rows that wake at once read them in 20 ms.
_LONGEST_SLEEP = 32


class Scope(StrEnum):
    """Which tokens of a request count."""

    ALL = "all"
    OUTPUT = "output"


class _History(NamedTuple):
    """The tokens of a request that count."""

    prompt_ids: Sequence[int]
    output_ids: Sequence[int]


class _Collision(Exception):
    """Two different sequences have the same hash."""


class _Followers:
    """Several tokens that have followed the same ones in the output."""

    __slots__ = ("ids", "places")

    def __init__(self) -> None:
        #: Where each of them stood last, in that order.
        self.places: dict[int, int] = {}
        #: The same tokens, as an array that is banned at once.
        self.ids = array("q")

    def add(self, token_id: int, place: int) -> None:
        if self.places.pop(token_id, None) is None:
            self.ids.append(token_id)
        self.places[token_id] = place

    def leave(self, token_id: int, place: int) -> None:
        """Forget a token, unless it came again."""
        if self.places.get(token_id) == place:
            del self.places[token_id]
            self.ids.remove(token_id)


#: For the hash of n - 1 tokens the index of what followed them, or several of them.
_Layer: TypeAlias = dict[int, "int | _Followers"]


class _Window:
    """The tokens that have followed the newest n - 1 tokens within the window.

    Tokens are numbered from the start of the prompt and read from the request. Sequences of them
    are found by a rolling hash modulo a prime (Karp and Rabin, 1987, doi 10.1147/rd.312.0249) to
    bases that nobody knows, and compared before they count. So taking a token in costs the same
    however long the n-grams, the window and the history are.

    What follows in the prompt is a :class:`Text`, which copies of it share; what follows in the
    output is a dict, of at most as many entries as the window has tokens. A fork lays a dict of its
    own over that, so the window that it is a fork of must not move meanwhile.

    An n-gram cannot come again unless its thirds do. So a third that is new to the window puts off
    the next repetition to when it lies outside the newest n - 1 tokens.
    """

    __slots__ = (
        "_back",
        "_before",
        "_end",
        "_first",
        "_inverse",
        "_keys",
        "_layers",
        "_new",
        "_second",
        "_start",
        "_text",
        "_text_end",
        "_third",
        "_third_keys",
        "_third_size",
        "_thirds",
        "_top",
        "_whitelist",
        "_window",
    )

    def __init__(
        self,
        params: DeepseekOCRNoRepeatNGramLogitProcessor.Params,
        prompt_ids: Sequence[int],
        bases: Bases | None = None,
    ) -> None:
        ngram_size: int = params.ngram_size  # type: ignore[assignment]  # a preset set it
        window_size: int = params.window_size  # type: ignore[assignment]
        self._whitelist = params.whitelist_token_ids or frozenset()
        self._window = window_size
        #: Tokens of an n-gram but for the last one, and of a third.
        self._before = ngram_size - 1
        self._third_size = (ngram_size + 1) // 3
        self._end = self._text_end = len(prompt_ids)
        self._start = max(0, self._end - window_size)
        self._text: Text = text_of(prompt_ids, self._start, self._before, self._third_size, bases)
        first, second, _ = self._text.bases
        #: What a hash is multiplied by when it moves on by a token, and what that token is.
        self._inverse = pow(first, -1, PRIME), pow(second, -1, PRIME)
        self._top = pow(first, self._before - 1, PRIME), pow(second, self._before - 1, PRIME)
        self._back = pow(first, self._third_size - 1, PRIME)
        #: Hashes of the newest n - 1 tokens, and of the newest third.
        self._first, self._second, self._third = self._text.rolled
        #: End of the newest third that was new to the window.
        self._new = self._start + self._text.new
        #: What followed in the output; and in the drafts of this fork, and of those before it.
        self._layers: tuple[_Layer, ...] = ({},)
        #: For each third of the output where it ended last.
        self._thirds: dict[int, int] = {}
        #: Under which keys each token of the output was entered.
        self._keys: deque[int] = deque()
        self._third_keys: deque[int] = deque()

    def fork(self) -> _Window:
        """Return a window that moves on by itself."""
        forked = copy(self)
        forked._layers = (*self._layers, {})  # noqa: SLF001 - of its own kind
        return forked

    @property
    def due(self) -> int:
        """Number of the first token that could complete an n-gram of the window."""
        return self._new + self._before + 1 - self._third_size if self._third_size else 0

    def slide(self, history: Request | _History, count: int) -> None:  # noqa: C901 - see the loop
        """Take in the next ``count`` tokens.

        Raises:
            _Collision: This needs a window with other bases.
        """
        start, end, before, third = self._start, self._end, self._before, self._third_size
        token_ids = _tokens(history, end, end + count)
        coefficients = self._text.bases.coefficients
        entering = coefficients(token_ids)
        leaving = coefficients(_padded(history, start, end - before, count))
        leaving_third = coefficients(_padded(history, start, end - third, count))
        (inverse, inverse_2), (top, top_2), back = self._inverse, self._top, self._back
        first, second, hashed = self._first, self._second, self._third
        original = len(self._layers) == 1
        layer, thirds, keys, third_keys = (
            *(self._layers[-1], self._thirds, self._keys, self._third_keys),
        )
        whitelist, window = self._whitelist, self._window
        prompted = self._text_end - third
        noted = third if original else 0  # a fork sleeps no more
        # What is done for each token stands here and not in functions: it is most of the time of
        # a batch (benchmarks/cost.py, ngram-30-90).
        for token_id, new, out, out_of_third in zip(
            token_ids, entering, leaving, leaving_third, strict=True
        ):
            if end - start >= before:
                key = first << 30 | second
                if token_id not in whitelist:
                    if key in layer:
                        self._enter_again(history, key, end, token_id)
                    else:
                        layer[key] = end
                if original:
                    keys.append(key)
            end += 1
            if before:
                first = ((first - out) * inverse + new * top) % PRIME
                second = ((second - out) * inverse_2 + new * top_2) % PRIME
            if noted:
                hashed = ((hashed - out_of_third) * inverse + new * back) % PRIME
                if end - start < third:
                    self._new = end
                    continue
                last = thirds.get(hashed)
                if last is None and end - window <= prompted:
                    in_text = self._text.last_third(hashed)
                    last = None if in_text < 0 else in_text + start
                # As a part of an n-gram in the window, the one before begins there.
                if last is None or last - third < end - window:
                    self._new = end
                thirds[hashed] = end
                third_keys.append(hashed)
        self._first, self._second, self._third = first, second, hashed
        self._end = end
        if original:
            self._drop(history)

    def _enter_again(
        self, history: Request | _History, key: int, place: int, token_id: int
    ) -> None:
        """Note that a token followed those with this hash, as another one has before."""
        layer = self._layers[-1]
        known = layer[key]
        if not self._is_same(history, _place_of(known), place):
            raise _Collision
        if isinstance(known, int):
            (other,) = _tokens(history, known, known + 1)
            if other == token_id:
                layer[key] = place
            else:
                layer[key] = several = _Followers()
                several.add(other, known)
                several.add(token_id, place)
        else:
            known.add(token_id, place)

    def _drop(self, history: Request | _History) -> None:
        """Forget what is no longer in the window."""
        keys, third_keys, thirds = self._keys, self._third_keys, self._thirds
        (layer,) = self._layers
        first = self._end - len(keys)
        for place in range(first, self._end - self._window + self._before):
            key = keys.popleft()
            known = layer.get(key)
            if known == place:  # nearly always
                del layer[key]
            elif isinstance(known, _Followers):
                (token_id,) = _tokens(history, place, place + 1)
                known.leave(token_id, place)
                if not known.places:
                    del layer[key]
        first = self._end - len(third_keys) + 1
        for end in range(first, self._end - self._window + 1):
            hashed = third_keys.popleft()
            if thirds[hashed] == end:
                del thirds[hashed]

    def banned(self, history: Request | _History, vocab_size: int) -> Iterator[Ids | Sequence[int]]:
        """Yield the tokens that would complete an n-gram of the window now, in several lists.

        Args:
            history: Of the request.
            vocab_size: The lists hold no token from here on: pad values of image prompts are in the
                history but not in the vocabulary.
        """
        if self._end - self._start < self._before:
            return
        # The first token that may have followed: the n-gram that it ends begins in the window.
        oldest = self._end - self._window + self._before
        if oldest < self._text_end:
            yield from self._prompted(history, oldest, vocab_size)
        key = self._first << 30 | self._second
        for layer in self._layers:
            known = layer.get(key)
            if known is None or not self._is_same(history, _place_of(known), self._end):
                continue
            if isinstance(known, int):
                if known >= oldest:
                    yield _tokens(history, known, known + 1)
            elif _place_of(known) >= oldest:
                yield known.ids
            else:
                yield [token_id for token_id, place in known.places.items() if place >= oldest]

    def _prompted(
        self, history: Request | _History, oldest: int, vocab_size: int
    ) -> Iterator[Ids | list[int]]:
        """Yield those that have followed in the prompt, at number ``oldest`` or later."""
        group = self._text.group(self._first, self._second)
        if group is None:
            return
        ids, places = group.ids, group.places
        if not self._is_same(history, self._start + int(places[0]), self._end):
            return
        since = oldest - self._start
        if isinstance(places, list):
            yield [
                token_id
                for token_id, place in zip(ids, places, strict=True)
                if place >= since and token_id < vocab_size and token_id not in self._whitelist
            ]
        else:
            yield from self._text.later(group, since, self._whitelist, vocab_size)

    def _is_same(self, history: Request | _History, place: int, other: int) -> bool:
        """Tell whether the n - 1 tokens before two numbers are the same."""
        before = self._before
        return not before or _tokens(history, place - before, place) == _tokens(
            history, other - before, other
        )


def _place_of(known: int | _Followers) -> int:
    """Return the number of the oldest token that followed."""
    return known if isinstance(known, int) else next(iter(known.places.values()))


def _padded(history: Request | _History, start: int, first: int, count: int) -> array[int]:
    """Return ``count`` tokens from number ``first`` on, zeros for those before ``start``."""
    missing = min(count, max(0, start - first))
    if not missing:
        return _tokens(history, first, first + count)
    return array("q", bytes(8 * missing)) + _tokens(history, first + missing, first + count)


def _counted(request: Request) -> Request | _History:
    """Return the history that counts: the request's, or that without its prompt."""
    return request if request.params.scope == Scope.ALL else _History((), request.output_ids)


def _tokens(request: Request | _History, start: int, stop: int) -> array[int]:
    """Return the tokens from number ``start`` to before ``stop``, prompt and output in a row."""
    split = len(request.prompt_ids)
    if start >= split:
        tokens = request.output_ids[start - split : stop - split]
        return tokens if isinstance(tokens, array) else array("q", tokens)
    tokens = array("q", request.prompt_ids[start:stop])
    tokens.extend(request.output_ids[: max(stop - split, 0)])
    return tokens


class DeepseekOCRNoRepeatNGramLogitProcessor(LogitProcessor):
    """Ban every token that would repeat an n-gram of the last ``window_size`` tokens.

    The sizes of n-grams and window are given, or are those published for an OCR model
    (``preset``). With ``scope="all"`` prompt and output count alike, as in SGLang; with
    ``scope="output"`` generated tokens alone do, as in DeepSeek's own code.

    Same as SGLang 0.5.23's class of this name given the same history, except that parameters
    that cannot work are refused instead of ignored.
    """

    __module__ = "sglang_lp.builtins"
    example: ClassVar[Mapping[str, Any]] = {"preset": "deepseek-ocr"}
    reads_prompt = True

    class Params(Parameters, frozen=True):
        """What a request may set.

        Attributes:
            ngram_size: Tokens per n-gram. Required without a preset.
            window_size: Tokens to look back over, at least ``ngram_size``. Required without a
                preset.
            whitelist_token_ids: Tokens that may always come.
            preset: Published settings, in place of those parameters that are left out:
                ``"deepseek-ocr"`` and ``"deepseek-ocr-2"`` for an image, with ``-pdf`` and
                ``-eval`` for their other scripts; ``"unlimited-ocr"`` for one page, with
                ``-multi-page`` for several.
            scope: Which tokens count: ``"all"`` or ``"output"``.
        """

        ngram_size: PositiveInt | None = None
        window_size: PositiveInt | None = None
        whitelist_token_ids: TokenIdSet | None = None
        preset: Preset | None = None
        scope: Scope = Scope.ALL

        def __post_init__(self) -> None:
            """Fill in the preset, and refuse a window in which no n-gram fits."""
            if self.preset is not None:
                for name, value in SETTINGS[self.preset]._asdict().items():
                    if getattr(self, name) is None:
                        msgspec.structs.force_setattr(self, name, value)
            if self.ngram_size is None or self.window_size is None:
                name = "ngram_size" if self.ngram_size is None else "window_size"
                raise ValueError(f"{name}: required, because no preset is given")
            if self.window_size < self.ngram_size:
                raise ValueError(
                    f"window_size: expected at least ngram_size, got {self.window_size} for "
                    f"{self.ngram_size}-grams, which would never ban anything"
                )

    def start(self, request: Request) -> _Window:
        """Index what the window holds of the prompt, if it counts."""
        return _Window(request.params, _counted(request).prompt_ids)

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Slide the window."""
        history, count = _counted(request), len(token_ids)
        while True:
            try:
                request.state.slide(history, count)
            except _Collision:
                request.state = _Window(request.params, history.prompt_ids, draw_bases())
                count = len(history.output_ids)
            else:
                return

    def fork(self, request: Request) -> _Window:
        """Lay an empty window over the one of the request."""
        return request.state.fork()  # type: ignore[no-any-return]

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban what would repeat, or sleep until something can."""
        window, history = request.state, _counted(request)
        due = window.due - len(history.prompt_ids)
        if request.position < due:
            edits.wake_at(min(due, request.position + _LONGEST_SLEEP))
            return
        for token_ids in window.banned(history, edits.vocab_size):
            edits.ban(token_ids)

    def explain(self, request: Request) -> str:
        """Say what would be repeated."""
        params = request.params
        return (
            f"each would repeat {params.ngram_size} tokens in a row of the last "
            f"{params.window_size}"
        )
