"""The words after ``make``, and a target that goes on without a step that it does not need."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.dev import steps_of
from scripts.targets import TARGETS

ROOT = Path(__file__).parents[2]
TARGET = """
from scripts import dev
from scripts.steps import Step
from scripts.targets import Target
steps = (Step("fails", ("false",), needed={}), Step("comes after", ("echo", "it came")))
dev.TARGETS["demo"] = Target("", steps)
raise SystemExit(dev.main("demo"))
"""


def make(*words):
    """Run ``make``, for words that end before any step."""
    done = subprocess.run(
        ["make", *words, f"PYTHON={sys.executable}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_help_explains_every_target_suite_and_part_on_one_screen():
    code, said = make("help")

    assert code == 0
    for name, target in TARGETS.items():
        assert f"make {name}" in said
        assert target.help in said
        assert all(f"  {word} " in said for word in target.choices)
    lines = said.splitlines()
    assert len(lines) <= 36
    assert max(map(len, lines)) <= 80


def test_the_makefile_has_the_targets_that_have_steps():
    (named,) = re.findall(r"^TARGETS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)

    assert named.split() == [*TARGETS]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["bench-bounds"], [*TARGETS]),
        (["check", "nothing"], [*TARGETS]),
        (["test", "SUITE=draft"], [*TARGETS["test"].choices]),
        (["bench", "PART="], [*TARGETS["bench"].choices]),
        (["test", "PART=bounds"], ["SUITE"]),
        (["check", "SUITE=drafts"], ["no variable"]),
        (["hunt", "MINUTE=5"], ["MINUTES", "SEED"]),
    ],
)
def test_a_wrong_word_is_an_error_that_lists_the_right_ones(words, expected):
    code, said = make(*words)

    assert code == 2
    assert "[1/" not in said  # no step has run
    assert [word for word in expected if word not in said] == []


@pytest.mark.parametrize("name", TARGETS)
def test_a_word_chooses_its_steps_and_the_makefiles_python_none(name):
    target = TARGETS[name]

    assert steps_of(name, ["PYTHON=python3.12"]) == target.steps
    for word, choice in target.choices.items():
        assert steps_of(name, [f"{target.variable}={word}"]) == choice.steps


def test_minutes_and_a_seed_are_options_of_the_hunt():
    *_, last = steps_of("hunt", ["MINUTES=5", "SEED=3"])

    assert last.command[-5:] == ("hunt", "--minutes", "5", "--seed", "3")
    assert steps_of("hunt", [])[-1].command[-1] == "hunt"


def test_every_module_that_a_step_runs_exists():
    every = [target.steps for target in TARGETS.values()]
    every += [one.steps for target in TARGETS.values() for one in target.choices.values()]
    ours = {
        word
        for steps in every
        for step in steps
        for word in step.command
        if word == "hunt"
        or word.startswith(("benchmarks.", "demo.", "fuzz.", "scripts.", "support."))
    }

    assert len(ours) > 10
    for module in ours:
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


@pytest.mark.parametrize(("needed", "code", "came"), [(True, 1, False), (False, 0, True)])
def test_a_target_fails_with_a_step_that_it_needs_and_goes_on_without_another(needed, code, came):
    done = subprocess.run(
        [sys.executable, "-c", TARGET.format(needed)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code
    assert ("it came" in done.stdout) is came
    assert ("goes on without it" in done.stdout) is came
