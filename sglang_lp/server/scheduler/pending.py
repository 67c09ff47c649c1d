"""Pending tokens: sampled, but not yet processed by the scheduler.

With overlap scheduling SGLang launches a step before it processes the result of the step before,
so ``req.output_ids`` lacks the newest tokens. They are in ``scheduler.result_queue``, from which
SGLang's grammars read them as well. Reading a result waits for its copy to the host; the step that
was launched meanwhile does not wait for the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

_NONE: Sequence[int] = ()


class PendingResults:
    """Pending results of one scheduler, read at most once per step and only on demand.

    The ``id`` of ``output_ids`` identifies a request: processors hold a weak proxy of SGLang's
    request, and the proxy compares equal to nothing else.

    Attributes:
        scheduler: SGLang's ``Scheduler`` of this process; ``None`` until it exists.
    """

    def __init__(self) -> None:
        self.scheduler: Any = None
        self._tokens: dict[int, list[int]] | None = None
        self._was_read = False
        #: Requests of the latest result, by id; the requests asked for; and their places in the
        #: result, -1 for none.
        self._reqs: list[int] = []
        self._asked: Sequence[Sequence[int]] = ()
        self._places: Any = None

    @property
    def drafts(self) -> bool:
        """Whether a step may commit several tokens of a request: speculative decoding."""
        return self.scheduler is None or not self.scheduler.spec_algorithm.is_none()

    @property
    def was_read(self) -> bool:
        """Whether the pending results were read in this step."""
        return self._was_read or self._tokens is not None

    def begin(self) -> None:
        """Begin a new step: forget the results that were read."""
        self._tokens, self._was_read = None, False

    def of(self, req: Any) -> Sequence[int]:
        """Return the tokens of a request that follow its ``output_ids``, oldest first.

        The first call of a step waits for the device if a result is pending.

        Args:
            req: SGLang's request, or a proxy of it.
        """
        return self._known().get(id(req.output_ids), _NONE)

    def newest_of(self, output_ids: Sequence[Sequence[int]]) -> tuple[Any, Any]:
        """Return the newest pending token of each request, and how many it has, int64.

        The tokens are read from the tensor of the result, without a loop over requests where the
        batch is that of the last step. A request that has ended has a token too, which SGLang
        drops.

        Args:
            output_ids: ``output_ids`` of each request; the same list as long as they are the same.
        """
        found = self._one_each()
        if found is None:
            known = [self._known().get(id(own), _NONE) for own in output_ids]
            tokens = np.array([own[-1] if own else -1 for own in known], np.int64)
            return tokens, np.array([*map(len, known)], np.int64)
        reqs, result = found
        places = self._places_of(reqs, output_ids)
        if result.copy_done is not None:
            result.copy_done.synchronize()
        self._was_read = True
        return np.asarray(result.next_token_ids.cpu().numpy()[places], np.int64), places >= 0

    def accepted_of(self, output_ids: Sequence[Sequence[int]]) -> tuple[Any, Any]:
        """Return the pending tokens, request after request, and how many each has, int64.

        Like :meth:`newest_of`, it reads the tensors of a result of drafts without a loop.

        Args:
            output_ids: As for :meth:`newest_of`.
        """
        results = [*self._results()]
        if len(results) != 1 or not _is_verified(*results[0]):
            known = [self._known().get(id(own), _NONE) for own in output_ids]
            tokens = np.array([*chain.from_iterable(known)], np.int64)
            return tokens, np.array([*map(len, known)], np.int64)
        ((batch, result),) = results
        places = self._places_of(batch.reqs, output_ids)
        if result.copy_done is not None:
            result.copy_done.synchronize()
        self._was_read = True
        ids = result.next_token_ids.cpu().numpy().reshape(-1, _stride_of(result))[places]
        counts = np.where(places < 0, 0, result.accept_lens.cpu().numpy()[places])
        is_accepted = np.arange(ids.shape[1]) < counts[:, None]
        return np.asarray(ids[is_accepted], np.int64), np.asarray(counts, np.int64)

    def counts_of(self, output_ids: Sequence[Sequence[int]]) -> Any:
        """Return the number of pending tokens of each request, int64, as :meth:`newest_of` does.

        Waits for the device only where a result may have several tokens of a request.
        """
        found = self._one_each()
        if found is None:
            return self.newest_of(output_ids)[1]
        return self._places_of(found[0], output_ids) >= 0

    def _one_each(self) -> tuple[Sequence[Any], Any] | None:
        """Return the requests and the result of the only pending step, if each gets one token."""
        results = [*self._results()]
        if len(results) != 1 or _is_verified(*results[0]):
            return None
        ((batch, result),) = results
        return (batch.reqs, result) if len(batch.reqs) == len(result.next_token_ids) else None

    def _places_of(self, reqs: Sequence[Any], output_ids: Sequence[Sequence[int]]) -> Any:
        """Return where each request is among those of a result; -1 for nowhere."""
        known = [*map(id, reqs)]  # no request that was asked for is freed
        if known != self._reqs or output_ids is not self._asked:
            self._reqs, self._asked = known, output_ids
            places = {id(req.output_ids): place for place, req in enumerate(reqs)}
            self._places = np.array([places.get(id(own), -1) for own in output_ids], np.int64)
        return self._places

    def _known(self) -> dict[int, list[int]]:
        if self._tokens is None:
            self._tokens = self._read()
        return self._tokens

    def newest(self) -> Sequence[int]:
        """Return the tokens of every result that is pending, of all requests, in any order.

        Waits for the device if a result is pending. Results with drafts hold rejected tokens too.
        """
        tokens: list[int] = []
        for _, result in self._results():
            if result.copy_done is not None:
                result.copy_done.synchronize()
            tokens += result.next_token_ids.tolist()
        return tokens

    def discards(self, req: Any) -> bool:
        """Tell whether SGLang discards the token that this step samples for a request.

        SGLang samples for every chunk of a prefill, and keeps only the sample of the last chunk.
        The call reads nothing from the device.

        Args:
            req: SGLang's request, or a proxy of it.
        """
        # Chunks that are launched but not processed, in this step and in pending results.
        chunks: int = req.inflight_middle_chunks
        if chunks <= 0:
            return False
        mbs = getattr(self.scheduler, "mbs", None)
        if mbs is not None:  # pipeline ranks: the batches on their way, this step's among them
            return chunks >= _count(req, filter(None, mbs))
        return chunks > _count(req, (batch for batch, _ in self._results()))

    def _results(self) -> Iterator[tuple[Any, Any]]:
        """Yield the batches that SGLang has not processed, with their results, oldest first."""
        # Without overlap no result is pending, and SGLang before 0.5.23 has no such queue.
        if self.scheduler is None or not self.scheduler.enable_overlap:
            return
        for batch, result in self.scheduler.result_queue:
            if result.next_token_ids is not None:  # else the current step, which samples later
                yield batch, result

    def _read(self) -> dict[int, list[int]]:
        tokens: dict[int, list[int]] = {}
        chunks: dict[int, int] = {}
        for batch, result in self._results():
            for req, committed in zip(batch.reqs, _committed(batch, result), strict=True):
                # SGLang drops the results of finished and retracted requests.
                if req.finished() or req.is_retracted:
                    continue
                key = id(req.output_ids)
                left = chunks.get(key, req.inflight_middle_chunks)
                if left > 0:
                    chunks[key] = left - 1
                else:
                    tokens.setdefault(key, []).extend(committed)
        return tokens


def _count(req: Any, batches: Iterable[Any]) -> int:
    """Return how often a request is in batches."""
    key = id(req.output_ids)
    return sum(id(other.output_ids) == key for batch in batches for other in batch.reqs)


def _is_verified(batch: Any, result: Any) -> bool:
    """Tell whether a result may commit several tokens of a request."""
    return result.accept_lens is not None and bool(batch.forward_mode.is_decode())


def _stride_of(result: Any) -> int:
    """Return the tokens of each request in a result of drafts; accepted ones come first."""
    return result.speculative_output_stride or result.speculative_num_draft_tokens  # type: ignore[no-any-return]


def _committed(batch: Any, result: Any) -> Iterator[list[int]]:
    """Yield the tokens that a result commits, request by request."""
    if result.copy_done is not None:
        result.copy_done.synchronize()
    ids: list[int] = result.next_token_ids.tolist()
    if not _is_verified(batch, result):
        yield from ([token_id] for token_id in ids)
        return
    width = _stride_of(result)
    for i, length in enumerate(result.accept_lens.tolist()):
        yield ids[i * width : i * width + length]
