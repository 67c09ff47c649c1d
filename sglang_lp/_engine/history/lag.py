"""Histories that lack their newest token: which processors run anyway, and one log line if not."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from sglang_lp.errors import ProcessorFault

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sglang_lp._engine.history.host import Host
    from sglang_lp._engine.turns.turn import Turn

logger = logging.getLogger(__name__)

#: Classes of processors whose missing history was reported. One line each is enough.
_reported: set[type] = set()

_LAGS = (
    "%s cannot see the newest token of its request and leaves such steps unedited. "
    "Any of these gives it the exact history: run the server with the sglang-lp plugin; "
    "set SGLANG_ENABLE_DELAY_SAMPLE=1; start with --disable-overlap-schedule."
)


def tolerates_lag(turns: Iterable[Turn], host: Host) -> bool:
    """Tell whether all turns run without the newest token; the first refusal is logged.

    Raises:
        ProcessorFault: One does not, and the host has no steps with the newest token either.
    """
    for turn in turns:
        if turn.flags.tolerates_lag:
            continue
        if not host.may_lag:
            raise ProcessorFault("the newest token of the request cannot be read on this server")
        processor = turn.processor
        if processor.kind not in _reported:
            _reported.add(processor.kind)
            logger.error(_LAGS, processor.name)
        return False
    return True
