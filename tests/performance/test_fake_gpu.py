"""Kernels, copies and waits of a step on a GPU, counted on a fake GPU."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from benchmarks.devices.count import KINDS, NODES, RAW_KINDS, VOCAB, count
from sglang_lp import builtins
from sglang_lp.builtins.thinking.known import FAMILIES
from sglang_lp.server.scheduler.speculation import TreeSteps
from support.fakes.gpu import FakeGpu
from support.settings import ROOT

DECLARED = [kind for kind in KINDS if kind.is_declared]
OTHERS = [kind for kind in KINDS if not kind.is_declared]


def check(counted, kind, rows):
    assert counted.ended == 0
    assert counted.kernels <= kind.kernels
    assert (counted.kernels > 0) == (kind.kernels > 0)  # at work, or asleep
    assert counted.first <= 2
    assert counted.to_device <= 1 + kind.tables
    assert counted.waits <= kind.waits
    assert counted.to_host <= kind.waits + kind.answers
    assert counted.allocated <= rows * (16_000 + kind.whole * 4 * VOCAB) + VOCAB


@pytest.mark.parametrize("rows", [1, 32, 256])
@pytest.mark.parametrize("kind", DECLARED, ids=lambda kind: kind.name)
def test_a_step_launches_copies_and_waits_the_same_whatever_the_rows(kind, rows):
    check(count([kind], rows), kind, rows)


@pytest.mark.parametrize("kind", DECLARED, ids=lambda kind: kind.name)
def test_so_does_a_verify_step(kind):
    check(count([kind], 8, width=NODES), kind, 8 * NODES)


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (32, 1), (256, 1), (8, NODES)])
@pytest.mark.parametrize("kind", RAW_KINDS, ids=lambda kind: kind.name)
def test_raw_logprobs_take_one_copy_more_and_no_wait(kind, rows, width):
    counted = count([kind], rows, width=width)

    assert (counted.ended, counted.to_host, counted.waits) == (0, 0, 0)
    assert counted.kernels <= kind.kernels
    assert counted.to_device <= 2


@pytest.mark.parametrize("kind", DECLARED, ids=lambda kind: kind.name)
def test_under_a_grammar_the_host_waits_once_more_to_see_that_a_token_is_left(kind):
    counted = count([kind], 8, masked=True)

    assert counted.ended == 0
    assert counted.waits <= kind.waits + (counted.kernels > 0)


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.name)
def test_rows_that_a_class_changes_itself_are_checked_with_one_wait(kind):
    counted = count([kind], 32)

    assert (counted.ended, counted.to_host, counted.waits) == (0, 1, 1)
    assert counted.to_device <= 2 + 32 * kind.copies
    assert counted.kernels == kind.kernels + 32 * kind.each


def test_every_built_in_is_counted():
    classes = [kind.processor for kind in KINDS if isinstance(kind.processor, type)]
    counted = {kind.processor for kind in KINDS if isinstance(kind.processor, str)}
    counted |= {base.__name__ for one in classes for base in one.__mro__}
    families = {family.processor for family in FAMILIES}  # only the delimiters are others

    assert set(builtins.__all__) - families <= counted


def test_a_batch_of_all_kinds_launches_what_its_kinds_need_and_waits_once():
    counted = count(DECLARED, 4 * len(DECLARED))

    assert counted.ended == 0
    assert counted.waits == 1
    assert counted.to_host == 2  # logits that are read, and answers
    of_whole_rows = sum(kind.kernels for kind in DECLARED if kind.whole)
    assert counted.kernels <= 3 + len(DECLARED) + of_whole_rows
    # Persistent edits, step edits, pools; and tables, once.
    assert counted.to_device <= 3 + sum(kind.tables for kind in DECLARED)


@pytest.mark.parametrize("read", [True, False])
def test_drafts_are_on_their_way_before_the_forward_begins(read):
    gpu = FakeGpu()
    trees = SimpleNamespace(
        draft_token_num=NODES,
        draft_token=gpu.tensor(4 * NODES, dtype=torch.int64),
        retrieve_next_token=gpu.tensor(4, NODES, dtype=torch.int64),
        retrieve_next_sibling=gpu.tensor(4, NODES, dtype=torch.int64),
    )
    batch = SimpleNamespace(
        spec_info=trees,
        sampling_info=SimpleNamespace(has_custom_logit_processor=True),
        forward_mode=SimpleNamespace(is_idle=lambda: False),
    )

    with gpu.counting():
        steps = SimpleNamespace(may_act=lambda _info, _width: read, skip=lambda *_: False)
        TreeSteps(steps).capture(None, batch, is_verify=True)

    assert (sum(gpu.kernels.values()), gpu.to_host, gpu.waits) == (read, read, 0)


@pytest.mark.parametrize("wait", ["item", "cpu", "tolist", "bool", "nonzero", "mask", "put"])
def test_what_waits_for_the_device_is_seen(wait):
    gpu = FakeGpu()
    logits = gpu.tensor(2, 8)
    waiting = {
        "item": lambda: logits.max().item(),
        "cpu": logits.cpu,
        "tolist": logits.max().tolist,
        "bool": lambda: bool(logits.isfinite().all()),
        "nonzero": logits.nonzero,
        "mask": lambda: logits[logits > 0],
        "put": lambda: logits.__setitem__(logits.argmax(1), 0.0),  # a number of the host
    }
    unsized = wait in {"nonzero", "mask"}  # how large it is only the device knows

    with gpu.counting(), pytest.raises(RuntimeError) if unsized else nullcontext():
        waiting[wait]()

    assert gpu.waits == 1


def test_the_page_shows_what_is_counted():
    page = (ROOT / "docs" / "performance-gpu.md").read_text()
    shown = page.partition("begin: benchmarks.devices")[2].partition("<!-- end")[0]

    for kind in KINDS[:4]:
        one = count([kind], 32)
        row = next(line for line in shown.splitlines() if line.startswith(f"| {kind.name} |"))
        assert row.split(" | ")[2].startswith(f"{one.kernels}, {one.to_device}, {one.waits}, ")
