"""``sglang-lp new``: a folder with a processor, its tests, its policy and its project file."""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Any

from sglang_lp.cli.terminal import say
from sglang_lp.errors import UsageError, shown

#: Placeholder of the module's name in the names of the template's files.
_NAME = "NAME"


def add(verbs: Any) -> None:
    """Add the verb's parser."""
    parser = verbs.add_parser(
        "new",
        help="write a folder with a processor of your own, its tests and its policy",
        description="Write a folder NAME with a processor that works, its tests, a policy file "
        "that allows it, and a pyproject.toml. Needs neither SGLang nor a GPU.",
    )
    parser.add_argument("name", metavar="NAME", help="name of the module, such as at_most")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    module = _checked(arguments.name)
    processor = "".join(part.capitalize() for part in module.split("_")) + "LogitProcessor"
    values = {"module": module, "processor": processor, "project": module.replace("_", "-")}
    folder = Path(module)
    try:
        folder.mkdir()
        for source in files(__package__).joinpath("template").iterdir():
            path = folder / source.name.removesuffix(".txt").replace(_NAME, module)
            path.write_text(Template(source.read_text("utf-8")).substitute(values), "utf-8")
    except FileExistsError:
        raise UsageError(f"NAME: {module} is in this folder already; give another name") from None
    except OSError as error:
        raise UsageError(f"NAME: {folder} cannot be written: {error.strerror}") from error
    say(f"written: {folder}, with the class {processor}. Next:")
    say(f"  cd {folder}")
    say('  pip install -e ".[test]"')
    say("  pytest && mypy")
    say("  sglang-lp doctor --policy policy.toml")
    return 0


def _checked(name: str) -> str:
    """Return the name of a module that can be written.

    Raises:
        UsageError: It is no name of a module, or Python knows a module of this name.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", name):
        words = re.findall(r"[a-z]+[a-z0-9]*|[A-Z]+[a-z0-9]*", name)
        hint = f", such as {'_'.join(words).lower()}" if words else ""
        raise UsageError(
            "NAME: expected the name of a Python module in lower case, words joined by _"
            f"{hint}, got {shown(name)}"
        )
    if keyword.iskeyword(name):
        raise UsageError(f"NAME: expected no keyword of Python, got {shown(name)}")
    if name.startswith("test_"):
        raise UsageError(f"NAME: expected no name of a test, got {shown(name)}")
    if name in sys.stdlib_module_names or (find_spec(name) and not Path(name).exists()):
        raise UsageError(
            f"NAME: Python has a module {name} already, which yours would hide; give another name"
        )
    return name
