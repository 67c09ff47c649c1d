"""One HTTP request of a case, and its JSON text."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CHAT", "COMPLETIONS", "GENERATE", "MESSAGES", "RESPONSES", "Body", "Sent"]

GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"

Body = dict[str, Any]
#: No limit of an answer.
_ENDLESS = re.compile(r'"(max_\w*tokens|num_predict)": (null|-)')
#: A number that was marked, and a key.
_NUMBER = re.compile(r'"\\u0000(NaN|-?1e400)"')
_KEY = re.compile(r'"(\w)(\w*)":')


@dataclass(frozen=True)
class Sent:
    """An HTTP request.

    Attributes:
        path: Of the endpoint.
        body: Its JSON; infinity is written as a number beyond all floats.
        leave_after: Number of events of a stream after which the client hangs up.
        odd: Names of the fields that have an extreme value or the wrong type.
        is_escaped: Whether the keys are written with escapes.
        wait: Seconds after the others of its case.
    """

    path: str
    body: Mapping[str, Any]
    leave_after: int | None = None
    odd: frozenset[str] = frozenset()
    is_escaped: bool = False
    wait: float = 0.0

    @property
    def is_stream(self) -> bool:
        """Whether the answer comes as events."""
        return self.body.get("stream") is True

    @property
    def is_endless(self) -> bool:
        """Whether the answer may fill the context, for which neither its client nor others wait."""
        return _ENDLESS.search(json.dumps(_marked(self.body))) is not None

    @property
    def oddities(self) -> frozenset[str]:
        """The odd fields that the body still has after it was made smaller."""
        text = json.dumps(_marked(self.body))
        return frozenset(name for name in self.odd if f'"{name}":' in text)

    @property
    def text(self) -> str:
        """The JSON as it is sent."""
        text = json.dumps(_marked(self.body))
        if self.is_escaped:
            text = _KEY.sub(lambda key: f'"\\u{ord(key[1]):04x}{key[2]}":', text)
        return _NUMBER.sub(r"\1", text)


def _marked(value: Any) -> Any:
    """Replace numbers that Python would write as words of JavaScript."""
    if isinstance(value, float) and not math.isfinite(value):
        return "\0" + ("NaN" if math.isnan(value) else f"{math.copysign(1, value):.0f}e400")
    if isinstance(value, Mapping):
        return {name: _marked(one) for name, one in value.items()}
    return [*map(_marked, value)] if isinstance(value, list) else value
