"""vLLM's field for parameters, in the bodies that SGLang's front ends parsed."""

from types import SimpleNamespace

import pytest

from sglang_lp.errors import RequestError, Unsupported
from sglang_lp.server.front.xargs import read_xargs
from sglang_lp.server.gate.reserved_keys import EFFORT, add_own, check_origin


def read(body, custom_params=None):
    """Return ``custom_params`` of a request with this body."""
    request = SimpleNamespace(custom_params=custom_params)
    read_xargs(None, request, SimpleNamespace(_json=body))
    return request.custom_params


def test_they_are_parameters_beside_those_of_custom_params():
    given = {"a": 1, "b": [2, 3]}

    assert read({"vllm_xargs": given}) == given
    assert read({"vllm_xargs": given}, {"c": 4}) == {**given, "c": 4}
    assert given == {"a": 1, "b": [2, 3]}


@pytest.mark.parametrize("body", [{}, {"vllm_xargs": None}, [1], None])
def test_a_body_without_them_is_left_alone(body):
    own = {"a": 1}

    assert read(body, own) is own
    read_xargs(None, SimpleNamespace(), None)  # a program that calls SGLang's front end itself


@pytest.mark.parametrize("given", [5, "a", [1]])
def test_something_else_than_parameters_is_refused(given):
    with pytest.raises(RequestError, match="vllm_xargs: expected an object"):
        read({"vllm_xargs": given})


def test_a_parameter_that_is_given_twice_is_refused():
    with pytest.raises(RequestError, match="'a' is beside it, too"):
        read({"vllm_xargs": {"a": 1}}, {"a": 1})


def test_what_sglang_added_stays_sglangs_and_the_clients_own_does_not_become_so():
    kept = read({"vllm_xargs": {"a": 1}}, add_own({"b": 2}, EFFORT, "low"))

    assert kept == {"a": 1, "b": 2, EFFORT: "low"}
    check_origin(kept)
    with pytest.raises(Unsupported, match="is SGLang's own"):
        check_origin(read({"vllm_xargs": {EFFORT: "low"}}, {"b": 2}))
