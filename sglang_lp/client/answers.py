"""The part of an answer that names the processors that ran on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sglang_lp.errors import NotRun, shown
from sglang_lp.wire.names import HEADER, REPORT

__all__ = ["check_ran"]


def check_ran(names: Iterable[str], answer: Any) -> None:
    """Check that processors ran on an answer.

    Args:
        names: Names of the processors.
        answer: As for ``Attachment.check``.

    Raises:
        NotRun: A processor did not run, or the answer names no processors.
    """
    for said in _said(answer):
        for name in names:
            if name not in said:
                raise NotRun(
                    f"{name} did not run on this answer, which names "
                    f"{shown(', '.join(said) or 'none', 200)}: the request was sent without this "
                    "attachment, or something between the client and the server dropped it"
                )


def _said(answer: Any) -> list[list[str]]:
    """Return the names of the processors that ran, for each prompt or choice of an answer."""
    if isinstance(answer, list | tuple) and answer:
        return [one for part in answer for one in _said(part)]
    choices = answer.get("choices") if isinstance(answer, Mapping) else None
    if isinstance(choices, list) and choices:
        if not all(isinstance(one, Mapping) and one.get("meta_info") for one in choices):
            raise NotRun(
                "expected choices with meta_info, got an answer without; send "
                '"return_meta_info": true, or give the response with its headers'
            )
        return _said(choices)
    if isinstance(answer, Mapping) and isinstance(answer.get("meta_info"), Mapping):
        report = answer["meta_info"].get(REPORT)
        if isinstance(report, Mapping):
            return [[*report.get("processors", ())]]
        raise NotRun(_untold('its meta_info has no "sglang_lp"'))
    headers = getattr(answer, "headers", answer)
    if not hasattr(headers, "items"):
        raise NotRun(
            "expected a response with headers, headers, or an answer of /generate, "
            f"got {shown(answer)}"
        )
    found = (value for name, value in headers.items() if name.lower() == HEADER.lower())
    value = next(found, None)
    if value is None:
        raise NotRun(_untold(f"it has no header {HEADER}"))
    return [[] if value == "none" else [name.strip() for name in value.split(",")]]


def _untold(why: str) -> str:
    return (
        f"the answer does not say which processors ran: {why}; its server runs no sglang-lp, or "
        "no processor ran, or a proxy dropped it"
    )
