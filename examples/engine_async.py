"""Use a processor with an engine in this process: ask twice at once, once with banned words.

python examples/engine_async.py MODEL
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from typing import Any

from sglang_lp import attach

PROMPT = "What is 2 + 3?"
GREEDY = {"temperature": 0, "max_new_tokens": 16}


async def answers(engine: Any) -> list[str]:
    """Return the model's answer, and the one that it gives without some words."""
    without = attach("BadWordsLogitProcessor", words=["5", "five"], ignore_case=True)
    replies = await asyncio.gather(
        engine.async_generate(PROMPT, GREEDY),
        engine.async_generate(PROMPT, **without.engine_kwargs(GREEDY)),
    )
    return [reply["text"] for reply in replies]


def main(model: str) -> None:
    """Start an engine and print the answers."""
    import sglang

    with sglang.Engine(model_path=model, enable_custom_logit_processor=True) as engine:
        for answer in engine.loop.run_until_complete(answers(engine)):
            print(repr(answer))


if __name__ == "__main__":  # SGLang starts its processes by importing this file again
    parser = ArgumentParser()
    parser.add_argument("model", help="a model's name or directory")
    main(parser.parse_args().model)
