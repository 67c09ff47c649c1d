"""A search for requests that cost more than those of :mod:`benchmarks.bounds.cases`.

Parameters come from each processor's own schema, often near its limits. Prompts and answers are
repetitive, or contain the tokens of the parameters. Hypothesis draws at random first and then
climbs towards the slowest requests (``hypothesis.target``).
"""

from __future__ import annotations

import contextlib
import random
import time
from array import array
from collections.abc import Mapping
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from msgspec import inspect

from benchmarks.bounds.cases import LONGEST, VOCAB, Dear
from benchmarks.bounds.run import Run, Server
from sglang_lp import builtins
from sglang_lp.errors import RequestError

__all__ = ["search"]

#: More examples than there is time for.
_EXAMPLES = 100_000
#: Steps of one example, and the processors of a chain.
_STEPS = 12
_LINKS = 8


def search(seconds: float) -> list[dict[str, Any]]:
    """Return the dearest request found for each processor and for chains.

    Args:
        seconds: For each of them.
    """
    found = []
    for name in builtins.__all__:
        processor = getattr(builtins, name)
        if getattr(processor, "family", None) is None:  # the families differ in their ids alone
            found.append(_search(name, seconds))
    return found


def _search(name: str, seconds: float) -> dict[str, Any]:
    until = time.monotonic() + seconds
    best: dict[str, Any] = {"processor": name, "tried": 0, "most_ms": 0.0, "request": "none"}
    server = Server()

    @hypothesis.seed(0)
    @hypothesis.settings(
        max_examples=_EXAMPLES,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.target),
        suppress_health_check=[*HealthCheck],
    )
    @hypothesis.given(_requests(name))
    def dearer(dear: Dear) -> None:
        if time.monotonic() > until:
            raise _OverError
        most = _most_ms(server, dear)
        best["tried"] += 1
        if most > best["most_ms"]:
            most = min(most, _most_ms(server, dear))  # not if something else took that time
        if most > best["most_ms"]:
            best["most_ms"], best["request"] = round(most, 4), _told(dear)
        hypothesis.target(most)

    # Flaky: the time was over in the middle of a request that was tried again.
    with contextlib.suppress(_OverError, hypothesis.errors.Flaky):
        dearer()
    return best


def _most_ms(server: Server, dear: Dear) -> float:
    """Return the time of the dearest step."""
    run = Run(server, dear)
    try:
        run.arrive()
    except RequestError:
        hypothesis.reject()
    steps = run.steps(dear.warm, dear.steps, 1.0)
    if run.ended:
        hypothesis.reject()
    return max(steps.first, *steps.each) * 1000


class _OverError(BaseException):
    """The time is over; not for Hypothesis to look into."""


def _told(dear: Dear) -> str:
    """Describe a request in a line."""
    params = {
        name: f"{len(value)} ids from {value[0]}"
        if isinstance(value, list) and len(value) > 4
        else value
        for name, value in dear.params.items()
    }
    return f"{params}, prompt {len(dear.prompt())} {dear.key}"


# Texts


@st.composite
def _requests(draw: st.DrawFn, name: str) -> Dear:
    params = draw(_chains() if name == "ChainLogitProcessor" else _params(name))
    kind = draw(st.sampled_from(["one", "few", "many", "pattern", "named", "after", "distinct"]))
    seed = draw(st.integers(0, 3))
    length = draw(st.sampled_from([1, 100, 3000, 20_000, LONGEST]))
    output = draw(st.sampled_from(["same", "one", "named", "many"]))
    prompt = _text(kind, seed, length, params)
    coming = prompt if output == "same" else _text(output, seed, 3000, params)
    return Dear(
        f"{kind}, then {output}",
        name,
        params,
        lambda: prompt,
        lambda: coming,
        warm=draw(st.sampled_from([0, 20, 1100])) if length < LONGEST else 0,
        steps=_STEPS,
    )


def _text(kind: str, seed: int, length: int, params: Mapping[str, Any]) -> Any:
    draws = random.Random(seed)
    named = [i for value in params.values() if isinstance(value, list) for i in value[:4096]]
    named = [i for i in named if isinstance(i, int) and 0 <= i < VOCAB] or [7]
    match kind:
        case "one":
            pattern = named[:1]
        case "few":
            return array("q", draws.choices(range(1000, 1002 + seed), k=length))
        case "many":
            return array("q", draws.choices(range(1000, 1000 + 10 ** (seed + 1)), k=length))
        case "pattern":
            pattern = [*range(1000, 1000 + 10 ** (seed + 1))]
        case "after":
            pattern = [i for other in range(1000, 60_000) for i in (7, other)]
        case "distinct":
            pattern = draws.sample(range(VOCAB), min(length, VOCAB))
        case _:
            pattern = named
    return (array("q", pattern) * (length // len(pattern) + 1))[:length]


# Parameters


@st.composite
def _chains(draw: st.DrawFn) -> dict[str, Any]:
    links = [
        name
        for name in builtins.__all__
        if getattr(getattr(builtins, name), "family", None) is None
        and name != "ChainLogitProcessor"
    ]
    chosen = draw(st.lists(st.sampled_from(links), min_size=1, max_size=_LINKS))
    params: dict[str, Any] = {"chain": chosen}
    for place, name in enumerate(chosen):
        own = draw(_params(name, most=65_536 // len(chosen) // 2))
        params |= {f"{place}.{key}": value for key, value in own.items()}
    return params


@st.composite
def _params(draw: st.DrawFn, name: str, most: int = 65_536) -> dict[str, Any]:
    """Draw from the schema; what contradicts itself is refused, and drawn again."""
    schema = inspect.type_info(getattr(builtins, name).Params)
    params = {}
    as_text = draw(st.booleans())
    for field in schema.fields:  # type: ignore[attr-defined]
        if not field.required and draw(st.booleans()):
            continue
        if not field.required and _is_either(field) and _is_texts(field.type) != as_text:
            continue
        value = draw(_values(field.type, most))
        if value is not None:
            params[field.name] = value
    if "token_ids" not in params:
        params.pop("lengths", None)
    if "lengths" in params:
        params["lengths"] = _lengths(len(params["token_ids"]), draw(st.integers(1, 4096)))
    params.pop("pick", None)  # the scores come from the HTTP process, which asks the model
    if name == "CatalogueLogitProcessor":
        params |= {"catalogue": "items", "subset": ()}
    if name == "ThinkingBudgetLogitProcessor":  # the tokenizer has no such tokens
        params = {key: value for key, value in params.items() if "thinking_start" not in key}
        params = {key: value for key, value in params.items() if "thinking_end" not in key}
        params |= {"thinking_start_token_id": 1000, "thinking_end_token_id": 1001}
    return params


def _lengths(total: int, each: int) -> list[int]:
    each = min(each, total)
    rest = total % each
    return [each] * (total // each) + [rest] * bool(rest)


def _values(kind: Any, most: int) -> st.SearchStrategy[Any]:  # noqa: C901 - one for each type
    """Draw what a msgspec type takes, its limits above all."""
    match kind:
        case inspect.Metadata():
            found = _values(kind.type, most)
        case inspect.UnionType():
            found = st.one_of([_values(one, most) for one in kind.types])
        case inspect.NoneType():
            found = st.none()
        case inspect.StrType():
            found = _texts_of(kind).map(lambda texts: texts[-1])
        case inspect.VarTupleType(item_type=item) if _is_texts(item):
            found = _texts_of(_plain(item))
        case inspect.BoolType():
            found = st.booleans()
        case inspect.LiteralType():
            found = st.sampled_from([*kind.values])
        case inspect.EnumType():
            found = st.sampled_from([member.value for member in kind.cls])
        case inspect.IntType():
            low, high = kind.ge or 0, kind.le or 2**31 - 1
            some = [low, low + 1, 2, 3, 8, 64, 1000, 15_000, high]
            found = st.sampled_from([i for i in some if low <= i <= high])
        case inspect.FloatType():
            least = kind.gt if kind.ge is None else kind.ge
            found = st.floats(least, kind.le, exclude_min=kind.ge is None)
        case inspect.VarTupleType() | inspect.FrozenSetType():
            longest = min(kind.max_length or most, most)
            sizes = sorted({min(size, longest) for size in (1, 2, 100, 1024, 4000, longest)})
            distinct, first = st.sampled_from([1, 2, 64, 65_536]), st.sampled_from([7, 50_000])
            found = st.builds(_ids, st.sampled_from(sizes), distinct, first)
        case _:
            raise TypeError(f"expected a type that parameters have, got {kind}")
    return found


def _plain(kind: Any) -> Any:
    """Return a type without its limits, and without ``None``."""
    if isinstance(kind, inspect.Metadata):
        return _plain(kind.type)
    if isinstance(kind, inspect.UnionType):
        return _plain(next(one for one in kind.types if not isinstance(one, inspect.NoneType)))
    return kind


def _is_texts(kind: Any) -> bool:
    """Tell whether a type is a text or a list of texts."""
    plain = _plain(kind)
    if isinstance(plain, inspect.VarTupleType):
        plain = _plain(plain.item_type)
    return isinstance(plain, inspect.StrType)


def _is_either(field: Any) -> bool:
    """Tell whether a parameter is one of two, ids or text."""
    return field.name == "lengths" or field.name.endswith("token_ids") or _is_texts(field.type)


def _texts_of(kind: inspect.StrType) -> st.SearchStrategy[list[str]]:
    """Draw a list of texts."""
    if kind.pattern:
        return st.sampled_from([["Latin"], ["Han", "Cyrillic"]])
    some = random.Random(0)
    words = ["".join(some.choices("etaoinsh", k=8)) for _ in range(4_000)]
    most = kind.max_length or 4_096
    return st.sampled_from(
        [["e"], ["tea", "coffee"], words[:1000], words, ["te" * (most // 2)], ["t" * most]]
    )


def _ids(size: int, distinct: int, first: int) -> list[int]:
    return [first + i % distinct for i in range(size)]
