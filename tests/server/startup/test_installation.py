"""The hooks in place in a process, and the end of a process that may not serve."""

from __future__ import annotations

import functools
import json

import pytest

from sglang_lp.errors import InstallError
from sglang_lp.server.startup import installation


def ours():
    """Stand in for a hook of this toolkit."""


def wrapped(hook, original, depth=0):
    """Wrap a function as SGLang's registry does, and then as other plugins do."""

    @functools.wraps(original)
    def wrapper():
        return hook()

    for _ in range(depth):
        inner = wrapper

        @functools.wraps(inner)
        def wrapper(inner=inner):
            return inner()

    return wrapper


class Target:
    """Stands in for a class of SGLang."""

    hooked = wrapped(ours, json.dumps)
    hooked_class_method = classmethod(wrapped(ours, json.dumps))
    plain = json.dumps
    builtin = len
    someone_elses = wrapped(json.loads, json.dumps)
    most_wrapped = wrapped(ours, json.dumps, installation._MOST_WRAPPERS - 1)
    too_much_wrapped = wrapped(ours, json.dumps, installation._MOST_WRAPPERS)


@pytest.fixture
def installed(monkeypatch):
    """Install ``ours`` under the names of attributes of ``Target``."""
    monkeypatch.setattr(json, "Target", Target, raising=False)

    def installed(*names):
        monkeypatch.setattr(installation, "installed", [(name, ours) for name in names])

    return installed


@pytest.mark.parametrize(
    ("target", "state"),
    [
        ("json.Target.hooked", "live"),
        ("json.Target.hooked_class_method", "live"),
        ("json.Target.most_wrapped", "live"),
        ("json.Target.too_much_wrapped", "lost"),
        ("json.Target.plain", "lost"),
        ("json.Target.builtin", "lost"),
        ("json.Target.someone_elses", "lost"),
        ("json.Target.renamed", "lost"),
        ("json.no_such_module.function", "lost"),
        ("no_such_package.function", "lost"),
    ],
)
def test_a_hook_is_live_where_calling_the_function_leads_to_it(installed, target, state):
    installed(target)

    assert installation.status() == {target: state}


def test_a_function_that_wraps_itself_leads_nowhere(installed, monkeypatch):
    def turns(): ...

    turns.__wrapped__ = turns
    monkeypatch.setattr(Target, "turns", turns, raising=False)
    installed("json.Target.turns")

    assert installation.status() == {"json.Target.turns": "lost"}


def test_a_process_has_a_guard_only_while_every_hook_is_live(installed, monkeypatch):
    guard = object()
    monkeypatch.setattr(installation, "guard", guard)
    installed("json.Target.hooked", "json.Target.hooked_class_method")
    assert installation.installed_guard() is guard
    installed("json.Target.hooked", "json.Target.plain")
    assert installation.installed_guard() is None


def test_a_process_that_never_loaded_the_plugin_has_no_guard(monkeypatch):
    monkeypatch.setattr(installation, "installed", [])
    monkeypatch.setattr(installation, "guard", None)

    assert installation.status() == {}
    assert installation.installed_guard() is None


def test_a_process_that_may_not_serve_says_why_and_ends(capfd):
    with pytest.raises(SystemExit) as end:
        installation.refuse("for a reason")

    assert end.value.code == 78
    assert isinstance(end.value.__cause__, InstallError)
    # Not through sys.stderr, which a server may have put elsewhere.
    assert capfd.readouterr().err == (
        "sglang-lp: this process does not serve: the guard would not be everywhere: for a reason\n"
    )
