"""Typed parameters of a processor: the schema of ``custom_params``, checked before use.

A processor declares its parameters as a :class:`Parameters` subclass. The client, admission and
the scheduler check the same declaration, and the documentation prints it.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar

import msgspec
from msgspec import Meta

from sglang_lp.errors import InvalidParameter, RequestError, did_you_mean, shown

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

    def fit_phase(self, processor: str, served: Any) -> Self:  # noqa: ARG002 - for a phase
        """Return the parameters with the delimiters of their phase; here unchanged: they have none.

        Args:
            processor: The processor's class name, for messages.
            served: The served model.
        """
        return self

    def serve_phase(self, processor: Any) -> Any:
        """Return the processor, limited to the phase of these parameters; here unchanged."""
        return processor


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
    """

    resumed: int
    raw: bool


def take_beside(custom_params: Any, prompt_tokens: int | None = None) -> tuple[Any, Beside]:
    """Split ``custom_params`` into the processor's parameters and the keys of :class:`Beside`.

    Args:
        custom_params: The parameters of a request.
        prompt_tokens: Number of tokens of the prompt, if known.

    Returns:
        The processor's parameters, and the other keys.

    Raises:
        RequestError: ``resumed_tokens`` is no number of tokens, or larger than the prompt;
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
        given = _with_new_names(params_type, processor, given)
    try:
        params = msgspec.convert(given, params_type)
    except (msgspec.ValidationError, UnicodeEncodeError) as error:  # the latter for odd names
        own = _without_private(given, params_type, processor)
        if len(own) == len(given):
            raise _translated(processor, params_type, own, str(error)) from None
        return parse(params_type, processor, own)
    for name in _float_fields(params_type):
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
        raise _translated(processor, type(params), changes, str(error)) from None


def unshared(params: Any) -> Any:
    """Return parameters that a processor can change without changing those of another request.

    Args:
        params: Parsed parameters, which copies of a request and equal requests share; or a part.

    Returns:
        Parameters with copies of all lists, dicts and sets, however deep; ``params`` itself if
        the types of its fields allow none.
    """
    if isinstance(params, msgspec.Struct):
        if not _can_change(type(params)):
            return params
        own = copy.copy(params)
        for name in own.__struct_fields__:
            msgspec.structs.force_setattr(own, name, unshared(getattr(own, name)))
        return own
    if isinstance(params, dict):
        return {key: unshared(value) for key, value in params.items()}
    if type(params) in {list, tuple}:
        return type(params)(map(unshared, params))
    return copy.copy(params) if isinstance(params, set | bytearray) else params


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


def _with_new_names(
    params_type: type[Parameters], processor: str, given: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return parameters with new names in place of old names."""
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
            raise InvalidParameter(processor, None, _unknown(name, fields))
    return own


@lru_cache(maxsize=256)
def fields_without_limit(params_type: type[Parameters]) -> tuple[str, ...]:
    """Return the parameters whose ``None`` means no limit: those of type ``OrNoLimit``."""
    return tuple(_fields_with(_is_no_limit, params_type))


@lru_cache(maxsize=256)
def _token_fields(params_type: type[Parameters]) -> tuple[str, ...]:
    return tuple(_fields_with(_is_token_id, params_type))


@lru_cache(maxsize=256)
def _float_fields(params_type: type[Parameters]) -> tuple[str, ...]:
    return tuple(_fields_with(_may_be_float, params_type))


@lru_cache(maxsize=256)
def _can_change(params_type: Any) -> bool:
    types = msgspec.inspect
    unchanging = (
        types.NoneType,
        types.BoolType,
        types.IntType,
        types.FloatType,
        types.StrType,
        types.BytesType,
        types.EnumType,
        types.LiteralType,
        types.TupleType,
        types.VarTupleType,
        types.FrozenSetType,
        types.UnionType,
        types.Metadata,
    )
    changes = any(_fields_with(lambda kind: not isinstance(kind, unchanging), params_type))
    return changes or not params_type.__struct_config__.frozen


def _fields_with(wanted: Callable[[Any], bool], params_type: type[Parameters]) -> Iterator[str]:
    """Yield the fields whose type has a wanted part."""
    for field in getattr(msgspec.inspect.type_info(params_type), "fields", ()):
        if any(map(wanted, _parts(field.type))):
            yield field.name


def _parts(kind: Any) -> Iterator[Any]:
    """Yield a msgspec type description and all its parts, at any depth."""
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


def _is_no_limit(kind: Any) -> bool:
    extra = kind.extra if isinstance(kind, msgspec.inspect.Metadata) else None
    return bool((extra or {}).get("none_is_no_limit"))


def _may_be_float(kind: Any) -> bool:
    types = msgspec.inspect
    return isinstance(kind, types.FloatType | types.AnyType | types.CustomType)


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


def _unknown(name: object, fields: tuple[str, ...]) -> str:
    hint = did_you_mean(name, fields) or f"; its parameters: {', '.join(fields) or 'none'}"
    return f"unknown parameter {shown(name)}{hint}"


# Compiled when they are needed: the client imports this module.
_MISSING = r"Object missing required field `(?P<name>\w+)`"
_AT = r"(?P<problem>.*) - at `\$\.(?P<name>\w+)(?P<rest>.*)`"


def _translated(
    processor: str, params_type: type[Parameters], given: Mapping[str, Any], text: str
) -> InvalidParameter:
    """Return msgspec's error with the name of the parameter and the given value."""
    if missing := re.match(_MISSING, text):
        return InvalidParameter(processor, missing["name"], "required, but not given")
    if at := re.match(_AT, text, re.DOTALL):
        problem = at["problem"].replace("`", "")
        if problem.startswith("Invalid enum value"):  # it repeats whatever came
            problem = f"expected {_choices(params_type, at['name'])}"
        entries = "" if at["rest"] else _entries(params_type, at["name"])
        problem = _plain(problem[0].lower() + problem[1:], entries)
        place = f" at {at['rest']}" if at["rest"] else ""
        came = _shown_as_json(_pick(given[at["name"]], at["rest"]))
        return InvalidParameter(processor, at["name"], f"{problem}, got {came}{place}")
    name, colon, problem = text.partition(": ")  # from a __post_init__
    if colon and name in params_type.__struct_fields__:
        return InvalidParameter(processor, name, problem)
    return InvalidParameter(processor, None, text.replace("`", ""))


def _plain(problem: str, entries: str) -> str:
    """Return a message of msgspec in plain words, without what came.

    Args:
        problem: Such as ``expected array | null, got str``.
        entries: Plural of the entries of the parameter's list, or ``""``.
    """
    expected, _, came = problem.partition(", got ")
    unit = "entries" if "array" in expected or "object" in expected else "characters"
    expected = expected.replace(" | null", "").replace(" | ", " or ")
    for pattern, plain in (
        (r" of length >= (\d+)", rf" of \1 or more {unit}"),
        (r" of length <= (\d+)", rf" of at most \1 {unit}"),
        (r" >= (\S+)", r" of \1 or more"),
        (r" <= (\S+)", r" of at most \1"),
        (r"\barray\b", f"a list of {entries}" if entries and " of " not in expected else "a list"),
    ):
        expected = re.sub(pattern, plain, expected)
    example = _EXAMPLES.get(entries)
    for word, (said, of_type) in _PLAIN.items():
        if re.search(rf"\b{word}\b", expected):
            expected, example = re.sub(rf"\b{word}\b", said, expected, count=1), of_type
            break
    # Where the type is right, the bound says enough.
    return f"{expected}, such as {example}" if example and came.isalpha() else expected


#: Types of msgspec's messages in plain words, each with an example.
_PLAIN = {
    "bool": ("true or false", None),
    "float": ("a number", "0.5"),
    "int": ("a whole number", "8"),
    "object": ("an object", '{"key": 1}'),
    "str": ("a text", '"yes"'),
}
#: Lists by their entries.
_EXAMPLES = {
    "token ids": "[15, 16]",
    "whole numbers": "[1, 2]",
    "numbers": "[0.5, 1]",
    "texts": '["yes", "no"]',
}


def _entries(params_type: type[Parameters], name: str) -> str:
    """Return the plural of the entries of a parameter that is a list, or an empty text."""
    types = msgspec.inspect
    plurals: dict[Any, str] = {
        types.StrType: "texts",
        types.IntType: "whole numbers",
        types.FloatType: "numbers",
    }
    for field in getattr(types.type_info(params_type), "fields", ()):
        for part in _parts(field.type) if field.name == name else ():
            item = getattr(part, "item_type", None)
            if item is not None:
                inner = [*_parts(item)]
                if any(map(_is_token_id, inner)):
                    return "token ids"
                return next((plurals[type(one)] for one in inner if type(one) in plurals), "")
    return ""


def _shown_as_json(value: object) -> str:
    """Return a value of a request for a message, in the words of JSON."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return shown(value)


def _choices(params_type: type[Parameters], name: str) -> str:
    """Return the fixed values of a parameter, for a message."""
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
    """Return the part of a value that a msgspec path such as ``[3]`` names."""
    index = re.fullmatch(r"\[(\d+)\]", rest)
    return value[int(index[1])] if index else value
