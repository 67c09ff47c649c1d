"""An engine in an actor of Ray, as a trainer has it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson
import ray

from support.settings import CPU_ARGUMENTS

#: Bytes; answers are small.
_STORE = 100_000_000


class Rollouts:
    """The actor's class."""

    def __init__(self, model: str) -> None:
        from sglang import Engine

        self._engine = Engine(**CPU_ARGUMENTS, model_path=model)

    def generate(self, asked: dict[str, Any]) -> Any:
        """Return the engine's answer, or what it raises."""
        try:
            return self._engine.generate(**asked)
        except ValueError as error:
            return str(error)

    def stop(self) -> None:
        """End the engine."""
        self._engine.shutdown()


def main(asked: str, answer: str) -> None:
    """Ask an actor everything that a job names."""
    job = orjson.loads(Path(asked).read_bytes())
    ray.init(_node_ip_address="127.0.0.1", include_dashboard=False, object_store_memory=_STORE)
    actor: Any = ray.remote(Rollouts).remote(job["model"])
    answers = [ray.get(actor.generate.remote(one)) for one in job["asked"]]
    Path(answer).write_bytes(orjson.dumps(answers))
    ray.get(actor.stop.remote())
    ray.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
