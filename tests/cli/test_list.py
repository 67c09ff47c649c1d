"""The listing of the processors agrees with their classes."""

import json
import re

import pytest

from sglang_lp import builtins
from sglang_lp.cli import main
from sglang_lp.cli.describe import list_parameters
from sglang_lp.client import attach
from sglang_lp.wire.names import LIST_PATH
from support.servers.listening import Answered, listening


@pytest.mark.parametrize("name", builtins.__all__)
def test_the_example_of_each_processor_works(name, capsys):
    attached = attach(name, **getattr(builtins, name).example)

    assert main(["list", name, "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["example"] == attached.custom_params
    assert [*shown["params"]] == [one.name for one in list_parameters(getattr(builtins, name))]
    assert main(["list", name]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert json.loads(said.partition("example: ")[2]) == shown["example"]
    assert all(f" {name}: " in said for name in shown["params"])


def test_the_list_names_every_processor_and_fits_a_terminal(capsys):
    assert main(["list"]) == 0
    said = capsys.readouterr().out.splitlines()

    assert {*builtins.__all__} < {*said}
    assert main(["list", "--json"]) == 0
    assert {one["name"] for one in json.loads(capsys.readouterr().out)} == {*builtins.__all__}
    for name in builtins.__all__:
        assert main(["list", name]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if len(line) > 80] == []


def test_a_name_that_does_not_exist_gets_the_one_that_was_meant(capsys):
    assert main(["list", "BadWords"]) == 2
    assert "did you mean BadWordsLogitProcessor?" in capsys.readouterr().err


@pytest.mark.parametrize("name", builtins.__all__)
def test_every_parameter_has_its_meaning_and_its_range_in_words(name):
    for parameter in list_parameters(getattr(builtins, name)):
        assert parameter.about
        assert "None" not in parameter.kind + parameter.default
        assert "any value" not in parameter.kind


def test_nothing_that_is_printed_has_marks_of_a_docstring(capsys):
    assert main(["list"]) == 0
    for name in builtins.__all__:
        assert main(["list", name]) == 0
    assert not {"``", ":class:", ":func:"} & {
        *re.findall("``|:class:|:func:", capsys.readouterr().out)
    }


LISTED = {
    "guarded": True,
    "enabled": True,
    "version": "1",
    "sglang": "2",
    "policy": "f",
    "processors": [
        {
            "name": "A",
            "parameters": [{"name": "x", "required": True}, {"name": "y", "required": False}],
        },
        {"name": "my:B", "parameters": None},
        {"name": "C", "parameters": []},
    ],
    "profiles": [{"name": "support", "may_set": ["x"]}, {"name": "fixed", "may_set": []}],
}


@pytest.mark.parametrize(("guarded", "code"), [(True, 0), (False, 1)])
def test_the_list_of_a_server_has_its_processors_and_profiles(guarded, code, capsys):
    def answer(asked):
        assert (asked.method, asked.path) == ("GET", LIST_PATH)
        return Answered(200 if guarded else 503, {**LISTED, "guarded": guarded})

    with listening(answer) as url:
        assert main(["list", "--url", f"{url}/v1"]) == code

    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith("guarded, " if guarded else "NOT GUARDED")
    assert lines == [
        "policy f",
        "A",
        "    x (required), y",
        "my:B",
        "    parameters of its own",
        "C",
        "    no parameters",
        "profile support",
        "    may set x",
        "profile fixed",
        "    may set nothing",
    ]


@pytest.mark.parametrize(("said", "is_off"), [({"enabled": False}, True), ({}, False)])
def test_a_server_that_runs_no_processors_is_told(said, is_off, capsys):
    older = {key: value for key, value in LISTED.items() if key != "enabled"}
    with listening(lambda _asked: Answered(200, {**older, **said})) as url:
        assert main(["list", "--url", url]) == 0
    assert ("PROCESSORS ARE OFF" in capsys.readouterr().out) == is_off


def test_the_list_of_a_server_is_json_for_a_program(capsys):
    with listening(lambda _asked: Answered(200, LISTED)) as url:
        assert main(["list", "--json", "--url", url]) == 0
    assert json.loads(capsys.readouterr().out) == LISTED


def test_a_server_is_listed_whole(capsys):
    assert main(["list", "--url", "http://127.0.0.1:1", "DRYLogitProcessor"]) == 2
    assert "expected no NAME" in capsys.readouterr().err


@pytest.mark.parametrize("answered", [Answered(404), Answered(200, {}), Answered(200, b"<html>")])
def test_a_server_without_a_list_is_an_error_that_says_what_to_do(answered, capsys):
    with listening(lambda _asked: answered) as url:
        assert main(["list", "--url", url]) == 2
    assert "try a worker's own URL" in capsys.readouterr().err
