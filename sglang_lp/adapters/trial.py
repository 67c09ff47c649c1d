"""Making an object of a foreign class to see whether it takes its arguments, in bounded time.

A constructor is the class's own code, and the request decides how long it runs. It therefore runs
in a thread of its own, and the thread that serves all requests waits :data:`PATIENCE` at most.
"""

from __future__ import annotations

from collections.abc import Callable
from threading import Thread
from time import thread_time

from sglang_lp.errors import InvalidParameter

#: Most seconds of processor time that a constructor may take: the scheduler makes the object again,
#: and all requests wait for that.
LONGEST = 0.25

#: Most seconds that the caller waits.
PATIENCE = 1.0

#: By the name of a class, the thread of a constructor that was given up; it cannot be ended.
_abandoned: dict[str, Thread] = {}


def try_out(name: str, make: Callable[[], object]) -> float:
    """Make an object, and drop it.

    Args:
        name: Name of the class, for messages.
        make: Makes it.

    Returns:
        The seconds of processor time that it took.

    Raises:
        InvalidParameter: It takes too long, or an earlier constructor is still at work.
        Exception: Whatever ``make`` raises.
    """
    before = _abandoned.pop(name, None)
    if before is not None and before.is_alive():
        _abandoned[name] = before
        raise InvalidParameter(
            name, None, "its constructor is at work for an earlier request; send this request later"
        )
    done: list[tuple[float, BaseException | None]] = []

    def run() -> None:
        raised: BaseException | None = None
        try:
            make()
        except BaseException as error:  # noqa: BLE001 - raised again where it is waited for
            raised = error
        done.append((thread_time(), raised))

    thread = Thread(target=run, name=f"makes {name}", daemon=True)
    thread.start()
    thread.join(PATIENCE)
    if not done:
        _abandoned[name] = thread
    spent, raised = done[0] if done else (PATIENCE, None)
    if raised is not None:
        raise raised
    if not done or spent > LONGEST:
        raise InvalidParameter(
            name,
            None,
            f"expected arguments with which its constructor takes at most {LONGEST:g} s, got "
            f"{'more than ' * (not done)}{spent:.2g} s; ask for less",
        )
    return spent
