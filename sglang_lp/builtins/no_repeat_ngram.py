"""No n-gram twice within a sliding window."""

from __future__ import annotations

import copy
import os
from array import array
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import msgspec

from sglang_lp.builtins._ocr import SETTINGS, Preset
from sglang_lp.params import Parameters, PositiveInt, TokenIdSet
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

#: Of the rolling hash: the largest prime of two digits of a Python integer, and a base that is
#: another one in every process.
_PRIME = 2**60 - 93
_BASE = int.from_bytes(os.urandom(8), "big") % _PRIME

#: Fewest surplus hashes to keep before they are deleted.
_SLACK = 1024


class Scope(StrEnum):
    """Which tokens of a request count."""

    ALL = "all"
    OUTPUT = "output"


class _History(NamedTuple):
    """The tokens of a request that count."""

    prompt_ids: Sequence[int]
    output_ids: Sequence[int]


class _Window:
    """The tokens that have followed the newest n - 1 tokens within the window.

    An n-gram cannot come again unless its thirds do. So of each token only the third of an n-gram
    that ends there is indexed; a whole n-gram is when its third comes again. A third that is new
    to the window puts off the next repetition to when it lies outside the newest n - 1 tokens.

    Tokens are numbered from the start of the prompt and read from the request. Runs of them are
    told apart by a rolling hash modulo a prime (Karp and Rabin, 1987, doi 10.1147/rd.312.0249) to
    a base that nobody knows. So taking a token in costs the same however long the n-grams and the
    window are. No index has more entries than the window has tokens; of the hashes an eighth more
    are kept, or a thousand. The price: in a step two different runs have the same hash with a
    probability below ``ngram_size * window_size / 2**59``, which for 30-grams in a window of
    131,072 is 7e-12.
    """

    __slots__ = (
        "_base",
        "_end",
        "_entered",
        "_followers",
        "_hashes",
        "_last",
        "_limit",
        "_new",
        "_shift",
        "_size",
        "_third",
        "_third_shift",
        "_thirds",
        "_window",
    )

    def __init__(self, ngram_size: int, window_size: int, start: int) -> None:
        self._size = ngram_size
        self._window = window_size
        self._third = (ngram_size + 1) // 3
        #: Most n-grams that lie in the window.
        self._limit = window_size - ngram_size + 1
        #: What a hash is multiplied by when n - 1 tokens, or a third of n, come after it.
        self._shift = pow(_BASE, ngram_size - 1, _PRIME)
        self._third_shift = pow(_BASE, self._third, _PRIME)
        #: Hashes of the tokens from ``start`` to before number ``_base``, ``_base + 1``, ...
        self._hashes = [0]
        self._base = start
        #: Number of the token at which the next third ends.
        self._end = start + self._third - 1
        #: The newest token at which a third ended that was new to the window.
        self._new = self._end - 1
        #: For each third where it ended last, and the thirds in the order of their ends.
        self._last: dict[int, int] = {}
        self._thirds: deque[int] = deque()
        #: For each n - 1 tokens what followed them, and where they ended when it did so last.
        self._followers: dict[int, dict[int, int]] = {}
        #: Which of those ended where.
        self._entered: dict[int, tuple[int, int]] = {}

    def copy(self) -> _Window:
        """Return another that slides on by itself."""
        other = copy.copy(self)
        other._hashes = self._hashes.copy()  # noqa: SLF001 - of the same class, as below
        other._last = self._last.copy()  # noqa: SLF001
        other._thirds = self._thirds.copy()  # noqa: SLF001
        other._followers = {run: after.copy() for run, after in self._followers.items()}  # noqa: SLF001
        other._entered = self._entered.copy()  # noqa: SLF001
        return other

    def slide(self, request: Request | _History, count: int) -> None:
        """Take in the next ``count`` tokens."""
        hashes, last = self._hashes, self._last
        read = self._base + len(hashes) - 1
        newest = hashes[-1]
        for token_id in _tokens(request, read, read + count):
            newest = (newest * _BASE + token_id) % _PRIME
            hashes.append(newest)
        shift, third = self._third_shift, self._third
        first = self._end + 1 - third - self._base
        ends = hashes[first + third :]
        thirds = [
            (after - before * shift) % _PRIME
            for before, after in zip(hashes[first : first + len(ends)], ends, strict=True)
        ]
        for end, key in enumerate(thirds, self._end):
            before = last.setdefault(key, end)
            if before == end:
                self._new = end
            else:
                last[key] = end
                self._enter(request, before)
        self._thirds.extend(thirds)
        self._end += len(thirds)
        self._leave()

    def _leave(self) -> None:
        """Forget what is no longer in the window."""
        last = self._last
        oldest = self._end - len(self._thirds)
        for end in range(oldest, self._end - self._limit - 1):  # the newest has no follower yet
            key = self._thirds.popleft()
            newest = last.pop(key)
            if newest != end:  # it came again, so its n-gram was indexed
                last[key] = newest
                self._forget(end)
        surplus = len(self._hashes) - self._window - 2
        if surplus > max(_SLACK, self._window // 8):  # seldom, because the rest moves up
            del self._hashes[:surplus]
            self._base += surplus

    @property
    def due(self) -> int:
        """Number of the first token that could complete an n-gram of the window."""
        return self._new + self._size - self._third + 1

    def followers(self) -> Collection[int]:
        """Return the tokens that would complete an n-gram of the window now."""
        newest = self._before(self._end)
        return () if newest is None else self._followers.get(newest, ())

    def _before(self, number: int) -> int | None:
        """Return the hash of the n - 1 tokens before a number; ``None`` if there are fewer."""
        stop = number - self._base
        start = stop - self._size + 1
        if start < 0:
            return None
        return (self._hashes[stop] - self._hashes[start] * self._shift) % _PRIME

    def _enter(self, request: Request | _History, end: int) -> None:
        """Index the n-gram whose first n - 1 tokens end at number ``end``."""
        newest = self._before(end + 1)
        if newest is not None:
            (follower,) = _tokens(request, end + 1, end + 2)
            self._followers.setdefault(newest, {})[follower] = end
            self._entered[end] = newest, follower

    def _forget(self, end: int) -> None:
        entered = self._entered.pop(end, None)
        if entered is not None:
            newest, follower = entered
            after = self._followers[newest]
            if after[follower] == end:
                del after[follower]
                if not after:
                    del self._followers[newest]


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
        params = request.params
        history = _counted(request)
        prompt_length = len(history.prompt_ids)
        start = max(0, prompt_length - params.window_size)
        window = _Window(params.ngram_size, params.window_size, start)
        window.slide(history, prompt_length - start)
        return window

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Slide the window."""
        request.state.slide(_counted(request), len(token_ids))

    def fork(self, request: Request) -> _Window:
        """Copy the window, which has as many entries as it has tokens."""
        window: _Window = request.state
        return window.copy()

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban what would repeat, or sleep until something can."""
        window, history = request.state, _counted(request)
        due = window.due - len(history.prompt_ids)
        if request.position < due:
            edits.wake_at(due)
            return
        banned = window.followers()
        if banned:
            whitelist = request.params.whitelist_token_ids or ()
            # Pad values of image prompts are in the history but not in the vocabulary.
            edits.ban(i for i in banned if i not in whitelist and i < edits.vocab_size)
