"""The catalogues that a process has open, by the names that its policy gives them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from sglang_lp.catalogue.allowed import Allowed
from sglang_lp.catalogue.file import check, load
from sglang_lp.catalogue.index import CatalogueError
from sglang_lp.catalogue.sets import Members
from sglang_lp.copies import Latest
from sglang_lp.errors import shown

if TYPE_CHECKING:
    from sglang_lp.catalogue.index import Index
    from sglang_lp.catalogue.source import Source

__all__ = ["Catalogue", "Catalogues"]

#: Most combinations of sets whose counts a catalogue keeps: 0.2 bytes an item each.
_COMBINATIONS = 32


class Catalogue:
    """One version of a catalogue, with the operator's rules for it.

    Attributes:
        name: In the policy.
        index: Its items.
        sets: Names of the sets that requests may name.
        always: Names of the sets that every answer's items are in.
        since: Time at which the process opened this version, in seconds since 1970.
    """

    def __init__(self, name: str, index: Index, source: Source) -> None:
        """Check that the items have the sets of the policy.

        Raises:
            CatalogueError: A set is missing, or the sets of ``always`` have no item in common.
        """
        self.name = name
        self.index = index
        self.always = tuple((one,) for one in source.always)
        self.sets = frozenset(index.sets if source.sets is None else source.sets)
        self.since = time.time()
        self._joined: Latest[Allowed] = Latest(_COMBINATIONS)
        missing = sorted({*(source.sets or ()), *source.always} - {*index.sets})
        if missing:
            raise CatalogueError(
                f"expected the sets {', '.join(map(shown, missing))} in {source.file}, which it "
                "lacks; build it with them, or correct the policy"
            )
        if not self.within(()).total:
            raise CatalogueError(
                f"expected an item that is in all sets of always, got none in {source.file}"
            )

    def within(self, wanted: Sequence[Sequence[str]]) -> Allowed:
        """Return the items of some sets that the policy allows.

        Args:
            wanted: Groups of names of sets. An item has to be, for each group, in one of its sets.
        """
        key = (*self.always, *map(tuple, wanted))
        found = self._joined.get(key)
        if found is None:
            found = Allowed(self.index, Members.of(self.index, key) if key else None)
            self._joined.keep(key, found)
        return found


class Catalogues:
    """The open catalogues of a process.

    Attributes:
        now: The newest version of each, by name. Replaced as a whole, never changed.
    """

    def __init__(self, sources: Mapping[str, Source], folder: Path) -> None:
        """Open all catalogues of a policy.

        Args:
            sources: By name.
            folder: Of the policy.

        Raises:
            CatalogueError: A file cannot be read, is damaged, or does not fit the policy.
        """
        self._sources, self._folder = sources, folder
        self.now: Mapping[str, Catalogue] = {name: self._open(name) for name in sources}

    @property
    def versions(self) -> dict[str, str]:
        """The version of each catalogue, by name."""
        return {name: one.index.version for name, one in self.now.items()}

    def _open(self, name: str) -> Catalogue:
        path = self._folder / self._sources[name].file
        try:
            check(path)  # reads the whole file, so that no step waits for a disk
            return Catalogue(name, load(path), self._sources[name])
        except CatalogueError as error:
            raise CatalogueError(f"catalogues.{name}: {error}") from None
