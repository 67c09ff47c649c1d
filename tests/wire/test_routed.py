"""The routed form: processor and parameters in one text."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp import wire
from sglang_lp.builtins import DisallowedTokensLogitsProcessor
from sglang_lp.errors import PayloadRefused, RefusalReason

PAYLOAD = DisallowedTokensLogitsProcessor.to_str()
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text()


@given(
    st.sampled_from([PAYLOAD, "support", '{"processor": 1}', ""]),
    st.dictionaries(st.text(), SCALARS | st.lists(SCALARS)),
)
def test_what_was_folded_comes_out_as_it_was(payload, params):
    assert wire.unfold(wire.fold(payload, params)) == (payload, params)


@pytest.mark.parametrize("text", [PAYLOAD, "support", "", "{}", "[", None, 5, ["processor"], b"x"])
def test_anything_else_is_left_to_who_reads_payloads(text):
    assert wire.unfold(text) == (text, None)


@pytest.mark.parametrize(
    "text",
    [
        '{"processor": "a"}',
        '{"processor": "a", "params": {}, "more": 1}',
        '{"processor": "a", "params": []}',
        '{"processor": "a", "params": null}',
        '{"processor": null, "params": {}}',
        '{"processor": {"callable": "80"}, "params": {}}',
        '{"processor": "a", "params": {}',
        '{"processor": "a", "params": {"b": NaN}}',
        '["processor"]',
        '"processor"',
        '{"processor": "a", "params": {"b": ' + "[" * 100_000 + "}}",
    ],
)
def test_what_is_nearly_one_is_refused(text):
    with pytest.raises(PayloadRefused) as caught:
        wire.unfold(text)

    assert str(caught.value) == (
        'custom_logit_processor: expected {"processor": "<payload or name>", "params": {...}} with '
        f"these two keys and no other, got {len(text)} characters of something else; a processor "
        "without parameters is sent as its payload or name alone"
    )
    assert caught.value.reason is RefusalReason.MALFORMED
    assert caught.value.size == len(text)


def test_a_text_is_read_up_to_a_length():
    longest = wire.fold("a", {"b": ""})
    longest = longest.replace('""', json.dumps("x" * (wire.MAX_WHOLE - len(longest))))
    assert wire.unfold(longest)[0] == "a"

    with pytest.raises(PayloadRefused, match="at most 1048576 characters of processor") as caught:
        wire.unfold(longest + " ")
    assert caught.value.reason is RefusalReason.TOO_LARGE
    assert caught.value.size == wire.MAX_WHOLE + 1


def test_the_longest_list_of_token_ids_fits():
    assert len(wire.fold(PAYLOAD, {"token_ids": [262_143] * 65_536})) < wire.MAX_WHOLE
