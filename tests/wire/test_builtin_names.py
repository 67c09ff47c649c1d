"""The names of the built-ins are their wire format: none may change or go."""

import hashlib
import subprocess
import sys

import dill
import pytest

from sglang_lp import builtins, wire
from sglang_lp.builtins.homes import HOMES

#: SHA-256 of each payload, the first 16 digits. A new processor gets a new line; a line that is
#: here stays as it is, because clients have sent that payload.
PAYLOADS = {
    "AllowedTokensLogitProcessor": "87f78979d8a6060a",
    "BadWordsLogitProcessor": "8e91b48efa348608",
    "BiasWordsLogitProcessor": "a0d24e33e9c300ef",
    "CatalogueLogitProcessor": "23ce6c8e1178cf85",
    "ChainLogitProcessor": "84c5624b9e613c14",
    "ChoiceLogitProcessor": "ae870de5206e85fa",
    "CiteFromPromptLogitProcessor": "373233a2d0ac8282",
    "DRYLogitProcessor": "10bcdb952e79df93",
    "DeepSeekR1DistillQwenThinkingBudgetLogitProcessor": "2390b2a27e82b0d8",
    "DeepSeekR1ThinkingBudgetLogitProcessor": "3a7d2a95b92345cf",
    "DeepSeekV4ThinkingBudgetLogitProcessor": "d53944e4f886f788",
    "DeepseekOCRNoRepeatNGramLogitProcessor": "c793789b29ead446",
    "DisallowedTokensLogitsProcessor": "8096caa4a5d12fe8",
    "ForcedSequenceLogitProcessor": "b1643b30be38fd53",
    "ForcedWordsLogitProcessor": "31e1d7e9ab6f7074",
    "GenLengthLogitProcessor": "d4dbaa78383ec7f3",
    "Glm4MoeThinkingBudgetLogitProcessor": "4f28ebc8e2fa4035",
    "Glm5ThinkingBudgetLogitProcessor": "3e4176035f2d2159",
    "GptOssThinkingBudgetLogitProcessor": "c3615ba2a18fce76",
    "HunyuanA13BThinkingBudgetLogitProcessor": "eccd6a125c7c222b",
    "Hy3ThinkingBudgetLogitProcessor": "d3e561c7b309d26f",
    "InklingThinkingBudgetLogitProcessor": "be761b9f1e1b294b",
    "KimiK2ThinkingBudgetLogitProcessor": "6633c6709cb1eb13",
    "LocateAnythingBoxGrammarLogitProcessor": "864f59205f703662",
    "LoopBreakerLogitProcessor": "01594a19b396d7d6",
    "MinLengthLogitProcessor": "5dcb50f575bc7cd3",
    "Qwen3ThinkingBudgetLogitProcessor": "3753f4d9e451407d",
    "Qwen3_5ThinkingBudgetLogitProcessor": "97d2bf2e547358a9",
    "ScheduledBiasLogitProcessor": "b825016f9b760f38",
    "ScriptLogitProcessor": "35881b1f537274e2",
    "TemperatureLogitProcessor": "4bfe6151fe5b1aae",
    "ThinkingBudgetLogitProcessor": "44e1f8b34a29064b",
    "ToolCallLimitLogitProcessor": "bdecb0b2b265df80",
    "TopNSigmaLogitProcessor": "1676108965aed091",
    "TriggerPhraseLogitProcessor": "a27f804374effff4",
    "WatermarkLogitProcessor": "98ba4f1a6421cb71",
}


def test_no_name_is_missing_and_none_is_new():
    assert {*PAYLOADS} == {*builtins.__all__}
    assert builtins.__all__ == sorted(builtins.__all__)


@pytest.mark.parametrize("name", builtins.__all__)
def test_a_payload_is_the_one_that_was_always_sent(name):
    processor = getattr(builtins, name)
    payload = processor.to_str()

    assert hashlib.sha256(payload.encode()).hexdigest()[:16] == PAYLOADS[name]
    assert wire.decode(payload, len(payload)) == dill.dumps(processor)
    assert dill.loads(bytes.fromhex(payload.split('"')[3])) is processor


def test_every_built_in_is_listed_wherever_it_has_to_be():
    assert {*builtins.__all__} == {*HOMES} <= {*dir(builtins)}


@pytest.mark.parametrize("name", ["ChainLogitProcessor", "Qwen3ThinkingBudgetLogitProcessor"])
def test_a_payload_loads_its_class_in_a_process_that_has_not_imported_it(name):
    pickled = dill.dumps(getattr(builtins, name)).hex()
    code = f"import dill; print(dill.loads(bytes.fromhex({pickled!r})))"

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)

    assert said.stdout == f"<class 'sglang_lp.builtins.{name}'>\n"


def test_a_chain_finds_built_ins_that_the_process_has_not_imported():
    code = (
        "from sglang_lp.builtins import ChainLogitProcessor as Chain\n"
        "names = ['MinLengthLogitProcessor', 'sglang_lp.builtins:GenLengthLogitProcessor']\n"
        "params = {'chain': names, '0.min_tokens': 1, '1.bias': 1}\n"
        "print([link.processor.__name__ for link in Chain.parse_params(params).linked])"
    )

    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)

    assert said.stdout == "['MinLengthLogitProcessor', 'GenLengthLogitProcessor']\n"
