"""The flags of a processor, read once, and those of all processors in one row."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, Self, get_type_hints

from sglang_lp.request import History

__all__ = ["Flags"]


class Flags(NamedTuple):
    """Flags of a processor, read once because a class may compute them.

    Attributes are those of :class:`~sglang_lp.processor.LogitProcessor`. The type of each has the
    rule for several processors in one row: ``any`` of them gives the flag to the row, or ``all``.
    """

    name: Annotated[str, ", ".join]
    needs: Annotated[History, max]
    tolerates_lag: Annotated[bool, all]
    can_fork: Annotated[bool, all]
    reads_prompt: Annotated[bool, any]
    makes_object: Annotated[bool, any]
    early: Annotated[bool, all]
    exclusion_only: Annotated[bool, all]
    finishes: Annotated[bool, any]
    samples: Annotated[bool, any]
    renormalizes: Annotated[bool, any]
    reads_request: Annotated[bool, any]
    dense: Annotated[bool, any]

    @classmethod
    def of(cls, processor: Any) -> Self:
        """Read the flags of a processor. One that needs no tokens copes without the newest."""
        name, needs, lag, *others = _READ(processor)
        return cls(str(name), needs, needs is not _TOKENS or lag, *others)

    @property
    def in_phase(self) -> Self:
        """The flags in one phase of the answer, which is found in every token of the request."""
        return self._replace(needs=History.TOKENS, tolerates_lag=False, reads_prompt=True)

    @classmethod
    def of_row(cls, flags: Sequence[Flags]) -> Flags:
        """Return the flags of a row that runs several processors.

        Args:
            flags: Of each processor of the row, at least one.
        """
        if len(flags) == 1:
            return flags[0]
        of_each = zip(_RULES, zip(*flags, strict=True), strict=True)
        row = cls(*(rule(values) for rule, values in of_each))
        if row.dense:  # with NONE it would be asked only once
            row = row._replace(needs=max(row.needs, History.POSITION))
        return row


#: Looked up once and not for each row: a member of an enumeration is a slow attribute.
_TOKENS = History.TOKENS
_READ = attrgetter(*Flags._fields)
_RULES = tuple(hint.__metadata__[0] for hint in get_type_hints(Flags, include_extras=True).values())
