"""Attach a processor and its parameters to a request: checked here, before anything is sent.

>>> think = attach("Qwen3ThinkingBudgetLogitProcessor", thinking_budget=512)
>>> body = think.generate_body({"text": "What is 2 + 3?"})  # for POST /generate

Needs neither torch nor SGLang, only what ``pip install sglang-lp`` brings.
"""

from sglang_lp.client.attachment import Attachment, attach
from sglang_lp.client.blocks import ThinkingBlock, thinking_blocks
from sglang_lp.client.each import Attachments, attach_each
from sglang_lp.client.resolution import resolve

__all__ = [
    "Attachment",
    "Attachments",
    "ThinkingBlock",
    "attach",
    "attach_each",
    "resolve",
    "thinking_blocks",
]
