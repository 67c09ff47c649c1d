"""SGLang's finish reasons for ends that sglang-lp decides."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from sglang_lp.edits import LENGTH
from sglang_lp.server.gate.coded import Coded

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sglang_lp.edits import End
    from sglang_lp.errors import SglangLpError

#: Attribute of SGLang's finish reason: the toolkit's error. The JSON of the reason, which SGLang
#: sends to the front end, has its code and field.
_ERROR = "sglang_lp_error"


def error_reason(error: SglangLpError) -> Any:
    """Return SGLang's finish reason for an error."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    coded = Coded.of(error)
    reason = FINISH_ABORT(coded.message, coded.status, coded.kind)
    setattr(reason, _ERROR, coded)
    add(reason, coded.entries)
    return reason


def error_of(reason: Any) -> Coded | None:
    """Return the error of a finish reason; ``None`` if sglang-lp made none."""
    return getattr(reason, _ERROR, None)


def add(reason: Any, entries: Mapping[str, Any]) -> None:
    """Add entries to the JSON of SGLang's finish reason."""
    said = {**reason.to_json(), **entries}
    reason.to_json = said.copy  # SGLang calls only dict.copy, no plugin code


def finish_reason(end: End, length: int) -> Any:
    """Return SGLang's finish reason for an end that a processor decided.

    Args:
        end: The processor's argument of ``edits.finish``.
        length: Length of the output, including its last token.
    """
    from sglang.srt.managers.schedule_batch import FINISH_MATCHED_STR

    return (
        _truncation()(end.reason, length) if end.kind == LENGTH else FINISH_MATCHED_STR(end.reason)
    )


@cache
def _truncation() -> type:
    from sglang.srt.managers.schedule_batch import FINISH_LENGTH

    class Truncation(FINISH_LENGTH):  # type: ignore[misc]
        """SGLang's end at ``max_new_tokens``, with the processor's reason as an extra field."""

        def __init__(self, reason: str, length: int) -> None:
            super().__init__(length)
            self.reason = reason

        def to_json(self) -> dict[str, Any]:
            return {**super().to_json(), "reason": self.reason}

    return Truncation
