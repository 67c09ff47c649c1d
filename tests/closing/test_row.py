"""Answers are complete within every limit from the shortest complete answer up."""

import re
import time
from random import Random

import jsonschema
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_lp.closing import automaton
from sglang_lp.closing.automaton import read
from sglang_lp.closing.row import ClosingRow
from sglang_lp.closing.states import DEAD
from sglang_lp.errors import Unsupported
from support.grammars import (
    END,
    MODELS,
    SPELLED,
    Trial,
    compile_context,
    compile_grammar,
    uniform,
    vocabulary,
    write,
)
from support.schemas import schemas

pytestmark = pytest.mark.slow

#: Grammars from xgrammar's own tests and documentation, and hard ones.
GRAMMARS = {
    "loop": ("regex", r"a*b"),
    "fewest bytes are not the fewest tokens": (
        "regex",
        r"(zz|aaaaaaaaaaaa)[a-z]{3,}~[0-9]{2}-([A-Z]{2}|x)",
    ),
    "alternatives": ("regex", r"([a-y]*|[a-z]*q{12})z?"),
    "repeats": ("regex", r"(ab|c[0-9]){30,}x"),
    "date": ("regex", r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"),
    "brackets": ("ebnf", 'root ::= "(" root ")" | r\nr ::= "[" root "]" | "end"'),
    "hidden": ("ebnf", 'root ::= "a" t "0123456789" | "b" t "1"\nt ::= [xy] [xy]'),
    "expression": (
        "ebnf",
        (
            'root ::= term ("+" term)*\nterm ::= factor ("*" factor)*\n'
            'factor ::= [0-9]+ | "(" root ")"'
        ),
    ),
    "empty": ("ebnf", 'root ::= "" | "a" root'),
    "any json": ("ebnf", None),
    "tag": (
        "structural_tag",
        {
            "type": "structural_tag",
            "format": {
                "type": "tag",
                "begin": "<call>",
                "content": {
                    "type": "json_schema",
                    "json_schema": {
                        "type": "object",
                        "properties": {"x": {"type": "number"}},
                        "required": ["x"],
                    },
                },
                "end": "</call>",
            },
        },
    ),
    "triggered tags": (
        "structural_tag",
        {
            "type": "structural_tag",
            "format": {
                "type": "triggered_tags",
                "triggers": ["<call"],
                "tags": [
                    {
                        "type": "tag",
                        "begin": "<call>",
                        "content": {"type": "json_schema", "json_schema": {"type": "object"}},
                        "end": "</call>",
                    }
                ],
                "at_least_one": True,
                "stop_after_first": False,
            },
        },
    ),
}
JSON = (
    'root ::= value\nvalue ::= object | array | string | number | "true" | "null"\n'
    'object ::= "{" (pair ("," pair)*)? "}"\npair ::= string ":" value\n'
    'array ::= "[" (value ("," value)*)? "]"\nstring ::= "\\"" [^"\\\\]* "\\""\n'
    'number ::= "-"? [0-9]+ ("." [0-9]+)?'
)


def check(schema, text):
    jsonschema.validate(orjson.loads(text), schema)


@given(schemas(), st.integers(0, 40), st.sampled_from(MODELS), st.integers(0, 1000), st.data())
def test_json_of_any_schema_is_complete_and_valid_at_every_limit(schema, more, model, seed, data):
    try:
        compiled = compile_grammar("json_schema", schema)
    except RuntimeError:  # xgrammar's: no value fits the schema
        return
    limit = len(compiled.plans.shortest) + more
    drafts = data.draw(st.sampled_from([0, 0, 3]))
    answer = write(compiled, Trial(limit, model, seed, drafts=drafts))
    assert answer.ended
    assert len(answer.token_ids) <= limit
    check(schema, answer.text)


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("model", MODELS)
def test_texts_of_a_grammar_are_complete_at_every_limit(name, model):
    kind, grammar = GRAMMARS[name]
    compiled = compile_grammar(kind, grammar or JSON)
    fewest = len(compiled.plans.shortest)
    for seed, limit in enumerate([*range(fewest, fewest + 25), fewest + 60]):
        answer = write(compiled, Trial(limit, model, seed, drafts=seed % 3))
        assert answer.ended, (limit, answer)
        assert answer.token_ids[-1] == END
        if kind == "regex":
            assert re.fullmatch(grammar, answer.text.decode()), answer


@pytest.mark.parametrize("model", MODELS)
def test_the_json_in_a_tag_has_no_raw_control_characters_and_the_tag_keeps_its_own(model):
    text = {"type": "string", "minLength": 3}
    schema = {"type": "object", "properties": {"a": text}, "required": ["a"]}
    content = {"type": "json_schema", "json_schema": schema | {"additionalProperties": False}}
    tag = {"type": "tag", "begin": "<call>\n", "content": content, "end": "\n</call>"}
    compiled = compile_grammar("structural_tag", {"type": "structural_tag", "format": tag})
    assert compiled.plans.is_narrower
    fewest = len(compiled.plans.shortest)
    for seed, limit in enumerate([*range(fewest, fewest + 8), fewest + 60]):
        answer = write(compiled, Trial(limit, model, seed, drafts=seed % 3))
        assert answer.ended, (limit, answer)
        document = answer.text.decode().removeprefix("<call>\n").removesuffix("\n</call>")
        assert len(orjson.loads(document)["a"]) >= 3


@given(schemas(), st.integers(0, 1000))
@settings(max_examples=40)
def test_an_answer_with_room_is_the_one_that_is_not_led(schema, seed):
    try:
        compiled = compile_grammar("json_schema", schema)
    except RuntimeError:
        return
    if compiled.plans.allowed is not None:
        return  # control characters are banned from the first token on
    plain = write(compiled, Trial(60, uniform, seed, leads=False))
    led = write(compiled, Trial(60, uniform, seed))
    if led.led is None:
        assert led.token_ids == plain.token_ids
    else:
        assert led.token_ids[: led.led] == plain.token_ids[: led.led]


@pytest.mark.parametrize("name", ["brackets", "any json"])
def test_an_answer_is_the_same_with_tables_that_are_made_ahead(name):
    kind, grammar = GRAMMARS[name]
    lazy, ahead = (compile_grammar(kind, grammar or JSON) for _ in range(2))
    ahead.plans.prepare()
    for seed, more in enumerate((0, 1, 4, 20)):
        trial = Trial(len(lazy.plans.shortest) + more, MODELS[seed % 3], seed, drafts=seed % 2)
        assert write(ahead, trial) == write(lazy, trial)


@given(schemas(), st.sets(st.integers(1, len(SPELLED) - 1), max_size=120), st.integers(0, 30))
@settings(max_examples=60)
def test_banned_tokens_are_counted_in(schema, banned, more):
    try:
        compiled = compile_grammar("json_schema", schema, [*banned])
    except (RuntimeError, Unsupported):
        return
    limit = len(compiled.plans.shortest) + more
    answer = write(compiled, Trial(limit, uniform, more, banned=[*banned]))
    assert answer.ended
    assert banned.isdisjoint(answer.token_ids)
    check(schema, answer.text)


def test_a_ban_that_leaves_no_way_to_an_end_is_refused():
    with pytest.raises(Unsupported, match="cannot complete"):
        compile_grammar("regex", "[a-w]+x", [SPELLED.index(b"x"), SPELLED.index(b"-x")])
    with pytest.raises(Unsupported, match="no end token"):
        compile_grammar("regex", "[a-w]+x", [END])


def test_an_asleep_row_is_not_read():
    compiled = compile_grammar("json_schema", {"type": "array", "items": {"type": "integer"}})
    row = ClosingRow(compiled.plans, 10_000)
    row.narrow(row_of(compiled), [])
    assert row.sleeps(1, 0)
    assert row.sleeps(500, 0)
    assert not row.sleeps(9_990, 0)


def row_of(compiled):
    import xgrammar

    mask = xgrammar.allocate_token_bitmask(1, len(SPELLED))
    xgrammar.GrammarMatcher(compiled.context).fill_next_token_bitmask(mask)
    return mask.numpy()[0]


def test_a_grammar_that_reads_token_ids_is_refused():
    tag = {"type": "tag", "begin": {"type": "token", "token": 260}, "end": "x"}
    tag["content"] = {"type": "json_schema", "json_schema": {"type": "integer"}}
    with pytest.raises(Unsupported, match="token ids"):
        compile_grammar("structural_tag", {"type": "structural_tag", "format": tag})


def test_a_grammar_of_too_many_states_is_refused():
    with pytest.raises(Unsupported, match="at most 20000 states"):
        read(compile_context("regex", "a" * 20_001))


WIDE = "[a-z]*[n-z]" + "[a-z]" * 300


@pytest.mark.timeout(120)
def test_a_text_keeps_out_of_large_sets_of_states_while_it_is_led():
    compiled = compile_grammar("regex", WIDE)
    answer = write(compiled, Trial(len(compiled.plans.shortest) + 3, uniform, 1))
    assert answer.ended
    assert re.fullmatch(WIDE, answer.text.decode())


@pytest.mark.timeout(120)
def test_a_row_gives_up_where_its_text_is_in_too_many_states():
    compiled = compile_grammar("regex", WIDE)
    row, mask = ClosingRow(compiled.plans, 10_000), row_of(compiled)
    whole = mask.copy()
    row.narrow(mask, [SPELLED.index(b"z")] * 400)
    assert (row.given_up, row.led) == (400, None)
    assert (mask == whole).all()
    assert row.sleeps(401, 0)
    row.rewind(9, 9)  # it was a draft
    assert row.given_up is None
    row.narrow(mask, [SPELLED.index(b"z")] * 9)
    assert row.given_up is None


@pytest.mark.parametrize("length", [{"maxLength": 130}, {"minLength": 130}])
def test_runs_of_characters_lead_where_each_token_does(length):
    schema = {"properties": {"a": {"type": "string", **length}, "b": {}}, "required": ["a", "b"]}
    runs, plain = (compile_grammar("json_schema", schema | {"type": "object"}) for _ in range(2))
    plain.plans.states.letter = lambda _number: (None, DEAD)
    plain.plans._key = object()
    used, some = 0, Random(1)
    for seed in range(6):
        accepted = write(runs, Trial(200, uniform, seed)).token_ids
        for count in some.sample(range(len(accepted)), min(8, len(accepted))):
            text = b"".join(SPELLED[one] for one in accepted[:count])
            one, other = (
                each.plans.states.walk(each.plans.states.start, text) for each in (runs, plain)
            )
            used += runs.plans.runs_from(one) is not None
            for room in (1, 3, some.randint(4, 40), some.randint(40, 140)):
                fitting = runs.plans.fitting(one, room)
                assert (fitting == plain.plans.fitting(other, room)).all(), (text, room)
    assert used > 5


def test_grammars_with_the_same_tokens_share_a_vocabulary():
    schema = {"type": "string", "maxLength": 7}
    one, other = (compile_grammar("json_schema", schema | more) for more in ({}, {"minLength": 2}))
    assert one.plans.vocabulary is other.plans.vocabulary
    whole = vocabulary()
    assert whole.without({3}).without({4}) is whole.without({3, 4})


def test_another_serialized_form_is_refused(monkeypatch):
    monkeypatch.setattr(automaton, "VERSIONS", ("v99",))
    with pytest.raises(Unsupported, match="expected xgrammar's serialized form v99, got v"):
        read(compile_context("regex", "a"))


def properties(count):
    names = [f"p{i}" for i in range(count)]
    each = {name: {"type": "string", "pattern": f"^a{name}[a-z]*$"} for name in names}
    return {
        "type": "object",
        "properties": each,
        "required": names,
        "additionalProperties": False,
    }


def test_the_entry_of_each_rule_is_read_without_the_states_that_it_repeats():
    serialized = compile_context("json_schema", properties(20)).grammar.serialize_json()
    whole, rules = automaton._parse(serialized)
    entries = orjson.loads(serialized)["per_rule_fsms"]
    assert rules == [(entry[0][1], entry[0][2]) for entry in entries]
    assert len(rules) == len(whole["rules"]) > 50


def test_a_grammar_whose_serialized_form_has_gigabytes_is_refused_before_it_is_made():
    compiled = compile_context("json_schema", properties(400))
    began = time.thread_time()
    with pytest.raises(Unsupported, match=r"and 12\d\d rules"):
        read(compiled)
    assert time.thread_time() - began < 1.0  # the form takes 6 s
