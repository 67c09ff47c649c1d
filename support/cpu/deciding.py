"""An SGLang plugin that decides about logits on a CPU as on a GPU, with ``VARIABLE`` set."""

from __future__ import annotations

import os

from sglang_lp.testing.deciding import decided_as_on_a_gpu

__all__ = ["VARIABLE", "install"]

VARIABLE = "SGLANG_LP_TEST_DECIDING"
_decided = decided_as_on_a_gpu()


def install() -> None:
    """Change this process, if the environment says so."""
    if VARIABLE in os.environ:
        _decided.__enter__()
