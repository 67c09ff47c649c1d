"""Hooks on SGLang's grammars: a row that is narrowed, and what happens where it cannot be."""

import sys
from concurrent.futures import Future
from types import SimpleNamespace

import orjson
import pytest
import torch
import xgrammar
from sglang.srt.constrained.base_grammar_backend import BaseGrammarBackend, InvalidGrammarObject
from sglang.srt.constrained.grammar_manager import GrammarManager
from sglang.srt.constrained.reasoner_grammar_backend import ReasonerGrammarObject
from sglang.srt.constrained.xgrammar_backend import XGrammarGrammar
from sglang.srt.sampling.sampling_params import SamplingParams

from sglang_lp._engine.history.arrivals import Arrivals
from sglang_lp.builtins import ToolCallLimitLogitProcessor
from sglang_lp.closing.automaton import read
from sglang_lp.closing.plans import Plans
from sglang_lp.closing.vocabulary import GrammarVocabulary
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.gate.whole_answers import WholeAnswer
from sglang_lp.server.scheduler import closing
from sglang_lp.server.scheduler.closing_request import ask_for_end
from sglang_lp.text.vocabulary import vocabulary_of
from sglang_lp.trust import Policy
from support.grammars import END, SPELLED, Compiled, compile_grammar
from support.models.vocabularies import one_token_a_byte

ASKED = WholeAnswer("fingerprint", is_asked=True)
THINK_END = (SPELLED.index(b"]"), SPELLED.index(b"]"))


class Request:
    """As much of SGLang's request as the hooks read."""

    def __init__(self, grammar, limit, **sampling):
        self.grammar = grammar
        self.sampling_params = SamplingParams(max_new_tokens=limit, **sampling)
        self.output_ids = []
        self.to_finish = self.finished_reason = None
        self.refusal = None

    def finished(self):
        return self.finished_reason is not None

    def set_finish_with_abort(self, *said):
        from sglang.srt.managers.schedule_batch import FINISH_ABORT

        self.refusal = said
        self.to_finish = FINISH_ABORT(*said)


@pytest.fixture
def closings():
    return closing.Closings(Guard(Policy.default()), Arrivals())


@pytest.fixture
def compiled():
    return compile_grammar("regex", "a+bb")


def grammar_of(compiled):
    matcher = xgrammar.GrammarMatcher(compiled.context)
    grammar = XGrammarGrammar(matcher, len(SPELLED), compiled.context, None)
    grammar.sglang_lp_plans = compiled.plans
    return grammar


def armed(closings, grammar, limit, ending=ASKED, **sampling):
    req = Request(grammar, limit, **sampling)
    ask_for_end(req, ending)
    closings.arm(None, None, req)
    return req


def allowed(grammar, *, thinks=False):
    mask = xgrammar.allocate_token_bitmask(2, len(SPELLED))
    if thinks:
        grammar.fill_vocab_mask(mask, 1)
        closing.close_thinking(None, grammar, mask, 1)
    else:
        grammar.fill_vocab_mask(mask, 1)
        closing.narrow(None, grammar, mask, 1)
    assert (mask[0] == -1).all()
    bits = torch.tensor([[word >> i & 1 for i in range(32)] for word in mask[1].tolist()])
    return {SPELLED[i] for i in bits.flatten()[: len(SPELLED)].nonzero().flatten().tolist()}


def test_a_row_is_narrowed_while_the_room_is_short(closings, compiled):
    grammar = grammar_of(compiled)
    armed(closings, grammar, 6)
    assert allowed(grammar) == {b"a", b"aa", b"aaaa"}
    for _ in range(2):
        grammar.accept_token(SPELLED.index(b"a"))
    assert allowed(grammar) == {b"a", b"aa", b"aaaa", b"b"}
    grammar.accept_token(SPELLED.index(b"a"))
    assert allowed(grammar) == {b"b"}
    grammar.rollback(1)
    closing.rewind(None, grammar, 1)
    assert allowed(grammar) == {b"a", b"aa", b"aaaa", b"b"}


def test_a_limit_that_is_too_short_is_refused_with_the_number(closings, compiled):
    req = armed(closings, grammar_of(compiled), 3)
    assert req.refusal[1] == 400
    assert "max_new_tokens of 4 or more" in req.refusal[0]
    assert req.to_finish.to_json()["sglang_lp_code"] == "invalid_request"
    assert armed(closings, grammar_of(compiled), 4).refusal is None
    assert armed(closings, grammar_of(compiled), 0).refusal is None  # it fills the cache


def test_a_minimum_above_the_shortest_answer_is_refused(closings, compiled):
    assert armed(closings, grammar_of(compiled), 40, min_new_tokens=4).refusal is None
    assert (
        "min_new_tokens" in armed(closings, grammar_of(compiled), 40, min_new_tokens=5).refusal[0]
    )


def test_a_fill_that_fails_ends_its_request_and_no_other(closings, compiled, monkeypatch):
    grammar = grammar_of(compiled)
    req = armed(closings, grammar, 6)
    monkeypatch.setattr(compiled.plans, "fitting", None)
    grammar.accepted_tokens = [SPELLED.index(b"a")] * 3
    assert allowed(grammar)  # nothing is raised
    assert req.to_finish.to_json()["status_code"] == 500


def test_a_grammar_that_timed_out_once_is_compiled_again(closings):
    class Backend(BaseGrammarBackend):
        def dispatch_json(self, key_string):
            return InvalidGrammarObject(f"no schema: {key_string}")

    def look_up(text):
        look = BaseGrammarBackend.get_cached_or_future_value
        return closings.look_up(look, backend, ("json", text), require_reasoning=False)

    # A manager whose queue has waited long enough.
    manager, backend = object.__new__(GrammarManager), Backend()
    manager.grammar_backend = backend
    manager.pp_rank, manager.pp_size, manager.grammar_sync_size = 0, 1, 1
    manager.SGLANG_GRAMMAR_POLL_INTERVAL = manager.SGLANG_GRAMMAR_MAX_POLL_ITERATIONS = 0
    req = Request(Future(), 40)
    req.grammar_key, req.grammar_wait_ct = ("json", "slow"), 0
    manager.grammar_queue = [req]
    assert manager.get_ready_grammar_requests() == [req]
    assert isinstance(backend.cache["json", "slow"], InvalidGrammarObject)

    future, is_known = look_up("slow")
    assert not is_known
    assert "no schema: slow" in future.result().error_message
    backend.set_cache(("json", "slow"), future.result())
    assert look_up("slow")[1]  # it cannot be compiled, and SGLang says so at once


def test_without_numba_an_answer_is_refused_and_a_server_starts(closings, compiled, monkeypatch):
    monkeypatch.setitem(sys.modules, "sglang_lp.closing.plans", None)
    closings.prepare(None, SimpleNamespace(max_whitespace_cnt=None))
    grammar = grammar_of(compiled)
    backend = SimpleNamespace(override_stop_tokens=[END])
    grammar.sglang_lp_plans = closing._plan(backend, compiled.context, "regex", frozenset()).plans
    assert "numba failed: ModuleNotFoundError" in armed(closings, grammar, 9).refusal[0]


def test_thinking_ends_while_the_shortest_answer_fits(closings, compiled):
    inner = grammar_of(compiled)
    grammar = ReasonerGrammarObject(inner, THINK_END)
    grammar.maybe_init_reasoning(reasoning=True)
    assert "of 6 or more" in armed(closings, grammar, 5).refusal[0]
    req = armed(closings, grammar, 9)
    some = SPELLED.index(b"zz")
    for _ in range(2):
        everything = allowed(grammar, thinks=True)
        assert len(everything) > 200
        assert SPELLED[END] not in everything
        grammar.accept_token(some)
    everything = allowed(grammar, thinks=True)
    assert b"zz" in everything
    grammar.accept_token(some)
    for token in THINK_END:
        assert allowed(grammar, thinks=True) == {SPELLED[token]}
        grammar.accept_token(token)
    for text, fitting in ((b"a", {b"a", b"aa", b"aaaa"}), (b"b", {b"b"}), (b"b", {b"b"})):
        assert allowed(inner) == fitting
        grammar.accept_token(SPELLED.index(text))
    req.output_ids = [0] * 9
    from sglang.srt.managers.schedule_batch import FINISH_LENGTH

    req.finished_reason = FINISH_LENGTH(9)
    closing.tell(req)
    assert orjson.loads(req.finished_reason.to_json()["whole_answer"]) == {"led_from": 3}


def test_a_row_goes_on_behind_tokens_of_another_server(closings, compiled):
    # A decode server gets the first token from the prefill server, where another row chose it; a
    # retracted request begins with all of its tokens.
    there, here = grammar_of(compiled), grammar_of(compiled)
    for grammar in (there, here):
        assert armed(closings, grammar, 6).refusal is None
    for text in (b"a", b"aa"):
        assert text in allowed(there)
        for grammar in (there, here):
            grammar.accept_token(SPELLED.index(text))
    assert allowed(here) == allowed(there) == {b"a", b"aa", b"aaaa", b"b"}


@pytest.mark.parametrize(("most", "fits"), [(1, False), (2, True)])
def test_a_limit_on_calls_allows_the_shortest_answer_or_it_is_not_led(closings, most, fits):
    tokenizer = closings._guard.server.tokenizer = one_token_a_byte("<end>")
    spelled = [*vocabulary_of(tokenizer).tokens[:256], b""]
    marks = {"tool_call_starts": ["<call>"], "tool_call_end": "</call>"}
    limit = ToolCallLimitLogitProcessor.parse_params({"max_tool_calls": most, **marks}, None)
    context = compile_grammar("regex", "(<call>a+</call>){2}").context
    plans = Plans(read(context), GrammarVocabulary(spelled, [256]), json="none")
    compiled = Compiled(context, plans)
    asked = armed(closings, grammar_of(compiled), 60, ASKED._replace(limits=(limit,)))
    by_operator = WholeAnswer("fingerprint", is_asked=False, limits=(limit,))
    left = armed(closings, grammar_of(compiled), 60, by_operator)
    assert left.refusal is None
    if fits:
        assert asked.refusal is None
    else:
        assert "no more tool calls than the request allows" in asked.refusal[0]
    from sglang.srt.managers.schedule_batch import FINISH_LENGTH

    left.finished_reason = FINISH_LENGTH(9)
    closing.tell(left)
    told = orjson.loads(left.finished_reason.to_json()["whole_answer"])
    assert told["led_from"] is None
    assert ("not_led" in told) is not fits
    if not fits:
        assert "tool calls" in told["not_led"]


def test_a_limit_that_is_too_short_is_refused_also_for_the_operator(closings, compiled):
    by_operator = WholeAnswer("fingerprint", is_asked=False)
    assert armed(closings, grammar_of(compiled), 3, by_operator).refusal[1] == 400
    left = armed(closings, grammar_of(compiled), 40, by_operator, min_new_tokens=5)
    assert left.refusal is None
    assert len(allowed(left.grammar)) > 2
