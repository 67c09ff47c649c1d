"""No n-gram twice within a sliding window."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeAlias

import msgspec

from sglang_lp.builtins.repetition.ngram_presets import SETTINGS, Preset
from sglang_lp.builtins.repetition.ngrams import PRIME, Bases, Text, draw_bases, text_of
from sglang_lp.params import Parameters, PositiveInt, TokenIdSet
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp._engine.ids import Ids
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

#: Tokens that may come before they are read: 256 rows that wake at once read them in 15 ms.
_LONGEST_SLEEP = 32

#: The largest window whose n-grams wait until they are asked for: 256 rows enter all of it at once
#: in 15 ms. In a larger one few would leave unasked.
_SMALL = 96


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
    the next repetition to when it lies outside the newest n - 1 tokens. Until then thirds alone are
    noted, and the n-grams of a small window wait: in prose most leave it without being entered.
    """

    __slots__ = (
        "_back",
        "_before",
        "_end",
        "_entered",
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
    ) -> None:
        ngram_size: int = params.ngram_size  # type: ignore[assignment]  # a preset set it
        self._window: int = params.window_size  # type: ignore[assignment]
        self._whitelist = params.whitelist_token_ids or frozenset()
        #: Tokens of an n-gram but for the last one, and of a third.
        self._before = ngram_size - 1
        self._third_size = (ngram_size + 1) // 3
        self._begin(prompt_ids, None)

    def _begin(self, prompt_ids: Sequence[int], bases: Bases | None) -> None:
        """Take in the prompt, and no more."""
        self._end = self._entered = self._text_end = len(prompt_ids)
        self._start = max(0, self._end - self._window)
        self._text: Text = text_of(prompt_ids, self._start, self._before, self._third_size, bases)
        first, second, _ = self._text.bases
        #: What a hash is multiplied by when it moves on by a token, and what that token is.
        self._inverse = pow(first, -1, PRIME), pow(second, -1, PRIME)
        self._top = pow(first, self._before - 1, PRIME), pow(second, self._before - 1, PRIME)
        self._back = pow(first, self._third_size - 1, PRIME)
        #: Hashes of the n - 1 tokens before the next one to enter, and of the newest third.
        self._first, self._second, self._third = self._text.rolled
        #: End of the newest third that was new to the window.
        self._new = self._start + self._text.new
        #: What followed in the output; and in the drafts of this fork, and of those before it.
        self._layers: tuple[_Layer, ...] = ({},)
        #: For each third of the output where it ended last.
        self._thirds: dict[int, int] = {}
        #: Under which keys each token of the window's last layer was entered.
        self._keys: deque[int] = deque()
        self._third_keys: deque[int] = deque()

    def fork(self, history: Request | _History) -> _Window:
        """Return a window that moves on by itself."""
        self._enter(history)  # once for all forks
        forked = copy(self)
        forked._layers, forked._keys = (*self._layers, {}), deque()  # noqa: SLF001 - of its own kind
        return forked

    @property
    def due(self) -> int:
        """Number of the first token that could complete an n-gram of the window."""
        return self._new + self._before + 1 - self._third_size if self._third_size else 0

    def slide(self, history: Request | _History, token_ids: Sequence[int]) -> None:
        """Take in the next tokens."""
        end = self._end
        self._end = end + len(token_ids)
        if self._third_size and len(self._layers) == 1:  # a fork sleeps no more
            self._note(history, end, token_ids)
        if self._window > _SMALL:
            self._enter(history)

    def _note(self, history: Request | _History, end: int, token_ids: Sequence[int]) -> None:
        """Note the thirds that end in tokens from number ``end`` on."""
        start, third = self._start, self._third_size
        leaving = self._coefficients(history, start, end - third, len(token_ids))
        inverse, back, hashed = self._inverse[0], self._back, self._third
        thirds, third_keys = self._thirds, self._third_keys
        fresh, last = -1, 0
        # What is done for each token is most of the time of a batch (benchmarks/cost.py,
        # ngram-30-90).
        for new, out in zip(token_ids, leaving, strict=True):
            end += 1
            hashed = ((hashed - out) * inverse + new * back) % PRIME
            if hashed not in thirds:
                fresh, last = hashed, end
            thirds[hashed] = end
            third_keys.append(hashed)
        self._third = hashed
        # As a part of an n-gram of the window, a third begins in it.
        outside = third - self._window
        if fresh >= 0 and not self._text.has_third(fresh, last + outside - start):
            self._new = last
        for number in range(end - len(third_keys) + 1, end + outside + 1):
            left = third_keys.popleft()
            if thirds[left] == number:
                del thirds[left]

    def _enter(self, history: Request | _History) -> None:
        """Enter the n-grams that have ended since the last time and are in the window."""
        end = self._end
        while self._entered < end:
            try:
                self._go_on(history)
            except _Collision:
                self._begin(history.prompt_ids, draw_bases())
                self.slide(history, _tokens(history, self._end, end))

    def _go_on(self, history: Request | _History) -> None:
        """Enter them unless two have the same hash.

        Raises:
            _Collision: They have.
        """
        start, begin, end, before = self._start, self._entered, self._end, self._before
        # The first token that is the last one of an n-gram of the window.
        oldest = end - self._window + before
        if begin - len(self._keys) < oldest:
            self._drop(history, min(oldest, begin))
        first, second = self._first, self._second
        if begin < oldest - before:  # the hashes begin anew there, as at the start of a text
            start = begin = oldest - before
            first = second = 0
        token_ids = _tokens(history, begin, end)
        leaving = self._coefficients(history, start, begin - before, end - begin)
        (inverse, inverse_2), (top, top_2) = self._inverse, self._top
        layer, keys, whitelist = self._layers[-1], self._keys, self._whitelist
        oldest = max(oldest, self._start + before)
        for place, new, out in zip(range(begin, end), token_ids, leaving, strict=True):
            if place >= oldest:
                key = first << 30 | second
                if new not in whitelist:
                    if key in layer:
                        self._enter_again(history, key, place, new)
                    else:
                        layer[key] = place
                keys.append(key)
            if before:
                first = ((first - out) * inverse + new * top) % PRIME
                second = ((second - out) * inverse_2 + new * top_2) % PRIME
        self._first, self._second, self._entered = first, second, end

    def _coefficients(
        self, history: Request | _History, start: int, first: int, count: int
    ) -> Sequence[int]:
        """Return what stands for tokens from number ``first`` on, 0 for those before ``start``.

        Tokens of the output stand for themselves: no vocabulary has as many as the prime.
        """
        if first >= max(start, self._text_end):
            return _tokens(history, first, first + count)
        missing = min(count, max(0, start - first))
        tokens = _tokens(history, first + missing, first + count)
        return self._text.bases.coefficients(array("q", bytes(8 * missing)) + tokens)

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

    def _drop(self, history: Request | _History, oldest: int) -> None:
        """Forget what followed before number ``oldest``."""
        keys, layer = self._keys, self._layers[-1]
        for place in range(self._entered - len(keys), oldest):
            key = keys.popleft()
            known = layer.get(key)
            if known == place:  # nearly always
                del layer[key]
            elif isinstance(known, _Followers):
                (token_id,) = _tokens(history, place, place + 1)
                known.leave(token_id, place)
                if not known.places:
                    del layer[key]

    def banned(self, history: Request | _History, vocab_size: int) -> Iterator[Ids | Sequence[int]]:
        """Yield the tokens that would complete an n-gram of the window now, in several lists.

        Args:
            history: Of the request.
            vocab_size: The lists hold no token from here on: pad values of image prompts are in the
                history but not in the vocabulary.
        """
        self._enter(history)
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
    early = True
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
        request.state.slide(_counted(request), token_ids)

    def fork(self, request: Request) -> _Window:
        """Lay an empty window over the one of the request."""
        return request.state.fork(_counted(request))  # type: ignore[no-any-return]

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
