"""Every refusal is counted; few are logged; no line holds a client's text."""

import contextvars
import json
import logging
import re
import threading
import uuid

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sglang_lp import wire
from sglang_lp.errors import InvalidParameter, PayloadRefused, RefusalReason, Unsupported
from sglang_lp.trust import Audit, Gate, Policy, Verifier
from sglang_lp.trust.audit import Asking, asking, safe_id


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


REFUSED = PayloadRefused("m", reason=RefusalReason.MALFORMED, digest=None, size=7)


def lines(caplog):
    return [json.loads(record.getMessage()) for record in caplog.records]


@pytest.fixture(autouse=True)
def _listen(caplog):
    caplog.set_level(logging.INFO, logger="sglang_lp.audit")


def test_a_line_says_what_was_refused_where_and_why(caplog):
    evil = wire.reference_pickle("os", "system")
    audit = Audit(60)
    try:
        Verifier(Policy.default()).lookup(wire.encode(evil))
    except PayloadRefused as error:
        audit.refused(Gate.ADMISSION, error)

    assert [record.name for record in caplog.records] == ["sglang_lp.audit"]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert lines(caplog) == [
        {
            "event": "refused",
            "gate": "admission",
            "reason": "not_allowed",
            "endpoint": None,
            "rid": None,
            "processor": None,
            "parameter": None,
            "digest": wire.digest(evil),
            "size": len(wire.encode(evil)),
            "count": 1,
            "suppressed": 0,
        }
    ]


@pytest.mark.parametrize("error", [InvalidParameter("P", "p", "wrong"), Unsupported("beams")])
def test_what_is_wrong_beside_the_payload_has_neither_digest_nor_size(error, caplog):
    Audit(60).refused(Gate.ADMISSION, error)

    (line,) = lines(caplog)
    assert (line["digest"], line["size"]) == (None, None)


@pytest.mark.parametrize(
    ("payload", "size"), [(None, 0), ({}, 0), ("{}", 2), ("os:system", 9), ("x" * 1281, 1281)]
)
def test_what_was_not_decoded_has_a_size_and_no_digest(payload, size, caplog):
    with pytest.raises(PayloadRefused) as caught:
        Verifier(Policy.default()).lookup(payload)
    Audit(60).refused(Gate.ADMISSION, caught.value)

    (line,) = lines(caplog)
    assert (line["digest"], line["size"]) == (None, size)


def test_a_line_never_holds_text_of_the_client(caplog):
    audit = Audit(60, names=frozenset({"P"}))
    for hostile in ("evil\n{forged: line}", "\x1b[31m", "\ud800", "x" * 5000):
        audit.refused(Gate.SCHEDULER, InvalidParameter("P", hostile, hostile))
        audit.refused(Gate.SCHEDULER, Unsupported(hostile))

    for record in caplog.records:
        line = record.getMessage()
        assert line.isascii()
        assert line.isprintable()
        assert "evil" not in line
        assert len(line) < 280
    assert {line["reason"] for line in lines(caplog)} == {"invalid_parameter", "unsupported"}


@pytest.mark.parametrize(
    ("processor", "parameter", "named"),
    [
        ("P", "words", ("P", "words")),
        ("P", "0.words", ("P", "0.words")),
        ("P", "12.words", ("P", "12.words")),
        ("P", "123.words", ("P", None)),
        ("P", "0.evil", ("P", None)),
        ("P", "words\n", ("P", None)),
        ("P", "\u0660.words", ("P", None)),
        ("P", None, ("P", None)),
        ("evil", "words", (None, "words")),
    ],
)
def test_a_line_names_only_processors_and_parameters_that_the_operator_knows(
    processor, parameter, named, caplog
):
    audit = Audit(60, names=frozenset({"P", "words"}))
    error = InvalidParameter(processor, parameter, "wrong")
    audit.refused(Gate.ADMISSION, error)

    (line,) = lines(caplog)
    assert (line["processor"], line["parameter"]) == named
    assert audit.processor_of(error) == named[0]


def test_a_line_names_the_request_of_its_context(caplog):
    def refuse(rid):
        asking.set(Asking("/generate", safe_id(rid)))
        Audit(60).refused(Gate.ADMISSION, REFUSED)

    for rid in ("0" * 32, None):
        contextvars.copy_context().run(refuse, rid)
    Audit(60).refused(Gate.ADMISSION, REFUSED)

    assert [(line["endpoint"], line["rid"]) for line in lines(caplog)] == [
        ("/generate", "0" * 32),
        ("/generate", None),
        (None, None),
    ]


@pytest.mark.parametrize("prefix", ["", "resp_", "chatcmpl-", "cmpl-"])
def test_an_id_that_sglang_made_is_shown(prefix):
    rid = prefix + uuid.uuid4().hex
    assert safe_id(rid) == rid


@example("\ud800")  # JSON can hold one half of a pair
@given(st.one_of(st.text(min_size=1), st.just("evil_" + "0" * 32), st.just("0" * 32 + "\n")))
def test_any_other_id_is_shown_as_a_digest(rid):
    assert re.fullmatch(r"sha256:[0-9a-f]{16}", safe_id(rid))


@pytest.mark.parametrize("rid", [None, "", 7, ["0" * 32]])
def test_what_is_no_id_is_left_out(rid):
    assert safe_id(rid) is None


def test_lines_are_limited_and_what_was_left_out_is_counted(caplog):
    clock = Clock()
    audit = Audit(3, clock)
    for _ in range(10):
        audit.refused(Gate.ADMISSION, REFUSED)
    assert [line["suppressed"] for line in lines(caplog)] == [0, 0, 0]

    clock.now += 19.9
    audit.refused(Gate.ADMISSION, REFUSED)
    assert len(caplog.records) == 3
    clock.now += 0.2
    audit.refused(Gate.ADMISSION, REFUSED)
    assert [line["suppressed"] for line in lines(caplog)] == [0, 0, 0, 8]
    assert [line["count"] for line in lines(caplog)] == [1, 2, 3, 12]
    audit.refused(Gate.ADMISSION, REFUSED)
    assert len(caplog.records) == 4

    clock.now += 3600.0
    for _ in range(10):
        audit.refused(Gate.ADMISSION, REFUSED)
    assert len(caplog.records) == 7
    assert audit.counts == {("admission", "malformed"): 23}


def test_the_counters_are_by_gate_and_reason():
    audit = Audit(1)
    for gate in (Gate.ADMISSION, Gate.SCHEDULER, Gate.SCHEDULER):
        audit.refused(gate, REFUSED)
    audit.refused(Gate.ADMISSION, Unsupported("x"))

    assert audit.counts == {
        ("admission", "malformed"): 1,
        ("admission", "unsupported"): 1,
        ("scheduler", "malformed"): 2,
    }


def test_no_refusal_is_lost_between_threads():
    audit = Audit(1)

    def refuse():
        for _ in range(2000):
            audit.refused(Gate.ADMISSION, REFUSED)

    threads = [threading.Thread(target=refuse) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert audit.counts == {("admission", "malformed"): 8000}


def test_a_code_that_a_class_made_up_is_counted_as_an_invalid_request(caplog):
    class Own(InvalidParameter):
        """With a code that its author chose."""

    audit = Audit(60)
    for number in range(3):
        error = Own("Own", "size", "expected less")
        error.code = f"mine_{number}"
        audit.refused(Gate.ADMISSION, error)

    assert {line["reason"] for line in lines(caplog)} == {"invalid_request"}
    assert audit.counts == {("admission", "invalid_request"): 3}
