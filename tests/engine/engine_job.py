"""Run an in-process ``Engine`` on a job: JSON in, JSON out. Started by ``harness.run_engine``."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any


async def _play(engine: Any, batches: list[list[dict[str, Any]]]) -> list[list[Any]]:
    async def one(request: dict[str, Any]) -> Any:
        try:
            return await engine.async_generate(**request)
        except ValueError as error:
            return {"error": str(error)}

    return [await asyncio.gather(*map(one, batch)) for batch in batches]


def main(asked: str, answer: str) -> None:
    """Play the batches of the job one after the other, the requests of each at once."""
    from sglang import Engine

    job = json.loads(Path(asked).read_text())
    engine = Engine(**job["arguments"])
    replies = engine.loop.run_until_complete(_play(engine, job["batches"]))
    Path(answer).write_text(json.dumps(replies))
    engine.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
