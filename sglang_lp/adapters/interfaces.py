"""Which interface a class is written for, found out where that is plain."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sglang_lp.adapters.dynamo import DynamoProcessor
from sglang_lp.adapters.transformers import TransformersProcessor
from sglang_lp.adapters.vllm_names import name as vllm_name
from sglang_lp.adapters.vllm_request import VllmAdapterProcessor, VllmRequestProcessor
from sglang_lp.adapters.vllm_v1 import VllmV1Processor
from sglang_lp.adapters.vllm_v2 import VllmV2Processor
from sglang_lp.errors import PolicyError

if TYPE_CHECKING:
    from sglang_lp.adapters.adapted import AdaptedProcessor

__all__ = ["INTERFACES", "adapter_of", "find_interface"]

#: Interface -> how its classes are called.
INTERFACES: Mapping[str, str] = {
    "dynamo": "processor(input_ids, logits), one request, in place",
    "transformers": "processor(input_ids, scores), tensors of one row",
    "vllm-request": "processor(output_ids, row) or processor(prompt_ids, output_ids, row)",
    "vllm-v1": "vLLM's LogitsProcessor with update_state() and apply(), or AdapterLogitsProcessor",
    "vllm-v2": "vLLM's LogitsProcessor with add_request() and apply()",
}
_V1 = "vllm.v1.sample.logits_processor"
_V2 = "vllm.v1.worker.gpu.sample.logits_processor"
#: Number of arguments by which a request-level processor of vLLM is told from all others.
_WITH_PROMPT = 3


def find_interface(found: Any, where: str) -> str:
    """Return the interface of a class or function.

    Args:
        found: The class or function.
        where: What to call it in messages.

    Raises:
        PolicyError: It is not plain.
    """
    bases = _bases(found)
    if any(base is _base(_V1, "LogitsProcessor") for base in bases):
        return "vllm-v1"
    if any(base is _base(_V2, "LogitsProcessor") for base in bases):
        return "vllm-v2"
    for base in bases:
        package = base.__module__.partition(".")[0]
        if (
            base.__name__ in {"LogitsProcessor", "LogitsProcessorList"}
            and package == "transformers"
        ):
            return "transformers"
        if base.__name__ == "BaseLogitsProcessor" and package == "dynamo":
            return "dynamo"
    if _count_arguments(found) == _WITH_PROMPT:
        return "vllm-request"
    known = "; ".join(f'"{key}": {how}' for key, how in INTERFACES.items())
    raise PolicyError(f"{where}: its interface is not plain; write interface = one of {known}")


def adapter_of(found: Any, interface: str, where: str) -> type[AdaptedProcessor]:
    """Return what runs a class of an interface, and check that it is one.

    Args:
        found: The class or function.
        interface: One of ``INTERFACES``.
        where: What to call it in messages.

    Raises:
        PolicyError: It is not of that interface.
    """
    if interface == "vllm-v1":
        _check_base(found, _V1, where)
        adapter = _base(_V1, "AdapterLogitsProcessor")
        overrides = [
            method
            for method in ("apply", "update_state")
            if issubclass(found, adapter) and getattr(found, method) is not getattr(adapter, method)
        ]
        if issubclass(found, adapter) and not overrides:
            return VllmAdapterProcessor
        return VllmV1Processor
    if interface == "vllm-v2":
        _check_base(found, _V2, where)
        return VllmV2Processor
    simple: Mapping[str, type[AdaptedProcessor]] = {
        "dynamo": DynamoProcessor,
        "transformers": TransformersProcessor,
        "vllm-request": VllmRequestProcessor,
    }
    if interface not in simple:
        raise PolicyError(f"{where}: interface: expected one of {', '.join(INTERFACES)}")
    if isinstance(found, type) and not any("__call__" in vars(base) for base in found.__mro__):
        raise PolicyError(f"{where}: expected {INTERFACES[interface]}, but it has no __call__()")
    count = _count_arguments(found)
    fits = (2, 3) if interface == "vllm-request" else (2,)
    if count is not None and count not in fits:
        raise PolicyError(
            f"{where}: expected {INTERFACES[interface]}, but it takes {count} arguments"
        )
    return simple[interface]


def _check_base(found: Any, module: str, where: str) -> None:
    base = _base(module, "LogitsProcessor")
    if not any(one is base for one in _bases(found)):
        raise PolicyError(f"{where}: expected a subclass of {module}.LogitsProcessor")


def _base(module: str, attribute: str) -> Any:
    try:
        return vllm_name(module, attribute)
    except (ImportError, AttributeError):  # an installed vLLM without that interface
        return None


def _bases(found: Any) -> tuple[type, ...]:
    return found.__mro__[1:] if isinstance(found, type) else ()


def _count_arguments(found: Any) -> int | None:
    """Return how many arguments a call must have; ``None`` if any number will do."""
    call = found
    if isinstance(found, type):
        call = getattr(found, "__call__", None)  # noqa: B004 - the method itself is looked at
        if not inspect.isfunction(call):
            return None
    parameters = [*inspect.signature(call).parameters.values()][isinstance(found, type) :]
    if any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in parameters):
        return None
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    return sum(one.kind in kinds and one.default is one.empty for one in parameters)
