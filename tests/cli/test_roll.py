"""``sglang-lp roll`` before a router and workers that are played."""

from contextlib import ExitStack
from urllib.parse import unquote, urlsplit

import pytest

from sglang_lp.cli import main, roll
from support.servers.listening import Answered, listening

REFUSED = "custom_logit_processor: expected a class that this server allows, got the class"


class Fleet:
    """A router and its workers."""

    guarded = True
    healthy = True
    lets_go = True
    busy = 2

    def __init__(self):
        self.did = []
        self.keys = []
        self.listed = {}
        self.numbers = {}

    def answer(self, method, path, body):
        return self.route(method, unquote(path.rpartition("/")[2]), body)

    def work(self, worker, path):
        path = path.strip("/").partition("?")[0]
        if path == "v1/loads":
            self.did.append(f"look {worker}")
            self.busy -= 1
            left = max(0, self.busy)
            return 200, {"loads": [{"num_running_reqs": left, "num_waiting_reqs": 0}]}
        if path == "health":
            return 200, {}
        return (400, {"error": REFUSED}) if self.guarded else (200, {"text": "x"})

    def route(self, method, name, body):
        if method == "DELETE":
            self.did.append(f"out {name}")
            if self.lets_go:
                self.listed = {u: w for u, w in self.listed.items() if w["id"] != name}
            return 202, {}
        if method == "POST":
            self.did.append(f"in {self.numbers[body['url']]}")
            self.add(body["url"])
            return 202, {}
        return 200, {"workers": [*self.listed.values()]}

    def add(self, url):
        number = self.numbers.setdefault(url, len(self.numbers))
        self.listed[url] = {"url": url, "id": str(number), "is_healthy": self.healthy}


@pytest.fixture
def rolled(capsys, monkeypatch):
    """Return a function that rolls a fleet and returns the exit code and the output."""
    monkeypatch.setattr(roll, "_PAUSE", 0.01)
    running = ExitStack()

    def play(fleet, *more, restart="true", workers=2):
        def answer(asked):
            return Answered(*fleet.answer(asked.method, asked.path, asked.body))

        def working(number):
            def work(asked):
                fleet.keys.append(asked.headers.get("Authorization"))
                return Answered(*fleet.work(number, asked.path))

            return work

        url = running.enter_context(listening(answer))
        for number in range(workers):
            fleet.add(running.enter_context(listening(working(number))))
        code = main(["roll", "--router", url, "--restart", restart, *more])
        said = capsys.readouterr()
        return code, said.out + said.err

    with running:
        yield play


def changed(**attributes):
    return type("Changed", (Fleet,), attributes)()


def test_each_worker_is_out_and_idle_before_its_restart_and_back_before_the_next(rolled, tmp_path):
    log = tmp_path / "log"
    fleet = Fleet()
    code, said = rolled(fleet, restart=f"sh -c 'echo {{url}} {{host}} {{port}} >> {log}'")

    assert code == 0, said
    steps = [step for step in fleet.did if not step.startswith("look")]
    assert steps == ["out 0", "in 0", "out 1", "in 1"]
    first = fleet.did.index("in 0")
    assert fleet.did[:first].count("look 0") >= 3
    parts = [(url, urlsplit(url)) for url in fleet.listed]
    assert log.read_text().splitlines() == [
        f"{url} {part.hostname} {part.port}" for url, part in parts
    ]
    assert "a payload that a stock server would unpickle is refused" in said


@pytest.mark.parametrize(
    ("fleet", "restart", "why"),
    [
        (Fleet(), "false", "--restart: false ended with exit code 1"),
        (Fleet(), "no-such-program", "--restart: no-such-program does not run"),
        (changed(guarded=False), "true", "so it unpickles what clients send"),
        (changed(lets_go=False), "true", "the router still lists the worker after 0 s"),
        (changed(busy=10**9), "true", "the worker still has requests after 0 s"),
    ],
)
def test_it_ends_at_the_first_thing_that_goes_wrong(rolled, fleet, restart, why):
    code, said = rolled(fleet, "--timeout", "0.1", restart=restart)

    assert code == 1
    assert why in said
    assert "in 0" not in fleet.did
    assert "out 1" not in fleet.did


@pytest.mark.parametrize(
    ("fleet", "workers"), [(Fleet(), 1), (Fleet(), 0), (changed(healthy=False), 3)]
)
def test_the_only_worker_is_not_taken_out(rolled, fleet, workers):
    code, said = rolled(fleet, workers=workers)

    assert code == 2
    assert "expected two healthy workers or more" in said
    assert fleet.did == []


def test_wrong_usage_is_said(rolled):
    assert rolled(Fleet(), restart="'")[0] == 2
    assert rolled(Fleet(), restart="")[0] == 2
    assert main(["roll", "--router", "localhost:30000", "--restart", "true"]) == 2


WORKER = {"url": "http://127.0.0.1:9", "id": "0", "is_healthy": True}


@pytest.mark.parametrize(
    "said",
    [
        b"<html>hello</html>",
        None,
        [],
        {},
        {"workers": "two"},
        {"workers": [WORKER, "http://127.0.0.1:10"]},
        {"workers": [{**WORKER, "is_healthy": "yes"}]},
        {"workers": [{**WORKER, "id": 0}]},
        {"workers": [{name: WORKER[name] for name in ("url", "id")}]},
        {"workers": [{**WORKER, "url": "grpc://127.0.0.1:9"}]},
        *(
            {"workers": [{**WORKER, "url": url}, WORKER]}
            for url in (
                "http://h:1/;touch${IFS}x;",
                "http://h:1/path",
                "http://-oProxyCommand=x:1",
                "http://h;touch x",
                "http://$(touch x):1",
                "http://u:p@h:1",
                "http://h:1\n",
                "http://h:1?x",
                "http://h\u202eh:1",
                "http://[::1%eth0]:1",
            )
        ),
    ],
)
def test_what_is_no_router_of_http_workers_is_told_so(rolled, said):
    code, told = rolled(changed(answer=lambda *_: (200, said)))

    assert code == 2
    assert "--router: expected sglang-router, whose /workers lists its workers" in told


def test_a_worker_that_goes_meanwhile_is_a_failure(rolled):
    class Leaving(Fleet):
        def route(self, method, name, body):
            if method == "DELETE":
                return 404, {"error": f"no worker {name}"}
            return super().route(method, name, body)

    code, said = rolled(Leaving())

    assert code == 1
    failed = "FAILED: the router does not remove the worker"
    assert f"{failed}: HTTP 404: \"{{'error': 'no worker 0'}}\"" in said


def test_an_id_is_no_path(rolled):
    asked = []

    class Odd(Fleet):
        def answer(self, method, path, body):
            asked.append(path)
            return super().answer(method, path, body)

        def add(self, url):
            super().add(url)
            self.listed[url]["id"] = "../admin?x#y"

    rolled(Odd())
    assert "/workers/..%2Fadmin%3Fx%23y" in asked


def test_a_worker_of_another_host_gets_no_key_unless_the_user_says_so(rolled, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    same, other, named = Fleet(), Fleet(), Fleet()
    for fleet in (other, named):
        monkeypatch.setattr(fleet, "add", elsewhere(fleet))

    assert rolled(same)[0] == rolled(other)[0] == rolled(named, "--key-host", "localhost")[0] == 0
    assert {*same.keys} == {*named.keys} == {"Bearer secret"}
    assert {*other.keys} == {None}


def elsewhere(fleet):
    """Return an ``add`` that lists a worker under another name of this machine."""
    add = fleet.add
    return lambda url: add(url.replace("127.0.0.1", "localhost"))


def test_an_answer_without_end_is_not_read(rolled):
    code, said = rolled(changed(answer=lambda *_: (200, b" " * ((4 << 20) + 1))))

    assert code == 2
    assert "/workers: expected an answer of at most 4 MiB" in said
