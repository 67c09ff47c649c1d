"""Classes with only SGLang's interface, allowed by an operator."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from sglang_lp._engine.history.attached import attach_row
from sglang_lp.adapters import as_processor
from sglang_lp.links import Serving
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.sampling import Steps


class Plus:
    """Adds one to every logit."""

    def __call__(self, logits: torch.Tensor, _params: list[dict[str, Any]]) -> torch.Tensor:
        return logits + 1


class Half:
    """Halves every logit, and reads a parameter of each row."""

    def __call__(self, logits: torch.Tensor, params: list[dict[str, Any]]) -> torch.Tensor:
        return logits / torch.tensor([[row["by"]] for row in params])


class Narrow:
    """Returns one column too few."""

    def __call__(self, logits: torch.Tensor, _params: list[dict[str, Any]]) -> torch.Tensor:
        return logits[:, 1:]


def request(processor: Any, **params: Any) -> dict[str, Any]:
    req = SimpleNamespace(origin_input_ids=[1], output_ids=[], to_finish=None)
    custom_params = {**params, "__req__": req}
    attach_row(custom_params, [Serving(as_processor(processor)(), None)])
    return custom_params


def apply(logits: torch.Tensor, custom_params: list[Any]) -> None:
    Steps(PendingResults()).run(logits, SimpleNamespace(custom_params=custom_params, grammars=None))


def test_two_foreign_classes_of_one_batch_each_get_their_own_rows() -> None:
    logits = torch.arange(8.0).reshape(4, 2)
    before = logits.clone()

    apply(logits, [request(Plus), request(Half, by=2.0), None, request(Plus)])

    assert torch.equal(logits[[0, 3]], before[[0, 3]] + 1)
    assert torch.equal(logits[1], before[1] / 2)
    assert torch.equal(logits[2], before[2])


def test_a_wrong_shape_ends_the_requests_of_that_class_and_no_other() -> None:
    logits = torch.arange(6.0).reshape(3, 2)
    before = logits.clone()
    wrong, right = request(Narrow), request(Plus)

    apply(logits, [wrong, right, None])

    assert "Narrow" in wrong["__req__"].to_finish.message
    assert right["__req__"].to_finish is None
    assert torch.equal(logits[0], before[0])
    assert torch.equal(logits[1], before[1] + 1)
