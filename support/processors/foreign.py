"""Processors as users of other engines write them, with the imports that they have."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from transformers import LogitsProcessor as TransformersBase
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)
from vllm import SamplingParams  # type: ignore[import-not-found]
from vllm.config import VllmConfig  # type: ignore[import-not-found]
from vllm.logger import init_logger  # type: ignore[import-not-found]
from vllm.v1.sample.logits_processor import (  # type: ignore[import-not-found]
    AdapterLogitsProcessor,
    BatchUpdate,
    LogitsProcessor,
    MoveDirectionality,
)
from vllm.v1.sample.logits_processor.builtin import (  # type: ignore[import-not-found]
    process_dict_updates,
)
from vllm.v1.worker.gpu.sample.logits_processor import (  # type: ignore[import-not-found]
    LogitsContext,
    LogitsProcRequestState,
)
from vllm.v1.worker.gpu.sample.logits_processor import (
    LogitsProcessor as LogitsProcessorV2,
)

logger = init_logger(__name__)
MINUS_INF = -math.inf


def _only(row: torch.Tensor, token_id: int) -> None:
    """Leave one token."""
    keep = row[token_id].item()
    row.fill_(MINUS_INF)
    row[token_id] = keep if math.isfinite(keep) else 0.0


class TargetToken(LogitsProcessor):  # type: ignore[misc]
    """V1: repeat ``target_token``, as the example in vLLM's documentation does."""

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        target = (params.extra_args or {}).get("target_token")
        if target is not None and not isinstance(target, int):
            raise ValueError(f"target_token value {target} is not int")

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:  # noqa: FBT001
        self.most = vllm_config.scheduler_config.max_num_seqs
        self.targets: dict[int, int] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        if batch_update is None:
            return
        for index, params, _, _ in batch_update.added:
            target = (params.extra_args or {}).get("target_token")
            if target is None:
                self.targets.pop(index, None)
            else:
                self.targets[index] = target
        for index in batch_update.removed:
            self.targets.pop(index, None)
        for source, to, direction in batch_update.moved:
            there, here = self.targets.pop(to, None), self.targets.pop(source, None)
            if here is not None:
                self.targets[to] = here
            if there is not None and direction == MoveDirectionality.SWAP:
                self.targets[source] = there

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if not self.targets:
            return logits
        rows = torch.tensor([*self.targets])
        columns = torch.tensor([*self.targets.values()])
        kept = logits[rows, columns].clone()
        logits[rows] = MINUS_INF
        logits[rows, columns] = kept
        return logits


class Alternating(LogitsProcessor):  # type: ignore[misc]
    """V1: force the tokens of ``cycle`` one after the other, told by the length of the output."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:  # noqa: FBT001
        self.requests: dict[int, tuple[list[int], list[int]]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(
            self.requests,
            batch_update,
            lambda params, _, output_ids: (params.extra_args["cycle"], output_ids),
        )

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        for row, (cycle, output_ids) in self.requests.items():
            _only(logits[row], cycle[len(output_ids) % len(cycle)])
        return logits


class MinP(LogitsProcessor):  # type: ignore[misc]
    """V1, argmax-invariant: keep what has a part of the likeliest token's probability."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:  # noqa: FBT001
        self.shares: dict[int, float] = {}
        self.applied = 0

    def is_argmax_invariant(self) -> bool:
        return True

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        process_dict_updates(
            self.shares, batch_update, lambda params, _prompt, _output: params.extra_args["share"]
        )

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        self.applied += 1
        shares = torch.tensor([self.shares[row] for row in range(len(logits))])
        probabilities = logits.softmax(-1)
        return logits.masked_fill(
            probabilities < shares[:, None] * probabilities.amax(-1, keepdim=True), MINUS_INF
        )


class Spelled:
    """Request-level: force ``tokens`` one after the other, counting its own calls."""

    def __init__(self, tokens: list[int]) -> None:
        self.tokens = tokens
        self.calls = 0

    def __call__(self, output_ids: list[int], row: torch.Tensor) -> torch.Tensor:
        if len(output_ids) != self.calls:
            raise AssertionError(f"call {self.calls} got {len(output_ids)} tokens")
        if self.calls < len(self.tokens):
            _only(row, self.tokens[self.calls])
        self.calls += 1
        return row


class SpelledAdapter(AdapterLogitsProcessor):  # type: ignore[misc]
    """V1, request-level: ``tokens`` as above."""

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Any:
        tokens = (params.extra_args or {}).get("tokens")
        return None if tokens is None else Spelled(tokens)


def echo(prompt_ids: list[int], output_ids: list[int], row: torch.Tensor) -> torch.Tensor:
    """Request-level: repeat the prompt."""
    edited = torch.full_like(row, MINUS_INF)
    edited[prompt_ids[len(output_ids) % len(prompt_ids)]] = 0.0
    return edited


class NoRepeatV2(LogitsProcessorV2):  # type: ignore[misc]
    """V2: no token of the output comes again."""

    def __init__(self, vllm_config: VllmConfig, req_states: LogitsProcRequestState) -> None:
        super().__init__(vllm_config, req_states)
        self.states = req_states
        self.penalty = torch.zeros(req_states.max_num_reqs, device=req_states.device)
        self.staged: dict[int, float] = {}

    @classmethod
    def validate_params(cls, params: SamplingParams) -> None:
        penalty = (params.extra_args or {}).get("penalty", 1.0)
        if not isinstance(penalty, float) or penalty <= 0:
            raise ValueError(f"penalty must be a positive float, got {penalty}")

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        extra = sampling_params.extra_args or {}
        if "penalty" not in extra:
            return False
        self.staged[req_idx] = extra["penalty"]
        return True

    def apply_staged_writes(self) -> None:
        for slot, penalty in self.staged.items():
            self.penalty[slot] = penalty
        self.staged.clear()

    def apply(self, logits: torch.Tensor, ctx: LogitsContext) -> torch.Tensor:
        slots = ctx.expanded_idx_mapping.long()
        prompt, total = self.states.prompt_len.gpu[slots], self.states.total_len.gpu[slots]
        tokens = self.states.all_token_ids.gpu[slots]
        places = torch.arange(tokens.shape[1], device=tokens.device)
        for row in range(len(logits)):
            seen = tokens[row][(places >= prompt[row]) & (places < total[row])].long()
            logits[row, seen] -= self.penalty[slots[row]]
        return logits


class Polite(LogitsProcessorList):
    """Transformers: a list with settings of its own."""

    def __init__(self, penalty: float, ngram_size: int = 2) -> None:
        super().__init__(
            [RepetitionPenaltyLogitsProcessor(penalty), NoRepeatNGramLogitsProcessor(ngram_size)]
        )


class Counted(TransformersBase):
    """Transformers: force token ``first + n`` at its n-th call."""

    def __init__(self, first: int) -> None:
        self.next = first

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        edited = torch.full_like(scores, MINUS_INF)
        edited[:, self.next] = 0.0
        self.next += 1
        return edited


class DynamoForced:
    """Dynamo: force ``token_ids`` and then the end, counting its calls as Dynamo's own does."""

    def __init__(self, token_ids: list[int], eos_token_id: int) -> None:
        self.token_ids = [*token_ids]
        self.eos_token_id = eos_token_id
        self.calls = 0

    def __call__(self, input_ids: list[int], logits: torch.Tensor) -> None:
        tokens = self.token_ids
        token_id = tokens[self.calls] if self.calls < len(tokens) else self.eos_token_id
        mask = torch.full_like(logits, MINUS_INF)
        mask[token_id] = 0.0
        logits.add_(mask)
        self.calls += 1


class Misbehaving(TransformersBase):
    """Transformers: goes wrong as it is told."""

    def __init__(self, how: str) -> None:
        if how == "made":
            raise ValueError("no way")
        self.how = how

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> Any:
        if input_ids.shape[1] % 4:
            return scores
        wrong: dict[str, Callable[[], Any]] = {
            "raises": lambda: 1 / 0,
            "exits": sys.exit,
            "shape": lambda: scores[:, :-1],
            "dtype": scores.long,
            "nothing": lambda: None,
            "nan": lambda: scores.fill_(math.nan),
            "all masked": lambda: scores.fill_(MINUS_INF),
        }
        return wrong[self.how]()


class MisbehavingV1(Alternating):
    """V1: goes wrong as a request says, with all requests of the class in its hands."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        super().apply(logits)
        for row, (cycle, output_ids) in self.requests.items():
            if len(output_ids) == 2 and cycle[0] == 13:  # noqa: PLR2004
                raise RuntimeError("thirteen")
            if len(output_ids) == 2 and cycle[0] == 14:  # noqa: PLR2004
                logits[row] = math.nan
        return logits
