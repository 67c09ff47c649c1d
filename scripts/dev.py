"""Runs a target of the Makefile: reads the words after ``make``, runs the steps, gives a verdict.

``python -m scripts.dev test SUITE=drafts`` is ``make test SUITE=drafts``. ``scripts/targets.py``
has the targets and their words.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from scripts.environments import LOCK
from scripts.steps import ROOT, do, say
from scripts.supervise import Stopped, adopt_orphans
from scripts.targets import TARGETS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from scripts.steps import Step
    from scripts.targets import Choice, Target

__all__ = ["WrongWord", "main", "overview", "steps_of"]


class WrongWord(ValueError):
    """A word after ``make`` that does not exist; the message lists the words that do."""


def overview() -> str:
    """Return the text of ``make help``: targets, suites and parts."""
    lines = _list(TARGETS, "make ")
    for name, target in TARGETS.items():
        if target.choices:
            lines += [f"make {name} {target.variable}=...", *_list(target.choices)]
    return "\n".join(lines)


def _list(words: Mapping[str, Choice | Target], before: str = "  ") -> list[str]:
    return [f"{before}{word:<9} {one.help}" for word, one in words.items()]


def steps_of(name: str, settings: Iterable[str]) -> tuple[Step, ...]:
    """Return the steps of a target with its settings.

    Args:
        name: A key of ``TARGETS``.
        settings: Variables on the command line of ``make``, such as ``SUITE=drafts``. ``PYTHON`` is
            read by the Makefile and ignored here.

    Raises:
        WrongWord: The target has no such variable, or the variable no such value.
    """
    target = TARGETS[name]
    steps = target.steps
    for setting in settings:
        variable, _, value = setting.partition("=")
        if variable == "PYTHON":
            continue
        if variable in target.options:
            *others, last = steps
            option = (f"--{variable.lower()}", value)
            steps = (*others, replace(last, command=(*last.command, *option)))
        elif variable != target.variable:
            known = [one for one in (target.variable, *target.options) if one]
            raise WrongWord(
                f"make {name}: expected {' or '.join(known) or 'no variable'}, got {setting}"
            )
        elif value not in target.choices:
            words = "\n".join(_list(target.choices))
            raise WrongWord(f"make {name} {variable}={value}: expected one of\n{words}")
        else:
            steps = target.choices[value].steps
    return steps


def main(name: str, *settings: str) -> int:
    """Run a target's steps and print the verdict.

    Args:
        name: A key of ``TARGETS``.
        settings: Variables such as ``SUITE=drafts``.

    Returns:
        The exit code: 0, that of the step that failed, 2 for a wrong word, or 128 plus the number
        of the signal that stopped it.
    """
    try:
        steps = steps_of(name, settings)
    except WrongWord as wrong:
        say(str(wrong))
        return 2
    return _run_all(shlex.join(("make", name, *settings)), steps)


def _run_all(command: str, steps: Sequence[Step]) -> int:
    started = time.monotonic()
    at = 0
    try:
        adopt_orphans()
        for at, step in enumerate(steps, 1):
            label = f"[{at}/{len(steps)}] {step.title}"
            code = do(step, label)
            if code and not step.needed:
                say(f"{label}: goes on without it")
            elif code:
                say(f"to run only that step: {shlex.join(step.command)}")
                say(f"FAILED {command} at {label}, exit code {code}")
                return code if code > 0 else 128 - code
    except Stopped as stop:
        say(f"STOPPED {command} by {stop} at step {at}; nothing was left running")
        return 128 + stop.number
    say(f"OK {command}: {len(steps)} steps in {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["help"]:
        say(overview())
        sys.exit()
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        sys.exit(
            f"FAILED: {LOCK} holds for Linux on x86_64, as SGLang's wheels do; "
            f"this is {sys.platform} on {platform.machine()}"
        )
    os.chdir(ROOT)
    sys.exit(main(*sys.argv[1:]))
