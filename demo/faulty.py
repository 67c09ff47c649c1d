"""A processor with a bug in it, for the demo: allowed by its operator, and still harmless."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History

if TYPE_CHECKING:
    from sglang_lp.edits import Edits
    from sglang_lp.request import Request

__all__ = ["Faulty"]


class Faulty(LogitProcessor):
    """Raises at the fifth token."""

    needs = History.POSITION

    def edit(self, request: Request, edits: Edits) -> None:
        """Divide by the number of tokens left until the fifth."""
        edits.bias([0], [1 / (4 - request.position)])
