"""The scenes that are played against a server over HTTP."""

from __future__ import annotations

import pickle
import threading
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import openai
import orjson
from tokenizers import Tokenizer

from demo.corpus import END_THINK, LOOP_PROMPT, QUESTIONS, THINK, prompt
from demo.model import SpecialTokens
from demo.sentences import sentences
from demo.server import POLICY
from demo.show import Scene, cut
from sglang_lp import wire
from sglang_lp.client import attach, attach_each, probabilities
from support.oracles.definitions import ngram_bans
from support.processors import unforeseen

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "Model",
    "answers",
    "attacks",
    "bans",
    "budget",
    "catalogue",
    "chances",
    "drafts",
    "efforts",
    "forced",
    "knowing",
    "no_loop",
    "overthinking",
    "stock",
    "whole",
]

QUESTION = next(iter(QUESTIONS))
BUDGET = 32
GREETING = "Hello world!"
NGRAM, WINDOW = 12, 400
#: Answers that are compared with and without a catalogue.
WAYS: Mapping[str, dict[str, Any]] = {
    "64 samples at temperature 2": {"n": 64, "temperature": 2.0},
    "16 beams": {"n": 16, "beam_width": 16},
}
#: A document with as many words as the model likes, and limits that are short for it.
SHEEP = {
    "type": "object",
    "properties": {"sheep": {"type": "array", "items": {"enum": ["white", "black"]}}},
    "required": ["sheep"],
    "additionalProperties": False,
}
LIMITS = 16, 24, 40
#: Of a sum of probabilities.
_ROUNDING = 1e-6
#: What a thought is closed with.
CLOSING = "\nI have thought for long enough now, so this is what I answer.\n"


@dataclass(frozen=True)
class Model:
    """The demo model's tokenizer, and the token ids that the scenes need."""

    tokenizer: Tokenizer
    ids: SpecialTokens

    @classmethod
    def of(cls, directory: Path) -> Model:
        """Read them from a checkpoint's directory."""
        return cls(
            Tokenizer.from_file(str(directory / "tokenizer.json")), SpecialTokens.of(directory)
        )

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text."""
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def budget(self, tokens: int) -> Any:
        """Return the attachment that limits this model's thinking."""
        return attach(
            "ThinkingBudgetLogitProcessor",
            thinking_budget=tokens,
            thinking_start_token_id=self.ids.think,
            thinking_end_token_id=self.ids.end_think,
            new_line_token_id=self.ids.newline,
        )

    def thought(self, output_ids: Sequence[int]) -> int | None:
        """Count the tokens between the start and the end token; ``None`` if it is not closed."""
        try:
            start = output_ids.index(self.ids.think)
            return output_ids.index(self.ids.end_think, start) - start - 1
        except ValueError:
            return None


def body(question: str, **sampling: Any) -> dict[str, Any]:
    """Return the body of a greedy ``POST /generate`` without a processor."""
    return {
        "text": prompt(question),
        "sampling_params": {"temperature": 0, "max_new_tokens": 300, **sampling},
    }


def generate(http: httpx.Client, request: Mapping[str, Any]) -> Any:
    """Send one request, or one batch."""
    answer = http.post("/generate", json=request)
    answer.raise_for_status()
    return answer.json()


def overthinking(http: httpx.Client, model: Model) -> Scene:
    """The model thinks far too long."""
    scene = Scene("Without a processor the model thinks far too long")
    answer = generate(http, body(QUESTION))
    scene.traces(body(QUESTION), answer)
    thought = model.thought(answer["output_ids"])
    scene.row(QUESTION, "none", cut(answer["text"]))
    scene.proves(
        f"{thought} tokens of thought for a one-line answer", seen=(thought or 0) > 3 * BUDGET
    )
    return scene


def budget(http: httpx.Client, model: Model) -> Scene:
    """The block closes at the budget, once."""
    scene = Scene("A thinking budget closes the block exactly there, once")
    request = model.budget(BUDGET).generate_body(body(QUESTION))
    answer = generate(http, request)
    scene.traces(request, answer)
    scene.traces(body(QUESTION), generate(http, body(QUESTION)))
    ids = answer["output_ids"]
    opened = ids.index(model.ids.think) + 1
    spent = ids[opened : opened + BUDGET]
    closing = [model.ids.end_think]
    if spent[-1:] != [model.ids.newline]:
        closing.insert(0, model.ids.newline)
    scene.row(QUESTION, f"thinking_budget={BUDGET}, POST /generate", cut(answer["text"]))
    scene.proves(
        f"{BUDGET} tokens of thought, then a newline and </think>",
        seen=len(spent) == BUDGET
        and model.ids.end_think not in spent
        and ids[opened + BUDGET :][: len(closing)] == closing,
    )
    scene.proves("</think> comes once", seen=ids.count(model.ids.end_think) == 1)
    scene.proves("the answer is still right", seen=QUESTIONS[QUESTION] in answer["text"])

    client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none")
    said = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=300,
        extra_body=model.budget(BUDGET).extra_body(),
    )
    text = said.choices[0].message.content or ""
    scene.row(QUESTION, f"thinking_budget={BUDGET}, openai client, chat", cut(text))
    scene.proves(
        "the openai client gets the same text", seen=text.strip() == answer["text"].strip()
    )
    return scene


def efforts(http: httpx.Client, model: Model) -> Scene:  # noqa: ARG001 - as every scene
    """The operator's levels of effort, asked for as any client asks."""
    scene = Scene("Three levels of effort, three lengths of thought, and no extra field")
    client = openai.OpenAI(base_url=f"{http.base_url}/v1", api_key="none")
    decided = tomllib.loads(POLICY.read_text())["effort"]
    thoughts = {}
    for effort in ("low", "medium", "high"):
        said = client.chat.completions.create(
            model="demo",
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=300,
            reasoning_effort=effort,
            logprobs=True,
        ).choices[0]
        tokens = [one.token for one in (said.logprobs and said.logprobs.content) or ()]
        text = said.message.content or ""
        if THINK in tokens and END_THINK in tokens:
            thoughts[effort] = tokens.index(END_THINK) - tokens.index(THINK) - 1
        scene.row(QUESTION, f'reasoning_effort="{effort}", openai client', cut(text))
    for effort, budget in decided.items():
        # A newline may come before the end.
        scene.proves(
            f"{effort}: {budget} tokens of thought",
            seen=thoughts.get(effort) in {budget, budget + 1},
        )
    return scene


def bans(http: httpx.Client, model: Model) -> Scene:  # noqa: ARG001 - as every scene
    """Two requests of one batch ban different words."""
    scene = Scene("Two requests of one batch ban different words")
    free = generate(http, body(QUESTION))
    words = ["sheep", "five"]
    request = attach_each(
        [attach("BadWordsLogitProcessor", words=[word]) for word in words]
    ).generate_body(
        {
            "text": [prompt(QUESTION)] * 2,
            "sampling_params": [{"temperature": 0, "max_new_tokens": 300}] * 2,
        }
    )
    answers = generate(http, request)
    scene.traces(request, answers)
    scene.traces(body(QUESTION), free)
    for word, answer in zip(words, answers, strict=True):
        scene.row(QUESTION, f"banned: {word}", cut(answer["text"]))
        scene.proves(
            f"no {word!r} where it is banned; without a ban the model writes it",
            seen=word not in answer["text"] and word in free["text"],
        )
    return scene


def no_loop(http: httpx.Client, model: Model) -> Scene:
    """A looping model stops looping."""
    scene = Scene("No n-gram twice: a looping model stops looping")
    allowed = [model.ids.cell, model.ids.end_cell]
    processor = attach(
        "DeepseekOCRNoRepeatNGramLogitProcessor",
        ngram_size=NGRAM,
        window_size=WINDOW,
        whitelist_token_ids=allowed,
    )
    request = body(LOOP_PROMPT, max_new_tokens=160)
    plain = generate(http, request)
    looping = plain["output_ids"]
    answer = generate(http, processor.generate_body(request))
    scene.traces(processor.generate_body(request), answer)
    scene.traces(request, plain)
    ids = answer["output_ids"]
    scene.row(LOOP_PROMPT, "none", cut(model.tokenizer.decode(looping), 160))
    scene.row(LOOP_PROMPT, f"n-grams of {NGRAM}, window {WINDOW}", cut(answer["text"]))
    before = model.encode(prompt(LOOP_PROMPT))
    scene.proves(
        f"without the processor, n-grams of {NGRAM} repeat",
        seen=bool(_repeated(before + looping, len(before), ())),
    )
    scene.proves(
        "with the processor none repeats, except those that end in <td> or </td>",
        seen=not _repeated(before + ids, len(before), allowed),
    )
    scene.proves("<td> still repeats", seen=ids.count(model.ids.cell) > 1)
    return scene


def _repeated(ids: Sequence[int], start: int, allowed: Sequence[int]) -> list[int]:
    """Find the generated tokens that complete an n-gram of the window, by plain search."""
    return [
        end
        for end in range(start, len(ids))
        if ids[end] in ngram_bans(ids[:end], NGRAM, WINDOW, allowed)
    ]


def forced(http: httpx.Client, model: Model) -> Scene:
    """The answer is given token by token."""
    scene = Scene("A forced sequence: the answer is what the operator wants it to be")
    processor = attach(
        "ForcedSequenceLogitProcessor",
        text=GREETING,
        eos_token_ids=[model.ids.end_turn],
    )
    one = generate(http, processor.generate_body(body(QUESTION)))
    scene.traces(processor.generate_body(body(QUESTION)), one)
    scene.row(QUESTION, f"forced: {GREETING}", one["text"])
    scene.proves(f"the answer is {GREETING!r}", seen=one["text"] == GREETING)
    four = generate(http, processor.generate_body(body(QUESTION, n=4, temperature=1.0)))
    scene.row(QUESTION, "the same, n=4, temperature=1", " | ".join(a["text"] for a in four))
    scene.proves(
        "all four copies get it",
        seen=[a["text"] for a in four] == [GREETING] * 4,
    )
    return scene


def catalogue(http: httpx.Client, model: Model) -> Scene:
    """Thoughts that begin with a sentence of a catalogue, with the catalogue and without."""
    scene = Scene("A catalogue: every answer is an item, sampled or searched with beams")
    items = sentences(model.tokenizer)
    favourite = next(iter(items))
    for way, sampling in WAYS.items():
        request = body(QUESTION, max_new_tokens=3, **sampling)
        request["text"] += f"{THINK}\n"
        free = _each(generate(http, request))
        wrong = sum(tuple(one["output_ids"]) not in items.values() for one in free)
        scene.row(QUESTION, way, cut(" | ".join(one["text"] for one in free)))
        scene.proves(f"{way}: {wrong / len(free):.0%} name no item", seen=wrong > 0)
        for left_out in ([], [favourite]):
            among = attach(
                "CatalogueLogitProcessor",
                catalogue="sentences",
                exclude=left_out,
                ends_answer=False,
            )
            held = among.generate_body(request)
            found = _each(generate(http, held))
            named = [one["meta_info"]["sglang_lp"]["catalogue"]["items"] for one in found]
            how = f"{way}, a catalogue" + (", its likeliest item left out" if left_out else "")
            scene.row(QUESTION, how, cut(" | ".join(one["text"] for one in found)))
            scene.proves(
                f"{how}: each of {len(found)} is an item, which the report names",
                seen=len(found) == sampling["n"]
                and all(
                    [{name for name in items if items[name] == tuple(one["output_ids"])}]
                    == [{*shared} for shared in told]
                    for one, told in zip(found, named, strict=True)
                ),
            )
            scene.proves(
                f"{favourite!r} {'does not come' if left_out else 'comes'}",
                seen=([[favourite]] in named) != bool(left_out),
            )
    return scene


def whole(http: httpx.Client, model: Model) -> Scene:  # noqa: ARG001 - as every scene
    """JSON within short limits, with ``whole_answer`` and without."""
    scene = Scene("Structured answers that are whole: no JSON is cut off by its limit")
    schema = orjson.dumps(SHEEP).decode()
    for limit in LIMITS:
        parsed = {}
        for asked in (False, True):
            sampling = {"temperature": 1, "n": 4, "max_new_tokens": limit, "json_schema": schema}
            params = {"custom_params": {"whole_answer": asked}}
            answers = generate(http, body(QUESTION, **sampling, **params))
            parsed[asked] = sum(_is_json(one["text"]) for one in answers)
            how = f"json_schema, at most {limit} tokens" + (", whole_answer" if asked else "")
            scene.row(QUESTION, how, cut(" | ".join(one["text"] for one in answers)))
        scene.proves(
            f"{limit} tokens: {parsed[True]} of 4 parse, and {parsed[False]} without",
            seen=parsed[True] == 4 > parsed[False],  # noqa: PLR2004 - copies
        )
    return scene


def chances(http: httpx.Client, model: Model) -> Scene:  # noqa: ARG001 - as every scene
    """The probability of each of several whole texts, and the likeliest of them as the answer."""
    scene = Scene("Probabilities of choices: how sure the model is of each whole text")
    vote = attach("ChoiceLogitProcessor", choices=[*QUESTIONS.values()], pick="likeliest")
    for question, right in QUESTIONS.items():
        request = body(question)
        request["text"] += f"{THINK}\n{END_THINK}\n"
        answer = generate(http, vote.generate_body(request))
        sure = probabilities(answer)
        shown = ", ".join(
            f"{sure[text]:.4f} {text!r}"
            for text in sorted(sure, key=sure.__getitem__, reverse=True)
        )
        scene.row(question, "a choice with pick", f"{answer['text']} ({shown})")
        scene.proves(
            f"the probabilities add up to one, and the answer is the likeliest: {right!r}",
            seen=abs(sum(sure.values()) - 1) < _ROUNDING
            and answer["text"] == sure.likeliest == right,
        )
    return scene


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _each(answer: Any) -> list[Any]:
    """Return all copies of an answer, or all beams."""
    if isinstance(answer, list):
        return answer
    return [*answer["meta_info"].get("beam_results", [answer])]


def stock(http: httpx.Client, model: Model) -> Scene:
    """A stock client's payload runs this toolkit's implementation."""
    from sglang.srt.sampling.custom_logit_processor import DisallowedTokensLogitsProcessor

    scene = Scene("A client with SGLang's own class gets this toolkit's implementation")
    words = [" sheep", " goat"]
    banned = [model.encode(word) for word in words]
    request = {
        "text": [prompt(QUESTION)] * 2,
        "custom_logit_processor": DisallowedTokensLogitsProcessor.to_str(),
        "sampling_params": [
            {"temperature": 0, "max_new_tokens": 300, "custom_params": {"token_ids": ids}}
            for ids in banned
        ],
    }
    answers = generate(http, request)
    scene.traces(request, answers)
    for word, answer in zip(words, answers, strict=True):
        scene.row(QUESTION, f"SGLang's own payload, disallowed:{word}", cut(answer["text"], 160))
    scene.proves(
        "two lists in one batch, which end a server that runs SGLang's own code",
        seen=all(
            not set(ids) & set(answer["output_ids"])
            for ids, answer in zip(banned, answers, strict=True)
        ),
    )
    return scene


def steered(model: Model) -> Mapping[str, dict[str, Any]]:
    """Return the requests for :func:`drafts`, by the processor that is attached."""
    forced = attach(
        "ForcedSequenceLogitProcessor",
        text=GREETING,
        eos_token_ids=[model.ids.end_turn],
    )
    once = attach("DeepseekOCRNoRepeatNGramLogitProcessor", ngram_size=NGRAM, window_size=WINDOW)
    loop = body(LOOP_PROMPT, max_new_tokens=160)
    return {
        "none": body(QUESTION),
        f"thinking_budget={BUDGET}": model.budget(BUDGET).generate_body(body(QUESTION)),
        "thinking_budget=100000, which is never spent": model.budget(100_000).generate_body(
            body(QUESTION)
        ),
        f"n-grams of {NGRAM}, window {WINDOW}": once.generate_body(loop),
        f"forced: {GREETING}": forced.generate_body(body(QUESTION)),
    }


def answers(http: httpx.Client, model: Model) -> list[list[int]]:
    """Return a server's answers without drafts, to compare with :func:`drafts`."""
    return [generate(http, request)["output_ids"] for request in steered(model).values()]


def drafts(http: httpx.Client, model: Model, expected: Sequence[Sequence[int]]) -> Scene:
    """The same answers in fewer steps, from a server with drafts.

    Args:
        http: A server with speculative decoding.
        model: The model.
        expected: The :func:`answers` of one without.
    """
    scene = Scene("Speculative decoding: the same answers in fewer steps")
    lengths = {}
    for (how, request), alone in zip(steered(model).items(), expected, strict=True):
        # The drafts are n-grams that came before, so the second answer is drafted better.
        twice = [generate(http, request) for _ in range(2)]
        lengths[how] = [accept_length(answer) for answer in twice]
        asked = LOOP_PROMPT if how.startswith("n-grams") else QUESTION
        came = "accept length {:.2f}, the second time {:.2f}: ".format(*lengths[how])
        scene.row(asked, how, came + cut(twice[1]["text"], 120))
        scene.proves(
            f"{how}: token for token as without drafts",
            seen=all(answer["output_ids"] == [*alone] for answer in twice),
        )
    free, idle = lengths["none"][1], lengths["thinking_budget=100000, which is never spent"][1]
    scene.proves(f"drafts are accepted: {free:.2f} tokens a step", seen=free > 1)
    scene.proves(
        f"a budget that is never spent does not slow them down: {idle:.2f}", seen=idle >= free
    )
    return scene


def knowing(http: httpx.Client, model: Model) -> Scene:
    """The same closing, forced on drafts that know it and on drafts that do not.

    Args:
        http: A server with speculative decoding. Its policy allows
            :mod:`support.processors.unforeseen`.
        model: The model.
    """
    scene = Scene("Drafts that know what will be forced: the same closing in fewer steps")
    closing = model.encode(CLOSING)
    sides: Mapping[str, Any] = {
        "drafts know it": "ThinkingBudgetLogitProcessor",
        "drafts do not": unforeseen.Budget,
    }
    steps, came = [], []
    for how, processor in sides.items():
        http.post("/flush_cache").raise_for_status()  # else the second drafts know the first answer
        request = attach(
            processor,
            thinking_budget=2,
            thinking_start_token_id=model.ids.think,
            thinking_end_token_id=model.ids.end_think,
            closing_token_ids=closing,
        ).generate_body(body(QUESTION, max_new_tokens=len(closing) + 4))
        answer = generate(http, request)
        steps.append(answer["meta_info"]["spec_verify_ct"])
        came.append(answer["output_ids"])
        scene.row(QUESTION, how, f"{steps[-1]} verify steps: {cut(answer['text'])}")
    scene.proves(f"the same closing of {len(closing) + 1} tokens", seen=came[0] == came[1])
    scene.proves(f"{steps[0]} verify steps in place of {steps[1]}", seen=2 * steps[0] <= steps[1])
    return scene


def accept_length(answer: Mapping[str, Any]) -> float:
    """Return how many tokens a step of an answer brought."""
    meta = answer["meta_info"]
    steps: int = meta["spec_verify_ct"]
    return float(meta["completion_tokens"] / max(1, steps))


class _Remote:
    """An attacker's payload: unpickling it runs a command."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return Path.touch, (self.marker,)  # type: ignore[return-value]  # harmless stand-in


def hostile(marker: Path) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Yield what is sent, as title, fields of the request, and a word of the answer."""
    name = "DisallowedTokensLogitsProcessor"
    payload = wire.payload_for("sglang_lp.builtins", name)
    yield "remote code", {"payload": wire.encode(pickle.dumps(_Remote(marker)))}, "allows"
    yield "bad hex", {"payload": '{"callable": "not hex"}'}, "hex"
    yield "unknown class", {"payload": wire.payload_for("os", "abort")}, "operator"
    yield "missing parameter", {"payload": payload, "params": {}}, "token_ids"
    yield (
        "token id outside the vocabulary",
        {"payload": payload, "params": {"token_ids": [10_000_000]}},
        "10000000",
    )
    yield "misspelt parameter", {"payload": payload, "params": {"token_id": [1]}}, "token_ids"


def attacks(http: httpx.Client, model: Model, marker: Path) -> Scene:
    """Hostile requests, sent while good ones run."""
    scene = Scene("Hostile and broken requests end themselves, and nothing else")
    good = [model.budget(BUDGET).generate_body(body(question)) for question in QUESTIONS]
    calm = [generate(http, request)["output_ids"] for request in good]
    under_fire: list[bool] = []
    over = threading.Event()

    def keep_asking() -> None:
        while not over.is_set():
            for request, expected in zip(good, calm, strict=True):
                under_fire.append(generate(http, request)["output_ids"] == expected)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(keep_asking)
        try:
            for title, sent, word in hostile(marker):
                request = body(QUESTION, custom_params=sent.get("params", {}))
                answer = http.post(
                    "/generate", json={**request, "custom_logit_processor": sent["payload"]}
                )
                message = orjson.loads(answer.content)["error"]["message"]
                scene.row(title, cut(sent["payload"], 40), f"HTTP {answer.status_code}: {message}")
                scene.proves(
                    f"{title}: HTTP 400 with a message that helps",
                    seen=answer.status_code == httpx.codes.BAD_REQUEST and word in message,
                )
        finally:
            over.set()
    failure = asking.exception()
    if failure is not None:
        scene.row("a good request meanwhile", f"thinking_budget={BUDGET}", repr(failure))
    scene.proves("no code of a request ran", seen=not marker.exists())
    scene.proves(
        f"{len(under_fire)} good requests meanwhile, each token for token as without the attack",
        seen=failure is None and len(under_fire) > 0 and all(under_fire),
    )
    scene.proves("the server is healthy", seen=http.get("/health").is_success)
    return scene
