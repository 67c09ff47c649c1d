"""Code, commands and file names on the pages of the documentation work."""

from __future__ import annotations

import ast
import builtins
import importlib
import inspect
import re
import tomllib
from pathlib import Path
from pkgutil import resolve_name
from unittest.mock import MagicMock

import pytest

from sglang_lp import cli, errors
from sglang_lp.links import prepare
from sglang_lp.policy import Rules
from sglang_lp.served_model import ReasoningFormat, ServedModel
from sglang_lp.trust import Policy, Verifier
from support.asked import asked_for
from support.models.vocabularies import one_token_a_byte

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "sglang_lp"
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


@pages
def test_the_python_compiles_and_what_it_imports_of_the_toolkit_exists(page):
    for block in blocks(page, "python"):
        # What is shown to be wrong need not compile.
        if "# No:" in block or block.lstrip().startswith("def check_vocabulary"):
            continue
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang_lp"):
                module = importlib.import_module(str(node.module))
                assert [name.name for name in node.names if not hasattr(module, name.name)] == []


@pages
def test_every_name_in_the_python_of_a_page_is_defined_there(page):
    known = {*dir(builtins)}
    for block in blocks(page, "python"):
        if "# No:" in block or block.lstrip().startswith("def check_vocabulary"):
            continue
        nodes = [*ast.walk(ast.parse(block))]
        names = [one for one in nodes if isinstance(one, ast.Name)]
        known |= {one.id for one in names if isinstance(one.ctx, ast.Store)}
        for one in nodes:
            if not isinstance(one, ast.keyword):
                given = (getattr(one, kind, None) for kind in ("name", "asname", "arg"))
                known |= {name.partition(".")[0] for name in given if name}

        assert {one.id for one in names} <= known, block


@pages
def test_the_toml_and_the_commands_are_valid(page, capsys):
    for block in blocks(page, "toml"):
        tomllib.loads(block)
    for verb in re.findall(r"^\$ sglang-lp ([a-z]+)", page.read_text(), re.MULTILINE):
        assert cli.main([verb, "--help"]) == 0, verb


@pytest.mark.slow
def test_the_policy_of_ten_minutes_for_a_server_passes_the_check_of_the_page(tmp_path, monkeypatch):
    start = ROOT / "docs" / "start"
    (policy,) = blocks(start / "server.md", "toml")
    (tmp_path / "policy.toml").write_text(policy)
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "processors.py").write_text((ROOT / "examples" / "own_processor.py").read_text())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("SGLANG_LP_POLICY", "")

    commands = re.findall(
        r"^\$ sglang-lp (doctor.*)$", (start / "server.md").read_text(), re.MULTILINE
    )
    # The page's own server is asked by tests/live/test_start_pages.py.
    assert commands == [
        "doctor",
        "doctor --url http://127.0.0.1:30000",
        "doctor --policy policy.toml",
    ]
    for command in (one for one in commands if "--url" not in one):
        assert cli.main(command.split()) == 0


def test_the_page_on_installing_has_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    page = (ROOT / "docs" / "install.md").read_text()

    extras = {*re.findall(r"^\|.*`sglang-lp\[(\w+)\]`.*\| \d", page, re.MULTILINE)}
    assert extras == {*project["optional-dependencies"]}


def test_ten_minutes_for_requests_show_the_message_that_comes(capsys):
    (shown,) = (
        block
        for block in blocks(ROOT / "docs" / "start" / "requests.md", "python")
        if "InvalidParameter" in block
    )
    exec(compile(shown, "requests.md", "exec"), {})  # our own page

    (promised,) = re.findall(r"print\(error\)  # (.+)", shown)
    assert promised in capsys.readouterr().out


def test_the_presets_that_think_less_are_what_a_server_takes_as_requests_and_as_profiles(
    tmp_path, monkeypatch
):
    page, client = ROOT / "docs" / "think-less.md", MagicMock()
    monkeypatch.setattr("openai.OpenAI", lambda **_: client)
    names = {}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)  # our own page
    (toml,) = blocks(page, "toml")
    (tmp_path / "policy.toml").write_text(toml)
    rules = Rules(Policy.from_toml(tmp_path / "policy.toml"), Verifier(Policy.default()).resolve)
    form = ReasoningFormat("<think>", "</think>")
    tokenizer = one_token_a_byte("<think>", "</think>", "<end>")
    served = ServedModel(tokenizer, 259, (258,), form)

    rules.fit(served)

    preset = names["both"]
    assert client.chat.completions.create.call_args.kwargs["extra_body"] == preset.extra_body()
    for one in (names[name] for name in ("calm", "soft", "hard", "none", "both")):
        servings = prepare(one.processor(), one.custom_params, served)
    profile = rules.decide(asked_for("brief"), served).links
    assert [type(one.processor) for one in servings] == [link.processor for link in profile]
    assert [str(one.params) for one in servings] == [str(link.params) for link in profile]
    assert [bool(one.phase) for one in servings] == [bool(link.phase) for link in profile]


#: A file or a folder, not an address on a server: it has an ending, or a slash at its end.
_PATH = re.compile(r"`((?:[\w.-]+/)+|(?:[\w.-]+/)*[\w-]+\.(?:js|json|md|py|toml|yml))`(?!\])")


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_the_files_that_a_page_sends_its_reader_to_exist(page):
    paths = _PATH.findall((ROOT / page).read_text())

    assert len(paths) > 20
    missing = [one for one in paths if not any((at / one).exists() for at in (ROOT, PACKAGE))]
    assert missing == []


#: Changes whose place a stranger must find in ten seconds.
CHANGES = (
    "a function, a parameter or an attribute that SGLang renamed",
    "a thinking family",
    "a built-in with a text parameter",
    "the message of a ceiling",
    "a metric",
    "a foreign engine",
    "how many tokens one `custom_params` may list",
    "why a request ended with HTTP 500",
)


@pytest.mark.parametrize("change", CHANGES)
def test_the_table_of_changes_has_a_place_for(change):
    assert len(re.findall(rf"^\| {re.escape(change)} \| ", CONTRIBUTING, re.MULTILINE)) == 1


def test_a_name_that_contributing_places_in_a_file_is_defined_there():
    named = re.findall(r"`(\w+)` in `([\w./]+\.(?:py|toml))`", CONTRIBUTING)

    assert len(named) > 10
    for name, file in named:
        defined = re.compile(rf"^(?:def |class )?{name}\b", re.MULTILINE)
        assert defined.search((ROOT / file).read_text()), f"{file} defines no {name}"


@pages
def test_a_request_with_a_processors_name_says_which_servers_it_ends(page):
    text = page.read_text()
    shell = re.findall(r"^ *```(?:sh|console|bash)\n(.*?)^ *```", text, re.DOTALL | re.MULTILINE)
    named = [
        one for one in shell if re.search(r'"custom_logit_processor": "(?!\{\\"callable)', one)
    ]

    assert not named or "only to a server with the plugin" in text.replace("\n", " ")


def test_every_code_of_an_error_is_on_the_page():
    codes = {*errors.RefusalReason}
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, errors.SglangLpError):
            codes.add(kind.code)
    page = (ROOT / "docs" / "errors.md").read_text()

    assert sorted(re.findall(r"^\| `([a-z_]+)` \| \d", page, re.MULTILINE)) == sorted(codes)


def test_the_list_of_mutants_quotes_functions_as_they_are():
    text = (ROOT / "scripts" / "mutants.md").read_text()
    mutants = re.findall(r"^(sglang_lp\.[\w.]+)\n((?:- .*\n)+)", text, re.MULTILINE)

    assert len(mutants) == len(re.findall(r"^sglang_lp\.", text, re.MULTILINE)) > 0
    for name, quoted in mutants:
        lines = {line.strip() for line in inspect.getsource(resolve_name(name)).splitlines()}
        stale = [line for line in quoted.splitlines() if line[2:].strip() not in lines]
        assert not stale, name
