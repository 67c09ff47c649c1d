"""Values that SGLang answers with HTTP 500 are refused with the name of their field."""

import json

import pytest

from sglang_lp.errors import RequestError
from sglang_lp.server.front.refused_values import check_response_format

DEEP = json.loads("[" * 900 + "]" * 900)


@pytest.mark.parametrize("form", [DEEP, [1], {"type": "json_schema", "json_schema": {"x": DEEP}}])
def test_a_response_format_that_is_no_object_or_too_deep_is_refused(form):
    with pytest.raises(RequestError, match=r"^response_format: expected .* got "):
        check_response_format({"response_format": form})


@pytest.mark.parametrize("form", [None, {"type": "json_object"}])
def test_other_formats_are_sglangs_to_check(form):
    check_response_format({"response_format": form})
