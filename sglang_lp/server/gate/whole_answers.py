"""Whether a structured answer of a request is complete at its limit, and what could prevent it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from sglang_lp.builtins import (
    AllowedTokensLogitProcessor,
    BadWordsLogitProcessor,
    BiasWordsLogitProcessor,
    DisallowedTokensLogitsProcessor,
    DRYLogitProcessor,
    GenLengthLogitProcessor,
    ScheduledBiasLogitProcessor,
    TemperatureLogitProcessor,
    TopNSigmaLogitProcessor,
)
from sglang_lp.builtins.thinking.params import BudgetParams
from sglang_lp.closing.automaton import check_version
from sglang_lp.errors import PolicyError, RequestError, Unsupported
from sglang_lp.params import WHOLE, take_beside

if TYPE_CHECKING:
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


def is_whole(guard: Guard, intake: Intake) -> bool:
    """Tell whether the answer of a request has to be complete at its limit.

    Raises:
        RequestError: ``whole_answer`` is neither true nor false.
    """
    _, beside = take_beside(intake.custom_params)
    if beside.whole is None:
        return guard.policy.whole_answers and intake.grammar is not None
    return beside.whole


def find_banned(guard: Guard, intake: Intake, admitted: Admitted | None) -> frozenset[int] | None:
    """Return the tokens that processors ban from an answer that has to be complete.

    Args:
        guard: The guard of this process.
        intake: The request.
        admitted: The processors that run for it.

    Returns:
        Token ids, or ``None`` if the answer need not be complete.

    Raises:
        RequestError: The request, or this server, cannot have the answer complete.
    """
    if not is_whole(guard, intake):
        return None
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
    if admitted is None:
        return frozenset()
    banned: set[int] = set()
    for link in admitted.servings:
        if _is_no_call_in_thoughts(link.params, guard):
            continue
        found = _banned_by(link.params, guard.server.vocab_size or 0)
        if found is None:
            named = link.flags.name if link.is_named else "a processor"
            raise _beside(named, "whose bans depend on the text, so no way to an end is sure")
        banned |= found
    return frozenset(banned)


def check_policy(guard: Guard) -> None:
    """Refuse a server on which answers cannot be complete, if its operator wants them to be.

    Raises:
        PolicyError: With the reason.
    """
    if guard.policy.whole_answers:
        try:
            _check_server(guard)
        except Unsupported as error:
            reason = str(error).partition(": ")[2]
            raise PolicyError(f"structured.whole_answers: {reason}") from None


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
