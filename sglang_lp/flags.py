"""The flags of a processor, read once, and those of all processors in one row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from sglang_lp.request import History

__all__ = ["Flags"]


class Flags(NamedTuple):
    """Flags of a processor, read once because a class may compute them.

    Attributes are those of :class:`~sglang_lp.processor.LogitProcessor`; a new one needs its rule
    for several processors in ``_OF_ROW``.
    """

    name: str
    needs: History
    tolerates_lag: bool
    can_fork: bool
    reads_prompt: bool
    makes_object: bool
    early: bool
    exclusion_only: bool
    finishes: bool
    samples: bool
    renormalizes: bool
    reads_request: bool
    dense: bool

    @classmethod
    def of(cls, processor: Any) -> Self:
        """Read the flags of a processor. One that needs no tokens copes without the newest."""
        name, needs, lag, *others = (getattr(processor, field) for field in cls._fields)
        return cls(str(name), needs, needs is not History.TOKENS or lag, *others)

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


#: The rule of each flag: ``any`` if one processor makes the row so, ``all`` if all have to be so.
_OF_ROW: Mapping[str, Callable[[Iterable[Any]], Any]] = {
    "name": ", ".join,
    "needs": max,
    "tolerates_lag": all,
    "can_fork": all,
    "reads_prompt": any,
    "makes_object": any,
    "early": all,
    "exclusion_only": all,
    "finishes": any,
    "samples": any,
    "renormalizes": any,
    "reads_request": any,
    "dense": any,
}
_RULES = tuple(_OF_ROW[field] for field in Flags._fields)
