"""No n-gram twice within a sliding window."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sglang_lp.params import Parameters, PositiveInt, TokenIdSet
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request


class _Window:
    """The n-grams that lie in the window, by their first n - 1 tokens.

    Takes one token in and lets one n-gram out at a time, so that a step costs the same however
    long the window is; holds no more than the window does.
    """

    __slots__ = ("_entries", "_followers", "_limit", "_prefix", "_prefix_len", "_tokens")

    def __init__(self, ngram_size: int, window_size: int) -> None:
        self._prefix_len = ngram_size - 1
        #: Most n-grams that start and end inside the window.
        self._limit = max(0, window_size - ngram_size + 1)
        #: For each prefix, the tokens that followed it and how often.
        self._followers: dict[bytes, dict[int, int]] = {}
        #: The n-grams in the order of their start, to know which one leaves.
        self._entries: deque[tuple[bytes, int]] = deque()
        #: The newest n - 1 tokens.
        self._tokens: array[int] = array("q")
        self._prefix: bytes | None = b"" if ngram_size == 1 else None

    def push(self, token_ids: Sequence[int]) -> None:
        """Take in tokens, oldest first."""
        if not self._limit:
            return
        tokens, prefix_len, prefix = self._tokens, self._prefix_len, self._prefix
        followers, entries, limit = self._followers, self._entries, self._limit
        for token_id in token_ids:
            if prefix is not None:
                entries.append((prefix, token_id))
                after = followers.get(prefix)
                if after is None:
                    followers[prefix] = {token_id: 1}
                else:
                    after[token_id] = after.get(token_id, 0) + 1
                if len(entries) > limit:
                    self._leave(*entries.popleft())
            if prefix_len:
                tokens.append(token_id)
                if len(tokens) >= prefix_len:
                    if len(tokens) > prefix_len:
                        del tokens[0]
                    prefix = tokens.tobytes()
        self._prefix = prefix

    def followers(self) -> Sequence[int]:
        """Return the tokens that would repeat an n-gram of the window."""
        if self._prefix is None:
            return ()
        return tuple(self._followers.get(self._prefix, ()))

    def _leave(self, prefix: bytes, token_id: int) -> None:
        after = self._followers[prefix]
        if after[token_id] > 1:
            after[token_id] -= 1
        elif len(after) > 1:
            del after[token_id]
        else:
            del self._followers[prefix]


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
        window = _Window(params.ngram_size, params.window_size)
        window.push(request.prompt_ids[-params.window_size :])
        return window

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Slide the window."""
        request.state.push(token_ids)

    def edit(self, request: Request, edits: Edits) -> None:
        """Ban what would repeat."""
        banned = request.state.followers()
        if banned:
            whitelist = request.params.whitelist_token_ids or ()
            # Pad values of image prompts are in the history but not in the vocabulary.
            edits.ban(i for i in banned if i not in whitelist and i < edits.vocab_size)
