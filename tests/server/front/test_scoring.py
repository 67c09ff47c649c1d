"""Choices are scored with few prompts, picked by their probabilities, and left by a client."""

import asyncio
import math
from array import array
from collections import Counter
from types import SimpleNamespace

import pytest

from sglang_lp.server.front import scoring


class Sampling(SimpleNamespace):
    def normalize(self, tokenizer):
        assert tokenizer is None


class Body(SimpleNamespace):
    """A request that can be copied, as SGLang's."""

    def regenerate_rid(self):
        self.rid = f"again {next(self.numbers)}"
        return self.rid


class Manager:
    """Answers each prompt with logprobs that are the negative ids of its tokens."""

    def __init__(self, *, answers=True):
        self.rid_to_state, self.sent, self.aborted = {}, [], []
        self._answers, self.waiting = answers, asyncio.Event()

    def _init_req_state(self, obj):
        self.rid_to_state[obj.rid] = SimpleNamespace(time_stats=None, obj=obj)

    async def _send_one_request(self, tokenized):
        assert tokenized.sampling_params.max_new_tokens == 0
        self.sent.append(tokenized)

    async def _wait_one_response(self, obj, _request):
        (one,) = (one for one in self.sent if one.rid == obj.rid)
        if not self._answers:
            self.waiting.set()
            await asyncio.Event().wait()
        del self.rid_to_state[obj.rid]
        ids = one.input_ids[one.logprob_start_len :]
        told = [(None, ids[0], None), *((-one / 10, one, None) for one in ids[1:])]
        yield {"meta_info": {"input_token_logprobs": told}}

    def abort_request(self, rid):
        self.aborted.append(rid)
        del self.rid_to_state[rid]


def request():
    obj = Body(rid="asked", numbers=iter(range(99)), lora_path="an adapter", lora_id="1")
    tokenized = SimpleNamespace(
        input_ids=array("q", [7, 8]), sampling_params=Sampling(max_new_tokens=9), rid="asked"
    )
    return obj, tokenized


def test_a_sequence_is_scored_with_a_longer_one_and_the_request_stays_as_it_is():
    manager, (obj, tokenized) = Manager(), request()

    found = asyncio.run(
        scoring._logprobs(manager, obj, tokenized, [(1, 2), (1,), (3,), (1, 2, 4), (1, 5)])
    )

    assert found == {
        ids: pytest.approx(-sum(ids) / 10) for ids in [(1,), (1, 2), (1, 2, 4), (1, 5), (3,)]
    }
    sent = sorted([*one.input_ids] for one in manager.sent)
    assert sent == [[7, 8, 1, 2, 4], [7, 8, 1, 5], [7, 8, 3]]
    assert (obj.rid, obj.lora_path, [*tokenized.input_ids]) == ("asked", "an adapter", [7, 8])
    assert not manager.aborted


def test_prompts_of_a_client_that_goes_are_aborted():
    manager, (obj, tokenized) = Manager(answers=False), request()

    async def leave():
        asking = asyncio.ensure_future(scoring._logprobs(manager, obj, tokenized, [(1,), (2,)]))
        await manager.waiting.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(leave())
    assert (manager.aborted, manager.rid_to_state) == (["again 0"], {})


def test_a_sampled_pick_follows_the_probabilities_at_the_temperature_of_the_request():
    texts = [{"logprob": math.log(share)} for share in (0.5, 0.4, 0.1)]
    for temperature in (1.0, 0.5):
        weights = [share ** (1 / temperature) for share in (0.5, 0.4, 0.1)]
        picks = Counter(
            scoring._pick(texts, temperature, SimpleNamespace(sampling_seed=seed))
            for seed in range(4_000)
        )
        shares = [picks[place] / 4_000 for place in range(3)]
        assert shares == pytest.approx([one / sum(weights) for one in weights], abs=0.03)
    assert {scoring._pick(texts, 0.0, SimpleNamespace()) for _ in range(9)} == {0}
    greedy = SimpleNamespace(top_k=1, temperature=1.0)
    assert scoring._temperature(greedy, "sampled") == 0
    assert scoring._temperature(SimpleNamespace(top_k=-1, temperature=0.7), "sampled") == 0.7
