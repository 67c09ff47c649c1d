"""The built wheel is whole, and works in an environment that has neither torch nor SGLang."""

import os
import re
import shutil
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
#: The tests import the installed package, never the checkout.
ENVIRONMENT = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=ENVIRONMENT, capture_output=True, check=False, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """Build the wheel with the backend of this environment."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=ROOT)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def clean(wheel, tmp_path_factory) -> Path:
    """Install only the wheel and its requirements in a new environment."""
    folder = tmp_path_factory.mktemp("clean")
    venv.create(folder)
    [packages] = folder.glob("lib/python*/site-packages")
    uv, python = Path(sys.executable).with_name("uv"), folder / "bin" / "python"
    install = (uv, "pip", "install", "--offline", "--no-deps", "--python", python, wheel)
    run(*install, cwd=folder)
    [installed] = packages.glob("sglang_lp-*.dist-info")
    for name in required(Distribution.at(installed)):
        copy(distribution(name), packages)
    run(uv, "pip", "check", "--offline", "--python", python, cwd=folder)
    return folder


def required(package: Distribution) -> set[str]:
    """Return a package's requirements without extras, and theirs."""
    names = set()
    for requirement in package.requires or ():
        if "extra ==" not in requirement:
            name = re.match(r"[\w.-]+", requirement)[0]
            names |= {name} | required(distribution(name))
    return names


def copy(package: Distribution, packages: Path) -> None:
    """Copy the modules and the metadata of an installed package."""
    for file in package.files:
        if ".." not in file.parts and "__pycache__" not in file.parts:
            (packages / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file.locate(), packages / file)


def python(clean: Path, code: str) -> str:
    return run(clean / "bin" / "python", "-W", "error", "-c", code, cwd=clean)


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    listed = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "sglang_lp")
    sources = {name for name in run(*listed, cwd=ROOT).splitlines() if (ROOT / name).exists()}
    held = ZipFile(wheel).namelist()
    info = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"

    assert {name for name in held if not name.startswith(f"{info}/")} == sources
    assert "sglang_lp/py.typed" in held
    assert f"{info}/licenses/LICENSE" in held


def test_an_index_of_packages_can_follow_every_link_of_the_description(wheel):
    info = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"
    metadata = ZipFile(wheel).read(f"{info}/METADATA").decode()
    version = re.search(r"^Version: (.+)$", metadata, re.MULTILINE)[1]
    description = metadata.partition("\n\n")[2]
    at = re.compile(
        rf"https://github\.com/sglang-lp/sglang-lp/(?:blob|raw)/v{re.escape(version)}/([^#)]+)"
    )

    links = re.findall(r"\]\(([^)]+)\)", description)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text()))
    assert [link for link in links if not link.startswith("https://")] == []
    ours = [found[1] for link in links if (found := at.match(link))]
    assert len(ours) > 10
    assert [path for path in ours if not (ROOT / path).exists()] == []
    assert all("/raw/" in image for image in re.findall(r"!\[[^\]]*\]\((\S+)\)", description))


@pytest.mark.parametrize("module", ["torch", "sglang", "transformers", "numpy"])
def test_the_clean_environment_does_not_have(module, clean):
    found = f"import importlib.util; print(importlib.util.find_spec({module!r}))"

    assert python(clean, found) == "None\n"


def test_the_package_is_imported_from_the_wheel(clean):
    where = python(clean, "import sglang_lp, sglang_lp.client; print(sglang_lp.__file__)")

    assert Path(where.strip()).is_relative_to(clean)


def test_the_version_is_that_of_the_wheel(clean, wheel):
    version = python(clean, "import sglang_lp; print(sglang_lp.__version__)").strip()

    assert wheel.name.split("-")[1] == version


def test_a_client_attaches_a_processor(clean):
    body = python(
        clean,
        "from sglang_lp.client import attach\n"
        "bans = attach('DisallowedTokensLogitsProcessor', token_ids=[20])\n"
        "print(bans.generate_body({'text': 'Hi'})['sampling_params'])",
    )

    assert body == "{'custom_params': {'token_ids': [20]}}\n"


def test_a_trace_says_what_it_needs(clean):
    (clean / "request.json").write_text('{"input_ids": [1]}')
    (clean / "answer.json").write_text('{"output_ids": [1]}')
    (clean / "tokenizer.json").write_text("{}")
    trace = (
        *(clean / "bin" / "sglang-lp", "trace", "request.json", "answer.json"),
        *("--tokenizer", "."),
    )
    done = subprocess.run(
        trace, cwd=clean, env=ENVIRONMENT, capture_output=True, check=False, text=True
    )

    assert done.returncode == 2
    assert "a trace needs torch, which a server has: pip install 'sglang-lp[trace]'" in done.stderr


def test_the_command_lists_the_processors(clean):
    listed = run(clean / "bin" / "sglang-lp", "list", cwd=clean)

    assert "DisallowedTokensLogitsProcessor" in listed
