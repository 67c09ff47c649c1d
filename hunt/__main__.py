"""Look for requests that break a promise: ``python -m hunt``.

Servers are searched one by one; the next server starts meanwhile, so that two run at a time. Every
fault is made small, asked again, and written to ``hunt-failures`` as a script that reproduces it.
The exit code is 1 if anything was found. A seed draws the same cases in the same order for a kind
of server; how many of them are asked depends on the time, and the schedule of a server is its own.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import NamedTuple

from hunt.drawn import NAME, drawn
from hunt.memory import resident
from hunt.rules import INVARIANTS, prepare
from hunt.searching import Search, Seen, told
from hunt.servers import KINDS, Kind
from hunt.serving import Served
from support.processes import EngineError

#: Takes the scripts.
FAILURES = Path("hunt-failures")
MINUTES = 10.0
#: Rounds of a search before memory is measured; caches fill in this time.
_WARM = 1
#: Bytes that a server may keep after a search.
_MOST_GROWN = 200 << 20


class Given(NamedTuple):
    """The command line.

    Attributes:
        minutes: Of the whole search.
        seed: Of its cases.
        invariants: Names of the rules to judge by; all without any.
        kinds: Of the servers.
    """

    minutes: float
    seed: int
    invariants: Sequence[str]
    kinds: Sequence[Kind]


def _read() -> Given:
    parser = argparse.ArgumentParser(description="Look for requests that break a promise.")
    parser.add_argument("--minutes", type=float, default=MINUTES, help="in all (%(default)s)")
    parser.add_argument("--seed", type=int, help="of the cases; a new one if left out")
    parser.add_argument(
        "--only-invariant",
        nargs="+",
        default=(),
        choices=[*INVARIANTS],
        help="the rules to judge by",
    )
    parser.add_argument("--server", nargs="+", choices=[*KINDS, NAME], help="kinds of servers")
    given = parser.parse_args()
    seed = random.randrange(1_000_000) if given.seed is None else given.seed
    kinds = [KINDS.get(name) or drawn(seed) for name in given.server or [*KINDS, NAME]]
    return Given(given.minutes, seed, given.only_invariant, kinds)


def main() -> int:
    """Search and report; return the exit code."""
    given = _read()
    _say(f"--seed {given.seed} --minutes {given.minutes:g}")
    seen, grown = Seen(), dict[str, int]()
    deadline = time.monotonic() + given.minutes * 60
    with (
        tempfile.TemporaryDirectory() as folder,
        closing(_servers(given.kinds, Path(folder))) as servers,
    ):
        for place, served in enumerate(servers):
            kind = served.kind
            share = (deadline - time.monotonic()) / (len(given.kinds) - place)
            if share <= 0:
                _say(f"no time for {kind.name} and those after it")
                break
            _say(f"{kind.name}: {share:.0f} s")
            grown[kind.name] = _hunt(served, seen, share, given)
    _show(seen, grown)
    is_grown = any(one > _MOST_GROWN for one in grown.values())
    return 1 if seen.findings or is_grown else 0


def _servers(kinds: Sequence[Kind], folder: Path) -> Generator[Served, None, None]:
    """Yield the servers in turn, each running; the next server starts meanwhile."""
    with ThreadPoolExecutor(1) as starter:
        following = starter.submit(Served, kinds[0], folder)
        try:
            prepare()
            for place in range(len(kinds)):
                with following.result() as served:
                    if place + 1 < len(kinds):
                        following = starter.submit(Served, kinds[place + 1], folder)
                    yield served
        finally:  # a second close does nothing
            with suppress(EngineError):
                following.result().close()


def _hunt(served: Served, seen: Seen, seconds: float, given: Given) -> int:
    """Search on one server, and return by how many bytes it grew; none if it was started again."""
    search = Search(served, seen, given.seed, FAILURES, given.invariants, _say)
    begin = time.monotonic()
    search.run(seconds, rounds=_WARM)
    starts, before = served.starts, resident(served.client.server)
    search.run(begin + seconds - time.monotonic())
    return resident(served.client.server) - before if served.starts == starts else 0


def _say(text: str) -> None:
    print(text, flush=True)


def _show(seen: Seen, grown: dict[str, int]) -> None:
    requests = sum(seen.requests.get("server", {}).values())
    refused = sum(seen.refused.get("server", {}).values())
    print(f"\n{sum(seen.cases.values())} cases, {requests} requests, {refused} refused")
    for by, counts in seen.requests.items():
        print(f"{by:<60} {'requests':>9} {'refused':>9}")
        for key, count in counts.most_common():
            print(f"  {key:<58} {count:>9} {seen.refused[by][key] / count:>9.0%}")
    for name, more in grown.items():
        is_much = ", which is too much" if more > _MOST_GROWN else ""
        print(f"memory of {name}: {more / 2**20:+.0f} MiB{is_much}")
    for signature, finding in seen.findings.items():
        print(f"{told(finding)}\n    seen {1 + seen.again[signature]} times")
    print(f"{len(seen.findings)} faults found" if seen.findings else "nothing found")


if __name__ == "__main__":
    sys.exit(main())
