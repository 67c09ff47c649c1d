"""Chat templates are programs: a client fills in the operator's, and sends none of its own.

SGLang refuses a client's template in chats only, from 0.5.21 on. It renders one of
``/v1/responses`` in its event loop, which a loop in the template would stop for good.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sglang_lp.errors import RequestError

_KWARGS = "chat_template_kwargs"
_TEMPLATE = "chat_template"
#: Arguments of the tokenizer, not of the template: ``max_length`` with ``padding`` fills memory,
#: and SGLang itself gives the last five, so a client's are HTTP 500.
_OF_TOKENIZER = (
    *("max_length", "padding", "return_tensors", "tokenizer_kwargs", "truncation"),
    *("add_generation_prompt", "messages", "return_dict", "tokenize", "tools"),
)


def check_chat_template(body: Any, *, trusted: bool) -> None:
    """Check what a body of any route gives to the chat template.

    Args:
        body: As SGLang has parsed it.
        trusted: Whether the operator trusts clients' templates (``--trust-request-chat-template``).

    Raises:
        RequestError: It has a template of its own, or arguments that no template reads.
    """
    kwargs = body.get(_KWARGS) if isinstance(body, Mapping) else None
    if not isinstance(kwargs, Mapping):
        return
    if _TEMPLATE in kwargs and not trusted:
        raise RequestError(
            f"{_KWARGS}: expected no {_TEMPLATE}, as a template is a program, got one; leave it "
            "out, or ask the operator for --trust-request-chat-template"
        )
    for name in _OF_TOKENIZER:
        if name in kwargs:
            raise RequestError(
                f"{_KWARGS}: expected variables of the chat template, got {name}, an argument of "
                "the tokenizer; leave it out"
            )
