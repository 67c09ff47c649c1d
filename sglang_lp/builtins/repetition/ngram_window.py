"""The n-grams of a sliding window over a request's tokens."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from sglang_lp.builtins.repetition.ngram_index import NgramIndex, index_of

if TYPE_CHECKING:
    from sglang_lp.request import Request

#: The largest window whose n-grams wait until they are asked for, so that many leave it unentered;
#: it bounds what a step in which many rows wake enters (benchmarks/cost, ngram-30-90).
_SMALL = 96

#: Most tokens of a prompt whose n-grams are entered as those of the output are, which takes less
#: time than an index (benchmarks/cost/arrivals). A window of at most ``_SMALL`` never has an index.
_FEW = 48

#: Bytes of a token.
_WIDTH = 8


class WindowState(StrEnum):
    """The states of :class:`Window`."""

    QUIET = "quiet"
    DUE = "due"


class CountedTokens(NamedTuple):
    """The tokens of a request that count."""

    prompt_ids: Sequence[int]
    output_ids: Sequence[int]


class _Followers:
    """Several tokens that have followed the same n - 1 tokens in the output."""

    __slots__ = ("ids", "places")

    def __init__(self) -> None:
        #: For each follower the index of its last occurrence, in that order.
        self.places: dict[int, int] = {}
        #: The followers as an array, which is banned at once.
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


class Window:
    """The tokens that have followed the newest n - 1 tokens within the window.

    Tokens are read from the request and have an index: the first of the prompt has 0. The n-grams
    of the prompt are in a :class:`NgramIndex`, which copies of the prompt share. The n-grams of the
    output, and of few tokens of a prompt, are in a dict: from the bytes of n - 1 tokens to the
    index of their follower, or to several. It has at most as many entries as the window has tokens.

    A *probe* is a sequence of a third as many tokens. An n-gram cannot come again unless its probes
    do, so a probe that is new to the window makes the window ``QUIET``: no token completes an
    n-gram until that probe is outside the newest n - 1 tokens, which is before the token with the
    index :attr:`due`.

    ========= =================================== =================================
    state     next tokens                         next state
    ========= =================================== =================================
    ``QUIET`` end a probe that is new             ``QUIET``, due later
    ``QUIET`` end no new probe, ``due`` is later  ``QUIET``
    ``QUIET`` end no new probe, ``due`` is next   ``DUE``
    ``DUE``   end a probe that is new             ``QUIET``
    ``DUE``   end no new probe                    ``DUE``
    ========= =================================== =================================

    A 1-gram has no probe, so its window is always ``DUE``. In both states only probes are recorded
    at each token. The n-grams are entered when tokens slide into a large window, and when a small
    one is asked for bans or is forked: in prose most leave a small window without being entered.

    The caller slides each token in once, in order, after the request's history has it. A window
    does not move while one of its :class:`DraftedWindow` windows is in use.
    """

    __slots__ = (
        "_before",
        "_end",
        "_entered",
        "_followers",
        "_keys",
        "_largest",
        "_last_new_probe_end",
        "_probe_keys",
        "_probe_size",
        "_probes",
        "_prompt_end",
        "_start",
        "_text",
        "_whitelist",
        "_window",
    )

    def __init__(
        self,
        ngram_size: int,
        window_size: int,
        whitelist: frozenset[int],
        prompt_ids: Sequence[int],
    ) -> None:
        """Index the part of a prompt that is in the window.

        Args:
            ngram_size: Tokens of an n-gram.
            window_size: Tokens of the window.
            whitelist: Tokens that are never banned.
            prompt_ids: The prompt, or nothing if it does not count.
        """
        self._window = window_size
        self._whitelist = whitelist
        #: Tokens of an n-gram without its last token, and of a probe.
        self._before = ngram_size - 1
        self._probe_size = (ngram_size + 1) // 3
        end = len(prompt_ids)
        #: Index of the first token that counts, and the index of these tokens of the prompt.
        self._start = max(0, end - self._window)
        self._text: NgramIndex | None = None
        #: Index after the newest probe that was new to the window.
        self._last_new_probe_end = self._start
        #: The largest token of a prompt without an index: a pad value of an image, perhaps.
        self._largest = 0
        #: From the bytes of n - 1 tokens of the output to the index of their follower, or several.
        self._followers: dict[bytes, int | _Followers] = {}
        #: For each probe of the output the index after its last occurrence.
        self._probes: dict[bytes, int] = {}
        #: The keys of the entered tokens of the window, oldest first.
        self._keys: deque[bytes] = deque()
        self._probe_keys: deque[bytes] = deque()
        #: Number of tokens, of entered tokens, and of tokens in the index of the prompt.
        self._end = self._entered = self._prompt_end = self._start
        few = end - self._start
        if few > _FEW and window_size > _SMALL:
            self._text = index_of(prompt_ids, self._start, self._before, self._probe_size)
            self._last_new_probe_end += self._text.last_new_probe_end
            self._end = self._entered = self._prompt_end = end
        elif few:
            token_ids = prompt_ids[self._start :]
            self._largest = max(token_ids)
            self.slide(CountedTokens(prompt_ids, ()), token_ids)

    def __repr__(self) -> str:
        return (
            f"<Window {self.state} after {self._end} tokens, due at {self.due}, "
            f"{self._end - self._entered} tokens not entered, "
            f"{self._before + 1}-grams of {self._window} tokens>"
        )

    @property
    def state(self) -> WindowState:
        """The state."""
        return WindowState.QUIET if self._end < self.due else WindowState.DUE

    @property
    def due(self) -> int:
        """Index of the first token that could complete an n-gram of the window."""
        if not self._probe_size:
            return 0
        return self._last_new_probe_end + self._before + 1 - self._probe_size

    def fork(self, history: Request | CountedTokens) -> DraftedWindow:
        """Return a window that moves along a draft; the request's must not move meanwhile."""
        self._enter(history)  # once for all forks
        return DraftedWindow(self, self._end, self._end)

    def slide(self, history: Request | CountedTokens, token_ids: Sequence[int]) -> None:
        """Take in the next tokens, which the history has as its last."""
        end = self._end
        self._end = end + len(token_ids)
        if self._probe_size:
            self._record_probes(history, end)
        if self._window > _SMALL:
            self._enter(history)

    def _record_probes(self, history: Request | CountedTokens, end: int) -> None:
        """Record the probes that end in tokens from the index ``end`` on."""
        probe_size = self._probe_size
        begin = max(self._start, end + 1 - probe_size)
        written, size = _tokens(history, begin, self._end).tobytes(), probe_size * _WIDTH
        probes, probe_keys = self._probes, self._probe_keys
        end, fresh, last = begin + probe_size - 1, b"", 0
        # This loop is most of the time of a batch (benchmarks/cost, ngram-30-90).
        for at in range(0, len(written) - size + 1, _WIDTH):
            end += 1
            key = written[at : at + size]
            if key not in probes:
                fresh, last = key, end
            probes[key] = end
            probe_keys.append(key)
        # As a part of an n-gram of the window, a probe begins in it.
        outside = probe_size - self._window
        since = last + outside - self._start
        if fresh and not (self._text and self._text.has_probe(array("q", fresh), since)):
            self._last_new_probe_end = last
        for number in range(end - len(probe_keys) + 1, end + outside + 1):
            left = probe_keys.popleft()
            if probes[left] == number:
                del probes[left]

    def _enter(self, history: Request | CountedTokens) -> None:
        """Enter the n-grams that have ended since the last time and are in the window."""
        begin, end, before = self._entered, self._end, self._before
        # The first token that ends an n-gram of the window.
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
        self, history: Request | CountedTokens, key: bytes, place: int, token_id: int
    ) -> None:
        """Record one more follower of n - 1 tokens."""
        known = self._followers[key]
        if isinstance(known, int):
            other = _token(history, known)
            if other == token_id:
                self._followers[key] = place
            else:
                self._followers[key] = several = _Followers()
                several.add(other, known)
                several.add(token_id, place)
        else:
            known.add(token_id, place)

    def _drop(self, history: Request | CountedTokens, oldest: int) -> None:
        """Forget the followers before the index ``oldest``."""
        keys, followers = self._keys, self._followers
        for place in range(self._entered - len(keys), oldest):
            key = keys.popleft()
            known = followers.get(key)
            if known == place:  # nearly always
                del followers[key]
            elif isinstance(known, _Followers):
                known.leave(_token(history, place), place)
                if not known.places:
                    del followers[key]

    def banned(
        self, history: Request | CountedTokens, vocab_size: int
    ) -> Sequence[Collection[int]]:
        """Return the tokens that would complete an n-gram of the window now, in several lists.

        Args:
            history: The tokens that count.
            vocab_size: The lists have no token from here on: pad values of image prompts are in the
                history but not in the vocabulary.
        """
        self._enter(history)
        return self.banned_at(history, self._end, self._end, vocab_size)

    def banned_at(
        self, history: Request | CountedTokens, entered: int, end: int, vocab_size: int
    ) -> Sequence[Collection[int]]:
        """Return as :meth:`banned` after ``end`` tokens, of which ``entered`` have been entered.

        The others, a few tokens of a draft, are compared one by one.
        """
        before = self._before
        if end - self._start < before:
            return ()
        # The first token that may have followed: the n-gram that it ends begins in the window.
        oldest = max(end - self._window, self._start) + before
        begin = min(end, max(entered, oldest))
        token_ids = _tokens(history, begin - before, end)
        newest = token_ids[end - begin :]
        found: list[Collection[int]] = []
        if self._text and oldest < self._prompt_end:
            found.extend(self._from_prompt(self._text, newest, oldest - self._start, vocab_size))
        known = self._followers.get(newest.tobytes())
        if isinstance(known, int):
            if known >= oldest:
                found.append(_tokens(history, known, known + 1))
        elif known is not None:
            if next(iter(known.places.values())) >= oldest:
                found.append(known.ids)
            else:
                found.append([i for i, place in known.places.items() if place >= oldest])
        if self._largest >= vocab_size:
            found = [[one for one in ids if one < vocab_size] for ids in found]
        if begin < end:
            found.extend(self._from_draft(token_ids, newest))
        return found

    def _from_draft(self, token_ids: array[int], newest: array[int]) -> Iterator[Collection[int]]:
        """Yield the followers, among these tokens, of the newest n - 1 of them."""
        before = self._before
        for place in range(before, len(token_ids)):
            # Nearly always the last token differs.
            if before and token_ids[place - 1] != newest[-1]:
                continue
            token_id = token_ids[place]
            if token_ids[place - before : place] == newest and token_id not in self._whitelist:
                yield (token_id,)

    def _from_prompt(
        self, text: NgramIndex, newest: array[int], since: int, vocab_size: int
    ) -> Iterator[Collection[int]]:
        """Yield the followers in the prompt, at index ``since`` of its text or later."""
        group = text.followers(newest)
        if group is None:
            return
        if isinstance(group.places, list):
            yield [
                token_id
                for token_id, place in zip(group.ids, group.places, strict=True)
                if place >= since and token_id < vocab_size and token_id not in self._whitelist
            ]
        else:
            yield from text.followers_since(group, since, self._whitelist, vocab_size)


class DraftedWindow:
    """A window that moves along a draft, whose tokens it does not enter.

    Args:
        window: The window before the draft.
        begin: Index of the first drafted token.
        end: Index of the token that comes next.

    Attributes:
        due: The window's ``due``: drafted tokens could only put it off.
    """

    __slots__ = ("_begin", "_end", "_window", "due")

    def __init__(self, window: Window, begin: int, end: int) -> None:
        self._window, self._begin, self._end = window, begin, end
        self.due = window.due

    def __repr__(self) -> str:
        return f"<Drafted {self._end - self._begin} tokens after {self._window}>"

    def fork(self, _history: Request | CountedTokens) -> DraftedWindow:
        """Return another drafted window at the same place."""
        return DraftedWindow(self._window, self._begin, self._end)

    def slide(self, _history: Request | CountedTokens, token_ids: Sequence[int]) -> None:
        """Take in drafted tokens."""
        self._end += len(token_ids)

    def banned(
        self, history: Request | CountedTokens, vocab_size: int
    ) -> Sequence[Collection[int]]:
        """Return the tokens that would complete an n-gram, as the window does."""
        return self._window.banned_at(history, self._begin, self._end, vocab_size)


def _token(history: Request | CountedTokens, place: int) -> int:
    """Return the token with an index."""
    split = len(history.prompt_ids)
    return history.prompt_ids[place] if place < split else history.output_ids[place - split]


def _tokens(history: Request | CountedTokens, start: int, stop: int) -> array[int]:
    """Return the tokens from the index ``start`` to before ``stop``, prompt and output in a row."""
    split = len(history.prompt_ids)
    if start >= split:
        tokens = history.output_ids[start - split : stop - split]
        return tokens if isinstance(tokens, array) else array("q", tokens)
    tokens = array("q", history.prompt_ids[start:stop])
    tokens.extend(history.output_ids[: max(stop - split, 0)])
    return tokens
