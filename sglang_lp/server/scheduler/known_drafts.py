"""Known drafts: the tokens that processors will force replace drafted tokens.

A draft model predicts the unedited target, so its drafts are wrong while a processor forces tokens.
The host knows the forced tokens by position, from the newest history that it has seen; the device
knows the positions of the drafts. So the host sends the tokens to the device, which writes them
over the drafts before the verify step, and neither waits for the other. Known tokens are verified
like all drafts: a wrong one costs only its place in the draft.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang_lp._engine.apply.device import send
from sglang_lp._engine.history.attached import rows_of
from sglang_lp._engine.history.foreseen import foreseen
from sglang_lp.edits import NEVER
from sglang_lp.faults import from_signal
from sglang_lp.server.scheduler.endings import end_request
from sglang_lp.server.scheduler.speculation import has_processors

if TYPE_CHECKING:
    import numpy as np
    import torch

    from sglang_lp._engine.history.row import Row

logger = logging.getLogger(__name__)


class KnownDrafts(NamedTuple):
    """Known tokens of the drafts of a batch, on the device.

    Attributes:
        token_ids: Known tokens, shape ``(requests, drafted)``.
        places: Mask of the positions that have a known token, of the same shape.
    """

    token_ids: torch.Tensor
    places: torch.Tensor

    def put(self, drafts: torch.Tensor) -> None:
        """Write the known tokens over drafts of the same shape, in place."""
        drafts.copy_(self.token_ids.to(drafts.dtype).where(self.places, drafts))

    def make_certain(self, probabilities: torch.Tensor) -> None:
        """Set the draft probability of known tokens to 1, and of all others there to 0, in place.

        Args:
            probabilities: Shape ``(requests, drafted, vocab)``.
        """
        self._replace_rows(probabilities, 0.0, 1.0)

    def make_certain_logits(self, logits: torch.Tensor) -> None:
        """Apply :meth:`make_certain` to logits instead of probabilities."""
        self._replace_rows(logits, float("-inf"), 0.0)

    def make_drawn(
        self, candidates: torch.Tensor, probabilities: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return candidates and probabilities in which known tokens have the probability 1.

        Args:
            candidates: Token ids, shape ``(requests, drafted, candidates)``.
            probabilities: Probabilities of the candidates, of the same shape.
        """
        places = self.places[:, :, None]
        known = self.token_ids[:, :, None].to(candidates.dtype)
        return known.where(places, candidates), probabilities.masked_fill(places, 1.0)

    def _replace_rows(self, rows: torch.Tensor, others: float, own: float) -> None:
        chosen = self.token_ids.clamp(min=0)[:, :, None]
        before = rows.gather(2, chosen)
        rows.masked_fill_(self.places[:, :, None], others)
        rows.scatter_(2, chosen, before.masked_fill(self.places[:, :, None], own))


def foresee(batch: Any, drafted: int) -> KnownDrafts | None:
    """Return the known tokens of a batch's drafts; ``None``, and no kernel, if there are none.

    Exception: requests with a grammar keep their drafts, which the grammar has already followed.

    Args:
        batch: SGLang's ``ScheduleBatch``.
        drafted: Number of drafted tokens in each chain, without the newest token.
    """
    try:
        return _known(batch, drafted) if has_processors(batch) else None
    except Exception:
        logger.exception("sglang-lp: a step drafts what the draft model says")
        return None


def _known(batch: Any, drafted: int) -> KnownDrafts | None:
    # The host has not seen the newest step, so drafts may begin up to a whole chain later.
    reach = 2 * drafted + 1
    forced = _forced(batch, reach)
    if not forced:
        return None
    import torch

    windows = [[0, *[-1] * reach] for _ in batch.reqs]
    for index, (begin, known) in forced.items():
        windows[index] = [begin, *known, *[-1] * (reach - len(known))]
    lengths = batch.seq_lens
    sent = send(torch.tensor(windows), lengths.device)
    # seq_lens excludes the newest token and so is its position; drafts follow it.
    at = lengths[:, None] - sent[:, :1] + torch.arange(1, drafted + 1, device=lengths.device)
    inside = (at >= 0) & (at < reach)
    token_ids = sent[:, 1:].gather(1, at.clamp(0, reach - 1))
    return KnownDrafts(token_ids, inside & (token_ids >= 0))


def _forced(batch: Any, count: int) -> dict[int, tuple[int, Sequence[int]]]:
    """Map request index to (position of the first known token, known tokens)."""
    info = batch.sampling_info
    found: dict[int, tuple[int, Sequence[int]]] = {}
    for index, row in enumerate(rows_of(info.custom_params)):
        if row is None or not row.leaves_one or batch.reqs[index].grammar is not None:
            continue
        begin = len(row.prompt_ids) + row.position
        forced = _ask(row, count, info.vocab_size)
        if forced:
            found[index] = begin, forced
    return found


def _ask(row: Row, count: int, vocab_size: int) -> Sequence[int]:
    """Ask a processor for the tokens that it will force; if it fails, end its request."""
    try:
        return foreseen(row, count, vocab_size)
    except BaseException as error:
        if from_signal(error):
            raise
        row.wake = NEVER
        end_request(row.source, row.fault(error))
        return ()


def foresee_block(proposal: Any, batch: Any) -> Any:
    """Write known tokens into the block that DSPARK proposes, and return it."""
    block = proposal.draft_block
    known = foresee(batch, block.draft_tokens.shape[1])
    if known is None:
        return proposal
    known.put(block.draft_tokens)
    verified = getattr(proposal, "verify_ids", None)
    if verified is not None:
        known.put(verified[:, 1:])
    if proposal.confidence is not None:  # keeps known tokens in the verified part
        proposal.confidence.masked_fill_(known.places, 1.0)
    drawn_from = block.corrected_logits
    if drawn_from is not None and not batch.sampling_info.is_all_greedy:
        known.make_certain_logits(drawn_from)
    return proposal


def foresee_chain(  # noqa: PLR0913, PLR0917 - SGLang's signature
    batch: Any,
    draft_input: Any,
    parent_list: Any,
    top_scores_index: Any,
    draft_tokens: torch.Tensor,
    draft_probs: torch.Tensor | None,
    *,
    topk: int,
    num_steps: int,
    num_draft_tokens: int,
    **given: Any,
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Write known tokens into a chain of an EAGLE-like draft model; trees are not changed."""
    if topk != 1 or num_draft_tokens != num_steps + 1:
        return None
    known = foresee(batch, num_steps)
    if known is None:
        return None
    draft_tokens = draft_tokens.clone()  # may be an output buffer of a captured graph
    known.put(draft_tokens)
    if draft_probs is not None:
        known.make_certain(draft_probs)
    drafted = draft_input, parent_list, top_scores_index, draft_tokens, draft_probs
    counts = {"topk": topk, "num_steps": num_steps, "num_draft_tokens": num_draft_tokens}
    return (batch, *drafted), {**counts, **given}


def foresee_trees(
    trees: tuple[np.ndarray, np.ndarray], worker: Any, batch: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Turn NGRAM's tree of each request with known next tokens into a chain of these tokens.

    Nodes after the known tokens keep their own tokens. All of this runs on the host, because NGRAM
    has already waited for the newest step.
    """
    try:
        return _rewritten(trees, worker, batch) if has_processors(batch) else trees
    except Exception:
        logger.exception("sglang-lp: a step drafts what was found in the text")
        return trees


def _rewritten(
    trees: tuple[np.ndarray, np.ndarray], worker: Any, batch: Any
) -> tuple[np.ndarray, np.ndarray]:
    width: int = worker.draft_token_num
    forced = _forced(batch, 2 * width)
    if not forced:
        return trees
    import numpy as np

    # Flat arrays: the nodes of all requests, and for each node a mask of its ancestors.
    token_ids, above = (part.copy() for part in trees)
    for index, (begin, tokens) in forced.items():
        req = batch.reqs[index]
        drafted = len(req.origin_input_ids) + len(req.output_ids) + worker.prev_accept_lens[index]
        known = tokens[drafted - begin :][: width - 1] if drafted >= begin else ()
        if known:
            node = index * width + 1
            token_ids[node : node + len(known)] = known
            above.reshape(-1, width, width)[index] = np.tri(width)
    return token_ids, above
