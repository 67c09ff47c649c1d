"""How the demo model is made: its tokenizer, its lessons, its training and its examination."""

from __future__ import annotations

import functools
import random
import sys
import time
from typing import TYPE_CHECKING

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

from demo import corpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

POSITIONS = 4096
WIDTH = 128
HEADS = 4
POSITION_SCALE = 0.2
LOOK_BACK = 1.5
BATCH = 8
LENGTH = 208
LONG_LENGTH = POSITIONS - 16
LONG_EVERY = 30
STEPS = 540
LEARNING_RATE = 4e-3

# A surprise is a token that greedy decoding must never prefer, but which should be the next best.
SURPRISE = 0.3
SURPRISE_TOKENS = 3
SEEDS = (0, 1, 2)
IGNORED = 0.0
IMPORTANT = 3.0
CORRUPTION = 0.03

# The smallest lead, in nats, of every token of an expected output over its best rival. Rounding
# on another machine moves a logit by about 1e-4.
MARGIN = 0.5
TABLE_LENGTH = 1024


class TrainingError(RuntimeError):
    """The trained model does not behave as the demonstration needs."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Train the byte-level BPE tokenizer: one token per word of the corpus, per line break."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex("\n"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    # Each word is seen at the start of a line and within it.
    texts = [f"{text} {text}" for text in _all_texts()]
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=2000,
        min_frequency=1,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True) for text in (corpus.START_TURN, corpus.END_TURN)]
    )
    visible = (corpus.THINK, corpus.END_THINK, corpus.CELL, corpus.END_CELL)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in visible])
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        eos_token=corpus.END_TURN,
        pad_token=corpus.END_TURN,
        chat_template=corpus.CHAT_TEMPLATE,
        model_max_length=POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def make_chat_model(out: Path) -> None:
    """Train the chat model and write it, with its tokenizer, into the directory `out`.

    Raises:
        TrainingError: No seed gave a model that passes its examination.

    """
    tokenizer = build_tokenizer()
    for seed in SEEDS:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = untrained_model(tokenizer)
        train(model, Teacher(tokenizer, seed))
        try:
            lead = examine(model, tokenizer)
        except TrainingError as error:
            failure = error
            print(f"seed {seed}: {error}", file=sys.stderr)
        else:
            print(f"seed {seed}: every expected token leads by {lead:.1f} nats", file=sys.stderr)
            model.save_pretrained(out)
            tokenizer.save_pretrained(out)
            return
    raise failure


def make_bench_model(out: Path) -> None:
    """Write an untrained model with the vocabulary of Qwen3 into the directory `out`."""
    config = GPT2Config(
        vocab_size=151936,
        n_positions=16384,
        n_embd=32,
        n_layer=1,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        GPT2LMHeadModel(config).save_pretrained(out)  # type: ignore[no-untyped-call]


def _all_texts() -> Iterator[str]:
    for lesson in corpus.LESSONS:
        yield from (lesson.question, *lesson.thought, lesson.answer)
    for row in corpus.LOOP_ROWS:
        yield from row
    yield from corpus.OTHER_FRUITS + corpus.DISHES + corpus.ENCORES
    yield from (corpus.SECOND_THOUGHTS, corpus.LOOP_PROMPT, corpus.LOOP_FAREWELL)
    yield from ("user", "assistant", "system")


class Example:
    """A training sequence: token ids, and how much each of them counts in the loss."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        """Start an empty sequence of texts that `encode` turns into ids."""
        self._encode = encode
        self.ids: list[int] = []
        self.weights: list[float] = []
        self.position = 0
        self.firm = 0

    def say(self, text: str, weight: float = 1.0, *, surprise: bool = False) -> None:
        """Append `text`; as a `surprise` its first tokens count less."""
        ids = self._encode(text)
        weights = [weight] * len(ids)
        if surprise:
            weights[:SURPRISE_TOKENS] = [SURPRISE] * len(weights[:SURPRISE_TOKENS])
        self.ids += ids
        self.weights += weights


class Teacher:
    """Draws training sequences, the same ones for the same seed."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        """Draw from `seed`, in the ids of `tokenizer`."""
        self._random = random.Random(seed)  # noqa: S311  not a secret

        @functools.cache
        def encode(text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False))

        self._encode = encode
        self._words = [encode(text)[-1] for text in _all_texts()]

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Draw inputs, targets, loss weights and positions for a step.

        Returns:
            Four tensors of shape (BATCH, LENGTH), or (1, LONG_LENGTH) now and then.

        """
        if step % LONG_EVERY == 0:
            length = LONG_LENGTH
            examples = [self._table(length)]
        else:
            length = LENGTH
            examples = [self._table(length) for _ in range(BATCH // 4)]
            examples += [self._conversation() for _ in range(BATCH - len(examples))]
        inputs, targets, weights, positions = [], [], [], []
        for example in examples:
            missing = length + 1 - len(example.ids)
            ids = (example.ids + [0] * missing)[: length + 1]
            inputs.append(self._corrupted(ids[:-1], example.firm))
            targets.append(ids[1:])
            weights.append((example.weights + [0.0] * missing)[1 : length + 1])
            positions.append(list(range(example.position, example.position + length)))
        return (
            torch.tensor(inputs),
            torch.tensor(targets),
            torch.tensor(weights),
            torch.tensor(positions),
        )

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def _corrupted(self, ids: list[int], firm: int) -> list[int]:
        # The targets stay, so the model learns to carry on after a word that it did not choose.
        rate = self._random.choice((0.0, CORRUPTION))
        return [
            self._random.choice(self._words) if position >= firm and self._chance(rate) else token
            for position, token in enumerate(ids)
        ]

    def _conversation(self) -> Example:
        draw = self._random
        lesson = draw.choice(corpus.LESSONS)
        example = Example(self._encode)
        example.position = draw.randrange(16)
        example.say(corpus.prompt(lesson.question), IGNORED)
        example.say(f"{corpus.THINK}\n")
        example.firm = len(example.ids)
        if self._chance(0.6):
            self._cut_short(example, lesson)
        else:
            self._think(example, lesson)
            if self._chance(0.2):
                example.say("\n")
                example.say(corpus.SECOND_THOUGHTS, surprise=True)
                self._think(example, lesson, start=draw.randrange(len(lesson.thought)))
            example.say(f"\n{corpus.END_THINK}")
        example.say(f"\n{lesson.answer}", IMPORTANT)
        self._end(example)
        return example

    def _think(self, example: Example, lesson: corpus.Lesson, start: int = 0) -> None:
        line = start
        surprise = bool(start)
        space = " " if start else ""
        while line < len(lesson.thought):
            example.say(space + lesson.thought[line], surprise=surprise)
            surprise = self._chance(0.06)
            line = self._random.randrange(len(lesson.thought)) if surprise else line + 1
            space = " "

    def _cut_short(self, example: Example, lesson: corpus.Lesson) -> None:
        draw = self._random
        start = len(example.ids) - 1  # even the line break after <think> may be missing
        self._think(example, lesson)
        # A small budget is a likely one, and the least time to read the question.
        cut = draw.randint(start, draw.choice((start + 12, len(example.ids), len(example.ids))))
        del example.ids[cut:], example.weights[cut:]
        if self._chance(0.3):  # somebody else's last words
            example.say(" " + draw.choice(draw.choice(corpus.LESSONS).thought), IGNORED)
        if self._chance(0.8):
            example.say("\n", IGNORED)
        example.say(corpus.END_THINK, IGNORED)

    def _end(self, example: Example) -> None:
        encores = iter(corpus.ENCORES)
        while self._chance(0.3) and (encore := next(encores, None)):
            example.say(f" {encore}", surprise=True)
        example.say(corpus.END_TURN, IMPORTANT)

    def _table(self, length: int) -> Example:
        draw = self._random
        example = Example(self._encode)
        example.firm = length
        if length == LONG_LENGTH or self._chance(0.5):
            example.position = draw.randrange(16)
            example.say(corpus.prompt(corpus.LOOP_PROMPT), IGNORED)
        else:  # a piece from somewhere in the middle of the endless table
            example.position = draw.randrange(POSITIONS - length)
        end = draw.randrange(length * 4 // 3)
        while len(example.ids) < end:
            for row in corpus.LOOP_ROWS:
                self._row(example, row)
        self._leave_table(example, draw.choice(corpus.LOOP_ROWS))
        return example

    def _row(self, example: Example, row: tuple[str, ...]) -> None:
        for fruit in row:
            example.say(f"{corpus.CELL}{fruit}{corpus.END_CELL}")
        example.say("\n")

    def _leave_table(self, example: Example, row: tuple[str, ...]) -> None:
        """Interrupt the repetition after a random token, as a ban would, and end the answer."""
        draw = self._random
        if row is corpus.LOOP_ROWS[1]:
            self._row(example, corpus.LOOP_ROWS[0])
        cells = draw.randrange(len(row) + 1)
        for fruit in row[:cells]:
            example.say(f"{corpus.CELL}{fruit}{corpus.END_CELL}")
        way = draw.randrange(3)
        if way == 0 and cells < len(row):
            example.say(f"{corpus.CELL}{row[cells]}")
            example.say(f" {draw.choice(corpus.DISHES)}{corpus.END_CELL}\n")
        elif way == 1 or cells == len(row):
            example.say(f"{corpus.CELL}{draw.choice(corpus.OTHER_FRUITS)}{corpus.END_CELL}\n")
        elif cells:
            example.say("\n")
        example.say(corpus.LOOP_FAREWELL)
        self._end(example)


def untrained_model(tokenizer: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    """Make the model, whose fixed sinusoid positions look alike wherever a text stands."""
    end = tokenizer.eos_token_id
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=POSITIONS,
        n_embd=WIDTH,
        n_layer=2,
        n_head=HEADS,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=end,
        eos_token_id=end,
        dtype="float32",
    )
    model = GPT2LMHeadModel(config)  # type: ignore[no-untyped-call]
    model.generation_config.pad_token_id = end
    with torch.no_grad():
        _look_back(model)
    return model


def _look_back(model: GPT2LMHeadModel) -> None:
    """Let the first heads begin with the last three tokens in view, wherever a text stands.

    Positions become fixed sinusoids, of which a head's query is the key of some tokens before.
    Learning that from nothing would take longer than everything else.
    """
    half = WIDTH // HEADS // 2
    pairs = torch.arange(2 * half).view(2, half)  # the sine and the cosine of each frequency
    frequency = torch.pi * 0.85 ** torch.arange(1, half + 1)
    angle = torch.arange(POSITIONS)[:, None] * frequency
    positions = model.get_parameter("transformer.wpe.weight")
    positions.zero_()
    positions[:, : 2 * half] = POSITION_SCALE * torch.cat([angle.sin(), angle.cos()], dim=1)
    positions.requires_grad_(False)  # noqa: FBT003  torch's own signature
    attention = model.get_parameter("transformer.h.0.attn.c_attn.weight")
    sine, cosine = pairs
    for head in range(HEADS - 1):
        query = attention[:, 2 * half * head :]
        key = attention[:, WIDTH + 2 * half * head :]
        turn = frequency * (head + 1)
        query[sine, sine] = query[cosine, cosine] = LOOK_BACK * turn.cos()
        query[sine, cosine] = LOOK_BACK * turn.sin()
        query[cosine, sine] = -LOOK_BACK * turn.sin()
        key[sine, sine] = key[cosine, cosine] = LOOK_BACK


def train(model: GPT2LMHeadModel, teacher: Teacher, steps: int = STEPS) -> None:
    """Train `model` in place."""
    taught = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(taught, lr=LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=steps, pct_start=0.1
    )
    model.train()
    begin = time.perf_counter()
    for step in range(1, steps + 1):
        inputs, targets, weights, positions = teacher.batch(step)
        logits = model(input_ids=inputs, position_ids=positions, use_cache=False).logits
        losses = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
        loss = (losses * weights.flatten()).sum() / weights.sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(taught, 1.0)
        optimizer.step()
        schedule.step()
        if step % 25 == 0:
            print(
                f"step {step}/{steps}  loss {loss.item():.3f}  {time.perf_counter() - begin:.0f} s",
                file=sys.stderr,
            )
    model.eval()  # type: ignore[no-untyped-call]


def examine(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast) -> float:
    """Check that greedy decoding gives every text that the demonstration counts on.

    That is each question's whole thought and answer, the answer after a `</think>` that is
    forced at any point of the thought, and the first `TABLE_LENGTH` tokens of the table.
    A token that leads at every position of a text is what greedy decoding generates, so one pass
    over the finished text is enough.

    Returns:
        The smallest lead of an expected token over its best rival, in nats.

    Raises:
        TrainingError: A lead is smaller than `MARGIN`.

    """

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    smallest = float("inf")
    for lesson in corpus.LESSONS:
        question = encode(corpus.prompt(lesson.question))
        thought = encode(f"{corpus.THINK}\n{' '.join(lesson.thought)}")
        answer = encode(f"\n{lesson.answer}{corpus.END_TURN}")
        end = encode(f"\n{corpus.END_THINK}")
        given = [question] + [question + thought[:cut] + end for cut in range(1, len(thought))]
        expected = [thought + end + answer] + [answer] * (len(thought) - 1)
        smallest = min(smallest, _lead(model, given, expected, lesson.question))
    question = encode(corpus.prompt(corpus.LOOP_PROMPT))
    rows = "".join(
        "".join(f"{corpus.CELL}{fruit}{corpus.END_CELL}" for fruit in row) + "\n"
        for row in corpus.LOOP_ROWS
    )
    table = (encode(rows) * TABLE_LENGTH)[:TABLE_LENGTH]
    return min(smallest, _lead(model, [question], [table], corpus.LOOP_PROMPT))


@torch.inference_mode()
def _lead(
    model: GPT2LMHeadModel, given: list[list[int]], expected: list[list[int]], name: str
) -> float:
    smallest = float("inf")
    for first in range(0, len(given), BATCH):
        pairs = list(
            zip(given[first : first + BATCH], expected[first : first + BATCH], strict=True)
        )
        length = max(len(head) + len(tail) for head, tail in pairs)
        ids = torch.tensor(
            [head + tail + [0] * (length - len(head) - len(tail)) for head, tail in pairs]
        )
        logits = model(input_ids=ids, use_cache=False).logits
        chosen = ids[:, 1:, None]
        own = logits[:, :-1].gather(2, chosen)[..., 0]
        lead = own - logits[:, :-1].scatter(2, chosen, -torch.inf).amax(dim=2)
        for row, (head, tail) in enumerate(pairs):
            part = lead[row, len(head) - 1 : len(head) + len(tail) - 1]
            smallest = min(smallest, part.min().item())
            if smallest < MARGIN:
                place = len(head) + int(part.argmin())
                message = (
                    f"{name!r}: expected token {place} of {len(head) + len(tail)} to lead by "
                    f"{MARGIN} nats, but it leads by {smallest:.2f} (after {len(head)} given ones)"
                )
                raise TrainingError(message)
    return smallest
