"""The fewest tokens that spell a shortest way of a grammar."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from sglang_lp.closing.states import Place, States
    from sglang_lp.closing.vocabulary import GrammarVocabulary

#: Bytes for a free choice: the first that is allowed is written. Runs of them are often one token,
#: and none is special in JSON.
FILLERS = (b"a0", b" 0", b"0a", b"-0")


class _Spelled(NamedTuple):
    """A place on a way.

    Attributes:
        byte: The next byte.
        following: The place after the byte; ``None`` at the end of the text.
        tokens: The fewest tokens from here to the end of the text.
        token: The first of them.
        after: The place after the token.
    """

    byte: int
    following: Place | None
    tokens: int
    token: int
    after: Place | None


_END = _Spelled(0, None, 0, 0, None)


class WaySpelling:
    """Spells the shortest ways of a grammar, with one choice of bytes.

    From each place there is one way, so ways that meet go on together, and every place is spelled
    once: the usual dynamic program over the ends of a text, from its last byte to its first.

    Args:
        states: The states of the grammar.
        vocabulary: The tokens. Each byte of a way is a token as well.
        fillers: Bytes to choose first where there is a choice.
    """

    def __init__(self, states: States, vocabulary: GrammarVocabulary, fillers: bytes) -> None:
        self._states, self._vocabulary, self._fillers = states, vocabulary, fillers
        self._known: dict[Place, _Spelled] = {}

    def count(self, place: Place) -> int:
        """Return the fewest tokens that spell the way from a place."""
        known = self._known
        path, text = [], bytearray()
        at = place
        while at not in known:
            step = self._states.next_byte(at, self._fillers)
            if step is None:
                known[at] = _END
                break
            path.append(at)
            text.append(step[0])
            at = step[1]
        places = [*path, at]
        longest = self._vocabulary.longest
        while len(places) < len(path) + longest and (to := known[places[-1]].following) is not None:
            text.append(known[places[-1]].byte)
            places.append(to)
        whole = bytes(text)
        for start in range(len(path) - 1, -1, -1):
            count, token, length = min(
                (known[places[start + length]].tokens, token, length)
                for token, length in self._vocabulary.tokens_at(whole, start)
            )
            known[places[start]] = _Spelled(
                whole[start], places[start + 1], count + 1, token, places[start + length]
            )
        return known[place].tokens

    def tokens(self, place: Place) -> list[int]:
        """Return the tokens of the way from a place."""
        self.count(place)
        tokens = []
        step = self._known[place]
        while step.after is not None:
            tokens.append(step.token)
            step = self._known[step.after]
        return tokens

    def forget(self) -> None:
        """Forget all places, because their numbers have changed."""
        self._known.clear()
