"""Structured answers that are complete at their limit: hooks on SGLang's grammars.

SGLang compiles a grammar in a thread of its own. The plans of a grammar are made in the same
thread, and the last of them are kept for later requests. A request gets
its row when its grammar is ready, and is refused there if the shortest complete answer is longer
than its limit. From then on, each fill of the grammar's mask narrows the row.

Nothing here raises in a fill: it would end the scheduler. An error ends the request.
"""

from __future__ import annotations

import logging
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp.builtins import ToolCallLimitLogitProcessor as Limit
from sglang_lp.closing.keeping import Keeping
from sglang_lp.closing.row import ClosingRow
from sglang_lp.closing.vocabulary import GrammarVocabulary
from sglang_lp.errors import RequestError, SglangLpError, Unsupported
from sglang_lp.faults import from_signal
from sglang_lp.params import WHOLE
from sglang_lp.policy.thinking import closing_tokens, with_answer_room
from sglang_lp.server.gate.coded import Coded
from sglang_lp.server.scheduler.closing_request import ending_of, leave
from sglang_lp.server.scheduler.endings import end_request
from sglang_lp.server.scheduler.reasons import add
from sglang_lp.wire.names import REPORT

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from sglang_lp._engine.history.arrivals import Arrivals
    from sglang_lp.closing.plans import Json, Plans
    from sglang_lp.server.gate.guard import Guard
    from sglang_lp.server.gate.whole_answers import WholeAnswer

logger = logging.getLogger(__name__)

#: Attribute of SGLang's request and of its grammars: how the request is closed.
_CLOSING = "sglang_lp_closing"

#: Attribute of the grammar of one request: its plans, or the words of their refusal.
_PLANS = "sglang_lp_plans"

#: Attribute of SGLang's grammar backend: the vocabulary.
_VOCABULARY = "sglang_lp_vocabulary"

#: What SGLang keeps in place of a grammar whose compilation took too long, for all later requests:
#: a client with many slow grammars could do that to a neighbour's.
_TIMED_OUT = "Grammar preprocessing timed out"

#: Most bytes of the plans that are kept for later requests.
_MOST_BYTES = 1 << 30


class _Made(NamedTuple):
    """The plans of a grammar without some tokens, or the words of their refusal.

    Attributes:
        plans: The plans or the words.
        nbytes: About the most bytes of the plans.
    """

    plans: Plans | str
    nbytes: int


class _Closing(NamedTuple):
    """How one request is closed.

    Attributes:
        req: SGLang's request.
        row: Narrows its row of the mask.
        thinking: SGLang's grammar that waits for the end of thinking, or ``None``.
        words: Number of 32-bit words of a row.
    """

    req: Any
    row: ClosingRow
    thinking: Any
    words: int

    @property
    def before(self) -> int:
        """Tokens of the answer that the grammar has not seen: those of its thinking."""
        if self.thinking is None or _covers_thinking(self.thinking):
            return 0
        return len(self.thinking._thinking_match_history)  # noqa: SLF001 - one entry a token


class Closings:
    """The closings of one scheduler. Its public methods are hooks.

    Args:
        guard: The guard of this process.
        arrivals: Reads the prompts of new requests.
    """

    def __init__(self, guard: Guard, arrivals: Arrivals) -> None:
        self._guard = guard
        self._arrivals = arrivals
        #: Banned tokens of the request whose grammar SGLang looks up, if its answer is led.
        self._banned: frozenset[int] | None = None
        #: By SGLang's key of the grammar and the banned tokens.
        self._kept: Keeping[_Made] = Keeping(_MOST_BYTES)

    def prepare(self, _result: None, xgrammar: Any, *_args: Any, **_kwargs: Any) -> None:
        """Give SGLang's grammar backend the operator's bound on blanks; compile what plans need."""
        found = _find_plans()
        if isinstance(found, str):
            logger.warning("sglang-lp: %s", found)
        structured = self._guard.policy.structured
        if structured is not None and xgrammar.max_whitespace_cnt is None:
            xgrammar.max_whitespace_cnt = structured.max_whitespace

    def process(self, original: Callable[..., bool], manager: Any, req: Any) -> bool:
        """Look up or compile the grammar of a request, with its plans if it needs them."""
        ending = ending_of(req)
        self._banned = None if ending is None or ending.hindrance else ending.banned
        try:
            return original(manager, req)
        finally:
            self._banned = None

    def look_up(
        self,
        original: Callable[..., tuple[Any, bool]],
        backend: Any,
        key: tuple[str, str],
        require_reasoning: bool,  # noqa: FBT001 - SGLang's
    ) -> tuple[Any | Future[Any], bool]:
        """Return a grammar with its plans; or a future of it, and that it was not known."""
        if getattr(backend.cache.get(key), "error_message", None) == _TIMED_OUT:
            del backend.cache[key]
        banned = self._banned
        if banned is None:
            return original(backend, key, require_reasoning)
        known = backend.cache.get(key)
        kept = self._kept.find((key, banned))
        if known and (_inner(known) is None or kept is not None):
            found, is_known = original(backend, key, require_reasoning)
            if kept is not None:
                _give(found, kept)
            return found, is_known

        def compile_() -> Any:
            if known:
                made = known.copy()
                made.maybe_init_reasoning(require_reasoning)
            else:
                made = backend._init_value_dispatch(key, require_reasoning)  # noqa: SLF001
            inner = _inner(made)
            if inner is not None:
                make = partial(_plan, backend, inner.ctx, key[0], banned)
                _give(made, self._kept.get((key, banned), make))
            return made

        return backend.executor.submit(compile_), False

    def arm(self, _result: None, _manager: Any, req: Any) -> None:
        """Give a request whose grammar is ready its row, or refuse the request."""
        ending = ending_of(req)
        if ending is None or ending.hindrance or req.finished() or hasattr(req, _CLOSING):
            return
        if not req.sampling_params.max_new_tokens:
            return  # it fills the cache for copies of a request
        inner = _inner(req.grammar)
        try:
            self._arm(req, inner, ending)
        except RequestError as error:
            if isinstance(error, Unsupported) and not ending.is_asked:
                leave(req, str(error))
                return
            coded = Coded(f"{WHOLE}: {error}", error.code, WHOLE, by_client=True)
            end_request(req, coded.as_error(), begun=False)
        except Exception as error:
            logger.exception("sglang-lp: a structured answer cannot be completed; it ends here")
            end_request(req, SglangLpError(str(error)))

    def _arm(self, req: Any, inner: Any, ending: WholeAnswer) -> None:
        plans = getattr(inner, _PLANS, None)
        if inner is None:
            if type(req.grammar).__name__ == "InvalidGrammarObject":
                return  # SGLang refuses the request
            raise Unsupported("expected a grammar of xgrammar's, got another; leave it out")
        if isinstance(plans, str):
            raise Unsupported(f"{plans}; leave it out, or send another grammar")
        if plans is None:
            raise SglangLpError("internal error of sglang-lp: a grammar came without its plans")
        limit = req.sampling_params.max_new_tokens
        thinking = req.grammar if req.grammar is not inner else None
        least = len(plans.shortest)
        if req.sampling_params.min_new_tokens > least:
            raise Unsupported(
                f"expected min_new_tokens of at most {least}, the tokens of the shortest complete "
                f"answer, got {req.sampling_params.min_new_tokens}, which bans its end"
            )
        if not all(
            Limit.allows(one, self._guard.server.tokenizer, plans.shortest) for one in ending.limits
        ):
            raise Unsupported(
                "expected a grammar whose shortest answer has no more tool calls than the request "
                "allows, got one with more; allow more, or send another grammar"
            )
        end, closing_by_budget = 0, self._leave_room(req, least)
        if thinking is not None and thinking._is_thinking() and not _covers_thinking(thinking):  # noqa: SLF001
            end = max(len(thinking.think_end_ids), closing_by_budget)
        if limit < least + end:
            also = f" and the {end} that end its thinking" if end else ""
            raise RequestError(
                f"expected max_new_tokens of {least + end} or more, the tokens of the shortest "
                f"complete answer with its end token{also}, got {limit}"
            )
        row, words = ClosingRow(plans, limit), -(-plans.vocabulary.size // 32)
        waits = None if thinking is None else weakref.proxy(thinking)
        closing = _Closing(weakref.proxy(req), row, waits, words)
        for one in (req, inner, *(() if thinking is None else (thinking,))):
            setattr(one, _CLOSING, closing)

    def _leave_room(self, req: Any, tokens: int) -> int:
        """Have the thinking budgets of a request leave room for the shortest complete answer.

        Args:
            req: SGLang's request, before its first step.
            tokens: Tokens of that answer.

        Returns:
            Tokens with which the budgets close a block; 0 without a budget.

        Raises:
            RequestError: The shortest answer is shorter than the request asks for.
        """
        (row,) = rows_of([req.sampling_params.custom_params])
        if row is None:
            return 0
        limit = req.sampling_params.max_new_tokens + row.resumed
        servings = [with_answer_room(one, tokens, limit) for one in row.servings]
        if all(one is other for one, other in zip(servings, row.servings, strict=True)):
            return 0
        changed = attach_row(req.sampling_params.custom_params, servings, row.host)
        self._arrivals.start(changed, None)
        return max(map(closing_tokens, servings))


def narrow(_result: None, grammar: Any, vocab_mask: Any, idx: int) -> None:
    """Narrow a row of the mask that xgrammar has filled: a hook after its fill."""
    closing: _Closing | None = getattr(grammar, _CLOSING, None)
    if closing is None:
        return
    accepted, before = grammar.accepted_tokens, closing.before
    if closing.row.sleeps(len(accepted), before):
        return
    try:
        closing.row.narrow(vocab_mask[idx].numpy()[: closing.words], accepted, before)
    except BaseException as error:  # noqa: BLE001 - it would end the scheduler
        _fail(closing.req, error)


def close_thinking(_result: None, grammar: Any, vocab_mask: Any, idx: int) -> None:
    """Leave only the end of thinking once no more tokens are left than it and the answer need.

    Until then no end token of the model is left: the answer would end without its text.
    A hook after the fill of the grammar that waits for the end of thinking.
    """
    closing: _Closing | None = getattr(grammar, _CLOSING, None)
    if closing is None or not grammar._is_thinking() or _covers_thinking(grammar):  # noqa: SLF001
        return
    try:
        row, end = closing.row, grammar.think_end_ids
        mask = vocab_mask[idx].numpy()[: closing.words].view("uint32")
        mask &= ~row.plans.vocabulary.stop_row
        if row.limit - closing.before > len(end) + len(row.plans.shortest):
            return
        token = end[grammar._matched_think_end_tokens]  # noqa: SLF001
        mask[:] = 0
        mask[token >> 5] = 1 << (token & 31)
        row.lead(closing.before)
    except BaseException as error:  # noqa: BLE001 - it would end the scheduler
        _fail(closing.req, error)


def rewind(_result: None, grammar: Any, k: int) -> None:  # noqa: ARG001 - SGLang's
    """Take back the positions of a draft: a hook after a grammar's rollback."""
    closing: _Closing | None = getattr(grammar, _CLOSING, None)
    if closing is not None:
        count = len(getattr(grammar, "grammar", grammar).accepted_tokens)
        closing.row.rewind(count, closing.before + count)


def tell(req: Any) -> None:
    """Write into the finish reason of a request from which token on its answer was led, or why not.

    Args:
        req: SGLang's finished request.
    """
    closing: _Closing | None = getattr(req, _CLOSING, None)
    ending = ending_of(req)
    report: dict[str, Any]
    if ending is not None and ending.hindrance:
        report = {"led_from": None, "not_led": ending.hindrance}
    elif closing is not None:
        count, row = len(req.output_ids), closing.row
        # An answer that was aborted may end before the token.
        report = {"led_from": row.led if row.led is not None and row.led < count else None}
        if row.given_up is not None and row.given_up <= count:
            report["given_up_at"] = row.given_up
    else:
        return
    add(req.finished_reason, {WHOLE: orjson.dumps(report).decode()})


def tell_alone(original: Callable[[Any, int], None], req: Any, new_accepted_len: int) -> None:
    """Decide whether a request without processors ends, and write its report."""
    ending = ending_of(req)
    if ending is None or req.finished():
        return original(req, new_accepted_len)
    original(req, new_accepted_len)
    if req.finished() and (ending.hindrance or hasattr(req, _CLOSING)):
        report = {"processors": [], "policy": ending.policy}
        add(req.finished_reason, {REPORT: orjson.dumps(report).decode()})
        tell(req)
    return None


def _covers_thinking(grammar: Any) -> bool:
    """Tell whether a grammar describes the thinking as well; SGLang 0.5.23 and newer have such."""
    return bool(getattr(grammar, "reasoning_in_grammar", False))


def _inner(grammar: Any) -> Any:
    """Return the grammar of xgrammar's in one of SGLang's, or ``None``."""
    inner = getattr(grammar, "grammar", grammar)
    return inner if type(inner).__name__ == "XGrammarGrammar" else None


def _give(grammar: Any, kept: _Made) -> None:
    """Give the grammar of one request its plans; SGLang keeps a copy without them."""
    inner = _inner(grammar)
    if inner is not None:
        setattr(inner, _PLANS, kept.plans)


def _plan(backend: Any, compiled: Any, kind: str, banned: frozenset[int]) -> _Made:
    """Make the plans of a compiled grammar, in SGLang's thread for grammars."""
    vocabulary = _vocabulary_of(backend, compiled).without(banned)
    json: Json = "whole" if kind.startswith("json") else "none"
    if kind.startswith("structural_tag"):  # as the arguments of a tool call
        json = "parts"
    found = _find_plans()
    plans = found if isinstance(found, str) else found.of_compiled(compiled, vocabulary, json=json)
    return _Made(plans, len(plans) if isinstance(plans, str) else plans.nbytes)


def _find_plans() -> type[Plans] | str:
    """Return the class of plans, or why there is none: it is compiled when it is imported first."""
    try:
        from sglang_lp.closing.plans import Plans
    except Exception as error:  # noqa: BLE001 - whatever numba lacks on this machine
        return f"this server cannot complete answers, numba failed: {type(error).__name__}: {error}"
    return Plans


def _vocabulary_of(backend: Any, compiled: Any) -> GrammarVocabulary:
    """Return the vocabulary of SGLang's grammar backend, made once, from one of its grammars."""
    xgrammar = getattr(backend, "grammar_backend", backend)
    found: GrammarVocabulary | None = getattr(xgrammar, _VOCABULARY, None)
    if found is None:
        stops = xgrammar.override_stop_tokens
        stops = [stops] if isinstance(stops, int) else stops
        found = GrammarVocabulary.of_tokenizer(compiled.tokenizer_info, stops)
        setattr(xgrammar, _VOCABULARY, found)
    return found


def _fail(req: Any, error: BaseException) -> None:
    """End a request whose row could not be narrowed."""
    if from_signal(error):
        raise error
    logger.error("sglang-lp: a structured answer cannot be completed; it ends", exc_info=error)
    end_request(req)
