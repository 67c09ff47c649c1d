"""Nothing that a request holds raises in the scheduler's thread."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sglang_lp._engine.history.attached import attach_row, rows_of
from sglang_lp.builtins import DisallowedTokensLogitsProcessor
from sglang_lp.links import Serving
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.sampling import Steps


@pytest.mark.parametrize("sent", [[1], "text", 7, (1,), {"any": "thing"}, {}, None])
def test_whatever_a_neighbour_without_a_processor_sent_is_left_alone(sent: Any) -> None:
    req = SimpleNamespace(origin_input_ids=[1], output_ids=[], to_finish=None)
    custom_params = {"token_ids": [0], "__req__": req}
    processor = DisallowedTokensLogitsProcessor()
    row = attach_row(custom_params, [Serving(processor, processor.parse_params(custom_params))])
    logits = torch.zeros(2, 3)

    Steps(PendingResults()).run(
        logits, SimpleNamespace(custom_params=[sent, custom_params], grammars=None)
    )

    assert rows_of([sent, custom_params]) == [None, row]
    assert logits.tolist() == [[0, 0, 0], [float("-inf"), 0, 0]]
    assert req.to_finish is None
