"""SGLang's HTTP app with everything that the toolkit adds to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sglang_lp.server.front.header import add_middleware
from sglang_lp.server.front.listing import add_list
from sglang_lp.server.front.tokenizer import add_tokenizer
from sglang_lp.server.startup.installation import installed_guard

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Guard


def extend(app: Any, guard: Guard) -> None:
    """Add the headers, the reports and the toolkit's endpoints to SGLang's app.

    Args:
        app: SGLang's app, not yet running: a running app takes no middleware.
        guard: The guard of this process.
    """
    add_middleware(app, guard.fingerprint)
    add_list(app, guard, lambda: installed_guard() is not None)
    add_tokenizer(app, guard)
