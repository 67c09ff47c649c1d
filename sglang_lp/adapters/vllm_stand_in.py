"""Stand-ins of vLLM's public names (vLLM 0.33.0), for the classes written against them."""

from __future__ import annotations

import enum
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from sglang_lp.adapters.vllm_params import SamplingParams, SamplingType

# The V1 interface

LOGITSPROCS_GROUP = "vllm.logits_processors"


class MoveDirectionality(enum.Enum):
    """Whether a move leaves its source empty or exchanges two rows."""

    UNIDIRECTIONAL = enum.auto()
    SWAP = enum.auto()


@dataclass(frozen=True)
class BatchUpdate:
    """The changes of the batch since the step before.

    Attributes:
        batch_size: Number of rows now.
        removed: Indices that became empty.
        added: ``(index, params, prompt_ids, output_ids)``; the last list grows with the request.
        moved: ``(from, to, MoveDirectionality)``, in order.
    """

    batch_size: int
    removed: Sequence[int]
    added: Sequence[tuple[int, Any, list[int] | None, list[int]]]
    moved: Sequence[tuple[int, int, MoveDirectionality]]


class LogitsProcessor(ABC):
    """Base of processors of the V1 interface."""

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise ``ValueError`` for parameters that do not fit."""

    @abstractmethod
    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        raise NotImplementedError

    @abstractmethod
    def apply(self, logits: Any) -> Any:
        """Compute the rows of the batch."""

    @abstractmethod
    def is_argmax_invariant(self) -> bool:
        """Tell whether the likeliest token stays the likeliest."""

    @abstractmethod
    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Update the state with the changes of the batch, before each step."""


class AdapterLogitsProcessor(LogitsProcessor):
    """Base of processors that make a callable for each request."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        self.req_info: dict[int, partial[Any]] = {}

    @abstractmethod
    def new_req_logits_processor(self, params: Any) -> Callable[..., Any] | None:
        """Return the callable of a request, or ``None``."""

    # This toolkit calls the callables itself: update_state() and apply() of such a class that
    # overrides neither are never run.

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        raise NotImplementedError

    def apply(self, logits: Any) -> Any:
        raise NotImplementedError


def process_dict_updates(
    req_entries: dict[int, Any],
    batch_update: BatchUpdate | None,
    new_state: Callable[[Any, list[int] | None, list[int]], Any],
) -> bool:
    """Bring a dict from rows to states up to date; tell whether it changed.

    Args:
        req_entries: Changed in place.
        batch_update: What changed, or ``None``.
        new_state: Makes the state of an added request, ``None`` for none.
    """
    if batch_update is None:
        return False
    changed = False
    for index, params, prompt_ids, output_ids in batch_update.added:
        state = new_state(params, prompt_ids, output_ids)
        if state is not None:
            req_entries[index] = state
            changed = True
        elif req_entries.pop(index, None) is not None:
            changed = True
    if req_entries:
        for index in batch_update.removed:
            changed = bool(req_entries.pop(index, None)) or changed
        for source, target, direction in batch_update.moved:
            there = req_entries.pop(target, None)
            here = req_entries.pop(source, None) if source != target else there
            if here is not None:
                req_entries[target] = here
            if there is not None and source != target and direction is MoveDirectionality.SWAP:
                req_entries[source] = there
            changed = changed or here is not None or there is not None
    return changed


# The V2 interface


@dataclass(frozen=True)
class LogitsProcRequestState:
    """The tokens of all requests by slot, for a processor of the V2 interface.

    Attributes:
        device: Where the tensors are.
        max_num_reqs: Number of slots.
        vocab_size: Number of logits in a row.
        all_token_ids: Its ``gpu`` has shape ``(slots, most tokens of a request)``.
        prompt_len: Its ``gpu`` has shape ``(slots,)``.
        prefill_len: As ``prompt_len``: prompt and output so far when the request was added.
        total_len: As ``prompt_len``: prompt and output so far.
    """

    device: Any
    max_num_reqs: int
    vocab_size: int
    all_token_ids: Any
    prompt_len: Any
    prefill_len: Any
    total_len: Any


@dataclass(frozen=True)
class LogitsContext:
    """Which rows one step computes.

    Attributes:
        expanded_idx_mapping: Slot of each row, on the device.
        idx_mapping: Slot of each request, on the device.
        idx_mapping_np: The same on the host, in an array of NumPy.
        expanded_local_pos: For each row how many drafted tokens of its request come before.
        input_ids: For each row the token that the model was given last.
        pos: For each row the position of that token.
        seq_lens_upper_bound_np: For each request its number of tokens, on the host.
    """

    expanded_idx_mapping: Any
    idx_mapping: Any
    idx_mapping_np: Any
    expanded_local_pos: Any
    input_ids: Any
    pos: Any
    seq_lens_upper_bound_np: Any


class LogitsProcessorV2(ABC):
    """Base of processors of the V2 interface."""

    def __init__(self, vllm_config: Any, req_states: LogitsProcRequestState) -> None:
        self.req_states = req_states

    @classmethod
    def validate_params(cls, sampling_params: Any) -> None:
        """Raise ``ValueError`` for parameters that do not fit."""

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Add a request in a slot; tell whether it needs this processor."""
        return True

    def apply_staged_writes(self) -> None:
        """Send the states of added requests to the device."""

    @abstractmethod
    def apply(self, logits: Any, ctx: LogitsContext) -> Any:
        """Compute the rows of a step."""


LogitsProcessorV2.__name__ = LogitsProcessorV2.__qualname__ = "LogitsProcessor"


# Everything else


class VllmConfig:
    """The engine's settings; see :mod:`sglang_lp.adapters.vllm_config`."""


class LLM:
    """vLLM's engine, which scripts that show a processor import."""

    def __init__(self, *_args: Any, **_options: Any) -> None:
        raise NotImplementedError("vllm.LLM: SGLang serves here; send it requests instead")


class VLLMValidationError(ValueError):
    """A parameter does not fit."""

    def __init__(self, message: str, **details: Any) -> None:
        super().__init__(message)
        self.details = details


def async_tensor_h2d(data: Any, device: Any = None, dtype: Any = None, *_more: Any) -> Any:
    """Return a list, an array or a tensor of the host as a tensor on a device.

    Until vLLM 0.12 the type came before the device.
    """
    import torch

    if isinstance(device, torch.dtype):
        device, dtype = dtype, device
    return torch.as_tensor(data, dtype=dtype).to(device, non_blocking=True)


def gpu_sync_allowed(*_args: Any, **_options: Any) -> AbstractContextManager[None]:
    """Return a context in which the host may wait for the device, as it may everywhere here."""
    return nullcontext()


def cached_tokenizer_from_config(model_config: Any) -> Any:
    """Return the tokenizer of the served model, ``None`` if it has none."""
    path = model_config.tokenizer
    return _tokenizer(path, trusts=model_config.trust_remote_code) if path else None


@cache
def _tokenizer(path: str, *, trusts: bool) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(path, trust_remote_code=trusts)


def init_logger(module: str) -> logging.Logger:
    """Return the logger of a module."""
    return logging.getLogger(module)


_V1 = {
    "AdapterLogitsProcessor": AdapterLogitsProcessor,
    "BatchUpdate": BatchUpdate,
    "LOGITSPROCS_GROUP": LOGITSPROCS_GROUP,
    "LogitsProcessor": LogitsProcessor,
    "MoveDirectionality": MoveDirectionality,
    "AddedRequest": tuple,
    "MovedRequest": tuple,
    "RemovedRequest": int,
    "RequestLogitsProcessor": Callable,
    "process_dict_updates": process_dict_updates,
}
_V2 = {
    "LogitsContext": LogitsContext,
    "LogitsProcRequestState": LogitsProcRequestState,
    "LogitsProcessor": LogitsProcessorV2,
}
NAMES: dict[str, dict[str, Any]] = {
    "vllm": {"LLM": LLM, "SamplingParams": SamplingParams},
    "vllm.config": {"VllmConfig": VllmConfig},
    "vllm.exceptions": {"VLLMValidationError": VLLMValidationError},
    "vllm.logger": {"init_logger": init_logger},
    "vllm.sampling_params": {"SamplingParams": SamplingParams, "SamplingType": SamplingType},
    "vllm.tokenizers": {"cached_tokenizer_from_config": cached_tokenizer_from_config},
    "vllm.utils": {},
    "vllm.utils.gpu_sync_debug": {"gpu_sync_allowed": gpu_sync_allowed},
    "vllm.utils.torch_utils": {"async_tensor_h2d": async_tensor_h2d},
    "vllm.v1": {},
    "vllm.v1.sample": {},
    "vllm.v1.sample.logits_processor": _V1,
    "vllm.v1.sample.logits_processor.builtin": {"process_dict_updates": process_dict_updates},
    "vllm.v1.sample.logits_processor.interface": _V1,
    "vllm.v1.worker": {},
    "vllm.v1.worker.gpu": {},
    "vllm.v1.worker.gpu.sample": {},
    "vllm.v1.worker.gpu.sample.logits_processor": _V2,
    "vllm.v1.worker.gpu.sample.logits_processor.interface": _V2,
}
