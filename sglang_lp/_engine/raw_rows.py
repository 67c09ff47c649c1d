"""Which rows of a step need raw logprobs; called before the edits of the step are applied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp._engine.apply.raw import RawLogprobs, RawPlaces, RawRows

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.history.row import Row
    from sglang_lp._engine.step import Step
    from sglang_lp.edits.recording import Recording


def raw_rows(step: Step, temperatures: torch.Tensor | None) -> RawRows | None:
    """Start the raw logprobs of the rows that are about to be edited.

    Args:
        step: Its edits are complete, and none is applied.
        temperatures: As for :meth:`~sglang_lp._engine.batch.Batch.step`.

    Returns:
        The raw logprobs, or ``None`` if no edited request asks for them.
    """
    if not RawLogprobs.asked:
        return None
    places = RawPlaces([], [], [])
    requests: dict[int, tuple[Any, RawLogprobs]] = {}
    edits = step.edits
    changed = {index for index, _ in step.copied} | step.dense.keys()
    changed |= {index for turn in step.pools for index, _, _ in turn}
    for request, row in enumerate(step.rows):
        if row is None or row.host.raw is None:
            continue
        before = places.total
        for index in range(request * step.width, (request + 1) * step.width):
            _place(places, index, row, edits.get(index), is_changed=index in changed)
        if places.total > before:
            requests[request] = row.source, row.host.raw
    if not requests:
        return None
    return RawRows(step.logits, step.width, requests, places, temperatures)


def _place(
    places: RawPlaces, index: int, row: Row, recording: Recording | None, *, is_changed: bool
) -> None:
    """Add a row of the logits to the places of its kind, if it is edited."""
    persistent = row.persistent
    forced = None if persistent is None else persistent.forced
    if forced is None and recording is not None:
        forced = recording.forced
    if forced is not None:
        places.forced.append((index, forced))
    elif (
        is_changed
        or (recording is not None and (not recording.only_excludes or recording.conditional))
        or (persistent is not None and (len(persistent.biases[0]) or persistent.factor is not None))
    ):
        places.changed.append(index)
    elif recording is not None or persistent is not None:
        places.reduced.append(index)
