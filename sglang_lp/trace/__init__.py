"""The edits of a processor at each token of an answer, replayed from the tokens.

A processor's state is a function of the token history, so nothing needs to be recorded while an
answer is generated. The replay runs the real engine over the answer, one step at a time.

>>> found = trace_answer(processor, read_exchange(request, answer, tokenizer), served)
>>> Path("trace.html").write_text(write_page(found))
"""

from __future__ import annotations

from sglang_lp.trace.answers import Exchange, Likely, read_exchange
from sglang_lp.trace.lines import write_lines
from sglang_lp.trace.page import write_page
from sglang_lp.trace.replay import Edit, What
from sglang_lp.trace.report import Block, Token, Trace, check_packages, trace_answer

__all__ = [
    "Block",
    "Edit",
    "Exchange",
    "Likely",
    "Token",
    "Trace",
    "What",
    "check_packages",
    "read_exchange",
    "trace_answer",
    "write_lines",
    "write_page",
]
