"""The states of texts: sets of automaton states, each with the calls that it has to return from."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sglang_lp.closing.distances import NEVER
from sglang_lp.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from sglang_lp.closing.automaton import GrammarAutomaton
    from sglang_lp.closing.determinism import Letter

#: The state after a byte that the grammar does not allow, or from which no text ends.
DEAD = -1

#: The state of a text that is in too many states of the automaton at once.
LOST = -2

#: Most automaton states of a text, and most states and open calls that a grammar keeps. A grammar
#: that needs more states forgets all of them.
_MOST_TOGETHER, _MOST_STATES, _MOST_CALLS = 256, 6_000, 60_000

#: Bytes for a free choice, after the fillers; letters before blanks and punctuation.
_PRINTABLE = (*range(0x30, 0x7F), *range(0x20, 0x30))

#: A place in a text: an automaton state with the number of its innermost open call.
Place = tuple[int, int]


class _Call(NamedTuple):
    """An open call: the stack of calls is a list of them, linked by number.

    Attributes:
        back: State after the call.
        outer: Number of the call around it; 0 for none.
        distance: Fewest bytes from its return to the end of the text.
    """

    back: int
    outer: int
    distance: int


class State(NamedTuple):
    """A state of a text.

    Attributes:
        places: Automaton states that read a byte, each with the number of its call.
        ends: Whether the text is complete.
        near: Fewest bytes to a complete text.
        far: The same of the place from which it is furthest.
    """

    places: frozenset[Place]
    ends: bool
    near: int
    far: int


class States:
    """The states of the texts of one grammar, each with a number, made when they are needed.

    Args:
        automaton: The grammar.
        distance: Its shortest ways, as :func:`sglang_lp.closing.distances.shortest` returns them.
        usable: Bytes that a way may use.
        letters: Rules that read one character, by their first states.

    Attributes:
        start: Number of the state of the empty text.
        forgotten: How often the numbers have changed.

    Raises:
        Unsupported: The empty text is in too many states of the automaton at once.
    """

    def __init__(
        self,
        automaton: GrammarAutomaton,
        distance: list[int],
        usable: frozenset[int],
        letters: Mapping[int, Letter],
    ) -> None:
        self._automaton, self._distance, self._usable = automaton, distance, usable
        self._letters = letters
        self.forgotten = -1
        self.forget()

    def forget(self) -> None:
        """Begin anew: numbers of states that were known mean nothing any more."""
        self.forgotten += 1
        self._calls = [_Call(0, 0, 0)]
        self._call_numbers: dict[tuple[int, int], int] = {}
        self._known: list[State] = []
        self._numbers: dict[tuple[frozenset[Place], bool], int] = {}
        #: The state after each byte, for the states that are open.
        self._next = np.full((64, 256), DEAD, np.int32)
        self._is_open = np.zeros(64, bool)
        automaton = self._automaton
        #: As :meth:`letter` returns it, for the states that it was asked about.
        self._lettered: dict[int, tuple[int | None, int]] = {}
        self.start = self._number([(automaton.starts[automaton.root], 0)])
        if self.start == LOST:
            raise Unsupported(
                f"a text of this grammar can be in more than {_MOST_TOGETHER} states at once"
            )

    @property
    def filled(self) -> float:
        """The share of the most states that is known; above 1 they should be forgotten."""
        return max(len(self._known) / _MOST_STATES, len(self._calls) / _MOST_CALLS)

    def __getitem__(self, number: int) -> State:
        return self._known[number]

    def walk(self, number: int, text: bytes) -> int:
        """Return the state after more bytes, or ``DEAD`` or ``LOST``."""
        for byte in text:
            if number < 0:
                break
            if not self._is_open[number]:
                self._open(number)
            number = int(self._next[number, byte])
        return number

    def opened(self, numbers: Iterable[int]) -> tuple[NDArray[np.int32], NDArray[np.bool_]]:
        """Open some states, none of them ``DEAD``.

        Returns:
            The state after each byte, for the states that are open; and whether each state is.
        """
        for number in numbers:
            if not self._is_open[number]:
                self._open(number)
        return self._next, self._is_open

    def letter(self, number: int) -> tuple[int | None, int]:
        """Return how a state reads a character, and the state after one.

        Returns:
            The first state of the rule that reads it, and the state after any of its characters;
            ``None`` and ``DEAD`` if it reads none, or by several rules.
        """
        found = self._lettered.get(number)
        if found is None:
            found = self._lettered[number] = self._find_letter(number)
        return found

    def _find_letter(self, number: int) -> tuple[int | None, int]:
        places = self._known[number].places
        reading = [place for place in places if place[0] in self._letters]
        if len(reading) != 1:
            return None, DEAD
        ((start, call),) = reading
        letter = self._letters[start]
        for state, _ in places:
            for low, high, _ in self._automaton.edges[state]:
                if state != start and not letter.firsts.isdisjoint(range(low, high + 1)):
                    return None, DEAD
        return start, self._number([(letter.final, call)])

    def reads(self, number: int, some: frozenset[int]) -> bool:
        """Tell whether a state reads one of some bytes."""
        return any(
            not some.isdisjoint(range(low, high + 1))
            for state, _ in self._known[number].places
            for low, high, _ in self._automaton.edges[state]
        )

    def nearest(self, number: int) -> list[Place]:
        """Return the places of a state from which the fewest bytes are missing."""
        state = self._known[number]
        return [one for one in state.places if self._far(*one) == state.near]

    def next_byte(self, place: Place, fillers: Sequence[int]) -> tuple[int, Place] | None:
        """Return the next byte of a shortest way, and the place after it.

        Args:
            place: An automaton state with the number of its call.
            fillers: Bytes to choose first where there is a choice.

        Returns:
            ``None`` at the end of the text.
        """
        automaton, distance = self._automaton, self._distance
        state, call = place
        while True:
            here = distance[state]
            if here == 0 and state in automaton.finals:
                if call == 0:
                    return None
                state, call, _ = self._calls[call]
                continue
            edge = self._choose(state, fillers)
            if edge is not None:
                return edge[0], (edge[1], call)
            empty = next((to for to in automaton.empty[state] if distance[to] == here), None)
            if empty is not None:
                state = empty
                continue
            rule, to = next(
                (rule, to)
                for rule, to in automaton.calls[state]
                if distance[automaton.starts[rule]] + distance[to] == here
            )
            state, call = automaton.starts[rule], self._call(to, call)

    def _open(self, number: int) -> None:
        """Find the states after all bytes, for ranges of bytes that the same edges read."""
        edges = self._automaton.edges
        after: dict[tuple[int, int], set[Place]] = {}
        for state, call in self._known[number].places:
            for low, high, to in edges[state]:
                after.setdefault((low, high), set()).add((to, call))
        bounds = sorted({bound for low, high in after for bound in (low, high + 1)})
        known: dict[frozenset[Place], int] = {}
        for first, beyond in pairwise(bounds):
            reading = [to for (low, high), to in after.items() if low <= first <= high]
            places = frozenset().union(*reading)
            if places not in known:
                known[places] = self._number(places)
            self._next[number, first:beyond] = known[places]
        self._is_open[number] = True

    def _far(self, state: int, call: int) -> int:
        return self._distance[state] + self._calls[call].distance

    def _choose(self, state: int, fillers: Sequence[int]) -> tuple[int, int] | None:
        """Return the byte and the state after it of an edge on a shortest way, if there is one."""
        nearer = self._distance[state] - 1
        edges = [e for e in self._automaton.edges[state] if self._distance[e.to] == nearer]
        for byte in (*fillers, *_PRINTABLE):
            for low, high, to in edges:
                if low <= byte <= high and byte in self._usable:
                    return byte, to
        return next(
            (
                (byte, to)
                for low, high, to in edges
                for byte in range(low, high + 1)
                if byte in self._usable
            ),
            None,
        )

    def _call(self, back: int, outer: int) -> int:
        """Return the number of an open call."""
        key = back, outer
        number = self._call_numbers.get(key)
        if number is None:
            number = self._call_numbers[key] = len(self._calls)
            far = self._distance[back] + self._calls[outer].distance
            self._calls.append(_Call(back, outer, far))
        return number

    def _number(self, places: Iterable[Place]) -> int:
        """Return the number of the state of some places; ``DEAD`` if no text ends, or ``LOST``."""
        automaton, distance = self._automaton, self._distance
        work = [one for one in places if distance[one[0]] < NEVER]
        seen, reading, ends = set(work), [], False
        while work:
            state, call = work.pop()
            if automaton.edges[state]:
                reading.append((state, call))
            ends = ends or (call == 0 and state in automaton.finals)
            for one in self._silent(state, call):
                if one not in seen and distance[one[0]] < NEVER:
                    seen.add(one)
                    work.append(one)
            if len(seen) > _MOST_TOGETHER:
                return LOST
        if not reading and not ends:
            return DEAD
        key = frozenset(reading), ends
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self._known)
            lengths = [self._far(*one) for one in reading]
            near = 0 if ends else min(lengths)
            self._known.append(State(*key, near, max(lengths, default=0)))
            if number >= len(self._next):
                self._next = np.concatenate([self._next, np.full_like(self._next, DEAD)])
                self._is_open = np.concatenate([self._is_open, np.zeros_like(self._is_open)])
        return number

    def _silent(self, state: int, call: int) -> Iterator[Place]:
        """Yield the places that a place reaches without reading a byte."""
        automaton = self._automaton
        for to in automaton.empty[state]:
            yield to, call
        for rule, to in automaton.calls[state]:
            # A last call returns where its caller does, so that stacks stay short.
            is_last = to in automaton.finals and not self._leaves(to)
            inner = call if is_last else self._call(to, call)
            if self._calls[inner].distance < NEVER:
                yield automaton.starts[rule], inner
        if call and state in automaton.finals:
            back, outer, _ = self._calls[call]
            yield back, outer

    def _leaves(self, state: int) -> bool:
        automaton = self._automaton
        return bool(automaton.edges[state] or automaton.empty[state] or automaton.calls[state])
