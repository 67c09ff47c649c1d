"""Descriptions of the built-in processors: their parameters in words, and example requests."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import orjson

from sglang_lp import builtins
from sglang_lp.params import Parameters

#: SGLang keeps numbers in 32 bits; repeating that bound for each would be noise.
_NO_BOUND = 2**31 - 1

_INTRODUCTION = """\
# The processors

<!-- Written by `sglang-lp list --markdown` from the classes themselves; do not edit. -->

Every built-in processor with its parameters, the entries of a request's `custom_params`.
They are checked before the request is queued:
a wrong or unknown parameter gets an HTTP 400 that says what was expected.
Token ids are those of the served model's tokenizer; the ids in the examples are made up.

The requests give a processor's short name.
Send them only to a server with the plugin: a stock server with
`--enable-custom-logit-processor` crashes on a processor's name.
`sglang-lp payload NAME` prints SGLang's own text for the processor, which every server accepts,
and `attach` writes that text for you:

```python
from sglang_lp.client import attach
```

*Needs* says which part of the generated tokens the edits depend on:

- *nothing*: the edits are the same at every step;
- *position*: the number of tokens;
- *tokens*: the ids. With the plugin [the history is exact](history.md), also with overlap
  scheduling.

The order of edits in one step does not matter:

- Biases on a token add up, to 10,000 at most.
- Several sets of allowed tokens leave their intersection.
- A banned token stays banned, even if a set allows it.
- A forced token is the only one left, whatever its bias.
- If no token is left, the logits do not change: the request ends with an error that names the
  conflict, and the rest of the batch continues. Examples: two tokens forced, one token forced and
  banned, or no allowed token that a grammar also allows.
"""

_NEEDS = ("nothing", "position", "tokens")


class Parameter(NamedTuple):
    """One parameter of a processor.

    Attributes:
        name: Its key in ``custom_params``.
        kind: Type and range in words.
        default: In JSON's notation, or ``"required"``.
        about: What it means, from the documentation of ``Params``; may be empty.
        schema: Its JSON schema, without ``null`` and without references.
    """

    name: str
    kind: str
    default: str
    about: str
    schema: Mapping[str, Any]


def list_parameters(processor: type[Any]) -> list[Parameter]:
    """Return the parameters of a processor, in the order of its ``Params``."""
    named = msgspec.json.schema(processor.Params)["$defs"]
    schema = named[processor.Params.__name__]
    kinds = [kind for kind in processor.Params.__mro__ if issubclass(kind, Parameters)]
    about: dict[str, str] = {}
    for kind in kinds:
        about = parse_attributes(inspect.getdoc(kind) or "") | about
    required = schema.get("required", ())
    return [
        Parameter(
            name,
            _name_kind(plain := _plain(kind, named)),
            "required" if name in required else _to_json(kind.get("default")),
            about.get(name, ""),
            plain,
        )
        for name, kind in schema["properties"].items()
    ]


def find_base(processor: type[Any]) -> type[Any] | None:
    """Return the built-in that a class is derived from and shares parameters with, if any."""
    parent: type[Any] = processor.__mro__[1]
    return parent if parent.__name__ in builtins.__all__ else None


def write_page() -> str:
    """Return the page of the documentation that describes every processor, in Markdown."""
    sections = [_INTRODUCTION]
    for name in sorted(builtins.__all__, key=str.lower):
        processor = getattr(builtins, name)
        if find_base(processor) is None:
            sections.append("\n".join(_write_section(processor)))
    return "\n".join(sections)


def _write_section(processor: type[Any]) -> Iterator[str]:
    name = processor.__name__
    yield f"## {name}\n"
    yield _to_markdown(inspect.getdoc(processor) or "") + "\n"
    is_chain = processor is builtins.ChainLogitProcessor
    yield f"Needs: {'what its links need' if is_chain else _NEEDS[processor.needs]}.\n"
    yield "| parameter | type and range | default | meaning |"
    yield "| --- | --- | --- | --- |"
    for one in list_parameters(processor):
        default = one.default if one.default == "required" else f"`{one.default}`"
        about = _to_markdown(one.about).replace("|", r"\|")
        yield f"| `{one.name}` | {one.kind} | {default} | {about} |"
    yield ""
    yield from _write_derived(processor)
    yield from _write_requests(name, processor.example)


def _write_derived(processor: type[Any]) -> Iterator[str]:
    """Yield the table of the built-ins that share a processor's parameters."""
    derived = [name for name in builtins.__all__ if find_base(getattr(builtins, name)) is processor]
    if derived:
        yield "These take the same parameters:\n"
        yield "| processor | |"
        yield "| --- | --- |"
        for name in derived:
            yield f"| `{name}` | {_to_markdown(_first_line(getattr(builtins, name)))} |"
        yield ""


def _write_requests(name: str, params: Mapping[str, Any]) -> Iterator[str]:
    yield "```sh"
    yield "curl http://127.0.0.1:30000/generate -H 'Content-Type: application/json' -d '{"
    yield '  "text": "Once upon a time",'
    yield f'  "custom_logit_processor": "{name}",'
    yield f'  "sampling_params": {{"custom_params": {_to_json(params)}}}'
    yield "}'"
    yield "```\n"
    yield "```python"
    yield f"processor = {_write_attach(name, params)}"
    yield "client.chat.completions.create(**request, extra_body=processor.extra_body())  # openai"
    yield 'engine.generate(**processor.engine_kwargs(prompt="Once upon a time"))  # sglang.Engine'
    yield "```\n"


def _write_attach(name: str, params: Mapping[str, Any]) -> str:
    """Write the call that attaches a processor."""
    if name == builtins.ChainLogitProcessor.__name__:
        links = []
        for place, link in enumerate(params["chain"]):
            own = {key: value for key, value in params.items() if key.startswith(f"{place}.")}
            links.append(_write_attach(link, {key.partition(".")[2]: own[key] for key in own}))
        return f"attach([{', '.join(links)}])"
    given = [f"{key}={_quote(value)}" for key, value in params.items()]
    return f"attach({', '.join([_quote(name), *given])})"


def _to_json(value: Any) -> str:
    return orjson.dumps(value).decode()


def _quote(value: Any) -> str:
    """Write a value as Python, texts in the double quotes that JSON has too."""
    return _to_json(value) if isinstance(value, str) else repr(value)


def summary(processor: type[Any]) -> str:
    """Return the first line about a class, as plain text: empty if there is none."""
    return _to_markdown(_first_line(processor)).replace("`", "")


def _first_line(processor: type[Any]) -> str:
    return (inspect.getdoc(processor) or "").partition("\n")[0]


def parse_attributes(doc: str) -> dict[str, str]:
    """Return the text for each attribute in a docstring in Google style."""
    section = doc.partition("Attributes:\n")[2].partition("\n\n")[0]
    found = re.findall(r"^    (\w+): (.+(?:\n {5,}.+)*)", section, re.MULTILINE)
    return {name: " ".join(text.split()) for name, text in found}


def _to_markdown(doc: str) -> str:
    """Turn the markup of a docstring into Markdown."""
    text = re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"`\1`", doc).replace("``", "`")
    return re.sub(
        r"::\n\n((?: {4}.*\n?)+)",
        lambda block: f":\n\n```json\n{inspect.cleandoc(block[1])}\n```\n",
        text,
    )


def _plain(schema: dict[str, Any], named: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON schema without references and without ``null``, which is the default then."""
    if "$ref" in schema:
        return _plain(named[schema["$ref"].rpartition("/")[2]], named)
    if "anyOf" in schema:
        options = [_plain(one, named) for one in schema["anyOf"] if one != {"type": "null"}]
        return options[0] if len(options) == 1 else {"anyOf": options}
    if "items" in schema:
        return {**schema, "items": _plain(schema["items"], named)}
    return schema


def _name_kind(schema: Mapping[str, Any]) -> str:
    """Put a JSON schema of :func:`_plain` into words."""
    if "anyOf" in schema:
        return " or ".join(map(_name_kind, schema["anyOf"]))
    if schema.get("type") == "array":
        filled = "non-empty " if schema.get("minItems") else ""
        kind, _, bounds = _name_kind(schema["items"]).partition(" ")
        most = f", at most {schema['maxItems']:,} of them" if "maxItems" in schema else ""
        return f"{filled}list of {kind}s {bounds}".rstrip() + most
    if "enum" in schema:
        return " or ".join(_to_json(value) for value in schema["enum"])
    return f"{schema.get('type', 'any value')}{_name_bounds(schema)}"


def _name_bounds(schema: Mapping[str, Any]) -> str:
    """Put the range of a number into words."""
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    most = schema.get("maximum", _NO_BOUND)
    if most >= _NO_BOUND:
        return f" >= {least:g}" if least is not None else ""
    if least is None:
        return f" above {above:g}, up to {most:g}"
    return f" from {least:g} to {most:g}"
