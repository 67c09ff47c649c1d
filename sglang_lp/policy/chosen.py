"""Processors that the operator chose, by name and with parameters: imported and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp import builtins
from sglang_lp.adapters import AdaptedProcessor, as_processor
from sglang_lp.builtins import CatalogueLogitProcessor, ChainLogitProcessor
from sglang_lp.errors import InvalidParameter, PolicyError, did_you_mean, shown
from sglang_lp.importing import parse_entry
from sglang_lp.params import is_private, with_new_names
from sglang_lp.policy.classes import load
from sglang_lp.policy.fields import ASKED_FIELDS
from sglang_lp.policy.thinking import is_thinking_budget

if TYPE_CHECKING:
    from sglang_lp.policy.sections import Chosen, Profile
    from sglang_lp.processor import LogitProcessor


class LoadedChoice(NamedTuple):
    """A class that the operator chose.

    Attributes:
        processor: The class.
        params: The operator's parameters of it under their names of today, not parsed yet.
    """

    processor: type[LogitProcessor]
    params: dict[str, Any]


class LoadedProfile(NamedTuple):
    """The processors of a profile.

    Attributes:
        choices: The processors.
        may_set: Names of the parameters and other engines' fields that a request may set.
    """

    choices: list[LoadedChoice]
    may_set: frozenset[str]


def load_choice(chosen: Chosen, where: str) -> LoadedChoice:
    """Import a class that the operator chose, and check the names of its parameters.

    Args:
        chosen: The class and its parameters.
        where: Its place in the policy, for messages.

    Raises:
        PolicyError: The class cannot be imported or served, has no such parameter, or is given one
            under its old and its new name.
    """
    if chosen.processor in builtins.__all__:
        module, name = builtins.__name__, chosen.processor
    else:
        module, name = _parse_name(chosen.processor, f"{where}.processor")
    processor = as_processor(load(module, name, where))
    for key in chosen.params:
        if is_private(key) or not _takes(processor, key):
            fields = fields_of(processor)
            raise PolicyError(
                f"{where}.params: {name} has no parameter {shown(key)}; its parameters: "
                f"{', '.join(fields) or 'none'}{did_you_mean(key, fields)}"
            )
    try:  # a request that may set a parameter too gives its new name
        params = with_new_names(processor.Params, name, chosen.params)
    except InvalidParameter as error:
        raise PolicyError(f"{where}.params.{error.parameter}: {error.problem}") from None
    return LoadedChoice(processor, params)


def _parse_name(text: str, where: str) -> tuple[str, str]:
    """Split ``module:Class``.

    Raises:
        PolicyError: Neither the name of a built-in nor two such names.
    """
    if ":" in text:
        return parse_entry(text, where)
    raise PolicyError(
        f'{where}: expected the name of a built-in or "package.module:Class", got '
        f"{shown(text, 120)}{did_you_mean(text, builtins.__all__, cutoff=0.4)}"
    )


def load_always(chosen: Chosen, where: str) -> LoadedChoice:
    """Import a class that every request gets, and check that it can run with any other.

    Raises:
        PolicyError: As :func:`load_choice`; or it is a thinking budget, a catalogue or a chain.
    """
    choice = load_choice(chosen, where)
    if is_thinking_budget(choice.processor):
        raise PolicyError(
            f"{where}: a thinking budget belongs in [defaults] or [ceilings], which know what "
            "requests ask for; put it there"
        )
    if issubclass(choice.processor, CatalogueLogitProcessor):
        raise PolicyError(
            f"{where}: a catalogue belongs in [defaults] or [profiles], where each request "
            "gets its newest version; put it there"
        )
    if issubclass(choice.processor, ChainLogitProcessor):
        raise PolicyError(
            f"{where}: {choice.processor.__name__} cannot run together with a request's own "
            "processor; give each of its links an entry of its own"
        )
    return choice


def load_profile(profile: Profile, where: str) -> LoadedProfile:
    """Import the classes of a profile, and check that they can run together.

    Raises:
        PolicyError: As :func:`load_choice`; or the classes cannot run together, or a name in
            ``may_set`` is a parameter of several of them, or neither a parameter nor a field.
    """
    choices = [
        load_choice(chosen, f"{where}.processors[{index}]")
        for index, chosen in enumerate(profile.processors)
    ]
    for processor, _ in choices if len(choices) > 1 else ():
        if issubclass(processor, ChainLogitProcessor):
            raise PolicyError(
                f"{where}: {processor.__name__} cannot run together with others; name its links"
            )
    if sum(is_thinking_budget(processor) for processor, _ in choices) > 1:
        raise PolicyError(f"{where}: expected at most one thinking budget")
    for name in profile.may_set:
        owners = [
            one.processor.__name__ for one in choices if name in open_fields_of(one.processor)
        ]
        if len(owners) != 1 and (owners or name not in ASKED_FIELDS):
            raise PolicyError(
                f"{where}.may_set: expected parameters that one of its processors has, or fields "
                f"of clients, got {shown(name)}, which {' and '.join(owners) or 'none of them'} has"
            )
    return LoadedProfile(choices, frozenset(profile.may_set))


def fields_of(processor: type[LogitProcessor]) -> Sequence[str]:
    """Return the parameters in a class's schema; none for an adapted class, which has no schema."""
    return () if issubclass(processor, AdaptedProcessor) else processor.Params.__struct_fields__


def open_fields_of(processor: type[LogitProcessor]) -> Sequence[str]:
    """Return the parameters of a class that the operator chose and a request may be let set.

    Not the ``chain`` of a chain: the allow list holds for links that a request names, and the
    operator's own links need not be on it.
    """
    return () if issubclass(processor, ChainLogitProcessor) else fields_of(processor)


def _takes(processor: type[LogitProcessor], name: str) -> bool:
    return (
        issubclass(processor, AdaptedProcessor)
        or name in processor.Params.__struct_fields__
        or name in processor.Params.renamed
        or issubclass(processor, ChainLogitProcessor)
    )
