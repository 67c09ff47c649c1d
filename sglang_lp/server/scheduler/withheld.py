"""Tokens of a finished request that the client does not get."""

from __future__ import annotations

from typing import Any

#: Attributes that hold the masks still to be sent; SGLang 0.5.20 has them and their logprobs apart.
_MASKS = ("sampling_mask_rows", "output_token_sampling_mask", "output_token_sampling_logprobs")


class _NoMasks(list[Any]):
    """Stands in for the sampling masks of a request that are still to be sent.

    The request still counts as asking for masks: SGLang's scheduler crashes if the number of such
    requests differs from the number in the pending result.
    """

    def __init__(self, masks: Any) -> None:
        super().__init__()
        self._none = None if isinstance(masks, list) else type(masks)().take()

    def append(self, *_masks: Any) -> None:
        """Drop the masks of a token."""

    def take(self) -> Any:
        """Return no masks, as SGLang sends them."""
        return self._none


def withhold(req: Any, kept: int) -> None:
    """Withhold the last tokens of a finished request, with their masks and logprobs.

    Args:
        req: SGLang's request.
        kept: Most output tokens that the client gets.
    """
    visible = len(req.output_ids) if req.finished_len is None else req.finished_len
    if kept >= visible:
        return
    req.finished_len = kept
    for name in _MASKS:  # SGLang would send those of all tokens
        masks = getattr(req, name, None)
        if masks is not None and not isinstance(masks, _NoMasks):
            setattr(req, name, _NoMasks(masks))
    if kept == 0:
        req.return_logprob = False  # SGLang always sends the logprob of the first token
