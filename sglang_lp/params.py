"""Typed parameters of a processor: what ``custom_params`` may hold, checked before it is used.

A processor declares its parameters as a :class:`Parameters` subclass; the same declaration is
checked in the client, at admission and in the scheduler, and is what the documentation prints.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from sglang_lp.errors import InvalidParameter, RequestError, shown

__all__ = [
    "MAX_INT",
    "MAX_TOKEN_IDS",
    "RAW",
    "RESUMED",
    "Beside",
    "FewTokenIds",
    "ForcedText",
    "NonEmptyTokenIds",
    "NonNegativeInt",
    "Parameters",
    "PositiveInt",
    "Text",
    "Texts",
    "TokenId",
    "TokenIdSet",
    "TokenIds",
    "check_vocabulary",
    "is_private",
    "parse",
    "replaced",
    "take_beside",
]


#: Most ids that one list parameter may hold. Every id costs a write per step and row, and the
#: largest vocabulary in use has about 262,000 tokens; nobody bans or forces a quarter of it.
MAX_TOKEN_IDS = 65_536

#: Most ids in a list that is gone through at every step, some microseconds for each.
_MAX_FEW = 1_024

#: Most characters of a text that is looked for, and most texts of one list.
_MAX_TEXT, _MAX_TEXTS = 256, 4_096

#: Most characters of a text that is forced.
_MAX_FORCED = 4_096

#: SGLang keeps positions in 32 bits; a larger number is a mistake, not a budget.
MAX_INT = 2**31 - 1

#: How many of the prompt's last tokens are the beginning of the answer; beside the parameters of
#: any processor.
RESUMED = "resumed_tokens"

#: Whether the model's own logprobs of edited tokens are asked for; beside them, too.
RAW = "raw_logprobs"

_PRIVATE = "__sglang_reasoning_", "__sglang_lp_"

TokenId = Annotated[int, Meta(ge=0, le=MAX_INT, extra={"token_id": True})]
TokenIds = Annotated[tuple[TokenId, ...], Meta(max_length=MAX_TOKEN_IDS)]
NonEmptyTokenIds = Annotated[TokenIds, Meta(min_length=1)]
FewTokenIds = Annotated[tuple[TokenId, ...], Meta(min_length=1, max_length=_MAX_FEW)]
TokenIdSet = Annotated[frozenset[TokenId], Meta(max_length=MAX_TOKEN_IDS)]
NonNegativeInt = Annotated[int, Meta(ge=0, le=MAX_INT)]
PositiveInt = Annotated[int, Meta(ge=1, le=MAX_INT)]
Text = Annotated[str, Meta(min_length=1, max_length=_MAX_TEXT)]
ForcedText = Annotated[str, Meta(min_length=1, max_length=_MAX_FORCED)]
Texts = Annotated[tuple[Text, ...], Meta(min_length=1, max_length=_MAX_TEXTS)]


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every processor's ``Params``.

    Annotate each field with a type of this module or any type that ``msgspec`` checks; a field
    without a default is required. SGLang carries scalars, flat lists and flat dicts only. A rule
    over several fields goes into ``__post_init__``, which raises ``ValueError`` with a message
    that starts with the parameter's name.

    A parameter that got another name keeps its old one in ``renamed``: requests that use it still
    work, and the log of the process says once what to write instead. If the new parameter is a
    list where the old one was a single token id, that id becomes a list.
    """

    #: Old names of parameters, and their names today.
    renamed: ClassVar[Mapping[str, str]] = {}


P = TypeVar("P", bound=Parameters)


def is_private(key: object) -> bool:
    """Tell whether the server, not the caller, owns this key of ``custom_params``.

    SGLang 0.5.20 to 0.5.23 keeps ``__req__``, ``__sglang_reasoning_end_token_ids`` and
    ``__sglang_reasoning_in_grammar`` there, the plugin ``__sglang_lp_...``; no processor's
    parameter starts that way.
    """
    return not isinstance(key, str) or (
        key.startswith("__") and (key == "__req__" or key.startswith(_PRIVATE))
    )


class Beside(NamedTuple):
    """What a request says in ``custom_params`` beside the parameters of its processor.

    Attributes:
        resumed: How many of the prompt's last tokens are the beginning of the answer.
        raw: Whether it asks for the model's own logprobs of edited tokens.
    """

    resumed: int
    raw: bool


def take_beside(custom_params: Any, prompt_tokens: int | None = None) -> tuple[Any, Beside]:
    """Return ``custom_params`` without what goes with any processor, and that.

    Args:
        custom_params: What a request carries.
        prompt_tokens: How many tokens its prompt has, if known.

    Raises:
        RequestError: ``resumed_tokens`` is no number of tokens, or more than the prompt has;
            ``raw_logprobs`` is neither true nor false.
    """
    if not isinstance(custom_params, Mapping) or not (
        RESUMED in custom_params or RAW in custom_params
    ):
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
    rest = {name: value for name, value in custom_params.items() if name not in {RESUMED, RAW}}
    return rest, Beside(count, raw)


def parse(params_type: type[P], processor: str, custom_params: Mapping[str, Any] | None) -> P:
    """Check ``custom_params`` against a processor's schema.

    Args:
        params_type: The processor's ``Params``.
        processor: Its class name, for the message.
        custom_params: What the request carries. ``None`` counts as empty.

    Returns:
        The typed, immutable parameters.

    Raises:
        InvalidParameter: A value of the wrong type or out of its range, a required parameter
            missing, an unknown one, one given under its old and its new name, or a number that is
            not finite.
    """
    given = {} if custom_params is None else custom_params
    # Asking an abstract class takes a quarter of a microsecond, and attach() has 5.
    if type(given) is not dict and not isinstance(given, Mapping):
        raise InvalidParameter(
            processor, None, f"expected an object of parameters, got {shown(given)}"
        )
    if params_type.renamed:
        given = _with_new_names(params_type, processor, given)
    try:
        params = msgspec.convert(given, params_type)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter for odd names
        own = _without_private(given, params_type, processor)
        if len(own) == len(given):
            raise _translated(processor, params_type, own, str(error)) from None
        return parse(params_type, processor, own)
    for name in _float_fields(params_type):
        # Only what came: a default is the class's own business.
        if name in given and not all(map(math.isfinite, _floats(getattr(params, name)))):
            raise InvalidParameter(processor, name, "expected a finite number")
    return params


def replaced(params: P, processor: str, **changes: Any) -> P:
    """Return parameters with other values, checked anew.

    Args:
        params: Parsed parameters.
        processor: The processor's class name, for the message.
        changes: For each parameter its value.

    Raises:
        InvalidParameter: The values do not fit together.
    """
    try:
        return msgspec.structs.replace(params, **changes)
    except ValueError as error:
        raise _translated(processor, type(params), changes, str(error)) from None


def check_vocabulary(params: Parameters, processor: str, vocab_size: int) -> None:
    """Refuse token ids that the served model does not have.

    Args:
        params: Parsed parameters.
        processor: The processor's class name, for the message.
        vocab_size: Number of logits in a row of the model.

    Raises:
        InvalidParameter: A token id is ``vocab_size`` or more.
    """
    for name in _token_fields(type(params)):
        value = getattr(params, name)
        try:  # most are flat, and looked through in a tenth of the time
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


def _with_new_names(
    params_type: type[Parameters], processor: str, given: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return parameters with today's names in place of old ones."""
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


@cache  # so that each name is logged once, and there are as many as classes declare
def _log_old_name(processor: str, old: str, new: str) -> None:
    import logging  # 5 ms, which the client has no use for

    logger = logging.getLogger(__name__)
    logger.warning("%s: parameter %s is deprecated; its name is %s now", processor, old, new)


def _without_private(
    given: Mapping[str, Any], params_type: type[Parameters], processor: str
) -> dict[str, Any]:
    """Return what a caller may have sent, and refuse what is no parameter."""
    fields = params_type.__struct_fields__
    own = {name: value for name, value in given.items() if name in fields or not is_private(name)}
    for name in own:
        if name not in fields:
            raise InvalidParameter(processor, None, _unknown(name, fields))
    return own


@lru_cache(maxsize=256)
def _token_fields(params_type: type[Parameters]) -> tuple[str, ...]:
    return tuple(_fields_with(_is_token_id, params_type))


@lru_cache(maxsize=256)
def _float_fields(params_type: type[Parameters]) -> tuple[str, ...]:
    return tuple(_fields_with(_may_be_float, params_type))


def _fields_with(wanted: Callable[[Any], bool], params_type: type[Parameters]) -> Iterator[str]:
    """Yield the fields in whose type there is a part that is wanted."""
    for field in getattr(msgspec.inspect.type_info(params_type), "fields", ()):
        if any(map(wanted, _parts(field.type))):
            yield field.name


def _parts(kind: Any) -> Iterator[Any]:
    """Yield a msgspec type description and every one inside it."""
    yield kind
    for inner in (
        getattr(kind, "type", None),
        getattr(kind, "item_type", None),
        getattr(kind, "value_type", None),
        *getattr(kind, "item_types", ()),
        *getattr(kind, "types", ()),
    ):
        if isinstance(inner, msgspec.inspect.Type):
            yield from _parts(inner)


def _is_token_id(kind: Any) -> bool:
    return isinstance(kind, msgspec.inspect.Metadata) and bool((kind.extra or {}).get("token_id"))


def _may_be_float(kind: Any) -> bool:
    types = msgspec.inspect
    return isinstance(kind, types.FloatType | types.AnyType | types.CustomType)


def _ints(value: Any) -> Iterator[int]:
    """Yield every integer of a value, however deep."""
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


def _unknown(name: object, fields: tuple[str, ...]) -> str:
    import difflib  # for a message only, and the client imports this module

    near = difflib.get_close_matches(name[:80], fields, n=1) if isinstance(name, str) else []
    known = ", ".join(fields) or "none"
    hint = f"; did you mean {near[0]!r}?" if near else f"; its parameters: {known}"
    return f"unknown parameter {shown(name)}{hint}"


# Not compiled before they are needed, because the client imports this.
_MISSING = r"Object missing required field `(?P<name>\w+)`"
_AT = r"(?P<problem>.*) - at `\$\.(?P<name>\w+)(?P<rest>.*)`"


def _translated(
    processor: str, params_type: type[Parameters], given: Mapping[str, Any], text: str
) -> InvalidParameter:
    """Turn msgspec's message into one that names the parameter and shows what came."""
    if missing := re.match(_MISSING, text):
        return InvalidParameter(processor, missing["name"], "required, but not given")
    if at := re.match(_AT, text, re.DOTALL):
        problem = at["problem"].replace("`", "")
        if problem.startswith("Invalid enum value"):  # it repeats whatever came
            problem = f"expected {_choices(params_type, at['name'])}"
        problem = problem[0].lower() + problem[1:]
        place = f" at {at['rest']}" if at["rest"] else ""
        got = "" if ", got " in problem else f", got {shown(_pick(given[at['name']], at['rest']))}"
        return InvalidParameter(processor, at["name"], f"{problem}{got}{place}")
    name, colon, problem = text.partition(": ")  # from a __post_init__
    if colon and name in params_type.__struct_fields__:
        return InvalidParameter(processor, name, problem)
    return InvalidParameter(processor, None, text.replace("`", ""))


def _choices(params_type: type[Parameters], name: str) -> str:
    """Return what a parameter with fixed values takes, for a message."""
    types = msgspec.inspect
    found: list[Any] = []
    for field in getattr(types.type_info(params_type), "fields", ()):
        for part in _parts(field.type) if field.name == name else ():
            if isinstance(part, types.LiteralType):
                found += part.values
            elif isinstance(part, types.EnumType):
                found += [member.value for member in part.cls]
    return " or ".join(map(repr, found))


def _pick(value: Any, rest: str) -> Any:
    """Follow a msgspec path such as ``[3]`` into the value that came."""
    index = re.fullmatch(r"\[(\d+)\]", rest)
    return value[int(index[1])] if index else value
