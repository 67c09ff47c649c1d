"""Where a catalogue of a server comes from, as its policy says."""

from __future__ import annotations

import msgspec

__all__ = ["MAX_CATALOGUES", "CatalogueSource"]

#: Most catalogues of a policy.
MAX_CATALOGUES = 64


class CatalogueSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table ``[catalogues.NAME]`` of a policy.

    Attributes:
        file: The index that ``sglang-lp catalogue build`` wrote. A relative path is relative to
            the folder of the policy.
        sets: Names of the sets that requests may name; ``None`` for all of the file. A file
            without one of them is refused.
        always: Names of sets: every answer's items are in each of them.
    """

    file: str
    sets: tuple[str, ...] | None = None
    always: tuple[str, ...] = ()
