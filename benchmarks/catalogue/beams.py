"""One step of a beam search over a catalogue, next to SGLang's and STATIC's selection of beams.

SGLang selects without a catalogue. STATIC is ``youtube/static-constraint-decoding``: its own
PyTorch code, from a checkout on ``PYTHONPATH``, with the same selection behind it. Without a
checkout that column is left out.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.catalogue.items import LEVELS, codes_of, params_of
from sglang_lp._engine.history.attached import attach_row
from sglang_lp.links import prepare
from sglang_lp.served_model import ServedModel
from sglang_lp.server.scheduler.beams import steps
from sglang_lp.server.scheduler.beams.beam_host import BeamHost
from sglang_lp.server.scheduler.pending import PendingResults
from support.fakes.requests import Req

WIDTH = 512
ROUNDS = 3
#: Name of the column of SGLang's selection without a catalogue, and of STATIC's.
FREE, STATIC = "SGLang, no catalogue", "STATIC"


def measure(
    items: int, processor: Any, vocabularies: tuple[int, ...], rules: tuple[str, ...]
) -> Iterator[dict[str, Any]]:
    """Yield the time of each step of a search after the first, for each vocabulary and rule.

    Args:
        items: Number of items.
        processor: A class that knows the catalogue ``items``.
        vocabularies: Numbers of logits in a row.
        rules: Of ``benchmarks.catalogue.items``.
    """
    for vocabulary in vocabularies:
        logits = torch.randn(WIDTH, vocabulary, generator=torch.Generator().manual_seed(0))
        static = _static(items, vocabulary, logits)
        times: dict[tuple[str, int], list[float]] = {}
        for at in range(ROUNDS):
            for rule in (FREE, *rules):
                for depth, seconds in _search(
                    None if rule == FREE else processor, rule, at, logits
                ):
                    times.setdefault((rule, depth), []).append(seconds)
            for depth in range(1, LEVELS):
                if static is None:
                    break
                began = time.thread_time()
                static(depth)
                times.setdefault((STATIC, depth), []).append(time.thread_time() - began)
        for (rule, depth), found in times.items():
            yield {
                "vocabulary": vocabulary,
                "rule": rule,
                "depth": depth,
                "us": round(statistics.median(found) * 1e6, 1),
            }


def _search(
    processor: Any, rule: str, at: int, logits: torch.Tensor
) -> Iterator[tuple[int, float]]:
    """Yield depth and seconds of the edits and the selection of each step after the first."""
    from sglang.srt.beam_search.beam_group import BeamGroup
    from sglang.srt.beam_search.coordinator import BeamCoordinator, _rows_topk_logprobs

    advance = BeamGroup.advance_frontier

    def grow(group: Any, sel: Any, tick: int = 0) -> None:
        steps.grow(group, sel)
        advance(group, sel, tick)

    group = _group(processor, rule, at, logits.shape[1])
    running = steps.BeamSteps()
    with patch.object(BeamGroup, "advance_frontier", grow):
        for depth in range(LEVELS):
            rows = logits if depth else logits[:1].clone()
            began = time.thread_time()
            running.edit(*_batch(group, depth, rows))
            pieces = [rows[:1], rows[1:]]
            ranked = steps.defer(_rows_topk_logprobs, pieces, group.num_candidates)
            args, _ = steps.score(None, group, *ranked, depth)
            BeamCoordinator._select_group(*args)  # noqa: SLF001 - SGLang calls it, too
            if depth:
                yield depth, time.thread_time() - began
            group.commit_pending(depth)


def _group(processor: Any, rule: str, at: int, vocabulary: int) -> Any:
    """Return SGLang's group of a request, with the processor as the gate attaches it."""
    from sglang.srt.beam_search.beam_group import BeamGroup

    req: Any = Req(prompt=[5])
    req.beam_group = group = BeamGroup(beam_width=WIDTH, stop_token_ids=(), max_new_tokens=LEVELS)
    group.leader = req
    if processor is not None:
        params = {**params_of(rule, at), "ends_answer": False}
        served = ServedModel.of(None, vocabulary, [1])
        servings = prepare(processor(), params, served)
        given = {**params, "__req__": req}
        attach_row(given, servings, BeamHost(req, PendingResults(), [processor.__name__]))
        req.sampling_params.custom_params = given
        steps.attach(lambda *_: None, None, req, None)
    return group


def _batch(group: Any, depth: int, logits: torch.Tensor) -> tuple[Any, Any, Any]:
    """Return SGLang's batch, forward batch and output of one step of one group."""
    entry = SimpleNamespace(group=group, leader_idx=0, start=0, end=WIDTH - 1)
    tail = SimpleNamespace(num_base_rows=1, entries=[entry]) if depth else None
    mode = SimpleNamespace(is_extend=lambda: not depth)
    return (
        SimpleNamespace(beam_tail=tail, reqs=[group.leader]),
        SimpleNamespace(forward_mode=mode),
        SimpleNamespace(next_token_logits=logits),
    )


def _static(items: int, vocabulary: int, logits: torch.Tensor) -> Callable[[int], object] | None:
    """Return a function that runs STATIC's step at a depth, with the selection of beams."""
    if find_spec("static_decoding") is None:
        print("STATIC is left out: name a checkout of it in PYTHONPATH")
        return None
    from static_decoding.csr_utils import (  # type: ignore[import-not-found]  # not installed
        build_static_index,
    )
    from static_decoding.decoding_pt import (  # type: ignore[import-not-found]  # not installed
        generate_and_apply_logprobs_mask,
    )

    codes = np.unique(codes_of(items), axis=0)
    packed, starts, most, *_ = build_static_index(codes, vocabulary, 1)
    table, rows = torch.from_numpy(packed), torch.from_numpy(starts.astype(np.int64))
    picked = codes[np.random.default_rng(0).integers(0, len(codes), WIDTH)]
    states = {1: torch.from_numpy(picked[:, 0].astype(np.int64) + 1)}
    states[2] = torch.tensor(
        [
            next(
                after
                for token, after in packed[starts[state] : starts[state + 1]].tolist()
                if token == second
            )
            for state, second in zip(states[1].tolist(), picked[:, 1].tolist(), strict=True)
        ]
    )

    def step(depth: int) -> object:
        logprobs = torch.log_softmax(logits, -1)
        left, *_ = generate_and_apply_logprobs_mask(
            logprobs, states[depth], table, rows, most[depth], vocabulary, logits.device
        )
        return left.view(-1).topk(WIDTH)

    return step
