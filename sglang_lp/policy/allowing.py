"""The allow list of a policy: imports every class that the operator named, and checks it."""

from __future__ import annotations

from collections.abc import Iterator

from sglang_lp import builtins
from sglang_lp.errors import PolicyError
from sglang_lp.importing import parse_entry
from sglang_lp.policy.adapt import Adapt, adapt_all
from sglang_lp.policy.classes import load, load_pin
from sglang_lp.policy.stock import MODEL_STOCK, STOCK, STOCK_MODULE, Stock, advise
from sglang_lp.trust.allow_list import AllowedClass, AllowList, Pin

_BUILTINS = builtins.__name__


def make_allow_list(
    *,
    with_builtins: bool,
    stock: Stock,
    allow: tuple[str, ...],
    adapt: tuple[Adapt, ...],
    pins: tuple[Pin, ...],
) -> AllowList:
    """Import and check every class that a policy allows.

    Args:
        with_builtins: Whether this toolkit's own processors are allowed.
        stock: The policy for SGLang's own processors.
        allow: Further classes, each as ``module:Class``.
        adapt: Classes that were written for other engines.
        pins: Code that may be unpickled.

    Raises:
        PolicyError: An entry cannot be served; the message says which and why.
    """
    listed = [
        *(_load_builtins(stock) if with_builtins else ()),
        *_load_stock(stock, with_builtins=with_builtins),
        *_load_named(allow),
    ]
    listed += _load_adapted(adapt, {name for one in listed for name in one.names})
    return AllowList(tuple(listed), pins, load_pin, advise(stock, _BUILTINS))


def _load_builtins(stock: Stock) -> Iterator[AllowedClass]:
    """Yield this toolkit's own classes, upgraded ones under SGLang's names as well."""
    upgraded = (*STOCK, *MODEL_STOCK) if stock == Stock.UPGRADE else ()
    for name in builtins.__all__:
        own = (_BUILTINS, name)
        aliases = (sglangs for sglangs in upgraded if sglangs[1] == name)
        yield AllowedClass(load(*own, "builtins"), (own, *aliases), name)


def _load_stock(stock: Stock, *, with_builtins: bool) -> Iterator[AllowedClass]:
    """Yield the classes that run only under SGLang's names."""
    if stock == Stock.ALLOW:
        for sglangs in STOCK:
            yield AllowedClass(load(*sglangs, "stock"), (sglangs,))
    elif stock == Stock.UPGRADE and not with_builtins:
        for sglangs in (*STOCK, *MODEL_STOCK):
            yield AllowedClass(load(_BUILTINS, sglangs[1], "stock"), (sglangs,))


def _load_named(allow: tuple[str, ...]) -> Iterator[AllowedClass]:
    """Yield the classes that the operator named."""
    for index, entry in enumerate(allow):
        where = f"allow[{index}]"
        module, name = parse_entry(entry, where)
        if module == STOCK_MODULE:
            raise PolicyError(
                f'{where}: SGLang\'s own processors are allowed together, by stock = "allow"'
            )
        yield AllowedClass(load(module, name, where), ((module, name),))


def _load_adapted(adapt: tuple[Adapt, ...], known: set[tuple[str, str]]) -> Iterator[AllowedClass]:
    """Yield the adapted classes of other engines, none under a name that is known already."""
    for names, processor in adapt_all(adapt):
        for module, name in names:
            if (module, name) in known:
                raise PolicyError(f"adapt: {module}:{name} is allowed already")
        known.update(names)
        yield AllowedClass(processor, tuple(names))
