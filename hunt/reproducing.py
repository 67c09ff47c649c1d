"""Writes a failing case as a script that needs httpx and a server, and nothing of this project."""

from __future__ import annotations

import json
import pprint
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from hunt.servers import command_of

if TYPE_CHECKING:
    from hunt.rules import Violation
    from hunt.sent import Sent
    from hunt.servers import Kind

__all__ = ["Failing", "write"]

_SCRIPT = '''"""{rule}

Seen: {seen}

Start a server in a checkout, in another terminal, and give its URL to this script:

    {command}

Found by: python -m hunt --seed {seed} --server {server}
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

JSON = {{"content-type": "application/json"}}
URL = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:30000"
#: Path, JSON, the number of events after which the client hangs up, and seconds to wait first.
REQUESTS = {requests}
#: Asked alone, and again next to the requests: both answers are to be the same.
CANARY = {canary}


def ask(request):
    path, body, leave_after, wait = request
    time.sleep(wait)
    lines = []
    with httpx.stream(
        "POST", URL + path, content=body, headers=JSON, timeout=120, trust_env=False
    ) as reply:
        lines.append(f"{{path}}: HTTP {{reply.status_code}} {{reply.headers.get('x-sglang-lp')}}")
        for line in reply.iter_lines():
            if line:
                lines.append(line)
            if leave_after is not None and len(lines) > leave_after:
                break
    return "\\n".join(lines)


if CANARY:
    print("the canary alone:", ask(CANARY), sep="\\n")
with ThreadPoolExecutor() as pool:
    for answer in pool.map(ask, REQUESTS + ([CANARY] if CANARY else [])):
        print(answer)
'''


class Failing(NamedTuple):
    """A case that fails.

    Attributes:
        violation: What it shows.
        rule: The invariant in words.
        sent: Its requests.
        canary: Body of the canary that got another answer; ``None`` for the other rules.
    """

    violation: Violation
    rule: str
    sent: Sequence[Sent]
    canary: Mapping[str, Any] | None


def write(directory: Path, kind: Kind, failing: Failing, seed: int) -> Path:
    """Write the script and return where it is.

    Args:
        directory: Takes it.
        kind: Of the server.
        failing: What is to be seen.
        seed: Of the search.
    """
    violation, rule, case, canary = failing
    directory.mkdir(parents=True, exist_ok=True)
    odd = sorted({name for sent in case for name in sent.oddities})
    told = " ".join([violation.invariant, *odd, violation.sort])
    name = re.sub(r"\W+", "-", told.lower()).strip("-")
    requests = [(sent.path, sent.text, sent.leave_after, sent.wait) for sent in case]
    text = _SCRIPT.format(
        rule=rule.replace("\\", "\\\\"),
        seen=json.dumps(violation.text)[1:-1].replace('"""', "'''"),
        command=shlex.join(command_of(kind)).replace("\\", "\\\\"),
        seed=seed,
        server=kind.name,
        requests=pprint.pformat(requests, width=98, sort_dicts=False),
        canary=pprint.pformat(
            canary and ("/generate", json.dumps(canary), None, 0.0), width=98, sort_dicts=False
        ),
    )
    path = directory / f"{name[:80]}.py"
    path.write_text(text)
    return path
