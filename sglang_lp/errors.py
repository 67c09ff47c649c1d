"""The errors of the toolkit. Each class says whose fault it is, and so what the client gets.

``code`` of an error is for programs, and stable: ``docs/errors.md`` lists every code.

SglangLpError
├── RequestError (also ValueError)     the caller's fault: HTTP 400, that request alone
│   ├── PayloadRefused                 the payload is not one that the operator allowed
│   ├── InvalidParameter               a custom_params entry does not fit the processor
│   ├── Unsupported                    this server cannot honour the processor
│   └── Contradiction                  its edits leave the request no token
├── ProcessorFault (also RuntimeError) a processor misbehaved: HTTP 500, that request alone
├── NotRun (also RuntimeError)         a processor did not run on an answer
├── PolicyError (also ValueError)      the operator's policy file: the server does not start
├── UsageError (also ValueError)       the command line: exit code 2
└── InstallError (also RuntimeError)   a guard is not in place: the process does not serve
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum

__all__ = [
    "InstallError",
    "InvalidParameter",
    "NotRun",
    "PayloadRefused",
    "PolicyError",
    "ProcessorFault",
    "RefusalReason",
    "RequestError",
    "SglangLpError",
    "Unsupported",
    "UsageError",
    "did_you_mean",
    "escaped",
    "refusing",
    "shown",
    "told",
]

#: Innermost frames of a traceback that are logged.
_FRAMES = 20

#: The field of a request that a message begins with. Text of a client is in quotes there.
_FIELD = re.compile(r'[a-z][a-z0-9_]*(\.[a-z0-9_]+|\["[a-z_]+"\])*(?=: )')


def shown(value: object, limit: int = 60) -> str:
    """Return client data as short, escaped ASCII, safe for a log line or an error message.

    Args:
        value: Any object. Of a container only its type and length are shown, of an object of
            another class only its class.
        limit: Most characters, without the dots that mark a cut.
    """
    # repr() of a nested container can be made to recurse or to grow without bound.
    if isinstance(value, str):
        text = ascii(value[: limit + 1])
    elif isinstance(value, bool | int | float) or value is None:
        text = ascii(value) if not isinstance(value, int) or abs(value) < 10**40 else "a huge int"
    elif isinstance(value, list | tuple | dict | set):
        return f"{type(value).__name__} of {len(value)}"
    else:
        return type(value).__name__
    return text if len(text) <= limit else text[:limit] + "..."


def did_you_mean(name: object, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return ``"; did you mean '...'?"`` for the known name that is nearest, or an empty text.

    Args:
        name: The unknown name.
        known: Names that exist.
        cutoff: Least similarity, from 0 to 1, as in ``difflib``.
    """
    import difflib  # for a message only, and the client imports this module

    near = difflib.get_close_matches(str(name)[:80], [*known], n=1, cutoff=cutoff)
    return f"; did you mean '{near[0]}'?" if near else ""


def escaped(text: str) -> str:
    """Escape the characters of a text that a terminal acts on, except newlines and tabs."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in "\n\t" else one.encode("unicode_escape").decode()
        for one in text
    )


def told(error: BaseException) -> str:
    """Return an exception with its innermost frames for a log.

    It is indented and escaped, because its text may come from a client who forges log lines.
    """
    import textwrap  # not at the top, because clients never need it
    import traceback

    # Formatting all frames of a deep recursion would hold up the scheduler.
    lines = "".join(traceback.format_exception(error, limit=-_FRAMES))
    return textwrap.indent(escaped(lines), "    ")


class SglangLpError(Exception):
    """Base of every error that the toolkit raises on purpose.

    Attributes:
        code: Stable code of the error, for programs.
        param: Field of the request that is at fault, or ``None`` if no single field is.
    """

    code = "internal_error"
    param: str | None = None


class RequestError(SglangLpError, ValueError):
    """The request is at fault. SGLang turns a ``ValueError`` at admission into HTTP 400.

    ``param`` is the field that the message begins with.
    """

    code = "invalid_request"

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        # A foreign class may raise it with anything.
        field = _FIELD.match(args[0]) if args and type(args[0]) is str else None
        self.param = None if field is None else field[0]


class RefusalReason(StrEnum):
    """Why a payload was refused: the stable code in answers, logs and counters."""

    NOT_TEXT = "not_text"
    TOO_LARGE = "too_large"
    MALFORMED = "malformed"
    UNKNOWN_NAME = "unknown_name"
    NOT_ALLOWED = "not_allowed"
    BY_VALUE = "by_value"
    INSTANCE = "instance"
    NOT_A_REFERENCE = "not_a_reference"
    DENIED = "denied"
    BROKEN_PIN = "broken_pin"


class PayloadRefused(RequestError):
    """The operator of this server did not allow the payload.

    Attributes:
        reason: Stable code of the cause.
        digest: SHA-256 of the decoded pickle in hex, or ``None`` if nothing was decoded.
        size: Length of the payload text in characters.
    """

    def __init__(
        self, message: str, *, reason: RefusalReason, digest: str | None = None, size: int = 0
    ) -> None:
        super().__init__(message)
        self.param = self.param or "custom_logit_processor"
        self.reason = reason
        self.code = reason.value
        self.digest = digest
        self.size = size


class InvalidParameter(RequestError):
    """An entry of ``custom_params`` does not fit the processor's ``Params``.

    Attributes:
        processor: Class name of the processor.
        parameter: Key in ``custom_params``, or ``None`` if no single key is at fault.
        problem: The message: what was expected, what came, what to do.
    """

    code = "invalid_parameter"

    def __init__(self, processor: str, parameter: str | None, problem: str) -> None:
        # A client may have sent anything as the name.
        where = "custom_params" if parameter is None else shown(parameter, 100).strip("'")
        super().__init__(f"{where} of {processor}: {problem}")
        self.param = where if parameter is None else f"custom_params.{where}"
        self.processor = processor
        self.parameter = parameter
        self.problem = problem


class Unsupported(RequestError):
    """The processor is allowed, but this server as started cannot honour it."""

    code = "unsupported"


class Contradiction(RequestError):
    """The edits for a request, its own and the operator's, leave it no token."""

    code = "contradiction"


class ProcessorFault(SglangLpError, RuntimeError):
    """A processor raised, or returned a wrong value. It ends its own request and no other.

    Attributes:
        processor: Class name of the processor; ``"always"`` for one of ``[[always]]``, which
            messages do not name; ``None`` if no class failed but the toolkit itself.
    """

    code = "processor_fault"

    def __init__(self, message: str, processor: str | None = None) -> None:
        super().__init__(message)
        self.processor = processor


class NotRun(SglangLpError, RuntimeError):
    """A requested processor did not run on an answer, or the answer does not say that it ran."""

    code = "not_run"


class PolicyError(SglangLpError, ValueError):
    """The policy file is wrong. The message names the place, and the expected value."""


class UsageError(SglangLpError, ValueError):
    """A command was called with wrong arguments. The message says which were expected."""


class InstallError(SglangLpError, RuntimeError):
    """A guard could not be put in place in this process with this SGLang version."""


@contextmanager
def refusing(processor: str, parameter: str | None) -> Iterator[None]:
    """Turn a ``RequestError`` of the block into the refusal of a parameter.

    Args:
        processor: Name of the class that has the parameter.
        parameter: Its name; ``None`` if no single parameter is at fault.

    Raises:
        InvalidParameter: In place of any other ``RequestError``.
    """
    try:
        yield
    except RequestError as error:
        raise InvalidParameter(processor, parameter, str(error)) from None
