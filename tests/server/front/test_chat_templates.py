"""A client fills in the operator's chat template, and sends no program of its own."""

from __future__ import annotations

import pytest

from sglang_lp.errors import RequestError
from sglang_lp.server.front.chat_templates import check_chat_template

#: SGLang's check of a chat, which /v1/responses does not pass, and transformers' sandbox, which
#: counts the entries of one range only.
ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    "kwargs",
    [
        {"chat_template": ENDLESS},
        {"chat_template": None},
        {"padding": "max_length", "max_length": 10**9},
        {"tokenizer_kwargs": {}},
        # KeyError in transformers, next to SGLang's own.
        {"tokenize": True},
        {"messages": 5},
        {"add_generation_prompt": False},
    ],
)
def test_a_program_of_a_client_is_refused(kwargs):
    with pytest.raises(RequestError, match=r"^chat_template_kwargs: expected .* got "):
        check_chat_template({"chat_template_kwargs": kwargs}, trusted=False)


@pytest.mark.parametrize("body", [5, {}, {"chat_template_kwargs": {"enable_thinking": False}}])
def test_variables_of_the_template_are_taken(body):
    check_chat_template(body, trusted=False)


def test_the_operator_may_trust_templates():
    check_chat_template({"chat_template_kwargs": {"chat_template": "x"}}, trusted=True)
