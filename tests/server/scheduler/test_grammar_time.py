"""A grammar that takes the scheduler's time ends its own request."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import xgrammar
from sglang.srt.constrained.xgrammar_backend import XGrammarGrammar

from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.scheduler import grammar_time
from sglang_lp.server.scheduler.grammar_time import EACH, MOST, GrammarTime
from sglang_lp.trust import Policy
from support.grammars import SPELLED, compile_grammar


class Request:
    """As much of SGLang's request as the hook reads."""

    def __init__(self, grammar):
        self.grammar = grammar
        self.sampling_params = SimpleNamespace(json_schema=None, regex="a", ebnf=None)
        self.output_ids = []
        self.to_finish = self.finished_reason = None

    def finished(self):
        return self.finished_reason is not None


@pytest.fixture
def guard():
    guard = Guard(Policy.default())
    guard.server.ranks = 1
    return guard


def write(guard, pattern, text):
    """Write a text token by token, and return its request and the number of tokens it took."""
    context = compile_grammar("regex", pattern).context
    grammar = XGrammarGrammar(xgrammar.GrammarMatcher(context), len(SPELLED), context, None)
    mask, req = xgrammar.allocate_token_bitmask(1, len(SPELLED)), Request(grammar)
    hook = GrammarTime(guard)
    for number, letter in enumerate(text):
        grammar_time.fill(XGrammarGrammar.fill_vocab_mask, grammar, mask, 0)
        grammar_time.accept(XGrammarGrammar.accept_token, grammar, SPELLED.index(letter.encode()))
        hook.end(None, req)
        if req.to_finish is not None:
            return req, number
    return req, len(text)


# 264 tokens of the first took 10 s, each more than the one before.
@pytest.mark.parametrize("pattern", [r"(a+a+)+b", r"((a+)+)+b", r"(a?a?a?)+b"])
def test_a_grammar_with_many_ways_to_read_a_text_ends_its_request(guard, pattern):
    req, taken = write(guard, pattern, "a" * 2_000)

    assert taken < 2_000
    assert req.to_finish.status_code == 400
    assert req.to_finish.message.startswith("regex: expected a grammar that takes at most 1 ms")


def test_a_grammar_with_one_way_to_read_a_text_is_not_counted(guard):
    req, taken = write(guard, r"(a+b)*c", "aaab" * 500)

    assert (req.to_finish, taken) == (None, 2_000)
    assert getattr(req.grammar, "sglang_lp_counted", 0.0) < MOST / 10


def test_ranks_that_would_have_to_agree_end_no_request(guard):
    guard.server.ranks = 2
    grammar = SimpleNamespace(sglang_lp_counted=MOST * 2)
    req = Request(grammar)
    GrammarTime(guard).end(None, req)

    assert req.to_finish is None


@pytest.mark.parametrize("wrapped", [False, True])
def test_time_above_the_bound_is_counted_and_time_below_it_makes_up_for_it(
    guard, monkeypatch, wrapped
):
    clock = [0.0]
    for name in ("thread_time", "perf_counter"):
        monkeypatch.setattr(grammar_time, name, lambda: clock[0])

    def takes(seconds):
        def fill(*_args):
            clock[0] += seconds

        return fill

    grammar = SimpleNamespace()
    req = Request(SimpleNamespace(grammar=grammar) if wrapped else grammar)
    hook = GrammarTime(guard)
    grammar_time.fill(takes(MOST * 2), grammar, None, 0)  # the first slow call is not counted
    grammar_time.fill(takes(MOST), grammar, None, 0)
    for _ in range(3):
        grammar_time.accept(takes(EACH * 2), grammar, 5)
        grammar_time.fill(takes(0), grammar, None, 0)
    hook.end(None, req)
    assert req.to_finish is None
    grammar_time.fill(takes(EACH * 2.5), grammar, None, 0)
    hook.end(None, req)
    assert req.to_finish.message.startswith("regex: ")


def test_what_has_ended_ends_once(guard):
    req = Request(SimpleNamespace(sglang_lp_counted=MOST * 2))
    req.finished_reason = "stop"
    GrammarTime(guard).end(None, req)

    assert req.to_finish is None
