"""An SGLang plugin that makes ``--enable-strict-thinking`` run on a machine without a GPU.

On a CPU SGLang 0.5.23 masks logits for a request's own grammar, but not for strict thinking, which
uses the mask function of the grammar backend. The two functions differ only in that.
"""

from __future__ import annotations

__all__ = ["NAME", "install"]

#: What ``SGLANG_PLUGINS`` calls this plugin.
NAME = "sglang_lp_cpu_strict"


def install() -> None:
    """Let the backend mask as its grammars do."""
    from sglang.srt.constrained import xgrammar_backend

    def apply_vocab_mask(logits: object, vocab_mask: object) -> None:
        xgrammar_backend.XGrammarGrammar.apply_vocab_mask(None, logits, vocab_mask)

    xgrammar_backend.XGrammarGrammarBackend.apply_vocab_mask = staticmethod(apply_vocab_mask)
