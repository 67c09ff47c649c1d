"""What the built-in processors take, said in words and shown in requests."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from sglang_lp import builtins

__all__ = ["Parameter", "base", "example", "page", "parameters"]

#: SGLang keeps numbers in 32 bits; to say so of each would be noise.
_NO_BOUND = 2**31 - 1

#: A request's parameters for each processor, to show and to try. The ids are those of nothing in
#: particular, except where the text says so.
_EXAMPLES: dict[str, dict[str, Any]] = {
    "AllowedTokensLogitProcessor": {"token_ids": [15, 16, 17, 18, 19]},
    "BadWordsLogitProcessor": {"token_ids": [1234, 567, 890], "lengths": [2, 1]},
    "ChainLogitProcessor": {
        "chain": ["DisallowedTokensLogitsProcessor", "DRYLogitProcessor"],
        "0.token_ids": [1234],
        "1.dry_multiplier": 1.2,
    },
    "ChoiceLogitProcessor": {
        "token_ids": [9642, 2822, 36, 1588],
        "lengths": [1, 1, 2],
        "eos_token_id": 2,
    },
    "DRYLogitProcessor": {"dry_multiplier": 0.8, "dry_sequence_breaker_ids": [198, 25]},
    "DeepseekOCRNoRepeatNGramLogitProcessor": {"preset": "deepseek-ocr"},
    "DisallowedTokensLogitsProcessor": {"token_ids": [1234, 567]},
    "ForcedSequenceLogitProcessor": {"token_ids": [1234, 567], "eos_token_id": 2},
    "ForcedWordsLogitProcessor": {
        "token_ids": [1234, 567, 890],
        "lengths": [2, 1],
        "eos_token_ids": [2],
        "within_tokens": 256,
    },
    "LoopBreakerLogitProcessor": {"max_pattern_size": 64, "min_count": 4, "action": "end"},
    "MinLengthLogitProcessor": {"min_tokens": 100, "end_token_ids": [2]},
    "ScheduledBiasLogitProcessor": {
        "token_ids": [2],
        "bias": 0.0,
        "final_bias": 8.0,
        "start": 200,
        "end": 400,
    },
    "ThinkingBudgetLogitProcessor": {
        "thinking_budget": 512,
        "thinking_start": "<think>",
        "thinking_end": "</think>",
    },
    "TriggerPhraseLogitProcessor": {"trigger_token_ids": [1234], "phrase_token_ids": [567, 890]},
}

_INTRODUCTION = """\
# The processors

<!-- Written by `sglang-lp list --markdown` from the classes themselves; do not edit. -->

Every built-in processor with its parameters, the entries of a request's `custom_params`.
All of them are checked before the request is queued:
a wrong or unknown one is an HTTP 400 that says what was expected.
Token ids are those of the served model's tokenizer; those in the examples are made up.

The requests name a processor in short, which a server with the plugin takes.
`sglang-lp payload NAME` prints SGLang's own text for it, which every server takes,
and `attach` writes that text for you:

```python
from sglang_lp.client import attach
```

What a processor *needs* is what it must know of the tokens generated so far.
*Nothing*: its edits are the same at every step.
*Position*: how many they are.
*Tokens*: which they are; for batches with such a request the plugin has SGLang sample a step
only when the token of the one before is in the history.

What several edits of one step come to does not depend on their order.
Biases on a token add up and end at 10,000; of several sets of allowed tokens only what is in all
of them stays; a ban takes a token out of what is allowed; a forced token is the only one left,
whatever its bias.
Edits that leave no token (two tokens forced, one forced and banned, nothing allowed left, nothing
that a grammar also allows) change nothing: the request ends with an error that says which it was,
and the rest of the batch goes on.
"""

_NEEDS = ("nothing", "position", "tokens")


class Parameter(NamedTuple):
    """One parameter of a processor.

    Attributes:
        name: Its key in ``custom_params``.
        kind: Type and range in words.
        default: In JSON's notation, or ``"required"``.
        about: What it means, from the documentation of ``Params``; may be empty.
    """

    name: str
    kind: str
    default: str
    about: str


def parameters(processor: type[Any]) -> list[Parameter]:
    """Return what a processor takes, in the order in which its ``Params`` says it."""
    named = msgspec.json.schema(processor.Params)["$defs"]
    schema = named[processor.Params.__name__]
    about = _attributes(inspect.getdoc(processor.Params) or "")
    required = schema.get("required", ())
    return [
        Parameter(
            name,
            _kind(kind, named),
            "required" if name in required else json.dumps(kind.get("default")),
            about.get(name, ""),
        )
        for name, kind in schema["properties"].items()
    ]


def base(processor: type[Any]) -> type[Any] | None:
    """Return the built-in whose parameters this one shares, if it is derived from one."""
    parent: type[Any] = processor.__mro__[1]
    return parent if parent.__name__ in builtins.__all__ else None


def example(name: str) -> dict[str, Any]:
    """Return parameters that a built-in takes."""
    if name in _EXAMPLES:
        return _EXAMPLES[name]
    return {"thinking_budget": 512}  # a model family's


def page() -> str:
    """Return the page of the documentation that describes every processor, in Markdown."""
    sections = [_INTRODUCTION]
    for name in sorted(builtins.__all__, key=str.lower):
        processor = getattr(builtins, name)
        if base(processor) is None:
            sections.append("\n".join(_section(processor)))
    return "\n".join(sections)


def _section(processor: type[Any]) -> Iterator[str]:
    name = processor.__name__
    yield f"## {name}\n"
    yield _markdown(inspect.getdoc(processor) or "") + "\n"
    is_chain = processor is builtins.ChainLogitProcessor
    yield f"Needs: {'what its links need' if is_chain else _NEEDS[processor.needs]}.\n"
    yield "| parameter | type and range | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for one in parameters(processor):
        default = one.default if one.default == "required" else f"`{one.default}`"
        yield f"| `{one.name}` | {one.kind} | {default} | {_markdown(one.about)} |"
    yield ""
    yield from _family(processor)
    yield from _requests(name, example(name))


def _family(processor: type[Any]) -> Iterator[str]:
    """Yield the table of the built-ins that share a processor's parameters."""
    derived = [name for name in builtins.__all__ if base(getattr(builtins, name)) is processor]
    if derived:
        yield "These take the same parameters:\n"
        yield "| processor | |"
        yield "| --- | --- |"
        for name in derived:
            yield f"| `{name}` | {_markdown(_summary(getattr(builtins, name)))} |"
        yield ""


def _requests(name: str, params: dict[str, Any]) -> Iterator[str]:
    yield "```sh"
    yield "curl http://127.0.0.1:30000/generate -H 'Content-Type: application/json' -d '{"
    yield '  "text": "Once upon a time",'
    yield f'  "custom_logit_processor": "{name}",'
    yield f'  "sampling_params": {{"custom_params": {json.dumps(params)}}}'
    yield "}'"
    yield "```\n"
    yield "```python"
    yield f"processor = {_attach(name, params)}"
    yield "client.chat.completions.create(**request, extra_body=processor.extra_body())  # openai"
    yield 'engine.generate(**processor.engine_kwargs(prompt="Once upon a time"))  # sglang.Engine'
    yield "```\n"


def _attach(name: str, params: dict[str, Any]) -> str:
    """Write the call that attaches a processor."""
    if name == builtins.ChainLogitProcessor.__name__:
        links = []
        for place, link in enumerate(params["chain"]):
            own = {key: value for key, value in params.items() if key.startswith(f"{place}.")}
            links.append(_attach(link, {key.partition(".")[2]: own[key] for key in own}))
        return f"attach([{', '.join(links)}])"
    given = [f"{key}={json.dumps(value)}" for key, value in params.items()]  # Python's, too
    return f"attach({', '.join([json.dumps(name), *given])})"


def _summary(processor: type[Any]) -> str:
    return (inspect.getdoc(processor) or "").partition("\n")[0]


def _attributes(doc: str) -> dict[str, str]:
    """Return what a docstring in Google style says of each attribute."""
    section = doc.partition("Attributes:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^    (\w+): (.+(?:\n {5,}.+)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def _markdown(doc: str) -> str:
    """Turn the few marks of a docstring into Markdown's."""
    text = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"`\1`", doc).replace("``", "`")
    return re.sub(
        r"::\n\n((?: {4}.*\n?)+)",
        lambda block: f":\n\n```json\n{inspect.cleandoc(block[1])}\n```\n",
        text,
    )


def _kind(schema: dict[str, Any], named: dict[str, Any]) -> str:
    """Say a JSON schema in words; ``null`` goes without saying where it is the default."""
    if "$ref" in schema:
        return _kind(named[schema["$ref"].rpartition("/")[2]], named)
    if "anyOf" in schema:
        options = [option for option in schema["anyOf"] if option != {"type": "null"}]
        return " or ".join(_kind(option, named) for option in options)
    if schema.get("type") == "array":
        filled = "non-empty " if schema.get("minItems") else ""
        kind, _, bounds = _kind(schema["items"], named).partition(" ")
        most = f", at most {schema['maxItems']:,} of them" if "maxItems" in schema else ""
        return f"{filled}list of {kind}s {bounds}".rstrip() + most
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    return f"{schema.get('type', 'any value')}{_bounds(schema)}"


def _bounds(schema: dict[str, Any]) -> str:
    """Say in which range a number lies."""
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    most = schema.get("maximum", _NO_BOUND)
    if most >= _NO_BOUND:
        return f" >= {least:g}" if least is not None else ""
    if least is None:
        return f" above {above:g}, up to {most:g}"
    return f" from {least:g} to {most:g}"
