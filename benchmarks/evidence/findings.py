"""Findings from the answers, arm by arm."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import exp
from typing import Any

import orjson

from benchmarks.evidence import arms
from benchmarks.evidence.answers import Answer, Kept
from benchmarks.evidence.judging import distinct, ends_in_a_loop, holds_word, share, shared_start

__all__ = ["findings"]

Answers = Mapping[int, Answer]


def findings(kept: Kept) -> dict[str, Any]:
    """Return the findings of each section that has answers."""
    found: dict[str, Any] = {}
    for section in ("loops", "sampled", "tables"):
        found[section] = _loops(_whole(kept, section))
    found["bans"] = _bans(kept)
    found["budgets"] = _budgets(_whole(kept, "budgets"))
    found["calls"] = _calls(_whole(kept, "calls"))
    return {section: of for section, of in found.items() if of}


def _whole(kept: Kept, section: str) -> dict[str, dict[int, Answer]]:
    """Return the answers of each arm to the prompts that all arms of its server answered.

    Other servers are asked later and may have answered fewer prompts than this toolkit's server. Of
    another server, the prompts count that both servers have answered.
    """
    of_section = [ask for ask in arms.SECTIONS[section][0](kept) if ask.section == section]
    reached = {ask.arm for ask in of_section if kept.get(ask) is not None}
    asks = [ask for ask in of_section if ask.arm in reached]
    found = kept.whole([ask for ask in asks if ask.server == arms.OURS])
    common = next(iter(found.values()), {})
    for server in {ask.server for ask in asks} - {arms.OURS}:
        for arm, of in kept.whole([ask for ask in asks if ask.server == server]).items():
            found[arm] = {at: one for at, one in of.items() if at in common}
    return {ask.arm: found[ask.arm] for ask in asks if found[ask.arm]}


def _mean(numbers: Iterable[float | None], digits: int = 3) -> float | None:
    known = [number for number in numbers if number is not None]
    return round(statistics.fmean(known), digits) if known else None


def _loops(answered: Mapping[str, Answers]) -> dict[str, Any]:
    if "none" not in answered:
        return {}
    free = answered["none"]
    calm = {at for at, one in free.items() if not ends_in_a_loop(one.text, numbered=True)}
    return {arm: _arm(of, free, sorted(calm & of.keys())) for arm, of in answered.items()}


def _arm(of: Answers, free: Answers, calm: Sequence[int]) -> dict[str, Any]:
    return {
        "loops": share([ends_in_a_loop(one.text) for one in of.values()]),
        "numbered": share([ends_in_a_loop(one.text, numbered=True) for one in of.values()]),
        "finished": share([one.finished for one in of.values()]),
        "errors": sum(one.error is not None for one in of.values()),
        "tokens": _mean((len(one.output_ids) for one in of.values()), 1),
        "calm": {
            "prompts": len(calm),
            "same": share([of[at].output_ids == free[at].output_ids for at in calm]),
            "shared": _mean(shared_start(of[at].output_ids, free[at].output_ids) for at in calm),
            "distinct": _mean(distinct(of[at].text) for at in calm),
            "tokens": _mean((len(of[at].output_ids) for at in calm), 1),
        },
    }


def _bans(kept: Kept) -> dict[str, Any]:
    words, asks = arms.words(kept), list(arms.bans(kept))
    among = kept.whole([ask for ask in asks if not ask.alone])
    free = among.get("none", {})
    # One request at a time, so of fewer prompts.
    alone = {
        arm: {at: one for at, one in of.items() if at in free}
        for arm, of in kept.whole([ask for ask in asks if ask.alone]).items()
    }
    return {arm: _ban(of, free, words) for arm, of in (among | alone).items() if of}


def _ban(of: Answers, free: Answers, words: Mapping[int, str]) -> dict[str, Any]:
    nats = [nat for one in of.values() for nat in one.nats]
    return {
        "leaks": share([holds_word(one.text, words[at]) for at, one in of.items()]),
        "any_case": share(
            [holds_word(one.text, words[at], ignore_case=True) for at, one in of.items()]
        ),
        "perplexity": round(exp(statistics.fmean(nats)), 3) if nats else None,
        "shared": _mean(shared_start(of[at].output_ids, free[at].output_ids) for at in of),
        "errors": sum(one.error is not None for one in of.values()),
    }


def _thought(answer: Answer, closing: str = "") -> int | None:
    """Return how many tokens came before the end of the block; none if it never ended."""
    if arms.END_THINK not in answer.text:
        return None
    before = 0
    while arms.END_THINK not in arms.decode(answer.output_ids[: before + 1]):
        before += 1
    before += 1 - len(arms.encode(arms.END_THINK))
    return before - len(arms.encode(closing))


def _budgets(answered: Mapping[str, Answers]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for arm, of in answered.items():
        closing = arms.CLOSING if "closing" in arm else ""
        closed = [_thought(one, closing) for one in of.values()]
        # A block that never closed is the whole answer.
        thoughts = [
            len(one.output_ids) if thought is None else thought
            for one, thought in zip(of.values(), closed, strict=True)
        ]
        budget = arm.partition(",")[0]
        found[arm] = {
            "closed": share([thought is not None for thought in closed]),
            "held": share([thought <= int(budget) + 1 for thought in thoughts])
            if budget.isdecimal()
            else None,
            "median": statistics.median(thoughts),
            "longest": max(thoughts),
            "again": share([one.text.count(arms.END_THINK) > 1 for one in of.values()]),
            "finished": share([one.finished for one in of.values()]),
            "answered": share(
                [bool(one.text.partition(arms.END_THINK)[2].strip()) for one in of.values()]
            ),
            "errors": sum(one.error is not None for one in of.values()),
        }
    return found


def _call(text: str) -> Mapping[str, Any] | None:
    """Return the first JSON object in a text that is a call."""
    answer = text.rpartition(arms.END_THINK)[2]
    for start in (match.start() for match in re.finditer(r"\{", answer)):
        for end in (match.end() for match in re.finditer(r"\}", answer[start:])):
            with suppress(orjson.JSONDecodeError):
                said = orjson.loads(answer[start : start + end])
                if isinstance(said, dict) and {"name", "arguments"} <= said.keys():
                    return said
    return None


def _calls(answered: Mapping[str, Answers]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for arm, of in answered.items():
        names = [_name(arm, one) for one in of.values()]
        asked: Sequence[Mapping[str, Any]] = [arms.questions()[at] for at in of]
        offered = [{function["name"] for function in one["functions"]} for one in asked]
        found[arm] = {
            "parses": share([name is not None for name in names]),
            "known": share([name in of for name, of in zip(names, offered, strict=True)]),
            "right": share([name == one["right"] for name, one in zip(names, asked, strict=True)]),
            "errors": sum(one.error is not None for one in of.values()),
        }
    return found


def _name(arm: str, answer: Answer) -> str | None:
    """Return the function that an answer calls; arms of names answer with the name and a quote."""
    if arm.startswith("name"):
        return answer.text.partition('"')[0] or None
    said = _call(answer.text)
    return None if said is None else str(said["name"])
