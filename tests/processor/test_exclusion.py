"""Classes that only exclude tokens: their declarations, and that the engine enforces them."""

import pytest
import torch

from sglang_lp import builtins
from sglang_lp._engine.history.attached import attach_row
from sglang_lp.edits import Edits
from sglang_lp.links import Serving
from sglang_lp.processor import LogitProcessor
from sglang_lp.request import Request
from sglang_lp.server.scheduler.sglang_host import StockHost
from sglang_lp.testing import FakeRequest

#: Built-ins that bias or pool, at least with some parameters.
OTHERS = {
    "BiasWordsLogitProcessor",
    "ChainLogitProcessor",
    "CiteFromPromptLogitProcessor",
    "DRYLogitProcessor",
    "GenLengthLogitProcessor",
    "ScheduledBiasLogitProcessor",
    "TemperatureLogitProcessor",
    "ToolCallLimitLogitProcessor",
    "TriggerPhraseLogitProcessor",
    "WatermarkLogitProcessor",
}


def test_every_built_in_but_those_that_bias_or_pool_only_excludes():
    classes = {name: getattr(builtins, name) for name in builtins.__all__}
    assert {name for name, cls in classes.items() if not cls.exclusion_only} == OTHERS


class Claims(LogitProcessor):
    exclusion_only = True

    def edit(self, request: Request, edits: Edits) -> None:
        edits.ban([1])


def test_a_class_that_overrides_edit_claims_anew_and_any_other_inherits():
    class Inherits(Claims):
        def explain(self, _request):
            return "as before"

    class Overrides(Claims):
        def edit(self, request, edits):
            edits.bias([1], 1.0)

    assert Inherits.exclusion_only
    assert not Overrides.exclusion_only


def write(request, _edits):
    request.logits[1] += 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "does",
    [
        lambda _, edits: edits.bias([1], 1.0),
        lambda _, edits: edits.pool([1], 2),
        lambda _, edits: edits.scale(2),
        lambda _, edits: edits.always().bias([1], 1.0),
        write,
    ],
    ids=["bias", "pool", "scale", "bias at every step", "logits"],
)
def test_a_masked_request_ends_where_its_processor_does_more_than_it_claims(does):
    class Lies(LogitProcessor):
        exclusion_only = True

        def edit(self, request, edits):
            if request.position == 2:
                does(request, edits)
            else:
                edits.ban([0])

    for masked in (False, True):
        request = FakeRequest([5], [6], served=True)
        request.return_sampling_mask = masked
        custom_params = request.custom_params({})
        attach_row(custom_params, [Serving(Lies(), None)], StockHost(request, may_lag=False))
        for token_id in (7, 8):
            logits = torch.zeros(1, 9)
            Lies()(logits, [custom_params])
            request.append(token_id)
        if not masked:
            assert request.to_finish is None
            continue
        assert request.to_finish.message == (
            "Lies failed at token 2: return_sampling_mask needs processors that only ban, allow or "
            "force tokens, and this processor edited otherwise; its class sets exclusion_only = "
            "True: remove that"
        )
        assert (logits == 0).all()
