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

from sglang_lp.errors import ProcessorFault, RequestError, SglangLpError, shown, told

if TYPE_CHECKING:
    from logging import Logger
    from types import FrameType


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


def as_fault(name: str, when: str, error: BaseException) -> SglangLpError:
    """Return the error that ends the request of a processor that raised, and log it.

    Args:
        name: Name of the processor.
        when: The moment, such as ``at token 3``.
        error: The exception that it raised.

    Returns:
        An error that names the processor; a :class:`RequestError` as it is.

    Raises:
        BaseException: ``error`` itself, if it comes from a signal.
    """
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
    return ProcessorFault(f"{name} failed {when}: {what}", name)


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
        _logger().error("%s failed\n%s", name, told(error))
        return shown(traceback.format_exception_only(error)[-1].strip(), 200)
    except BaseException as unspeakable:
        if from_signal(unspeakable):
            raise
        return "it raised an exception that cannot be shown"


def _logger() -> Logger:
    # Not imported at the top, because clients import this module and log nothing.
    import logging

    return logging.getLogger(__name__)
