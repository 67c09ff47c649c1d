"""Sources of the hunt's requests: SGLang's classes, its routes, the formats of its parsers."""

from __future__ import annotations

import json
import math
import tomllib

import pytest

pytest.importorskip("sglang.srt")

from hypothesis import find, given

from hunt.cases import cases
from hunt.drawn import drawn
from hunt.extremes import extremes
from hunt.fields import fields_of
from hunt.formats import calls, count, formats
from hunt.routes import routes
from hunt.sent import GENERATE, Sent
from hunt.servers import KINDS

pytestmark = pytest.mark.slow


def test_a_body_is_written_as_json_with_numbers_beyond_all_floats():
    body = {"beyond": [math.inf, -math.inf], "none": {"nan": math.nan}, "text": "\ud800"}

    text = Sent(GENERATE, body).text
    read = json.loads(text)

    assert "1e400" in text
    assert read["beyond"] == [math.inf, -math.inf]
    assert math.isnan(read["none"]["nan"])
    assert read["text"] == "\ud800"


def test_escaped_keys_are_the_same_keys():
    body = {"custom_logit_processor": "a", "b": [{"c": 1}]}

    text = Sent(GENERATE, body, is_escaped=True).text

    assert "custom_logit_processor" not in text
    assert json.loads(text) == body


def test_odd_fields_are_those_that_a_body_still_has():
    odd = frozenset({"a", "b"})

    assert Sent(GENERATE, {"x": {"b": 1}}, odd=odd).oddities == {"b"}


def test_every_field_of_a_client_has_extreme_values():
    found = {route.model for route in routes().values()}
    fields = [field for model in found for field in fields_of(model).values()]

    assert len(fields) > 300
    assert all(len(extremes(field.name, field.type)) > 5 for field in fields)


def test_routes_of_administrators_are_left_out():
    assert "/generate" in routes()
    assert "/release_memory_occupation" not in routes()


@pytest.mark.parametrize("name", sorted(formats()))
def test_a_parser_finds_the_calls_of_its_format(name):
    form = formats()[name]

    assert count(name, f"{form.before}{form.call}{form.after}") == 1


def test_calls_go_wrong():
    assert count("qwen25", find(calls("qwen25"), lambda text: count("qwen25", text) == 0)) == 0
    assert count("qwen25", find(calls("qwen25"), lambda text: count("qwen25", text) == 2)) == 2


@pytest.mark.parametrize("name", ["plain", "reasoning"])
def test_every_case_can_be_written(name):
    @given(cases(KINDS[name]))
    def write(case):
        for sent in case:
            json.loads(sent.text)

    write()


@pytest.mark.parametrize("seed", range(20))
def test_a_drawn_policy_is_one_that_the_server_reads(seed):
    from sglang_lp.policy.file import Policy

    kind = drawn(seed)

    assert tomllib.loads(kind.policy.read_text())["always"]
    assert kind.banned_ids
    Policy.from_toml(kind.policy)
