"""Shares of structured answers that parse, with and without ``whole_answer``, by their limit.

Run it as ``make bench PART=complete``. It asks SmolLM2-135M-Instruct where ``make evidence`` has
made it, and otherwise the demo's model, which was never taught JSON. The results go to
``benchmarks/results/complete.json`` and to ``docs/structured.md``.

``python -m benchmarks.complete --model DIRECTORY`` asks another checkpoint instead, with its own
chat template, and prints the table.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import jsonschema
import orjson

from benchmarks.evidence.judging import share
from benchmarks.evidence.report import shown_share
from benchmarks.machine import machine
from benchmarks.pages import Part
from benchmarks.tables import table
from demo.model import DEFAULT_DIRECTORY, ensure_model
from demo.server import serve, serve_speaking
from demo.speaking import chat, find_speaking_model

__all__ = ["PART"]

LIMITS = (32, 64, 128, 256)
TEMPERATURE = 0.7
#: Requests in a batch.
AT_ONCE = 16
SECONDS = 900

_TEXT, _NUMBER = {"type": "string"}, {"type": "integer"}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


SCHEMAS: Mapping[str, Any] = {
    "its name, its age and what it is like": _object(name=_TEXT, age=_NUMBER, about=_TEXT),
    "three facts about it": _object(facts={"type": "array", "items": _TEXT, "minItems": 3}),
    "its parts, each with a name and a number": _object(
        parts={"type": "array", "items": _object(name=_TEXT, number=_NUMBER)}
    ),
}
THINGS = (
    *("a sheep", "the moon", "a bicycle", "a lighthouse", "bread", "a violin", "the sea"),
    *("a clock", "a beehive", "a library", "a volcano", "a train", "an apple tree", "a bridge"),
    *("a robot", "a castle"),
)


class Ask(NamedTuple):
    """One request.

    Attributes:
        limit: Its ``max_new_tokens``.
        is_whole: Whether it has ``whole_answer``.
        thing: The subject of the document.
        wish: A key of ``SCHEMAS``.
    """

    limit: int
    is_whole: bool
    thing: str
    wish: str


class Came(NamedTuple):
    """Whether an answer is a document of its schema, and whether it was led."""

    fits: bool
    led: bool


def measure(model: Path | None = None) -> dict[str, Any]:
    """Ask for every document at every limit, with and without ``whole_answer``.

    Args:
        model: Directory of a checkpoint; ``None`` for SmolLM2 or the demo's model.
    """
    speaking = model or find_speaking_model()
    serving = serve_speaking(speaking) if speaking else serve(ensure_model(DEFAULT_DIRECTORY))
    prompt = chat if model is None else prompts_of(model)
    asked = [Ask(*one) for one in product(LIMITS, (False, True), THINGS, SCHEMAS)]
    with (
        serving as url,
        httpx.Client(timeout=SECONDS, trust_env=False) as http,
        ThreadPoolExecutor(AT_ONCE) as pool,
    ):
        came = [*zip(asked, pool.map(lambda one: _ask(http, url, one, prompt), asked), strict=True)]
    rows = []
    for limit in LIMITS:
        without, whole = (
            [one for ask, one in came if (ask.limit, ask.is_whole) == (limit, is_whole)]
            for is_whole in (False, True)
        )
        rows.append(
            {
                "limit": limit,
                "without": share([one.fits for one in without]),
                "whole": share([one.fits for one in whole]),
                "led": share([one.led for one in whole]),
            }
        )
        print(rows[-1], flush=True)
    name = "SmolLM2-135M-Instruct" if speaking else "the demo's model"
    name = name if model is None else model.resolve().name
    return {"machine": machine(), "model": name, "temperature": TEMPERATURE, "rows": rows}


def prompts_of(model: Path) -> Callable[[str], str]:
    """Return how a checkpoint is asked a question: by its chat template, if it has one.

    Args:
        model: Directory of the checkpoint.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    if not tokenizer.chat_template:
        return lambda question: question

    def prompt(question: str) -> str:
        said = [{"role": "user", "content": question}]
        return str(
            tokenizer.apply_chat_template(
                said, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        )

    return prompt


def _ask(http: httpx.Client, url: str, ask: Ask, prompt: Callable[[str], str]) -> Came:
    schema = SCHEMAS[ask.wish]
    sampling = {
        "max_new_tokens": ask.limit,
        "temperature": TEMPERATURE,
        "json_schema": orjson.dumps(schema).decode(),
        **({"custom_params": {"whole_answer": True}} if ask.is_whole else {}),
    }
    text = prompt(f"Tell me about {ask.thing}, as JSON: {ask.wish}.")
    body = {"text": text, "sampling_params": sampling}
    reply = http.post(f"{url}/generate", json=body).raise_for_status().json()
    report = reply["meta_info"].get("sglang_lp", {}).get("whole_answer", {})
    return Came(_is_document(reply["text"], schema), report.get("led_from") is not None)


def _is_document(text: str, schema: Mapping[str, Any]) -> bool:
    try:
        jsonschema.validate(orjson.loads(text), schema)
    except (orjson.JSONDecodeError, jsonschema.ValidationError):
        return False
    return True


def page_block(results: Mapping[str, Any]) -> str:
    """Return the part of the page that comes from the results, in Markdown."""
    head = ("`max_new_tokens`", "SGLang", "with `whole_answer`", "of these led")
    rows = (
        (str(row["limit"]), *(shown_share(row[name]) for name in ("without", "whole", "led")))
        for row in results["rows"]
    )
    said = f"The model is {results['model']}, at a temperature of {results['temperature']}."
    return "\n".join(["", said, "", *table(head, rows), ""])


PART = Part("complete", "structured.md", page_block)


def main() -> None:
    """Measure; store and renew the page, or print the table of another checkpoint."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.complete")
    parser.add_argument("--model", type=Path, help="directory of a checkpoint; prints its table")
    model = parser.parse_args().model
    if model is None:
        PART.store(measure())
    elif not (model / "config.json").is_file():
        parser.error(f"--model: expected the directory of a checkpoint, with config.json: {model}")
    else:
        print(page_block(measure(model)))


if __name__ == "__main__":
    main()
