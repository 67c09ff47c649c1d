"""``sglang-lp new``: the folder works as it is, without SGLang, and the page shows it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

import pytest

from sglang_lp import cli
from sglang_lp.policy import Policy

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "start" / "processor.md").read_text()
CLASS = "at_most:AtMostLogitProcessor"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("new")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert cli.main(["new", "at_most"]) == 0
    return folder / "at_most"


@pytest.fixture
def inside(written, monkeypatch):
    """Work in the folder, whose module Python does not know."""
    monkeypatch.chdir(written)
    yield written
    sys.modules.pop("at_most", None)


def run(folder, *arguments):
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_its_tests_pass_without_sglang(written):
    said = run(
        written, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "support.without_sglang"
    )

    assert re.search(r"^2\d passed", said, re.MULTILINE)


def test_the_page_shows_the_files(written):
    shown = re.findall(r"^```(?:python|toml)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)

    assert shown == [
        (written / name).read_text() for name in ("at_most.py", "test_at_most.py", "policy.toml")
    ]


def test_its_wheel_holds_the_module(written, tmp_path):
    run(written, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path))
    (wheel,) = tmp_path.glob("*.whl")

    assert [name for name in ZipFile(wheel).namelist() if "dist-info" not in name] == ["at_most.py"]


def no_sglang(monkeypatch):
    installed = metadata.version

    def version(name):
        if name == "sglang":
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr("sglang_lp.server.versions.version", version)
    monkeypatch.setitem(sys.modules, "sglang", None)


def test_doctor_checks_its_policy_where_sglang_is_not_installed(inside, monkeypatch, capsys):
    no_sglang(monkeypatch)
    monkeypatch.syspath_prepend(inside)

    assert cli.main(["doctor", "--policy", "policy.toml"]) == 0
    said = capsys.readouterr().out
    assert "!!      SGLang: not installed" in said
    assert re.search(r"^ok      policy: \d+ processors allowed", said, re.MULTILINE)


def test_doctor_without_a_policy_of_ones_own_still_needs_sglang(monkeypatch, capsys):
    no_sglang(monkeypatch)

    assert cli.main(["doctor"]) == 1
    assert "FAILED  SGLang: SGLang is not installed" in capsys.readouterr().out


def test_allow_in_the_folder_says_how_python_finds_the_module(
    inside, monkeypatch, tmp_path, capsys
):
    policy = tmp_path / "policy.toml"
    assert cli.main(["allow", CLASS, "--policy", str(policy), "--yes"]) == 2
    said = capsys.readouterr().err
    assert "at_most is in this folder, where Python does not look" in said
    assert "PYTHONPATH=." in said

    monkeypatch.syspath_prepend(".")  # as PYTHONPATH=. does
    assert cli.main(["allow", CLASS, "--policy", str(policy), "--yes"]) == 0
    assert Policy.from_toml(policy).allow == (CLASS,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("at-most", "such as at_most, got 'at-most'"),
        ("AtMost", "such as at_most, got 'AtMost'"),
        ("1st", "expected the name of a Python module"),
        ("../at_most", "expected the name of a Python module"),
        ("at_most\n", "expected the name of a Python module"),
        ("", "expected the name of a Python module"),
        ("class", "expected no keyword of Python"),
        ("test_it", "expected no name of a test"),
        ("json", "Python has a module json already"),
        ("msgspec", "Python has a module msgspec already"),
        ("there", "there is in this folder already"),
    ],
)
def test_a_name_that_cannot_be_one_writes_nothing(name, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()

    assert cli.main(["new", name]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert len(said.splitlines()) == 1
    assert [path.name for path in tmp_path.rglob("*")] == ["there"]


def test_a_folder_that_cannot_be_written_is_an_error_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def refuse(_path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert cli.main(["new", "at_most"]) == 2
    assert "NAME: at_most cannot be written: Permission denied" in capsys.readouterr().err
