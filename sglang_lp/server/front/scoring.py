"""The probabilities of a request's choices, and the choice that they pick.

Each choice is scored as a prompt of its own: the prompt of the request and the tokens of the
choice, for which SGLang computes logprobs and generates nothing. The prompt itself is in the prefix
cache after the first of them. Then the request runs, with the choice that was picked.
"""

from __future__ import annotations

import asyncio
import copy
import math
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp.builtins import ChoiceLogitProcessor
from sglang_lp.errors import InvalidParameter
from sglang_lp.server.front.bounds import check_copies
from sglang_lp.server.front.header import record_probabilities
from sglang_lp.text.automaton import split
from sglang_lp.text.encoding import forced_text
from sglang_lp.text.spellings import spellings

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Admitted, Guard
    from sglang_lp.server.gate.intake import Intake

#: Attributes of SGLang's request in this process, which its copies inherit.
_SCORED, _PROBABILITIES = "sglang_lp_scored", "sglang_lp_probabilities"
#: Most sequences that spell the choices of one request, for the sum over all of them.
_MOST_SPELLINGS = 128

_Ids = tuple[int, ...]


class _Choice(NamedTuple):
    """One choice.

    Attributes:
        text: Its text; ``None`` for a choice of token ids.
        ids: Token ids that count: the tokenizer writes the text with them.
        sequences: Disjoint continuations of the prompt that make this choice: ``ids``, or ``ids``
            with each end token behind them if another choice begins with this choice.
        spelled: Such continuations for every spelling; ``None`` if there are too many.
    """

    text: str | None
    ids: _Ids
    sequences: list[_Ids]
    spelled: list[_Ids] | None


class _ScoringRequest(NamedTuple):
    """A request whose choices are to be scored.

    Attributes:
        choices: The choices.
        pick: Its parameter ``pick``.
        prefix: Comes before the names of the parameters, in a chain.
    """

    choices: list[_Choice]
    pick: str
    prefix: str


def score_later(guard: Guard, obj: Any, tokenized: Any, intake: Intake, admitted: Admitted) -> None:
    """Note the choices of an admitted request that are to be scored before it runs.

    Args:
        guard: The guard of this process.
        obj: SGLang's ``GenerateReqInput``.
        tokenized: The same request, tokenized.
        intake: The request.
        admitted: What runs it.

    Raises:
        RequestError: Its choices cannot be scored.
    """
    picking = [one for one in admitted.servings if getattr(one.params, "pick", None) is not None]
    if not picking:
        return
    params, name = picking[0].params, ChoiceLogitProcessor.__name__
    given: Mapping[str, Any] = intake.custom_params or {}
    prefixes = [key[: -len("pick")] for key in given if key == "pick" or key.endswith(".pick")]
    prefixes = [prefix for prefix in prefixes if given[f"{prefix}pick"] is not None]
    if picking[0].phase is not None:
        problem = (
            "expected none in an answer that begins with thoughts; turn thinking off "
            '(chat_template_kwargs), or set where to "everywhere"'
        )
    elif len(picking) > 1 or len(prefixes) != 1 or guard.rules.has_profile(intake.payload):
        problem = "expected it for one choice that the request names itself"
    elif intake.searches_beams or admitted.beside.resumed or guard.server.apart:
        problem = "expected none with beam_width, resumed_tokens, or prefill and decode apart"
    elif params.pick == "sampled" and getattr(tokenized.sampling_params, "n", 1) > 1:
        problem = 'expected "sampled" with n of 1; send several requests'
    elif tokenized.mm_inputs or tokenized.input_embeds or _in_session(tokenized):
        problem = "expected a prompt of text or tokens, without images and sessions"
    else:
        choices = _choices(params, guard.server.tokenizer, guard.server.vocab_size)
        longest = max(len(ids) for one in choices for ids in (one.spelled or one.sequences))
        if len(tokenized.input_ids) + longest >= (guard.server.longest or math.inf):
            problem = f"expected room for {longest} tokens behind the prompt; shorten one of them"
        else:
            count = sum(len(one.spelled or one.sequences) for one in choices)
            check_copies(len(tokenized.input_ids), count)
            setattr(obj, _SCORED, _ScoringRequest(choices, params.pick, prefixes[0]))
            return
    raise InvalidParameter(name, f"{(prefixes or [''])[0]}pick", f"{problem}, or leave it out")


def _in_session(tokenized: Any) -> bool:
    return bool(tokenized.session_params or tokenized.session_id)


def _choices(params: Any, tokenizer: Any, vocab_size: int | None) -> list[_Choice]:
    """Return the choices of parsed parameters, each once, in their order."""
    name, known = ChoiceLogitProcessor.__name__, None
    by_key: dict[Any, tuple[str | None, _Ids]] = {}
    if params.choices is None:
        by_key = {ids: (None, ids) for ids in map(tuple, split(params.token_ids, params.lengths))}
    else:
        for text in params.choices:
            by_key[text.encode()] = text, forced_text(name, "choices", tokenizer, text, vocab_size)
        known = spellings(ChoiceLogitProcessor.compiled(params, tokenizer), _MOST_SPELLINGS)
    begun = {one for one, after in pairwise(sorted(by_key)) if after[: len(one)] == one}

    def closed(key: Any, ways: Sequence[_Ids]) -> list[_Ids]:
        """Return the ways as disjoint continuations, without tokens that have no logit."""
        ends: Sequence[_Ids] = [()]
        if key in begun:
            ends = [(end,) for end in params.eos_token_ids]
        limit = vocab_size or math.inf
        return [(*way, *end) for way in ways for end in ends if max(way) < limit]

    return [
        _Choice(text, ids, closed(key, [ids]), None if known is None else closed(key, known[key]))
        for key, (text, ids) in by_key.items()
    ]


async def score(original: Callable[..., Awaitable[Any]], manager: Any, obj: Any) -> Any:
    """Tokenize a request, and score its choices before it runs: a hook."""
    tokenized = await original(manager, obj)
    scored: _ScoringRequest | None = getattr(obj, _SCORED, None)
    if scored is None:
        return tokenized
    delattr(obj, _SCORED)  # copies of the request are not scored again
    found = await _logprobs(
        manager,
        obj,
        tokenized,
        [way for one in scored.choices for way in (*one.sequences, *(one.spelled or ()))],
    )
    texts, shares = _report(scored.choices, found)
    report: dict[str, Any] = {"pick": scored.pick, "texts": texts}
    given = {**tokenized.sampling_params.custom_params}
    del given[f"{scored.prefix}pick"]
    if scored.pick != "tokens":
        temperature = _temperature(tokenized.sampling_params, scored.pick)
        place = _pick(texts, temperature, tokenized.sampling_params)
        report |= {"temperature": temperature, "picked": place}
        given |= _narrowed(scored.choices[place], scored.prefix)
    tokenized.sampling_params.custom_params = given
    setattr(obj, _PROBABILITIES, report)
    record_probabilities(shares)
    return tokenized


def probabilities_of(obj: Any) -> dict[str, Any] | None:
    """Return the report on the choices of a request; ``None`` if they were not scored."""
    found: dict[str, Any] | None = getattr(obj, _PROBABILITIES, None)
    return found


async def _logprobs(
    manager: Any, obj: Any, tokenized: Any, sequences: Sequence[_Ids]
) -> dict[_Ids, float]:
    """Return the model's logprob of each sequence of tokens behind the prompt of a request."""
    # A sequence is scored with any longer sequence that begins with it.
    ordered = sorted({*sequences})
    whole = [a for a, b in zip(ordered, [*ordered[1:], ()], strict=True) if b[: len(a)] != a]
    first = await _score(manager, obj, tokenized, whole[0])  # puts the prompt into the cache
    others = await asyncio.gather(*(_score(manager, obj, tokenized, one) for one in whole[1:]))
    found: dict[_Ids, float] = {}
    for ids, logprobs in zip(whole, [first, *others], strict=True):
        for length in range(1, len(ids) + 1):
            found[ids[:length]] = math.fsum(logprobs[:length])
    return found


async def _score(manager: Any, obj: Any, tokenized: Any, ids: _Ids) -> list[float]:
    """Return the logprob of each of some tokens behind the prompt of a request."""
    # SGLang makes the copies of n in this way.
    copied, prompt = copy.copy(obj), copy.copy(tokenized)
    copied.lora_path = copied.lora_id = None  # the request itself holds the adapter
    copied.stream = prompt.stream = copied.return_text_in_logprobs = False
    copied.return_logprob = prompt.return_logprob = True
    copied.top_logprobs_num = prompt.top_logprobs_num = 0
    copied.token_ids_logprob = prompt.token_ids_logprob = prompt.custom_logit_processor = None
    prompt.return_hidden_states = prompt.return_sampling_mask = False
    prompt.rid = copied.regenerate_rid()
    prompt.logprob_start_len = len(tokenized.input_ids) - 1
    prompt.input_ids = tokenized.input_ids + type(tokenized.input_ids)("q", ids)
    prompt.sampling_params = type(tokenized.sampling_params)(max_new_tokens=0)
    prompt.sampling_params.normalize(None)
    manager._init_req_state(copied)  # noqa: SLF001 - SGLang's
    state = manager.rid_to_state[copied.rid]
    prompt.time_stats = state.time_stats
    try:
        await manager._send_one_request(prompt)  # noqa: SLF001
        out = await anext(manager._wait_one_response(copied, None))  # noqa: SLF001
    finally:
        if manager.rid_to_state.get(copied.rid) is state:  # its client has gone
            manager.abort_request(copied.rid)
    return [logprob for logprob, *_ in out["meta_info"]["input_token_logprobs"][1:]]


def _report(
    choices: Sequence[_Choice], found: Mapping[_Ids, float]
) -> tuple[list[dict[str, Any]], list[float]]:
    """Return the report on each choice, and the probabilities."""
    logprobs = [_logsum(found[ids] for ids in one.sequences) for one in choices]
    whole = _logsum(logprobs)
    texts = []
    for one, logprob in zip(choices, logprobs, strict=True):
        text = {} if one.text is None else {"text": one.text}
        said: dict[str, Any] = {**text, "token_ids": one.ids, "logprob": logprob}
        said["probability"] = math.exp(logprob - whole)
        if one.spelled is not None:
            said["all_spellings"] = _logsum(found[ids] for ids in one.spelled)
        texts.append(said)
    return texts, [one["probability"] for one in texts]


def _logsum(logprobs: Iterable[float]) -> float:
    """Return the logarithm of a sum of probabilities."""
    given = [*logprobs]
    most = max(given, default=-math.inf)
    if most == -math.inf:
        return most
    return most + math.log(math.fsum(math.exp(one - most) for one in given))


def _temperature(sampling: Any, pick: str) -> float:
    """Return the temperature of a pick: 0 for the likeliest, which is SGLang's top_k of 1."""
    return 0.0 if pick == "likeliest" or sampling.top_k == 1 else float(sampling.temperature)


def _pick(texts: Sequence[Mapping[str, Any]], temperature: float, sampling: Any) -> int:
    """Return the index of the choice that is picked."""
    logprobs = [one["logprob"] for one in texts]
    best = max(logprobs)
    if not temperature:
        return logprobs.index(best)
    weights = [math.exp((one - best) / temperature) for one in logprobs]
    seed = getattr(sampling, "sampling_seed", None)
    chance = random.Random(seed)  # noqa: S311 - no secret
    return chance.choices(range(len(weights)), weights)[0]


def _narrowed(choice: _Choice, prefix: str) -> dict[str, Any]:
    """Return the parameters with which a request can write one choice only."""
    if choice.text is not None:
        return {f"{prefix}choices": [choice.text]}
    return {f"{prefix}token_ids": [*choice.ids], f"{prefix}lengths": [len(choice.ids)]}
