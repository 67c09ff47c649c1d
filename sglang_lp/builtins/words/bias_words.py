"""Words that are made likelier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from msgspec import Meta

from sglang_lp.builtins.phase import PhasedParams
from sglang_lp.edits import MAX_BIAS
from sglang_lp.params import Parameters, PositiveInt, Text
from sglang_lp.processor import LogitProcessor
from sglang_lp.text.encoding import check_texts
from sglang_lp.text.next_parts import NextParts, next_parts

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request
    from sglang_lp.served_model import ServedModel

#: Most words of a request, and most bytes that they may have together: every word has some tokens
#: at each step, and their automaton is built when the request arrives.
_MAX_WORDS, _MAX_BYTES = 256, 4_096

_Words = Annotated[tuple[Text, ...], Meta(min_length=1, max_length=_MAX_WORDS)]
_Weight = Annotated[float, Meta(gt=0, le=MAX_BIAS)]
_Weights = Annotated[tuple[_Weight, ...], Meta(min_length=1, max_length=_MAX_WORDS)]


class _BiasedProgress:
    """How much of a word the output has begun, and the words that are still pushed."""

    __slots__ = ("parts", "place", "times", "wanted")

    def __init__(
        self, parts: NextParts, wanted: int, place: int = 0, times: Mapping[int, int] | None = None
    ) -> None:
        self.parts = parts
        #: Bit 3 for word 3.
        self.wanted = wanted
        self.place = place
        #: How many tokens completed a word, for the words that came.
        self.times = {**(times or {})}

    def count(self, ended: int, most: int) -> None:
        """Count completed words; a word that has come ``most`` times gets no more bias."""
        while ended:
            number = ended.bit_length() - 1
            ended -= 1 << number
            self.times[number] = self.times.get(number, 0) + 1
            if self.times[number] >= most:
                self.wanted -= 1 << number


class BiasWordsLogitProcessor(LogitProcessor):
    """Make words likelier, whichever tokens spell them: names, terms, hot words.

    A token that is the next part of a word gets a bias, along every way to spell the word. The bias
    is the word's weight times the share of the word that is then written, in bytes of UTF-8: with
    ``" Kubernetes"`` (11 bytes) and a weight of 6, the token ``" Kub"`` gets 6 * 4 / 11, and after
    it ``"ernetes"`` gets 6. A single letter at the beginning of a word is therefore hardly pushed,
    and a begun word is pushed to its end. If a token is the next part of several words, the largest
    bias counts.

    A word has begun where the output ends with a prefix of it, whichever tokens wrote the prefix;
    the longest prefix counts, for each word its own. The prompt does not count. A longer word may
    contain the word. Let a word begin with a space where it needs one.
    """

    __module__ = "sglang_lp.builtins"
    early = True
    example: ClassVar[Mapping[str, Any]] = {
        "words": [" Kubernetes", " Istio"],
        "weights": [4.0, 4.0],
    }

    class Params(PhasedParams, frozen=True):
        """The parameters of a request.

        Attributes:
            words: Up to 256 texts of up to 256 characters, together up to 4,096 bytes of UTF-8;
                none of them twice.
            weights: For each word the bias of a token that completes it, more than 0 and at most
                10,000. A weight of 2 to 6 favours a word; a large one forces it.
            max_times: How often each word is pushed: the number of generated tokens that complete
                it, after which it gets no more bias.
        """

        words: _Words
        weights: _Weights
        max_times: PositiveInt = 1

        def __post_init__(self) -> None:
            """Refuse a word twice, and weights that are not one for each word."""
            check_texts("words", self.words, _MAX_BYTES)
            if len({*self.words}) < len(self.words):
                raise ValueError("words: expected each word once, got one of them twice")
            if len(self.weights) != len(self.words):
                raise ValueError(
                    f"weights: expected one for each of the {len(self.words)} words, got "
                    f"{len(self.weights)}"
                )

    @classmethod
    def fit_params(cls, params: Parameters, served: ServedModel) -> Parameters:
        """Refuse words that the served model cannot write."""
        cls._parts(params, served.tokenizer)
        return super().fit_params(params, served)

    @classmethod
    def _parts(cls, params: Any, tokenizer: Any) -> NextParts:
        return next_parts(cls.__name__, "words", tokenizer, params.words, params.weights)

    def start(self, request: Request) -> _BiasedProgress:
        """Look up the compiled words."""
        params = request.params
        return _BiasedProgress(self._parts(params, request.tokenizer), (1 << len(params.words)) - 1)

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Follow the output."""
        progress = request.state
        for token_id in token_ids:
            progress.place, ended = progress.parts.step(progress.place, token_id)
            progress.count(ended & progress.wanted, request.params.max_times)

    def fork(self, request: Request) -> _BiasedProgress:
        """Copy the state; the compiled words are shared."""
        progress = request.state
        return _BiasedProgress(progress.parts, progress.wanted, progress.place, progress.times)

    def edit(self, request: Request, edits: Edits) -> None:
        """Add the bias of each next part, or rest once no word is pushed any more."""
        progress = request.state
        if not progress.wanted:
            edits.rest()
            return
        shares = progress.parts.shares(progress.place, progress.wanted, edits.vocab_size)
        edits.bias(shares.ids, shares.values)

    def explain(self, request: Request) -> str:
        """Say how many words are pushed."""
        return f"the next parts of {request.state.wanted.bit_count()} words"
