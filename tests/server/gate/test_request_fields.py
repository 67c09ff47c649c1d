"""The table of SGLang's own fields has every field of SGLang's classes, once."""

from __future__ import annotations

from importlib.metadata import version

import pytest

from scripts.request_fields import PAGE, fields_of, tables
from sglang_lp.server.front.bounds import MAX_CHARACTERS_OF_TOKEN, MAX_COPIES, MAX_REQUESTS
from sglang_lp.server.gate.request_fields import BODY, CLASSES, SAMPLING, names_of, unknown_to
from sglang_lp.server.gate.stop_regex import MAX_STEPS
from sglang_lp.server.versions import NEWEST

owners = pytest.mark.parametrize("owner", CLASSES, ids=lambda owner: owner.path.rpartition(".")[2])


@owners
def test_every_field_of_sglangs_class_is_in_the_table(owner):
    assert unknown_to(owner, fields_of(owner.path)) == set()


@owners
def test_a_field_is_in_the_table_once(owner):
    places = [*names_of(owner.rows), *owner.renamed, *owner.unchecked.split()]
    own = fields_of(owner.path)

    assert [name for name in own if places.count(name) > 1] == []


@owners
@pytest.mark.skipif(version("sglang") != NEWEST, reason="older releases have fewer fields")
def test_the_table_has_no_field_that_sglang_has_not(owner):
    named = {name for name in owner.renamed if "." not in name} | {*owner.unchecked.split()}

    assert named - fields_of(owner.path) == set()


@pytest.mark.skipif(version("sglang") != NEWEST, reason="older releases have fewer fields")
@pytest.mark.parametrize("rows", [BODY, SAMPLING], ids=["body", "sampling"])
def test_no_row_is_left_over(rows):
    had = {name for owner in CLASSES if owner.rows for name in fields_of(owner.path)}

    assert names_of(rows).keys() - had == set()


def test_a_new_field_is_found():
    owner = CLASSES[0]

    assert unknown_to(owner, fields_of(owner.path) | {"brand_new"}) == {"brand_new"}


def test_the_page_is_made_from_the_table_and_says_the_bounds(request):
    text = (request.config.rootpath / PAGE).read_text()

    assert text.endswith(f"\n{tables()}")
    for bound in (MAX_COPIES, MAX_REQUESTS, MAX_CHARACTERS_OF_TOKEN, MAX_STEPS):
        assert f"{bound:,}" in text
