"""The audit trail: one structured line for each refusal, at a bounded rate, and counters."""

from __future__ import annotations

import hashlib
import logging
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from enum import StrEnum
from typing import NamedTuple

import msgspec
import orjson

from sglang_lp.errors import (
    InvalidParameter,
    PolicyError,
    RefusalReason,
    RequestError,
    Unsupported,
)

__all__ = ["Asking", "Audit", "Gate", "Limits", "asking", "safe_id"]

logger = logging.getLogger("sglang_lp.audit")


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that refusals may cost.

    Attributes:
        logged_refusals_per_minute: Refusals beyond this many are counted, not logged.
    """

    logged_refusals_per_minute: int = 60

    def __post_init__(self) -> None:
        if self.logged_refusals_per_minute < 1:
            raise PolicyError(
                "logged_refusals_per_minute: expected 1 or more, "
                f"got {self.logged_refusals_per_minute}"
            )


class Asking(NamedTuple):
    """The request that a gate checks, as far as a line may name it.

    Attributes:
        endpoint: Its route, such as ``/generate``; ``None`` outside of HTTP.
        rid: Its id, as :func:`safe_id` returns it.
    """

    endpoint: str | None = None
    rid: str | None = None


_UNKNOWN = Asking()
#: The request that this context checks.
asking: ContextVar[Asking] = ContextVar("sglang_lp_asking", default=_UNKNOWN)

#: The reasons of refusals. A class may raise an error with a code of its own.
_REASONS = {*RefusalReason, RequestError.code, InvalidParameter.code, Unsupported.code}
#: Ids that SGLang makes. A client may send an id of its own.
_OWN_ID = re.compile(r"(resp_|chatcmpl-|cmpl-)?[0-9a-f]{32}")
#: The place of a link, before the name of its parameter.
_PLACE = re.compile(r"\A[0-9]{1,2}\.")


class Gate(StrEnum):
    """The check that refused a request."""

    #: In the HTTP process, before the request is queued.
    ADMISSION = "admission"
    #: In the scheduler process, for requests that did not come through the HTTP process.
    SCHEDULER = "scheduler"


class Audit:
    """Counts every refusal of one process and logs them at a bounded rate.

    A line is a JSON object without any text of the client:

    - ``event``: ``"refused"``.
    - ``gate``: Stable code of the gate.
    - ``reason``: ``code`` of the error; that of :class:`RequestError` for an unknown code.
    - ``endpoint``, ``rid``: Route and id of the request, see :class:`Asking`.
    - ``processor``, ``parameter``: Names of what does not fit; null if nothing, or if a client
      made up the name.
    - ``digest``: SHA-256 of the decoded pickle, null if nothing was decoded.
    - ``size``: Characters of the payload.
    - ``count``: Refusals at this gate for this reason since the process began.
    - ``suppressed``: Refusals since the previous line that were counted but not logged.

    Args:
        lines_per_minute: Rate at which lines are logged, and the number logged at once.
        clock: Seconds, monotonic.
        names: Processors and parameters that a line may name.

    Attributes:
        counts: Refusals since the process began, by gate and reason.
    """

    def __init__(
        self,
        lines_per_minute: int,
        clock: Callable[[], float] = time.monotonic,
        *,
        names: frozenset[str] = frozenset(),
    ) -> None:
        self._names = names
        self._burst = float(lines_per_minute)
        self._clock = clock
        self._tokens = self._burst
        self._filled_at = clock()
        self._suppressed = 0
        self.counts: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def refused(self, gate: Gate, error: RequestError) -> None:
        """Count one refusal, and log it unless the rate is exceeded.

        Args:
            gate: The check that refused.
            error: The refusal that the client gets.
        """
        reason = self.reason_of(error)
        with self._lock:
            self.counts[gate.value, reason] += 1
            count = self.counts[gate.value, reason]
            now = self._clock()
            self._tokens = min(
                self._burst, self._tokens + (now - self._filled_at) * self._burst / 60
            )
            self._filled_at = now
            if self._tokens < 1:
                self._suppressed += 1
                return
            self._tokens -= 1
            suppressed, self._suppressed = self._suppressed, 0
        line = {
            "event": "refused",
            "gate": gate.value,
            "reason": reason,
            "endpoint": asking.get().endpoint,
            "rid": asking.get().rid,
            "processor": self.processor_of(error),
            "parameter": self._known(getattr(error, "parameter", None)),
            "digest": getattr(error, "digest", None),
            "size": getattr(error, "size", None),
            "count": count,
            "suppressed": suppressed,
        }
        logger.warning("%s", orjson.dumps(line).decode())

    def reason_of(self, error: RequestError) -> str:
        """Return the reason of a refusal: one of a fixed set."""
        return error.code if error.code in _REASONS else RequestError.code

    def processor_of(self, error: RequestError) -> str | None:
        """Return the processor that a refusal is about, if it is one that the operator knows."""
        return self._known(getattr(error, "processor", None))

    def _known(self, name: str | None) -> str | None:
        return name if name is not None and _PLACE.sub("", name) in self._names else None


def safe_id(rid: object) -> str | None:
    """Return the id of a request for the log: SGLang's own, or a digest of a client's.

    Args:
        rid: SGLang's; ``None`` if the request has none yet.

    Returns:
        The id that SGLang made; of any other text ``sha256:`` and 16 hex digits; else ``None``.
    """
    if not isinstance(rid, str) or not rid:
        return None
    if _OWN_ID.fullmatch(rid):
        return rid
    return f"sha256:{hashlib.sha256(rid.encode(errors='surrogatepass')).hexdigest()[:16]}"
