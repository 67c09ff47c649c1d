"""Rules of structured answers with ``whole_answer``."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hunt.rules.told import Found, told_of
from hunt.sent import GENERATE

if TYPE_CHECKING:
    from hunt.asking import Asked
    from hunt.servers import Kind

#: The name of an end token, which ``skip_special_tokens: false`` leaves in the text.
_END = "<|im_end|>"


def whole_answers_are_complete(asked: Asked, _kind: Kind) -> Found:
    """An answer with ``whole_answer`` does not end at its limit, and is a text of its grammar."""
    for told in told_of(asked):
        if told.wish.params.get("whole_answer") is not True or not told.is_whole:
            continue
        if told.answer.finish == "length":
            yield told.sent.path, f"cut off: {told.answer.texts}"
        text = told.answer.texts.get("text")
        thinks = told.sent.body.get("require_reasoning")
        if told.sent.path != GENERATE or text is None or thinks:
            continue  # a client sees it together with thoughts
        if not _is_complete(text.removesuffix(_END), told.wish.sampling):
            yield told.sent.path, f"no text of its grammar: {text!r}"


def _is_complete(text: str, sampling: Mapping[str, Any]) -> bool:
    if "json_schema" not in sampling:
        return re.fullmatch(sampling["regex"], text) is not None
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
