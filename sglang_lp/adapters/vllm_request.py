"""vLLM's request-level processors: ``(output_ids, row)`` or ``(prompt_ids, output_ids, row)``.

A request-level processor is a class of its own, or is made for each request by an
``AdapterLogitsProcessor``.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, ClassVar

from sglang_lp.adapters.arguments import count_arguments
from sglang_lp.adapters.rowwise import ConstructedProcessor, RowwiseProcessor, Run, checked
from sglang_lp.adapters.vllm_config import is_greedy, make_params
from sglang_lp.adapters.vllm_names import vllm_names
from sglang_lp.adapters.vllm_processor import VllmProcessor
from sglang_lp.adapters.vllm_xargs import merge_xargs

if TYPE_CHECKING:
    import torch

    from sglang_lp.adapters.arguments import Setting
    from sglang_lp.adapters.engine_settings import EngineSettings

#: Number of arguments of a processor that also takes the prompt.
_WITH_PROMPT = 3


class _CallableRun(Run):
    """One callable at work on one request."""

    _arity = 0

    def call(self, made: Any, position: int, row: torch.Tensor) -> torch.Tensor:
        if not self._arity:
            self._arity = len(inspect.signature(made).parameters)
        outputs = self.outputs(position)
        if self._arity == _WITH_PROMPT:
            result = made(self.prompt(len(row)), outputs, row)
        else:
            result = made(outputs, row)
        return checked(result, row, tuple(row.shape))


class VllmRequestProcessor(ConstructedProcessor):
    """Runs a request-level processor that is a class of its own, made for each request."""

    interface = "vllm-request"
    calling = "processor(output_ids, row) or processor(prompt_ids, output_ids, row)"
    counts = (2, _WITH_PROMPT)
    run = _CallableRun
    start = vllm_names()(ConstructedProcessor.start)
    compute = vllm_names()(ConstructedProcessor.compute)

    @classmethod
    def detects(cls, found: Any) -> bool:
        return count_arguments(found) == _WITH_PROMPT

    @classmethod
    def unwrapped(cls, values: dict[str, Any]) -> dict[str, Any]:
        return merge_xargs(values)


class VllmAdapterProcessor(RowwiseProcessor, VllmProcessor):
    """Runs a subclass of ``AdapterLogitsProcessor``: its callables, one for each request.

    The class's own ``update_state`` and ``apply``, which keep the callables by row, are not run:
    a callable stays with its request.
    """

    interface = "vllm-v1"
    can_fork = False  # what the class will make is not known before the scheduler asks it
    run = _CallableRun
    start = vllm_names()(RowwiseProcessor.start)
    compute = vllm_names()(RowwiseProcessor.compute)
    _engine: ClassVar[EngineSettings]
    _shared: ClassVar[Any] = None
    _invariant: ClassVar[bool] = False

    @classmethod
    def begin(cls, engine: EngineSettings) -> None:
        super().begin(engine)
        cls._engine = engine
        cls._shared = cls.make_v1_object(engine)
        cls._invariant = bool(cls._shared.is_argmax_invariant())

    def make(self, request: Any, setting: Setting) -> Any:  # noqa: ARG002 - it asks the class
        """Ask the class for the callable of a request; ``None`` if a greedy request needs none."""
        if self._invariant and is_greedy(request.sampling):
            return None
        params = make_params(request.params.values, request.sampling, self._engine)
        return self._shared.new_req_logits_processor(params)
