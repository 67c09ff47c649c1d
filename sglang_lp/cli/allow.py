"""``sglang-lp allow``: show a class or a payload, ask, and add it to a policy file."""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import orjson

from sglang_lp import wire
from sglang_lp.cli import policy_option, terminal
from sglang_lp.cli.terminal import say
from sglang_lp.errors import PolicyError, UsageError, shown
from sglang_lp.importing import parse_entry
from sglang_lp.policy import Policy, classes
from sglang_lp.trust import Pin, Verifier


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "allow",
        help="write a policy entry for a class or a payload",
        description="Show what a class or a payload is, ask, and add it to a policy file. "
        "Exit code 1 if the answer is no; the file is then unchanged.",
    )
    parser.add_argument(
        "what", metavar="WHAT", help="package.module:Class, or a payload: @FILE, - for stdin"
    )
    parser.add_argument(
        "--policy",
        metavar="FILE",
        type=policy_option.parse_file,
        required=True,
        help="policy file to add to; created if absent",
    )
    parser.add_argument("--name", help="name of a pinned payload in logs")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    entry, pickled = arguments.what, b""
    if entry == "-" or entry.startswith(("@", "{")):
        payload = terminal.read(entry)
        pickled = terminal.decode(payload)
        for line in terminal.explain(pickled, len(payload)):
            say(line)
        kind, module, name = wire.describe(pickled)
        entry = f"{module}:{name}" if kind is wire.Kind.REFERENCE else ""
    if entry:
        module, name = parse_entry(entry, "WHAT")
        about = f"it is imported from {module} once you allow it"
        if not pickled:  # the user named it; a payload may name any module
            about = _first_line(module, name)
        say(f"class    {entry}: {about}")
        say("allows   any request to run it with parameters of its own choice")
    else:
        say("allows   any request to run this code, which the first such request executes")
    if not arguments.yes and terminal.ask("allow this? [y/N] ").strip().lower() not in {"y", "yes"}:
        say("not allowed; the policy is unchanged")
        return 1
    path = Path(arguments.policy)
    before, text = _read(path)
    Verifier(before)  # an error that the file already has is reported before it is edited
    if entry:
        if entry in before.allow:
            say(f"{path} allows it already")
            return 0
        wanted = msgspec.structs.replace(before, allow=(entry, *before.allow))
        text = _add_class(text, entry)
    else:
        pin = _make_pin(pickled, arguments.name)
        if (pin.sha256, pin.size) in {(known.sha256, known.size) for known in before.pin}:
            say(f"{path} pins it already")
            return 0
        wanted = msgspec.structs.replace(before, pin=(*before.pin, pin))
        text = _add_pin(text, pin)
    Verifier(wanted)
    _replace(path, text, wanted)
    say(f"written to {path}; restart the server to use it")
    return 0


def _first_line(module: str, name: str) -> str:
    """Import a class and return the first line of its docstring."""
    processor = classes.load(module, name, "allow")
    return (processor.__doc__ or "").strip().partition("\n")[0] or "no docstring"


def _read(path: Path) -> tuple[Policy, str]:
    """Return the policy of a file and its text; both empty if there is no file."""
    try:
        return Policy.from_toml(path), path.read_text(encoding="utf-8")
    except PolicyError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return Policy(source=str(path)), ""
        raise


def _make_pin(pickled: bytes, name: str | None) -> Pin:
    if name is not None and not name.isprintable():
        raise UsageError(f"--name: expected printable characters, got {shown(name)}")
    sha256 = wire.digest(pickled)
    return Pin(name=name or sha256[:12], sha256=sha256, size=len(pickled))


def _add_class(text: str, entry: str) -> str:
    """Put an entry first in the list of a policy, and leave every comment where it is."""
    key = re.compile(r"^(allow[ \t]*=[ \t]*\[)\s*", re.MULTILINE)
    edited, found = key.subn(rf'\1\n    "{entry}",\n    ', text, count=1)
    if found:
        return edited
    head, rest = _split_head(text)
    return f'{head}allow = [\n    "{entry}",\n]\n{rest}'


def _split_head(text: str) -> tuple[str, str]:
    """Split a file behind the comment at its top, if a blank line follows the comment."""
    head = re.match(r"(?:#.*\n)+(?:[ \t]*\n|\Z)", text)
    return (text[: head.end()], text[head.end() :]) if head else ("", text)


def _add_pin(text: str, pin: Pin) -> str:
    head = text.rstrip("\n") + "\n\n" if text.strip() else ""
    name = orjson.dumps(pin.name).decode()
    return f'{head}[[pin]]\nname = {name}\nsha256 = "{pin.sha256}"\nsize = {pin.size}\n'


def _replace(path: Path, text: str, wanted: Policy) -> None:
    """Write a policy whole or not at all, if its text parses to the wanted policy."""
    there = path.exists()
    path = path.resolve()  # a link stays one
    newline = "\r\n" if there and b"\r\n" in path.read_bytes() else "\n"
    try:
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".sglang-lp-") as folder:
            draft = Path(folder) / path.name
            draft.write_text(text, encoding="utf-8", newline=newline)
            if not _holds(draft, wanted):
                raise PolicyError(
                    f"{path} is written in a way that cannot be edited; add it by hand"
                )
            if there:
                draft.chmod(path.stat().st_mode)
            draft.replace(path)
    except OSError as error:
        raise PolicyError(f"policy {path}: cannot be written: {error.strerror}") from error


def _holds(draft: Path, wanted: Policy) -> bool:
    try:
        return msgspec.structs.replace(Policy.from_toml(draft), source=wanted.source) == wanted
    except PolicyError:
        return False
