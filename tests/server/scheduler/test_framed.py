"""Framed grammars (SGLang's ``answer_frame``): their close of a thinking message, and a budget's.

No model of the format runs here: the tests use xgrammar's matcher of the frame and SGLang's parser
without a server.
"""

import re

import orjson
import pytest
import torch
import xgrammar
from sglang.srt.parser import answer_frame
from sglang.srt.parser.inkling_tokenizer import INKLING_SPECIAL_TOKEN_IDS
from sglang.srt.parser.reasoning_parser import ReasoningParser

from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.closing.automaton import read
from sglang_lp.errors import Unsupported
from sglang_lp.testing import run

#: One token for each byte, then the controls.
NAMES = [*INKLING_SPECIAL_TOKEN_IDS]
IDS = {name: 256 + place for place, name in enumerate(NAMES)}
SPELLED = [*(bytes((i,)) for i in range(256)), *(name.encode() for name in NAMES)]
START, END = IDS["<|content_thinking|>"], IDS["<|end_message|>"]
STOP = IDS["<|content_model_end_sampling|>"]
CONTENT = {"type": "json_schema", "json_schema": {"enum": ["ab", "c"]}}
CLOSING = tuple(b"So: ")


@pytest.fixture
def compiled(monkeypatch):
    """Return a function that compiles a frame for a number of tokens of thought."""
    for name, token_id in IDS.items():
        monkeypatch.setitem(INKLING_SPECIAL_TOKEN_IDS, name, token_id)
    raw = xgrammar.VocabType.RAW
    info = xgrammar.TokenizerInfo(SPELLED, raw, stop_token_ids=[STOP])
    compiler = xgrammar.GrammarCompiler(info, max_threads=1)
    frame = answer_frame.InklingAnswerFrame()

    def compile_(most):
        tag = frame.structural_tag(CONTENT, in_answer_block=False, max_think_tokens=most)
        return compiler.compile_structural_tag(orjson.dumps(tag).decode())

    return compile_


def play(context, budget, **more):
    """Return the tokens of an answer whose model would think for ever."""
    matcher = xgrammar.GrammarMatcher(context)
    mask = xgrammar.allocate_token_bitmask(1, len(SPELLED))
    fed = []

    def model(token_ids):
        for token in token_ids[len(fed) + 1 :] if not matcher.is_terminated() else ():
            assert matcher.accept_token(token), (SPELLED[token], fed)
            fed.append(token)
        if matcher.is_terminated():
            return [0.0] * len(SPELLED)
        matcher.fill_next_token_bitmask(mask)
        logits = torch.zeros(1, len(SPELLED))
        logits[0, ord("x")] = 2.0
        logits[0, START] = 1.0
        xgrammar.apply_token_bitmask_inplace(logits, mask)
        return logits[0].tolist()

    params = {
        "thinking_start_token_id": START,
        "thinking_end_token_id": END,
        "thinking_budget": budget,
        **more,
    }
    return run(
        ThinkingBudgetLogitProcessor, params, [0], model, steps=80, vocab_size=len(SPELLED)
    ).token_ids


def parse(token_ids):
    text = b"".join(SPELLED[one] for one in token_ids).decode()
    text = text.partition("<|content_model_end_sampling|>")[0]
    return ReasoningParser("inkling", stream_reasoning=False).parse_non_stream(text)


@pytest.mark.parametrize("budget", [1, 2, 7])
@pytest.mark.parametrize("closing", [(), CLOSING])
def test_a_budget_closes_a_framed_thinking_message_where_the_frame_goes_on(
    compiled, budget, closing
):
    thoughts, content = parse(play(compiled(-1), budget, closing_token_ids=closing))
    assert thoughts == "x" * budget + bytes(closing).decode()
    assert orjson.loads(content) in {"ab", "c"}


@pytest.mark.parametrize("most", [1, 2, 7])
def test_the_frame_and_the_budget_close_at_the_same_token(compiled, most):
    assert parse(play(compiled(most), 50)) == parse(play(compiled(-1), most))
    assert parse(play(compiled(most), most)) == parse(play(compiled(-1), most))
    # In strict thinking SGLang is told to leave room for the message.
    said = {"budget": most, "closing_token_ids": CLOSING}
    room = compiled(most + len(CLOSING))
    assert parse(play(room, **said)) == parse(play(compiled(-1), **said))


def test_a_framed_answer_cannot_be_completed_and_says_so(compiled):
    with pytest.raises(Unsupported, match=re.escape("as a framed answer does")):
        read(compiled(-1))
