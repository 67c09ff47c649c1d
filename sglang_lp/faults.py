"""What a processor raises, as an error of its request; what a signal raises goes on its way.

A processor may raise anything: ``SystemExit``, ``KeyboardInterrupt``, ``CancelledError``, or an
exception that cannot even be printed. None of that ends the thread that serves everybody. Only a
signal does, which Python raises wherever that thread happens to be, inside a processor too.
"""

from __future__ import annotations

import signal
from functools import cache
from typing import TYPE_CHECKING, NoReturn

from sglang_lp.errors import ProcessorFault, RequestError, SglangLpError, shown, told

if TYPE_CHECKING:
    from logging import Logger
    from types import FrameType

__all__ = ["as_fault", "from_signal", "interrupt", "show_interrupts"]


def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    """Raise ``KeyboardInterrupt``: Python's own handler, but one that a traceback shows."""
    raise KeyboardInterrupt


def show_interrupts() -> None:
    """Let :func:`from_signal` see an interrupt where nobody handles it in another way.

    Call it in the main thread.
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)


def from_signal(error: BaseException) -> bool:
    """Tell whether a signal's handler raised this.

    A handler that is written in Python stands in the traceback; other code does not call it.
    Python's own for interrupts does not: while that is in place every ``KeyboardInterrupt`` counts.
    """
    default = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if default and issubclass(type(error), KeyboardInterrupt):
        return True
    trace = error.__traceback__
    if trace is None:  # nobody raised it
        return False
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in _signals()}
    while trace is not None:
        if trace.tb_frame.f_code in handlers:
            return True
        trace = trace.tb_next
    return False


@cache  # they never change, and listing them takes as long as the rest of a fault
def _signals() -> tuple[signal.Signals | int, ...]:
    return (*signal.valid_signals(),)


def as_fault(name: str, when: str, error: BaseException) -> SglangLpError:
    """Return what ends the request of a processor that raised, and log it.

    Args:
        name: Of the processor.
        when: Where it was, as ``at token 3``.
        error: What was raised.

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
    return ProcessorFault(f"{name} failed {when}: {what}")


def _has_plain_text(error: BaseException) -> bool:
    """Tell whether an error says text, and such as SGLang's processes can send."""
    if type(error).__str__ is not BaseException.__str__:
        return False
    if any(type(arg) is not str for arg in error.args):
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
    # Not imported above, because the client imports this module and logs nothing.
    import logging

    return logging.getLogger(__name__)
