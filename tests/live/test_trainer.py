"""A trainer's actions on its engine do not change the history that processors see."""

from __future__ import annotations

import pytest

from sglang_lp.builtins import (
    DeepseekOCRNoRepeatNGramLogitProcessor,
    DisallowedTokensLogitsProcessor,
    ForcedSequenceLogitProcessor,
    ThinkingBudgetLogitProcessor,
)
from support.models.tiny_model import FREQUENT
from support.oracles.greedy import Oracle, rule
from support.processes import play
from support.processors.eager import THINKING
from support.servers.asking import body
from support.servers.configurations import POLICY
from support.settings import environment

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

LENGTH, BUDGET = 300, 120
BAN = DisallowedTokensLogitsProcessor, {"token_ids": [*FREQUENT]}
NGRAM = DeepseekOCRNoRepeatNGramLogitProcessor, {"ngram_size": 2, "window_size": 2 * LENGTH}
FORCED = ForcedSequenceLogitProcessor, {"token_ids": [*range(300, 300 + LENGTH)]}
THINK = ThinkingBudgetLogitProcessor, {"thinking_budget": BUDGET, **THINKING}
START, END = THINKING["thinking_start_token_id"], THINKING["thinking_end_token_id"]
PROMPT = [5, 6, 7, START]


@pytest.fixture(scope="module")
def played(tiny, tmp_path_factory):
    """Return the answers of an engine in a spawned process, off its main thread."""
    job = {
        "model": str(tiny),
        "hidden": body([5, 6, 7], *BAN, max_new_tokens=12),
        "served": body([5, 6, 7], *BAN, max_new_tokens=12),
        "running": [
            body(PROMPT, *kind, max_new_tokens=LENGTH, ignore_eos=True)
            for kind in (NGRAM, FORCED, THINK)
        ],
    }
    variables = {"SGLANG_LP_POLICY": str(POLICY), "OMP_NUM_THREADS": "1"}
    folder = tmp_path_factory.mktemp("trainer")
    return play("support.servers.trainer", job, folder, environment(variables), 800)


def test_an_engine_off_the_main_thread_of_a_spawned_process_is_guarded(played, tiny):
    answer = played["hidden"]

    assert answer["meta_info"]["sglang_lp"]["processors"] == ["DisallowedTokensLogitsProcessor"]
    Oracle(tiny).check([5, 6, 7], answer["output_ids"], rule(*BAN))


def test_a_server_that_an_actor_forks_is_guarded(played):
    assert played["served"]["meta_info"]["sglang_lp"] == played["hidden"]["meta_info"]["sglang_lp"]
    assert played["served"]["output_ids"] == played["hidden"]["output_ids"]


def test_hidden_states_come_beside_a_report(played):
    meta = played["hidden"]["meta_info"]

    assert len(meta["hidden_states"]) == 12
    assert meta["sglang_lp"]["edited"] == [[0, 12]]


def test_new_weights_in_mid_answer_change_nothing_in_what_processors_do(played, tiny):
    ngram, forced, think = (one["output_ids"] for one in played["running"])

    with pytest.raises(AssertionError):  # by the old weights another token would have come
        Oracle(tiny).check(PROMPT, ngram, rule(*NGRAM))
    pairs = [*zip([START, *ngram], ngram, strict=False)]
    assert len({*pairs}) == len(pairs)
    assert forced == FORCED[1]["token_ids"]
    assert END in think[: BUDGET + 2]
    told = played["running"][2]["meta_info"]["sglang_lp"]
    assert told["processors"] == ["ThinkingBudgetLogitProcessor"]
