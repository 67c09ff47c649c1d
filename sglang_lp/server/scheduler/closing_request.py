"""Requests whose answers have to be complete at their limit, as the scheduler's gate marks them."""

from __future__ import annotations

from typing import Any

#: Attribute of SGLang's request: the tokens that its processors ban from the answer.
BANNED = "sglang_lp_banned"


def ask_for_end(req: Any, banned: frozenset[int]) -> None:
    """Have the answer of a request complete at its limit.

    Args:
        req: SGLang's request, before its grammar is compiled.
        banned: Tokens that its processors ban.
    """
    setattr(req, BANNED, banned)
