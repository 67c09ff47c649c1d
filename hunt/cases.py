"""Cases: what clients send at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from hunt.dropping import naming
from hunt.requests import requests
from hunt.rids import crossing
from hunt.scripts import scripted
from hunt.values import seldom
from hunt.whole import whole_requests

if TYPE_CHECKING:
    from hunt.sent import Sent
    from hunt.servers import Kind

__all__ = ["TOGETHER", "cases"]

#: Most requests at once: of long answers, and of odd fields, where most are refused or short.
_SEVERAL, TOGETHER = 4, 12


def cases(kind: Kind) -> st.SearchStrategy[list[Sent]]:
    """Draw requests that are sent at once.

    Args:
        kind: Of the server that they are for.
    """
    whole, script = whole_requests(kind), scripted(kind)
    one = st.sampled_from([requests(kind)] * 2 + [script] * 3).flatmap(lambda drawn: drawn)
    several = st.lists(one, min_size=1, max_size=_SEVERAL)
    many = st.lists(seldom(whole, naming(), 8), min_size=_SEVERAL, max_size=TOGETHER)
    return seldom(several | many, crossing(), 30)
