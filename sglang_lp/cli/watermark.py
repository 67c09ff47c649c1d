"""``sglang-lp watermark``: make a key, and find its watermark in a text."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from sglang_lp.cli.terminal import progress, say, say_json
from sglang_lp.errors import PolicyError, RequestError, shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sglang_lp.served_model import ServedModel

_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
#: Layers of a new tournament: those of the paper.
_DEPTH = 30

_EPILOG = """\
The p-value is the probability that a text that was written without the key scores as high. A text
that was edited or translated has fewer marked tokens. With several keys, multiply the smallest
p-value by their number.
"""


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "watermark",
        help="make a watermark key, and find a watermark in a text",
        description="Make the key of WatermarkLogitProcessor, and test texts for its watermark.",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    new = actions.add_parser(
        "new",
        help="write a new key file",
        description="Draw a key, and write a file that only its owner may read.",
    )
    new.add_argument("file", metavar="FILE", type=Path, help="the key file; not overwritten")
    new.add_argument(
        "--scheme",
        choices=(*_KEYS,),
        default="synthid",
        help="synthid (default), or kgw for green lists",
    )
    new.set_defaults(run=_new)
    detect = actions.add_parser(
        "detect",
        help="test a text for a watermark",
        description="Test a text, or its tokens, for the watermark of a key.",
        epilog=_EPILOG,
    )
    detect.add_argument(
        "text", metavar="TEXT", help="file with an answer, without its prompt; - for standard input"
    )
    detect.add_argument(
        "--key",
        metavar="FILE",
        type=Path,
        action="append",
        required=True,
        help="key file; can be given several times, for keys that were rotated",
    )
    detect.add_argument("--model", metavar="DIR", help="directory of the model, for its tokenizer")
    detect.add_argument(
        "--vocab-size", metavar="N", type=int, help="number of logits, if the model does not say"
    )
    detect.add_argument(
        "--tokens", action="store_true", help="TEXT is a JSON list of token ids, such as output_ids"
    )
    detect.add_argument("--json", action="store_true", help="print JSON")
    detect.set_defaults(run=_detect)


def _green_key() -> str:
    """Return the text of a new key file for green lists."""
    return f'scheme = "kgw"\nhashing_key = {1 + secrets.randbelow((1 << 63) - 1)}\n'


def _tournament_key() -> str:
    """Return the text of a new key file for a tournament."""
    # The layers have to differ in the rest by the size of the table.
    rests = secrets.SystemRandom().sample(range(1 << 16), _DEPTH)
    keys = "".join(f"    {rest + (secrets.randbelow(1 << 47) << 16)},\n" for rest in rests)
    seed = secrets.randbelow(1 << 63)
    return f'scheme = "synthid"\nkeys = [\n{keys}]\nsampling_table_seed = {seed}\n'


#: By scheme, what draws a new key from the random source of the system.
_KEYS = {"synthid": _tournament_key, "kgw": _green_key}


def _new(arguments: argparse.Namespace) -> int:
    try:
        # Never readable by others, not even for a moment.
        descriptor = os.open(arguments.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise PolicyError(f"watermark {arguments.file}: cannot be made: {error.strerror}") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(_KEYS[arguments.scheme]())
    say(f"{arguments.file}: a new key, which only you may read")
    say(f'policy: watermark = "{arguments.file}"')
    return 0


def _detect(arguments: argparse.Namespace) -> int:
    from sglang_lp.watermark.reading import read_key

    served = _served(arguments.model)
    token_ids = _token_ids(_read(arguments.text), arguments, served)
    vocab_size = arguments.vocab_size or served.vocab_size
    try:
        schemes = [read_key(path) for path in arguments.key]
        with progress("counting"):
            found = [scheme.detect(token_ids, vocab_size) for scheme in schemes]
    except ImportError:
        raise RequestError(
            "detecting takes numpy and torch: pip install 'sglang-lp[trace]'"
        ) from None
    if arguments.json:
        say_json(
            [
                {"key": str(path), "tokens": len(token_ids), **one._asdict()}
                for path, one in zip(arguments.key, found, strict=True)
            ]
        )
        return 0
    for path, one in zip(arguments.key, found, strict=True):
        say(f"key         {path} ({one.scheme})")
        say(f"tokens      {len(token_ids):,}, of which {one.scored:,} count")
        say(f"score       {one.score:.4f}, {one.expected:.4f} without the key (z = {one.z:.2f})")
        say(f"p-value     {one.p_value:.3g}")
    return 0


def _read(source: str) -> str:
    """Return the text of a file, or of standard input for ``-``, without its last line break.

    Raises:
        RequestError: It cannot be read as text.
    """
    if source == "-" and sys.stdin is None:
        raise RequestError("expected a text on standard input, which is closed")
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"cannot read {shown(source)} as text: {error}") from None
    return text.removesuffix("\n")


def _served(directory: str | None) -> ServedModel:
    from sglang_lp.client.models import load_model

    with progress("reading the tokenizer"):
        return load_model(directory)


def _token_ids(text: str, arguments: argparse.Namespace, served: ServedModel) -> Sequence[int]:
    """Return the tokens to test.

    Raises:
        RequestError: They are no list of ids, or there is no tokenizer for a text.
    """
    if arguments.tokens:
        try:
            return msgspec.json.decode(text, type=list[_TokenId])
        except msgspec.DecodeError:
            raise RequestError(
                f"--tokens: expected a JSON list of token ids, got {shown(text, 80)}"
            ) from None
    if served.tokenizer is None:
        raise RequestError("--model: expected the model's directory, for the tokenizer of a text")
    token_ids: list[int] = served.tokenizer.encode(text, add_special_tokens=False).ids
    return token_ids
