"""No n-gram twice within a sliding window."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from sglang_lp.params import Parameters, PositiveInt, TokenIdSet
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

_TOKEN_BYTES = array("q").itemsize


class _Window:
    """What has followed the newest n - 1 tokens within the window.

    An n-gram cannot come again unless its halves do. So of each token only the half n-gram that
    ends there is indexed; a whole n-gram is when its half comes again. A half that is new to the
    window puts off the next repetition to when it lies outside the newest n - 1 tokens.

    Tokens are numbered from the start of the prompt and read from the request. Taking one in
    costs the same however long the window is, and no index has more entries than it has tokens.
    """

    __slots__ = (
        "_end",
        "_followers",
        "_half",
        "_halves",
        "_last",
        "_limit",
        "_new",
        "_read",
        "_size",
    )

    def __init__(self, ngram_size: int, window_size: int, start: int) -> None:
        self._size = ngram_size
        self._half = ngram_size // 2
        #: Most n-grams that lie in the window.
        self._limit = window_size - ngram_size + 1
        #: Number of the next token to come, and of the one at which the next half ends.
        self._read = start
        self._end = start + self._half - 1
        #: The newest token at which a half ended that was new to the window.
        self._new = self._end - 1
        #: For each half where it ended last, and the halves in the order of their ends.
        self._last: dict[bytes, int] = {}
        self._halves: deque[bytes] = deque()
        #: For each n - 1 tokens what followed them, and where they ended when it did so last.
        self._followers: dict[bytes, dict[int, int]] = {}

    def slide(self, request: Request, count: int) -> None:
        """Take in the next ``count`` tokens."""
        self._read += count
        data = _tokens(request, self._end - self._half + 1, self._read).tobytes()
        width = self._half * _TOKEN_BYTES
        starts = range(0, (self._read - self._end) * _TOKEN_BYTES, _TOKEN_BYTES)
        halves = [data[i : i + width] for i in starts]
        last = self._last
        for end, half in enumerate(halves, self._end):
            before = last.setdefault(half, end)
            if before == end:
                self._new = end
            else:
                last[half] = end
                prefix, follower = self._ngram(request, before)
                self._followers.setdefault(prefix, {})[follower] = before
        self._halves.extend(halves)
        self._end += len(halves)
        oldest = self._end - len(self._halves)
        for end in range(oldest, self._end - self._limit - 1):  # the newest has no follower yet
            half = self._halves.popleft()
            newest = last.pop(half)
            if newest != end:  # it came again, so its n-gram was indexed
                last[half] = newest
                self._forget(*self._ngram(request, end), end)

    @property
    def due(self) -> int:
        """Number of the first token that could complete an n-gram of the window."""
        return self._new + self._size - self._half + 1

    def followers(self, request: Request) -> Collection[int]:
        """Return the tokens that would complete an n-gram of the window now."""
        newest = _tokens(request, self._end - self._size + 1, self._end)
        return self._followers.get(newest.tobytes(), ())

    def _forget(self, prefix: bytes, follower: int, end: int) -> None:
        after = self._followers[prefix]
        if after[follower] == end:
            del after[follower]
            if not after:
                del self._followers[prefix]

    def _ngram(self, request: Request, end: int) -> tuple[bytes, int]:
        """Return the n - 1 tokens up to number ``end``, and the one that follows."""
        ngram = _tokens(request, end - self._size + 2, end + 2)
        follower = ngram.pop()
        return ngram.tobytes(), follower


def _tokens(request: Request, start: int, stop: int) -> array[int]:
    """Return the tokens from number ``start`` to before ``stop``, prompt and output in a row."""
    split = len(request.prompt_ids)
    start = max(start, 0)
    if start >= split:
        return array("q", request.output_ids[start - split : stop - split])
    tokens = array("q", request.prompt_ids[start:stop])
    tokens.extend(request.output_ids[: max(stop - split, 0)])
    return tokens


class DeepseekOCRNoRepeatNGramLogitProcessor(LogitProcessor):
    """Ban every token that would repeat an n-gram of the last ``window_size`` tokens.

    ``custom_params``: ``ngram_size``, tokens per n-gram; ``window_size``, in tokens, prompt and
    output taken together; ``whitelist_token_ids`` (optional), tokens that may always come. The
    published settings for DeepSeek-OCR are 30 and 90, with its ``<td>`` and ``</td>`` allowed.

    Same as SGLang 0.5.23's class of this name given the same history, except that parameters
    that cannot work are refused instead of ignored.
    """

    __module__ = "sglang_lp.builtins"

    class Params(Parameters, frozen=True):
        """What a request may set."""

        ngram_size: PositiveInt
        window_size: PositiveInt
        whitelist_token_ids: TokenIdSet | None = None

        def __post_init__(self) -> None:
            """Refuse a window in which no n-gram fits."""
            if self.window_size < self.ngram_size:
                raise ValueError(
                    f"window_size: expected at least ngram_size, got {self.window_size} for "
                    f"{self.ngram_size}-grams, which would never ban anything"
                )

    def start(self, request: Request) -> _Window:
        """Index what the window holds of the prompt."""
        params = request.params
        prompt_length = len(request.prompt_ids)
        start = max(0, prompt_length - params.window_size)
        window = _Window(params.ngram_size, params.window_size, start)
        window.slide(request, prompt_length - start)
        return window

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Slide the window."""
        request.state.slide(request, len(token_ids))

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban what would repeat, or sleep until something can."""
        window = request.state
        due = window.due - len(request.prompt_ids)
        if request.position < due:
            edits.wake_at(due)
            return
        banned = window.followers(request)
        if banned:
            whitelist = request.params.whitelist_token_ids or ()
            # Pad values of image prompts are in the history but not in the vocabulary.
            edits.ban(i for i in banned if i not in whitelist and i < edits.vocab_size)
