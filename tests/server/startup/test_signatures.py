"""A hook reads SGLang's calls by its own signature, which is compared with SGLang's."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pkgutil import resolve_name

import pytest

from sglang_lp.server import versions
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.startup import hooks
from sglang_lp.server.startup.hook_table import HOOKS, Shared
from sglang_lp.server.startup.signatures import mismatches
from sglang_lp.trust import Policy

NAMED = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
SHARED = Shared(Guard(Policy.default()))
MADE = [
    pytest.param(hook, hook.make(SHARED), id=f"{place}-{hook.target}")
    for place, hook in enumerate(HOOKS)
    if hooks._is_due(hook, versions.version("sglang"))
]


def differing(hook, function, kind="before", *, is_method=False):
    return [*mismatches(hook, kind, function, is_method=is_method)]


def f(a, b=1, *, c=2):
    """Stand for a function of SGLang."""


@pytest.mark.parametrize(
    ("hook", "kind", "names"),
    [
        (lambda *_args, **_kwargs: None, "before", []),
        (lambda a, *_args, **_kwargs: None, "before", []),
        (lambda a, b=1, *, c=2: None, "before", []),
        (lambda a, b=1, c=2: None, "before", []),
        (lambda a, *_args, c=2, **_kwargs: None, "before", []),
        (lambda _result, a, *_args, **_kwargs: None, "after", []),
        (lambda _original, a, *_args, **_kwargs: None, "around", []),
        (lambda a, z=1, *_args, **_kwargs: None, "before", ["z"]),
        (lambda b, *_args, **_kwargs: None, "before", ["b"]),
        (lambda a, *_args, z=2, **_kwargs: None, "before", ["z"]),
        # Given by place, it would not arrive.
        (lambda *_args, b=1, **_kwargs: None, "before", ["b"]),
        # What a call leaves out would be another value, or none.
        (lambda a, b=7, *_args, **_kwargs: None, "before", ["b"]),
        (lambda a, b, *_args, **_kwargs: None, "before", ["b"]),
        # Not every call would be taken.
        (lambda a, **_kwargs: None, "before", ["b"]),
        (lambda a, *_args: None, "before", ["b", "c"]),
    ],
)
def test_a_hook_reads_every_call_or_the_parameters_are_named(hook, kind, names):
    assert differing(hook, f, kind) == names


def test_an_instance_may_have_any_name():
    assert differing(lambda worker, a, *_args, **_kwargs: None, lambda self, a: None) == ["worker"]
    assert not differing(lambda worker, a: None, lambda self, a: None, is_method=True)
    assert not differing(lambda *_args, **_kwargs: None, lambda self, a: None, is_method=True)


def target_of(hook):
    owner, _, name = hook.target.rpartition(".")
    function = inspect.getattr_static(resolve_name(owner), name)
    return getattr(function, "__func__", function), isinstance(resolve_name(owner), type)


@pytest.mark.parametrize(("hook", "made"), MADE)
def test_every_parameter_that_a_hook_reads_is_missed_if_sglang_renames_it(hook, made):
    function, is_method = target_of(hook)
    assert differing(made, function, hook.kind, is_method=is_method) == []

    read = {one.name for one in inspect.signature(made).parameters.values() if one.kind in NAMED}
    theirs = [*inspect.signature(function).parameters.values()]
    for place, one in enumerate(theirs):
        if (is_method and place == 0) or one.name not in read:
            continue
        renamed = [*theirs[:place], one.replace(name="renamed"), *theirs[place + 1 :]]

        def other(*args, **kwargs):
            """Stand for another version's."""

        other.__signature__ = inspect.Signature(renamed)
        assert one.name in differing(made, other, hook.kind, is_method=is_method)


@pytest.mark.parametrize(("hook", "made"), MADE)
def test_no_hook_reads_a_parameter_that_it_does_not_declare(hook, made):
    tree = ast.parse(textwrap.dedent(inspect.getsource(made)))
    (function, *_) = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    rest = {one.arg for one in (function.args.vararg, function.args.kwarg) if one}
    # They are passed on whole, and neither indexed nor asked.
    looked_at = {
        node.value.id
        for node in ast.walk(function)
        if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.value, ast.Name)
    }

    assert not rest & looked_at
