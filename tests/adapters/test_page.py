"""The examples of docs/bring-your-own.md run unchanged."""

import re
import sys
from pathlib import Path

import orjson
import pytest
import torch

from sglang_lp.adapters import AdaptedProcessor, EngineSettings
from sglang_lp.testing import Batch, Played, decode
from sglang_lp.trust import Policy, Verifier

PAGE = (Path(__file__).parents[2] / "docs" / "bring-your-own.md").read_text()
VOCAB, EOS = 32, 1
#: Class -> what the example answers to the prompt 9, 9 where a model would say 9, 8, 9, 8.
ANSWERS = {
    "transformers:MinNewTokensLengthLogitsProcessor": [9, 8, 9, 8],
    "my_package.processors:Spelled": [5, 6, 7, 8],
    "my_package.processors:Alternating": [5, 6, 5, 6],
    "my_package.processors:Once": [9, 8, 7, 6],
    "my_package.processors:Forced": [5, 6, EOS, EOS],
    "sglang_lp.adapters:ForcedTokenSequenceSpec": [5, 6, EOS, EOS],
    "logits_processor_zoo.transformers:GenLengthLogitsProcessor": [9, 8, 9, 8],
}
REQUESTS = {
    one["custom_logit_processor"]: one["sampling_params"]["custom_params"]
    for one in map(orjson.loads, re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL))
}


class Tokenizer:
    """As much of one as the zoo asks for."""

    eos_token_id = EOS

    def encode(self, text, **_kwargs):
        return [2 + ord(letter) % (VOCAB - 2) for letter in text]


def model(histories):
    """Say 9, then 8, then 9; after these, the larger an id the likelier it is."""
    logits = torch.zeros(len(histories), VOCAB)
    logits[:, :10] = torch.arange(10.0) / 10
    for row, tokens in enumerate(histories):
        logits[row, 9 - len(tokens) % 2] = 2.0
    return logits


@pytest.fixture(scope="module")
def verifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    package = folder / "my_package"
    package.mkdir()
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (package / "processors.py").write_text("\n\n".join(blocks))
    policies = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    given = sorted(
        {name for text in policies for name in re.findall(r'^class = "(.*)"', text, re.MULTILINE)}
    )
    classes = re.findall(r"^class (\w+)\(", "\n".join(blocks), re.MULTILINE)
    named = [f"my_package.processors:{name}" for name in classes]
    tables = [f'[[adapt]]\nclass = "{name}"' for name in named if name not in given]
    for text in policies:  # several policies name the same class
        head, *rest = re.split(r"^(?=\[\[adapt\]\])", text, flags=re.MULTILINE)
        tables.insert(0, head)
        tables += [one for one in rest if one.partition("\ninterface")[0] not in str(tables)]
    path = folder / "policy.toml"
    path.write_text("\n".join(tables))
    forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        yield Verifier(Policy.from_toml(path))
    forget()


def forget():
    """Forget the packages of this page, and of others."""
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        del sys.modules[name]


def test_every_example_is_played():
    assert {*REQUESTS} == {*ANSWERS}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_example_answers_as_it_should(name, verifier):
    cls = verifier.lookup(name).processor
    if issubclass(cls, AdaptedProcessor):
        cls.begin(EngineSettings(vocab_size=VOCAB, max_length=64))
    one = Played(cls, REQUESTS[name], [9, 9], tokenizer=Tokenizer(), vocab_size=VOCAB)

    assert decode(Batch(), model, [one], 4) == [ANSWERS[name]]
