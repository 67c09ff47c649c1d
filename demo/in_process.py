"""The scene that is played in process, with `Engine.async_generate`."""

from __future__ import annotations

import asyncio
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from demo.corpus import QUESTIONS, prompt
from demo.faulty import Faulty
from demo.scenes import BUDGET, GREETING, Model
from demo.server import ARGUMENTS
from demo.show import Scene, cut
from sglang_lp.client import attach

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["in_process"]

POLICY = 'allow = ["demo.faulty:Faulty"]\n'


def in_process(directory: Path, model: Model) -> Scene:
    """Run an engine in this process and ask it several things at once.

    One of the processors has a bug in it. Its operator allowed it, so it runs.
    """
    with tempfile.TemporaryDirectory() as scratch, patch.dict(os.environ):
        policy = Path(scratch, "policy.toml")
        policy.write_text(POLICY)
        os.environ["SGLANG_LP_POLICY"] = str(policy)
        import sglang

        engine = sglang.Engine(
            model_path=str(directory),
            log_level="critical",  # no traceback of the bug between the scenes
            **ARGUMENTS,
        )
        try:
            scene: Scene = engine.loop.run_until_complete(_play(engine, model))
        finally:
            engine.shutdown()
        return scene


async def _play(engine: Any, model: Model) -> Scene:
    scene = Scene("In process: four requests at once, one of them with a processor that raises")
    questions = list(QUESTIONS)
    greedy = {"temperature": 0, "max_new_tokens": 300}
    forced = attach(
        "ForcedSequenceLogitProcessor",
        text=GREETING,
        eos_token_ids=[model.ids.end_turn],
    )

    def ask(number: int, attachment: Any = None) -> Coroutine[Any, Any, Any]:
        fields: dict[str, Any] = {"prompt": prompt(questions[number]), "sampling_params": greedy}
        if attachment is not None:
            fields = attachment.engine_kwargs(**fields)
        result: Coroutine[Any, Any, Any] = engine.async_generate(**fields)
        return result

    calm = await ask(1)
    answers: tuple[Any, ...] = await asyncio.gather(
        ask(1),
        ask(2, model.budget(BUDGET)),
        ask(3, forced),
        ask(4, attach(Faulty)),
        return_exceptions=True,
    )
    plain, thought, greeting, fault = answers
    asked = model.budget(BUDGET).engine_kwargs(greedy, prompt=prompt(questions[2]))
    scene.traces(asked, thought)
    scene.row(questions[1], "none", cut(plain["text"], 160))
    scene.row(questions[2], f"thinking_budget={BUDGET}", cut(thought["text"], 160))
    scene.row(questions[3], f"forced: {GREETING}", greeting["text"])
    scene.row(questions[4], "a processor that raises at its fifth token", str(fault))
    scene.proves(
        "the request without a processor gets the same answer as alone",
        seen=plain["output_ids"] == calm["output_ids"],
    )
    closed = model.thought(thought["output_ids"])
    scene.proves(
        f"the budget holds: {closed} tokens between <think> and </think>",
        seen=closed in (BUDGET, BUDGET + 1),
    )
    scene.proves(f"the forced answer is {GREETING!r}", seen=greeting["text"] == GREETING)
    scene.proves(
        "the faulty processor ends its own request, with an error that names it",
        seen=isinstance(fault, Exception) and "Faulty" in str(fault),
    )
    after = await ask(1)
    scene.proves("the engine still answers", seen=after["output_ids"] == calm["output_ids"])
    return scene
