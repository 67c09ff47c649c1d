"""SGLang's speculative decoding algorithms, and which of them keep processors exact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sglang_lp.errors import Unsupported
from sglang_lp.request import History

if TYPE_CHECKING:
    from sglang_lp.links import Serving

#: Name -> why processors are refused, or ``None`` where they are exact at every drafted token.
#: Read in SGLang 0.5.20 to 0.5.23; the tests run NGRAM, STANDALONE, EAGLE, EAGLE3, DFLASH and
#: DSPARK.
ALGORITHMS: Mapping[str, str | None] = {
    "EAGLE": None,  # also with several layers (--enable-multi-layer-eagle)
    "EAGLE3": None,
    "NEXTN": None,  # SGLang's other name for EAGLE
    "FROZEN_KV_MTP": None,  # what EAGLE becomes with Gemma 4's drafts; verified as EAGLE is
    "STANDALONE": None,
    "NGRAM": None,
    "DFLASH": None,  # also with a selector, LiLiCorr or Domino: they draft, and accept as it does
    "DSPARK": None,
    "UNO": "SGLang itself refuses custom logit processors with it",
}
#: Algorithms that ignore SGLang's acceptance thresholds.
_WITHOUT_THRESHOLDS = frozenset({"DSPARK"})
_UNKNOWN = "this version of sglang-lp does not know it"


class Speculation(NamedTuple):
    """The speculative decoding of a server, and the processors that stay exact with it.

    Attributes:
        algorithm: Name of the algorithm, in upper case.
        lossy: The SGLang option that changes the distribution of sampled tokens, or ``None``.
        simulated: Whether drafts are accepted without regard to the logits, for a benchmark.
    """

    algorithm: str
    lossy: str | None = None
    simulated: bool = False

    @classmethod
    def of(cls, server_args: Any) -> Self | None:
        """Return the speculative decoding of a server, or ``None`` if it has none.

        Args:
            server_args: SGLang's ``ServerArgs``, resolved.
        """
        if server_args.speculative_algorithm is None:
            return None
        algorithm, lossy = str(server_args.speculative_algorithm).upper(), None
        thresholds = {
            "single": getattr(server_args, "speculative_accept_threshold_single", 1.0),
            "acc": getattr(server_args, "speculative_accept_threshold_acc", 1.0),
        }
        for name, value in thresholds.items():
            if value != 1.0 and algorithm not in _WITHOUT_THRESHOLDS:
                lossy = f"--speculative-accept-threshold-{name} {value}"
        from sglang.srt.environ import envs  # not above: only where drafts are verified

        return cls(algorithm, lossy, simulated=envs.SGLANG_SIMULATE_ACC_LEN.get() > 0)

    @property
    def is_exact(self) -> bool:
        """Whether a processor that can be forked is exact, whatever else its request asks for."""
        known = ALGORITHMS.get(self.algorithm, _UNKNOWN) is None
        return known and not self.simulated and self.lossy is None

    def check(self, name: str, link: Serving, *, sampled: bool) -> None:
        """Refuse a processor that could not be exact.

        Args:
            name: Name of the processor that the request asks for, for the message.
            link: Serves the request.
            sampled: Whether the request's tokens are sampled, not the most likely ones.

        Raises:
            Unsupported: With the reason.
        """
        why = self.obstacle(link, sampled=sampled)
        if why is not None:
            raise Unsupported(
                "custom_logit_processor: expected one that is exact with this server's speculative "
                f"decoding ({self.algorithm}), got {name}: {why}; send the request to a server "
                "without it"
            )

    def obstacle(self, link: Serving, *, sampled: bool) -> str | None:
        """Return why a processor could not be exact, or ``None``.

        Args:
            link: Serves a request.
            sampled: Whether the request's tokens are sampled.
        """
        why = ALGORITHMS.get(self.algorithm, _UNKNOWN)
        processor, fixed = link.flags, link.in_row.needs is History.NONE
        if why is None and self.simulated:
            why = "it was started with SGLANG_SIMULATE_ACC_LEN, which accepts drafted tokens unseen"
        elif why is None and processor.reads_request:
            why = "it computes on whole rows, without a view of the drafted tokens"
        elif why is None and not fixed and not processor.can_fork:
            why = "its state cannot be forked, which following a draft takes (can_fork)"
        elif why is None and self.lossy is not None and sampled:
            why = (
                f"it was started with {self.lossy}, which accepts drafted tokens that the edited "
                "distribution does not give; expected 1.0, or a request with temperature 0"
            )
        return why
