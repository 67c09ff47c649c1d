"""What the operator decides for requests, as the policy file writes it.

Sections of the policy file; :mod:`sglang_lp.policy` applies them, and imports the classes that they
name. ``docs/operating.md`` explains them by use case.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import StrEnum
from typing import Any

import msgspec

from sglang_lp.errors import PolicyError, shown

__all__ = ["LEVELS", "Above", "Ceiling", "Chosen", "Decisions", "Profile"]

#: Levels of effort that a request can send: SGLang's ``reasoning_effort`` (0.5.20 to 0.5.23) and
#: ``output_config.effort`` of the Anthropic endpoint.
LEVELS = ("none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max")

#: Tokens of ``max_new_tokens`` that stay for the answer, beside the levels in ``[effort]``.
_ANSWER_ROOM = "answer_room"

#: Whether the budgets count that clients send in fields of their own.
_FIELDS = "fields"


class Above(StrEnum):
    """What becomes of a request that asks for more than a ceiling."""

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
        processors: What it runs.
        may_set: Parameters of these that the request may set.
    """

    processors: tuple[Chosen, ...]
    may_set: tuple[str, ...] = ()


class Ceiling(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that a request may set a parameter to.

    Attributes:
        at_most: That number.
        above: What becomes of a request that asks for more.
    """

    at_most: int | float
    above: Above = Above.LOWER

    def __post_init__(self) -> None:
        if not math.isfinite(self.at_most):
            raise PolicyError(f"at_most: expected a finite number, got {self.at_most}")


class Decisions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sections of a policy file with what the operator decides.

    Attributes:
        defaults: The processor of requests that bring none.
        always: Processors that every request gets, beside its own.
        profiles: Bundles, by the name that a request chooses them by.
        ceilings: By the name of a parameter, whichever processor has it.
        effort: Thinking budgets by the level of effort, ``answer_room`` and ``fields``. Without a
            level the efforts that clients send are SGLang's, which does not enforce them, and so
            are the budgets in fields of theirs with ``fields = false``.
    """

    defaults: Chosen | None = None
    always: tuple[Chosen, ...] = ()
    profiles: dict[str, Profile] = {}
    ceilings: dict[str, Ceiling] = {}
    effort: dict[str, int | bool] | None = None

    def __post_init__(self) -> None:
        for name, profile in self.profiles.items():
            if not name.isidentifier():
                raise PolicyError(
                    f"profiles: expected a name like an identifier, got {shown(name)}"
                )
            if not profile.processors:
                raise PolicyError(f"profiles.{name}: expected at least one of processors")
        for name, value in (self.effort or {}).items():
            if isinstance(value, bool) != (name == _FIELDS):
                kind = "true or false" if name == _FIELDS else "a number of tokens"
                raise PolicyError(f"effort: {name}: expected {kind}, got {shown(value)}")
            if name not in (*LEVELS, _ANSWER_ROOM, _FIELDS):
                raise PolicyError(
                    f"effort: no request can send {shown(name)}; expected one of "
                    f"{', '.join(LEVELS)}, {_ANSWER_ROOM} or {_FIELDS}"
                )
        if self.answer_room < 0:
            raise PolicyError(f"effort: {_ANSWER_ROOM}: expected 0 or more, got {self.answer_room}")

    @property
    def answer_room(self) -> int:
        """Tokens of ``max_new_tokens`` that a thinking budget leaves for the answer."""
        return int((self.effort or {}).get(_ANSWER_ROOM, 0))

    @property
    def fields(self) -> bool:
        """Whether the budgets count that clients send in fields of their own."""
        return bool((self.effort or {}).get(_FIELDS, True))

    @property
    def reads_effort(self) -> bool:
        """Whether the efforts that clients send count."""
        return self.effort is not None and self.effort.keys() != {_FIELDS}

    @property
    def levels(self) -> Mapping[str, int]:
        """The thinking budget of each level of effort."""
        return {name: n for name, n in (self.effort or {}).items() if name in LEVELS}

    @property
    def is_empty(self) -> bool:
        """Whether requests run what they bring, and nothing else is decided."""
        return not self.reads_effort and not (
            self.defaults or self.always or self.profiles or self.ceilings
        )
