"""Pending tokens: sampled, but not yet processed by the scheduler.

With overlap scheduling SGLang launches a step before it processes the result of the step before,
so ``req.output_ids`` lacks the newest tokens. They are in ``scheduler.result_queue``, from which
SGLang's grammars read them as well. Reading a result waits for its copy to the host; the step that
was launched meanwhile does not wait for the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

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

    @property
    def drafts(self) -> bool:
        """Whether a step may commit several tokens of a request: speculative decoding."""
        return self.scheduler is None or not self.scheduler.spec_algorithm.is_none()

    @property
    def was_read(self) -> bool:
        """Whether the pending results were read in this step."""
        return self._tokens is not None

    def begin(self) -> None:
        """Begin a new step: forget the results that were read."""
        self._tokens = None

    def of(self, req: Any) -> Sequence[int]:
        """Return the tokens of a request that follow its ``output_ids``, oldest first.

        The first call of a step waits for the device if a result is pending.

        Args:
            req: SGLang's request, or a proxy of it.
        """
        tokens = self._tokens
        if tokens is None:
            tokens = self._tokens = self._read()
        return tokens.get(id(req.output_ids), _NONE)

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


def _committed(batch: Any, result: Any) -> Iterator[list[int]]:
    """Yield the tokens that a result commits, request by request."""
    if result.copy_done is not None:
        result.copy_done.synchronize()
    ids: list[int] = result.next_token_ids.tolist()
    if result.accept_lens is None or not batch.forward_mode.is_decode():
        yield from ([token_id] for token_id in ids)
        return
    # All rows have the same width; accepted tokens come first in each.
    width = result.speculative_output_stride or result.speculative_num_draft_tokens
    for i, length in enumerate(result.accept_lens.tolist()):
        yield ids[i * width : i * width + length]
