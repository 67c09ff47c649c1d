from types import SimpleNamespace

import pytest

from sglang_lp.errors import RequestError
from sglang_lp.served_model import ServedModel
from sglang_lp.testing import ProcessorContract
from support.watermarks import GreenMarks, SelfMarks, TournamentMarks


class TestKGW(ProcessorContract):
    processor = GreenMarks
    valid_params = ({},)
    invalid_params = (({"where": "thoughts"}, "where"),)


class TestSelf(ProcessorContract):
    processor = SelfMarks
    valid_params = ({},)


class TestSyn(ProcessorContract):
    processor = TournamentMarks
    valid_params = ({},)


def test_a_temperature_that_the_bias_of_a_list_cannot_follow_is_refused():
    processor = SelfMarks()
    params = SelfMarks.fit_params(SelfMarks.Params(), ServedModel(None, 100, ()))
    ask = SimpleNamespace(params=params, sampling=SimpleNamespace(temperature=6000.0))
    with pytest.raises(RequestError, match="temperature: expected at most 5000"):
        processor.start(ask)
    ask.sampling.temperature = 5000.0
    processor.start(ask)
