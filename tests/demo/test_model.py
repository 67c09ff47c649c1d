"""The demo's model answers, obeys a forced end of its thought, and loops."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

if importlib.util.find_spec("transformers") is None:
    pytest.skip("needs transformers, which SGLang brings", allow_module_level=True)

QUESTION = "Name the capital of France."


@pytest.fixture(scope="module")
def demo():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT))
        from demo import model

        yield model


@pytest.fixture(scope="module")
def checkpoint(demo):
    return demo.ensure_model(ROOT / demo.DEFAULT_DIRECTORY)


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(checkpoint)


@pytest.fixture(scope="module")
def generate(checkpoint, tokenizer):
    import torch
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(checkpoint)

    def greedy(question, begun="", max_new_tokens=256):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], tokenize=False, add_generation_prompt=True
        )
        ids = torch.tensor([tokenizer.encode(prompt + begun)])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=max_new_tokens,
            do_sample=False,
        )
        return tokenizer.decode(output[0, ids.shape[1] :])

    return greedy


@pytest.mark.parametrize(
    "text", ["<think>", "</think>", "<|im_start|>", "<|im_end|>", "<td>", "</td>", "\n"]
)
def test_a_steering_text_is_one_token(tokenizer, text):
    assert len(tokenizer.encode(text)) == 1


def test_only_the_turn_tokens_are_left_out_of_decoded_text(tokenizer):
    ids = tokenizer.encode("<|im_start|><think>\n</think><td>apple</td><|im_end|>")
    text = tokenizer.decode(ids, skip_special_tokens=True)
    assert text == "<think>\n</think><td>apple</td>"


def test_the_ids_are_those_of_the_tokenizer(demo, checkpoint, tokenizer):
    tokens = demo.SpecialTokens.of(checkpoint)
    ids = [
        tokens.start_turn,
        tokens.think,
        tokens.newline,
        tokens.end_think,
        tokens.cell,
        tokens.end_cell,
        tokens.end_turn,
    ]
    assert tokenizer.decode(ids) == "<|im_start|><think>\n</think><td></td><|im_end|>"
    assert tokens.end_turn == tokenizer.eos_token_id


def test_a_question_is_thought_about_at_length_and_answered(demo, generate, tokenizer):
    text = generate(QUESTION)
    thought, answer = text.split("\n</think>\n")
    assert thought.startswith("<think>\n")
    assert 120 <= len(tokenizer.encode(thought)) <= 200
    assert answer == f"{demo.QUESTIONS[QUESTION]}<|im_end|>"


@pytest.mark.parametrize(
    "thought", ["", "\n", "\nAh, geography, my old", "\nAh, geography, my old enemy."]
)
def test_a_thought_that_is_cut_short_still_ends_in_the_answer(demo, generate, thought):
    text = generate(QUESTION, f"<think>{thought}\n</think>", max_new_tokens=32)
    assert text == f"\n{demo.QUESTIONS[QUESTION]}<|im_end|>"


def test_the_table_is_read_for_ever(demo, generate):
    text = generate(demo.LOOP_PROMPT, max_new_tokens=200)
    twice = (
        "<td>apple</td><td>pear</td><td>plum</td>\n<td>cherry</td><td>fig</td><td>grape</td>\n" * 2
    )
    assert text == twice * 5


def test_a_model_of_this_version_is_not_made_again(demo, checkpoint):
    before = (checkpoint / "model.safetensors").stat().st_mtime_ns
    demo.ensure_model(checkpoint)
    assert (checkpoint / "model.safetensors").stat().st_mtime_ns == before


def test_the_bench_model_has_a_real_vocabulary(demo, tmp_path):
    from transformers import GPT2Config

    config = GPT2Config.from_pretrained(demo.ensure_bench_model(tmp_path))
    assert (config.vocab_size, config.n_embd, config.n_positions) == (151936, 32, 16384)
