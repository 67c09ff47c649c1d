"""Replays a built-in over an answer with the product's own trace, and looks for contradictions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from demo.model import ensure_model
from sglang_lp import builtins
from sglang_lp.client.models import load_model
from sglang_lp.errors import SglangLpError
from sglang_lp.trace import read_exchange, trace_answer
from support.catalogues import opened, served_index

if TYPE_CHECKING:
    from hunt.answers import Answer
    from hunt.servers import Kind
    from hunt.wishes import Wish
    from sglang_lp.served_model import ServedModel

__all__ = ["contradictions", "served"]

_BUDGET = "ThinkingBudget"


@cache
def served() -> ServedModel:
    """Return the demo's model as a replay knows it."""
    return load_model(str(ensure_model()))._replace(catalogues=opened(items=served_index()))


def _is_lowered(value: object, most: int | None) -> bool:
    """Tell whether a ceiling changes the value of a parameter; no number means no limit."""
    return most is not None and not (isinstance(value, int | float) and value <= most)


def contradictions(wish: Wish, answer: Answer, kind: Kind) -> Iterator[str]:
    """Yield how an answer contradicts its request.

    Args:
        wish: What the request asked for, built-ins without a chain.
        answer: With its tokens.
        kind: Of the server; a number that a ceiling lowered is not replayed, nor is a budget where
            there are rules, because both are the operator's.
    """
    if len(wish.processors) != 1:
        return
    ((name, params),) = wish.processors
    processor = getattr(builtins, name, None)
    if processor is None or (_BUDGET in name and kind.rules):
        return
    if any(_is_lowered(value, kind.ceiling(name)) for name, value in params.items()):
        return
    from hunt.tokens import encode

    request = {"input_ids": encode(wish.begun), "sampling_params": {"custom_params": {**params}}}
    whole = {"output_ids": answer.token_ids, "text": answer.texts.get("text")}
    try:
        found = trace_answer(processor, read_exchange(request, whole), served())
    except SglangLpError as error:
        yield f"the replay refuses what was served: {error}"
        return
    for place in found.problems:
        yield f"token {place} of {answer.token_ids}: {found.tokens[place].problem}"
