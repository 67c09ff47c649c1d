"""The processors that a beam search refuses, as docs/beams.md has them."""

import json

import msgspec
import pytest

from sglang_lp.builtins import (
    CatalogueLogitProcessor,
    LoopBreakerLogitProcessor,
    ThinkingBudgetLogitProcessor,
)
from sglang_lp.errors import RequestError, Unsupported
from sglang_lp.links import Serving
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import History
from sglang_lp.server.gate import beam_search
from sglang_lp.server.gate.beam_search import check_beams


class Follows(LogitProcessor):
    """Follows the tokens of each beam."""

    def edit(self, request, edits):
        pass


class Ends(Follows):
    finishes = True


class NoFork(Follows):
    can_fork = False


class NoForkAndNoHistory(NoFork):
    needs = History.NONE


class ReadsTheRequest(LogitProcessor):
    def __call__(self, logits, custom_param_list):
        return logits


REFUSED = [
    (ThinkingBudgetLogitProcessor, "it counts the thinking of one answer"),
    (Ends, "it may end the answer"),
    (NoFork, "its state cannot be forked"),
    (ReadsTheRequest, "it reads SGLang's request itself"),
]


def alone(kind):
    return [Serving(kind(), None)]


def beside_another(kind):
    return [Serving(Follows(), None), Serving(kind(), None)]


def check(servings):
    check_beams(3, [(one.name, one) for one in servings])


@pytest.mark.parametrize("made", [alone, beside_another])
@pytest.mark.parametrize(("kind", "why"), REFUSED)
def test_what_cannot_follow_each_beam_is_refused_by_name(kind, why, made):
    with pytest.raises(Unsupported, match=f"expected 1 with {kind.__name__}, got 3: {why}"):
        check(made(kind))


@pytest.mark.parametrize("made", [alone, beside_another])
@pytest.mark.parametrize("kind", [Follows, NoForkAndNoHistory])
def test_what_can_is_not(kind, made):
    check(made(kind))


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        (CatalogueLogitProcessor, {"catalogue": "products", "ends_answer": False}),
        (LoopBreakerLogitProcessor, {"action": "ban"}),
    ],
)
def test_the_error_names_the_parameter_with_which_a_built_in_searches_beams(kind, params):
    (sent,) = {*params} - {"catalogue"}
    with pytest.raises(Unsupported) as refused:
        check(alone(kind))

    assert f'; send "{sent}": {json.dumps(params[sent])}, or leave out' in str(refused.value)
    served = kind().serving(msgspec.convert(params, kind.Params))
    check([Serving(served, None)])


def test_before_0_5_23_every_processor_is_refused(monkeypatch):
    monkeypatch.setattr(beam_search, "has_beam_search", lambda: False)
    with pytest.raises(RequestError, match=r"only SGLang 0\.5\.23 and newer"):
        check(alone(Follows))
