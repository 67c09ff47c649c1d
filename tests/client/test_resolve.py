"""A model's ids from its directory, and what became of the thinking in an answer."""

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sglang_lp.builtins import ThinkingBudgetLogitProcessor
from sglang_lp.cli import main
from sglang_lp.client import ThinkingBlock, attach, attach_each, thinking_blocks
from sglang_lp.errors import InvalidParameter, RequestError, shown
from sglang_lp.testing import run
from support.models.vocabularies import one_token_a_byte

QWEN_SAYS = (
    "\n\nConsidering the limited time by the user, I have to give the solution based on the "
    "thinking directly now.\n"
)


def resolve(model, **texts):
    """Return a thinking budget's parameters in the tokens of a model."""
    return attach("ThinkingBudgetLogitProcessor", **texts).resolve(model).custom_params


@pytest.fixture
def model(tmp_path):
    """Return a model's directory: ids 0 to 255 are the bytes, then come the delimiters."""
    raw = one_token_a_byte("<think>", "</think>")
    raw.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_a_directory_gives_parameters_that_attach_takes(model):
    params = resolve(model, closing=QWEN_SAYS)

    raw = Tokenizer.from_file(str(model / "tokenizer.json"))
    assert params.keys() == {
        "thinking_start_token_ids",
        "thinking_end_token_ids",
        "new_line_token_id",
        "closing_token_ids",
    }
    assert (params["thinking_start_token_ids"], params["thinking_end_token_ids"]) == ([256], [257])
    assert raw.decode([params["new_line_token_id"]]) == "\n"
    assert raw.decode(params["closing_token_ids"]) == QWEN_SAYS
    assert resolve(str(model)) == resolve(raw)
    assert attach(ThinkingBudgetLogitProcessor, thinking_budget=5, **params).custom_params == {
        "thinking_budget": 5,
        **params,
    }


def test_delimiters_of_several_tokens_become_lists(model):
    params = resolve(model, thinking_start="<a>", thinking_end="</think>")

    assert len(params["thinking_start_token_ids"]) == 3
    assert params["thinking_end_token_ids"] == [257]
    assert "new_line_token_id" not in params


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"thinking_start": "<a>"}, "^thinking_end of .* required, because the other delimiter"),
        ({"thinking_start": "<think>", "thinking_end": ""}, "^thinking_end of .* expected a text"),
        ({"thinking_start": "<think>", "thinking_end": "\ud800"}, "has no tokens that spell"),
        ({"closing": "\ud800"}, "^closing of .* half a character"),
    ],
)
def test_what_cannot_be_resolved_says_why(model, arguments, problem):
    with pytest.raises(RequestError, match=problem):
        resolve(model, **arguments)


@pytest.mark.parametrize("tokenizer", [None, 3, [], {}, b"model", Tokenizer], ids=repr)
def test_what_is_no_tokenizer_is_refused(tokenizer):
    with pytest.raises(
        RequestError,
        match=r"expected (a model's directory, or a|the model's directory or its) tokenizer",
    ):
        resolve(tokenizer)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"thinking_start": "<think>", "thinking_end": "<think>"}, "other tokens than the start"),
        (
            {"thinking_start": "<a>", "thinking_end": "a" * 17},
            "^thinking_end of .*: expected a text of at most 16 tokens",
        ),
    ],
)
def test_what_the_processor_would_refuse_is_refused_at_once(model, arguments, problem):
    with pytest.raises(InvalidParameter, match=problem):
        resolve(model, **arguments)


def test_a_directory_without_a_tokenizer_says_what_was_expected(tmp_path):
    with pytest.raises(RequestError, match=r"a directory with a tokenizer\.json"):
        resolve(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(RequestError, match="cannot be read by this version"):
        resolve(tmp_path)


def test_without_the_library_the_error_names_it(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)

    with pytest.raises(RequestError, match="pip install tokenizers"):
        resolve(model)


def test_resolving_needs_neither_torch_nor_transformers(model):
    code = (
        "import sys; from sglang_lp.client import attach;"
        "attach('ThinkingBudgetLogitProcessor').resolve(sys.argv[1]);"
        "print({'torch', 'transformers', 'sglang'} & {*sys.modules})"
    )
    said = subprocess.run(
        [sys.executable, "-c", code, str(model)], capture_output=True, check=True, text=True
    ).stdout

    assert said == "set()\n"


def test_the_command_prints_class_and_parameters(model, capsys):
    assert main(["resolve", str(model)]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())

    assert lines["delimiters"] == "'<think>' '</think>'"
    assert lines["class"] == "ThinkingBudgetLogitProcessor"
    assert json.loads(lines["params"]) == resolve(model)


def test_the_command_resolves_a_closing_message(model, capsys):
    assert main(["resolve", str(model), "--json", "--closing", QWEN_SAYS]) == 0

    params = json.loads(capsys.readouterr().out)["custom_params"]
    assert params == resolve(model, closing=QWEN_SAYS)
    assert params != resolve(model)


def test_the_command_names_the_class_of_a_known_family(tmp_path, capsys):
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {char: i for i, char in enumerate(alphabet)} | {f"w{i}": i for i in range(256, 120_029)}
    raw = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    raw.add_tokens([AddedToken(token) for token in ("<think:x>", "</think:x>")])
    raw.save(str(tmp_path / "tokenizer.json"))

    assert main(["resolve", str(tmp_path)]) == 0
    assert "class       Hy3ThinkingBudgetLogitProcessor" in capsys.readouterr().out


def test_the_command_says_what_is_missing(tmp_path, capsys):
    assert main(["resolve", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        "sglang-lp resolve: tokenizer: expected a directory with a tokenizer.json"
    )


def test_the_command_takes_the_names_that_its_messages_and_the_client_use(model, capsys):
    named = {"thinking_start": "<think>", "thinking_end": "b", "closing": "so"}
    options = [f"--{name.replace('_', '-')}={text}" for name, text in named.items()]

    assert main(["resolve", str(model), *options]) == 0
    printed = capsys.readouterr().out.partition("params      ")[2]
    assert json.loads(printed) == resolve(model, **named)
    assert main(["resolve", str(model), *options[:1]]) == 2
    assert "required, because the other delimiter is given" in capsys.readouterr().err


def test_the_command_prints_nothing_that_attach_refuses(model, capsys):
    options = ["--thinking-start=<think>", "--thinking-end=<think>"]

    assert main(["resolve", str(model), *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "expected other tokens than the start" in printed.err


def test_the_command_reads_the_tokenizer_once(model, monkeypatch):
    raw, read = Tokenizer.from_file(str(model / "tokenizer.json")), []

    class Counting:
        @staticmethod
        def from_file(path):
            read.append(path)
            return raw

    monkeypatch.setattr("tokenizers.Tokenizer", Counting)

    assert main(["resolve", str(model)]) == 0
    assert read == [str(model / "tokenizer.json")]


# What became of it

THINK = attach(
    ThinkingBudgetLogitProcessor,
    thinking_budget=3,
    thinking_start_token_id=1,
    thinking_end_token_ids=[2, 3],
    closing_token_ids=[6, 6],
    min_thinking_tokens=1,
    wait_token_id=7,
)


@pytest.mark.parametrize(
    ("prompt", "output", "blocks"),
    [
        ([0], [5, 5], []),
        ([1, 5, 2, 3], [5], []),
        ([1], [5, 2, 3, 9], [ThinkingBlock(1, True, 0, False, 0)]),
        ([1], [5, 7, 5, 6, 6, 2, 3, 9], [ThinkingBlock(5, True, 4, True, 1)]),
        ([1, 5, 5, 5, 5], [6, 6, 2, 3], [ThinkingBlock(6, True, 4, True, 0)]),
        ([1], [5, 6, 6, 2, 3], [ThinkingBlock(3, True, 2, True, 0)]),
        (
            [0],
            [1, 5, 2, 3, 1, 5],
            [
                ThinkingBlock(1, True, 0, False, 0),
                ThinkingBlock(1, False, 0, False, 0),
            ],
        ),
    ],
)
def test_blocks_are_counted(prompt, output, blocks):
    assert thinking_blocks(THINK, prompt, output) == blocks


@given(
    script=st.lists(st.integers(0, 5), min_size=20, max_size=20),
    budget=st.integers(0, 6),
    calls=st.sampled_from([[], [4]]),
)
def test_what_a_budget_forced_is_what_the_model_would_not_have_said(script, budget, calls):
    params = {
        "thinking_budget": budget,
        "thinking_start_token_id": 1,
        "thinking_end_token_id": 2,
        "closing_token_ids": [7, 7],
        "tool_start_token_ids": calls,
    }
    played = run(ThinkingBudgetLogitProcessor, params, [1], script, steps=len(script), vocab_size=8)
    forced = sum(int(logits.isfinite().sum()) == 1 for logits in played.logits)

    blocks = thinking_blocks(attach(ThinkingBudgetLogitProcessor, **params), [1], played.token_ids)

    assert sum(block.forced for block in blocks) == forced


def test_a_chain_is_counted_by_the_budget_in_it():
    prompt, output = [1], [5, 7, 5, 6, 6, 2, 3, 9]
    chain = attach([attach("MinLengthLogitProcessor", min_tokens=1, eos_token_ids=[9]), THINK])

    assert thinking_blocks(chain, prompt, output) == thinking_blocks(THINK, prompt, output)


def test_a_chain_without_a_budget_says_what_to_give():
    with pytest.raises(RequestError, match="got a chain without; give the attachment"):
        thinking_blocks(attach(["DRYLogitProcessor"]), [1], [2])


def test_only_a_thinking_budget_with_ids_can_be_counted():
    for other in ("X", None, attach_each([THINK])):
        with pytest.raises(RequestError, match=f"got {shown(other)}; give the attachment"):
            thinking_blocks(other, [1], [2])
    with pytest.raises(RequestError, match="expected a thinking budget"):
        thinking_blocks(attach("DisallowedTokensLogitsProcessor", token_ids=[1]), [1], [2])
    with pytest.raises(RequestError, match=r"or the model to resolve\(\)"):
        thinking_blocks(attach("ThinkingBudgetLogitProcessor", thinking_budget=1), [1], [2])


def test_a_block_is_counted_from_the_first_start_that_is_not_closed():
    attachment = attach(
        "ThinkingBudgetLogitProcessor",
        thinking_budget=9,
        thinking_start_token_id=1,
        thinking_end_token_id=2,
    )

    blocks = thinking_blocks(attachment, [1], [5, 1, 6, 2])

    assert [(block.tokens, block.ended) for block in blocks] == [(3, True)]


@pytest.mark.parametrize("library", ["tokenizers", "transformers"])
def test_what_was_added_to_a_tokenizer_meanwhile_is_found(library):
    tokenizer = Tokenizer(models.BPE(vocab={"a": 0}, merges=[]))
    if library == "transformers":
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    with pytest.raises(RequestError, match="found none"):
        resolve(tokenizer)
    tokenizer.add_tokens(["<think:x>", "</think:x>"])

    found = resolve(tokenizer)

    assert (found["thinking_start_token_ids"], found["thinking_end_token_ids"]) == ([1], [2])
