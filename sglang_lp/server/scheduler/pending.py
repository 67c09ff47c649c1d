"""Tokens that were sampled but that the scheduler has not processed yet.

With overlap scheduling SGLang launches a step before it processes the result of the step before,
so ``req.output_ids`` lacks the newest tokens. They stand in ``scheduler.result_queue``, where
SGLang's own grammars read them too. Reading a result waits
for its copy to the host; the step that was launched meanwhile does not wait for the host.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["PendingResults"]

_NONE: Sequence[int] = ()


class PendingResults:
    """The results that wait in one scheduler, read at most once a step and only when asked for.

    A request is told from others by its own ``output_ids``, because a weak proxy of it, which is
    what a processor's request holds, is equal to nothing else.

    Attributes:
        scheduler: SGLang's ``Scheduler`` of this process, once there is one.
    """

    def __init__(self) -> None:
        self.scheduler: Any = None
        self._tokens: dict[int, list[int]] | None = None

    @property
    def drafts(self) -> bool:
        """Whether a step commits as many tokens of a request as it accepts: speculation."""
        return self.scheduler is None or not self.scheduler.spec_algorithm.is_none()

    @property
    def was_read(self) -> bool:
        """Whether a request of this step asked for them."""
        return self._tokens is not None

    def begin(self) -> None:
        """Forget what was read: a new step begins."""
        self._tokens = None

    def of(self, req: Any) -> Sequence[int]:
        """Return the tokens of a request that follow its ``output_ids``, oldest first.

        Waits for the device if nobody has asked in this step and a result is pending.

        Args:
            req: SGLang's request, or a proxy of it.
        """
        tokens = self._tokens
        if tokens is None:
            tokens = self._tokens = self._read()
        return tokens.get(id(req.output_ids), _NONE)

    def discards(self, req: Any) -> bool:
        """Tell whether SGLang throws away what this step samples for a request.

        It samples for every chunk of a prefill, and keeps the sample of the last one. Nothing is
        read from the device.

        Args:
            req: SGLang's request, or a proxy of it.
        """
        # Chunks that are launched and not processed: of this step and of pending results.
        chunks: int = req.inflight_middle_chunks
        if chunks <= 0:
            return False
        key = id(req.output_ids)
        pending = sum(
            id(other.output_ids) == key for batch, _ in self._results() for other in batch.reqs
        )
        return chunks > pending

    def _results(self) -> Iterator[tuple[Any, Any]]:
        """Yield the batches that wait for being processed and their results, oldest first."""
        # Without overlap nothing waits, and before SGLang 0.5.23 there is no such queue.
        if self.scheduler is None or not self.scheduler.enable_overlap:
            return
        for batch, result in self.scheduler.result_queue:
            if result.next_token_ids is not None:  # else this very step, sampled with a delay
                yield batch, result

    def _read(self) -> dict[int, list[int]]:
        tokens: dict[int, list[int]] = {}
        chunks: dict[int, int] = {}
        for batch, result in self._results():
            for req, committed in zip(batch.reqs, _committed(batch, result), strict=True):
                # SGLang drops the result of these.
                if req.finished() or req.is_retracted:
                    continue
                key = id(req.output_ids)
                left = chunks.get(key, req.inflight_middle_chunks)
                if left > 0:
                    chunks[key] = left - 1
                else:
                    tokens.setdefault(key, []).extend(committed)
        return tokens


def _committed(batch: Any, result: Any) -> Iterator[list[int]]:
    """Yield for each request the tokens that one result commits."""
    if result.copy_done is not None:
        result.copy_done.synchronize()
    ids: list[int] = result.next_token_ids.tolist()
    if result.accept_lens is None or not batch.forward_mode.is_decode():
        yield from ([token_id] for token_id in ids)
        return
    # Rows of one width, each filled as far as it was accepted.
    width = result.speculative_output_stride or result.speculative_num_draft_tokens
    for i, length in enumerate(result.accept_lens.tolist()):
        yield ids[i * width : i * width + length]
