"""Whether a hook can read the calls of a function of SGLang, told from both signatures.

A hook declares the parameters that it reads in its own signature, by SGLang's names and in
SGLang's places, and takes others with ``*args`` and ``**kwargs``. So Python itself binds a call for
both alike, and a parameter that SGLang renamed, moved or removed is seen before anything serves.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter
from pkgutil import resolve_name
from typing import Any

_BY_PLACE = Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD
#: The catch-all of a hook that takes an undeclared parameter, by its kind; other kinds need both.
_TAKES = {
    Parameter.POSITIONAL_ONLY: Parameter.VAR_POSITIONAL,
    Parameter.VAR_POSITIONAL: Parameter.VAR_POSITIONAL,
    Parameter.KEYWORD_ONLY: Parameter.VAR_KEYWORD,
    Parameter.VAR_KEYWORD: Parameter.VAR_KEYWORD,
}
#: Kinds of hooks that get a value before the arguments: the result, or the function.
_WITH_VALUE = "after", "around"


def misread(hook: Callable[..., Any], kind: str, target: str) -> Iterator[str]:
    """Yield the names of parameters that a hook would misread in the installed SGLang.

    Args:
        hook: Ours.
        kind: As in the table of hooks.
        target: SGLang's function, which exists, as in the table of hooks.
    """
    path, _, name = target.rpartition(".")
    owner = resolve_name(path)
    function = inspect.getattr_static(owner, name)
    function = getattr(function, "__func__", function)  # of a classmethod
    return mismatches(hook, kind, function, is_method=isinstance(owner, type))


def mismatches(
    hook: Callable[..., Any], kind: str, function: Callable[..., Any], *, is_method: bool
) -> Iterator[str]:
    """Yield the names of parameters that a hook and a function of SGLang do not agree on.

    Args:
        hook: Ours.
        kind: As in the table of hooks.
        function: SGLang's, or what wraps it as ``functools.wraps`` does.
        is_method: Whether the first parameter is an instance or a class, whatever its name.
    """
    ours = _parameters(hook)
    theirs = _parameters(function)
    if kind in _WITH_VALUE:
        ours = _without_first(ours)
    if is_method:
        ours, theirs = _without_first(ours), _without_first(theirs)
    takes_more = {one.kind for one in ours}
    by_name = {one.name: one for one in theirs}
    places = [one.name for one in theirs if one.kind in _BY_PLACE]
    read = [one for one in ours if one.kind in _BY_PLACE or one.kind is Parameter.KEYWORD_ONLY]
    for place, one in enumerate(read):
        known = by_name.pop(one.name, None)
        if known is None or not _is_bound_alike(one, known, place, places):
            yield one.name
    for one in by_name.values():
        needed = {_TAKES[one.kind]} if one.kind in _TAKES else {*_TAKES.values()}
        if not needed <= takes_more:
            yield one.name


def _parameters(function: Callable[..., Any]) -> Sequence[Parameter]:
    return [*inspect.signature(function).parameters.values()]


def _without_first(parameters: Sequence[Parameter]) -> Sequence[Parameter]:
    """Leave out the first parameter, unless ``*args`` takes it."""
    return parameters[1:] if parameters and parameters[0].kind in _BY_PLACE else parameters


def _is_bound_alike(ours: Parameter, theirs: Parameter, place: int, places: Sequence[str]) -> bool:
    """Tell whether every call gives both parameters the same value.

    Args:
        ours: A parameter of the hook.
        theirs: The parameter of SGLang's function with the same name.
        place: Index of the hook's parameter.
        places: Names of the function's parameters that a call may give by place, in order.
    """
    # Without a value in the call each takes its own default.
    if theirs.default is not Parameter.empty and ours.default != theirs.default:
        return False
    if theirs.kind is Parameter.KEYWORD_ONLY:
        return ours.kind is Parameter.KEYWORD_ONLY or place >= len(places)
    return ours.kind in _BY_PLACE and places[place : place + 1] == [theirs.name]
