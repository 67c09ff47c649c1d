"""Clients at once whose request ids begin each other's: one hangs up or aborts, the others stay."""

from __future__ import annotations

from hypothesis import strategies as st

from hunt.sent import GENERATE, Body, Sent
from hunt.values import QUESTIONS, chance, seldom

__all__ = ["crossing"]

ABORT = "/abort_request"
#: Tokens of an answer that lasts longer than SGLang takes to miss a client, which is two seconds.
_LONG = 800
_HEX = "0123456789abcdef"


@st.composite
def crossing(draw: st.DrawFn) -> list[Sent]:
    """Draw two or three requests with ids that are related."""
    whole = draw(st.text(_HEX, min_size=6, max_size=12))
    begin = whole[: draw(st.sampled_from([1, 1, 2, 4]))]
    own = draw(seldom(st.just(begin), st.just(whole), 4))
    leaver = Sent(GENERATE, _long(draw, own) | {"stream": True}, draw(st.sampled_from([1, 3])))
    stayers = [Sent(GENERATE, _long(draw, whole))]
    if draw(chance(3)):
        stayers.append(Sent(GENERATE, _long(draw, draw(st.sampled_from([begin, whole + "0"])))))
    if draw(chance(4)):
        aborted = draw(st.sampled_from([begin, begin[:1], ""]))
        leaver = Sent(ABORT, {"rid": aborted}, wait=0.3)
    return draw(st.permutations([leaver, *stayers]))


def _long(draw: st.DrawFn, rid: str) -> Body:
    return {
        "text": draw(st.sampled_from(QUESTIONS)),
        "rid": rid,
        "stream": draw(st.booleans()),
        "sampling_params": {"temperature": 0, "ignore_eos": True, "max_new_tokens": _LONG},
    }
