"""A verify step of speculative decoding as SGLang makes it, with a chain drafted for each request.

Needs torch, and of SGLang nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import add
from types import SimpleNamespace
from typing import Any

import torch

from benchmarks.cost.cases import VOCAB, Batch, Case
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.sampling import Steps
from sglang_lp.server.scheduler.sglang_host import SglangHost
from sglang_lp.server.scheduler.speculation import TreeSteps

__all__ = ["NODES", "VerifyStep"]

#: The newest token and four drafted ones.
NODES = 5
#: Tokens that a step commits, of which the last is no draft.
ACCEPTED = 3


class VerifyStep:
    """The verify steps of a batch whose newest result always waits, as with overlap scheduling.

    Args:
        case: The requests.
        device: Where logits and drafts are.
        nodes: Of each request: the newest token and drafted ones.

    Attributes:
        logits: Shape ``(rows * nodes, VOCAB)``.
        drafted: For each request the tokens of its nodes.
        waits: How often a step has waited for the pending result.
    """

    def __init__(self, case: Case, device: str = "cpu", nodes: int = NODES) -> None:
        pending = PendingResults()
        self.batch = Batch(case, lambda request: SglangHost(request, pending))
        for request in self.batch.requests:
            vars(request).update(inflight_middle_chunks=0, is_retracted=False, finished=_never)
        self.waits = 0
        self._nodes = nodes
        self.logits = torch.zeros(case.rows * self._nodes, VOCAB, device=device)
        self.drafted: list[list[int]] = []
        self._device = device
        steps = Steps(pending)
        steps.load_forms(None, SimpleNamespace(pp_group=SimpleNamespace(is_last_rank=True)))
        trees = TreeSteps(steps)
        self._capture, self._verify, self._end = trees.capture, trees.verify, steps.end_step
        self._waiting: Sequence[list[int]] = [[] for _ in self.batch.requests]
        self._ahead: Sequence[list[int]] = self.batch.coming(self._nodes - 1)
        self._queue: list[Any] = []
        pending.scheduler = SimpleNamespace(
            enable_overlap=True,
            result_queue=self._queue,
            spec_algorithm=SimpleNamespace(is_none=lambda: False),
        )
        self._links = (
            torch.tensor([[*range(1, self._nodes), -1]] * case.rows, device=device),
            torch.full((case.rows, self._nodes), -1, device=device),
        )
        self._sglangs = SimpleNamespace(
            reqs=self.batch.requests,
            sampling_info=self.batch.info,
            forward_mode=SimpleNamespace(is_idle=lambda: False, is_decode=lambda: True),
            has_grammar=False,
            spec_info=None,
        )
        self.commit()

    def commit(self) -> None:
        """Let SGLang process the pending result, make the next result, and draft anew.

        Drafts are the model's next tokens: a loop also loops in a draft.
        """
        for request, token_ids in zip(self.batch.requests, self._waiting, strict=True):
            for token_id in token_ids:
                request.append(token_id)
        coming = map(add, self._ahead, self.batch.coming(ACCEPTED))
        self._waiting, self._ahead = zip(
            *((tokens[:ACCEPTED], tokens[ACCEPTED:]) for tokens in coming), strict=True
        )
        rest = [0] * (self._nodes - ACCEPTED)
        result = SimpleNamespace(
            next_token_ids=torch.tensor([[*tokens, *rest] for tokens in self._waiting]).flatten(),
            accept_lens=torch.full((len(self._waiting),), ACCEPTED),
            copy_done=SimpleNamespace(synchronize=self._wait),
            speculative_num_draft_tokens=self._nodes,
            speculative_output_stride=self._nodes,
        )
        self._queue[:] = [(self._sglangs, result)]
        self.drafted = [
            [waiting[-1], *ahead] for waiting, ahead in zip(self._waiting, self._ahead, strict=True)
        ]
        self._sglangs.spec_info = SimpleNamespace(
            draft_token_num=self._nodes,
            draft_token=torch.tensor([*chain(*self.drafted)], device=self._device),
            retrieve_next_token=self._links[0],
            retrieve_next_sibling=self._links[1],
        )

    def run(self) -> None:
        """Call the hooks of a step, and the mask that the second one returns, if any row wakes."""
        self._capture(None, self._sglangs, is_verify=True)
        changed = self._verify(self._sglangs.spec_info, self._sglangs, None)
        if changed is not None:
            changed[0][3].apply(self.logits)
        self._end()

    def histories(self) -> list[list[int]]:
        """Return for each row of the logits the tokens generated before it."""
        return [
            [*request.output_ids, *waiting, *drafted[1 : node + 1]]
            for request, waiting, drafted in zip(
                self.batch.requests, self._waiting, self.drafted, strict=True
            )
            for node in range(self._nodes)
        ]

    def _wait(self) -> None:
        self.waits += 1


def _never() -> bool:
    return False
