"""Functions that raise on a prefill or decode server, as in ``tests/live/test_injected.py``."""

from __future__ import annotations

import time
from contextlib import ExitStack

import httpx
import pytest

from support.models.tiny_model import make
from support.plugins import PROBES
from support.plugins.injecting import Faults
from support.servers.configurations import POLICY
from support.servers.disaggregated import missing, pair
from tests.live.test_injected import (
    answers,
    calls_of,
    chosen,
    good_answers,
    problems_of_all,
    problems_of_some,
)

pytestmark = [
    pytest.mark.engine,  # after tests/live: functions that raised there raise once only
    pytest.mark.fleet,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]


class Single:
    """A pair that is asked for nothing that pairs do not do.

    SGLang 0.5.23 sends all copies of a request under one room; raw logprobs are refused.
    """

    def __init__(self, both):
        self._both = both
        self.arguments = both.decode.arguments

    def post(self, path, body):
        return self._both.post(path, self._plainer(body))

    def stream(self, path, body):
        return self._both.stream(path, self._plainer(body))

    def _plainer(self, body):
        if "sampling_params" not in body:
            return body
        sampling = {**body["sampling_params"], "n": 1}
        if "custom_params" in sampling:
            given = sampling["custom_params"]
            sampling["custom_params"] = {k: v for k, v in given.items() if k != "raw_logprobs"}
        return {**body, "sampling_params": sampling}


class FaultsOfBoth:
    """Orders to both servers of a pair."""

    def __init__(self, *faults):
        self._faults = faults

    def watch(self):
        for one in self._faults:
            one.watch()

    def calls(self):
        prefill, decode = (one.calls() for one in self._faults)
        return {name: max(prefill.get(name, 0), decode.get(name, 0)) for name in prefill | decode}

    def inject(self, name, after=0):
        for one in self._faults:
            one.inject(name, after)

    def raised(self):
        return sum(one.raised() for one in self._faults)


class Apart:
    """A prefill and a decode server that are started again once one of them has ended."""

    def __init__(self, model, path):
        self._model, self._path, self._starts = model, path, 0
        self._stack = ExitStack()
        self.start()

    def start(self):
        self.close()
        self._starts += 1
        directory = self._path / f"pair {self._starts}"
        directory.mkdir()
        settings = {}, {"SGLANG_LP_POLICY": str(POLICY)}
        running = pair(self._model, directory, settings, settings, paths=[PROBES])
        both = self._stack.enter_context(running)
        self.server = Single(both)
        self._both = both.prefill, both.decode
        self.faults = FaultsOfBoth(*map(Faults, self._both))

    def close(self):
        self._stack.close()

    def log_text(self):
        return "".join(server.log_text() for server in self._both)

    def is_over(self):
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if any(server.process.poll() is not None for server in self._both):
                return True
            time.sleep(0.1)
            try:
                return not all(server.is_healthy() for server in self._both)
            except httpx.HTTPError:
                continue
        return True


@pytest.fixture(scope="module")
def serving(tmp_path_factory):
    apart = Apart(make(tmp_path_factory.mktemp("model")), tmp_path_factory.mktemp("apart"))
    yield apart
    apart.close()


def test_no_answer_is_wrong_and_a_success_whatever_part_of_a_step_raises(serving):
    good = good_answers(serving.server)
    calls = calls_of(serving.server, serving.faults, good)
    names = chosen(calls)
    assert len(names) > 10
    assert problems_of_some(serving.server, serving.faults, names, calls, good) == []
    assert answers(serving.server) == good


@pytest.mark.faults
def test_no_answer_is_wrong_and_a_success_whatever_function_raises(serving):
    found = problems_of_all(serving)
    assert not found, "\n".join(found)
