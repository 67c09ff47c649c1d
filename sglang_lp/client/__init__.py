"""Attach a processor and its parameters to a request: checked here, before anything is sent.

>>> think = attach("Qwen3ThinkingBudgetLogitProcessor", thinking_budget=512)
>>> body = think.generate_body({"text": "What is 2 + 3?"})  # for POST /generate

Needs neither torch nor SGLang, only what ``pip install sglang-lp`` brings.
"""

from typing import TYPE_CHECKING

from sglang_lp.client.attachment import Attachment
from sglang_lp.client.batches import Attachments, attach_each
from sglang_lp.client.choices import Probabilities, probabilities
from sglang_lp.client.resuming import resume
from sglang_lp.client.rollouts import loss_mask, raw_logprobs
from sglang_lp.client.thinking import ThinkingBlock, thinking_blocks

if TYPE_CHECKING:  # with the parameters of each built-in
    from sglang_lp.client.calls import attach
else:
    from sglang_lp.client.attachment import attach

__all__ = [
    "Attachment",
    "Attachments",
    "Probabilities",
    "ThinkingBlock",
    "attach",
    "attach_each",
    "loss_mask",
    "probabilities",
    "raw_logprobs",
    "resume",
    "thinking_blocks",
]
