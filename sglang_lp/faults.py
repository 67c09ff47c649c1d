"""Exceptions of processors, turned into errors of their requests.

A processor may raise anything: ``SystemExit``, ``KeyboardInterrupt``, ``CancelledError``, or an
exception that cannot be printed. None of these ends the thread that serves all requests. Only a
signal does, and its handler may raise while a processor runs. So exceptions of signals are told
apart, and raised again.
"""

from __future__ import annotations

import signal
from functools import cache
from types import NoneType
from typing import TYPE_CHECKING, NoReturn

from sglang_lp.errors import (
    ProcessorFault,
    RequestError,
    SglangLpError,
    Unsupported,
    shown,
    told,
)

if TYPE_CHECKING:
    from types import FrameType

#: Name of the toolkit where no class failed.
OURS = "sglang-lp"
#: Replaces the name of a class of ``[[always]]`` in metrics.
ALWAYS = "always"
#: Replaces the name of such a class in messages.
UNNAMED = "what this server adds to every request"


class PartFailed(ProcessorFault):
    """A processor of a request failed; :func:`as_fault` names this processor and no other.

    Attributes:
        name: Its name.
        is_named: Whether messages to the client name it and say why it failed. If not, only the
            log does.
        error: The exception that it raised.
    """

    def __init__(self, name: str, error: BaseException, *, is_named: bool) -> None:
        super().__init__(f"{name if is_named else UNNAMED} failed")
        self.name = name
        self.is_named = is_named
        self.error = error


def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """Raise ``KeyboardInterrupt``: Python's own handler, but one that a traceback shows."""
    raise KeyboardInterrupt


def show_interrupts() -> None:
    """Replace Python's own handler of interrupts, which :func:`from_signal` cannot see.

    Leaves any other handler in place. Call it in the main thread.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)


def from_signal(error: BaseException) -> bool:
    """Tell whether a signal's handler raised an exception.

    A handler that is written in Python has a frame in the traceback, and only signals call it.
    Python's own handler of interrupts has none: while it is in place, every ``KeyboardInterrupt``
    counts as a signal's.
    """
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if default and issubclass(type(error), KeyboardInterrupt):
        return True
    trace = error.__traceback__
    if trace is None:  # it was never raised
        return False
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in _signals()}
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


@cache  # they never change
def _signals() -> tuple[signal.Signals | int, ...]:
    return (*signal.valid_signals(),)


def blame(name: str, error: BaseException, *, is_named: bool = True) -> BaseException:
    """Return an exception of a processor as an error that names this processor and no other.

    Args:
        name: Name of the processor.
        error: The exception that it raised.
        is_named: As for :class:`PartFailed`.

    Returns:
        The error to raise: ``error`` itself if it is the client's, comes from a signal, or names
        its processor already.
    """
    kind = type(error)  # not isinstance(), as in as_fault()
    if from_signal(error) or (kind is PartFailed and is_named):
        return error
    if not issubclass(kind, RequestError):
        return PartFailed(name, error, is_named=is_named)
    if is_named:
        return error
    _log(name, error)
    return Unsupported(f"the request does not fit {UNNAMED}")


class blaming:  # noqa: N801 - used as a function
    """Name a processor in what its code raises in the block; arguments as for :func:`blame`.

    A class, because a generator takes a microsecond more and a request waits for this.
    """

    __slots__ = ("_is_named", "_name")

    def __init__(self, name: str, *, is_named: bool = True) -> None:
        self._name, self._is_named = name, is_named

    def __enter__(self) -> None:
        """Begin the block."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        """Raise the error of the processor, if the block raised."""
        if error is not None:
            raise blame(self._name, error, is_named=self._is_named) from None


def cause_of(error: BaseException) -> BaseException:
    """Return the exception that a processor raised."""
    return cause_of(error.error) if isinstance(error, PartFailed) else error


def as_fault(name: str, when: str, error: BaseException) -> SglangLpError:
    """Return the error that ends the request of a processor that raised, and log it.

    Args:
        name: Name of the processor; of one of several only if ``error`` does not name it.
        when: The moment, such as ``at token 3``.
        error: The exception that it raised.

    Returns:
        An error that names the processor; a :class:`RequestError` as it is.

    Raises:
        BaseException: ``error`` itself, if it comes from a signal.
    """
    if type(error) is PartFailed:
        if not error.is_named:
            return _as_unnamed_fault(when, error)
        name, error = error.name, error.error
    if from_signal(error):
        raise error
    # Not isinstance() nor str(), which may run the foreign class's own code.
    kind = type(error)
    if issubclass(kind, SglangLpError) and _has_plain_text(error):
        if issubclass(kind, RequestError):
            return error  # type: ignore[return-value]
        what = str(error)
    else:
        what = _described(name, error)
    message = f"{name} failed {when}: {what}"
    if name == OURS:
        return SglangLpError(message)
    # An adapted class has its module before its name, and its interface behind it.
    return ProcessorFault(message, name.partition(" (")[0].rpartition(":")[2])


def _as_unnamed_fault(when: str, failed: PartFailed) -> ProcessorFault:
    """Log what a processor of ``[[always]]`` raised, and return an error that does not say it."""
    name = failed.name
    error = cause_of(failed)
    _described(name, error)
    return ProcessorFault(f"{UNNAMED} failed {when}", ALWAYS)


def _has_plain_text(error: BaseException) -> bool:
    """Tell whether an error has only plain text, which SGLang's processes can send."""
    from inspect import getattr_static  # not at the top, because clients never need it

    if type(error).__str__ is not BaseException.__str__:
        return False
    if any(type(arg) is not str for arg in error.args):
        return False
    said = [getattr_static(error, name) for name in ("code", "param")]
    if any(type(one) not in (str, NoneType) for one in said):
        return False
    try:
        "".join(error.args).encode()
    except UnicodeEncodeError:
        return False
    return True


def _described(name: str, error: BaseException) -> str:
    """Log an exception and return its last line, escaped: it may hold client data."""
    import traceback

    try:
        _log(name, error)
        return shown(traceback.format_exception_only(error)[-1].strip(), 200)
    except BaseException as unspeakable:
        if from_signal(unspeakable):
            raise
        return "it raised an exception that cannot be shown"


def _log(name: str, error: BaseException) -> None:
    # Not imported at the top, because clients import this module and log nothing.
    import logging

    logging.getLogger(__name__).error("%s failed\n%s", name, told(error))
