"""Train on rollouts with a budget and a ban: a policy gradient whose importance ratios are right.

python examples/rollouts.py MODEL

The engine writes answers under a thinking budget and a ban, Transformers replays them over the
sampling masks, and a policy gradient leaves out forced tokens. The weights go back to the engine
after each step. Each step prints the reward, the largest distance of an importance ratio from 1
(with the masks, and without them) and the time left; the end prints the reward before and after, of
more answers, each with its 95% interval.
Any small causal language model will do, also with random weights.
"""

from __future__ import annotations

import tempfile
import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from sglang_lp.client import attach, loss_mask

PROMPT = [5, 6, 7, 296]
TEMPERATURE = 1.3
#: End of thinking; the last token of the prompt is its start.
END = 300
RULES = attach(
    [
        attach(
            "ThinkingBudgetLogitProcessor",
            thinking_budget=8,
            thinking_start_token_id=PROMPT[-1],
            thinking_end_token_id=END,
        ),
        attach("DisallowedTokensLogitsProcessor", token_ids=[*range(100, 400, 7)]),
    ]
)
ON_CPU = {
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    "disable_cuda_graph": True,
    "max_total_tokens": 8192,
    "mem_fraction_static": 0.1,
}


def write_answers(engine: Any, count: int, tokens: int) -> list[dict[str, Any]]:
    """Return answers to the prompt, each with its sampling masks and logprobs."""
    from sglang.srt.managers.io_struct import GenerateReqInput

    sampling = {
        "temperature": TEMPERATURE,
        "top_k": 40,
        "max_new_tokens": tokens,
        "ignore_eos": True,
    }
    # SGLang has no masks for copies that "n" makes.
    body = RULES.generate_body({"input_ids": [PROMPT] * count, "sampling_params": sampling})
    asked = GenerateReqInput(**body, return_logprob=True, return_sampling_mask=True)
    # Engine.generate() has no argument for the masks.
    answers = engine.tokenizer_manager.generate_request(asked, None)
    return engine.loop.run_until_complete(anext(answers))  # type: ignore[no-any-return]


def replay(model: Any, answer: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logprobs of an answer's tokens: over the sampling masks, and over all tokens."""
    output = answer["output_ids"]
    logits = model(torch.tensor([[*PROMPT, *output]])).logits[0, len(PROMPT) - 1 : -1] / TEMPERATURE
    shut = torch.full_like(logits, -torch.inf)
    for row, mask in zip(shut, answer["meta_info"]["output_token_sampling_mask"], strict=True):
        row[mask] = 0.0
    chosen = torch.tensor(output)[:, None]
    masked, free = (logits + shut).log_softmax(-1), logits.log_softmax(-1)
    return masked.gather(1, chosen)[:, 0], free.gather(1, chosen)[:, 0]


def ratios(model: Any, answer: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the importance ratio of each token: with sampling masks, and without."""
    meta = answer["meta_info"]
    masked, free = replay(model, answer)
    with_masks = torch.tensor(meta["output_token_sampling_logprobs"])
    without = torch.tensor([logprob for logprob, *_ in meta["output_token_logprobs"]])
    return (masked - with_masks).exp(), (free - without).exp()


def reward_of(answer: dict[str, Any]) -> float:
    """Return the reward: the share of even token ids."""
    output = answer["output_ids"]
    return sum(token_id % 2 == 0 for token_id in output) / len(output)


def told(answers: list[dict[str, Any]]) -> str:
    """Return the mean reward of answers, with half the width of its 95% interval."""
    rewards = torch.tensor([reward_of(answer) for answer in answers])
    return f"{rewards.mean():.3f} ± {1.96 * rewards.std() / len(rewards) ** 0.5:.3f}"


def train(model: Any, optimizer: Any, answers: list[dict[str, Any]]) -> None:
    """Make one policy-gradient step over the tokens that the model chose."""
    rewards = torch.tensor([reward_of(answer) for answer in answers])
    loss = torch.zeros(())
    for answer, gain in zip(answers, rewards - rewards.mean(), strict=True):
        ratio, _ = ratios(model, answer)
        loss = loss - gain * (ratio * torch.tensor(loss_mask(answer))).mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def plot(model: Any, answer: dict[str, Any], path: str) -> None:
    """Draw the importance ratio of each token of an answer."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    with torch.no_grad():
        for ratio, label in zip(ratios(model, answer), ("with masks", "without"), strict=True):
            axes.semilogy(ratio, ".", label=label)
    axes.set(xlabel="token of the answer", ylabel="importance ratio")
    axes.legend()
    figure.savefig(path, metadata={"Date": None})


def main(given: Namespace) -> None:
    """Train, and print a line for each step."""
    import sglang

    name, steps, count, tokens = given.model, given.steps, given.answers, given.tokens
    torch.manual_seed(given.seed)
    model: Any = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32).eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    device = {} if torch.cuda.is_available() else ON_CPU
    with (
        tempfile.TemporaryDirectory() as weights,
        sglang.Engine(
            model_path=name,
            enable_custom_logit_processor=True,
            log_level="error",
            random_seed=given.seed,
            **device,
        ) as engine,
    ):
        before, began = told(write_answers(engine, given.judged, tokens)), time.monotonic()
        for step in range(steps):
            answers = write_answers(engine, count, tokens)
            with torch.no_grad():
                both = [ratios(model, answer) for answer in answers]
            masked, free = (
                max(float((one[which] - 1).abs().max()) for one in both) for which in (0, 1)
            )
            reward = sum(map(reward_of, answers)) / count
            print(f"step {step}: reward {reward:.3f}, ratio off by {masked:.1e}, else {free:.1e}")
            if given.plot is not None and step == 0:
                plot(model, answers[0], given.plot)
            train(model, optimizer, answers)
            model.save_pretrained(weights)
            engine.update_weights_from_disk(str(Path(weights)))
            left = (time.monotonic() - began) / (step + 1) * (steps - step - 1)
            print(f"{steps - step - 1} steps left, {left:.0f} s", flush=True)
        after = told(write_answers(engine, given.judged, tokens))
        print(f"reward {before} before, {after} after, of {given.judged} answers each")


if __name__ == "__main__":  # SGLang starts its processes by importing this file again
    parser = ArgumentParser()
    parser.add_argument("model", help="a model's name or directory")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--answers", type=int, default=8, help="of each step")
    parser.add_argument("--tokens", type=int, default=32, help="of each answer")
    parser.add_argument(
        "--judged", type=int, default=128, help="answers of the reward before and after"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the engine and of torch")
    parser.add_argument("--plot", metavar="FILE", help="draw the ratios of one answer, as SVG")
    main(parser.parse_args())
