"""Bodies for ``/generate``, greedy and with token ids for a prompt; and OpenAI's client."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import openai

from support.processors.recording import Recorder

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


def recorder(
    prompt: Sequence[int], *, steering: bool = False, seconds: float = 0.0, **sampling: Any
) -> dict[str, Any]:
    """Return the body of a request whose processor writes down what it sees, under a new tag."""
    params = {"tag": f"tag {next(_numbers)}", "steering": steering, "seconds": seconds}
    return body(prompt, Recorder, params, **sampling)


def tag(request: Mapping[str, Any]) -> str:
    """Return the tag of a ``recorder`` body."""
    name: str = request["sampling_params"]["custom_params"]["tag"]
    return name


@contextmanager
def openai_client(url: str) -> Iterator[openai.OpenAI]:
    """Ask a server on loopback in the block, each time once."""
    transport = httpx.Client(trust_env=False)
    with openai.OpenAI(
        base_url=url + "/v1", api_key="none", max_retries=0, http_client=transport
    ) as client:
        yield client
