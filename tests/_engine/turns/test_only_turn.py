"""A row of one turn, which is asked in a shorter way, does what any row does."""

from unittest.mock import patch

import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp._engine.history.drafts import Drafts
from sglang_lp._engine.turns.turn_list import TurnList
from sglang_lp.params import Parameters
from sglang_lp.processor import LogitProcessor
from sglang_lp.testing import Played
from support.examples import examples
from support.fakes.served_batch import ServedBatch

VOCAB = 8

#: What a processor may do at a position.
ACTIONS = {
    "nothing": lambda _request, _edits: None,
    "ban": lambda _request, edits: edits.ban([0]),
    "force": lambda _request, edits: edits.force(2),
    "always": lambda request, edits: edits.always().bias([3], 1 + request.position),
    "never another": lambda request, edits: edits.always().ban([request.position % VOCAB]),
    "hold": lambda request, edits: (edits.allow_only([4]), edits.hold_until(request.position + 3)),
    "sleep": lambda request, edits: (edits.ban([5]), edits.wake_at(request.position + 2)),
    "rest": lambda _request, edits: edits.rest(),
    "ask": lambda request, edits: edits.force_if(request.is_among_top([6], 2), 6).ban([6]),
    "hold an answer": lambda request, edits: (
        edits.force_if(request.is_among_top([6], 2), 6),
        edits.hold_until(request.position + 2),
    ),
    "write": lambda request, _edits: request.logits.mul_(2),
    "finish": lambda _request, edits: edits.finish("done"),
    "fail": lambda _request, _edits: {}["missing"],
}
NAMES = [*ACTIONS]


class Scripted(LogitProcessor):
    class Params(Parameters, frozen=True):
        script: tuple[int, ...]

    def edit(self, request, edits):
        script = request.params.script
        for action in divmod(script[request.position % len(script)], len(NAMES)):
            ACTIONS[NAMES[action]](request, edits)


def found(script, steps):
    """Return the logits of each step, and how the request ended and was edited."""
    batch, request = ServedBatch(), Played(Scripted, {"script": script}, [1], vocab_size=VOCAB)
    seen = []
    for width, count in steps:

        def drafts(width=width):
            links = [*range(1, width), -1]
            return Drafts(width, [[1] * width], [links], [[-1] * width])

        logits = torch.linspace(0, 1, width * VOCAB).sin().view(width, VOCAB).clone()
        batch.run(logits, [request.custom_params], width=width, drafts=drafts)
        end = request.source.to_finish  # an error, or a finish reason of SGLang's
        seen.append((logits.tolist(), str(end.to_json() if hasattr(end, "to_json") else end)))
        if end is None:
            for _ in range(min(width, count)):
                request.source.append(1)
    log = request.row.edit_log
    log.finish(request.output)
    return seen, log.report(0, len(request.output))


@examples(4)
@given(
    st.lists(st.integers(0, len(NAMES) ** 2 - 1), min_size=1, max_size=6),
    st.lists(st.tuples(st.sampled_from([1, 1, 2, 4]), st.integers(1, 4)), max_size=12),
)
def test_a_row_of_one_turn_edits_logs_and_ends_as_if_it_had_several(script, steps):
    with patch.object(TurnList, "_find_only", return_value=None):
        expected = found(script, steps)

    assert found(script, steps) == expected
