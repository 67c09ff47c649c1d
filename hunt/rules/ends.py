"""Rules of ends: whose fault an error is, and who lives."""

from __future__ import annotations

import re
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING

from hunt.dropping import FIELD, PARAMS, PROCESSOR
from hunt.requests import LENGTHS, has_grammar
from sglang_lp.wire.names import ERROR_CODE

if TYPE_CHECKING:
    from hunt.asking import Asked
    from hunt.rules.told import Found
    from hunt.sent import Sent
    from hunt.servers import Kind

#: SGLang's own error where ``ignore_eos`` outlasts a grammar.
_OF_GRAMMAR = "Grammar accept_token failed"
#: An answer to which the operator's rules and the request leave no token: no field is wrong by
#: itself.
_WITH_POLICY = "contradicts what this server's operator decided"
#: Names that SGLang takes for others.
_TAKEN_FOR = {
    "data_parallel_rank": "routed_dp_rank",
    "max_completion_tokens": "max_tokens",
    "max_thinking_tokens": "thinking_budget",
}
#: The bound on levels names a field of the body, or of an object in it.
_LEVELS, _OBJECT = "levels of lists and objects", "sampling_params: "
#: The operator's own rules contradict each other, for which the operator is paged: a forced
#: beginning, for example, and a default budget that the thoughts of the prompt have spent.
_OF_POLICY = "no token is left by the processors of this server's operator"


def no_server_error(asked: Asked, _kind: Kind) -> Found:
    """An answer is a success or the caller's fault, unless its class is made to fail."""
    # After an HTTP 500 the server closes its connection, which another request may be about to use.
    closes = any(reply.status == HTTPStatus.INTERNAL_SERVER_ERROR for reply in asked.replies)
    for sent, reply in zip(asked.sent, asked.replies, strict=True):
        if "Misbehaving" in str(sent.body) or (closes and not reply.status):
            continue
        for status, text in reply.errors():
            if _OF_GRAMMAR in text or _OF_POLICY in text:
                continue
            if not status and sent.is_endless:
                continue
            if not 400 <= status < 500:
                # SGLang's events of responses say so of whatever it was.
                sort = sent.path if sent.odd or "'server_error'" in text else _sort(text)
                yield f"{status} {sort}", f"{status} on {sent.path}: {text[:600]}"


def refusals_name_their_field(asked: Asked, _kind: Kind) -> Found:
    """A refusal of the toolkit is HTTP 400, and names the field if one is extreme."""
    for sent, reply in zip(asked.sent, asked.replies, strict=True):
        text = str([*reply.events])
        if ERROR_CODE not in text or not 400 <= reply.status < 500:
            continue
        if reply.status != 400:
            yield str(reply.status), f"{reply.status} on {sent.path}: {text[:300]}"
        if _WITH_POLICY in text:
            continue
        names = sent.oddities
        # Of its parameters, which are not odd.
        if {FIELD} == names and (PROCESSOR in text or PARAMS in text):
            continue
        if len(names) != 1 or (_LEVELS in text and _OBJECT in text):
            continue
        others = [_TAKEN_FOR[name] for name in names if name in _TAKEN_FOR]
        if not any(name in text for name in (*names, *others, *_inside(sent, *names))):
            yield sent.path, f"{[*names]} is not named: {text[:300]}"


def _inside(sent: Sent, name: str) -> Iterator[str]:
    """Yield the names in the value of an extreme field, of which a refusal may name one."""
    found = re.search(rf'"{name}": (.*)', sent.text)
    yield from re.findall(r'"([^"\\]+)":', found[1]) if found else ()
    if found and '"":' in found[1]:
        yield "''"


def grammars_need_no_length(asked: Asked, _kind: Kind) -> Found:
    """A least length with a grammar, which decides where its answer may end, is refused."""
    for sent, reply in zip(asked.sent, asked.replies, strict=True):
        body = sent.body
        samplings = body.get("sampling_params", body)
        for sampling in samplings if isinstance(samplings, list) else [samplings]:
            if sent.odd or not has_grammar(sampling):
                continue
            if any(sampling.get(name) for name in LENGTHS) and reply.status == HTTPStatus.OK:
                yield sent.path, f"not refused: {dict(sampling)}"


def no_fault_counted(asked: Asked, _kind: Kind) -> Found:
    """The metric of faults, on which operators are paged, stays."""
    is_meant = any("Misbehaving" in str(sent.body) for sent in asked.sent)
    # That a canary fails is another rule's to tell.
    if asked.faults > 0 and not is_meant and not [*asked.canary[1].errors()]:
        errors = [one for reply in asked.replies for one in reply.errors()]
        told = [text for status, text in errors if not 400 <= status < 500]
        if told and all(_OF_POLICY in text for text in told):
            return
        sort = "told" if told else "not told"
        yield sort, f"sglang_lp_faults_total grew by {asked.faults:.0f}: {errors}"[:600]


def server_lives(asked: Asked, _kind: Kind) -> Found:
    """No request ends the server."""
    if not asked.is_alive:
        yield asked.cause, f"the server ended: {asked.cause}"


def _sort(text: str) -> str:
    """Return a message without what differs between two requests."""
    message = re.search(r"'message': ([\"'])(.*?)\1[,}]", text)
    text = message.group(2) if message else text
    text = text.rpartition(" failed at token ")[2]
    text = re.sub(r"`.*?`|\[.*?\]|\b[0-9a-f]{32}\b", "", text)
    return " ".join(re.findall("[A-Za-z_]+", text))[:90]
