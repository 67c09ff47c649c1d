"""A search goes on when a case ends its server, and makes that case small with few starts."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("sglang.srt")

from hunt.answers import Reply
from hunt.asking import Asked
from hunt.deaths import cause
from hunt.routes import routes
from hunt.searching import Search, Seen
from hunt.servers import KINDS

pytestmark = pytest.mark.slow

ALONE = Reply(200, events=[{"text": "a", "output_ids": [64], "meta_info": {}}])
LOG = """[2026-11-27 16:00:00] Scheduler hit an exception: Traceback (most recent call last):
  File "/x/scheduler.py", line 5, in run
    step()
  File "/x/sampler.py", line 7, in sample
    raise RuntimeError("probability tensor contains nan")
RuntimeError: probability tensor contains nan
"""
DEADLY = "temperature"


class Mortal:
    """A server that ends when a request has one odd field, unless it lives."""

    def __init__(self, folder, *, lives=False):
        self.kind, self.starts, self.asked, self.lives = KINDS["plain"], 1, [], lives
        log = folder / "server.log"
        log.write_text(LOG)
        self.client = SimpleNamespace(
            canaries=[{}], ask=self.ask, server=SimpleNamespace(log=log, record=folder)
        )

    def ask(self, case, canary):
        self.asked.append(case)
        is_alive = self.lives or not any(DEADLY in sent.oddities for sent in case)
        replies = [Reply(400, events=[{"error": {"message": "no"}}]) for _ in case]
        lives = {"is_alive": is_alive}
        return Asked(case, replies, (canary, ALONE), ALONE, **lives)

    def restart(self):
        self.starts += 1


def test_a_case_that_ends_the_server_is_made_small_with_few_starts_and_not_drawn_again(tmp_path):
    routes()  # its import is not in the time of the search
    served, seen = Mortal(tmp_path), Seen()

    Search(served, seen, 1, tmp_path, ["server_lives"], say=lambda _: None).run(most=120)

    ((rule, sort, odd), finding), *others = seen.findings.items()
    assert (rule, sort, odd) == ("server_lives", "RuntimeError in sampler.py sample", {DEADLY})
    assert others == []
    assert finding.is_sure
    assert DEADLY in finding.script.read_text()
    assert served.starts <= 7
    last = max(at for at, case in enumerate(served.asked) if any(DEADLY in one.odd for one in case))
    assert last < len(served.asked) - 20  # it goes on without that field


def test_a_seed_draws_the_same_cases_in_the_same_order(tmp_path):
    routes()
    whole, parts, other = (Mortal(tmp_path, lives=True) for _ in range(3))

    for served, seed, most in ((whole, 1, 42), (other, 2, 12)):
        Search(served, Seen(), seed, tmp_path, ["copies_are_equal"]).run(most=most)
    search = Search(parts, Seen(), 1, tmp_path, ["copies_are_equal"])
    search.run(rounds=1)
    search.run(most=42)

    def texts(served):
        return [[(sent.path, sent.text) for sent in case] for case in served.asked]

    assert len(whole.asked) == 42
    assert texts(parts) == texts(whole)
    assert texts(other) != texts(whole)[:12]


def test_the_cause_of_an_end_is_the_exception_and_the_function_that_raised_it(tmp_path):
    log = tmp_path / "server.log"
    log.write_text(LOG)

    assert cause(log) == "RuntimeError in sampler.py sample"
