"""Rules of the report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from hunt.rules.told import Found, told_of
from hunt.sent import GENERATE

if TYPE_CHECKING:
    from hunt.asking import Asked
    from hunt.servers import Kind


def report_agrees(asked: Asked, _kind: Kind) -> Found:
    """A report has spans within the answer, counts that equal them, and the header's names."""
    for told in told_of(asked):
        report, answer = told.answer.report, told.answer
        if not told.is_whole or not isinstance(report, Mapping) or "forced_at" not in report:
            continue
        length = answer.completion_tokens
        length = len(answer.token_ids) if answer.token_ids is not None else length
        forced, edited = report["forced_at"], report["edited"]
        if report["truncated"] is None and report["forced"] != sum(e - b for b, e in forced):
            yield "count", f"forced {report['forced']}, forced_at {forced}"
        taken = [at for begin, end in [*forced, *edited] for at in range(begin, end)]
        if len({*taken}) != len(taken) or any(begin >= end for begin, end in [*forced, *edited]):
            yield "overlap", f"forced_at {forced}, edited {edited}"
        if length is not None and taken and max(taken) >= length:
            yield "beyond", f"forced_at {forced}, edited {edited}: {length} tokens"
        header = told.reply.headers.get("x-sglang-lp", "")
        for name in report["processors"]:
            if name not in header:
                yield "header", f"the report names {name}, the header {header!r}"


def report_is_there(asked: Asked, _kind: Kind) -> Found:
    """An answer has a report where docs promise one, and it names the request's processors."""
    for told in told_of(asked):
        asks = told.sent.path == GENERATE or told.sent.body.get("return_meta_info")
        name = told.sent.body.get("custom_logit_processor")
        # SGLang aborts what it refuses in the scheduler, before any processor.
        ended = told.answer.finish and told.answer.finish != "abort"
        if not (asks and told.is_whole and ended and isinstance(name, str)):
            continue
        if told.answer.report is None:
            yield told.sent.path, f"no report on {told.sent.path}"
            continue
        names = told.answer.report["processors"]
        for asked_for, _ in told.wish.processors:
            if asked_for.endswith("Processor") and asked_for not in names:
                yield "names", f"asked for {asked_for}, the report names {names}"


def replay_agrees(asked: Asked, kind: Kind) -> Found:
    """A replay of the processor over the answer finds no token that contradicts it."""
    from hunt.replaying import contradictions

    for told in told_of(asked):
        if told.sent.path == GENERATE and told.is_whole and told.answer.token_ids:
            if any(":" in name or "thinking" in name for name, _ in told.wish.processors):
                continue
            for text in contradictions(told.wish, told.answer, kind):
                yield told.wish.processors[0][0], text
