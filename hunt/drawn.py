"""A server whose policy and parsers are drawn from a seed, as operators combine them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import orjson

from hunt.formats import formats
from hunt.processors import SCRIPTED
from hunt.servers import COMMON, ITEMS, Kind
from hunt.values import VOCAB
from support.watermarks import GREEN, TOURNAMENT, with_watermark

__all__ = ["NAME", "drawn"]

NAME = "drawn"
#: Parsers with which SGLang encodes chats by the tokenizer of their model.
_ENCODED = {"deepseekv4", "deepseekv41"}
_BUDGET = "ThinkingBudgetLogitProcessor"
_WORDS = ("\nTwo numbers and", "Paris", "I shall go", " fence", " goat")
_KEYS = {"kgw": GREEN, "synthid": TOURNAMENT}
Policy = dict[str, Any]


def drawn(seed: int) -> Kind:
    """Draw a kind of server, and write its policy next to the catalogue.

    Args:
        seed: Of the draws.
    """
    dice = random.Random(seed)
    parsers = [name for name in formats() if name not in _ENCODED]
    arguments: dict[str, Any] = {**COMMON, "tool_call_parser": dice.choice(parsers)}
    if dice.random() < 0.8:
        arguments["reasoning_parser"] = dice.choice(_reasoning_parsers())
    path = ITEMS.with_name(f"hunt-policy-{seed}.toml")
    path.parent.mkdir(exist_ok=True)
    policy, scheme = _policy(dice), dice.choice([None, *_KEYS])
    if scheme is not None:
        policy["always"].append({"processor": "WatermarkLogitProcessor"})
    path.write_text("\n".join(_lines(policy)) + "\n")
    if scheme is not None:
        with_watermark(path, scheme, _KEYS[scheme])
    return Kind(NAME, path, arguments, {})


def _reasoning_parsers() -> list[str]:
    """Return the names of SGLang's parsers whose delimiters are those of the demo's model."""
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    found = []
    for name in ReasoningParser.DetectorMap:
        try:
            detector = ReasoningParser(name).detector
        except (ValueError, TypeError, AttributeError):
            continue  # it needs a template or a tokenizer
        if (detector.think_start_token, detector.think_end_token) == ("<think>", "</think>"):
            found.append(name)
    return found


def _policy(dice: random.Random) -> Policy:
    """Draw what an operator decides."""
    tokens = dice.sample([0, VOCAB - 8, 300, 638, 40], dice.choice([1, 2]))
    always = [{"processor": "DisallowedTokensLogitsProcessor", "params": {"token_ids": tokens}}]
    if dice.random() < 0.5:
        words = dice.sample(_WORDS, dice.choice([1, 3]))
        always.append({"processor": "BadWordsLogitProcessor", "params": {"words": words}})
    if dice.random() < 0.2:
        always.append({"processor": "MinLengthLogitProcessor", "params": {"min_tokens": 3}})
    allowed = {"token_ids": [300, 301, 302], "where": "everywhere"}
    three = {"processor": "AllowedTokensLogitProcessor", "params": allowed}
    brief = {"processor": _BUDGET, "params": {"thinking_budget": dice.choice([0, 3, 6])}}
    policy: Policy = {
        "allow": [SCRIPTED],
        "always": always,
        "profiles": {
            "three": {"processors": [three], "may_set": []},
            "brief": {"processors": [brief], "may_set": ["thinking_budget", "closing"]},
        },
        "ceilings": {"thinking_budget": {"at_most": dice.choice([4, 8, 20])}},
        "effort": {"low": 2, "medium": 6, "high": -1},
        "catalogues": {"items": {"file": ITEMS.name}},
    }
    if dice.random() < 0.3:
        policy["ceilings"]["total_thinking_tokens"] = {"at_most": 20}
    if dice.random() < 0.5:
        policy["effort"] |= {"answer_room": dice.choice([2, 5]), "min_answer_tokens": 1}
    elif dice.random() < 0.5:
        params = {"thinking_budget": dice.choice([3, 6]), "min_answer_tokens": 1}
        policy["defaults"] = {"processor": _BUDGET, "params": params}
    return policy


def _lines(policy: Policy) -> list[str]:
    """Return a policy as lines of TOML."""
    lines = [f"{name} = {_value(one)}" for name, one in policy.items() if isinstance(one, list)]
    lines = [line for line in lines if not line.startswith("always")]
    for rule in policy["always"]:
        lines += ["[[always]]", *(f"{name} = {_value(one)}" for name, one in rule.items())]
    for section, entries in policy.items():
        if isinstance(entries, Mapping):
            lines += [f"[{section}]", *(f"{name} = {_value(one)}" for name, one in entries.items())]
    return lines


def _value(value: Any) -> str:
    """Return a value as TOML spells it inline; its strings and numbers are those of JSON."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{name} = {_value(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return orjson.dumps(value).decode()
