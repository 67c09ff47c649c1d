"""Tests of a processor without a server: fake requests, a decode to play, and a contract suite.

Needs torch, and SGLang only where a request is told to end as on a server.
"""

from sglang_lp.testing.contract import ProcessorContract
from sglang_lp.testing.deciding import decided_as_on_a_gpu
from sglang_lp.testing.playing import (
    Batch,
    BatchModel,
    Model,
    Played,
    Transcript,
    decode,
    run,
    step,
)
from sglang_lp.testing.requests import FakeRequest

__all__ = [
    "Batch",
    "BatchModel",
    "FakeRequest",
    "Model",
    "Played",
    "ProcessorContract",
    "Transcript",
    "decided_as_on_a_gpu",
    "decode",
    "run",
    "step",
]
