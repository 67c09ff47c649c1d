"""An error with its code and field, in the forms in which SGLang's processes pass it on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from sglang_lp.errors import RequestError, SglangLpError
from sglang_lp.wire.names import ERROR_CODE

_PARAM = "param"
#: Message, code and field.
_TEXT = re.compile(r"(.*) \[([a-z_]+)(?: (\S+))?\]", re.DOTALL)


class Coded(NamedTuple):
    """The message of an error, its stable code, and the field of the request at fault."""

    message: str
    code: str
    param: str | None

    @classmethod
    def of(cls, error: BaseException) -> Self | None:
        """Return the error of an exception or of its cause; ``None`` if neither is ours."""
        for one in (error, error.__cause__):
            if isinstance(one, SglangLpError):
                return cls(str(one), one.code, one.param)
        return None

    @classmethod
    def of_reason(cls, reason: Mapping[str, Any]) -> Self | None:
        """Return the error of SGLang's finish reason, given as JSON; ``None`` if it has no code."""
        if ERROR_CODE not in reason:
            return None
        return cls(reason["message"], reason[ERROR_CODE], reason[_PARAM])

    @classmethod
    def of_text(cls, text: str, code: str) -> Self:
        """Return the error of a :attr:`text`; ``code`` is for a text without a code."""
        found = _TEXT.fullmatch(text)
        return cls(text, code, None) if found is None else cls(*found.groups())

    @property
    def text(self) -> str:
        """The error as one text, for peers that pass nothing else on."""
        # A client may have chosen the name of a parameter.
        param = f" {self.param}" if re.fullmatch(r"\S+", self.param or "") else ""
        return f"{self.message} [{self.code}{param}]"

    @property
    def entries(self) -> dict[str, Any]:
        """The entries of an error object that say the code and the field."""
        return {ERROR_CODE: self.code, _PARAM: self.param}

    def as_error(self, kind: type[SglangLpError] = RequestError) -> SglangLpError:
        """Return the error of a request; a refusal unless another kind is given."""
        error = kind(self.message)
        error.code, error.param = self.code, self.param
        return error
