"""The states of a request's thinking: every row of the table, and no other way."""

import pytest

from sglang_lp.builtins.thinking.finder import BlockTokens, finder_for
from sglang_lp.builtins.thinking.progress import Progress, ThinkingState
from sglang_lp.served_model import ReasoningFormat
from sglang_lp.text.vocabulary import Vocabulary

VOCABULARY = Vocabulary([b"x", b"<a>", b"</a>", b"<t>", b"</t>"])
TEXT, START, END, TOOL, TOOL_END = range(5)
#: For each state tokens that lead there, and whether the answer begins inside.
WAYS = {
    ThinkingState.OUTSIDE: ([], False),
    ThinkingState.OPENING: ([], True),
    ThinkingState.INSIDE: ([START], False),
    ThinkingState.TOOL_CALL: ([START, TEXT, TOOL], False),
    ThinkingState.INSIDE_CALL: ([START, TEXT, TOOL, START], False),
}
#: The table; a token that is not listed leaves the state as it is.
TABLE = {
    (ThinkingState.OUTSIDE, START): ThinkingState.INSIDE,
    (ThinkingState.OPENING, START): ThinkingState.INSIDE,
    (ThinkingState.OPENING, TEXT): ThinkingState.INSIDE,
    (ThinkingState.OPENING, END): ThinkingState.OUTSIDE,
    (ThinkingState.OPENING, TOOL): ThinkingState.TOOL_CALL,
    (ThinkingState.INSIDE, END): ThinkingState.OUTSIDE,
    (ThinkingState.INSIDE, TOOL): ThinkingState.TOOL_CALL,
    (ThinkingState.TOOL_CALL, START): ThinkingState.INSIDE_CALL,
    (ThinkingState.TOOL_CALL, TOOL_END): ThinkingState.INSIDE,
    (ThinkingState.INSIDE_CALL, END): ThinkingState.TOOL_CALL,
    (ThinkingState.INSIDE_CALL, TOOL): ThinkingState.TOOL_CALL,
    (ThinkingState.INSIDE_CALL, TOOL_END): ThinkingState.INSIDE,
}


def progress_in(state: ThinkingState, *, tool_end: str = "</t>") -> Progress:
    form = ReasoningFormat("<a>", "</a>", tool_starts=("<t>",), tool_end=tool_end)
    tokens, inside = WAYS[state]
    progress = Progress(
        finder_for(BlockTokens((START,), (END,)), form, VOCABULARY), None, [], inside=inside
    )
    for token in tokens:
        progress.read([token])
    assert progress.state is state
    return progress


@pytest.mark.parametrize("token", range(5))
@pytest.mark.parametrize("state", ThinkingState)
def test_a_token_leads_to_the_state_of_the_table(state, token):
    progress = progress_in(state)

    progress.read([token])

    assert progress.state is TABLE.get((state, token), state)
    assert progress.state.is_open == (progress.opened >= 0)


@pytest.mark.parametrize(
    ("state", "token", "tool_end", "inside"),
    [
        (ThinkingState.OPENING, START, "</t>", 0),
        (ThinkingState.OPENING, TEXT, "</t>", 1),
        (ThinkingState.INSIDE, START, "</t>", 1),
        (ThinkingState.INSIDE, TOOL, "</t>", 0),
        (ThinkingState.TOOL_CALL, TOOL_END, "</t>", 1),
        (ThinkingState.TOOL_CALL, END, "</t>", 1),
        (ThinkingState.TOOL_CALL, END, "", 0),
        (ThinkingState.INSIDE_CALL, END, "</t>", 0),
        (ThinkingState.INSIDE_CALL, TOOL, "</t>", 1),
        (ThinkingState.INSIDE_CALL, TOOL_END, "</t>", 2),
    ],
)
def test_the_count_goes_on_as_the_table_says(state, token, tool_end, inside):
    progress = progress_in(state, tool_end=tool_end)

    progress.read([token])

    assert progress.inside == inside


@pytest.mark.parametrize("state", ThinkingState)
def test_a_debugger_shows_the_state(state):
    assert repr(progress_in(state)).startswith(f"<Progress {state.label} after")
