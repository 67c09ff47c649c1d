"""Writes the page of routes from their table: ``.venv/bin/python -m scripts.routes``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.tables import table
from sglang_lp.server.front.routes import ROUTES, Route, RouteKind
from sglang_lp.server.versions import OLDEST

__all__ = ["PAGE", "write_page"]

PAGE = Path("docs/routes.md")

_INTRODUCTION = """\
# Routes

<!-- Written by `.venv/bin/python -m scripts.routes` from the table of routes; do not edit. -->

Every route of SGLang's HTTP application, and how a guarded server treats a request that names a processor there.
A test compares the table with the application of each supported SGLang.

On every route that runs processors or refuses them:

- The two fields are `custom_logit_processor` and `custom_params`. A misspelled one, or one in another place, gets HTTP 400 that says what is right. Keys are compared as SGLang has parsed them.
- A refusal is HTTP 400 in the error format of the route, with the [code](errors.md) of the error. It is the whole answer, for a stream too.
- The answer has the [headers](operating.md#headers) of this toolkit.

A route of SGLang's that the table lacks, on a version that is not supported, refuses processors by name.
`AIP_PREDICT_ROUTE` and `SGLANG_OLLAMA_CHAT_ROUTE`, with its siblings, change paths and nothing else.
"""

_ABOUT = {
    RouteKind.HONOURED: """\
## Routes that run processors

On Ollama's routes the fields are options, because Ollama's clients send no other fields: budgets, [fields of other engines](operating.md#other-engines-fields) and `return_meta_info` are options there as well.
`think` with a level is the [effort](operating.md#effort-levels).
On `/vertex_generate` a list in `parameters` has one entry for each instance.
""",
    RouteKind.REFUSED: """\
## Routes that refuse processors by name

A request without one is answered as SGLang answers it.
On `/v1/realtime` the refusal is an `error` event.
""",
    RouteKind.ADMINISTRATORS: """\
## Routes for administrators

SGLang marks these routes `admin_optional`: without `--admin-api-key` **every client may ask them**, or every client with the key of `--api-key`.
`/release_memory_occupation` ends a server that is not started for it, `/pause_generation` and `/slow_down` stop every request.
Trainers use many of these routes without a key, so this toolkit does not close them.
A server without `--admin-api-key` says so when it starts, and `sglang-lp doctor --url` says whether a client may ask them.

- With `--admin-api-key KEY` they need that key, and no other route does.
- SGLang checks no key in tokenizer workers, so a server with `--tokenizer-worker-num` above 1 does not start with `--admin-api-key`: close the routes with a proxy.
""",
    RouteKind.WITHOUT: """\
## Routes without an answer to edit

Fields for a processor have no effect here: nothing is generated.
""",
}


def write_page() -> str:
    """Return the page of routes."""
    return "\n".join([_INTRODUCTION, *(_section(kind) for kind in RouteKind)])


def _section(kind: RouteKind) -> str:
    rows: dict[tuple[str, str, str], None] = {}
    for route in ROUTES:
        if route.kind is kind:
            about = route.shape.where if route.shape is not None else route.why
            rows[f"`{route.path}`", about, ", ".join(_conditions(route))] = None
    head = "route", {RouteKind.HONOURED: "fields", RouteKind.REFUSED: "why"}.get(kind, ""), "only"
    used = [column for column, cells in enumerate(zip(*rows, strict=True)) if any(cells)]
    shown = [[cells[column] for column in used] for cells in (head, *rows)]
    return "\n".join([_ABOUT[kind], *table(shown[0], shown[1:]), ""])


def _conditions(route: Route) -> Iterator[str]:
    if route.since != OLDEST:
        yield f"from SGLang {route.since} on"
    if route.until is not None:
        yield f"up to SGLang {route.until}"
    if route.needs is not None:
        yield f"with `{route.needs}`"


if __name__ == "__main__":
    PAGE.write_text(write_page())
