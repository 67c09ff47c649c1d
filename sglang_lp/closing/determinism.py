"""An automaton of the same grammar with fewer states of a text.

xgrammar writes a repetition as a chain of rules that overlap: after ten characters of a string of
at most 500, its automaton is in hundreds of states at once. Determinized, it is in one.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp.closing.automaton import Edge, GrammarAutomaton

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: Most states that a determinized rule has for each state of the automaton that it comes from.
_MOST_GROWTH = 4

#: Most members of the sets of a rule: a chain of n states can have n sets of n states.
_MOST_MEMBERS = 500_000

#: The first byte that is no character of its own in UTF-8.
_ASCII = 0x80

#: The bytes of one character: ranges, each with the bytes after it.
Shape = tuple[Any, ...]

#: Calls of a rule from which on it is worth a table of its own.
_MANY_CALLS = 16

#: First bytes of a character from which on it is worth a rule.
_MANY_BYTES = 10


class Letter(NamedTuple):
    """A rule that reads one of some characters.

    Attributes:
        shape: The bytes of the characters.
        firsts: Their first bytes.
        final: The state after a character.
    """

    shape: Shape
    firsts: frozenset[int]
    final: int


def find_letters(automaton: GrammarAutomaton) -> dict[int, Letter]:
    """Return rules that read one character and are called many times, by their first states."""
    uses = Counter(rule for calls in automaton.calls for rule, _ in calls)
    return {
        automaton.starts[rule]: letter
        for rule, count in uses.items()
        if count >= _MANY_CALLS and (letter := _letter(automaton, automaton.starts[rule]))
    }


def _letter(automaton: GrammarAutomaton, start: int) -> Letter | None:
    """Return the rule that begins in a state if it reads one of some characters, and no more."""
    own = _own_states(automaton, start)
    finals = own & automaton.finals
    if any(automaton.empty[one] or automaton.calls[one] for one in own) or len(finals) != 1:
        return None
    (final,) = finals
    shape = _shape(automaton, automaton.edges[start], final)
    if shape is None or automaton.edges[final]:
        return None
    firsts = frozenset(byte for low, high, _ in shape for byte in range(low, high + 1))
    return Letter(shape, firsts, final)


def determinize(automaton: GrammarAutomaton) -> GrammarAutomaton:
    """Return an automaton with the same texts, whose rules are deterministic where that is small.

    Copies of a small rule become calls of it, and rules that are called from one place become part
    of their caller. Then each rule is determinized by the usual construction of sets (Rabin and
    Scott, "Finite automata and their decision problems", 1959), with a called rule as one more
    letter.
    """
    automaton = _inline(_call_copies(automaton))
    used = {automaton.root, *(rule for calls in automaton.calls for rule, _ in calls)}
    building = _Building(automaton)
    starts = [
        building.add(start) if rule in used else 0 for rule, start in enumerate(automaton.starts)
    ]
    return building.whole(starts)


class _CharacterEdges(NamedTuple):
    """Edges of a state that read one character.

    Attributes:
        state: The state.
        end: The state after the character.
        shape: The bytes of the characters.
        edges: The edges.
    """

    state: int
    end: int
    shape: Shape
    edges: list[Edge]


def _call_copies(automaton: GrammarAutomaton) -> GrammarAutomaton:
    """Replace what reads one character, again and again, by calls of a rule.

    xgrammar calls a rule for the first characters of a long string, and copies it for the others;
    for a shorter one it has copies only.
    """
    letters: dict[Shape, int] = {}
    for rule, start in enumerate(automaton.starts):
        found = _letter(automaton, start)
        if found is not None:
            letters.setdefault(found.shape, rule)
    called = {rule for calls in automaton.calls for rule, _ in calls}
    firsts = {automaton.starts[rule] for rule in letters.values()}
    copies = [
        copy
        for state in range(len(automaton.edges))
        if state not in firsts
        for copy in _copies(automaton, state)
    ]
    for shape, count in Counter(copy.shape for copy in copies).items():
        if letters.get(shape) in called:
            continue
        letters.pop(shape, None)
        if count >= _MANY_CALLS and sum(high - low + 1 for low, high, _ in shape) >= _MANY_BYTES:
            letters[shape] = len(automaton.starts)
            automaton = _with_letter(automaton, shape)
    edges, calls = [[*some] for some in automaton.edges], [[*some] for some in automaton.calls]
    for copy in copies:
        if copy.shape in letters:
            edges[copy.state] = [edge for edge in edges[copy.state] if edge not in copy.edges]
            calls[copy.state].append((letters[copy.shape], copy.end))
    return automaton._replace(edges=edges, calls=calls)


def _copies(automaton: GrammarAutomaton, state: int) -> Iterator[_CharacterEdges]:
    """Yield the edges of a state that read one character, for each state after it."""
    edges = automaton.edges[state]
    for end in sorted({edge.to for edge in edges if edge.low < _ASCII}):
        own = [edge for edge in edges if _shape(automaton, [edge], end)]
        shape = _shape(automaton, own, end)
        if shape:
            yield _CharacterEdges(state, end, shape, own)


def _with_letter(automaton: GrammarAutomaton, shape: Shape) -> GrammarAutomaton:
    """Return the automaton with one more rule, which reads one character."""
    edges = [*automaton.edges]
    final = len(edges) + 1

    def fill(state: int, ranges: Shape) -> None:
        for low, high, rest in ranges:
            to = final
            if rest:
                to = len(edges)
                edges.append([])
                fill(to, rest)
            edges[state].append(Edge(low, high, to))

    edges += [[], []]
    fill(final - 1, shape)
    more: list[list[Any]] = [[] for _ in range(len(edges) - len(automaton.edges))]
    return automaton._replace(
        edges=edges,
        empty=[*automaton.empty, *([] for _ in more)],
        calls=[*automaton.calls, *more],
        starts=[*automaton.starts, final - 1],
        finals=automaton.finals | {final},
    )


def _shape(automaton: GrammarAutomaton, edges: list[Edge], end: int, deep: int = 4) -> Shape | None:
    """Return the bytes from a state to another, as nested ranges; ``None`` if not all lead there.

    Args:
        automaton: The grammar.
        edges: Edges of the first state.
        end: The last state.
        deep: Most bytes between them: those of one character.
    """
    if deep == 0 or not edges:
        return None
    ranges = []
    for low, high, to in edges:
        rest: Shape | None = () if to == end else None
        if to != end and not automaton.empty[to] and not automaton.calls[to]:
            rest = _shape(automaton, automaton.edges[to], end, deep - 1)
        if rest is None:
            return None
        ranges.append((low, high, rest))
    return tuple(sorted(ranges))


def _inline(automaton: GrammarAutomaton) -> GrammarAutomaton:
    """Make rules that are called from one place a part of their caller."""
    uses = Counter(rule for calls in automaton.calls for rule, _ in calls)
    uses[automaton.root] += 1
    own = [_own_states(automaton, start) for start in automaton.starts]
    once = {rule for rule, count in uses.items() if count == 1 and rule != automaton.root}
    empty = [[*to] for to in automaton.empty]
    calls: list[list[tuple[int, int]]] = []
    inlined: set[int] = set()
    for state, called in enumerate(automaton.calls):
        calls.append([])
        for rule, to in called:
            if rule not in once or state in own[rule]:
                calls[state].append((rule, to))
                continue
            inlined.add(rule)
            empty[state].append(automaton.starts[rule])
            for final in automaton.finals & own[rule]:
                empty[final].append(to)
    ends = {final for rule in inlined for final in automaton.finals & own[rule]}
    return automaton._replace(empty=empty, calls=calls, finals=automaton.finals - ends)


def _own_states(automaton: GrammarAutomaton, start: int) -> set[int]:
    """Return the states of the rule that begins in a state; no state belongs to two rules."""
    own: set[int] = set()
    work = [start]
    while work:
        state = work.pop()
        if state not in own:
            own.add(state)
            work += [edge.to for edge in automaton.edges[state]]
            work += automaton.empty[state]
            work += [to for _, to in automaton.calls[state]]
    return own


class _Building:
    """The new automaton, while its rules are added."""

    def __init__(self, automaton: GrammarAutomaton) -> None:
        self._of = automaton
        self._edges: list[list[Edge]] = []
        self._empty: list[list[int]] = []
        self._calls: list[list[tuple[int, int]]] = []
        self._finals: set[int] = set()

    def add(self, start: int) -> int:
        """Add the rule that begins in a state, and return its new first state."""
        size = len(self._edges)
        first = self._add_sets(start)
        if first is None:
            del self._edges[size:], self._empty[size:], self._calls[size:]
            self._finals = {final for final in self._finals if final < size}
            first = self._add_states(start)
        return first

    def whole(self, starts: list[int]) -> GrammarAutomaton:
        """Return the automaton, given the first state of each rule."""
        finals = frozenset(self._finals)
        return GrammarAutomaton(
            self._edges, self._empty, self._calls, starts, finals, self._of.root
        )

    def _add_sets(self, start: int) -> int | None:
        """Add a rule with a state for each set of states; ``None`` if these are too many."""
        numbers: dict[frozenset[int], int] = {}
        work: list[frozenset[int]] = []
        most = _MOST_GROWTH * len(self._of.edges)
        members = 0

        def number(states: Iterable[int]) -> int:
            nonlocal members
            found = self._closed(states)
            if found not in numbers:
                numbers[found] = self._new()
                work.append(found)
                members += len(found)
            return numbers[found]

        first = number([start])
        while work:
            states = work.pop()
            here = numbers[states]
            if states & self._of.finals:
                self._finals.add(here)
            for low, high, to in self._readings(states):
                self._edges[here].append(Edge(low, high, number(to)))
            called: dict[int, set[int]] = {}
            for state in states:
                for rule, back in self._of.calls[state]:
                    called.setdefault(rule, set()).add(back)
            for rule in sorted(called):
                self._calls[here].append((rule, number(called[rule])))
            if len(numbers) > most or members > _MOST_MEMBERS:
                return None
        return first

    def _add_states(self, start: int) -> int:
        """Add a rule as it is."""
        numbers: dict[int, int] = {}
        work = [start]

        def number(state: int) -> int:
            if state not in numbers:
                numbers[state] = self._new()
                work.append(state)
            return numbers[state]

        numbers[start] = first = self._new()
        while work:
            state = work.pop()
            here = numbers[state]
            if state in self._of.finals:
                self._finals.add(here)
            self._edges[here] = [Edge(e.low, e.high, number(e.to)) for e in self._of.edges[state]]
            self._empty[here] = [number(to) for to in self._of.empty[state]]
            self._calls[here] = [(rule, number(to)) for rule, to in self._of.calls[state]]
        return first

    def _closed(self, states: Iterable[int]) -> frozenset[int]:
        """Return the states, and all states that they reach without reading a byte."""
        found = {*states}
        work = [*found]
        while work:
            for to in self._of.empty[work.pop()]:
                if to not in found:
                    found.add(to)
                    work.append(to)
        return frozenset(found)

    def _readings(self, states: frozenset[int]) -> Iterator[tuple[int, int, frozenset[int]]]:
        """Yield ranges of bytes that some states read, each with the states after it."""
        after: dict[tuple[int, int], set[int]] = {}
        for state in states:
            for low, high, to in self._of.edges[state]:
                after.setdefault((low, high), set()).add(to)
        bounds = sorted({bound for low, high in after for bound in (low, high + 1)})
        for first, beyond in pairwise(bounds):
            reading = [to for (low, high), to in after.items() if low <= first <= high]
            if reading:
                yield first, beyond - 1, frozenset().union(*reading)

    def _new(self) -> int:
        self._edges.append([])
        self._empty.append([])
        self._calls.append([])
        return len(self._edges) - 1
