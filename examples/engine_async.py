"""Use a processor with an engine in this process: ban the longest word of the model's own answer.

python examples/engine_async.py MODEL
"""

from __future__ import annotations

import re
from argparse import ArgumentParser
from typing import Any

from sglang_lp import attach

PROMPT = "What is the capital of France?"
GREEDY = {"temperature": 0, "max_new_tokens": 24}
#: Settings for a small model without a GPU.
ON_CPU = {
    "device": "cpu",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_cuda_graph": True,
    "max_total_tokens": 8192,
}


async def answers(engine: Any) -> tuple[str, str, str]:
    """Return the model's answer, its longest word, and the answer without that word."""
    own = (await engine.async_generate(PROMPT, GREEDY))["text"]
    word = max(re.findall(r"\w+", own), key=len)
    without = attach("BadWordsLogitProcessor", words=[word], ignore_case=True)
    other = (await engine.async_generate(PROMPT, **without.engine_kwargs(GREEDY)))["text"]
    return own, word, other


def main(model: str) -> None:
    """Start an engine and print the answers."""
    import sglang
    import torch

    device = {} if torch.cuda.is_available() else ON_CPU
    with sglang.Engine(model_path=model, enable_custom_logit_processor=True, **device) as engine:
        own, word, other = engine.loop.run_until_complete(answers(engine))
    print(f"the model's own answer: {own!r}")
    print(f"without {word!r}: {other!r}")


if __name__ == "__main__":  # SGLang starts its processes by importing this file again
    parser = ArgumentParser()
    parser.add_argument("model", help="a model's name or directory")
    main(parser.parse_args().model)
