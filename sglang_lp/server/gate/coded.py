"""An error with its code, its field and its cause, in the forms in which processes pass it on."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, NamedTuple, Self

import msgspec

from sglang_lp.errors import ProcessorFault, RequestError, SglangLpError
from sglang_lp.wire.names import ERROR_CODE

_PARAM = "param"


class Coded(NamedTuple):
    """An error for a client.

    Attributes:
        message: The message.
        code: The stable code.
        param: The field of the request at fault, or ``None``.
        by_client: Whether the client is at fault. The HTTP status is 400 then, else 500.
        culprit: The class that failed, as in ``ProcessorFault.processor``.
    """

    message: str
    code: str
    param: str | None = None
    by_client: bool = False
    culprit: str | None = None

    @classmethod
    def of(cls, error: SglangLpError) -> Self:
        """Return an error of the toolkit."""
        culprit = error.processor if isinstance(error, ProcessorFault) else None
        return cls(str(error), error.code, error.param, isinstance(error, RequestError), culprit)

    @classmethod
    def of_exception(cls, error: BaseException) -> Self | None:
        """Return the error of an exception or of its cause; ``None`` if neither is ours."""
        for one in (error, error.__cause__):
            if isinstance(one, SglangLpError):
                return cls.of(one)
        return None

    @classmethod
    def of_reason(cls, reason: Mapping[str, Any] | None) -> Self | None:
        """Return the error of SGLang's finish reason, given as JSON; ``None`` if it has no code."""
        if reason is None or ERROR_CODE not in reason:
            return None
        by_client = reason["status_code"] == HTTPStatus.BAD_REQUEST
        return cls(reason["message"], reason[ERROR_CODE], reason[_PARAM], by_client)

    @classmethod
    def of_text(cls, text: str) -> Self | None:
        """Return the error of a :attr:`text`; ``None`` if it is no such text."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError:
            return None

    @property
    def text(self) -> str:
        """The error as JSON, for peers that pass on one text and nothing else."""
        return msgspec.json.encode(self).decode()

    @property
    def status(self) -> HTTPStatus:
        """The HTTP status."""
        return HTTPStatus.BAD_REQUEST if self.by_client else HTTPStatus.INTERNAL_SERVER_ERROR

    @property
    def kind(self) -> str:
        """SGLang's name of an error with this status."""
        return "BadRequestError" if self.by_client else "InternalServerError"

    @property
    def entries(self) -> dict[str, Any]:
        """The entries of an error object that say the code and the field."""
        return {ERROR_CODE: self.code, _PARAM: self.param}

    def as_error(self) -> SglangLpError:
        """Return the error as an exception."""
        error = (
            RequestError(self.message)
            if self.by_client
            else ProcessorFault(self.message, self.culprit)
        )
        error.code, error.param = self.code, self.param
        return error
