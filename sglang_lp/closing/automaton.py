"""The byte automaton that xgrammar compiled a grammar to, read from its serialized form.

An automaton has one finite automaton for each rule of the grammar. An edge reads a byte, reads
nothing, or calls a rule: a recursive transition network (Woods, "Transition network grammars for
natural language analysis", 1970).

The serialized form is private to xgrammar. Its version is checked, so another form is refused and
never misread. Read while other requests are served: no part takes long under Python's lock.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import orjson

from sglang_lp.errors import Unsupported

#: Versions of the serialized form that :func:`read` knows (xgrammar 0.2.7).
VERSIONS = ("v16",)

#: Kinds of edges in xgrammar's form; a number of 0 or more is the lowest byte of a range.
_EMPTY, _CALL, _REPEAT = -1, -2, -4

#: Most states of an automaton: each costs time when the grammar is compiled.
_MOST_STATES = 20_000

#: Most characters of the states as xgrammar prints them: once, and once for each rule. The
#: serialized form repeats the states of the whole grammar for each rule: its length is quadratic.
_MOST_PRINTED, _MOST_REPEATED = 1_000_000, 24_000_000

#: The part of the serialized form with an entry for each rule: its name, the name after it, and the
#: end of an entry, with the first state of the rule and the states in which it may end.
_RULES, _AFTER_RULES = '"per_rule_fsms":', '"allow_empty_rule_ids":'
_RULE = re.compile(r'"edge_num":\d+\},(\d+),\[([\d,]*)\]')

#: Bytes that JSON writes between its values.
_BLANKS = frozenset(b"\t\n\r ")
_FIRST_PRINTABLE = 0x20
_CONTROLS = frozenset(range(_FIRST_PRINTABLE))
_QUOTE = 0x22


class Edge(NamedTuple):
    """An edge that reads a byte.

    Attributes:
        low: Lowest byte.
        high: Highest byte.
        to: State after it.
    """

    low: int
    high: int
    to: int


class GrammarAutomaton(NamedTuple):
    """A grammar as finite automata over bytes that call each other.

    Attributes:
        edges: Edges of each state that read a byte.
        empty: States that each state reaches without reading anything.
        calls: For each state, the rules that it calls, each with the state after the call.
        starts: First state of each rule.
        finals: States in which a rule may end.
        root: The rule of a whole text.
    """

    edges: list[list[Edge]]
    empty: list[list[int]]
    calls: list[list[tuple[int, int]]]
    starts: list[int]
    finals: frozenset[int]
    root: int

    def control_bytes(self) -> frozenset[int]:
        """Return the control characters that a text of JSON may not have and this grammar allows.

        A string with a pattern or a length is any character but its quotation mark for xgrammar,
        so it may have raw control characters, which no parser of JSON takes. Blanks between
        values come from states that read nothing else below a space.
        """
        found: set[int] = set()
        for edges in self.edges:
            control = {
                byte
                for low, high, _ in edges
                for byte in range(low, min(high, _FIRST_PRINTABLE - 1) + 1)
            }
            if control - _BLANKS:
                found |= control
        return frozenset(found)

    def without_raw_controls(self) -> GrammarAutomaton:
        """Return the automaton without control characters in strings; itself if it has none there.

        Texts around the strings, as those around a tool call, keep theirs. A string reads control
        characters, and its quotation mark leads elsewhere.
        """
        edges: list[list[Edge]] = []
        for own in self.edges:
            ends = {edge.to for edge in own if edge.low <= _QUOTE <= edge.high}
            edges.append(
                [
                    part
                    for edge in own
                    for part in (
                        _outside(edge, _CONTROLS)
                        if edge.to not in ends and _reads_controls(edge)
                        else [edge]
                    )
                ]
            )
        return self if edges == self.edges else self._replace(edges=edges)

    def without(self, some: frozenset[int]) -> GrammarAutomaton:
        """Return the automaton without edges that read one of some bytes."""
        edges = [[one for edge in edges for one in _outside(edge, some)] for edges in self.edges]
        return self._replace(edges=edges)


def read(compiled: Any) -> GrammarAutomaton:
    """Read the automaton of a compiled grammar.

    Args:
        compiled: xgrammar's ``CompiledGrammar``.

    Raises:
        Unsupported: The form has another version, or an edge reads token ids, or there are too
            many states or rules.
    """
    from xgrammar import testing

    grammar = compiled.grammar
    printed = testing._print_grammar_fsms(grammar)  # noqa: SLF001 - of the length of one rule's entry
    count = printed.count(", FSM: ")
    if len(printed) > _MOST_PRINTED or len(printed) * count > _MOST_REPEATED:
        raise Unsupported(
            f"expected a grammar whose states have at most {_MOST_PRINTED} characters, and "
            f"{_MOST_REPEATED} if each rule repeats them; got {len(printed)} characters and "
            f"{count} rules"
        )
    whole, rules = _parse(grammar.serialize_json())
    check_version(whole.get("__VERSION__"))
    machine = whole["complete_fsm"]["edges"]
    bounds, data = machine["indptr_"], machine["data_"]
    size = len(bounds) - 1
    if size > _MOST_STATES:
        raise Unsupported(f"expected a grammar of at most {_MOST_STATES} states, got {size}")
    reading = _AutomatonReader(whole["complete_fsm"]["edge_aux_data"], size)
    for state in range(size):
        for kind, value, to in data[bounds[state] : bounds[state + 1]]:
            reading.add(state, kind, value, to)
    if len(rules) != len(whole["rules"]):
        raise Unsupported("this grammar has a rule that xgrammar did not compile to an automaton")
    starts = [start for start, _ in rules]
    finals = frozenset(state for _, ends in rules for state in ends)
    found = reading.edges, reading.empty, reading.calls
    return GrammarAutomaton(*found, starts, finals, whole["root_rule_id"])


def _parse(serialized: str) -> tuple[dict[str, Any], list[tuple[int, list[int]]]]:
    """Parse the serialized form of a grammar, and of its rules only what differs.

    A parse of the whole holds Python's lock for all of its time, and no step runs meanwhile.

    Returns:
        The form without the entries of rules; and for each rule the first and the final states.
    """
    begin, end = serialized.index(_RULES), serialized.rindex(_AFTER_RULES)
    rules = [
        (int(found[1]), [int(state) for state in found[2].split(",") if state])
        for found in _RULE.finditer(serialized, begin, end)
    ]
    return orjson.loads(serialized[:begin] + serialized[end:]), rules


def check_version(version: object) -> None:
    """Refuse another version of xgrammar's serialized form.

    Raises:
        Unsupported: It is another version.
    """
    if version not in VERSIONS:
        raise Unsupported(
            f"expected xgrammar's serialized form {' or '.join(VERSIONS)}, got {version}, which "
            "this version of sglang-lp cannot read"
        )


class _AutomatonReader:
    """The states of an automaton while its edges are read."""

    def __init__(self, repeats: list[int], size: int) -> None:
        self._repeats = repeats
        self.edges: list[list[Edge]] = [[] for _ in range(size)]
        self.empty: list[list[int]] = [[] for _ in range(size)]
        self.calls: list[list[tuple[int, int]]] = [[] for _ in range(size)]

    def add(self, state: int, kind: int, value: int, to: int) -> None:
        """Add one edge of xgrammar's: its kind or lowest byte, a value, and the state after it."""
        if kind >= 0:
            self.edges[state].append(Edge(kind, value, to))
        elif kind == _EMPTY:
            self.empty[state].append(to)
        elif kind == _CALL:
            self.calls[state].append((value, to))
        elif kind == _REPEAT:
            rule, low, high = self._repeats[value : value + 3]
            self._repeat(state, rule, (low, high), to)
        else:
            raise Unsupported("this grammar reads token ids, as a framed answer does, not text")

    def _repeat(self, state: int, rule: int, times: tuple[int, int], to: int) -> None:
        """Unroll a rule that is called a number of times; an upper bound below 0 is none."""
        low, high = times
        count = max(low, high)
        if len(self.edges) + count > _MOST_STATES:
            raise Unsupported(
                f"this grammar repeats a part {count} times; expected at most {_MOST_STATES} "
                "states in all"
            )
        # The repeats have states of their own: other edges of ``state`` are no way out of them.
        following = self._new()
        self.empty[state].append(following)
        state = following
        for done in range(count):
            if done >= low:
                self.empty[state].append(to)
            following = self._new()
            self.calls[state].append((rule, following))
            state = following
        self.empty[state].append(to)
        if high < 0:
            self.calls[state].append((rule, state))

    def _new(self) -> int:
        self.edges.append([])
        self.empty.append([])
        self.calls.append([])
        return len(self.edges) - 1


def _reads_controls(edge: Edge) -> bool:
    """Tell whether an edge reads control characters that JSON does not write between its values."""
    return not _CONTROLS.isdisjoint({*range(edge.low, edge.high + 1)} - _BLANKS)


def _outside(edge: Edge, some: frozenset[int]) -> list[Edge]:
    """Return the parts of an edge that read none of some bytes."""
    if some.isdisjoint(range(edge.low, edge.high + 1)):
        return [edge]
    parts: list[Edge] = []
    low = edge.low
    for byte in [*sorted(some.intersection(range(edge.low, edge.high + 1))), edge.high + 1]:
        if low < byte:
            parts.append(Edge(low, byte - 1, edge.to))
        low = byte + 1
    return parts
