"""A server of a kind that is started again when a request has ended it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Self

from hunt.asking import Client
from hunt.canaries import canaries
from hunt.servers import start

if TYPE_CHECKING:
    from types import TracebackType

    from hunt.servers import Kind

__all__ = ["Served"]


@dataclass
class Served:
    """A running server and its client, until it is closed.

    Attributes:
        kind: Of the server.
        folder: Takes a folder for each start.
        client: Of the server that runs now.
        starts: Number of servers so far.
    """

    kind: Kind
    folder: Path
    client: Client = field(init=False)
    starts: int = 0
    _stack: ExitStack = field(default_factory=ExitStack)

    def __post_init__(self) -> None:
        self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def restart(self) -> None:
        """End the server, and start another."""
        self.close()
        self._start()

    def close(self) -> None:
        """End the server."""
        self._stack.close()

    def _start(self) -> None:
        directory = self.folder / f"{self.kind.name}-{self.starts}"
        directory.mkdir(parents=True)
        self.starts += 1
        server = self._stack.enter_context(start(self.kind, directory))
        self.client = self._stack.enter_context(Client(server, canaries(self.kind)))
