"""Items out of a catalogue, against a list of the items."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.builtins import CatalogueLogitProcessor
from sglang_lp.catalogue.build import PAD, build
from sglang_lp.edits import End
from sglang_lp.errors import InvalidParameter, RequestError
from sglang_lp.links import prepare
from sglang_lp.processor import Recording
from sglang_lp.request import Request
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import FakeRequest, ProcessorContract, run
from support.catalogues import catalogues, index_of, knowing, whole

EOS = 97
VOCAB = 100
TRIGGER = [90, 91]

#: Items of three tokens, named by numbers; two share their tokens.
ITEMS = {10: (1, 2, 3), 11: (1, 2, 4), 12: (1, 5, 3), 13: (6, 2, 3), 14: (6, 2, 3)}
SETS = {"fresh": [10, 12], "eu": [11, 12], "uk": [13]}
#: Items of different lengths, named by texts.
NAMES = {"one": (1, 2), "two": (1, 3, 4), "three": (5,)}


def number_index():
    sets = {name: np.isin([*ITEMS], ids) for name, ids in SETS.items()}
    return build(np.array([*ITEMS.values()], np.int32), np.array([*ITEMS]), sets=sets)


def name_index():
    codes = np.array([[*item, *[PAD] * (3 - len(item))] for item in NAMES.values()], np.int32)
    return build(codes, np.array([name.encode() for name in NAMES]))


Knowing = knowing(numbers=number_index(), names=name_index())
# As an importable class, which pickles by reference.
Knowing.__module__, Knowing.__qualname__ = __name__, "Knowing"


class TestContract(ProcessorContract):
    processor = Knowing
    eos_token_ids = (EOS,)
    vocab_size = VOCAB
    valid_params = (
        {"catalogue": "numbers"},
        {"catalogue": "numbers", "subset": ["fresh", "eu|uk"], "max_items": 2},
        {"catalogue": "numbers", "exclude": [10, 99], "only": [10, 11, 13], "ends_answer": False},
        {"catalogue": "names", "trigger_token_ids": TRIGGER, "max_items": 1000},
        {"catalogue": "names", "trigger_token_ids": TRIGGER, "max_items": 1},
    )
    invalid_params = (
        ({}, "catalogue"),
        ({"catalogue": 1}, "catalogue"),
        ({"catalogue": "numbers", "subset": [1]}, "subset"),
        ({"catalogue": "numbers", "subset": [""]}, "subset"),
        ({"catalogue": "numbers", "exclude": [1.5]}, "exclude"),
        ({"catalogue": "numbers", "exclude": [1] * 10_001}, "exclude"),
        ({"catalogue": "numbers", "only": {"a": 1}}, "only"),
        ({"catalogue": "numbers", "max_items": 0}, "max_items"),
        ({"catalogue": "numbers", "trigger_token_ids": [1000]}, "trigger_token_ids"),
        ({"catalogue": "names", "eos_token_ids": [1000]}, "eos_token_ids"),
        ({"catalogue": "numbers", "trigger": "a", "trigger_token_ids": [1]}, "trigger_token_ids"),
    )

    def _cases(self):
        """Only answers that the processor lets a model generate, and that do not end."""
        histories = (
            *([], [1], [1, 2], [1, 5], [1, 5, 3], [6, 2, 3], [6, 2, 3, 1], [1, 2, 4, 7]),
            *([7, *TRIGGER], [*TRIGGER, 1], [*TRIGGER, 1, 3, 4, 8], [*TRIGGER, 5, 9, *TRIGGER]),
        )
        return [
            case._replace(output_ids=output)
            for case in super()._cases()[::4]
            for output in histories
            if goes_on(case.params, output)
        ]


def goes_on(params, output):
    serving, parsed = fitted(params)
    request = Request(parsed)
    request.state = serving.start(request)
    for token_id in [*output, None]:
        recording = Recording(VOCAB)
        serving.edit(request, recording)
        if recording.end is not None:
            return False
        try:
            serving.advance(request, [] if token_id is None else [token_id])
        except RequestError:
            return False
        request.position += 1
    return True


def fitted(params, processor=Knowing):
    served = ServedModel(vocab_size=VOCAB, eos_token_ids=(EOS,))
    return prepare(processor(), params, served)[0][:2]


def played(params, script, processor=Knowing):
    """Return the answer of a model that wants certain tokens, up to where the processor ends it."""
    serving, parsed = fitted(params, processor)
    request = Request(parsed)
    request.state = serving.start(request)
    output = []
    for likes in script:
        recording = Recording(VOCAB)
        serving.edit(request, recording)
        (allowed,) = recording.allowed or ([*range(VOCAB)],)
        output.append(max(allowed, key=likes.__getitem__))
        serving.advance(request, output[-1:])
        request.position += 1
        if recording.end is not None:
            done = request.state.done
            assert recording.end == End(f"catalogue: {done} item{'s' * (done > 1)}", "stop")
            break
    return output, serving.report(parsed, [], output, [])["catalogue"]["items"]


@given(catalogues(), st.integers(0, 1000), st.data())
def test_an_answer_has_items_of_the_catalogue_that_the_rules_allow(case, seed, data):
    items, ids, end, named = case
    index = index_of(*case)
    processor = knowing(items=index)
    exclude = data.draw(st.lists(st.sampled_from(ids), unique=True, max_size=3))
    subset = data.draw(st.sampled_from([[], ["a"], ["a", "b"], ["a|b"]]))
    count = data.draw(st.integers(1, 3))

    items = whole(items, end)

    def in_set(group):
        names = group.split("|")
        return {i for name in names for i, own in zip(items, named[name], strict=True) if own}

    left = {*items} - {item for one, item in zip(ids, items, strict=True) if one in exclude}
    for group in subset:
        left &= in_set(group)
    params = {"catalogue": "items", "exclude": exclude, "subset": subset, "max_items": count}
    if not left:
        with pytest.raises(InvalidParameter, match="expected rules that leave an item of items"):
            fitted(params, processor)
        return

    script = np.random.default_rng(seed).random((30, VOCAB)).tolist()
    output, told = played(params, script, processor)

    found, rest = [], output
    for _ in range(count):
        (item,) = [one for one in left if tuple(rest[: len(one)]) == one]
        found.append(item)
        rest = rest[len(item) :]
    # Where items differ in length, the end of the last item is not known before its last token.
    assert rest == ([EOS] if index.shape.ragged else [])
    named_by = {
        item: sorted(one for one, other in zip(ids, items, strict=True) if other == item)
        for item in left
    }
    assert [sorted(group) for group in told] == [named_by[item] for item in found]


@given(catalogues(), st.data())
def test_every_allowed_item_can_be_the_answer(case, data):
    items = whole(case.items, case.end)
    wanted = data.draw(st.sampled_from(items))
    script = [
        [float(token == wanted[min(at, len(wanted) - 1)]) for token in range(VOCAB)]
        for at in range(len(wanted) + 1)
    ]

    output, _ = played({"catalogue": "items"}, script, knowing(items=index_of(*case)))

    assert tuple(output[: len(wanted)]) == wanted


def test_text_and_items_alternate():
    params = {"catalogue": "names", "trigger_token_ids": TRIGGER, "max_items": 9}
    params["eos_token_ids"] = [EOS]
    script = [7, 90, 90, 91, 1, 8, 4, 9, 90, 91, 30, 91]

    output = run(Knowing, params, [5], script, steps=12, vocab_size=VOCAB).token_ids

    # 8 and 30 lead to no item there; a model without a wish takes the first token.
    assert output == [7, 90, 90, 91, 1, 2, 4, 9, 90, 91, 1, 2]
    serving, parsed = fitted(params)
    assert serving.report(parsed, [], output, [])["catalogue"]["items"] == [["one"], ["one"]]


def test_after_the_last_item_the_model_goes_on_if_it_may():
    params = {"catalogue": "numbers", "ends_answer": False}

    output = run(Knowing, params, [5], [6, 2, 3, 50, 51], steps=5, vocab_size=VOCAB).token_ids

    assert output == [6, 2, 3, 50, 51]


def test_the_report_has_the_version_and_the_number_of_ids_that_the_catalogue_lacks():
    serving, parsed = fitted({"catalogue": "numbers", "exclude": [10, 98], "only": [99, 11, 13]})

    told = serving.report(parsed, [], [6, 2, 3], [])["catalogue"]

    assert told == {
        "name": "numbers",
        "version": number_index().version,
        "items": [[13, 14]],
        "unknown_ids": 2,
    }


def test_an_item_that_is_not_complete_is_not_in_the_report():
    serving, parsed = fitted({"catalogue": "numbers", "max_items": 2})

    told = serving.report(parsed, [], [1, 2, 3, 1, 2], [])["catalogue"]

    assert told["items"] == [[10]]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"catalogue": "other"}, "catalogue of .*which has 'names', 'numbers', got 'other'"),
        ({"catalogue": "numbers", "subset": ["old"]}, "which has 'eu', 'fresh', 'uk', got 'old'"),
        ({"catalogue": "numbers", "subset": ["eu|"]}, "got ''"),
        ({"catalogue": "numbers", "subset": ["|".join(["eu"] * 65)]}, "at most 64 names .* got 65"),
        ({"catalogue": "numbers", "exclude": ["10"]}, "exclude of .*whole numbers .* got '10'"),
        ({"catalogue": "names", "only": [1]}, "only of .*texts .* got 1"),
        ({"catalogue": "numbers", "only": [1, 2]}, "leave an item of numbers"),
        ({"catalogue": "numbers", "only": []}, "leave an item of numbers"),
        ({"catalogue": "numbers", "subset": ["fresh", "uk"]}, "leave an item of numbers"),
        ({"catalogue": "numbers", "exclude": [*ITEMS]}, "leave an item of numbers"),
    ],
)
def test_rules_that_cannot_hold_are_refused(params, message):
    with pytest.raises(InvalidParameter, match=message):
        fitted(params)


def test_a_server_without_catalogues_says_so():
    with pytest.raises(InvalidParameter, match="which has none, got 'numbers'"):
        fitted({"catalogue": "numbers"}, CatalogueLogitProcessor)


@pytest.mark.parametrize("begun", [[9], [1, 9], [1, 2, 3, 7], [1, 2, 4]])
def test_an_answer_that_leaves_the_catalogue_is_the_callers_fault(begun):
    params = {"catalogue": "numbers", "exclude": [11], "max_items": 2}
    custom_params = FakeRequest([5], begun).custom_params(params)

    with pytest.raises(
        RequestError, match=f"expected a token that leads to an item.* {begun[-1]};"
    ):
        Knowing()(torch.zeros(1, VOCAB), [custom_params])


def test_tokens_without_an_alternative_are_foreseen():
    serving, parsed = fitted({"catalogue": "numbers", "only": [13]})
    request = Request(parsed)
    request.state = serving.start(request)

    assert [*serving.foresee(request)] == [6, 2, 3]
    serving.advance(request, [6])
    assert [*serving.foresee(request)] == [2, 3]
    assert request.state.depth == 1


def test_after_the_last_item_nothing_is_foreseen():
    serving, parsed = fitted({"catalogue": "numbers", "only": [13], "ends_answer": False})
    request = Request(parsed)
    request.state = serving.start(request)
    serving.advance(request, [6, 2, 3])

    assert next(serving.foresee(request), None) is None
