"""The tokens that are the next part of one of several texts, whichever tokens spell it.

A text has begun where a suffix of the output is a prefix of the text, whichever tokens wrote it;
the longest prefix counts, for each text its own. Its next parts are the tokens whose bytes begin
the rest, and after which tokens can spell the remainder.

A state is the longest suffix of the output that is a prefix of a text, or a whole text: a state of
the automaton of the texts' bytes. Sets of texts are numbers, with bit 3 for text 3.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp.caches import KeptIds, shared_by_copies
from sglang_lp.edits.ids import Ids, lasting
from sglang_lp.errors import refusing
from sglang_lp.text.automaton import Automaton
from sglang_lp.text.choosing import spelled_rests
from sglang_lp.text.encoding import served_vocabulary

if TYPE_CHECKING:
    import numpy as np

    from sglang_lp.text.vocabulary import Vocabulary


class Shares(NamedTuple):
    """Tokens, each with its bias.

    Attributes:
        ids: The tokens, each once.
        values: The bias of each.
    """

    ids: Ids | list[int]
    values: array[float]

    def __len__(self) -> int:
        return len(self.values)


class _Parts(NamedTuple):
    """The next parts of all texts in a state, ordered by token.

    Attributes:
        ids: The tokens, each once.
        starts: For each token the index of its first entry in ``texts`` and ``values``.
        texts: The text that each entry is the next part of.
        values: The bias of each entry.
    """

    ids: np.ndarray
    starts: np.ndarray
    texts: np.ndarray
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.texts)


class NextParts:
    """Texts with weights, compiled.

    A token that is the next part of a text has the bias ``weight * written / length``: the bytes
    of the text that are written with it, of all its bytes. The largest bias counts if a token is
    the next part of several texts.

    Args:
        vocabulary: The served model's.
        texts: Each text once.
        weights: The weight of each.

    Raises:
        RequestError: No tokens spell one of the texts.
    """

    def __init__(
        self, vocabulary: Vocabulary, texts: Sequence[str], weights: Sequence[float]
    ) -> None:
        self._vocabulary = vocabulary
        self._texts = [text.encode() for text in texts]
        self._weights = weights
        self._spelled = spelled_rests(vocabulary, texts)
        self._automaton = automaton = Automaton(self._texts)
        states = range(len(automaton.children))
        #: For each state: its number of bytes, and the longer texts that begin so.
        self._depths, self._begin = [0 for _ in states], [0 for _ in states]
        #: For each state: the texts that end there.
        self._ended = [0 for _ in states]
        for number, text in enumerate(self._texts):
            state = 0
            for depth, byte in enumerate(text, 1):
                self._begin[state] |= 1 << number
                state = automaton.children[state][byte]
                self._depths[state] = depth
            self._ended[state] |= 1 << number
        for state in automaton.by_length():
            self._ended[state] |= self._ended[automaton.shorter[state]]
        #: Of new texts, which can begin in every state.
        self._new = [*self._entries(0, self._begin[0])]
        self._parts: KeptIds[_Parts] = KeptIds()
        self._shares: KeptIds[Shares] = KeptIds()
        self._parts.of(0, self._parts_from)  # where every request begins

    def step(self, state: int, token_id: int) -> tuple[int, int]:
        """Return the state after one more token, and the texts that the token completes.

        Args:
            state: The state before it; 0 at the beginning.
            token_id: A special token changes nothing: it is not in the text that the client gets.
        """
        ended = 0
        for byte in self._vocabulary.text((token_id,)):
            state = self._automaton.step(state, byte)
            ended |= self._ended[state]
        return state, ended

    def shares(self, state: int, wanted: int, vocab_size: int) -> Shares:
        """Return the tokens that are the next part of a text, each with its bias.

        A text continues from its longest prefix that is a suffix of the output, or begins anew.

        Args:
            state: The state.
            wanted: The texts that count.
            vocab_size: Number of logits in a row; a tokenizer may have more tokens.
        """
        return self._shares.of((state, wanted, vocab_size), self._wanted)

    def _wanted(self, place: tuple[int, int, int]) -> Shares:
        import numpy as np

        state, wanted, vocab_size = place
        parts = self._parts.of(state, self._parts_from)
        if not len(parts):
            return Shares([], array("d"))
        counts = np.array([wanted >> number & 1 for number in range(len(self._texts))])
        values = np.maximum.reduceat(parts.values * counts[parts.texts], parts.starts)
        some = (values > 0) & (parts.ids < vocab_size)
        ids = array("q", parts.ids[some].tobytes())
        return Shares(lasting(ids) if ids else [], array("d", values[some].tobytes()))

    def _parts_from(self, state: int) -> _Parts:
        """Return the next parts of begun and of new texts in a state."""
        import numpy as np

        found = {*self._new}
        begun, place = 0, state
        while place:
            found.update(self._entries(place, self._begin[place] & ~begun))
            begun |= self._begin[place]
            place = self._automaton.shorter[place]
        entries = sorted(found)
        ids, starts = np.unique(np.array([entry[0] for entry in entries], int), return_index=True)
        texts = np.array([entry[1] for entry in entries], int)
        return _Parts(ids, starts, texts, np.array([entry[2] for entry in entries], float))

    def _entries(self, state: int, texts: int) -> Iterator[tuple[int, int, float]]:
        """Yield token, text and bias of each next part of some texts that begin with a state."""
        exact = self._vocabulary.exact
        done = self._depths[state]
        while texts:
            number = texts.bit_length() - 1
            texts -= 1 << number
            text = self._texts[number]
            share = self._weights[number] / len(text)
            for end in range(done + 1, min(len(text), done + exact.longest) + 1):
                if self._spelled is None or text[end:] in self._spelled:
                    for token_id in exact.same_as(text[done:end]):
                        yield token_id, number, share * end


def next_parts(
    processor: str, name: str, tokenizer: Any, texts: tuple[str, ...], weights: tuple[float, ...]
) -> NextParts:
    """Return the compiled texts of a request, one for each list of them.

    Args:
        processor: The processor's class name, for the message.
        name: The parameter's name, for the message.
        tokenizer: The served model's, or ``None``.
        texts: At least one, each once.
        weights: The weight of each, more than 0.

    Raises:
        InvalidParameter: The model cannot write one of them, or its tokens' bytes are unknown.
    """
    vocabulary = served_vocabulary(processor, name, tokenizer)
    with refusing(processor, name):
        return _next_parts(vocabulary, texts, weights)


@shared_by_copies
def _next_parts(
    vocabulary: Vocabulary, texts: tuple[str, ...], weights: tuple[float, ...]
) -> NextParts:
    return NextParts(vocabulary, texts, weights)
