"""An SGLang plugin that lets models with rotary embeddings run on a machine without a GPU.

SGLang wants vLLM's kernel there, and computes without it all the same.
"""

from __future__ import annotations

import sys
import types
from typing import Any

__all__ = ["NAME", "install"]

#: What ``SGLANG_PLUGINS`` calls this plugin.
NAME = "sglang_lp_cpu_rotary"


def install() -> None:
    """Change SGLang in this process; SGLang calls this before it makes a scheduler."""
    from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding

    if RotaryEmbedding.forward_cuda is RotaryEmbedding.forward_native:
        return  # A server that loads every plugin loads this plugin under two names.
    original = RotaryEmbedding.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        operations = types.ModuleType("vllm._custom_ops")
        vars(operations)["rotary_embedding"] = None
        sys.modules["vllm"] = types.ModuleType("vllm")
        sys.modules["vllm._custom_ops"] = operations
        try:
            original(self, *args, **kwargs)
        finally:
            del sys.modules["vllm"], sys.modules["vllm._custom_ops"]

    RotaryEmbedding.__init__ = init
    RotaryEmbedding.forward_cuda = RotaryEmbedding.forward_native
