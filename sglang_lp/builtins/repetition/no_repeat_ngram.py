"""No n-gram twice within a sliding window."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import msgspec
from msgspec import Meta

from sglang_lp.builtins.repetition.ngram_index import Text, text_of
from sglang_lp.builtins.repetition.ngram_presets import SETTINGS, Preset
from sglang_lp.params import Parameters, PositiveInt, TokenIdSet
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

#: An n-gram of the output is kept as its bytes, so that it is found exactly.
NgramSize = Annotated[int, Meta(ge=1, le=256)]

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


#: Bytes of a token.
_WIDTH = 8


class _Window:
    """The tokens that have followed the newest n - 1 tokens within the window.

    Tokens are numbered from the start of the prompt and read from the request.

    What follows in the prompt is a :class:`Text`, which copies of it share; what follows in the
    output is a dict by the bytes of the n - 1 tokens before, of at most as many entries as the
    window has tokens.

    An n-gram cannot come again unless its thirds do. So a third that is new to the window puts off
    the next repetition to when it lies outside the newest n - 1 tokens. Until then thirds alone are
    noted, and the n-grams of a small window wait: in prose most leave it without being entered.
    """

    __slots__ = (
        "_before",
        "_end",
        "_entered",
        "_followers",
        "_keys",
        "_new",
        "_start",
        "_text",
        "_text_end",
        "_third_keys",
        "_third_size",
        "_thirds",
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
        self._end = self._entered = self._text_end = len(prompt_ids)
        self._start = max(0, self._end - self._window)
        self._text: Text = text_of(prompt_ids, self._start, self._before, self._third_size)
        #: End of the newest third that was new to the window.
        self._new = self._start + self._text.new
        #: For the bytes of n - 1 tokens of the output, what followed: its number, or several.
        self._followers: dict[bytes, int | _Followers] = {}
        #: For each third of the output where it ended last.
        self._thirds: dict[bytes, int] = {}
        #: Under which keys the tokens of the window were entered.
        self._keys: deque[bytes] = deque()
        self._third_keys: deque[bytes] = deque()

    def fork(self, request: Request) -> _Drafted:
        """Return the window as it moves along a draft; this one must not move meanwhile."""
        self._enter(_counted(request))  # once for all forks
        return _Drafted(self, self._end, self._end)

    @property
    def due(self) -> int:
        """Number of the first token that could complete an n-gram of the window."""
        return self._new + self._before + 1 - self._third_size if self._third_size else 0

    def slide(self, request: Request, token_ids: Sequence[int]) -> None:
        """Take in the next tokens."""
        history, end = _counted(request), self._end
        self._end = end + len(token_ids)
        if self._third_size:
            self._note(history, end)
        if self._window > _SMALL:
            self._enter(history)

    def _note(self, history: Request | _History, end: int) -> None:
        """Note the thirds that end in tokens from number ``end`` on."""
        third = self._third_size
        begin = max(self._start, end + 1 - third)
        written, size = _tokens(history, begin, self._end).tobytes(), third * _WIDTH
        thirds, third_keys = self._thirds, self._third_keys
        end, fresh, last = begin + third - 1, b"", 0
        # What is done for each token is most of the time of a batch (benchmarks/cost,
        # ngram-30-90).
        for at in range(0, len(written) - size + 1, _WIDTH):
            end += 1
            key = written[at : at + size]
            if key not in thirds:
                fresh, last = key, end
            thirds[key] = end
            third_keys.append(key)
        # As a part of an n-gram of the window, a third begins in it.
        outside = third - self._window
        if fresh and not self._text.has_third(array("q", fresh), last + outside - self._start):
            self._new = last
        for number in range(end - len(third_keys) + 1, end + outside + 1):
            left = third_keys.popleft()
            if thirds[left] == number:
                del thirds[left]

    def _enter(self, history: Request | _History) -> None:
        """Enter the n-grams that have ended since the last time and are in the window."""
        begin, end, before = self._entered, self._end, self._before
        # The first token that is the last one of an n-gram of the window.
        oldest = end - self._window + before
        if begin - len(self._keys) < oldest:
            self._drop(history, min(oldest, begin))
        self._entered = end
        begin = max(begin, oldest, self._start + before)
        if begin >= end:
            return
        token_ids = _tokens(history, begin - before, end)
        written, size = token_ids.tobytes(), before * _WIDTH
        followers, keys, whitelist = self._followers, self._keys, self._whitelist
        for place, new in enumerate(token_ids[before:], begin):
            at = (place - begin) * _WIDTH
            key = written[at : at + size]
            if new not in whitelist:
                if key in followers:
                    self._enter_again(history, key, place, new)
                else:
                    followers[key] = place
            keys.append(key)

    def _enter_again(
        self, history: Request | _History, key: bytes, place: int, token_id: int
    ) -> None:
        """Note that a token followed the same ones as another has before."""
        known = self._followers[key]
        if isinstance(known, int):
            (other,) = _tokens(history, known, known + 1)
            if other == token_id:
                self._followers[key] = place
            else:
                self._followers[key] = several = _Followers()
                several.add(other, known)
                several.add(token_id, place)
        else:
            known.add(token_id, place)

    def _drop(self, history: Request | _History, oldest: int) -> None:
        """Forget what followed before number ``oldest``."""
        keys, followers = self._keys, self._followers
        for place in range(self._entered - len(keys), oldest):
            key = keys.popleft()
            known = followers.get(key)
            if known == place:  # nearly always
                del followers[key]
            elif isinstance(known, _Followers):
                (token_id,) = _tokens(history, place, place + 1)
                known.leave(token_id, place)
                if not known.places:
                    del followers[key]

    def banned(self, history: Request | _History, vocab_size: int) -> Sequence[Collection[int]]:
        """Return the tokens that would complete an n-gram of the window now, in several lists.

        Args:
            history: Of the request.
            vocab_size: The lists hold no token from here on: pad values of image prompts are in the
                history but not in the vocabulary.
        """
        self._enter(history)
        return self.banned_at(history, self._end, self._end, vocab_size)

    def banned_at(
        self, history: Request | _History, entered: int, end: int, vocab_size: int
    ) -> Sequence[Collection[int]]:
        """Return as :meth:`banned` after ``end`` tokens, of which ``entered`` have been entered.

        Looks at each of the others: for the few tokens of a draft.
        """
        before = self._before
        if end - self._start < before:
            return ()
        newest = _tokens(history, end - before, end)
        found: list[Collection[int]] = []
        # The first token that may have followed: the n-gram that it ends begins in the window.
        oldest = end - self._window + before
        if oldest < self._text_end:
            found.extend(self._prompted(newest, oldest - self._start, vocab_size))
        known = self._followers.get(newest.tobytes())
        if isinstance(known, int):
            if known >= oldest:
                found.append(_tokens(history, known, known + 1))
        elif known is not None:
            if next(iter(known.places.values())) >= oldest:
                found.append(known.ids)
            else:
                found.append([i for i, place in known.places.items() if place >= oldest])
        begin = max(entered, oldest, self._start + before)
        if begin < end:
            found.extend(self._drafted(_tokens(history, begin - before, end)))
        return found

    def _drafted(self, token_ids: array[int]) -> Iterator[Collection[int]]:
        """Yield what followed the newest of some tokens among these."""
        before, last = self._before, len(token_ids)
        newest = token_ids[last - before :]
        for place in range(before, last):
            # The last one alone differs nearly always.
            if before and token_ids[place - 1] != newest[-1]:
                continue
            token_id = token_ids[place]
            if token_ids[place - before : place] == newest and token_id not in self._whitelist:
                yield (token_id,)

    def _prompted(
        self, newest: array[int], since: int, vocab_size: int
    ) -> Iterator[Collection[int]]:
        """Yield those that have followed in the prompt, at index ``since`` of its text or later."""
        group = self._text.group(newest)
        if group is None:
            return
        if isinstance(group.places, list):
            yield [
                token_id
                for token_id, place in zip(group.ids, group.places, strict=True)
                if place >= since and token_id < vocab_size and token_id not in self._whitelist
            ]
        else:
            yield from self._text.later(group, since, self._whitelist, vocab_size)


class _Drafted:
    """A window that moves along a draft, whose tokens it does not enter.

    Args:
        window: The window before the draft.
        begin: Number of the first drafted token.
        end: Number of the token that comes next.

    Attributes:
        due: As that of the window: drafted tokens only put it off.
    """

    __slots__ = ("_begin", "_end", "_window", "due")

    def __init__(self, window: _Window, begin: int, end: int) -> None:
        self._window, self._begin, self._end = window, begin, end
        self.due = window.due

    def fork(self, _request: Request) -> _Drafted:
        """Return another one at the same place."""
        return _Drafted(self._window, self._begin, self._end)

    def slide(self, _request: Request, token_ids: Sequence[int]) -> None:
        """Take in drafted tokens."""
        self._end += len(token_ids)

    def banned(self, history: Request | _History, vocab_size: int) -> Sequence[Collection[int]]:
        """Return the tokens that would complete an n-gram, as the window does."""
        return self._window.banned_at(history, self._begin, self._end, vocab_size)


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
    that cannot work are refused instead of ignored, and so are n-grams of more than 256 tokens.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    exclusion_only = True
    example: ClassVar[Mapping[str, Any]] = {"preset": "deepseek-ocr"}
    reads_prompt = True

    class Params(Parameters, frozen=True):
        """What a request may set.

        Attributes:
            ngram_size: Tokens per n-gram, 1 to 256. Required without a preset.
            window_size: Tokens to look back over, at least ``ngram_size``. Required without a
                preset.
            whitelist_token_ids: Tokens that may always come.
            preset: Published settings, in place of those parameters that are left out:
                ``"deepseek-ocr"`` and ``"deepseek-ocr-2"`` for an image, with ``-pdf`` and
                ``-eval`` for their other scripts; ``"unlimited-ocr"`` for one page, with
                ``-multi-page`` for several.
            scope: Which tokens count: ``"all"`` or ``"output"``.
        """

        ngram_size: NgramSize | None = None
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
        request.state.slide(request, token_ids)

    def fork(self, request: Request) -> _Drafted:
        """Go on with the window of the request, as far as a draft reaches."""
        return request.state.fork(request)  # type: ignore[no-any-return]

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
