"""A model's answer, scripted: each token is the likeliest, and is said once it may be said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from sglang_lp import Edits, LogitProcessor, Parameters, Request
from sglang_lp.params import TokenIds  # noqa: TC001 - msgspec reads it

__all__ = ["Scripted"]


class Scripted(LogitProcessor):
    """Make the next token of a script the likeliest; what is forced on it comes in between."""

    example: ClassVar[dict[str, Any]] = {"script": [1, 2]}

    class Params(Parameters, frozen=True):
        """Parameters of a request.

        Attributes:
            script: The tokens.
        """

        script: TokenIds

    def start(self, request: Request) -> int:
        """Begin with the first token."""
        return 0

    def advance(self, request: Request, token_ids: Sequence[int]) -> None:
        """Go on where the script was followed."""
        script = request.params.script
        for token_id in token_ids:
            at = request.state
            request.state += at < len(script) and script[at] == token_id

    def edit(self, request: Request, edits: Edits) -> None:
        """Make it the likeliest."""
        script = request.params.script
        if request.state < len(script):
            edits.bias([script[request.state]], 1000.0)
