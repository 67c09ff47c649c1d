import random
from types import SimpleNamespace

import pytest
import torch

from benchmarks.cost import reference
from benchmarks.cost.cases import NEWLINE, THINK, VOCAB, Batch, cases, same_bits
from benchmarks.devices.device import DTYPES, Device, layouts
from sglang_lp import builtins
from sglang_lp._engine.history.attached import attach_row
from sglang_lp.links import Serving
from sglang_lp.server.scheduler.pending import PendingResults
from sglang_lp.server.scheduler.sampling import Steps
from sglang_lp.server.scheduler.sglang_host import StockHost
from sglang_lp.testing import FakeRequest

END_THINK = reference.END_THINK
#: Few enough that n-grams come again, with what opens and closes a block.
ALPHABET = (11, 12, 13, 14, 15, NEWLINE, END_THINK, THINK)


class Request:
    def __init__(self, random_):
        match random_.randrange(3):
            case 0:
                self.processor = "Qwen3ThinkingBudgetLogitProcessor"
                params = {"thinking_budget": random_.choice((0, 1, 2, 5, 20, 1000))}
            case 1:
                self.processor = "DeepseekOCRNoRepeatNGramLogitProcessor"
                size = random_.choice((1, 2, 3, 4, 5, 8))
                params = {
                    "ngram_size": size,
                    "window_size": size + random_.choice((0, 1, 5, 30, 100)),
                    "whitelist_token_ids": random_.sample(ALPHABET, random_.randrange(4)),
                }
            case _:
                self.processor = "DisallowedTokensLogitsProcessor"
                params = {"token_ids": random_.sample(range(VOCAB), random_.choice((1, 100)))}
        prompt = random_.choices(ALPHABET, k=random_.choice((1, 3, 40, 120)))
        if random_.random() < 0.3:
            prompt = (prompt[:7] * 20)[: len(prompt)]
        self.request = FakeRequest(prompt, served=True)
        self.custom_params = self.request.custom_params(params)
        processor = getattr(builtins, self.processor)
        parsed = processor.parse_params(params, VOCAB)
        attach_row(
            self.custom_params,
            [Serving(processor(), parsed)],
            StockHost(self.custom_params["__req__"], may_lag=False),
        )

    def sample(self, random_, row):
        """Take any token of the alphabet that is left, or whatever was forced."""
        left = [token for token in ALPHABET if row[token] > -torch.inf]
        self.request.append(random_.choice(left or [int(row.argmax())]))


@pytest.mark.parametrize("seed", range(8))
def test_a_batch_that_changes_gets_the_same_bits_as_plain_loops(seed):
    random_ = random.Random(seed)
    torch.manual_seed(seed)
    device = Device("cpu")
    apply = Steps(PendingResults()).run
    batch = [Request(random_) for _ in range(6)]
    for _ in range(40):
        dtype = random_.choice(DTYPES)
        logits = random_.choice([*layouts(len(batch), dtype, device)])
        expected = logits.clone()
        for row, one in enumerate(batch):
            reference.edit(one.processor, expected[row : row + 1], [one.custom_params])
        info = SimpleNamespace(custom_params=[one.custom_params for one in batch], grammars=None)
        apply(logits, info)
        assert same_bits(logits.contiguous(), expected.contiguous())
        for row, one in zip(logits, batch, strict=True):
            one.sample(random_, row)
        if random_.random() < 0.3:  # requests end and others come in
            random_.shuffle(batch)
            batch[random_.randrange(1, 4) :] = [Request(random_) for _ in range(3)]


@pytest.mark.parametrize("case", cases(4), ids=lambda case: case.key)
def test_the_measured_cases_get_the_same_bits_as_plain_loops(case):
    batch = Batch(case)
    apply = Steps(PendingResults()).run
    for _ in range(70):
        logits = torch.randn(case.rows, VOCAB)
        expected = logits.clone()
        reference.edit(case.processor, expected, batch.info.custom_params)
        apply(logits, batch.info)
        assert same_bits(logits, expected)
        batch.decode()
