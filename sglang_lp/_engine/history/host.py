"""The host of a request: the interface between the engine and SGLang, a unit test or a replay.

The server has its own hosts (:mod:`sglang_lp.server.scheduler.sglang_host`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeAlias

from sglang_lp.errors import Contradiction, ProcessorFault, SglangLpError, Unsupported
from sglang_lp.text.encoding import with_texts

if TYPE_CHECKING:
    from sglang_lp._engine.apply.raw import RawLogprobs
    from sglang_lp._engine.history.edit_log import EditLog, EditRecorder
    from sglang_lp.edits import End

#: Entry points of hosts for the requests of a server that does not run the plugin.
_GROUP = "sglang_lp.hosts"

#: The history of a request at one step, as a plain tuple because each row needs one:
#:
#: - token ids of the prompt;
#: - generated token ids, oldest first;
#: - newer generated ids that the host has not appended yet;
#: - number of generated tokens, readable or not;
#: - whether the token that is sampled now becomes part of the answer.
Seen: TypeAlias = tuple[Sequence[int], Sequence[int], Sequence[int], int, bool]


class Pending(Protocol):
    """Newest tokens of requests that their hosts have not appended yet."""

    def newest_of(self, output_ids: Sequence[Sequence[int]]) -> tuple[Any, Any]:
        """Return the newest of these tokens for each request, and how many they are, int64.

        Args:
            output_ids: For each request its generated tokens, as the host has them.
        """

    def counts_of(self, output_ids: Sequence[Sequence[int]]) -> Any:
        """Return how many they are, without waiting for the device."""

    def accepted_of(self, output_ids: Sequence[Sequence[int]]) -> tuple[Any, Any]:
        """Return these tokens, request after request, and how many each has, int64."""


class Host:
    """The host of a request outside a server: the history is complete, and errors are raised.

    Attributes:
        request: An object with ``origin_input_ids`` and ``output_ids``, or ``None``.
        may_lag: Whether the newest token may be missing at some step.
        restricted: Whether the host itself may set logits of the request to ``-inf``, not counting
            a grammar.
        spoils: Whether the request's own fields may leave a row from which nothing can be sampled:
            its rows are looked at in every step.
        temperature: SGLang's, by which it divides the edited logits.
        returns_sampling_mask: Whether the request asks for SGLang's ``return_sampling_mask``. Its
            processors then only ban, allow and force.
        raw: Receives the raw logprobs of edited tokens; ``None`` if the request does not ask.
        resumed: Number of tokens at the end of the prompt that the processor treats as generated.
        limit: Number of tokens after which the request ends.
        tokenizer: The served model's, or ``None``.
        pending: The newest tokens of all requests, if the host appends them later.
    """

    __slots__ = (
        *("limit", "may_lag", "pending", "raw", "request", "restricted", "resumed"),
        *("returns_sampling_mask", "spoils", "temperature", "tokenizer"),
    )

    def __init__(self, request: Any, *, may_lag: bool = False) -> None:
        self.request = request
        self.may_lag = may_lag
        self.restricted = self.returns_sampling_mask = self.spoils = False
        self.temperature = 1.0
        self.raw: RawLogprobs | None = None
        self.resumed = 0
        self.limit = 1 << 62
        self.tokenizer: Any = getattr(request, "tokenizer", None)
        self.pending: Pending | None = None

    def look(self, *, tokens: bool) -> Seen:  # noqa: ARG002 - other hosts wait for the device only then
        """Return the history of the request now.

        Args:
            tokens: Whether the newest tokens are needed, and not only their number.
        """
        if self.request is None:
            return (), (), (), 0, True
        prompt_ids, output_ids = self.request.origin_input_ids, self.request.output_ids
        return prompt_ids, output_ids, (), len(output_ids), True

    def recorder_of(self, log: EditLog) -> EditRecorder:
        """Return the recorder of a row's edits, by default the row's log itself."""
        return log

    def end(self, error: SglangLpError) -> None:
        """End the request with an error.

        Raises:
            SglangLpError: ``error`` itself, outside a server.
        """
        raise error

    def no_token_left(self, at: int, why: str, *, masked: bool) -> SglangLpError:  # noqa: ARG002 - for servers
        """Return the error of a request whose edits leave no token.

        Args:
            at: Index of the token in the answer.
            why: The edits that contradict each other; its only numbers are ids of tokens.
            masked: Whether the server's own masks take part: a grammar, ``min_new_tokens`` or
                ``logit_bias``.
        """
        return ProcessorFault(f"no token is left: {with_texts(why, self.tokenizer)}")

    def not_finite(self, at: int, *, empty: bool) -> SglangLpError:
        """Return the error of a request whose row cannot be sampled from, edited or not.

        Args:
            at: Index of the token in the answer.
            empty: Whether every logit of the row was ``-inf`` before the edits.
        """
        if self.spoils or (self.restricted and empty):
            return Contradiction(
                f"no token can be sampled at token {at}: the request's own fields leave no finite "
                "logit; change logit_bias, min_new_tokens, repetition_penalty, stop_token_ids or "
                "temperature"
            )
        return ProcessorFault(
            f"no token can be sampled at token {at}: the model itself wrote NaN, an infinite logit "
            "or no finite logit"
        )

    def finish(self, end: End) -> None:
        """End the request with the token that is sampled now."""

    def end_at(self, position: int, drafted: Sequence[int], error: SglangLpError) -> None:
        """End the request with an error if drafted tokens are accepted.

        Args:
            position: Number of generated tokens after which the error happened.
            drafted: The last of these tokens, which were drafts when it happened.
            error: As for :meth:`end`.
        """

    def finish_at(self, position: int, drafted: Sequence[int], end: End) -> None:
        """End the request at a position if drafted tokens are accepted.

        Args:
            position: Index of the last generated token.
            drafted: The tokens right before it, which were drafts when the end was decided.
            end: As for :meth:`finish`.
        """


def host_of(request: Any) -> Host:
    """Return the host of a request whose caller did not make one.

    Args:
        request: ``custom_params["__req__"]``, or ``None``.
    """
    if hasattr(request, "to_finish"):
        return _served_host()(request)  # type: ignore[no-any-return]
    return Host(request)


@lru_cache(maxsize=1)
def _served_host() -> Any:
    """Return the host for requests of a server without the plugin."""
    found = [*entry_points(group=_GROUP)]
    if not found:
        _refuse()
    return found[0].load()


def _refuse() -> NoReturn:
    raise Unsupported(
        f"no entry point in the group {_GROUP}: install sglang-lp with pip, or run the server with "
        "its plugin"
    )
