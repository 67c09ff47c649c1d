"""SGLang's HTTP app with everything that the toolkit adds to it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from sglang_lp.server.front.bodies import Bodies
from sglang_lp.server.front.brief_errors import report_briefly
from sglang_lp.server.front.header import add_middleware
from sglang_lp.server.front.listing import add_list
from sglang_lp.server.front.tokenizer import add_tokenizer
from sglang_lp.server.startup.attribute_table import OF_APP
from sglang_lp.server.startup.installation import installed_guard, refuse

if TYPE_CHECKING:
    from sglang_lp.server.gate.guard import Guard


def extend(app: Any, guard: Guard) -> None:
    """Add the headers, the reports and the toolkit's endpoints to SGLang's app; check its bodies.

    Args:
        app: SGLang's app, not yet running: a running app takes no middleware.
        guard: The guard of this process.
    """
    request = getattr(sys.modules[app.router.route_class.__module__], OF_APP, None)
    if request is None:
        refuse(f"SGLang's app parses no body with {OF_APP}, so none would be checked")
    Bodies(guard).watch(request)
    if not report_briefly(app):
        refuse(
            "FastAPI validates no body with _type_adapter, or pydantic-core takes no "
            "_use_prebuilt, so errors of a body have no bound"
        )
    add_middleware(app, guard.fingerprint)
    add_list(app, guard, lambda: installed_guard() is not None)
    add_tokenizer(app, guard)
