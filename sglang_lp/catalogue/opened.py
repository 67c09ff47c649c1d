"""The catalogues that a process has open, by the names that its policy gives them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

from sglang_lp.caches import Latest
from sglang_lp.catalogue.allowed import AllowedItems
from sglang_lp.catalogue.file import load
from sglang_lp.catalogue.index import CatalogueError
from sglang_lp.catalogue.sets import ItemSet
from sglang_lp.errors import shown

if TYPE_CHECKING:
    from sglang_lp.catalogue.index import Index
    from sglang_lp.catalogue.source import CatalogueSource

__all__ = ["Catalogue", "Catalogues", "Renewal"]

#: Most combinations of sets whose counts a catalogue keeps: 0.2 bytes an item each.
_COMBINATIONS = 32

#: Most choices that a catalogue keeps: as many as one HTTP request may have.
_CHOICES = 32


class Catalogue:
    """One version of a catalogue, with the operator's rules for it.

    Attributes:
        name: Its name in the policy.
        index: Its items.
        written: Unix time in seconds at which its file was written.
        sets: Names of the sets that requests may name.
        users: One object for each running request of this version.
        chosen: The latest choices of requests, filled by the caller.
    """

    def __init__(self, name: str, index: Index, source: CatalogueSource, written: float) -> None:
        """Check that the items have the sets of the policy.

        Raises:
            CatalogueError: A set is missing, or the sets of ``always`` have no item in common.
        """
        self.name = name
        self.index = index
        self.written = written
        self.sets = frozenset(index.sets if source.sets is None else source.sets)
        self.users: WeakSet[object] = WeakSet()
        #: Groups of one set each, which hold for every request.
        self._always = frozenset(frozenset((name,)) for name in source.always)
        self._joined: Latest[AllowedItems] = Latest(_COMBINATIONS)
        self.chosen: Latest[Any] = Latest(_CHOICES)
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

    def within(self, wanted: Collection[Collection[str]]) -> AllowedItems:
        """Return the items of some sets that the policy allows.

        Args:
            wanted: Groups of names of sets. An item has to be, for each group, in one of its sets.
        """
        key = self._always.union(map(frozenset, wanted))
        found = self._joined.get(key)
        if found is None:
            found = AllowedItems(self.index, ItemSet.of(self.index, key) if key else None)
            self._joined.keep(key, found)
        return found


class Catalogues:
    """The open catalogues of a process.

    A file that takes the place of another is a new version. At most two versions are open: a
    third waits for the requests of the first.

    Attributes:
        now: The newest version of each, by name. Replaced as a whole, never changed.
    """

    def __init__(self, sources: Mapping[str, CatalogueSource], folder: Path) -> None:
        """Open all catalogues of a policy.

        Args:
            sources: By name.
            folder: The folder of the policy.

        Raises:
            CatalogueError: A file cannot be read, is damaged, or does not fit the policy.
        """
        self._sources = sources
        self._paths = {name: folder / source.file for name, source in sources.items()}
        #: Number of logits in a row, if known, and the tokens that end an answer.
        self._model: tuple[int | None, Collection[int]] = None, ()
        #: By name, the stamp of the file that was read last, or refused; and the stamp at the
        #: latest look, when another process may still have been writing the file.
        self._read = {name: _stamp(path) for name, path in self._paths.items()}
        self._seen = dict(self._read)
        #: Names of the catalogues whose latest file was refused.
        self._refused: set[str] = set()
        #: Requests of the version before the newest.
        self._before: dict[str, WeakSet[object]] = {}
        self.now: Mapping[str, Catalogue] = {name: self._open(name) for name in sources}

    @property
    def versions(self) -> dict[str, str]:
        """The version of each catalogue, by name."""
        return {name: one.index.version for name, one in self.now.items()}

    def fit(self, vocab_size: int, ends: Collection[int] = ()) -> None:
        """Check the tokens of all items, now and of every later version.

        Args:
            vocab_size: Number of logits in a row of the served model.
            ends: Tokens that end its answers.

        Raises:
            CatalogueError: An item has a token that the model does not have, or one that ends the
                answer before the item is complete.
        """
        model = vocab_size, ends
        if model == self._model:  # every request asks
            return
        for name, one in self.now.items():
            _check_tokens(name, one.index, *model)
        self._model = model

    def renew(self) -> Iterator[Renewal]:
        """Open new versions, and yield the outcome for each.

        A version that cannot be opened changes nothing. Called again and again by one thread.
        """
        for name, path in self._paths.items():
            stamp, seen = _stamp(path), self._seen[name]
            self._seen[name] = stamp
            if stamp in {None, self._read[name]} or stamp != seen or self._before.get(name):
                continue
            self._read[name] = stamp
            try:
                found = self._open(name)
            except CatalogueError as error:
                self._refused.add(name)
                yield Renewal(name, str(error))
                continue
            old = self.now[name]
            # Also the same version again, which says that a refused file was replaced.
            if found.index.version != old.index.version or name in self._refused:
                self._refused.discard(name)
                self._before[name] = old.users
                self.now = {**self.now, name: found}
                yield Renewal(name)

    def _open(self, name: str) -> Catalogue:
        try:
            # Read whole, so that no step waits for a disk.
            index = load(self._paths[name], whole=True)
            stamp = self._read[name]
            written = 0.0 if stamp is None else stamp[-1] / 1e9
            found = Catalogue(name, index, self._sources[name], written)
        except CatalogueError as error:
            raise CatalogueError(f"catalogues.{name}: {error}") from None
        _check_tokens(name, index, *self._model)
        return found


class Renewal(NamedTuple):
    """The outcome for a new version.

    Attributes:
        name: Name of the catalogue.
        problem: Why the version was refused; ``None`` if it is the newest now.
    """

    name: str
    problem: str | None = None


def _check_tokens(name: str, index: Index, vocab_size: int | None, ends: Collection[int]) -> None:
    problem = index.misfit(vocab_size, ends)
    if problem is not None:
        raise CatalogueError(f"catalogues.{name}: {problem}")


def _stamp(path: Path) -> tuple[int, ...] | None:
    """Return numbers that identify the file that a path names now; ``None`` without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    # The ctime changes with permissions, which may be why a file was refused.
    return found.st_dev, found.st_ino, found.st_size, found.st_ctime_ns, found.st_mtime_ns
