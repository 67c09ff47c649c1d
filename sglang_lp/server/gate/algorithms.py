"""SGLang's algorithms for speculative decoding: with which processors are exact, and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from sglang_lp.errors import Unsupported
from sglang_lp.request import History

if TYPE_CHECKING:
    from sglang_lp.processor import LogitProcessor

__all__ = ["ALGORITHMS", "Speculation"]

#: Name -> why processors are refused, or ``None`` where they are exact at every drafted token.
#: Read in SGLang 0.5.20 to 0.5.23; the tests run NGRAM, STANDALONE, EAGLE and EAGLE3.
ALGORITHMS: Mapping[str, str | None] = {
    "EAGLE": None,  # also with several layers (--enable-multi-layer-eagle)
    "EAGLE3": None,
    "NEXTN": None,  # SGLang's other name for EAGLE
    "FROZEN_KV_MTP": None,  # what EAGLE becomes with Gemma 4's drafts; verified as EAGLE is
    "STANDALONE": None,
    "NGRAM": None,
    # Both apply processors before penalties and grammars, and accept in kernels of their own.
    "DFLASH": "its verify step does not show which tokens were drafted",
    "DSPARK": "its verify step does not show which tokens were drafted",
    "UNO": "SGLang itself refuses custom logit processors with it",
}
#: Of those refused, the ones that call processors once for all drafted tokens of a request. One
#: whose edits are the same at every step is exact with them.
_FIXED_EDITS = frozenset({"DFLASH", "DSPARK"})
_UNKNOWN = "this version of sglang-lp does not know it"


class Speculation(NamedTuple):
    """What a server's speculative decoding means for processors.

    Attributes:
        algorithm: Its name, in upper case.
        lossy: Which of SGLang's options makes sampled tokens follow another distribution than the
            model's, or ``None``.
    """

    algorithm: str
    lossy: str | None

    @classmethod
    def of(cls, server_args: Any) -> Self | None:
        """Return that of a server, or ``None`` if it has none.

        Args:
            server_args: SGLang's ``ServerArgs``, resolved.
        """
        if server_args.speculative_algorithm is None:
            return None
        lossy = None
        for option in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
            value = getattr(server_args, option, 1.0)
            if value != 1.0:
                lossy = f"--{option.replace('_', '-')} {value}"
        return cls(str(server_args.speculative_algorithm).upper(), lossy)

    def check(self, name: str, processor: LogitProcessor, *, sampled: bool) -> None:
        """Refuse a processor that could not be exact.

        Args:
            name: Its name, for the message.
            processor: Serves the request.
            sampled: Whether the request's tokens are sampled, not the most likely ones.

        Raises:
            Unsupported: With the reason.
        """
        why = ALGORITHMS.get(self.algorithm, _UNKNOWN)
        fixed = processor.needs is History.NONE
        if fixed and self.algorithm in _FIXED_EDITS:
            return
        if why is None and processor.dense:
            why = "it computes on whole rows, without a view of the drafted tokens"
        elif why is None and not fixed and not processor.can_fork:
            why = "its state cannot be forked, which following a draft takes (can_fork)"
        elif why is None and self.lossy is not None and sampled:
            why = (
                f"it was started with {self.lossy}, which accepts drafted tokens that the edited "
                "distribution does not give; expected 1.0, or a request with temperature 0"
            )
        if why is not None:
            raise Unsupported(
                "custom_logit_processor: expected one that is exact with this server's speculative "
                f"decoding ({self.algorithm}), got {name}: {why}; send the request to a server "
                "without it"
            )
