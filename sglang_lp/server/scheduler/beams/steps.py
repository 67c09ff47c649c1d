"""The steps of beam searches: edits before SGLang selects beams, and the selected beams.

SGLang ranks continuations, and continues or completes the best. A continuation that edits exclude
has the score ``-inf``. If there are fewer possible continuations than beams, such continuations
take the places that are left. They are dead: their own continuations score ``-inf`` as well, no
processor edits them, and no answer has them. Their rows keep finite logits, so no score is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

from sglang_lp._engine.apply.device import index_on, send
from sglang_lp._engine.batch import Batch
from sglang_lp._engine.history.attached import detach_row, rows_of
from sglang_lp.faults import OURS, as_fault
from sglang_lp.server.gate.metrics import writing
from sglang_lp.server.scheduler.beams.beam_host import BeamHost
from sglang_lp.server.scheduler.beams.candidates import left_tokens, rank
from sglang_lp.server.scheduler.beams.search import Search
from sglang_lp.server.scheduler.beams.tree import Tree
from sglang_lp.server.scheduler.endings import end_request

if TYPE_CHECKING:
    import torch

    from sglang_lp._engine.history.row import Row
    from sglang_lp._engine.step import Step
    from sglang_lp.server.scheduler.beams.candidates import Candidates

#: Attribute of SGLang's ``BeamGroup``: its beams, freed with the group.
_BEAMS = "sglang_lp_beams"


class Beams:
    """The beams of one request with processors.

    Args:
        group: SGLang's ``BeamGroup``.
        row: As ``leader``.
        custom_params: As the attribute.

    Attributes:
        search: The progress of SGLang's search.
        tree: The row of each beam.
        leader: The row of the request itself, which the gate made.
        renormalizes: Whether beams are scored by the logprobs after the edits.
        custom_params: SGLang's ``custom_params`` of the request.
        lost: Excess of SGLang's logprobs over the model's own, because SGLang normalizes the edited
            logits; shape ``(beams, 1)``, float32. ``None`` if the latest step edited nothing.
        candidates: The best continuations, where this package ranks them; else ``None``, and SGLang
            ranks the edited logits.
    """

    def __init__(self, group: Any, row: Row, custom_params: Any) -> None:
        self.search = Search(group)
        self.tree = Tree(row, group.beam_width)
        self.leader = row
        self.renormalizes = row.flags.renormalizes
        self.custom_params = custom_params
        self.lost: torch.Tensor | None = None
        self.candidates: Candidates | None = None


def beams_of(group: Any) -> Beams | None:
    """Return the beams of SGLang's ``BeamGroup``; ``None`` for a search without processors."""
    return getattr(group, _BEAMS, None)


def _running(group: Any) -> Beams | None:
    """Return the beams of a group, ``None`` once its search has failed."""
    beams = beams_of(group)
    return None if beams is None or beams.search.has_failed else beams


def release(group: Any) -> Beams | None:
    """Detach the beams of a search that is over, and return them.

    The row of the leader and SGLang's parameters refer to each other. This breaks the cycle, which
    the garbage collector would free only much later.
    """
    beams: Beams | None = vars(group).pop(_BEAMS, None)
    if beams is not None:
        detach_row(beams.custom_params)
    return beams


def attach(
    original: Callable[..., str | None], coordinator: Any, req: Any, recv_req: Any
) -> str | None:
    """Attach the processors of a request to its group: a hook around SGLang's own checks.

    SGLang replaces the sampling parameters of the request, and with them ``custom_params``.
    """
    custom_params = req.sampling_params.custom_params
    error = original(coordinator, req, recv_req)
    if error is None:
        try:
            _attach(req, custom_params)
        except BaseException as fault:  # noqa: BLE001 - as in BeamSteps
            end_request(req, as_fault(OURS, "at the start of a beam search", fault))
    return error


def _attach(req: Any, custom_params: Any) -> None:
    (row,) = rows_of([custom_params])
    if row is not None and isinstance(row.host, BeamHost):
        req.custom_logit_processor = None  # the sampler would edit the leader once more
        beams = Beams(req.beam_group, row, custom_params)
        row.host.search = beams.search
        setattr(req.beam_group, _BEAMS, beams)


class BeamSteps:
    """Steps of the beam searches of one scheduler process.

    No step raises: an error ends only the beam searches of the step.
    """

    def __init__(self) -> None:
        self._batch = Batch(self._prepare)
        #: The searches of a step, each with the rows of the logits that are its beams; all these
        #: rows; and the totals of these rows before the edits.
        self._placed: Sequence[tuple[Beams, Sequence[int]]] = ()
        self._places: Sequence[int] = ()
        self._before: torch.Tensor | None = None
        #: Parameters of the last step's rows; a batch that sleeps needs the same list object.
        self._custom_params: list[Any] = []
        #: Versions of these rows. The rows are not kept, so that a finished search is freed.
        self._versions: list[int | None] = []

    def edit(self, batch: Any, forward_batch: Any, logits_output: Any) -> None:
        """Edit the logits of all beams in place, before SGLang keeps them for the selection."""
        logits = None if logits_output is None else logits_output.next_token_logits
        if batch is None or logits is None:
            return
        try:
            if batch.beam_tail is None and not forward_batch.forward_mode.is_extend():
                self._forget()
                return
            placed = [*_placed(batch)]
            if placed:
                self._edit(logits, placed)
        except BaseException as error:  # noqa: BLE001 - see the class
            fault = as_fault(OURS, "in a step of a beam search", error)
            for req in batch.reqs:
                beams = None if req.beam_group is None else beams_of(req.beam_group)
                if beams is not None:
                    beams.search.fail(fault)

    def _forget(self) -> None:
        """Let go of the requests of the last step: SGLang decodes, and no search runs."""
        if self._custom_params:
            self._custom_params, self._batch = [], Batch(self._prepare)

    def _prepare(self, logits: torch.Tensor, step: Step | None) -> Sequence[int]:
        """Rank candidates of the searches that need no masks, and keep the totals of the others.

        Args:
            logits: The logits of the step.
            step: The step; ``None`` if all rows sleep.

        Returns:
            The rows of ranked searches, whose logits stay as they are.
        """
        ranked: list[int] = []
        found = [
            (beams, places, None if step is None else left_tokens(step, places))
            for beams, places in self._placed
        ]
        totals, done = None, 0
        if not all(left is not None and beams.renormalizes for beams, _, left in found):
            totals = _totals(logits, self._places)
        for beams, places, left in found:
            if step is not None and left is not None:
                own = None
                if totals is not None and not beams.renormalizes:
                    own = totals[done : done + len(places)]
                count = beams.search.num_candidates
                beams.candidates = rank(logits, places, left, own, count)
                ranked += places
            done += len(places)
        self._before = totals if any(left is None for _, _, left in found) else None
        return ranked

    def _compare_totals(
        self, logits: torch.Tensor, rows: Sequence[Row | None]
    ) -> torch.Tensor | None:
        """Return ``Beams.lost`` for all beams of a step; ``None`` if it edited nothing."""
        if self._before is None:
            return None
        after = _totals(logits, self._places)
        return _lost(self._before, after, [rows[at] for at in self._places])

    def _edit(self, logits: torch.Tensor, placed: Sequence[tuple[Beams, Sequence[int]]]) -> None:
        began = perf_counter()
        awaited = any(beams.tree.waits for beams, _ in placed)
        rows: list[Row | None] = [None] * len(logits)
        custom_params: list[Any] = [None] * len(logits)
        for beams, places in placed:
            beams.candidates = None
            beams.tree.follow()
            for place, row in zip(places, beams.tree.rows, strict=True):
                rows[place], custom_params[place] = row, beams.custom_params
        if _versions(rows) != self._versions:
            self._custom_params, self._versions = custom_params, []
        self._placed, self._before = placed, None
        self._places = [place for _, places in placed for place in places]
        for row in rows:
            if row is not None:
                row.is_scaled = False
        if not self._batch.step_asleep(logits, self._custom_params, 1):
            self._batch.step(logits, rows, self._custom_params)
        self._placed = ()
        self._versions = _versions(rows)
        lost, done = self._compare_totals(logits, rows), 0
        for beams, places in placed:
            beams.lost = None if lost is None else lost[done : done + len(places)]
            done += len(places)
            beams.tree.keep_edits(beams.search.position)
        metrics = writing()
        if metrics is not None:
            metrics.step(perf_counter() - began, awaited=awaited)


def _versions(rows: Sequence[Row | None]) -> list[int | None]:
    return [None if row is None else row.version for row in rows]


def _placed(batch: Any) -> Iterator[tuple[Beams, Sequence[int]]]:
    """Yield the beams that SGLang selects for in this step, with the rows of their logits."""
    if batch.beam_tail is None:
        for index, req in enumerate(batch.reqs):
            group = req.beam_group
            beams = None if group is None else _running(group)
            if beams is not None and group.num_generated == 0:
                yield beams, (index,)
        return
    base = batch.beam_tail.num_base_rows
    for entry in batch.beam_tail.entries:
        beams = _running(entry.group)
        if beams is not None:
            yield beams, (entry.leader_idx, *range(base + entry.start, base + entry.end))


def _totals(logits: torch.Tensor, places: Sequence[int]) -> torch.Tensor:
    """Return the logarithm of the sum of the exponentials of some rows, shape ``(rows, 1)``."""
    first, stop = places[0], places[-1] + 1
    if [*places] == [*range(first, stop)]:
        rows = logits[first:stop]
    else:
        rows = logits.index_select(0, index_on(logits.device, places))
    return rows.float().logsumexp(-1, keepdim=True)


def _lost(before: torch.Tensor, after: torch.Tensor, rows: Sequence[Row | None]) -> torch.Tensor:
    """Return the excess that SGLang's normalization adds to the logprobs of each edited row.

    It is 0 for a forced token, whose logit is 0.0 among logits of ``-inf``, and for rows that are
    scored by the edited logits, see :func:`_is_taken`.

    Args:
        before: Totals of the rows before the edits.
        after: Totals after the edits.
        rows: The row of each, ``None`` for a dead beam.

    Returns:
        Shape ``(rows, 1)``, float32.
    """
    import torch

    keeps = after == 0
    whole = [row is not None and _is_taken(row) for row in rows]
    if any(whole):
        keeps |= send(torch.tensor(whole), after.device)[:, None]
    return (before - after).masked_fill(keeps, 0.0)


def _is_taken(row: Row) -> bool:
    """Tell whether a beam is scored by the logprobs after this step's edits."""
    persistent = row.persistent
    is_scaled = row.is_scaled or (persistent is not None and persistent.factor is not None)
    return is_scaled or row.dense or row.flags.renormalizes


def defer(
    original: Callable[..., Any], pieces: Any, num_candidates: int
) -> tuple[Callable[[], Any], None]:
    """Put off SGLang's ranking until the group is known: a hook around that ranking.

    Returns:
        A function that ranks the logits, for :func:`score`; and ``None``.
    """
    return partial(original, pieces, num_candidates), None


def score(
    coordinator: Any, group: Any, top_logprobs: Any, top_tokens: Any, *args: Any, **kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Score by the model's own logprobs: a hook before SGLang selects the beams of a group.

    Args:
        coordinator: SGLang's ``BeamCoordinator``.
        group: SGLang's ``BeamGroup``.
        top_logprobs: The function of :func:`defer`.
        top_tokens: ``None``, from :func:`defer`.
        args: SGLang's other arguments.
        kwargs: SGLang's other arguments by name.

    Returns:
        The arguments for SGLang, with the logprobs and tokens of the continuations.
    """
    beams = _running(group)
    if beams is not None and beams.candidates is not None:
        top_logprobs, top_tokens = beams.candidates
    else:
        top_logprobs, top_tokens = top_logprobs()
        if beams is not None and beams.lost is not None:
            top_logprobs = top_logprobs - beams.lost
    return (coordinator, group, top_logprobs, top_tokens, *args), kwargs


def grow(group: Any, sel: Any, *_args: Any, **_kwargs: Any) -> None:
    """Record the beams that SGLang selected: a hook before it continues with them.

    SGLang ends a search that has fewer beams than asked for. Dead beams do not end it: the search
    goes on while a beam is alive.

    Args:
        group: SGLang's ``BeamGroup``.
        sel: SGLang's ``SelectResult``, changed in place without a wait for the device.
    """
    beams = _running(group)
    if beams is not None:
        try:
            _grow(beams, sel)
        except BaseException as error:  # noqa: BLE001 - as in BeamSteps
            beams.search.fail(as_fault(OURS, "in a step of a beam search", error))


def _grow(beams: Beams, sel: Any) -> None:
    import torch

    scores, ends = sel.new_cum_logprobs, sel.fin_cum_logprobs
    survives = _before(scores, sel.num_survivors)
    finishes = _before(ends, sel.num_finished)
    alive = survives & (scores > -math.inf)
    possible = alive.sum() + (finishes & (ends > -math.inf)).sum()
    scarce = possible < sel.num_survivors + sel.num_finished
    left = torch.where(scarce, len(scores), sel.num_survivors)
    beams.tree.grow(torch.stack([sel.parent_idx, sel.next_tokens, alive.long()]))
    sel.num_survivors = torch.where(alive.any(), left, 0)
    sel.new_cum_logprobs = scores.masked_fill(~alive, -math.inf)


def _before(values: Any, count: Any) -> Any:
    """Return a mask of the first ``count`` places, without a wait for the device."""
    import torch

    return torch.arange(len(values), device=values.device) < count


def end_failed_prefill(_coordinator: Any, req: Any, *_args: Any, **_kwargs: Any) -> None:
    """End a search whose processor failed, before SGLang commits the leader's first step."""
    beams = beams_of(req.beam_group)
    if beams is not None:
        beams.search.end_if_failed()


def end_failed(coordinator: Any, batch: Any) -> None:
    """End the searches whose processor failed, before SGLang commits their step."""
    if coordinator._num_live_groups == 0:  # noqa: SLF001 - SGLang checks it first as well
        return
    for req in batch.reqs:
        if req.beam_group is not None:
            end_failed_prefill(coordinator, req)
