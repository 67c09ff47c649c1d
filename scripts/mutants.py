"""Mutation testing of the trust boundary: break it in many ways, and see the tests notice.

It mutates the code between a request and a processor that runs: the wire format, the verifier, the
policy's allow list, and the gates of both processes. Decoding is covered by the engine tests and
`make test SUITE=faults`.

It works on a copy in ``.cache/mutants``, and a run that was interrupted goes on there as long as
nothing that was copied has changed. ``scripts/mutants.md`` lists the mutants that no test notices,
each with a reason; a mutant that is missing there makes the exit code 1. Tests have a tenth of
their examples first; mutants that survive these without a reason meet all examples.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COPY = ROOT / ".cache" / "mutants"
LIST = ROOT / "scripts" / "mutants.md"
MUTMUT = ROOT / ".venv" / "bin" / "mutmut"
TESTS = ("tests/processor", "tests/trust", "tests/wire", "tests/server")
#: Tests that cannot run here: of SGLang itself and of the documents; tests that start processes,
#: which mutmut does not follow; three that count calls or methods, because mutmut adds both; one
#: that reads the sources, in which mutmut writes every mutant; one of a line that is logged once in
#: a process, because mutmut forks; and those of mypy.
LEFT_OUT = (
    *("sglangs_own_class", "those_that_sglang_has", "documents"),
    *("fail_closed", "hundred_calls", "beyond_the_cap", "what_hooks_share"),
    *("every_read_of_an_attribute", "says_once_what_an_old_name", "mypy"),
)

#: Code between a request and a processor that runs.
MUTATED = (
    *("sglang_lp/wire/*.py", "sglang_lp/trust/*.py", "sglang_lp/importing.py"),
    *(
        f"sglang_lp/policy/{name}.py"
        for name in ("adapt", "allowing", "decisions", "file", "stock")
    ),
    "sglang_lp/server/scheduler/gate.py",
    *(f"sglang_lp/server/front/{name}.py" for name in ("admission", "bounds", "fields")),
    *(
        f"sglang_lp/server/gate/{name}.py"
        for name in ("algorithms", "guard", "intake", "reserved_keys", "routed_form")
    ),
)

SETTINGS = """\
[mutmut]
source_paths=sglang_lp
only_mutate=
  {mutated}
also_copy=
  deploy
  docs
  support
pytest_add_cli_args_test_selection=
  {tests}
pytest_add_cli_args=
  -x
  -k
  {chosen}
"""


def prepare() -> None:
    """Make the copy, or keep the copy of an interrupted run of the same state."""
    folders = ("deploy", "docs", "sglang_lp", "support", *TESTS)
    files = ("pyproject.toml", "tests/conftest.py", "scripts/mutants.py")
    state = _digest(
        [
            *(path for folder in folders for path in (ROOT / folder).rglob("*.*")),
            *(ROOT / file for file in files),
        ]
    )
    if (COPY / "state").exists() and (COPY / "state").read_text() == state:
        return
    shutil.rmtree(COPY, ignore_errors=True)
    for folder in folders:
        shutil.copytree(ROOT / folder, COPY / folder)
    for file in files[:-1]:
        shutil.copy(ROOT / file, COPY / file)
    settings = SETTINGS.format(
        mutated="\n  ".join(MUTATED),
        tests="\n  ".join(TESTS),
        chosen=" and ".join(f"not {name}" for name in LEFT_OUT),
    )
    (COPY / "setup.cfg").write_text(settings)
    (COPY / "state").write_text(state)


def _digest(paths: list[Path]) -> str:
    found = hashlib.sha256()
    for path in sorted(paths):
        if path.is_file() and path.suffix != ".pyc":
            found.update(f"{path}\n".encode())
            found.update(path.read_bytes())
    return found.hexdigest()


def mutmut(*arguments: str) -> str:
    """Run mutmut in the copy and return what it says."""
    done = subprocess.run(
        [str(MUTMUT), *arguments], cwd=COPY, stdout=subprocess.PIPE, text=True, check=False
    )
    return done.stdout


def survivors() -> dict[str, str]:
    """Map each mutant that no test noticed to its function and the lines that differ."""
    found = re.findall(r"^\s*(\S+): (?!killed|caught)(.*)$", mutmut("results"), re.MULTILINE)
    listed = {}
    for name, status in found:
        diff = mutmut("show", name).splitlines()
        lines = [line for line in diff if re.match(r"[+-](?![+-]{2} )", line)]
        function = re.sub(r"\.x_?ǁ?", ".", name).replace("ǁ", ".")
        function = re.sub(r"__mutmut_\d+$", "", function)
        change = "\n".join([function, *(f"{line[0]} {line[1:].strip()}" for line in lines)])
        listed[name] = change if status == "survived" else f"{change}\n({status})"
    return listed


def run(profile: str, *names: str) -> None:
    """Test the mutants with these names, or all that have not been tested.

    Args:
        profile: Profile of Hypothesis in tests/conftest.py.
        names: Names of mutants.

    Raises:
        SystemExit: mutmut failed.
    """
    # Not in the settings: mutmut forgets all results when these change.
    variables = {**os.environ, "PYTEST_ADDOPTS": f"--hypothesis-profile {profile}"}
    command = [str(MUTMUT), "run", "--max-children", str(os.cpu_count() or 1), *names]
    done = subprocess.run(command, cwd=COPY, env=variables, check=False)
    if done.returncode:
        sys.exit(f"FAILED: mutmut ended with {done.returncode}")


def main() -> int:
    """Run it all; return the exit code."""
    prepare()
    known = LIST.read_text(encoding="utf-8")
    run("quick")
    unlisted = [name for name, change in survivors().items() if change not in known]
    if unlisted:
        run("seeded", *unlisted)
    found = survivors()
    new = [change for change in found.values() if change not in known]
    print(f"{len(found)} mutants survived, {len(new)} of them without a reason in {LIST.name}")
    for survivor in new:
        print(f"\n{survivor}")
    return 1 if new else 0


if __name__ == "__main__":
    sys.exit(main())
