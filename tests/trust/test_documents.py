"""The statements of docs/policy.md and SECURITY.md hold."""

import json
import re
from pathlib import Path

from sglang_lp import caches, params
from sglang_lp._engine.history import arrivals
from sglang_lp._engine.turns import turn
from sglang_lp.adapters import arguments, trial
from sglang_lp.builtins import chain
from sglang_lp.builtins.catalogue import items
from sglang_lp.builtins.repetition import no_repeat_ngram
from sglang_lp.builtins.thinking import rules as thinking
from sglang_lp.builtins.words import choice, trigger_phrase
from sglang_lp.catalogue import opened
from sglang_lp.catalogue.source import CatalogueSource
from sglang_lp.edits import MAX_BIAS
from sglang_lp.errors import RefusalReason
from sglang_lp.params import parsed
from sglang_lp.policy.file import PolicyFile
from sglang_lp.policy.sections import Ceiling, Chosen, Profile, Structured
from sglang_lp.server.front import (
    bounds,
    joined_prompts,
    lists,
    refused_values,
    scoring,
    tokenizer,
    whole_requests,
)
from sglang_lp.server.gate import grammars, guard, request_fields, reserved_keys, stop_regex
from sglang_lp.server.scheduler import grammar_time
from sglang_lp.server.startup.launch import REFUSED
from sglang_lp.text import encoding
from sglang_lp.text.automaton import MAX_SEQUENCE_IDS
from sglang_lp.trust import Policy
from sglang_lp.trust.allow_list import MAX_PIN_BYTES, MAX_PINS, Pin
from sglang_lp.trust.audit import Limits
from sglang_lp.trust.verifier import MAX_CHARS
from sglang_lp.watermark import green_lists
from sglang_lp.wire import routed
from sglang_lp.wire.names import MAX_TOKENIZER_BYTES

ROOT = Path(__file__).resolve().parents[2]


def policy():
    return (ROOT / "docs" / "policy.md").read_text(encoding="utf-8")


def security():
    return (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def example():
    return re.search(r"```toml\n(.*?)```", policy(), re.DOTALL)[1]


def test_the_documented_example_is_a_policy(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text(example(), encoding="utf-8")
    read = Policy.from_toml(path)

    assert read.allow == ("my_package.processors:AtMost",)
    assert read.pin[0].size == 474
    assert read.builtins is Policy.default().builtins
    assert read.stock is Policy.default().stock
    assert read.limits == Policy.default().limits


def test_the_example_shows_every_key():
    for struct in (PolicyFile, Pin, Limits, Chosen, Profile, Structured, CatalogueSource):
        for key in struct.__struct_fields__:
            assert re.search(rf"^(\[+)?{key}\b", example(), re.MULTILINE), key
    assert all(f" {key} = " in example() for key in Ceiling.__struct_fields__)


def test_the_documented_limits_are_the_real_ones():
    assert f"at most {MAX_PINS} pins of at most {MAX_PIN_BYTES:,} bytes" in policy()
    assert f"longer than {MAX_CHARS:,} characters" in policy()


def test_every_reason_is_documented():
    for reason in RefusalReason:
        assert f"`{reason.value}`" in security()


def test_every_link_of_security_leads_somewhere():
    for target in re.findall(r"\]\(([^)]+)\)", security()):
        assert (ROOT / target.partition("#")[0]).exists(), target


def test_every_server_that_does_not_start_is_named_with_the_reason():
    for refused in REFUSED:
        assert f"| {refused.way} | {refused.why} |" in security().replace("`", "")


#: The numbers in each row of the tables of bounds, from the code.
BOUNDS = [
    [MAX_CHARS],
    [routed.MAX_WHOLE],
    [reserved_keys.MAX_KEYS],
    [params.MAX_TOKEN_IDS, params._MAX_FEW, MAX_SEQUENCE_IDS],
    [params._MAX_TEXTS, params._MAX_TEXT, encoding.MAX_BYTES, params._MAX_FORCED],
    [items.MAX_ITEM_IDS, items._MAX_GROUPS, items._MAX_GROUP, items._MOST_SETS],
    [params.MAX_INT, MAX_BIAS],
    [chain.MAX_CHAIN, params.MAX_TOKEN_IDS],
    [bounds.MAX_ENTRIES],
    [bounds.MAX_CHARACTERS],
    [bounds.MAX_LINKS],
    [bounds.MAX_COPIED, bounds.MAX_COPIED / (1 << 17)],
    [bounds.MAX_REQUESTS, bounds.MAX_COPIES],
    [bounds.MAX_CHARACTERS_OF_TOKEN, whole_requests._MOST_TOGETHER],
    [bounds.MAX_INNER],
    [request_fields.MAX_STOP, stop_regex.MAX_STEPS, stop_regex.MAX_WIDTH],
    [bounds.MAX_SAMPLED["logit_bias"][0]],
    [bounds.MAX_SAMPLED[name][0] for name in ("stop", "stop_regex")],
    [bounds.MAX_SAMPLED["json_schema"][0]],
    [
        *(request_fields.MAX_REGEX, request_fields.MAX_EBNF, request_fields.MAX_SCHEMA),
        *(grammars.MAX_LEVELS, grammars.MAX_DEFINED),
    ],
    [grammar_time.EACH * 1e3, grammar_time.MOST],
    [bounds.MAX_SAMPLED["top_logprobs_num"][0], bounds.MAX_PROMPT_LOGPROBS],
    [
        *(joined_prompts.MAX_JOINED, joined_prompts.MAX_TOKENIZED),
        bounds.MAX_SAMPLED["token_ids_logprob"][0],
    ],
    [request_fields.MAX_KEY],
    [refused_values.MAX_CALLS, refused_values.MAX_THOUGHTS, refused_values.MAX_BLANKS],
    [bounds.MAX_CHOICES],
    [bounds.MAX_DIFFERENT],
    [bounds.MAX_STREAMED],
    [bounds.MAX_SCORED, choice._MOST_SCORED, scoring._MOST_SPELLINGS],
    [lists._SLICE],
    [64],
    [arguments.MOST],
    [bounds.MAX_MAKING],
    [
        arrivals._MOST_TOKENS / arrivals._WORK_OF_MICROSECOND / 1e6,
        arrivals._MOST_TOKENS // arrivals._WORK_OF_UNTRIED,
    ],
    [trial.LONGEST, trial.PATIENCE],
    [MAX_PINS, MAX_PIN_BYTES],
    [MAX_TOKENIZER_BYTES >> 20, tokenizer._PART >> 10],
    [Limits().logged_refusals_per_minute],
    [
        *(thinking.LONGEST_SLEEP, trigger_phrase._LONGEST_SLEEP),
        *(turn.LONGEST_SLEEP, no_repeat_ngram._LONGEST_SLEEP),
    ],
    [
        parsed._MOST,
        guard._MOST_COPIED,
        caches.shared_by_copies(len).cache_parameters()["maxsize"],
        caches._MAX_KEPT,
        opened._CHOICES,
    ],
    [green_lists.MAX_TABLE_BYTES >> 30],
    [],
    [arrivals._MOST_TOKENS, arrivals._COPIES_PER_READ],
]


def rows(heading):
    """Yield the cells of each row of the tables that have this heading."""
    for table in security().split(heading)[1:]:
        for row in table.partition("\n\n")[0].splitlines()[2:]:
            yield [cell.strip() for cell in row.strip("|").split("|")]


def test_the_bounds_of_security_are_the_real_ones():
    documented = [
        [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*(?:\.\d+)?", at_most)]
        for _, at_most, _ in rows("| bounded | at most | where |")
    ]
    assert documented == BOUNDS


def test_a_bound_stands_where_security_says():
    for bounded, _, where in rows("| bounded | at most | where |"):
        for path in re.findall(r"`([a-z_/.]+)`", where):
            assert (ROOT / "sglang_lp" / path).exists(), (bounded, path)


def test_every_rule_of_security_is_shown_by_a_test():
    rules = [*rows("| rule | shown by |")]
    assert len(rules) > 25
    for rule, shown in rules:
        shown_by = re.findall(r"\]\((tests/[a-z/]*test_[a-z_]+\.py)\)", shown)
        assert shown_by, rule
        assert all((ROOT / test).exists() for test in shown_by), rule


def test_the_siege_that_security_describes_is_the_one_that_is_stored():
    siege = json.loads((ROOT / "benchmarks" / "results" / "siege.json").read_text())

    assert f"{siege['hostile_requests']:,} hostile requests" in security()
    for form, outcomes in siege["hostile_outcomes"].items():
        assert f"`{form.partition(',')[0]}`" in security()
        assert sum(outcomes.values()) > 500, form
    assert siege["hostile_requests_not_refused"] == siege["good_requests_failed"] == 0
    assert siege["good_outputs_changed"] == 0
    assert siege["good_requests_under_attack"] > 100
    assert siege["server_healthy_at_the_end"]
