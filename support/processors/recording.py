"""Processors that tests allow on their servers: one that records what it sees, and faulty ones.

Each record is a line of JSON in the file that the environment names. A line is one write, so
several processes may share the file.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import multiprocessing
import os
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import orjson
from msgspec import Meta

from sglang_lp._engine.history.row import Row
from sglang_lp._engine.turns.view import View
from sglang_lp.params import NonNegativeInt, Parameters, TokenIds
from sglang_lp.processor import LogitProcessor
from support.settings import RECORD

VOCAB_SIZE = 1024
_serials = itertools.count()


def write(event: str, **values: Any) -> None:
    """Append one line to the record."""
    line = {"event": event, "pid": os.getpid(), **values}
    descriptor = os.open(os.environ[RECORD], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
    finally:
        os.close(descriptor)


def steer(history: Sequence[int]) -> int | None:
    """Return a token that depends on every token of the history, or ``None`` half of the time."""
    digest = zlib.crc32(repr([*history]).encode())
    return digest // 2 % VOCAB_SIZE if digest % 2 else None


class Recorder(LogitProcessor):
    """Write down what ``edit`` sees; with ``steering``, force what :func:`steer` says.

    ``seconds`` is how long a step takes at least.
    """

    class Params(Parameters, frozen=True):
        """Parameters of a request."""

        tag: str
        steering: bool = False
        seconds: Annotated[float, Meta(ge=0, le=1)] = 0.0

    def start(self, request: Any) -> Any:
        """Return a serial number and the tokens fed so far."""
        return next(_serials), []

    def advance(self, request: Any, token_ids: Sequence[int]) -> None:
        """Keep them."""
        request.state[1].extend(token_ids)

    def edit(self, request: Any, edits: Any) -> None:
        """Write and steer."""
        serial, fed = request.state
        time.sleep(request.params.seconds)
        write(
            "edit",
            tag=request.params.tag,
            serial=serial,
            position=request.position,
            exact=request.exact,
            output_ids=[*request.output_ids],
            fed=fed,
        )
        token_id = steer(fed) if request.params.steering else None
        if token_id is not None:
            edits.force(token_id)


class Census(LogitProcessor):
    """Write down which of the toolkit's objects for requests live in this process.

    Rows of a request that is gone make this fail, and with it the request that asks.
    """

    class Params(Parameters, frozen=True):
        """Parameters of a request."""

        tag: str

    def edit(self, request: Any, edits: Any) -> None:
        """Count."""
        if request.position:
            return
        gc.collect()
        things = gc.get_objects()
        rows = [thing for thing in things if type(thing) is Row]
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        write(
            "census",
            tag=request.params.tag,
            rows=sorted(row.source.rid for row in rows),
            requests=sum(type(thing) is View for thing in things),
            rss=pages * os.sysconf("SC_PAGE_SIZE"),
        )


class Unlisted(LogitProcessor):
    """Do nothing; in no policy."""

    def edit(self, request: Any, edits: Any) -> None:
        """Do nothing."""


class Burdened(LogitProcessor):
    """Keep a state that is large enough to be missed, and write nothing."""

    def start(self, request: Any) -> Any:
        """Return the state."""
        return bytearray(1 << 14)

    def edit(self, request: Any, edits: Any) -> None:
        """Ban a token."""
        edits.ban([len(request.state) % 1000])


class _At(Parameters, frozen=True):
    at: NonNegativeInt


class Raises(LogitProcessor):
    """Raise before the token at a position."""

    Params = _At

    def edit(self, request: Any, edits: Any) -> None:
        """Raise."""
        if request.position == request.params.at:
            raise KeyError("a processor's own mistake")


class Unspeakable(BaseException):
    """Cannot be printed."""

    def __str__(self) -> str:
        """Raise."""
        raise SystemExit


def _dive() -> None:
    _dive()


def _raise(error: BaseException) -> NoReturn:
    raise error


#: What a processor should never raise, by its name, and how it comes to be.
NEVER_RAISED: Mapping[str, Callable[[], Any]] = {
    "SystemExit": lambda: sys.exit(3),
    "KeyboardInterrupt": lambda: _raise(KeyboardInterrupt()),
    "CancelledError": lambda: _raise(asyncio.CancelledError()),
    "MemoryError": lambda: bytearray(1 << 62),
    "RecursionError": _dive,
    "GeneratorExit": lambda: _raise(GeneratorExit()),
    "Unspeakable": lambda: _raise(Unspeakable()),
}


class Leaves(LogitProcessor):
    """Raise before the token at a position what would end a process."""

    class Params(_At, frozen=True):
        """Parameters of a request."""

        what: str

    def edit(self, request: Any, edits: Any) -> None:
        """Raise."""
        if request.position == request.params.at:
            NEVER_RAISED[request.params.what]()


class Unmakeable(LogitProcessor):
    """Raise in the constructor, in a scheduler, once the server has started."""

    made = 0

    def __init__(self) -> None:
        """Count, and raise."""
        Unmakeable.made += 1
        if Unmakeable.made > 1 and multiprocessing.parent_process() is not None:
            sys.exit(3)

    def edit(self, request: Any, edits: Any) -> None:
        """Do nothing."""


class Finishes(LogitProcessor):
    """End the request with the token at a position."""

    Params = _At

    def edit(self, request: Any, edits: Any) -> None:
        """End it."""
        if request.position == request.params.at:
            edits.finish("enough")


class OnlyAlong(LogitProcessor):
    """Force an answer, and raise at whatever is not a beginning of it."""

    class Params(Parameters, frozen=True):
        """Parameters of a request."""

        answer: TokenIds

    def edit(self, request: Any, edits: Any) -> None:
        """Raise or force."""
        seen, answer = [*request.output_ids], request.params.answer
        if seen != [*answer[: len(seen)]]:
            write("astray", output_ids=seen)
            raise KeyError("a draft that does not come")
        edits.force(answer[len(seen)])


class OutOfVocabulary(LogitProcessor):
    """Force a token that the model does not have."""

    Params = _At

    def edit(self, request: Any, edits: Any) -> None:
        """Force it."""
        if request.position == request.params.at:
            edits.force(VOCAB_SIZE)


class BansAll(LogitProcessor):
    """Leave no token."""

    Params = _At

    def edit(self, request: Any, edits: Any) -> None:
        """Ban all."""
        if request.position == request.params.at:
            edits.ban(range(VOCAB_SIZE))


class _Dense(LogitProcessor):
    Params = _At

    def __call__(self, logits: Any, custom_param_list: Any = None) -> Any:
        due = [len(params["__req__"].output_ids) == params["at"] for params in custom_param_list]
        return self.spoil(logits, due) if any(due) else logits

    def spoil(self, logits: Any, due: list[bool]) -> Any:
        """Return an invalid result."""
        raise NotImplementedError


class WrongShape(_Dense):
    """Return a column too few."""

    def spoil(self, logits: Any, due: list[bool]) -> Any:
        """Cut the last column off."""
        return logits[:, :-1]


class NotATensor(_Dense):
    """Return nothing."""

    def spoil(self, logits: Any, due: list[bool]) -> Any:
        """Forget to return."""
        return None


class WritesNaN(_Dense):
    """Fill the rows that are due with NaN."""

    def spoil(self, logits: Any, due: list[bool]) -> Any:
        """Write."""
        logits[due] = float("nan")
        return logits


class DenseRaises(_Dense):
    """Raise if any row is due."""

    def spoil(self, logits: Any, due: list[bool]) -> Any:
        """Raise."""
        raise RuntimeError("a processor's own mistake")


class Reopens(_Dense):
    """Allow one token that a grammar for digits masks, and nothing else."""

    def spoil(self, logits: Any, due: list[bool]) -> Any:
        """Forget what was masked."""
        logits = logits.clone()
        logits[due] = float("-inf")
        logits[due, 300] = 1.0
        return logits


class ReopensInItsRow(LogitProcessor):
    """As ``Reopens``, by way of ``request.logits``."""

    Params = _At

    def edit(self, request: Any, edits: Any) -> None:
        """Forget what was masked."""
        if request.position == request.params.at:
            request.logits.fill_(float("-inf"))
            request.logits[300] = 1.0
