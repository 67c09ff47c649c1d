"""``sglang-lp catalogue``: build the index of a catalogue, print one, check one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sglang_lp.cli.terminal import complain, counted, progress, say, say_json
from sglang_lp.errors import RequestError, shown
from sglang_lp.served_model import ServedModel

if TYPE_CHECKING:
    from sglang_lp.catalogue.index import Index

#: Most groups of ids with equal tokens that ``inspect`` shows, and most ids of a group.
_SHOWN = 3

_EPILOG = """\
A table has the columns `id` (whole numbers or texts), `tokens` (lists of token ids) or `text`
(texts for the tokenizer of --model), and `sets` (lists of names). `id` and `sets` may be missing.
Example: sglang-lp catalogue build items.parquet -o items.cat --column id=sku
"""


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "catalogue",
        help="build and check catalogues of items",
        description="Build an index of items that a model names by tokens, and check one.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = actions.add_parser(
        "build",
        help="build an index from a table of items",
        description="Build an index from a file of items: .parquet, .arrow, .feather, .jsonl, or "
        ".npy with token ids only.",
        epilog=_EPILOG,
    )
    build.add_argument("items", metavar="ITEMS", type=Path, help="file of items")
    build.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the index")
    build.add_argument(
        "--column",
        metavar="WHAT=NAME",
        action="append",
        default=[],
        help="a column that has another name, as id=sku; can be given several times",
    )
    build.add_argument(
        "--model",
        metavar="DIR",
        help="a model's directory: its tokenizer reads items that are text, and its end tokens may "
        "not be inside of an item",
    )
    build.add_argument(
        "--end",
        metavar="TOKEN",
        type=int,
        help="token id to add after every item; needed if an item is the beginning of another",
    )
    build.set_defaults(run=_build)
    inspect = actions.add_parser("inspect", help="print what an index holds")
    inspect.add_argument("file", metavar="FILE", type=Path, help="an index")
    inspect.add_argument("--json", action="store_true", help="print JSON")
    inspect.set_defaults(run=_inspect)
    check = actions.add_parser(
        "check",
        help="check an index, and compare it with a model",
        description="Check the checksums of an index, and compare its tokens with a model.",
    )
    check.add_argument("file", metavar="FILE", type=Path, help="an index")
    check.add_argument("model", metavar="DIR", nargs="?", help="a model's directory")
    check.set_defaults(run=_check)


def _build(arguments: argparse.Namespace) -> int:
    from sglang_lp.catalogue.build import build
    from sglang_lp.catalogue.file import save
    from sglang_lp.catalogue.index import CatalogueError
    from sglang_lp.catalogue.items import read

    columns = dict(_column(one) for one in arguments.column)
    model = _load(arguments.model) if arguments.model else ServedModel()
    with progress() as step:
        items = read(
            arguments.items,
            columns,
            tokenizer=model.tokenizer,
            progress=lambda done, total: step(f"texts to tokens, {done} of {total}"),
        )
        index = build(items.codes, items.ids, end=arguments.end, sets=items.sets, progress=step)
        problem = index.misfit(model.vocab_size, model.eos_token_ids)
        if problem is not None:
            raise CatalogueError(f"items {arguments.items}: {problem}")
        step("writing")
        size = save(index, arguments.output)
    for line in _lines(index, size):
        say(line)
    return 0


def _inspect(arguments: argparse.Namespace) -> int:
    from sglang_lp.catalogue.file import load

    index, size = load(arguments.file), arguments.file.stat().st_size
    if arguments.json:
        say_json(_described(index, size))
        return 0
    for line in _lines(index, size):
        say(line)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from sglang_lp.catalogue.file import load

    index = load(arguments.file, whole=True)
    say(f"file        intact, version {index.version}")
    if arguments.model is None:
        return 0
    model = _load(arguments.model)
    size = model.vocab_size or model.tokenizer.get_vocab_size(with_added_tokens=True)
    problem = index.misfit(size, model.eos_token_ids)
    if problem is not None:
        complain(f"sglang-lp catalogue: {arguments.file}: {problem}")
        return 1
    say(f"tokens      all below the model's {size}, and none ends an answer inside of an item")
    for ids, token_ids in _examples(index):
        text = model.tokenizer.decode(token_ids, skip_special_tokens=False)
        say(f"item        {ids}: {shown(text, 60)}")
    return 0


def _column(text: str) -> tuple[str, str]:
    what, equals, name = text.partition("=")
    if not equals:
        raise RequestError(f"--column: expected WHAT=NAME, as id=sku, got {shown(text)}")
    return what, name


def _load(directory: str) -> ServedModel:
    from sglang_lp.client.models import load_model

    return load_model(directory)


def _described(index: Index, size: int) -> dict[str, Any]:
    from sglang_lp.catalogue.sets import ItemSet

    shape, arrays = index.shape, index.arrays
    on_device = sum(one.nbytes for one in (arrays.first, arrays.token, arrays.low, arrays.high))
    return {
        "version": index.version,
        "items": shape.items,
        "ids": len(arrays.ids),
        "levels": shape.levels,
        "nodes": shape.nodes,
        "nodes_by_depth": [
            stop - start for start, stop in zip(shape.offsets, shape.offsets[1:], strict=False)
        ],
        "widest_by_depth": [*shape.branch],
        "end": shape.end,
        "vocab_size": shape.vocab_size,
        "sets": {name: ItemSet.of(index, [[name]]).total for name in sorted(index.sets)},
        "file_bytes": size,
        "device_bytes": on_device,
        "examples": [{"ids": ids, "tokens": token_ids} for ids, token_ids in _examples(index)],
    }


def _lines(index: Index, size: int) -> list[str]:
    found = _described(index, size)
    shared, on_device = found["ids"] - found["items"], found["device_bytes"]
    widest = ", ".join(map(str, found["widest_by_depth"]))
    lines = [
        f"version     {found['version']}",
        f"items       {found['items']:,}, of up to {found['levels']} tokens",
        f"nodes       {found['nodes']:,}; most children by depth: {widest}",
        f"disk        {size / 1e6:,.1f} MB",
        f"device      {on_device / 1e6:,.1f} MB, {on_device / found['items']:.1f} bytes an item",
    ]
    if found["end"] is not None:
        lines.append(f"end         token {found['end']} after every item")
    if shared:
        lines.append(f"shared      {shared:,} ids have the tokens of another id: {_shared(index)}")
    lines += [
        f"set         {name}: {counted(count, 'item')}" for name, count in found["sets"].items()
    ]
    lines += [f"item        {one['ids']}: tokens {one['tokens']}" for one in found["examples"]]
    return lines


def _shared(index: Index) -> str:
    """Return some of the ids that share their tokens, as one line."""
    import numpy as np

    ranks = np.flatnonzero(np.diff(index.arrays.start) > 1)
    groups = [
        " = ".join(shown(one) for one in index.ids_of(rank)[:_SHOWN]) for rank in ranks[:_SHOWN]
    ]
    return "; ".join(groups) + ("; ..." if len(ranks) > _SHOWN else "")


def _examples(index: Index) -> list[tuple[list[int] | list[str], list[int]]]:
    ranks = {0, index.shape.items // 2, index.shape.items - 1}
    return [(index.ids_of(rank), index.tokens_of(rank)) for rank in sorted(ranks)]
