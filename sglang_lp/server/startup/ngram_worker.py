"""The hook on NGRAM's worker class, put in place when SGLang chooses the class.

The module of NGRAM's imports compiled kernels, so a table of hooks that named it would keep every
server of a machine without them from starting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_lp.errors import Unsupported
from sglang_lp.server.scheduler.known_drafts import foresee_trees
from sglang_lp.server.startup.attributes import has_attribute
from sglang_lp.server.startup.signatures import mismatches


def make_choose_worker(names: Sequence[str]) -> Any:
    """Return the hook after SGLang has chosen the class that drafts.

    Args:
        names: What is used of NGRAM's: first the method that returns what it found.
    """

    def choose_worker(worker: Any, algorithm: Any, *_args: Any, **_kwargs: Any) -> Any:
        if not algorithm.is_ngram():
            return worker
        missing = [name for name in names if not has_attribute(worker, name)]
        if missing:
            raise Unsupported(
                "--speculative-algorithm: expected an NGRAM worker that has "
                f"{', '.join(missing)}, which this SGLang's lacks; choose another algorithm"
            )
        find = getattr(worker, names[0])

        def foresee_found(self: Any, batch: Any) -> Any:
            return foresee_trees(find(self, batch), self, batch)

        if differing := [*mismatches(foresee_found, "replace", find, is_method=True)]:
            raise Unsupported(
                f"--speculative-algorithm: expected an NGRAM worker whose {names[0]} takes batch, "
                f"got one that differs in {', '.join(differing)}; choose another algorithm"
            )
        return type(worker.__name__, (worker,), {names[0]: foresee_found})

    return choose_worker
