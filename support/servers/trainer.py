"""A trainer with an engine or a server of its own: in an actor's process, on no main thread.

An actor's worker starts as a new interpreter, and may run the actor's methods in threads.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
from pathlib import Path
from threading import Thread
from typing import Any

import orjson

from support.processes import free_port
from support.settings import CPU_ARGUMENTS

#: Tokens that have come when the weights change.
BEFORE = 20


def act(job: dict[str, Any], answer: str) -> None:
    """Do what an actor's method does: make an engine, and play the job."""
    from sglang import Engine

    engine = Engine(**CPU_ARGUMENTS, model_path=job["model"], enable_return_hidden_states=True)
    hidden = engine.generate(**job["hidden"], return_hidden_states=True)
    running = [
        engine.loop.create_task(_whole(engine, one, hold=index == 0))
        for index, one in enumerate(job["running"])
    ]
    engine.loop.run_until_complete(_update_after_some(engine, running, job["model"]))
    replies = engine.loop.run_until_complete(asyncio.gather(*running))
    engine.shutdown()
    answers = {"hidden": hidden, "running": replies, "served": _of_a_server(job)}
    Path(answer).write_bytes(orjson.dumps(answers))


def _of_a_server(job: dict[str, Any]) -> Any:
    """Return the answers of verl's server, which forks before any plugin is loaded."""
    from sglang.srt.entrypoints.http_server_engine import HttpServerEngineAdapter

    adapter = HttpServerEngineAdapter(**CPU_ARGUMENTS, model_path=job["model"], port=free_port())
    try:
        return adapter.generate(**job["served"])
    finally:
        adapter.shutdown()


_came = asyncio.Event()


async def _whole(engine: Any, asked: dict[str, Any], *, hold: bool) -> Any:
    """Return the last event of an answer, and say when some of its tokens have come."""
    last = None
    async for event in await engine.async_generate(**asked, stream=True):
        last = event
        if hold and event["meta_info"]["completion_tokens"] >= BEFORE:
            _came.set()
    return last


async def _update_after_some(engine: Any, running: list[Any], model: str) -> None:
    """Give the engine other weights in the middle of its answers."""
    from sglang.srt.managers import io_struct

    manager = engine.tokenizer_manager
    await _came.wait()
    await manager.pause_generation(io_struct.PauseGenerationReqInput(mode="in_place"))
    if any(one.done() for one in running):
        raise RuntimeError("the new weights came too late")
    sessions = hasattr(manager, "begin_weight_update")  # SGLang 0.5.23 has them
    if sessions:
        await manager.begin_weight_update(io_struct.BeginWeightUpdateReqInput(selector="all"), None)
    tensors = engine._serialize_tensors_per_rank(_other_weights(model), None)  # noqa: SLF001
    asked = io_struct.UpdateWeightsFromTensorReqInput(
        serialized_named_tensors=tensors, load_format=None, flush_cache=False
    )
    done, message = await manager.update_weights_from_tensor(asked, None)
    if not done:
        raise RuntimeError(message)
    if sessions:
        await manager.end_weight_update(io_struct.EndWeightUpdateReqInput(), None)
    await manager.continue_generation(io_struct.ContinueGenerationReqInput())


def _other_weights(model: str) -> list[tuple[str, Any]]:
    """Return weights that make the model's likely tokens unlikely."""
    from transformers import AutoModelForCausalLM

    name = "transformer.ln_f.weight"
    loaded: Any = AutoModelForCausalLM.from_pretrained(model)
    return [(name, -loaded.get_parameter(name).detach())]


def _in_a_thread(job: dict[str, Any], answer: str) -> None:
    thread = Thread(target=act, args=(job, answer))
    thread.start()
    thread.join()


def main(asked: str, answer: str) -> None:
    """Play a job in a spawned process, off its main thread."""
    job = orjson.loads(Path(asked).read_bytes())
    process = multiprocessing.get_context("spawn").Process(target=_in_a_thread, args=(job, answer))
    process.start()
    process.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
