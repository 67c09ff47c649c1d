"""From the class that the operator named to a processor that runs it.

A new adapter is its own file, and a line in ``_ADAPTERS``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from copy import deepcopy
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from sglang_lp.adapters.dynamo import DynamoProcessor
from sglang_lp.adapters.rowwise import RowwiseProcessor
from sglang_lp.adapters.transformers import TransformersProcessor
from sglang_lp.adapters.vllm_names import vllm_names
from sglang_lp.adapters.vllm_request import VllmRequestProcessor
from sglang_lp.adapters.vllm_v1 import VllmV1Processor
from sglang_lp.adapters.vllm_v2 import VllmV2Processor
from sglang_lp.errors import PolicyError, shown
from sglang_lp.importing import import_named
from sglang_lp.processor import LogitProcessor

if TYPE_CHECKING:
    from sglang_lp.adapters.adapted import AdaptedProcessor

#: Entry points that name processors of other engines: vLLM's group, and one of this toolkit's own.
GROUPS = ("sglang_lp.processors", "vllm.logits_processors")

#: The adapters, in the order in which they are asked whether a class is theirs.
_ADAPTERS: tuple[type[AdaptedProcessor], ...] = (
    VllmV1Processor,
    VllmV2Processor,
    TransformersProcessor,
    DynamoProcessor,
    VllmRequestProcessor,
)

#: Interface -> how its classes are called.
INTERFACES: Mapping[str, str] = {one.interface: one.calling for one in _ADAPTERS}


def _find_adapter(found: Any, interface: str | None, where: str) -> type[AdaptedProcessor]:
    """Return the adapter that runs a class or function.

    Args:
        found: The class or function.
        interface: One of ``INTERFACES``; found out if ``None``.
        where: Its name in messages.

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


def adapt(
    found: Any,
    interface: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    *,
    generation_only: bool = False,
    limits: Mapping[str, int] | None = None,
) -> type[AdaptedProcessor]:
    """Make a processor of this toolkit that runs one of another engine.

    Args:
        found: A class of vLLM's, Transformers' or Dynamo's interface; or a function of
            ``(prompt_ids, output_ids, row)``.
        interface: One of :data:`sglang_lp.adapters.INTERFACES`; found out if ``None``.
        arguments: Arguments of its constructor that no request can change.
        generation_only: Whether servers that only prefill for others leave it out, as Dynamo's
            option of that name says. For interfaces that take one request at a time.
        limits: The largest number in absolute value that a request may give, by the name of a
            parameter; 1,048,576 for others.

    Returns:
        A class whose ``custom_params`` are the constructor's other arguments, or what the class
        reads from vLLM's ``extra_args``.

    Raises:
        PolicyError: It cannot be served.
    """
    where = f"{getattr(found, '__module__', '?')}:{getattr(found, '__qualname__', shown(found))}"
    if not isinstance(found, type) and not inspect.isfunction(found):
        raise PolicyError(f"{where}: expected a class, got {shown(found)}")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(getattr(found, "__abstractmethods__", ())))
        raise PolicyError(f"{where}: expected a concrete class; it does not override {missing}")
    if isinstance(found, type) and issubclass(found, LogitProcessor):
        raise PolicyError(f"{where}: is a processor of this toolkit; name it in allow")
    adapter = _find_adapter(found, interface, where)
    interface = adapter.interface
    if arguments and not adapter.takes_arguments:
        raise PolicyError(f"{where}: arguments: classes of {interface} take none")
    if generation_only and not issubclass(adapter, RowwiseProcessor):
        raise PolicyError(f"{where}: generation_only: not for classes of {interface}")
    namespace = {
        "__module__": found.__module__,
        "__doc__": found.__doc__,
        "foreign": staticmethod(found) if inspect.isfunction(found) else found,
        "title": f"{where} ({interface})",
        "fixed": deepcopy(dict(arguments or {})),
        "generation_only": generation_only,
        "limits": dict(limits or {}),
    }
    adapted: type[AdaptedProcessor] = type(found.__name__, (adapter,), namespace)
    adapted.prepare()
    return adapted


def load(module: str, attribute: str, where: str) -> Any:
    """Import what the operator named; it can import vLLM's names meanwhile.

    Args:
        module: Module to import.
        attribute: Name in it.
        where: Place in the policy, for messages.

    Raises:
        PolicyError: It cannot be imported.
    """
    with vllm_names():
        return import_named(module, attribute, where)


def find_entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of all groups by name; nothing is imported."""
    return {entry.name: entry for group in GROUPS for entry in entry_points(group=group)}
