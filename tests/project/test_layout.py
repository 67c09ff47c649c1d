"""Rules about the project as a whole: who imports whom, what may be committed."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sglang_lp"

#: A module may import parts of lower ranks and its own part, and no other part of its rank.
RANKS = {
    "errors": (0,),
    "caches": (0,),
    "forms.compiled": (0,),
    "faults": (1,),
    "importing": (1,),
    "params": (1,),
    "wire": (1,),
    "catalogue": (1,),
    "watermark": (1,),
    "closing": (1,),
    "request": (2,),
    "served_model": (2,),
    "trust": (2,),
    "edits": (3,),
    "forms": (3,),
    "computed": (3,),
    "flags": (3,),
    "text": (4,),
    "processor_base": (4, 1),
    "params.parsed": (4, 2),
    "processor": (5,),
    "links": (5, 1),
    "_engine": (6,),
    "builtins": (6,),
    "adapters": (7,),
    "policy": (8,),
    "trace": (8,),
    "client": (9,),
    "server": (10, 9),
    "server.versions": (10, 0),
    "server.gate": (10, 1),
    "server.front": (10, 2),
    "server.scheduler": (10, 2),
    "server.startup": (10, 3),
    "cli": (11,),
    "__main__": (12,),
    "testing": (12,),
}

#: The imports upwards, as pairs of modules.
UPWARDS = {
    # SGLang calls a processor, which calls the engine. A client never does.
    ("sglang_lp.processor", "sglang_lp._engine.stock"),
    # A notebook shows a trace as a page, which is made of the trace.
    ("sglang_lp.trace.report", "sglang_lp.trace.page"),
    # ``sglang_lp.trust.Policy`` is the public name of a class that the policy defines.
    ("sglang_lp.trust.__init__", "sglang_lp.policy.file"),
}

#: Circles that are left. Delete a line with its circle; add none.
CIRCLES = []

#: What a process keeps in variables of modules, and why it may. A key is a file and a name.
STATE = {
    "http._open": "opens URLs without following redirects; never changes",
    "cite_from_prompt._prompts": "prompts that were read, while a request of them lives",
    "answer_errors._newest": "a context variable: one value per HTTP request",
    "audit.asking": "a context variable: one value per request",
    "clock.clock": "one clock for a process, see its module",
    "caches.shared_by_copies": "a decorator",
    "cpu._latest_dtype": "the dtype of a server's logits, which never changes",
    "deciding._run": "the engine's own method, in tests of an author",
    "dry._ends": "prompts that were read, while a request of them lives",
    "finder._searched": "prompts that were read, while a request of them lives",
    "flat_json._flat": "a decoder; never changes",
    "header._answering": "a context variable: one value per HTTP request",
    "header._chances": "a context variable: one value per HTTP request",
    "header._scope": "a context variable: one value per HTTP request",
    "ids._known": "lists of ids by identity, each as long as its parameters live",
    "ids._latest": "lists of ids of one request, for its copies",
    "installation.guard": "the one guard of a process",
    "installation.installed": "hooks, each once",
    "installation.schedulers_are_guarded": "set once",
    "lag._reported": "classes of processors, each logged once",
    "metrics._writing": "Prometheus has one registry per process",
    "ngram_index._indexes": "prompts that were read, while a request of them lives",
    "parsed._known": "parameters of the latest 18 requests, for their copies",
    "placeholders._tasks": "tasks until they are done, else the event loop forgets them",
    "reports._asked": "a context variable: one value per HTTP request",
    "terminal._lost": "what a broken pipe did not take, in a command",
    "trial._abandoned": "at most one thread for each class that the operator allowed",
    "vllm_names._importing": "a lock",
    "vllm_v1._serials": "a counter",
}

#: Functions whose cache has no bound, and what bounds the number of their arguments.
UNBOUNDED = {
    "disaggregated._delayed_calls": "no argument",
    "faults._signals": "no argument",
    "native_types._adapter": "no argument",
    "native_types._contract": "no argument",
    "native_types._names": "no argument",
    "__init__._log_old_name": "old names that classes declare",
    "reasons._truncation": "no argument",
    "sglang_class.as_processor": "classes that the operator allowed",
    "versions.has_beam_search": "no argument",
    "versions.untested": "no argument",
    "vllm_names._is_installed": "no argument",
    "whole_answers._serialized_form": "no argument",
    "vllm_names._modules": "no argument",
    "vllm_stand_in._tokenizer": "models of a server",
}

#: Names that several classes have, and why they may.
SHARED_NAMES = {
    "Fitted": "parameters after ``fit``, written in a processor's class body as ``Params`` is",
    "Params": "the name under which each processor declares its parameters",
}

#: What tests outside of ``support`` may import besides the package: what the tests of a room test.
TESTED = {
    "demo": ("demo",),
    "evidence": ("benchmarks.evidence", "benchmarks.svg"),
    "hunt": ("hunt",),
    "performance": ("benchmarks",),
}
#: What other tests may import, and why. A key is a file or a module.
SHARED_IMPORTS = {
    "demo.corpus": "what the demo's model was taught",
    "demo.model": "a model that answers, which the demo trains",
    "demo.speaking": "a model that speaks, from a package",
    "tests/live/test_soak.py": "some seconds of the soak, on a server of the other tests",
}


def part_of(module: str) -> str | None:
    """Return the part of sglang_lp that a dotted name belongs to; ``None`` outside of it."""
    top, *rest = module.split(".")
    if top != "sglang_lp" or not rest:
        return None
    room = ".".join(rest[:2])
    return room if room in RANKS else rest[0]


def imported_names(source: str, module: str) -> set[str]:
    """Return the dotted names that a module imports: at the top, in functions, for annotations.

    Args:
        source: Its text.
        module: Its dotted name; that of a package ends in ``.__init__``.
    """
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: -node.level] if node.level else []
            base += [node.module] if node.module else []
            names |= {".".join([*base, alias.name]) for alias in node.names}
    return names


def imported_parts(source: str, module: str) -> set[str]:
    """Return the parts of sglang_lp that a module imports."""
    return {part for part in map(part_of, imported_names(source, module)) if part}


def modules() -> dict[str, Path]:
    """Return every module of the package but the package itself; a room is ``....__init__``."""
    paths = {path.relative_to(ROOT).with_suffix(""): path for path in PACKAGE.rglob("*.py")}
    named = {".".join(name.parts): path for name, path in paths.items()}
    del named["sglang_lp.__init__"]
    return dict(sorted(named.items()))


def graph() -> dict[str, set[str]]:
    """Return the modules that each module imports, without :data:`UPWARDS`."""
    known = {name.removesuffix(".__init__"): path for name, path in modules().items()}
    found = {}
    for name, path in known.items():
        inside = name + ".__init__" if path.stem == "__init__" else name
        names = imported_names(path.read_text(), inside)
        # An imported name is a module itself, or belongs to the module before the last dot.
        homes = {one if one in known else one.rpartition(".")[0] for one in names}
        found[name] = {one for one in homes & {*known} - {name} if (inside, one) not in UPWARDS}
    return found


def circles(imports: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of modules that import each other, however far around."""
    reached: dict[str, set[str]] = {}
    for start in imports:
        seen, left = set(), [start]
        while left:
            new = imports[left.pop()] - seen
            seen |= new
            left += new
        reached[start] = seen
    groups = ({b for b in reached[a] if a in reached[b]} for a in imports)
    return [
        set(group) for group in sorted({frozenset(group) for group in groups if group}, key=sorted)
    ]


@pytest.mark.parametrize(
    ("source", "module", "parts"),
    [
        ("import sglang_lp.wire", "sglang_lp.trust.table", {"wire"}),
        ("from sglang_lp import wire, errors", "sglang_lp.cli", {"wire", "errors"}),
        ("from ..wire import digest", "sglang_lp.trust.table", {"wire"}),
        ("from . import audit", "sglang_lp.trust.__init__", {"trust"}),
        ("def f():\n    from sglang_lp.server import x", "sglang_lp.wire", {"server"}),
        ("from sglang_lp.server.gate import x", "sglang_lp.wire", {"server.gate"}),
        ("if TYPE_CHECKING:\n    import sglang_lp.cli", "sglang_lp.wire", {"cli"}),
        ("import torch, sglang.srt", "sglang_lp.edits", set()),
    ],
)
def test_imports_are_found_however_they_are_written(source, module, parts):
    assert imported_parts(source, module) == parts


@pytest.mark.parametrize("module", modules())
def test_imports_run_one_way(module):
    part = part_of(module)

    assert part in RANKS, "a new part of sglang_lp needs its rank here"
    for name in imported_names(modules()[module].read_text(), module):
        imported = part_of(name)
        if imported in {None, part, "__version__"} or (module, name.rpartition(".")[0]) in UPWARDS:
            continue
        assert RANKS[imported] < RANKS[part], f"{module} may not import sglang_lp.{imported}"


def test_only_tests_of_the_benchmarks_the_demo_and_the_hunt_import_them():
    used, wrong = set(), []
    for path in (ROOT / "tests").rglob("*.py"):
        file = path.relative_to(ROOT)
        allowed = TESTED.get(file.parts[1], ())
        for name in imported_names(path.read_text(), ".".join(file.with_suffix("").parts)):
            if name.partition(".")[0] not in {"benchmarks", "demo", "hunt"}:
                continue
            if any(f"{name}.".startswith(f"{one}.") for one in allowed):
                continue
            within = {str(file), *(name.rsplit(".", cut)[0] for cut in range(name.count(".")))}
            reasons = within & SHARED_IMPORTS.keys()
            used |= reasons
            if not reasons:
                wrong.append(f"{file}: {name}")

    assert sorted(wrong) == []
    assert used == {*SHARED_IMPORTS}


def test_every_rank_is_that_of_a_part_that_exists():
    assert {part_of(module) for module in modules()} == {*RANKS}


@pytest.mark.parametrize(("module", "imported"), sorted(UPWARDS))
def test_every_import_upwards_exists(module, imported):
    names = imported_names(modules()[module].read_text(), module)

    assert imported in {name.rpartition(".")[0] for name in names}


def test_circles_are_found_however_long_they_are():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set()}) == [{"a", "b", "c"}]


def test_no_modules_import_each_other():
    known = [{*line.split()} for line in CIRCLES]

    def shortened(module: str, names: set[str]) -> str:
        (found,) = [name for name in names if module.endswith("." + name)] or [module]
        return found

    for circle in circles(graph()):
        ends = [
            names for names in known if {shortened(module, names) for module in circle} == names
        ]
        assert ends, f"these import each other: {sorted(circle)}"
        known.remove(ends[0])
    assert known == [], "these circles are gone: delete their lines"


@pytest.mark.parametrize("room", ["apply", "compiled"])
def test_edits_are_compiled_and_applied_without_the_history(room):
    history = "sglang_lp._engine.history."
    found = {
        path.stem: {name.removeprefix(history).partition(".")[0] for name in names}
        for path in (PACKAGE / "_engine" / room).glob("*.py")
        if (
            names := {
                name
                for name in imported_names(
                    path.read_text(), f"sglang_lp._engine.{room}.{path.stem}"
                )
                if name.startswith(history)
            }
        )
    }

    assert found == {}


def test_two_files_ask_what_kind_of_device_it_is():
    asked = re.compile(r"\.is_cuda\b|\.is_cpu\b|device\.type\b|pin_memory|non_blocking")
    files = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.glob("_engine/**/*.py")}
    found = {name for name, path in files.items() if asked.search(path.read_text())}

    assert found == {"_engine/apply/cpu.py", "_engine/apply/cuda.py"}


def test_no_file_of_the_server_is_called_as_one_of_the_engine():
    server, engine = (
        {path.name for path in (PACKAGE / room).rglob("*.py")} for room in ("server", "_engine")
    )

    assert server & engine == {"__init__.py"}


def test_no_two_classes_have_the_same_name():
    files: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):  # a reader takes ``_Step`` for ``Step``
                name = node.name.lstrip("_")
                files.setdefault(name, set()).add(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    shared = {name: sorted(found) for name, found in files.items() if len(found) > 1}

    assert {name: shared[name] for name in shared.keys() - SHARED_NAMES.keys()} == {}
    assert shared.keys() == SHARED_NAMES.keys()


def test_what_a_process_keeps_is_listed_with_its_reason():
    kept, unbounded = set(), set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text())
        for node in tree.body:
            targets = (
                node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            )
            names = {target.id for target in targets if isinstance(target, ast.Name)}
            value = getattr(node, "value", None)
            if isinstance(value, ast.Call) and ast.unparse(value.func) == "logging.getLogger":
                continue
            kept |= {f"{path.stem}.{name}" for name in names if name.islower() and name[:2] != "__"}
        for node in ast.walk(tree):
            if isinstance(node, ast.Global):
                kept |= {f"{path.stem}.{name}" for name in node.names}
            if isinstance(node, ast.FunctionDef):
                decorators = {ast.unparse(one) for one in node.decorator_list}
                if decorators & {"cache", "functools.cache", "lru_cache(maxsize=None)"}:
                    unbounded.add(f"{path.stem}.{node.name}")

    assert kept == {*STATE}
    assert unbounded == {*UNBOUNDED}


def test_the_package_itself_imports_nothing_when_it_is_imported():
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    top = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]

    assert {ast.unparse(node).split()[1].partition(".")[0] for node in top} == {
        *("__future__", "importlib", "typing")
    }


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
            "LogitProcessor Recording check_computed lasting subclasses_of",
        ),
        ("sglang_lp.request", "Answer History Request"),
        ("sglang_lp.edits", "Edits End LENGTH MAX_BIAS MAX_FACTOR NEVER STOP"),
        (
            "sglang_lp.client",
            (
                "Attachment Attachments Probabilities ThinkingBlock attach attach_each loss_mask "
                "probabilities raw_logprobs resume thinking_blocks"
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


def loaded_by(code: str) -> set[str]:
    """Return the modules that a new process has imported after some code."""
    say = "import sys; print(*sys.modules, file=sys.stderr)"
    report = subprocess.run(
        [sys.executable, "-c", f"{code}\n{say}"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stderr
    return {*report.split()}


@pytest.mark.parametrize("module", ["sglang_lp", "sglang_lp.client", "sglang_lp.cli"])
def test_a_client_needs_neither_torch_nor_sglang(module):
    loaded = loaded_by(f"import {module}")

    assert "sglang_lp" in loaded
    assert not loaded & {"torch", "sglang", "transformers", "numpy"}


@pytest.mark.parametrize(
    ("code", "builtins"),
    [
        ("import sglang_lp.client", set()),
        (
            (
                "from sglang_lp import attach\n"
                "attached = attach('MinLengthLogitProcessor', min_tokens=3)\n"
                "attached.check({'X-SGLang-LP': 'MinLengthLogitProcessor'})"
            ),
            {"phase", "tokens", "tokens.min_length"},
        ),
        (
            "from sglang_lp import builtins; builtins.MinLengthLogitProcessor",
            {"phase", "tokens", "tokens.min_length"},
        ),
    ],
)
def test_a_client_loads_no_engine_and_no_built_in_that_it_did_not_ask_for(code, builtins):
    room = "sglang_lp.builtins."
    loaded = loaded_by(code)

    assert {name.removeprefix(room) for name in loaded if name.startswith(room)} == {
        "homes",
        *builtins,
    }
    rooms = {part_of(name) for name in loaded}
    assert not rooms & {"_engine", "text", "policy", "server", "adapters", "trace", "testing"}
