"""The mark of one row at one step: the scheme, the context that seeds it, and the sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from sglang_lp.watermark.detection import Detection

__all__ = ["Mark", "Sampling", "Scheme", "Send"]


class Send(Protocol):
    """Copies numbers of the host to a device, without a wait."""

    def __call__(self, numbers: torch.Tensor, device: torch.device, /) -> torch.Tensor:
        """Return the numbers on the device."""


class Sampling(NamedTuple):
    """The sampling parameters of a request, as SGLang applies them after the edits.

    Attributes:
        temperature: Divisor of the logits, above 0.
        top_k: Most tokens that may be sampled. 1 is a greedy answer.
        top_p: Probability of the likeliest tokens that may be sampled.
        min_p: Least probability of a token, as a share of the largest.
    """

    temperature: float = 1.0
    top_k: int = 1 << 30
    top_p: float = 1.0
    min_p: float = 0.0

    @classmethod
    def of(cls, sampling: Any) -> Sampling:
        """Return the parameters of SGLang's ``SamplingParams``, or the defaults for ``None``."""
        defaults = cls()
        given: dict[str, Any] = {
            name: getattr(sampling, name, default) for name, default in defaults._asdict().items()
        }
        if given["top_k"] < 1:  # -1 is the whole vocabulary until SGLang normalizes it
            given["top_k"] = defaults.top_k
        if given["temperature"] <= 0:
            return cls(top_k=1)
        return cls(**given)


class Scheme(Protocol):
    """A watermark with its key: what it does to rows of logits, and how it is found in tokens.

    Its ``repr`` and its errors never contain the key.

    Attributes:
        name: Name of the scheme in key files.
        context_size: Number of tokens that seed a mark; the first tokens of an answer have none.
        window: Number of steps in which a context that comes again is left unmarked, 0 for none.
        biases: Whether greedy answers are marked as well, because the scheme adds to logits.
        candidates: Number of largest logits that :meth:`green` judges on the host; 0 if the device
            marks whole rows.
        bias: Added to the logits of green tokens after the temperature.
        digest: Differs between keys; only for processes of one server, because a short key could
            be found from it.
    """

    name: str
    context_size: int
    window: int
    biases: bool
    candidates: int
    bias: float
    digest: str

    def green(self, context: Sequence[int], token_ids: Sequence[int], vocab_size: int) -> list[int]:
        """Select the tokens that are green after a context."""

    def pack(
        self, rows: Sequence[int], marks: Sequence[Mark], logits: torch.Tensor, send: Send
    ) -> Any:
        """Return the numbers that the device needs to mark rows: one dimension, int64, on the host.

        Args:
            rows: Rows of the logits, each once.
            marks: The mark of each.
            logits: Shape ``(any, vocab)``, for their device.
            send: Copies what the device lacks of the scheme.
        """

    def apply(self, logits: torch.Tensor, numbers: torch.Tensor, count: int) -> None:
        """Mark rows in place, with a fixed number of operations and no wait.

        Args:
            logits: Shape ``(any, vocab)``, any float dtype, with all other edits applied.
            numbers: Result of :meth:`pack`, on the device of the logits.
            count: Number of rows.
        """

    def marks(self, vocab_size: int) -> bool:
        """Tell whether the key marks the answers of a model with so many logits at all."""

    def detect(self, token_ids: Sequence[int], vocab_size: int | None) -> Detection:
        """Test whether tokens carry the watermark."""


class Mark(NamedTuple):
    """The mark of one row at one step.

    Attributes:
        scheme: The scheme, with its key.
        context: The tokens that seed it, oldest first, ``scheme.context_size`` of them.
        sampling: The sampling parameters of the request.
    """

    scheme: Scheme
    context: tuple[int, ...]
    sampling: Sampling
