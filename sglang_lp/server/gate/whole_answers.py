"""Whether a structured answer of a request is complete at its limit, and what could prevent it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp.builtins import (
    AllowedTokensLogitProcessor,
    BadWordsLogitProcessor,
    BiasWordsLogitProcessor,
    DisallowedTokensLogitsProcessor,
    DRYLogitProcessor,
    GenLengthLogitProcessor,
    ScheduledBiasLogitProcessor,
    TemperatureLogitProcessor,
    ToolCallLimitLogitProcessor,
    TopNSigmaLogitProcessor,
)
from sglang_lp.builtins.thinking.params import BudgetParams
from sglang_lp.closing.automaton import check_version
from sglang_lp.errors import PolicyError, RequestError, Unsupported
from sglang_lp.params import WHOLE, take_beside

if TYPE_CHECKING:
    from sglang_lp.links import Serving
    from sglang_lp.server.gate.guard import Admitted, Guard
    from sglang_lp.server.gate.intake import Intake

#: Parameters of processors that leave every token which a grammar allows possible, or at least one.
_HARMLESS = (
    BiasWordsLogitProcessor.Params,
    DRYLogitProcessor.Params,
    GenLengthLogitProcessor.Params,
    TemperatureLogitProcessor.Params,
    TopNSigmaLogitProcessor.Params,
)


class WholeAnswer(NamedTuple):
    """How an answer is to end that has to be complete at its limit.

    Attributes:
        policy: Fingerprint of the policy, for the report.
        is_asked: Whether the request asks for it; otherwise the operator does, for all requests.
        banned: Tokens that processors ban from the answer.
        limits: Parameters of its limits on tool calls.
        hindrance: The reason why the answer is not led, in words; ``None`` if it is.
    """

    policy: str
    is_asked: bool
    banned: frozenset[int] = frozenset()
    limits: tuple[ToolCallLimitLogitProcessor.Params, ...] = ()
    hindrance: str | None = None


def is_whole(guard: Guard, intake: Intake) -> bool:
    """Tell whether the answer of a request has to be complete at its limit.

    Raises:
        RequestError: ``whole_answer`` is neither true nor false.
    """
    asked = _asked(intake)
    if asked is None:
        return guard.policy.whole_answers and intake.grammar is not None
    return asked


def find_ending(guard: Guard, intake: Intake, admitted: Admitted | None) -> WholeAnswer | None:
    """Return how an answer that has to be complete is led.

    If only the operator asks for it and it cannot be had, the request is served without.

    Args:
        guard: The guard of this process.
        intake: The request.
        admitted: The processors that run for it.

    Returns:
        ``None`` if the answer need not be complete.

    Raises:
        RequestError: The request asks for it, and it or this server cannot have it.
    """
    if not is_whole(guard, intake):
        return None
    try:
        return _find_ending(guard, intake, admitted)
    except Unsupported as error:
        if _asked(intake):
            raise
        return WholeAnswer(guard.fingerprint, is_asked=False, hindrance=_reason_of(error))


def _find_ending(guard: Guard, intake: Intake, admitted: Admitted | None) -> WholeAnswer:
    if intake.grammar is None:
        raise RequestError(
            f"{WHOLE}: expected a request with json_schema, regex, ebnf or structural_tag, got "
            "one without; a text without a grammar is never incomplete"
        )
    _check_server(guard)
    if intake.searches_beams:
        raise Unsupported(f"{WHOLE}: expected no beam search, got beam_width; leave out one")
    if intake.stopped_by is not None:
        raise _beside(intake.stopped_by, "which may end an answer too early, or never")
    if not intake.stop_token_ids <= {*guard.server.model.eos_token_ids}:
        raise _beside("stop_token_ids", "which end an answer before it is complete")
    banned: set[int] = set()
    limits = []
    for link in () if admitted is None else admitted.servings:
        if _is_no_call_in_thoughts(link.params, guard):
            continue
        if _limits_answer(link, intake):
            limits.append(link.params)
            continue
        found = _banned_by(link.params, guard.server.vocab_size or 0)
        if found is None:
            named = link.flags.name if link.is_named else "a processor"
            raise _beside(named, "whose bans depend on the text, so no way to an end is sure")
        banned |= found
    return WholeAnswer(guard.fingerprint, bool(_asked(intake)), frozenset(banned), tuple(limits))


def check_policy(guard: Guard) -> None:
    """Refuse a server on which answers cannot be complete, if its operator wants them to be.

    Raises:
        PolicyError: With the reason.
    """
    if guard.policy.whole_answers:
        try:
            _check_server(guard)
        except Unsupported as error:
            raise PolicyError(f"structured.whole_answers: {_reason_of(error)}") from None


def _check_server(guard: Guard) -> None:
    """Refuse a server whose grammars are not known.

    Raises:
        Unsupported: Its grammars are not xgrammar's, or have another form.
    """
    backend = guard.server.grammar_backend
    if backend not in (None, "xgrammar"):
        raise Unsupported(
            f"{WHOLE}: expected a server with --grammar-backend xgrammar, got {backend}, which "
            "does not say how its grammars end; leave it out"
        )
    try:
        check_version(_serialized_form())
    except Unsupported as error:
        raise Unsupported(f"{WHOLE}: {error}; leave it out") from None


@cache
def _serialized_form() -> str:
    from xgrammar import get_serialization_version  # which imports torch

    return str(get_serialization_version())


def _beside(name: str, why: str) -> Unsupported:
    return Unsupported(f"{WHOLE}: expected none with {name}, {why}; leave out one of them")


def _reason_of(error: Unsupported) -> str:
    """Return the message of a refusal without the name in front of it."""
    return str(error).removeprefix(f"{WHOLE}: ")


def _asked(intake: Intake) -> bool | None:
    """Return a request's ``whole_answer``."""
    return take_beside(intake.custom_params)[1].whole


def _limits_answer(link: Serving, intake: Intake) -> bool:
    """Tell whether a processor limits the tool calls of the answer, and counts none in thoughts."""
    answers = link.phase is not None and not link.phase.is_thinking
    return isinstance(link.params, ToolCallLimitLogitProcessor.Params) and (
        answers or not intake.reasoning
    )


def _is_no_call_in_thoughts(params: Any, guard: Guard) -> bool:
    """Tell whether parameters are of the rule that bans calls before a structured answer."""
    form = guard.server.tool_calls
    return (
        isinstance(params, BadWordsLogitProcessor.Params)
        and form is not None
        and (str(params.where), tuple(params.words or ())) == ("thinking", form.starts)
    )


def _banned_by(params: Any, vocab_size: int) -> frozenset[int] | None:
    """Return the tokens that a processor bans; ``None`` if they depend on the text."""
    if isinstance(params, _HARMLESS):
        return frozenset()
    if isinstance(params, BudgetParams):
        return frozenset() if params.at_limit == "close" else None
    if isinstance(params, DisallowedTokensLogitsProcessor.Params):
        return frozenset(params.token_ids or ())
    if isinstance(params, AllowedTokensLogitProcessor.Params):
        return frozenset(range(vocab_size)).difference(params.token_ids or ())
    if isinstance(params, ScheduledBiasLogitProcessor.Params):
        return frozenset(params.token_ids) if params.bias is None else frozenset()
    return None
