"""The table names all that is taken hold of in SGLang, and is the only place that does."""

from __future__ import annotations

import ast
import asyncio
import dis
import hashlib
import inspect
import logging
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from types import CellType, CodeType

import msgspec
import prometheus_client
import pytest
import requests
import torch
from aiohttp import web
from fastapi import FastAPI
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from sglang.srt.plugins.hook_registry import HookRegistry
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from starlette.applications import Starlette
from xgrammar import CompiledGrammar

import sglang_lp
from sglang_lp.server.gate.guard import Guard
from sglang_lp.server.startup.attribute_table import ATTRIBUTES, OF_NGRAM
from sglang_lp.server.startup.hook_table import HOOKS, Shared
from sglang_lp.trust import Policy
from support.attribute_reads import _attributes, complaints, reads

PACKAGE = Path(sglang_lp.__file__).parent
TABLE = PACKAGE / "server" / "startup" / "hook_table.py"
MODULES = sorted(PACKAGE.rglob("*.py"))
#: What else than SGLang's objects has the attributes that the server's rooms use.
OTHERS = (
    *(str, bytes, int, dict, list, BaseException, type, CellType, re.Pattern),
    *(asyncio.AbstractEventLoop, asyncio.Task, logging.Logger, hashlib.sha256(), msgspec.msgpack),
    *(torch.Tensor, torch.cpu, torch.Event, set, ContextVar),
    *(prometheus_client.Counter, prometheus_client.Histogram),
    *(requests.Response, web.UrlDispatcher, Starlette(), sys.stdout, sys.float_info),
    *(CodeType, dis.Instruction, HookRegistry, CustomLogitProcessor, TypeAdapter(int)),
    *(FastAPI().router, APIRoute, ThreadPoolExecutor, CompiledGrammar, ValidationError),
)


def defined() -> set[str]:
    """Return every name that this package gives an attribute, a function or a class."""
    names = set()
    for module in MODULES:
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return names


def used(module: Path) -> set[str]:
    """Return the attributes that a module uses of whatever it was given."""
    tree = ast.parse(module.read_text())
    imported = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and not (isinstance(node.value, ast.Name) and node.value.id in {"self", *imported})
    }


@pytest.mark.parametrize("room", ["front", "gate", "scheduler", "startup"])
def test_every_attribute_of_sglangs_that_the_server_uses_is_in_the_table(room):
    known = {name for uses in ATTRIBUTES for name in uses.names}
    known |= {*OF_NGRAM}
    known |= {name for other in OTHERS for name in dir(other)} | defined()
    modules = sorted((PACKAGE / "server" / room).rglob("*.py"))
    unknown = {module.name: used(module) - known for module in modules}

    assert modules
    assert {name: names for name, names in unknown.items() if names} == {}


def test_names_of_sglangs_functions_stand_in_the_table_alone():
    named = {
        ".".join(hook.target.split(".")[-2:]) for hook in HOOKS if re.search("[A-Z]", hook.target)
    }
    pattern = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in named))
    found = {
        str(module.relative_to(PACKAGE)): pattern.findall(module.read_text())
        for module in MODULES
        if module != TABLE
    }

    assert {module: names for module, names in found.items() if names} == {}


def test_no_function_stands_in_the_table_twice_with_the_same():
    rows = [(hook.target, hook.kind, inspect.getsource(hook.make)) for hook in HOOKS]

    assert len({*rows}) == len(rows)


ROWS = {(uses.owner.rpartition(".")[2], name) for uses in ATTRIBUTES for name in uses.names}
READS = reads()
HOOKED = (Path(__file__).parent / "hooks.txt").read_text().splitlines()


def test_every_read_of_an_attribute_is_in_the_table_under_the_class_that_has_it():
    assert complaints(ROWS, READS) == set()


def test_without_any_row_of_the_attributes_a_read_is_missing_in_the_table():
    assert {row for row in ROWS if not complaints(ROWS - {row}, READS)} == set()


def test_a_read_with_a_default_counts():
    tree = ast.parse("getattr(req, 'one', 0) or hasattr(batch.reqs[0], 'two') or req.three")

    assert {*_attributes(tree)} >= {("req", "one"), ("reqs", "two"), ("req", "three")}


def test_every_hook_is_known_by_its_function_and_its_side():
    """``hooks.txt`` is changed with the table, so that no row goes unnoticed."""
    assert sorted(f"{hook.kind} {hook.target}" for hook in HOOKS) == HOOKED


def test_a_hook_around_a_function_calls_it_or_other_hooks_would_not_run():
    """SGLang hands it what it wraps: the function with the hooks that were registered before."""
    shared = Shared(Guard(Policy.default()))
    made = {hook.target: hook.make(shared) for hook in HOOKS if hook.kind == "around"}
    first = {target: next(iter(inspect.signature(one).parameters)) for target, one in made.items()}

    assert [target for target, name in first.items() if name.startswith("_")] == []
