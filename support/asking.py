"""Bodies for ``/generate``: greedy, with token ids for a prompt."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from support.recording import Recorder

_numbers = itertools.count()


def body(
    prompt: Sequence[int],
    processor: Any = None,
    params: Mapping[str, Any] | None = None,
    **sampling: Any,
) -> dict[str, Any]:
    """Return the body of a greedy request.

    Args:
        prompt: Token ids.
        processor: A processor class, if any.
        params: Its parameters.
        sampling: Further sampling parameters.
    """
    result: dict[str, Any] = {
        "input_ids": [*prompt],
        "sampling_params": {"temperature": 0, "max_new_tokens": 40, **sampling},
    }
    if processor is not None:
        result["custom_logit_processor"] = processor.to_str()
        result["sampling_params"]["custom_params"] = params
    return result


def recorder(prompt: Sequence[int], *, steering: bool = False, **sampling: Any) -> dict[str, Any]:
    """Return the body of a request whose processor writes down what it sees, under a new tag."""
    params = {"tag": f"tag {next(_numbers)}", "steering": steering}
    return body(prompt, Recorder, params, **sampling)


def tag(request: Mapping[str, Any]) -> str:
    """Return the tag of a ``recorder`` body."""
    name: str = request["sampling_params"]["custom_params"]["tag"]
    return name
