"""Classes of other engines compute the same rows at drafted tokens as at committed tokens."""

import random
from itertools import count

import pytest
import torch
from transformers import LogitsProcessor

from sglang_lp.adapters import EngineSettings, adapt, load
from sglang_lp.builtins import ChainLogitProcessor
from sglang_lp.errors import ProcessorFault, Unsupported
from sglang_lp.links import prepare
from sglang_lp.served_model import ServedModel
from sglang_lp.server.gate.algorithms import Speculation
from support.fakes.served_batch import ServedBatch
from support.processors.kinds import INF, VOCAB, Kind
from tests._engine.history.test_drafts import (
    Request,
    accept,
    chosen_node,
    drafted,
    prepare_step,
    verify,
)


class Remembers(LogitsProcessor):
    """Adds all rows that it has seen, each once for every call since."""

    def __init__(self):
        self.seen = None

    def __call__(self, input_ids, scores):
        self.seen = scores.clone() if self.seen is None else self.seen + scores
        self.seen[0, int(input_ids[0, -1]) % VOCAB] += input_ids.shape[1]
        return self.seen.clone()


class Counts:
    """Dynamo: raises where it is called out of turn, and lifts a token by its number of calls."""

    def __init__(self, prompt_tokens):
        self.calls = prompt_tokens

    def __call__(self, input_ids, logits):
        assert len(input_ids) == self.calls
        logits[self.calls % VOCAB] += self.calls
        self.calls += 1


class FailsAtSeven(LogitsProcessor):
    """Fails where the history ends with 7."""

    def __call__(self, input_ids, scores):
        return scores if int(input_ids[0, -1]) != 7 else None


def of_transformers(made, prompt, output, row):
    return made(torch.tensor([[*prompt, *output]]), row[None])[0]


def of_dynamo(made, prompt, output, row):
    made([*prompt, *output], row)
    return row


def of_vllm(made, _prompt, output, row):
    return made(output, row)


POLITE = load("support.processors.foreign", "Polite", "test")
SPELLED = load("support.processors.foreign", "Spelled", "test")
PROMPT = [3, 4, 5]
#: Class, interface, arguments, how its object is called.
CASES = {
    "function of the history": (POLITE, None, {"penalty": 1.5}, of_transformers),
    "remembers rows": (Remembers, None, {}, of_transformers),
    "counts calls": (Counts, "dynamo", {"prompt_tokens": len(PROMPT)}, of_dynamo),
    "request-level": (SPELLED, "vllm-request", {"tokens": [5, 6, 7]}, of_vllm),
}


def adapted(foreign, interface=None):
    cls = adapt(foreign, interface)
    cls.begin(EngineSettings(vocab_size=VOCAB))
    return cls


def directly(case, known, prefix):
    """Call an object of one's own at every position up to here, with the rows that came there."""
    foreign, _, params, call = CASES[case]
    made, row = foreign(**params), None
    for length in range(len(prefix) + 1):
        row = call(made, PROMPT, [*prefix[:length]], known[prefix[:length]].clone())
    return row


def still_known(known, root, seen):
    """Return the rows that were seen, and those of this step, by the tokens before them.

    What did not come is gone. A row whose token may have come is not seen again.
    """

    def leads(to, prefix):
        return to[: len(prefix)] == prefix

    drafted = {prefix: row for prefix, row in seen.items() if prefix != root}
    kept = {
        prefix: row
        for prefix, row in known.items()
        if leads(root, prefix)
        or (leads(prefix, root) and not any(leads(prefix, other) for other in drafted))
    }
    return {**seen, **kept}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_nodes_are_computed_as_direct_calls_compute_them(case, seed, chained):
    rng, batch = random.Random(seed), ServedBatch()
    widths = [rng.choice([1, 2, 4, 6]) for _ in range(6)]
    foreign, interface, params, _ = CASES[case]
    cls = adapted(foreign, interface)
    if chained:
        banned = {"chain": ["m:F", "DisallowedTokensLogitsProcessor"], "1.token_ids": [9]}
        params = banned | {f"0.{name}": value for name, value in params.items()}
        one = cls
        cls = ChainLogitProcessor.limited_to(
            lambda name: one if name == "m:F" else ChainLogitProcessor._resolve(name)
        )
    live = [Request(Kind(cls, params, None), PROMPT) for _ in range(3)]
    known = {request: {} for request in live}
    for width in widths:
        members = prepare_step(live, rng)
        if not members:
            continue
        paths, trees, token_ids, before, after = verify(batch, members, rng, width)
        for i, request in enumerate(members):
            root = (*request.host.history,)
            seen = {(*root, *path): before[i * width + n] for n, path in enumerate(paths[i])}
            known[request] = still_known(known[request], root, seen)
            rows = after[i * width : (i + 1) * width]
            for node, path in enumerate(paths[i]):
                wanted = directly(case, known[request], (*root, *path))
                if chained:
                    wanted[9] = -INF
                assert rows[node].tolist() == wanted.tolist(), (root, path)
            assert request.host.ends == []
            node = chosen_node(rng, width, trees[i][0], token_ids[i], rows)
            accept(
                request,
                node,
                trees[i][0],
                token_ids[i],
                rows[node],
                leave_pending=rng.random() < 0.5,
            )


@pytest.mark.parametrize("chained", [False, True])
def test_a_fault_at_a_node_counts_if_its_drafts_come(chained):
    one = adapted(FailsAtSeven)
    cls = ChainLogitProcessor.limited_to(lambda _name: one) if chained else one
    request = drafted(Kind(cls, {"chain": ["m:F"]} if chained else {}, None), [5, 7, 6])

    # Behind it the rows do not matter: they come only if it does.
    (position, path, error), *_ = request.host.ends
    assert (position, path) == (2, (5, 7))
    assert isinstance(error, ProcessorFault)
    assert "FailsAtSeven (transformers) failed at token 2: it returned NoneType" in str(error)


class Closure:
    """Counts where no copy sees it."""

    def __init__(self):
        numbers = count()
        self.next = lambda: next(numbers)

    def __call__(self, input_ids, scores):
        return scores + self.next()


@pytest.mark.parametrize(
    ("found", "interface", "params", "is_served"),
    [
        (POLITE, None, {"penalty": 1.5}, True),
        (load("support.processors.foreign", "echo", "test"), None, {}, True),
        (Closure, "transformers", {}, False),
        (
            load("support.processors.foreign", "SpelledAdapter", "test"),
            None,
            {"tokens": [5]},
            False,
        ),
        (
            load("support.processors.foreign", "TargetToken", "test"),
            None,
            {"target_token": 5},
            False,
        ),
        (load("support.processors.foreign", "NoRepeatV2", "test"), None, {"penalty": 1.0}, False),
    ],
)
def test_drafting_servers_refuse_what_cannot_be_copied(found, interface, params, is_served):
    cls = adapt(found, interface)
    (made,) = prepare(cls(), params, ServedModel(vocab_size=VOCAB))
    server = Speculation("DFLASH")
    if is_served:
        server.check("m:F", made, sampled=True)
    else:
        with pytest.raises(Unsupported, match="m:F: its state cannot be forked"):
            server.check("m:F", made, sampled=True)
