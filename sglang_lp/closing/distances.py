"""Shortest ways to the end of a rule, and the most bytes that reading a byte can add to them."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sglang_lp.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from sglang_lp.closing.automaton import GrammarAutomaton
    from sglang_lp.closing.vocabulary import Trie

#: Distance of a state from which no text ends.
NEVER = 1 << 30

#: Gain of two bytes that do not follow each other.
_IMPOSSIBLE = -(1 << 20)


def shortest(automaton: GrammarAutomaton, usable: Collection[int]) -> list[int]:
    """Return for each state the fewest bytes to the end of its rule.

    Knuth's generalisation of Dijkstra's algorithm ("A generalization of Dijkstra's algorithm",
    1977): the cost of a call is the distance of the called rule plus that of the state after it.

    Args:
        automaton: The grammar.
        usable: Bytes that a way may use.
    """
    usable = frozenset(usable)
    size = len(automaton.edges)
    #: Steps into each state: state before, bytes read, and the other state whose distance counts.
    before: list[list[tuple[int, int, int | None]]] = [[] for _ in range(size)]
    for state in range(size):
        for low, high, to in automaton.edges[state]:
            if not usable.isdisjoint(range(low, high + 1)):
                before[to].append((state, 1, None))
        for to in automaton.empty[state]:
            before[to].append((state, 0, None))
        for rule, to in automaton.calls[state]:
            start = automaton.starts[rule]
            before[to].append((state, 0, start))
            before[start].append((state, 0, to))
    distance = [0 if state in automaton.finals else NEVER for state in range(size)]
    work = [(0, state) for state in automaton.finals]
    while work:
        far, state = heapq.heappop(work)
        if far > distance[state]:
            continue
        for previous, read, other in before[state]:
            found = far + read + (0 if other is None else distance[other])
            if found < distance[previous]:
                distance[previous] = found
                heapq.heappush(work, (found, previous))
    return distance


class Growth(NamedTuple):
    """The most bytes by which tokens can lengthen the shortest ways of a text.

    A text may be in several states at once; its ways are the shortest way of each of them.

    Attributes:
        first: For each byte, the most that it adds as the first byte of a token.
        pair: For two bytes, the most that the second adds after the first.
        last: For each byte, the most that what may follow it adds as the last byte of a token.
    """

    first: NDArray[np.int32]
    pair: NDArray[np.int32]
    last: NDArray[np.int32]

    @classmethod
    def of(cls, automaton: GrammarAutomaton, distance: list[int]) -> Growth:
        """Return the growth of a grammar.

        Stacks of calls are left out: a rule may return to any state after a call of it. So it is
        an upper bound.

        Raises:
            Unsupported: A rule calls itself before it reads anything.
        """
        calling = _fixed_point(automaton, distance)
        following = _returning(automaton, distance, calling)
        first = np.full(256, _IMPOSSIBLE, np.int32)
        pair = np.full((256, 256), _IMPOSSIBLE, np.int32)
        last = np.zeros(256, np.int32)
        for state, edges in enumerate(automaton.edges):
            for low, high, to in edges:
                if distance[to] >= NEVER:
                    continue
                read = slice(low, high + 1)
                after = following[to]
                np.maximum(first[read], distance[to] - distance[state], out=first[read])
                np.maximum(pair[read], after[:256], out=pair[read])
                np.maximum(last[read], after[256], out=last[read])
        return cls(first, pair, last)

    def of_a_token(self, trie: Trie) -> int:
        """Return the most bytes that one token of a vocabulary adds; 0 or more."""
        # A walk down the trie: what a node has added is what its parent has, and its own byte.
        nodes = trie.children(np.zeros(1, np.int32))
        added, most = self.first[trie.byte[nodes]], 0
        while len(nodes):
            possible = added > _IMPOSSIBLE // 2
            nodes, added = nodes[possible], added[possible]
            byte = trie.byte[nodes]
            whole = (added + self.last[byte])[trie.endings[nodes] > 0]
            most = max(most, int(whole.max(initial=0)))
            count = trie.counts[nodes]
            nodes = trie.children(nodes)
            added = np.repeat(added, count) + self.pair[np.repeat(byte, count), trie.byte[nodes]]
        return most


def _fixed_point(automaton: GrammarAutomaton, distance: list[int]) -> NDArray[np.int32]:
    """Return for each state the most that each next byte adds, calls included, returns not.

    Column 256 is the most that the ways to the states which read the next byte add.
    """
    size = len(automaton.edges)
    gain = _reading(automaton, distance)
    steps = [_steps(automaton, distance, state) for state in range(size)]
    before: list[list[int]] = [[] for _ in range(size)]
    for state, after in enumerate(steps):
        for to, _ in after:
            before[to].append(state)
    work, waiting, turns = list(range(size)), [True] * size, [0] * size
    while work:
        state = work.pop()
        waiting[state] = False
        new = gain[state].copy()
        for to, added in steps[state]:
            np.maximum(new, gain[to] + added, out=new)
        if np.array_equal(new, gain[state]):
            continue
        turns[state] += 1
        if turns[state] > size + 1:
            raise Unsupported("this grammar has a rule that calls itself before it reads a byte")
        gain[state] = new
        again = [one for one in before[state] if not waiting[one]]
        work += again
        for previous in again:
            waiting[previous] = True
    return np.maximum(gain, _IMPOSSIBLE)


def _reading(automaton: GrammarAutomaton, distance: list[int]) -> NDArray[np.int32]:
    """Return the bytes that each next byte adds to the way, by the edges of each state itself."""
    gain = np.full((len(automaton.edges), 257), _IMPOSSIBLE, np.int32)
    for state, edges in enumerate(automaton.edges):
        for low, high, to in edges:
            if distance[to] < NEVER and distance[state] < NEVER:
                part = gain[state, low : high + 1]
                np.maximum(part, distance[to] - distance[state], out=part)
                gain[state, 256] = 0
    return gain


def _steps(automaton: GrammarAutomaton, distance: list[int], state: int) -> list[tuple[int, int]]:
    """Return the steps out of a state that read no byte, each with the bytes that it adds."""
    here = distance[state]
    if here >= NEVER:
        return []
    steps = [(to, distance[to] - here) for to in automaton.empty[state] if distance[to] < NEVER]
    for rule, to in automaton.calls[state]:
        start = automaton.starts[rule]
        added = distance[start] + distance[to] - here
        if added < NEVER // 2:
            steps.append((start, added))
            if distance[start] == 0:  # the rule may be empty
                steps.append((to, added))
    return steps


def _returning(
    automaton: GrammarAutomaton, distance: list[int], calling: NDArray[np.int32]
) -> NDArray[np.int32]:
    """Return the same with returns: after a rule's end, what any state after a call of it adds.

    A way to the end of a rule adds nothing, for it is the shortest: its distance is 0.
    """
    rules = _rules_of(automaton)
    sites: list[set[int]] = [set() for _ in automaton.starts]
    for calls in automaton.calls:
        for rule, to in calls:
            sites[rule].add(to)
    gain = calling.copy()
    changed = True
    while changed:
        changed = False
        ends = [
            gain[sorted(to)].max(axis=0) if to else np.full(257, _IMPOSSIBLE, np.int32)
            for to in sites
        ]
        for state, far in enumerate(distance):
            if far != 0:
                continue
            new = gain[state]
            for rule in rules[state]:
                new = np.maximum(new, ends[rule])
            if not np.array_equal(new, gain[state]):
                gain[state] = new
                changed = True
    return gain


def _rules_of(automaton: GrammarAutomaton) -> list[set[int]]:
    """Return for each state the rules that it is part of."""
    rules: list[set[int]] = [set() for _ in automaton.edges]
    for rule, start in enumerate(automaton.starts):
        work = [start]
        while work:
            state = work.pop()
            if rule in rules[state]:
                continue
            rules[state].add(rule)
            work += [edge.to for edge in automaton.edges[state]]
            work += automaton.empty[state]
            work += [to for _, to in automaton.calls[state]]
    return rules


def has_traps(automaton: GrammarAutomaton, distance: list[int]) -> bool:
    """Tell whether a text can come to a state from which no complete text can be spelled."""
    reached: set[int] = set()
    work = [automaton.starts[automaton.root]]
    while work:
        state = work.pop()
        if state in reached:
            continue
        reached.add(state)
        if distance[state] >= NEVER:
            return True
        work += [edge.to for edge in automaton.edges[state]]
        work += automaton.empty[state]
        for rule, to in automaton.calls[state]:
            work += [automaton.starts[rule], to]
    return False
