"""Bounds on a query that SGLang joins with each of many items, before it makes requests of them.

SGLang joins them in its event loop: a body of 100 kB stopped it for 20 s, and one of 130 kB took
764 MB.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from sglang_lp.errors import RequestError
from sglang_lp.server.front.bounds import MAX_COPIED, MAX_REQUESTS, MAX_SAMPLED

#: Most characters, or tokens, of all prompts that SGLang makes of one body.
MAX_JOINED = MAX_COPIED
#: Most characters where SGLang also tokenizes all prompts in one go.
MAX_TOKENIZED = 1_048_576


def check_score(body: Any) -> None:
    """Check a body of ``/v1/score``.

    Raises:
        RequestError: Its query and items, or its labels and items, are too many in all.
    """
    if not isinstance(body, Mapping):
        return  # SGLang refuses it
    in_one_go = body.get("score_extraction_token") is not None
    count = _check_joined(body, "items", MAX_TOKENIZED if in_one_go else MAX_JOINED)
    labels = body.get("label_token_ids")
    if not isinstance(labels, list):
        return
    nested = [one for one in labels if isinstance(one, list)]
    total = sum(map(len, nested)) if nested else len(labels) * count
    most, unit = MAX_SAMPLED["token_ids_logprob"]
    if total > most:
        raise RequestError(
            f"label_token_ids: expected at most {most} {unit} over all items, got {total}; send "
            "several requests"
        )


def check_rerank(body: Any) -> None:
    """Check a body of ``/v1/rerank``.

    Raises:
        RequestError: Its documents, or its query and documents, are too many in all.
    """
    if isinstance(body, Mapping):
        count = _check_joined(body, "documents", MAX_JOINED)
        if count > MAX_REQUESTS:
            raise RequestError(
                f"documents: expected at most {MAX_REQUESTS}, got {count}; send several requests"
            )


def check_decisions(body: Any) -> None:
    """Check a body of ``/v1/decisions`` or ``/v1/systemone``, each of whose questions is a prompt.

    Raises:
        RequestError: Its questions, or its input with each of them, are too many in all.
    """
    if not isinstance(body, Mapping) or not isinstance(asked := body.get("questions"), list | dict):
        return  # SGLang refuses it
    given = body.get("input") or body.get("state")
    total = len(asked) * (len(given) if isinstance(given, str) else len(orjson.dumps(given)))
    if len(asked) > MAX_REQUESTS or total > MAX_JOINED:
        raise RequestError(
            f"questions: expected at most {MAX_REQUESTS}, and {MAX_JOINED} characters in all "
            f"prompts, each with the input, got {len(asked)} and {total}; send several requests"
        )


def _check_joined(body: Mapping[str, Any], name: str, most: int) -> int:
    """Check the prompts that SGLang makes of a body, and return their number.

    Args:
        body: As SGLang has parsed it.
        name: Its field with the items.
        most: Most characters, or tokens, of all prompts.
    """
    given = body.get(name)
    items = given if isinstance(given, list) else [given]
    query = _length(body.get("query")) + _length(body.get("instruct"))
    total = query * len(items) + sum(map(_length, items))
    if total > most:
        raise RequestError(
            f"{name}: expected at most {most} characters or tokens in all prompts, each with the "
            f"query, got {total}; send several requests"
        )
    return len(items)


def _length(value: Any) -> int:
    """Return the characters of a text or of the parts of a message, or the tokens of a prompt."""
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return sum(_length(part.get("text")) for part in value if isinstance(part, Mapping))
    return len(value) if isinstance(value, str | list) else 0
