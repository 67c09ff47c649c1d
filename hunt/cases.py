"""Cases: what clients send at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from hunt.dropping import naming
from hunt.requests import TOGETHER, requests
from hunt.rids import crossing
from hunt.scripts import scripted
from hunt.values import seldom
from hunt.whole import whole_requests

if TYPE_CHECKING:
    from hunt.sent import Sent
    from hunt.servers import Kind

__all__ = ["cases"]


def cases(kind: Kind) -> st.SearchStrategy[list[Sent]]:
    """Draw requests that are sent at once.

    Args:
        kind: Of the server that they are for.
    """
    of_one = (whole_requests(kind), whole_requests(kind), scripted(kind), scripted(kind))
    alone = st.one_of(*of_one, naming()).map(lambda sent: [sent])
    several = st.lists(requests(kind), min_size=1, max_size=TOGETHER)
    return seldom(st.one_of(several, alone, alone), crossing(), 25)
