import pytest
from sglang_lp.testing import ProcessorContract
from support.watermarks import Green, Played, SelfHashing
class TestKGW(ProcessorContract):
    processor = Green
    valid_params = ({},)
    invalid_params = (({"where": "thoughts"}, "where"),)
class TestSelf(ProcessorContract):
    processor = SelfHashing
    valid_params = ({},)
class TestSyn(ProcessorContract):
    processor = Played
    valid_params = ({},)
