"""Real SGLang servers and engines for tests: started as an operator would, ended whatever happens.

A server is a process group of its own. It is asked over loopback HTTP only.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).parent
SERVER_SIDE = HERE / "server_side"
#: Under which SGLang runs without a GPU. The KV pool is small enough to start at once.
CPU_ARGUMENTS: Mapping[str, Any] = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_cuda_graph": True,
    "grammar_backend": "none",
    "mem_fraction_static": 0.1,
    "max_total_tokens": 8192,
    "random_seed": 1,
    "skip_server_warmup": True,
    "enable_custom_logit_processor": True,
}
#: How SGLang itself starts a server.
SGLANG = (sys.executable, "-m", "sglang.launch_server")
#: What a start may take on a busy machine of two cores.
START_SECONDS = 420


class EngineError(RuntimeError):
    """A server or engine did not start, or ended; holds the end of its log."""


@dataclass
class Reply:
    """What one request came to.

    Attributes:
        status: HTTP status.
        body: The JSON answer, or the last event of a stream.
        events: The events of a stream, in order.
    """

    status: int
    body: Any
    events: list[Any] = field(default_factory=list)

    @property
    def output_ids(self) -> list[int]:
        """The generated tokens."""
        ids: list[int] = self.body["output_ids"]
        return ids

    @property
    def finish_reason(self) -> dict[str, Any]:
        """Why generation ended, as ``/generate`` says it."""
        reason: dict[str, Any] = self.body["meta_info"]["finish_reason"]
        return reason


@dataclass
class Server:
    """A running server.

    Attributes:
        url: Where it listens.
        log: Its standard output and error.
        record: File into which the processors and the probe of ``server_side`` write.
        process: Leader of its process group.
        arguments: SGLang's that it was started with.
        variables: Environment variables that were set for it.
    """

    url: str
    log: Path
    record: Path
    process: subprocess.Popen[bytes]
    arguments: Mapping[str, Any]
    variables: Mapping[str, str]

    def post(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Send one request; the answer may be a refusal."""
        response = httpx.post(self.url + path, json=body, timeout=120, trust_env=False)
        try:
            return Reply(response.status_code, response.json())
        except json.JSONDecodeError:
            return Reply(response.status_code, response.text)

    def generate(self, input_ids: Sequence[int], **body: Any) -> Reply:
        """``POST /generate`` with token ids as the prompt."""
        return self.post("/generate", {"input_ids": list(input_ids), **body})

    def stream(
        self, path: str, body: Mapping[str, Any], *, leave_after: int | None = None
    ) -> Reply:
        """Send a streaming request and collect its events.

        Args:
            path: Of the endpoint.
            body: Without ``stream``.
            leave_after: Number of events after which the client hangs up.
        """
        events: list[Any] = []
        with httpx.stream(
            "POST", self.url + path, json={**body, "stream": True}, timeout=120, trust_env=False
        ) as response:
            if response.headers["content-type"].startswith("application/json"):
                response.read()
                return Reply(response.status_code, response.json())
            for line in response.iter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    events.append(json.loads(line[6:]))
                    if len(events) == leave_after:
                        break
        return Reply(response.status_code, events[-1] if events else None, events)

    def at_once(self, requests: Sequence[Mapping[str, Any]], stagger: float = 0.0) -> list[Reply]:
        """``POST /generate`` all bodies concurrently, ``stagger`` seconds apart."""

        def send(index: int) -> Reply:
            time.sleep(index * stagger)
            return self.post("/generate", requests[index])

        with ThreadPoolExecutor(len(requests)) as pool:
            return list(pool.map(send, range(len(requests))))

    def records(self, event: str, **wanted: Any) -> list[dict[str, Any]]:
        """Return what was recorded so far: lines of one kind, with these values."""
        if not self.record.exists():
            return []
        lines = map(json.loads, self.record.read_text().splitlines())
        return [
            line
            for line in lines
            if line["event"] == event and all(line[key] == wanted[key] for key in wanted)
        ]

    def is_healthy(self) -> bool:
        """Tell whether the server still serves."""
        return self.process.poll() is None and (
            httpx.get(self.url + "/health", timeout=60, trust_env=False).status_code == 200
        )

    def log_text(self) -> str:
        """Return what the server wrote so far."""
        return self.log.read_text(errors="replace")


def environment(record: Path, **variables: str) -> dict[str, str]:
    """Return the environment of a server: no network, and the test's own modules importable."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("SGLANG_")}
    # Compiling tens of thousands of modules anew would double the time of every start.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        "PYTHONPATH": str(SERVER_SIDE),
        "OMP_NUM_THREADS": "1",  # the models are tiny, and the machine has other work
        "PYTHONUNBUFFERED": "1",
        "SGLANG_LP_TEST_RECORD": str(record),
        **variables,
    }


@contextmanager
def launch(
    model: Path,
    directory: Path,
    arguments: Mapping[str, Any] | None = None,
    *,
    command: Sequence[str | Path] = SGLANG,
    **variables: str,
) -> Iterator[Server]:
    """Run a server for the length of a ``with`` block.

    Args:
        model: Directory of a checkpoint.
        directory: Takes the log and the record.
        arguments: SGLang's, over ``CPU_ARGUMENTS``: ``True`` for a flag, ``None`` to leave out.
        command: What to run with these arguments.
        variables: Environment variables.

    Raises:
        EngineError: It ended, or was not ready in time.
    """
    port = _free_port()
    arguments = {
        **CPU_ARGUMENTS,
        "model_path": model,
        "host": "127.0.0.1",
        "port": port,
        **(arguments or {}),
    }
    log, record = directory / "server.log", directory / "record.jsonl"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *_flags(arguments)],
            env=environment(record, **variables),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        server = Server(f"http://127.0.0.1:{port}", log, record, process, arguments, variables)
        try:
            _await_health(server)
            yield server
        finally:
            end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_engine(model: Path, directory: Path, job: Mapping[str, Any], **variables: str) -> Any:
    """Run ``engine_job.py`` on a job in a process of its own; return what it writes.

    Args:
        model: Directory of a checkpoint.
        directory: Takes the job, the result, the log and the record.
        job: ``arguments`` over ``CPU_ARGUMENTS``, and ``batches``: lists of keyword arguments of
            ``Engine.async_generate``, each list sent at once.
        variables: Environment variables.

    Raises:
        EngineError: It failed.
    """
    arguments = {**CPU_ARGUMENTS, "model_path": str(model), **job.get("arguments", {})}
    asked, answer, log = (directory / name for name in ("job.json", "answer.json", "engine.log"))
    asked.write_text(json.dumps({**job, "arguments": arguments}))
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "engine_job.py"), str(asked), str(answer)],
            env=environment(directory / "record.jsonl", **variables),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            with suppress(subprocess.TimeoutExpired):  # the answer tells
                process.wait(START_SECONDS)
        finally:
            end(process)
    if not answer.exists():
        raise EngineError(f"the engine's job gave no answer:\n{_tail(log)}")
    return json.loads(answer.read_text())


def _await_health(server: Server) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            raise EngineError(f"the server ended at its start:\n{_tail(server.log)}")
        try:
            if httpx.get(server.url + "/health", timeout=5, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise EngineError(f"the server was not ready in {START_SECONDS} s:\n{_tail(server.log)}")


def _tail(log: Path) -> str:
    return "\n".join(line[:300] for line in log.read_text(errors="replace").splitlines()[-40:])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _flags(arguments: Mapping[str, Any]) -> list[str]:
    flags: list[str] = []
    for name, value in arguments.items():
        if value is not None and value is not False:
            flags.append("--" + name.replace("_", "-"))
            flags += [] if value is True else [str(value)]
    return flags
