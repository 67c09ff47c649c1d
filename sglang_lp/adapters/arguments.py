"""The constructor arguments of an adapted class, from the request and from its server."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import deepcopy
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp.errors import InvalidParameter, PolicyError, ProcessorFault, Unsupported, shown
from sglang_lp.params import Parameters

if TYPE_CHECKING:
    from sglang_lp.served_model import ServedModel

#: The largest integer in absolute value that a request may give without a limit of the operator's.
MOST = 1 << 20

_DIGIT = re.compile(r"\d")

#: Names of arguments that hold token ids, in all libraries.
_TOKEN_IDS = re.compile(r"token|(^|_)ids?$")


class Arguments(Parameters, frozen=True):
    """The parameters of a request for a class without a schema.

    Attributes:
        values: As they came, without SGLang's own keys.
        seconds: Processor time that the constructor took with them, where it was tried.
    """

    values: dict[str, Any]
    seconds: float = 0.0


class Setting(NamedTuple):
    """The arguments that only the server knows, for constructors that name them.

    Attributes:
        tokenizer: The served model's, or ``None``.
        device: Where the logits are.
        prompt_length: Number of tokens in the prompt.
    """

    tokenizer: Any = None
    device: str = "cpu"
    #: At admission the prompt is not tokenized yet.
    prompt_length: int = 1


#: Argument -> the server's value. A request cannot set these.
_SERVERS = {"tokenizer": "tokenizer", "device": "device"}
#: Argument -> the server's value unless the request sets one.
_DEFAULTS = {
    "batch_size": None,  # 1: a request has a processor of its own
    "num_beams": None,
    "begin_index": "prompt_length",
    "input_ids_seq_length": "prompt_length",
    "prompt_length_to_skip": "prompt_length",
}


def check_token_ids(name: str, values: Mapping[str, Any], vocab_size: int | None) -> None:
    """Refuse token ids that the served model does not have, which could stop a GPU for good.

    Args:
        name: Name of the processor, for messages.
        values: Arguments; those with ``token`` or ``ids`` in their names are looked at.
        vocab_size: Number of logits in a row, if known.

    Raises:
        InvalidParameter: A whole number, as integer, float or text, is negative, or
            ``vocab_size`` or more.
    """
    for key, value in values.items():
        if vocab_size is None or not _TOKEN_IDS.search(key):
            continue
        for came, number in _numbers(value):
            is_whole = isinstance(number, int) or number.is_integer() or math.isinf(number)
            if is_whole and not 0 <= number < vocab_size:
                raise InvalidParameter(
                    name,
                    key,
                    f"expected token ids of the served model, 0 to {vocab_size - 1}, got "
                    f"{shown(came)}",
                )


def check_numbers(name: str, values: Mapping[str, Any], limits: Mapping[str, int]) -> None:
    """Refuse large numbers: most of them are sizes.

    Args:
        name: Name of the processor, for messages.
        values: Arguments.
        limits: The largest number by the name of an argument; :data:`MOST` for others.

    Raises:
        InvalidParameter: A number, as integer, float or text, is larger in absolute value.
    """
    for key, value in values.items():
        most = limits.get(key, MOST)
        for came, number in _numbers(value):
            if not abs(number) <= most:
                raise InvalidParameter(
                    name,
                    key,
                    f"expected numbers from {-most} to {most} on this server, got {shown(came)};"
                    " give a smaller one, or ask its operator for more ([[adapt]] limits)",
                )


def _numbers(value: Any) -> Iterator[tuple[Any, float]]:
    """Yield every number of a value, however deep, keys included, after the value as it came.

    A class may convert its arguments, so a text that spells a number counts as a number.
    """
    if isinstance(value, dict):
        value = [*value, *value.values()]
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, list | dict):
            yield from _numbers(one)
        elif isinstance(one, int | float):
            yield one, one
        elif isinstance(one, str) and _DIGIT.search(one):  # "inf" and "nan" are words
            yield from ((one, number) for number in _spelled(one))


def _spelled(text: str) -> Iterator[float]:
    """Yield the numbers that Python's ``int`` and ``float`` read in a text."""
    for read in (int, partial(int, base=0), float):
        with suppress(ValueError):
            yield read(text)


class Constructor:
    """Makes an object of a foreign class for each request, or returns a function as it is.

    Args:
        made: The class or function.
        name: Its name in messages.
        fixed: Arguments that the operator sets. A request cannot change them.

    Raises:
        PolicyError: The operator sets an argument that the class does not take.
    """

    def __init__(self, made: Any, name: str, fixed: Mapping[str, Any]) -> None:
        self._made = made
        self._name = name
        self._fixed = fixed
        self._parameters: dict[str, inspect.Parameter] = {}
        self._takes_any = False
        if isinstance(made, type):
            for parameter in inspect.signature(made).parameters.values():
                if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                    self._takes_any = True
                elif parameter.kind is not inspect.Parameter.VAR_POSITIONAL:
                    self._parameters[parameter.name] = parameter
        #: Arguments that take token ids as a tensor: those of an encoder.
        self._tensors = {
            key
            for key, one in self._parameters.items()
            if "LongTensor" in str(one.annotation) and "list" not in str(one.annotation)
        }
        for key in fixed:
            if not self.takes(key):
                raise PolicyError(
                    f"{name}: arguments: it takes no {shown(key)}; it takes "
                    f"{', '.join(self._parameters) or 'none'}"
                )

    @property
    def defaults(self) -> dict[str, Any]:
        """The defaults of the arguments that a request can set."""
        return {
            key: one.default
            for key, one in self._parameters.items()
            if one.default is not one.empty and key not in self._fixed and key not in _SERVERS
        }

    def takes(self, key: str) -> bool:
        """Tell whether the constructor has an argument of this name."""
        return self._takes_any or key in self._parameters

    def filled(self, values: Mapping[str, Any], served: ServedModel) -> dict[str, Any]:
        """Return the arguments of a request, and the missing ones that the served model answers.

        Raises:
            InvalidParameter: ``vocab_size`` is another model's.
        """
        if "vocab_size" in values and values["vocab_size"] != served.vocab_size is not None:
            raise InvalidParameter(
                self._name,
                "vocab_size",
                f"expected {served.vocab_size}, the served model's, got "
                f"{shown(values['vocab_size'])}; leave it out",
            )
        ends = served.eos_token_ids
        known = {
            "vocab_size": served.vocab_size,
            "eos_token_id": ends[0] if len(ends) == 1 else [*ends] or None,
        }
        asked = {key for key, one in self._parameters.items() if one.default is one.empty}
        missing = asked - {*values, *self._fixed}
        return {**values, **{k: v for k, v in known.items() if k in missing and v is not None}}

    def check(self, values: Mapping[str, Any], setting: Setting) -> None:
        """Check the arguments of a request without making anything.

        Raises:
            InvalidParameter: One that the class does not take, or that the operator or the server
                sets; a required one is missing.
            Unsupported: It needs the tokenizer of a server that has none.
        """
        for key in values:
            if key in self._fixed or (key in _SERVERS and key in self._parameters):
                who = "the operator of this server" if key in self._fixed else "the server"
                raise InvalidParameter(self._name, key, f"{who} sets it; leave it out")
            if not self.takes(key):
                known = [one for one in self._parameters if one not in {*self._fixed, *_SERVERS}]
                raise InvalidParameter(
                    self._name,
                    None,
                    f"unknown parameter {shown(key)}; its parameters: {', '.join(known) or 'none'}",
                )
        for key, parameter in self._parameters.items():
            if parameter.default is not inspect.Parameter.empty or key in {
                *values,
                *self._fixed,
                *_DEFAULTS,
            }:
                continue
            if key not in _SERVERS:
                raise InvalidParameter(self._name, key, "required, but not given")
            if getattr(setting, _SERVERS[key]) is None:
                raise Unsupported(
                    f"custom_logit_processor: {self._name} needs the tokenizer, and this server "
                    "was started without one; send the request to another server"
                )

    def _as_tensor(self, key: str, value: Any, setting: Setting) -> Any:
        """Return token ids in a tensor of shape ``(1, ids)``."""
        import torch

        if value is None:
            return None
        if not (isinstance(value, list) and value and all(type(i) is int for i in value)):
            raise InvalidParameter(
                self._name, key, f"expected a list of token ids, got {shown(value)}"
            )
        return torch.tensor([value], device=setting.device)

    def make(self, values: Mapping[str, Any], setting: Setting) -> Any:
        """Make the object of a request.

        Raises:
            InvalidParameter: As :meth:`check`, and where the class itself refuses an argument.
            ProcessorFault: The object cannot be called.
        """
        if not isinstance(self._made, type):
            return self._made
        # The object's own: it may change them, and equal requests share these.
        arguments = deepcopy({**self._fixed, **values})
        for key in self._parameters.keys() - arguments.keys():
            if key in _SERVERS:
                arguments[key] = getattr(setting, _SERVERS[key])
            elif key in _DEFAULTS:
                source = _DEFAULTS[key]
                arguments[key] = 1 if source is None else getattr(setting, source)
        for key in arguments.keys() & self._tensors:
            arguments[key] = self._as_tensor(key, arguments[key], setting)
        try:
            made = self._made(**arguments)
        except (Exception, SystemExit) as error:
            # Only the arguments differ from those of other requests.
            raise refused(self._name, error) from error
        if not callable(made):
            raise ProcessorFault(f"{self._name}: expected a class whose objects can be called")
        return made


def refused(name: str, error: BaseException) -> InvalidParameter:
    """Return the error of a request whose parameters a class refuses by raising, whatever it is.

    Args:
        name: Name of the processor, for the message.
        error: What the class raised.
    """
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - the class's own
        said = ""
    why = shown(said or type(error).__name__, 300)
    return InvalidParameter(name, None, f"the class refuses them: {why}")


def count_arguments(found: Any) -> int | None:
    """Return how many arguments a call must have; ``None`` if any number will do."""
    call = found
    if isinstance(found, type):
        call = getattr(found, "__call__", None)  # noqa: B004 - the method itself is looked at
        if not inspect.isfunction(call):
            return None
    parameters = [*inspect.signature(call).parameters.values()][isinstance(found, type) :]
    if any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters):
        return None
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return sum(one.kind in kinds and one.default is one.empty for one in parameters)
