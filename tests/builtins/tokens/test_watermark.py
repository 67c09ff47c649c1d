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
