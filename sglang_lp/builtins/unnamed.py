"""A processor whose name is not the client's business, whatever it raises."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from sglang_lp.errors import ProcessorFault, RequestError, Unsupported, told
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    import torch

    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

__all__ = ["UNNAMED", "UnnamedProcessor"]

logger = logging.getLogger(__name__)

#: What stands for it in messages.
UNNAMED = "what this server adds to every request"


class UnnamedProcessor(LogitProcessor):
    """Runs another processor; what that raises is told in the log, and not in the answer.

    Args:
        processor: The other one.
    """

    def __init__(self, processor: LogitProcessor) -> None:
        self._processor = processor
        self.needs, self.tolerates_lag = processor.needs, processor.tolerates_lag
        self.can_fork, self.early = processor.can_fork, processor.early
        self.reads_prompt, self.reads_request = processor.reads_prompt, processor.reads_request
        self.dense, self.edits = processor.dense, processor.edits
        self.exclusion_only = processor.exclusion_only

    @property
    def name(self) -> str:
        """The same for all of them."""
        return UNNAMED

    @property
    def kind(self) -> type:
        """That of the other one."""
        return self._processor.kind

    def plain(self, params: Any) -> dict[str, Any]:
        """Return its parameters."""
        return self._processor.plain(params)

    def start(self, request: Request) -> Any:
        """Return its state."""
        with self._untold():
            return self._processor.start(request)

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Pass the tokens on."""
        with self._untold():
            self._processor.advance(request, token_ids)

    def fork(self, request: Request) -> Any:
        """Fork its state."""
        with self._untold():
            return self._processor.fork(request)

    def edit(self, request: Request, edits: Edits) -> None:
        """Take its edits."""
        with self._untold():
            self._processor.edit(request, edits)

    def compute(
        self, logits: torch.Tensor, requests: Sequence[Request], custom_params: Sequence[Any]
    ) -> torch.Tensor:
        """Let it compute its rows."""
        with self._untold():
            return self._processor.compute(logits, requests, custom_params)

    def rewind(self, request: Request) -> None:
        """Tell it of a step that comes again."""
        with self._untold():
            self._processor.rewind(request)

    def foresee(self, request: Request) -> Iterator[int]:
        """Name what it foresees."""
        with self._untold():
            yield from self._processor.foresee(request)

    @contextmanager
    def _untold(self) -> Iterator[None]:
        try:
            yield
        except RequestError as error:
            self._log(error)
            raise Unsupported(f"the request does not fit {UNNAMED}") from None
        except Exception as error:  # noqa: BLE001 - the class's own code
            self._log(error)
            raise ProcessorFault(f"{UNNAMED} failed") from None
        except BaseException as error:  # noqa: BLE001 - as above
            self._log(error)
            # Without what it says, but with the traceback, which tells a signal.
            kind = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else SystemExit
            raise kind().with_traceback(error.__traceback__) from None

    def _log(self, error: BaseException) -> None:
        logger.error("%s failed\n%s", self._processor.name, told(error))
