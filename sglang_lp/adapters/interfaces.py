"""The adapters, one for each interface: a new one is its file, and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sglang_lp.adapters.dynamo import DynamoProcessor
from sglang_lp.adapters.transformers import TransformersProcessor
from sglang_lp.adapters.vllm_request import VllmRequestProcessor
from sglang_lp.adapters.vllm_v1 import VllmV1Processor
from sglang_lp.adapters.vllm_v2 import VllmV2Processor
from sglang_lp.errors import PolicyError

if TYPE_CHECKING:
    from sglang_lp.adapters.adapted import AdaptedProcessor

__all__ = ["INTERFACES", "find_adapter"]

#: In the order in which they are asked whether a class is theirs.
_ADAPTERS: tuple[type[AdaptedProcessor], ...] = (
    VllmV1Processor,
    VllmV2Processor,
    TransformersProcessor,
    DynamoProcessor,
    VllmRequestProcessor,
)

#: Interface -> how its classes are called.
INTERFACES: Mapping[str, str] = {one.interface: one.calling for one in _ADAPTERS}


def find_adapter(found: Any, interface: str | None, where: str) -> type[AdaptedProcessor]:
    """Return what runs a class or function.

    Args:
        found: The class or function.
        interface: One of ``INTERFACES``; found out if ``None``.
        where: What to call it in messages.

    Raises:
        PolicyError: It is not of that interface, or its interface is not plain.
    """
    for adapter in _ADAPTERS:
        if adapter.interface == interface or (interface is None and adapter.detects(found)):
            adapter.check_class(found, where)
            return adapter.runner(found)
    if interface is not None:
        raise PolicyError(f"{where}: interface: expected one of {', '.join(INTERFACES)}")
    known = "; ".join(f'"{key}": {how}' for key, how in INTERFACES.items())
    raise PolicyError(f"{where}: its interface is not plain; write interface = one of {known}")
