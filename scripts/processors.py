"""Writes the processors' pages from their classes: ``.venv/bin/python -m scripts.processors``.

``docs/processors.md`` lists them by task; ``docs/processors`` has a page for each, without those
that share another's parameters.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from sglang_lp import builtins
from sglang_lp.cli.describe import list_parameters, to_markdown

__all__ = ["FOLDER", "LIST", "TITLES", "find_base", "write_pages"]

LIST = Path("docs/processors.md")
FOLDER = Path("docs/processors")
#: Columns of a block of code; the site shows so many without a scroll.
_WIDTH = 88

_WRITTEN = (
    "<!-- Written by `.venv/bin/python -m scripts.processors` from the classes; do not edit. -->"
)

#: A literal block of a docstring.
_BLOCK = re.compile(r"::\n\n((?: {4}.*\n?)+)")

#: What a reader looks for, by class name, in groups of the list.
TITLES = {
    "Thinking": {"ThinkingBudgetLogitProcessor": "Thinking budget"},
    "Words and tokens": {
        "BadWordsLogitProcessor": "Banned words",
        "BiasWordsLogitProcessor": "Likelier words",
        "ForcedWordsLogitProcessor": "Words that must come",
        "CiteFromPromptLogitProcessor": "Words of the prompt",
        "ScriptLogitProcessor": "Writing systems",
        "DisallowedTokensLogitsProcessor": "Banned tokens",
        "AllowedTokensLogitProcessor": "Allowed tokens",
    },
    "The form of an answer": {
        "ForcedSequenceLogitProcessor": "Forced beginning",
        "ChoiceLogitProcessor": "Choice: one of several answers",
        "CatalogueLogitProcessor": "Items of a catalogue",
        "TriggerPhraseLogitProcessor": "Phrase after a trigger",
        "ToolCallLimitLogitProcessor": "Limit on tool calls",
        "LocateAnythingBoxGrammarLogitProcessor": "Well-formed boxes",
    },
    "Length": {
        "MinLengthLogitProcessor": "Minimum length",
        "GenLengthLogitProcessor": "Shorter or longer answers",
    },
    "Repetition": {
        "LoopBreakerLogitProcessor": "Loops",
        "DRYLogitProcessor": "DRY: do not repeat yourself",
        "DeepseekOCRNoRepeatNGramLogitProcessor": "No repeated n-grams",
    },
    "Sampling": {
        "TemperatureLogitProcessor": "Temperature for one phase",
        "TopNSigmaLogitProcessor": "Top-n-sigma",
        "ScheduledBiasLogitProcessor": "Bias that changes",
        "WatermarkLogitProcessor": "Watermark",
    },
    "Several": {"ChainLogitProcessor": "Several processors in one request"},
}

#: Guides that say more than a docstring.
_GUIDES = {
    "ThinkingBudgetLogitProcessor": "[thinking budgets](../thinking.md), and "
    "[models and their delimiters](../thinking-models.md)",
    "BadWordsLogitProcessor": "[text instead of token ids](../text.md)",
    "CatalogueLogitProcessor": "[catalogues](../catalogues.md), which the operator builds",
    "LoopBreakerLogitProcessor": "[evidence](../evidence.md) on a real model",
    "WatermarkLogitProcessor": "[watermarks](../watermark.md), keys and detection",
}

_INTRODUCTION = f"""\
# The processors

{_WRITTEN}

Every built-in processor, by what it is for, with a page for each: a request to copy, and its parameters.
For tasks that take more than one of them, see the [recipes](recipes.md).
`sglang-lp list` prints the same in a terminal.
"""

_RULES = """\
## What holds for all of them

Parameters are the entries of a request's `custom_params`.
They are checked before the request is queued: a wrong or unknown parameter gets an HTTP 400 that says what was expected.
Token ids are those of the served model's tokenizer; the ids in the examples are made up.

The requests give a processor's short name.
Send them only to a server with the plugin: a stock server with `--enable-custom-logit-processor` crashes on a processor's name.
`sglang-lp payload NAME` prints SGLang's own text for the processor, which every server accepts, and `attach` writes that text for you.

The order of edits in one step does not matter:

- Biases on a token add up, to 10,000 at most.
- Several sets of allowed tokens leave their intersection.
- A banned token stays banned, even if a set allows it.
- A forced token is the only one left, whatever its bias.
- If no token is left, the logits do not change: the request ends with an error that names the conflict, and the rest of the batch continues.
  Examples: two tokens forced, one token forced and banned, or no allowed token that a grammar also allows.
"""

_NEEDS = (
    "nothing: the edits are the same at every step",
    "the position: the number of generated tokens",
    "the generated tokens, of which a server with the plugin knows [all](../history.md)",
)


def write_pages() -> dict[Path, str]:
    """Return the text of every page, by its path in the repository."""
    pages = {LIST: "".join(_list())}
    for titles in TITLES.values():
        for name, title in titles.items():
            page = "\n".join(_page(getattr(builtins, name), title))
            pages[FOLDER / f"{name}.md"] = page.rstrip() + "\n"
    return pages


def _list() -> Iterator[str]:
    yield _INTRODUCTION
    for group, titles in TITLES.items():
        yield f"\n## {group}\n\n| for | it does this |\n| --- | --- |\n"
        for name, title in titles.items():
            # The address that a section had when all of them were one page.
            old = f'<a id="{name.lower()}"></a>'
            about = _about(getattr(builtins, name))[0]
            yield f"| {old}[{title}](processors/{name}.md)<br>`{name}` | {about} |\n"
    yield f"\n{_RULES}"


def _page(processor: type[Any], title: str) -> Iterator[str]:
    name = processor.__name__
    first, more = _about(processor)
    yield f"# {title}\n\n{_WRITTEN}\n\n`{name}`: {first[0].lower()}{first[1:]}\n"
    yield from _requests(name, processor.example)
    if more:
        yield f"## What it does\n\n{more}\n"
    if name in _GUIDES:
        yield f"More about it: {_GUIDES[name]}.\n"
    yield "## Parameters\n"
    yield "| parameter | type and range | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for one in list_parameters(processor):
        default = one.default if one.default == "required" else f"`{one.default}`"
        about = to_markdown(one.about).replace("|", r"\|")
        yield f"| `{one.name}` | {one.kind} | {default} | {about} |"
    is_chain = processor is builtins.ChainLogitProcessor
    yield f"\nIts edits depend on {'what its links need' if is_chain else _NEEDS[processor.needs]}."
    yield "[For all processors](../processors.md#what-holds-for-all-of-them): contradictions, names.\n"
    yield from _derived(processor)


def _about(processor: type[Any]) -> tuple[str, str]:
    """Return the first line about a class, and the rest, as Markdown."""
    first, _, more = to_markdown(inspect.getdoc(processor) or "").partition("\n")
    return first, _BLOCK.sub(_write_block, more).strip()


def _write_block(block: re.Match[str]) -> str:
    """Return a literal block of a docstring as a block of JSON."""
    return f":\n\n```json\n{inspect.cleandoc(block[1])}\n```\n"


def find_base(processor: type[Any]) -> type[Any] | None:
    """Return the built-in that a class is derived from and shares parameters with, if any."""
    parent: type[Any] = processor.__mro__[1]
    return parent if parent.__name__ in builtins.__all__ else None


def _derived(processor: type[Any]) -> Iterator[str]:
    """Yield the table of the built-ins that share a processor's parameters."""
    derived = [name for name in builtins.__all__ if find_base(getattr(builtins, name)) is processor]
    if derived:
        yield "## Classes with the same parameters\n"
        yield "| processor | |"
        yield "| --- | --- |"
        for name in derived:
            yield f"| `{name}` | {_about(getattr(builtins, name))[0]} |"
        yield ""


def _requests(name: str, params: Mapping[str, Any]) -> Iterator[str]:
    yield "```sh"
    yield "curl http://127.0.0.1:30000/generate -H 'Content-Type: application/json' -d '{"
    yield '  "text": "Once upon a time",'
    yield f'  "custom_logit_processor": "{name}",'
    yield f'  "sampling_params": {{"custom_params": {_laid_out(params)}}}'
    yield "}'"
    yield "```\n"
    code = f"""\
from openai import OpenAI
from sglang_lp import attach

client = OpenAI(base_url="http://127.0.0.1:30000/v1", api_key="none")
processor = {_attach(name, params)}
answer = client.chat.completions.create(
    model="default",
    messages=[{{"role": "user", "content": "Tell me a story."}}],
    extra_body=processor.extra_body(),
)
"""
    yield f"```python\n{_formatted(code)}```\n"
    yield "Send the first request only to a server with the plugin: a stock server with"
    yield "`--enable-custom-logit-processor` crashes on a processor's name.\n"


def _laid_out(params: Mapping[str, Any]) -> str:
    """Write parameters as JSON, one a line where they are too long for one line."""
    pairs = [f"{_json(key)}: {_json(value)}" for key, value in params.items()]
    line = f"{{{', '.join(pairs)}}}"
    if len(line) <= _WIDTH - len('  "sampling_params": {"custom_params": }'):
        return line
    return "{\n      " + ",\n      ".join(pairs) + "}"


def _attach(name: str, params: Mapping[str, Any]) -> str:
    """Write the call that attaches a processor."""
    if name == builtins.ChainLogitProcessor.__name__:
        links = []
        for place, link in enumerate(params["chain"]):
            own = {key: value for key, value in params.items() if key.startswith(f"{place}.")}
            links.append(_attach(link, {key.partition(".")[2]: own[key] for key in own}))
        return f"attach([{', '.join(links)}])"
    given = [f"{key}={value!r}" for key, value in params.items()]
    return f"attach({', '.join([repr(name), *given])})"


def _formatted(code: str) -> str:
    command = (sys.executable, "-m", "ruff", "format", "--line-length", str(_WIDTH), "-")
    done = subprocess.run(command, input=code, capture_output=True, check=True, text=True)
    return done.stdout


def _json(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_json, value))}]"
    return orjson.dumps(value).decode()


def main() -> None:
    """Write the pages, and remove those of processors that are gone."""
    pages = write_pages()
    FOLDER.mkdir(exist_ok=True)
    for path in {*FOLDER.glob("*.md")} - {*pages}:
        path.unlink()
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
