"""A real SGLang ``Engine`` for tests, in a process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from support.processes import play
from support.settings import CPU_ARGUMENTS, RECORD, environment

#: What a job may take on a busy machine of two cores.
JOB_SECONDS = 420


def run_engine(
    model: Path,
    directory: Path,
    batches: Sequence[Sequence[Mapping[str, Any]]],
    *,
    paths: Sequence[Path] = (),
    variables: Mapping[str, str] | None = None,
) -> Any:
    """Start an engine and return its replies, one list for each batch.

    Args:
        model: Directory of a checkpoint.
        directory: Takes the requests, the replies, the log and the record.
        batches: Keyword arguments of ``Engine.async_generate``. The requests of a batch are sent
            at once, the batches one after the other.
        paths: Directories to import from.
        variables: Environment variables.

    Raises:
        EngineError: It failed.
    """
    job = {"arguments": {**CPU_ARGUMENTS, "model_path": str(model)}, "batches": batches}
    record = str(directory / "record.jsonl")
    env = environment({"OMP_NUM_THREADS": "1", RECORD: record, **(variables or {})}, paths)
    return play(__name__, job, directory, env, JOB_SECONDS, forked=True)


async def _replies(engine: Any, batches: list[list[dict[str, Any]]]) -> list[list[Any]]:
    async def one(request: dict[str, Any]) -> Any:
        try:
            return await engine.async_generate(**request)
        except ValueError as error:
            return {"error": str(error)}

    return [await asyncio.gather(*map(one, batch)) for batch in batches]


def main(asked: str, answer: str) -> None:
    """Play a job in this process."""
    from sglang import Engine

    job = orjson.loads(Path(asked).read_bytes())
    engine = Engine(**job["arguments"])
    replies = engine.loop.run_until_complete(_replies(engine, job["batches"]))
    Path(answer).write_bytes(orjson.dumps(replies))
    engine.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
