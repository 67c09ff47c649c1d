"""Rules about the project as a whole: who imports whom, what may be committed."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from graphlib import TopologicalSorter
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sglang_lp"

#: A module may import those of lower ranks and itself; of the same rank, nothing else.
RANKS = {
    "errors": (0,),
    "copies": (0,),
    "faults": (1,),
    "flat_json": (1,),
    "importing": (1,),
    "params": (1,),
    "wire": (1,),
    "served_model": (2,),
    "request": (2,),
    "edits": (2,),
    "_engine": (3,),
    "text": (4,),
    "processor": (4,),
    "builtins": (5,),
    "adapters": (6,),
    "trust": (2,),
    "policy": (7,),
    "trace": (7,),
    "client": (8,),
    "server": (9, 9),
    "server.versions": (9, 0),
    "server.gate": (9, 1),
    "server.front": (9, 2),
    "server.scheduler": (9, 2),
    "server.startup": (9, 3),
    "cli": (10,),
    "testing": (11,),
}


def part_of(module: str) -> str | None:
    """Return the part of sglang_lp that a dotted name lies in; ``None`` outside of it."""
    top, *rest = module.split(".")
    if top != "sglang_lp" or not rest:
        return None
    room = ".".join(rest[:2])
    return room if room in RANKS else rest[0]


def imported_parts(source: str, module: str) -> set[str]:
    """Return the parts of sglang_lp that a module imports, anywhere but for annotations alone.

    Args:
        source: Its text.
        module: Its dotted name; that of a package ends in ``.__init__``.
    """
    names = []
    nodes = [ast.parse(source)]
    for node in nodes:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes += node.orelse
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: -node.level] if node.level else []
            base += [node.module] if node.module else []
            names += [".".join([*base, alias.name]) for alias in node.names]
    return {part for part in map(part_of, names) if part}


def modules() -> list[str]:
    paths = [path.relative_to(ROOT).with_suffix("") for path in PACKAGE.rglob("*.py")]
    return sorted({".".join(path.parts) for path in paths} - {"sglang_lp.__init__"})


@pytest.mark.parametrize(
    ("source", "module", "parts"),
    [
        ("import sglang_lp.wire", "sglang_lp.trust.table", {"wire"}),
        ("from sglang_lp import wire, errors", "sglang_lp.cli", {"wire", "errors"}),
        ("from ..wire import digest", "sglang_lp.trust.table", {"wire"}),
        ("from . import audit", "sglang_lp.trust.__init__", {"trust"}),
        ("def f():\n    from sglang_lp.server import x", "sglang_lp.wire", {"server"}),
        ("from sglang_lp.server.gate import x", "sglang_lp.wire", {"server.gate"}),
        ("if TYPE_CHECKING:\n    import sglang_lp.cli", "sglang_lp.wire", set()),
        ("import torch, sglang.srt", "sglang_lp.edits", set()),
    ],
)
def test_imports_are_found_however_they_are_written(source, module, parts):
    assert imported_parts(source, module) == parts


@pytest.mark.parametrize("module", modules())
def test_imports_run_one_way(module):
    part = part_of(module)
    source = (ROOT / module.replace(".", "/")).with_suffix(".py").read_text()

    assert part in RANKS, "a new part of sglang_lp needs its rank here"
    for imported in imported_parts(source, module) - {part, "__version__"}:
        assert RANKS[imported] < RANKS[part], f"{module} may not import sglang_lp.{imported}"


@pytest.mark.parametrize("room", ["policy", "trust", "wire"])
def test_no_module_of_a_room_imports_itself_in_a_circle(room):
    paths = {f"sglang_lp.{room}.{path.stem}": path for path in (PACKAGE / room).glob("*.py")}
    imports = {
        module: {
            node.module
            for node in ast.walk(ast.parse(path.read_text()))  # for annotations, too
            if isinstance(node, ast.ImportFrom) and node.module in paths
        }
        for module, path in paths.items()
    }

    assert [*TopologicalSorter(imports).static_order()]  # raises if there is a circle


def test_every_rank_is_that_of_a_part_that_exists():
    assert {part_of(module) for module in modules()} == {*RANKS}


def test_the_package_itself_imports_nothing_of_its_own():
    assert imported_parts((PACKAGE / "__init__.py").read_text(), "sglang_lp.__init__") == set()


def test_what_is_private_is_one_package():
    private = {name for module in modules() for name in module.split(".") if name.startswith("_")}

    # A package says in ``__all__`` what is public, so its modules need no underscore.
    assert private == {"_engine", "__init__", "__main__"}


@pytest.mark.parametrize("room", ["builtins", "adapters"])
def test_what_runs_on_the_engine_uses_what_any_author_may(room):
    found = [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in (PACKAGE / room).rglob("*.py")
        for line in path.read_text().splitlines()
        if re.search(r"sglang_lp\._engine|sglang_lp import _engine|cast\(\"Recording", line)
    ]

    assert found == []


def test_no_file_of_the_engine_is_longer_than_450_lines():
    lengths = {
        path.name: len(path.read_text().splitlines()) for path in PACKAGE.glob("_engine/**/*.py")
    }

    assert lengths
    assert [name for name, length in lengths.items() if length > 450] == []


def test_only_the_server_touches_sglang():
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in PACKAGE.rglob("*.py")
        if PACKAGE / "server" not in path.parents
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r"(from|import) sglang\b", line)
    ]

    assert found == []


def test_the_range_of_sglang_versions_is_written_once():
    from sglang_lp.server.versions import NEWEST, OLDEST

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"sglang>={OLDEST},<={NEWEST}" in extras["optional-dependencies"]["sglang"]


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (
            "sglang_lp",
            "Edits History LogitProcessor Parameters Request __version__ attach",
        ),
        (
            "sglang_lp.processor",
            "LogitProcessor Recording Whole check_computed fit lasting prepare subclasses_of",
        ),
        ("sglang_lp.request", "Answer History Request"),
        ("sglang_lp.edits", "Edits End LENGTH MAX_BIAS NEVER STOP"),
        (
            "sglang_lp.client",
            (
                "Attachment Attachments ThinkingBlock attach attach_each loss_mask raw_logprobs "
                "resume thinking_blocks"
            ),
        ),
        ("sglang_lp.trust", "Allowed Audit Gate Limits Pin Policy Verifier"),
        ("sglang_lp.server", "install"),
        (
            "sglang_lp.testing",
            (
                "Batch BatchModel FakeRequest Model Played ProcessorContract Transcript "
                "decided_as_on_a_gpu decode run step"
            ),
        ),
    ],
)
def test_the_public_names_are_these(module, names):
    found = importlib.import_module(module)

    assert sorted(found.__all__) == sorted(names.split())
    assert all(hasattr(found, name) for name in found.__all__)


def test_the_trust_boundary_can_be_read_alone():
    source = "import sys, msgspec, orjson\nbefore = {*sys.modules}\nimport sglang_lp.trust\n"
    done = subprocess.run(
        [sys.executable, "-c", source + "print(*{*sys.modules} - before)"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    loaded = done.stdout.split()

    assert {part_of(name) for name in loaded} - {None} == {"errors", "trust", "wire"}
    foreign = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    assert foreign == {"sglang_lp"}


def committed_files() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


# Pieced together, so that this file does not hold what it looks for.
HOSTS = [
    "pypi" + r"\." + "org",
    "python" + "hosted",
    r"registry\." + "npmjs",
    r"deb\." + "debian",
    r"download\." + "pytorch",
]
MACHINE_PATH = r"(?<![\w.\-~])/(?:" + "work|root|home" + r")/[\w.]"
NEVER = re.compile("|".join([*HOSTS, MACHINE_PATH]))


@pytest.mark.parametrize(
    "line",
    [
        "https://" + "pypi" + ".org/simple",
        "files.python" + "hosted.org",
        "cd /" + "work/main",
        "'/" + "root/.cache'",
    ],
)
def test_the_search_finds_what_it_looks_for(line):
    assert NEVER.search(line)


def test_no_committed_file_names_a_registry_host_or_a_machine_path():
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in committed_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if NEVER.search(line)
    ]

    assert found == []


def test_the_lock_holds_names_and_versions_only():
    pinned = re.compile(r"[a-z0-9\-]+==[0-9a-z.]+( ; [\w\s.'<>=!*]+)?")

    odd = [
        line
        for line in (ROOT / "requirements.lock").read_text().splitlines()
        if not pinned.fullmatch(line)
    ]

    assert odd == []


def test_the_changelog_speaks_of_what_is_to_come_or_of_this_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert headings[0] in {"Unreleased", project["version"]}


def test_the_version_is_the_installed_one():
    import sglang_lp

    assert sglang_lp.__version__ == version("sglang-lp")


@pytest.mark.parametrize("module", ["sglang_lp", "sglang_lp.client", "sglang_lp.cli"])
def test_a_client_needs_neither_torch_nor_sglang(module):
    report = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", f"import {module}"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stderr
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in report.splitlines()}

    assert "sglang_lp" in loaded
    assert not loaded & {"torch", "sglang", "transformers", "numpy"}
