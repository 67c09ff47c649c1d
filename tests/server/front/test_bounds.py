"""How much one HTTP request may list, in all of its texts and copies together."""

from types import SimpleNamespace

import numpy as np
import pytest

from sglang_lp.catalogue import opened
from sglang_lp.catalogue.build import build
from sglang_lp.catalogue.file import save
from sglang_lp.errors import RequestError
from sglang_lp.server.front import bounds
from sglang_lp.server.front.admission import Admission
from sglang_lp.server.front.bounds import (
    MAX_CHARACTERS,
    MAX_CHARACTERS_OF_TOKEN,
    MAX_CHOICES,
    MAX_COPIED,
    MAX_COPIES,
    MAX_DIFFERENT,
    MAX_ENTRIES,
    MAX_INNER,
    MAX_LINKS,
    MAX_PROMPT_LOGPROBS,
    MAX_REQUESTS,
    MAX_SAMPLED,
    MAX_SCORED,
    check_characters,
    check_copies,
    check_entries,
    check_prompt_logprobs,
    check_sampled,
    check_scored,
    check_texts,
    entries,
)
from sglang_lp.server.gate.guard import Guard
from sglang_lp.trust import Policy


def test_entries_are_those_of_lists_and_objects_and_characters_of_their_texts():
    params = {"token_ids": [1, 2, 3], "more": {"a": 1}, "thinking_budget": 5, "text": "abc"}

    assert entries(params) == 4
    assert entries({"words": ["ab", "c"], "text": "abc"}) == 5
    assert entries(None) == 0


def listing(count, first=0):
    return {"token_ids": [*range(first, first + count)]}


@pytest.mark.parametrize(
    ("texts", "copies"),
    [
        ([listing(MAX_DIFFERENT + 100)], 1),
        ([listing(MAX_ENTRIES // 8)] * 4, 2),
        ([listing(MAX_DIFFERENT // 4, first) for first in range(4)], 1),
        ([{"words": ["a" * 100]}, {"words": ["b" * (MAX_DIFFERENT - 102)]}], 4),
        ([None, {}, {"token_ids": 7}], 100),
        ([], 100),
    ],
)
def test_as_much_as_the_limits_is_taken(texts, copies):
    check_entries(texts, copies)


@pytest.mark.parametrize(
    ("texts", "copies"),
    [
        ([listing(MAX_ENTRIES + 1)], 1),
        ([listing(MAX_ENTRIES // 8)] * 9, 1),
        ([listing(MAX_ENTRIES // 8 + 1)], 8),
    ],
)
def test_more_entries_over_all_copies_are_refused_with_the_limit(texts, copies):
    with pytest.raises(RequestError) as refusal:
        check_entries(texts, copies)
    assert str(refusal.value) == (
        f"custom_params: expected at most {MAX_ENTRIES} entries in the lists of one HTTP request "
        f"and characters of the texts in them, got {copies * sum(map(entries, texts))} over all "
        "of its texts and copies (n); send several requests"
    )


@pytest.mark.parametrize(
    "texts",
    [
        [listing(MAX_DIFFERENT // 4, first) for first in range(5)],
        [listing(MAX_DIFFERENT), listing(1)],
        [{"words": ["a" * 100]}, {"words": ["b" * (MAX_DIFFERENT - 101)]}],
        [{"text": "a" * 40_000}, {"text": "b" * 40_000}],
        [{"token_ids": [object()] * MAX_DIFFERENT}, {"token_ids": [object()]}],
    ],
)
def test_more_that_differs_from_text_to_text_is_refused_with_the_limit(texts):
    with pytest.raises(RequestError, match=f"at most {MAX_DIFFERENT} entries"):
        check_entries(texts)


def test_a_text_alone_has_one_copy():
    check_entries([listing(MAX_ENTRIES)])


def test_what_is_the_same_counts_once_among_what_differs():
    half = MAX_DIFFERENT // 2
    check_entries([listing(half), listing(half, 5), listing(half)])


def test_up_to_the_limit_nothing_is_compared(monkeypatch):
    monkeypatch.setattr(bounds, "packed", None)
    check_entries([listing(MAX_DIFFERENT // 2), None, listing(MAX_DIFFERENT // 2)])


@pytest.mark.parametrize("inner", [list, dict])
def test_no_more_lists_are_looked_at_than_are_taken(inner):
    looked_at = []

    class Counting(list):
        def __iter__(self):
            looked_at.append(len(self))
            return super().__iter__()

    check_entries([{"a": [inner() for _ in range(MAX_INNER - 2)]}])
    nested = {"a": [Counting(inner() for _ in range(1_000)) for _ in range(1_000)]}
    with pytest.raises(RequestError, match=f"at most {MAX_INNER} lists and objects"):
        check_entries([nested])
    assert sum(looked_at) <= 4 * MAX_INNER


def chain(links):
    return {"chain": ["LoopBreakerLogitProcessor"] * links}


@pytest.mark.parametrize(
    ("texts", "copies"),
    [([chain(8)], MAX_LINKS // 8), ([chain(1), chain(2)], MAX_LINKS // 3), ([{"chain": 7}], 1000)],
)
def test_as_many_links_as_the_limit_are_taken(texts, copies):
    check_entries(texts, copies)


@pytest.mark.parametrize(
    ("texts", "copies"),
    [([chain(8)], MAX_LINKS // 8 + 1), ([chain(8)] * (MAX_LINKS // 8) + [chain(1)], 1)],
)
def test_more_links_over_all_copies_are_refused_with_the_limit(texts, copies):
    with pytest.raises(RequestError, match=f"at most {MAX_LINKS} links"):
        check_entries(texts, copies)


def test_texts_and_copies_are_as_many_as_sglang_may_make_requests():
    check_texts(0, MAX_COPIES)
    check_texts(MAX_REQUESTS // 4, 4)
    with pytest.raises(RequestError, match=rf"^n: .* at most {MAX_COPIES}, got {MAX_COPIES + 1};"):
        check_texts(0, MAX_COPIES + 1)
    with pytest.raises(RequestError, match=rf"at most {MAX_REQUESTS} .*, got {MAX_REQUESTS + 4};"):
        check_texts(MAX_REQUESTS // 4 + 1, 4)


def test_a_text_is_as_long_as_the_context_allows():
    most = 10 * MAX_CHARACTERS_OF_TOKEN
    check_characters(["a" * most, 7], 10)
    with pytest.raises(
        RequestError, match=f"at most {most} characters.* 10 tokens, got {most + 1}"
    ):
        check_characters(["a", "a" * (most + 1)], 10)


#: Catalogues that requests name, and a profile that names one itself.
SHOP = """
[catalogues.items]
file = "items.cat"

[catalogues.others]
file = "items.cat"

[profiles.shop]
may_set = ["subset", "exclude", "only"]

[[profiles.shop.processors]]
processor = "CatalogueLogitProcessor"
params = { catalogue = "items", ends_answer = false }
"""


@pytest.fixture
def choose(tmp_path):
    """Return a function that checks one HTTP request with some rules for items."""
    items = np.arange(80, dtype=np.int32).reshape(-1, 2)
    save(build(items, sets={"few": np.arange(40) < 20}), tmp_path / "items.cat")
    (tmp_path / "policy.toml").write_text(SHOP)
    guard = Guard(Policy.from_toml(tmp_path / "policy.toml"))
    served = SimpleNamespace(
        model_config=SimpleNamespace(vocab_size=128, hf_eos_token_id={127}),
        server_args=SimpleNamespace(speculative_algorithm=None),
        preferred_sampling_params=None,
    )

    def choosing(name, params, copies=1):
        texts = [(name, {"custom_params": one}) for one in params]
        obj = SimpleNamespace(max_thinking_tokens=None, input_ids=None)
        for _ in Admission(guard)._check_body(served, obj, texts, copies):
            guard.server.catalogues.now["items"].chosen.keep(object(), None)  # by other requests

    return choosing


def alone(rules):
    return {"catalogue": "items", **rules}


def chained(*links):
    given = {f"{at}.{key}": one for at, own in enumerate(links) for key, one in alone(own).items()}
    return {"chain": ["CatalogueLogitProcessor"] * len(links), **given}


MOST = [{"exclude": [number]} for number in range(MAX_CHOICES)]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("CatalogueLogitProcessor", alone),
        ("ChainLogitProcessor", chained),
        ("shop", lambda rules: rules),
    ],
    ids=["alone", "chained", "profile"],
)
@pytest.mark.parametrize(
    "more",
    [{}, {"only": [0]}, {"subset": ["few"]}, {"subset": ["few"], "exclude": [0]}],
    ids=["none", "only", "subset", "two"],
)
def test_different_choices_of_catalogue_items_are_limited_whoever_names_the_catalogue(
    choose, more, name, given
):
    most = [*map(given, MOST)]
    choose(name, most * 2, copies=4)
    with pytest.raises(RequestError) as refusal:
        choose(name, [*most, given(more)])
    assert str(refusal.value) == (
        f"catalogue: expected at most {MAX_CHOICES} different choices of items (catalogue, subset, "
        f"exclude and only) in one HTTP request, got {MAX_CHOICES + 1} in its first texts; send "
        "several requests"
    )


def test_the_same_rule_for_another_catalogue_is_another_choice(choose):
    more = alone({"catalogue": "others", **MOST[0]})

    with pytest.raises(RequestError, match="different choices"):
        choose("CatalogueLogitProcessor", [*map(alone, MOST), more])


def test_the_limit_on_choices_holds_for_the_links_of_all_chains_together(choose):
    both = [chained({"exclude": [number]}, {"only": [number]}) for number in range(MAX_CHOICES)]

    choose("ChainLogitProcessor", both[: MAX_CHOICES // 2])
    with pytest.raises(RequestError, match="different choices"):
        choose("ChainLogitProcessor", both[: MAX_CHOICES // 2 + 1])


def test_a_catalogue_keeps_as_many_choices_as_one_request_may_have():
    assert opened._CHOICES == MAX_CHOICES


TEXT = "a" * (MAX_CHARACTERS // 128)
#: Texts wherever JSON has them.
HELD = [
    {"t": TEXT},
    {"t": {"a": [{"b": TEXT}]}},
    {"t": [0, TEXT]},
    {"t": [[TEXT]]},
    {"t": {TEXT: 1}},
    {"t": TEXT, "u": {"a": 1}},
    {"t": TEXT, "u": ["a"]},
]


@pytest.mark.parametrize("params", HELD, ids=range(len(HELD)))
def test_characters_count_wherever_they_are_and_for_every_copy(params):
    check_entries([params], 127)
    with pytest.raises(RequestError, match=f"expected at most {MAX_CHARACTERS} characters in one"):
        check_entries([params], 129)
    with pytest.raises(RequestError, match=f"expected at most {MAX_CHARACTERS} characters in one"):
        check_entries([params] * 43, 3)


def test_as_many_characters_as_the_limit_are_taken():
    check_entries([{"t": TEXT[1:]}], 128)
    with pytest.raises(RequestError, match=f"got {MAX_CHARACTERS + 128} over all"):
        check_entries([{"t": TEXT}], 128)


@pytest.mark.parametrize(("tokens", "copies"), [(0, 1), (MAX_COPIED, 1), (MAX_COPIED // 256, 256)])
def test_as_many_tokens_of_copies_as_the_limit_are_taken(tokens, copies):
    check_copies(tokens, copies)


def test_more_copies_of_a_long_prompt_are_refused_with_what_to_do():
    with pytest.raises(RequestError, match="got 129 copies of 131072 tokens; send several"):
        check_copies(131_072, 129)


def test_choices_of_too_many_texts_are_not_scored():
    check_scored(MAX_SCORED)
    with pytest.raises(RequestError) as refused:
        check_scored(MAX_SCORED + 1)

    assert str(refused.value) == (
        f"pick: expected at most {MAX_SCORED} texts with it in one HTTP request, got "
        f"{MAX_SCORED + 1}; send several requests"
    )


def test_work_is_refused_beyond_its_limit_by_name_and_unit():
    most, unit = MAX_SAMPLED["stop"]
    check_sampled({"stop": most, "stop_regex": 0})
    with pytest.raises(RequestError) as refused:
        check_sampled({"stop_regex": 0, "stop": most + 1})

    assert str(refused.value) == (
        f"stop: expected at most {most} {unit} in one HTTP request, got {most + 1} over all of its "
        "texts and copies (n); send several requests"
    )


def test_logprobs_are_refused_beyond_their_limit_with_what_to_do():
    check_prompt_logprobs(MAX_PROMPT_LOGPROBS)
    with pytest.raises(RequestError) as refused:
        check_prompt_logprobs(MAX_PROMPT_LOGPROBS + 1)

    assert str(refused.value).endswith(
        "in its first texts and their copies (n); send several requests, or ask for fewer at each "
        "position"
    )
