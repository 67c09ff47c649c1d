"""The sections of a policy file with the operator's decisions for requests.

``policy.rules`` applies them; ``policy.chosen`` imports the classes that they name.
``docs/operating.md`` explains them by use case.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec

from sglang_lp.errors import PolicyError, did_you_mean, shown
from sglang_lp.policy.fields import ENGINE_FIELDS

#: Levels of effort that a request can send: SGLang's ``reasoning_effort`` (0.5.20 to 0.5.23) and
#: ``output_config.effort`` of the Anthropic endpoint.
LEVELS = ("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")

#: Key of ``[effort]``: tokens of ``max_new_tokens`` that a thinking budget leaves for the answer.
_ANSWER_ROOM = "answer_room"

#: Key of ``[effort]``: fewest tokens of an answer after its thinking.
_MIN_ANSWER = "min_answer_tokens"

#: Key of ``[effort]``: whether budgets in other fields of a request count.
_FIELDS = "fields"


class Above(StrEnum):
    """The treatment of a request that asks for more than a ceiling."""

    #: It gets the ceiling.
    LOWER = "lower"
    #: It is refused.
    REFUSE = "refuse"


class Chosen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One processor that the operator chose.

    Attributes:
        processor: Name of a built-in, or ``module:Class``.
        params: Its parameters, as in ``custom_params``.
    """

    processor: str
    params: dict[str, Any] = {}


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bundle that a request chooses by its name.

    Attributes:
        processors: The processors that it runs.
        may_set: Names of the parameters and other engines' fields that the request may set.
    """

    processors: tuple[Chosen, ...]
    may_set: tuple[str, ...] = ()


class Ceiling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that a request may set a parameter to.

    Attributes:
        at_most: The largest number.
        above: The treatment of a request that asks for more.
    """

    at_most: int | float
    above: Above = Above.LOWER

    def __post_init__(self) -> None:
        if not abs(self.at_most) <= sys.float_info.max:
            raise PolicyError(f"at_most: expected a finite number, got {self.at_most}")


class Structured(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operator's decisions for answers with a grammar.

    Attributes:
        whole_answers: Whether they are complete when ``max_new_tokens`` ends them, unless a request
            says ``whole_answer = false``.
        max_whitespace: Most blanks in a row between two values of JSON, where the server's command
            line does not say; SGLang 0.5.22 and newer, with xgrammar.
    """

    whole_answers: bool = False
    max_whitespace: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 12


class Decisions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The operator's decisions.

    Attributes:
        defaults: The processor of requests that bring none.
        always: Processors that every request gets in addition to its own.
        profiles: Bundles, by the name that a request chooses them by.
        ceilings: The largest number for a parameter of that name in any class.
        may_resume: Whether ``resumed_tokens`` of a request also count for ``always``.
        effort: Thinking budgets by the level of effort; and ``answer_room``, ``min_answer_tokens``
            and ``fields``. Without a level, the efforts of requests are left to SGLang, which does
            not enforce them. With ``fields = false``, so are budgets in other fields of a request.
        fields: Fields of clients that do not count (``bad_words = false``).
        structured: For answers with a grammar; ``None``: SGLang's own ways.
    """

    defaults: Chosen | None = None
    always: tuple[Chosen, ...] = ()
    profiles: dict[str, Profile] = {}
    ceilings: dict[str, Ceiling] = {}
    may_resume: bool = False
    effort: dict[str, int | bool] | None = None
    fields: dict[str, bool] = {}
    structured: Structured | None = None

    def __post_init__(self) -> None:
        for name, profile in self.profiles.items():
            if not name.isidentifier():
                raise PolicyError(
                    f"profiles: expected a name like an identifier, got {shown(name)}"
                )
            if not profile.processors:
                raise PolicyError(f"profiles.{name}.processors: expected one or more, got none")
        for name, value in (self.effort or {}).items():
            if isinstance(value, bool) != (name == _FIELDS):
                kind = "true or false" if name == _FIELDS else "a number of tokens"
                raise PolicyError(f"effort: {name}: expected {kind}, got {shown(value)}")
            known = (*LEVELS, _ANSWER_ROOM, _MIN_ANSWER, _FIELDS)
            if name not in known:
                raise PolicyError(
                    f"effort: no request can send {shown(name)}; expected one of "
                    f"{', '.join(known[:-1])} or {_FIELDS}{did_you_mean(name, known)}"
                )
        _check_fields(self.fields)
        for name in (_ANSWER_ROOM, _MIN_ANSWER):
            if (tokens := (self.effort or {}).get(name, 0)) < 0:
                raise PolicyError(f"effort: {name}: expected 0 or more, got {tokens}")

    @property
    def answer_room(self) -> int:
        """Tokens of ``max_new_tokens`` that a thinking budget leaves for the answer."""
        return int((self.effort or {}).get(_ANSWER_ROOM, 0))

    @property
    def min_answer_tokens(self) -> int:
        """Fewest tokens of an answer after its thinking."""
        return int((self.effort or {}).get(_MIN_ANSWER, 0))

    @property
    def whole_answers(self) -> bool:
        """Whether answers with a grammar are complete at their limit by default."""
        return self.structured is not None and self.structured.whole_answers

    @property
    def reads_budgets(self) -> bool:
        """Whether budgets in other fields of a request count."""
        return bool((self.effort or {}).get(_FIELDS, True))

    @property
    def reads_effort(self) -> bool:
        """Whether the efforts of requests count."""
        return self.effort is not None and self.effort.keys() != {_FIELDS}

    @property
    def levels(self) -> Mapping[str, int]:
        """The thinking budget of each level of effort."""
        return {name: n for name, n in (self.effort or {}).items() if name in LEVELS}

    @property
    def is_empty(self) -> bool:
        """Whether there are no decisions: requests run the processors that they name."""
        return not self.reads_effort and not (
            self.defaults or self.always or self.profiles or self.ceilings or self.whole_answers
        )


def _check_fields(names: Iterable[str]) -> None:
    """Refuse a name that is no such field of clients."""
    for name in names:
        if name not in ENGINE_FIELDS:
            raise PolicyError(
                f"fields: expected names of clients' fields, {', '.join(ENGINE_FIELDS)}, "
                f"got {shown(name)}{did_you_mean(name, ENGINE_FIELDS)}"
            )
