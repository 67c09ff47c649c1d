"""Rules that hold for every case, one function for each.

A rule takes a case as it went and the kind of its server, and yields what contradicts it: a word
that tells this fault from others, and a sentence. None uses the product's own finders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from hunt import thinking
from hunt.formats import formats
from hunt.routes import routes
from hunt.rules import (
    calls,
    dropped,
    ends,
    operator,
    others,
    own,
    report,
    structured,
    thoughts,
    times,
)

if TYPE_CHECKING:
    from hunt.asking import Asked
    from hunt.rules.told import Found
    from hunt.servers import Kind

__all__ = ["INVARIANTS", "TIMES", "Violation", "prepare", "violations"]


class Violation(NamedTuple):
    """A rule that did not hold.

    Attributes:
        invariant: Name of the rule.
        sort: Tells faults of one rule apart.
        text: What was seen.
    """

    invariant: str
    sort: str
    text: str

    @property
    def signature(self) -> tuple[str, str]:
        """The key of a fault: rule and sort."""
        return self.invariant, self.sort


Rule = Callable[["Asked", "Kind"], "Found"]
_RULES: Sequence[Rule] = (
    operator.never_banned_text,
    operator.profiles_hold,
    operator.always_beginning,
    operator.least_length,
    operator.ceilings_on_thinking,
    own.own_bans,
    own.own_tokens,
    own.own_fields,
    own.own_choice,
    own.own_pick,
    own.own_items,
    own.own_beginning,
    own.own_scripts,
    others.same_alone,
    others.nobody_ends_another,
    others.copies_are_equal,
    dropped.nothing_is_dropped,
    thoughts.answer_is_guaranteed,
    thoughts.room_is_left,
    calls.calls_are_limited,
    structured.whole_answers_are_complete,
    ends.no_server_error,
    ends.refusals_name_their_field,
    ends.grammars_need_no_length,
    ends.no_fault_counted,
    ends.server_lives,
    report.report_agrees,
    report.report_is_there,
    report.replay_agrees,
    times.loop_answers,
    times.steps_are_short,
)
INVARIANTS: Mapping[str, Rule] = {rule.__name__: rule for rule in _RULES}
#: Rules about time, which counts only in comparison with the same case without processors.
TIMES = (times.loop_answers.__name__, times.steps_are_short.__name__)


def prepare() -> None:
    """Import the application, the parser and the replay, which takes seconds."""
    from hunt.replaying import served

    routes()
    formats()
    thinking.blocks("", "a")
    served()


def violations(asked: Asked, kind: Kind, names: Sequence[str] = ()) -> Iterator[Violation]:
    """Yield what contradicts the rules.

    Args:
        asked: A case as it went.
        kind: Of its server.
        names: Of the rules; all of them without any.
    """
    # All other rules follow from the end of a server.
    for name in (names or INVARIANTS) if asked.is_alive else (ends.server_lives.__name__,):
        for sort, text in INVARIANTS[name](asked, kind):
            yield Violation(name, sort, text)
