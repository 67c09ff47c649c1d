"""``vllm_xargs``, vLLM's field for the parameters of processors."""

from __future__ import annotations

from typing import Any

from sglang_lp.errors import RequestError, shown


def merge_xargs(values: dict[str, Any]) -> dict[str, Any]:
    """Return parameters with those inside ``vllm_xargs`` merged into them.

    Raises:
        RequestError: ``vllm_xargs`` is no object, or repeats a parameter that is outside of it.
    """
    if "vllm_xargs" not in values:
        return values
    rest = {key: value for key, value in values.items() if key != "vllm_xargs"}
    inner = values["vllm_xargs"]
    if inner is None:
        return rest
    if not isinstance(inner, dict):
        raise RequestError(f"vllm_xargs: expected an object of parameters, got {shown(inner)}")
    if twice := rest.keys() & inner.keys():
        raise RequestError(
            f"vllm_xargs: {shown(min(twice))} is given inside it and outside; give it once"
        )
    return {**rest, **inner}
