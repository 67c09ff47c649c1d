"""Random catalogues of items for property tests, small enough for brute force."""

from __future__ import annotations

from functools import cache, reduce
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from hypothesis import strategies as st

from sglang_lp.builtins import CatalogueLogitProcessor
from sglang_lp.catalogue.build import PAD, build
from sglang_lp.catalogue.file import save
from sglang_lp.catalogue.index import ROOT
from sglang_lp.catalogue.opened import Catalogue
from sglang_lp.catalogue.source import CatalogueSource
from support.models.tiny_model import FIRST_WORD

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from hypothesis.strategies import DrawFn

    from sglang_lp.catalogue.index import Index
    from sglang_lp.served_model import ServedModel

__all__ = [
    "Case",
    "catalogues",
    "index_of",
    "knowing",
    "node_after",
    "opened",
    "served_index",
    "served_items",
    "serving",
    "whole",
    "with_catalogue",
]
_END = 99

_Item: TypeAlias = "tuple[int, ...]"


class Case(NamedTuple):
    """A catalogue as an operator has it.

    Attributes:
        items: Tokens of each item; several may have the same.
        ids: Ids of the items, all whole numbers or all texts.
        end: Token to put after every item, or ``None``.
        named: The sets ``a`` and ``b``: whether each has each item.
    """

    items: list[_Item]
    ids: list[Any]
    end: int | None
    named: dict[str, list[bool]]


@st.composite
def catalogues(draw: DrawFn) -> Case:
    """Draw a catalogue."""
    tokens = st.integers(0, draw(st.sampled_from([1, 3, 40])))
    is_ragged = draw(st.booleans())
    width = draw(st.integers(1, 5))
    lengths = st.integers(1, width) if is_ragged else st.just(width)
    items = draw(
        st.lists(lengths.flatmap(lambda n: st.tuples(*[tokens] * n)), min_size=1, max_size=40)
    )
    numbers = st.lists(st.integers(-(2**63), 2**63 - 1), unique=True)
    texts = st.lists(st.text("äb€c", min_size=1, max_size=5), unique=True)
    ids: list[Any] = draw(st.one_of(numbers, texts))[: len(items)] or [7]
    items = items[: len(ids)]
    end = _END if is_ragged else draw(st.sampled_from([None, _END]))
    members = [draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))) for _ in "ab"]
    return Case(items, ids, end, dict(zip("ab", members, strict=True)))


def index_of(
    items: Sequence[_Item], ids: Sequence[Any], end: int | None, named: dict[str, list[bool]]
) -> Index:
    """Build the index of a catalogue; arguments as for :class:`Case`."""
    raw = np.array([one.encode() if isinstance(one, str) else one for one in ids])
    width = max(map(len, items))
    codes = [[*item, *[PAD] * (width - len(item))] for item in items]
    sets = {name: np.array(own) for name, own in named.items()}
    return build(np.array(codes, dtype=np.int32), raw, end=end, sets=sets)


def node_after(index: Index, token_ids: Iterable[int]) -> int:
    """Return the node after some tokens from the root, or ``NOWHERE``."""
    return reduce(index.child, token_ids, ROOT)


def whole(items: Sequence[_Item], end: int | None) -> list[_Item]:
    """Return the items with the end token behind them, if there is one."""
    return [item if end is None else (*item, end) for item in items]


def opened(**indexes: Index) -> dict[str, Catalogue]:
    """Return open catalogues of these names."""
    source = CatalogueSource(file="in memory")
    return {name: Catalogue(name, index, source, 0.0) for name, index in indexes.items()}


def knowing(**indexes: Index) -> type[CatalogueLogitProcessor]:
    """Return a class that finds catalogues of these names where no server has any."""
    catalogues = opened(**indexes)

    class Knowing(CatalogueLogitProcessor):
        """The processor, on a server that has these catalogues."""

        @classmethod
        def fit_params(cls, params: Any, served: ServedModel) -> Any:
            return super().fit_params(params, served._replace(catalogues=catalogues))

    Knowing.__name__ = CatalogueLogitProcessor.__name__
    return Knowing


#: Levels of the items of the test servers, each of its own words of the tiny model.
_LEVELS, _CODES = 3, 60
_FEW = 5


def served_items(seed: int = 0) -> list[tuple[str, _Item, list[str]]]:
    """Return 400 items as id, three words of the tiny model, and sets; a few share their words.

    Args:
        seed: Other items for another seed.
    """
    random = np.random.default_rng(seed)
    codes = random.integers(0, _CODES, (400, _LEVELS)) + FIRST_WORD
    codes += np.arange(_LEVELS) * _CODES
    codes[-4:] = codes[:4]
    return [
        (f"item {place}", tuple(tokens), ["even"] * (place % 2 == 0) + ["few"] * (place < _FEW))
        for place, tokens in enumerate(codes.tolist())
    ]


def served_index(seed: int = 0) -> Index:
    """Return the index of :func:`served_items`."""
    ids, items, sets = zip(*served_items(seed), strict=True)
    named = {name: [name in own for own in sets] for name in ("even", "few")}
    return index_of(items, ids, None, named)


@cache
def serving() -> type[CatalogueLogitProcessor]:
    """Return a class that finds :func:`served_index` as ``items``."""
    return knowing(items=served_index())


def with_catalogue(policy: Path, directory: Path) -> Path:
    """Write :func:`served_index`, and a policy that has it as ``items``, into a directory.

    Args:
        policy: The policy to begin with.
        directory: Of the new policy and the file ``items.cat``.

    Returns:
        The new policy.
    """
    save(served_index(), directory / "items.cat")
    path = directory / "policy.toml"
    path.write_text(policy.read_text() + '\n[catalogues.items]\nfile = "items.cat"\n')
    return path
