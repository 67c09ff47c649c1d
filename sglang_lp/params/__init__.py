"""Typed parameters of a processor: the schema of ``custom_params``, checked before use.

A processor declares its parameters as a :class:`Parameters` subclass. The client, admission and
the scheduler check the same declaration, and the documentation prints it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from sglang_lp.errors import InvalidParameter, RequestError, shown
from sglang_lp.params.messages import translated, unknown
from sglang_lp.params.schema import (
    changing_fields,
    fields_without_limit,
    float_fields,
    token_fields,
)

__all__ = [
    "MAX_INT",
    "MAX_TOKEN_IDS",
    "RAW",
    "RESUMED",
    "WHOLE",
    "Beside",
    "FewTokenIds",
    "ForcedText",
    "NonEmptyTokenIds",
    "NonNegativeInt",
    "OrNoLimit",
    "Parameters",
    "PositiveInt",
    "Text",
    "Texts",
    "TokenId",
    "TokenIdSet",
    "TokenIds",
    "check_vocabulary",
    "fields_without_limit",
    "is_private",
    "parse",
    "replaced",
    "take_beside",
    "unshared",
    "with_new_names",
]


#: Most ids in one list parameter. Every id costs a write per step and row; the largest vocabulary
#: in use has about 262,000 tokens, and no use case bans or forces a quarter of it.
MAX_TOKEN_IDS = 65_536

#: Most ids in a list that a processor iterates over at every step.
_MAX_FEW = 1_024

#: Most characters of a searched text, and most texts of one list.
_MAX_TEXT, _MAX_TEXTS = 256, 4_096

#: Most characters of a forced text.
_MAX_FORCED = 4_096

#: SGLang keeps positions in 32 bits; a larger number is a mistake, not a budget.
MAX_INT = 2**31 - 1

#: Key of ``custom_params`` with any processor: the number of tokens at the end of the prompt that
#: are the beginning of the answer.
RESUMED = "resumed_tokens"

#: Key of ``custom_params`` with any processor: whether the answer reports the model's own logprobs
#: of edited tokens.
RAW = "raw_logprobs"

#: Key of ``custom_params`` with any processor or none: whether a structured answer is complete when
#: ``max_new_tokens`` ends it.
WHOLE = "whole_answer"

#: Types of entries that no processor can change.
_PLAIN = frozenset((bool, bytes, float, int, str, type(None)))

_BESIDE = frozenset({RESUMED, RAW, WHOLE})

_PRIVATE = "__sglang_reasoning_", "__sglang_lp_"

TokenId = Annotated[int, Meta(ge=0, le=MAX_INT, extra={"token_id": True})]
TokenIds = Annotated[tuple[TokenId, ...], Meta(max_length=MAX_TOKEN_IDS)]
NonEmptyTokenIds = Annotated[TokenIds, Meta(min_length=1)]
FewTokenIds = Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=_MAX_FEW)]
TokenIdSet = Annotated[frozenset[TokenId], Meta(max_length=MAX_TOKEN_IDS)]
NonNegativeInt = Annotated[int, Meta(ge=0, le=MAX_INT)]
PositiveInt = Annotated[int, Meta(ge=1, le=MAX_INT)]
_N = TypeVar("_N")
#: A number, or ``None`` for no limit: under an operator's ceiling ``None`` is the ceiling.
OrNoLimit = Annotated[_N | None, Meta(extra={"none_is_no_limit": True})]
Text = Annotated[str, Meta(min_length=1, max_length=_MAX_TEXT)]
ForcedText = Annotated[str, Meta(min_length=1, max_length=_MAX_FORCED)]
Texts = Annotated[tuple[Text, ...], Meta(min_length=1, max_length=_MAX_TEXTS)]


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every processor's ``Params``.

    Annotate each field with a type of this module or any type that ``msgspec`` checks; a field
    without a default is required. SGLang carries only scalars, flat lists and flat dicts. A rule
    over several fields goes into ``__post_init__``, which raises ``ValueError`` with a message
    that starts with the parameter's name.

    ``renamed`` keeps the old name of a parameter: requests with the old name still work, and the
    log of the process shows the new name once. If the new parameter is a list and the old one was
    a single token id, the id becomes a list.
    """

    #: Old names of parameters, each with the new name.
    renamed: ClassVar[Mapping[str, str]] = {}

    def find_phase(self, processor: str, served: Any) -> Any:  # noqa: ARG002 - for rules with a phase
        """Return the phase of an answer in which a rule holds, ``None`` for the whole answer.

        Args:
            processor: The processor's class name, for messages.
            served: The served model.
        """
        return None


P = TypeVar("P", bound=Parameters)


def is_private(key: object) -> bool:
    """Return whether the server, not the caller, owns this key of ``custom_params``.

    SGLang 0.5.20 to 0.5.23 sets ``__req__``, ``__sglang_reasoning_end_token_ids`` and
    ``__sglang_reasoning_in_grammar``, the plugin sets ``__sglang_lp_...``; no processor's
    parameter starts like these.
    """
    return not isinstance(key, str) or (
        key.startswith("__") and (key == "__req__" or key.startswith(_PRIVATE))
    )


class Beside(NamedTuple):
    """The keys of ``custom_params`` that go with any processor.

    Attributes:
        resumed: Number of tokens at the end of the prompt that are the beginning of the answer.
        raw: Whether the answer reports the model's own logprobs of edited tokens.
        whole: Whether a structured answer is complete at its limit; ``None``: as the operator has
            it.
    """

    resumed: int
    raw: bool
    whole: bool | None = None


def take_beside(custom_params: Any, prompt_tokens: int | None = None) -> tuple[Any, Beside]:
    """Split ``custom_params`` into the processor's parameters and the keys of :class:`Beside`.

    Args:
        custom_params: The parameters of a request.
        prompt_tokens: Number of tokens of the prompt, if known.

    Returns:
        The processor's parameters, and the other keys.

    Raises:
        RequestError: ``resumed_tokens`` is no number of tokens, or larger than the prompt;
            ``raw_logprobs`` or ``whole_answer`` is neither true nor false.
    """
    if not isinstance(custom_params, Mapping) or _BESIDE.isdisjoint(custom_params):
        return custom_params, Beside(0, raw=False)
    count, raw = custom_params.get(RESUMED, 0), custom_params.get(RAW, False)
    most = MAX_INT if prompt_tokens is None else prompt_tokens
    if type(count) is not int or not 0 <= count <= most:
        whole = "" if prompt_tokens is None else ", all tokens of the prompt"
        raise RequestError(
            f"{RESUMED}: expected a whole number from 0 to {most}{whole}, got {shown(count)}; "
            "give how many tokens at the end of the prompt are the answer so far"
        )
    if type(raw) is not bool:
        raise RequestError(
            f"{RAW}: expected true or false, got {shown(raw)}; leave it out if the answer needs "
            "no logprobs before processors"
        )
    answer: Any = custom_params.get(WHOLE)
    if WHOLE in custom_params and type(answer) is not bool:
        raise RequestError(
            f"{WHOLE}: expected true or false, got {shown(answer)}; leave it out for what the "
            "operator of this server chose"
        )
    rest = {name: value for name, value in custom_params.items() if name not in _BESIDE}
    return rest, Beside(count, raw, answer)


def parse(params_type: type[P], processor: str, custom_params: Mapping[str, Any] | None) -> P:
    """Check ``custom_params`` against a processor's schema.

    Args:
        params_type: The processor's ``Params``.
        processor: Its class name, for the message.
        custom_params: The parameters of the request. ``None`` counts as empty.

    Returns:
        The typed, immutable parameters.

    Raises:
        InvalidParameter: A value has the wrong type, is out of its range or is not finite; a
            parameter is missing, unknown, or given under its old and its new name.
    """
    given = {} if custom_params is None else custom_params
    # isinstance() with an abstract class is slow; attach() has 5 µs (docs/performance.md).
    if type(given) is not dict and not isinstance(given, Mapping):
        raise InvalidParameter(
            processor, None, f"expected an object of parameters, got {shown(given)}"
        )
    if params_type.renamed:
        given = with_new_names(params_type, processor, given)
    try:
        params = msgspec.convert(given, params_type)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter for odd names
        own = _without_private(given, params_type, processor)
        if len(own) == len(given):
            raise translated(processor, params_type, own, str(error)) from None
        return parse(params_type, processor, own)
    for name in float_fields(params_type):
        # Only given values: the class chose the defaults.
        if name in given and not all(map(math.isfinite, _floats(getattr(params, name)))):
            raise InvalidParameter(processor, name, "expected a finite number")
    return params


def replaced(params: P, processor: str, **changes: Any) -> P:
    """Return parameters with other values, checked anew.

    Args:
        params: Parsed parameters.
        processor: The processor's class name, for the message.
        changes: The new values by parameter.

    Raises:
        InvalidParameter: The values do not fit together.
    """
    try:
        return msgspec.structs.replace(params, **changes)
    except ValueError as error:
        raise translated(processor, type(params), changes, str(error)) from None


def unshared(params: Any) -> Any:
    """Return parameters that a processor can change without changing those of another request.

    Args:
        params: Parsed parameters, which copies of a request and equal requests share; or a part.

    Returns:
        Parameters with copies of all lists, dicts and sets, however deep; ``params`` itself if
        there are none.
    """
    if isinstance(params, msgspec.Struct):
        changed = {}
        for name in changing_fields(type(params)):
            value = getattr(params, name)
            if (own := unshared(value)) is not value:
                changed[name] = own
        if not changed and params.__struct_config__.frozen:
            return params
        copied = copy.copy(params)
        for name, own in changed.items():
            msgspec.structs.force_setattr(copied, name, own)
        return copied
    if isinstance(params, dict):
        return {key: unshared(value) for key, value in params.items()}
    if type(params) in {list, tuple}:
        if _PLAIN.issuperset(map(type, params)):  # usual, and possibly long
            return params[:]
        return type(params)(map(unshared, params))
    return copy.copy(params) if isinstance(params, set | bytearray) else params


def check_declared(cls: type) -> None:
    """Check the ``Params`` that a new class of a processor declares.

    Args:
        cls: The class.

    Raises:
        TypeError: ``Params`` has another name, is no ``Parameters``, or can change.
    """
    own = vars(cls).get("Params")
    if own is None:
        for name, nested in vars(cls).items():
            is_schema = isinstance(nested, type) and issubclass(nested, Parameters)
            if is_schema and not name.startswith("_"):
                raise TypeError(
                    f"{cls.__name__}.{name}: expected the name Params, by which the parameters of "
                    "a processor are found; rename the class"
                )
        return
    if not (isinstance(own, type) and issubclass(own, Parameters)):
        raise TypeError(
            f"{cls.__name__}.Params: expected a subclass of sglang_lp.Parameters, got {own!r}"
        )
    if not own.__struct_config__.frozen:
        raise TypeError(
            f"{cls.__name__}.Params: expected frozen=True, because equal requests share their "
            "parameters; write class Params(Parameters, frozen=True)"
        )


def check_vocabulary(params: Parameters, processor: str, vocab_size: int) -> None:
    """Refuse token ids that the served model does not have.

    Args:
        params: Parsed parameters.
        processor: The processor's class name, for the message.
        vocab_size: Number of logits in a row of the model.

    Raises:
        InvalidParameter: A token id is ``vocab_size`` or more.
    """
    for name in token_fields(type(params)):
        value = getattr(params, name)
        try:  # most lists are flat
            largest = max(value, default=0)
        except TypeError:
            largest = None
        if not isinstance(largest, int):
            largest = max(_ints(value), default=0)
        if largest >= vocab_size:
            raise InvalidParameter(
                processor,
                name,
                f"expected token ids of the served model, 0 to {vocab_size - 1}, got {largest}; "
                "these ids are probably another model's",
            )


def with_new_names(
    params_type: type[Parameters], processor: str, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return parameters with new names in place of old names.

    Args:
        params_type: The processor's ``Params``.
        processor: Its class name, for messages.
        given: The parameters, not parsed yet.

    Raises:
        InvalidParameter: A parameter is given under its old and its new name.
    """
    result = dict(given)
    for old, new in params_type.renamed.items():
        if old not in result:
            continue
        if new in result:
            raise InvalidParameter(
                processor, old, f"given together with {new}, its name today; give {new} alone"
            )
        _log_old_name(processor, old, new)
        value = result.pop(old)
        result[new] = [value] if isinstance(value, int) else value
    return result


@cache  # logs each name once; classes declare few
def _log_old_name(processor: str, old: str, new: str) -> None:
    import logging  # the client imports this module and logs nothing

    logger = logging.getLogger(__name__)
    logger.warning("%s: parameter %s is deprecated; its name is %s now", processor, old, new)


def _without_private(
    given: Mapping[str, Any], params_type: type[Parameters], processor: str
) -> dict[str, Any]:
    """Return the parameters without private keys; refuse unknown parameters."""
    fields = params_type.__struct_fields__
    own = {name: value for name, value in given.items() if name in fields or not is_private(name)}
    for name in own:
        if name not in fields:
            raise InvalidParameter(processor, None, unknown(name, fields))
    return own


def _ints(value: Any) -> Iterator[int]:
    """Yield every integer of a value, at any depth."""
    if isinstance(value, int):
        yield value
    elif isinstance(value, tuple | list | frozenset | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _ints(item)


def _floats(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, tuple | list):
        yield from (item for item in value if isinstance(item, float))
    elif isinstance(value, dict):
        yield from (item for item in value.values() if isinstance(item, float))
