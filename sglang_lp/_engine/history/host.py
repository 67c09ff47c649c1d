"""Who runs a request: the seam between the engine and SGLang, a unit test or a replay."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from sglang_lp.errors import SglangLpError, Unsupported

if TYPE_CHECKING:
    from sglang_lp._engine.apply.raw import RawLogprobs
    from sglang_lp.edits import End

__all__ = ["Host", "Seen", "host_of"]

#: Entry points of hosts for the requests of a server that does not run the plugin.
_GROUP = "sglang_lp.hosts"


#: What a host shows of a request at one step; a plain tuple, because one is made for each row.
#: The prompt's tokens; the generated ones, oldest first; generated ones that are not among these
#: yet; how many were generated, whether they can be seen or not; and whether the token that is
#: sampled now becomes part of the answer.
Seen: TypeAlias = tuple[Sequence[int], Sequence[int], Sequence[int], int, bool]


class Host:
    """A request that nobody runs: its whole history is known, and a fault is raised.

    Attributes:
        request: An object with ``origin_input_ids`` and ``output_ids``, or ``None``.
        may_lag: Whether the newest token may be missing at some step.
        restricted: Whether the host itself may set logits of the request to ``-inf``, grammars
            apart.
        masked: Whether the request gets SGLang's sampling masks, which tell of exclusion alone.
        raw: Takes down the model's own logprobs of edited tokens, if the request asks for them.
        resumed: How many of the prompt's last tokens its processor takes for generated ones.
        limit: Number of tokens after which the request ends.
        tokenizer: The served model's, or ``None``.
    """

    __slots__ = (
        *("limit", "masked", "may_lag", "raw", "request", "restricted", "resumed"),
        "tokenizer",
    )

    def __init__(self, request: Any, *, may_lag: bool = False) -> None:
        self.request = request
        self.may_lag = may_lag
        self.restricted = self.masked = False
        self.raw: RawLogprobs | None = None
        self.resumed = 0
        self.limit = 1 << 62
        self.tokenizer: Any = getattr(request, "tokenizer", None)

    def look(self, *, tokens: bool) -> Seen:  # noqa: ARG002 - others read them only then
        """Return what is known of the request now.

        Args:
            tokens: Whether the newest tokens themselves are needed, not their number alone.
        """
        if self.request is None:
            return (), (), (), 0, True
        prompt_ids, output_ids = self.request.origin_input_ids, self.request.output_ids
        return prompt_ids, output_ids, (), len(output_ids), True

    def end(self, error: SglangLpError) -> None:
        """End the request with an error.

        Raises:
            SglangLpError: ``error`` itself, where nobody runs the request.
        """
        raise error

    def finish(self, end: End) -> None:
        """End the request with the token that is sampled now."""

    def end_at(self, position: int, drafted: Sequence[int], error: SglangLpError) -> None:
        """As :meth:`end`, if the answer comes to hold drafted tokens.

        Args:
            position: Number of generated tokens after which the fault happened.
            drafted: The last of these tokens, which were drafts when it happened.
            error: Why.
        """

    def finish_at(self, position: int, drafted: Sequence[int], end: End) -> None:
        """As :meth:`finish`, at ``position``, if the answer comes to hold drafted tokens.

        Args:
            position: Index of the last generated token.
            drafted: The tokens right before it, which were drafts when this was decided.
            end: As for :meth:`finish`.
        """


def host_of(request: Any) -> Host:
    """Return the host of a request that came without one.

    Args:
        request: ``custom_params["__req__"]``, or ``None``.
    """
    if hasattr(request, "to_finish"):
        return _served_host()(request)  # type: ignore[no-any-return]
    return Host(request)


@lru_cache(maxsize=1)
def _served_host() -> Any:
    """Return the host for requests of a server without the plugin."""
    # Not imported above: the client imports this module, and that takes 20 ms.
    from importlib.metadata import entry_points

    found = [*entry_points(group=_GROUP)]
    if not found:
        _refuse()
    return found[0].load()


def _refuse() -> NoReturn:
    raise Unsupported(
        f"no entry point in the group {_GROUP}: install sglang-lp with pip, or run the server with "
        "its plugin"
    )
