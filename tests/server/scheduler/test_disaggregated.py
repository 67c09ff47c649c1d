"""The messages between a prefill and a decode server, with SGLang's own classes where possible.

On two real servers: tests/fleet/test_disaggregation.py.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from array import array
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from types import SimpleNamespace

import pytest

from sglang_lp._engine.history.arrivals import ask_again
from sglang_lp._engine.history.attached import attach_row
from sglang_lp.builtins import BadWordsLogitProcessor, ForcedSequenceLogitProcessor
from sglang_lp.edits import End
from sglang_lp.errors import Contradiction, ProcessorFault, RequestError
from sglang_lp.links import Serving
from sglang_lp.server.front.placeholders import sending_placeholder
from sglang_lp.server.gate.coded import Coded
from sglang_lp.server.gate.reserved_keys import REFUSAL, check_origin
from sglang_lp.server.scheduler import disaggregated
from sglang_lp.server.scheduler.disaggregated import (
    Peers,
    note_first,
    resume,
    retire,
    say_why,
    tell_when_bootstrapped,
    turn_away,
)
from sglang_lp.server.scheduler.endings import update_finish_state
from sglang_lp.server.scheduler.reasons import error_reason
from sglang_lp.server.scheduler.sglang_host import StockHost
from sglang_lp.testing import FakeRequest, Played
from support.catalogues import served_items, serving
from support.processors.recording import Finishes


class Manager:
    """SGLang's transfers: what was told and recorded."""

    def __init__(self):
        self.told, self.recorded, self.prefill_info_table = [], {}, {}

    def conclude_failure(self, *, bootstrap_room, failure_reason):
        assert self.kv_status_msg_carries_reason
        self.told.append((bootstrap_room, failure_reason))

    def record_failure(self, room, reason):
        self.recorded[room] = reason


def request(reason=None, *, pending=False, manager=None):
    req = SimpleNamespace(
        to_finish=reason,
        finished_reason=None,
        pending_bootstrap=pending,
        bootstrap_room=7,
        disagg_kv_sender=SimpleNamespace(kv_mgr=manager or Manager()),
    )

    def update_finish_state():
        req.finished_reason, req.to_finish = req.to_finish, None

    req.update_finish_state = update_finish_state
    return req


def test_an_error_at_the_first_token_is_told_before_the_request_is_released():
    manager = Manager()
    error = Contradiction("no token is left")
    req = request(error_reason(error), manager=manager)

    def original(scheduler, released):
        assert manager.told == [(7, f"sglang-lp {Coded.of(error).text}")]
        return "released"

    assert retire(original, "scheduler", req) == "released"


def test_a_decode_server_that_does_not_listen_yet_is_told_once_it_does():
    manager = Manager()
    error = ProcessorFault("why", "Own")
    req = request(error_reason(error), pending=True, manager=manager)
    scheduler = SimpleNamespace(disagg_prefill_inflight_queue=[])

    assert retire(None, scheduler, req) is False
    assert scheduler.disagg_prefill_inflight_queue == [req]
    assert manager.told == []
    assert tell_when_bootstrapped(lambda *_: False, scheduler, req, "poll") is False
    assert manager.told == []
    # It says that nothing can be sent.
    assert tell_when_bootstrapped(lambda *_: True, scheduler, req, "poll") is False
    assert manager.told == [(7, f"sglang-lp {Coded.of(error).text}")]


def test_what_sglang_ends_is_left_to_it():
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    manager = Manager()
    for reason in (None, FINISH_ABORT("a client left", HTTPStatus.INTERNAL_SERVER_ERROR)):
        assert retire(lambda *_: "its own", None, request(reason, manager=manager)) == "its own"
    assert tell_when_bootstrapped(lambda *_: True, None, request(), "poll") is True
    assert manager.told == []


@pytest.mark.parametrize(
    ("by_client", "status", "kind"),
    [
        (True, HTTPStatus.BAD_REQUEST, "BadRequestError"),
        (False, HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError"),
    ],
)
def test_the_client_gets_the_error_as_the_prefill_server_gave_it(by_client, status, kind):
    error = Coded("two\nlines [not_run x]", "malformed", "n", by_client)
    ended = []

    def original(req, message, status=None):
        ended.append((message, status))

    req = SimpleNamespace(rid='mine: sglang-lp ["a","b"]', finished_reason=None)
    wrapped = "Decode transfer failed for req.rid='{}' with exception {}"
    say_why(
        original,
        req,
        wrapped.format(req.rid, f"KVTransferError(bootstrap_room=7): sglang-lp {error.text}"),
        HTTPStatus.INTERNAL_SERVER_ERROR,
    )
    assert ended == [(error.message, status)]
    assert req.finished_reason.err_type == kind
    assert Coded.of_reason(req.finished_reason.to_json()) == error


@pytest.mark.parametrize("why", ["it is dead", "sglang-lp [", 'sglang-lp ["a"]'])
def test_a_failed_transfer_that_tells_no_error_of_ours_is_left_to_sglang(why):
    ended = []
    message = f"KVTransferError(bootstrap_room=7): {why}"
    say_why(lambda *said: ended.append(said), "req", message, HTTPStatus.BAD_GATEWAY)
    assert ended == [("req", message, HTTPStatus.BAD_GATEWAY)]


# Who guards the prefill server


@pytest.fixture
def bootstrap(sglang, guard, monkeypatch):
    """Start SGLang's own bootstrap server, guarded or not; returns its address."""
    from sglang.srt.disaggregation.common.conn import CommonKVBootstrapServer as Server

    from support.processes import free_port

    started = []

    def start(guarded_by):
        original = Server._setup_routes

        def routes(server):
            original(server)
            if guarded_by is not None:
                Peers(guarded_by).answer(None, server)

        monkeypatch.setattr(Server, "_setup_routes", routes)
        monkeypatch.setattr(Server, "_is_ready", lambda _self: True)
        port = free_port()
        started.append(Server("127.0.0.1", port))
        return f"127.0.0.1:{port}"

    yield start
    for server in started:
        server.close()


def met(manager, address, guard):
    """Let a decode server meet a prefill server; tells whether that answered."""

    def original(manager, address):
        manager.prefill_info_table.setdefault(address, SimpleNamespace())
        return True

    return Peers(guard).ask(original, manager, address)


def meet(manager, address, guard):
    """Do so as often as it takes."""
    for _ in range(50):
        if met(manager, address, guard):
            return
        time.sleep(0.1)
    raise AssertionError("it does not answer")


class Receiver:
    def __init__(self, manager, address):
        self.kv_mgr, self.bootstrap_addr, self.bootstrap_room = manager, address, 7
        self.bootstrap_infos, self.aborted, self.notified = ["info"], 0, 0

    def abort(self):
        self.aborted += 1
        self.kv_mgr.record_failure(self.bootstrap_room, "Aborted by AbortReq.")

    def _send_abort_notification(self):
        self.notified += 1


def test_a_prefill_server_without_the_guard_gets_no_request(bootstrap, guard, monkeypatch, caplog):
    monkeypatch.setattr(disaggregated, "_GRACE", 0.0)
    manager, address = Manager(), bootstrap(None)
    meet(manager, address, guard)
    receiver = Receiver(manager, address)
    turn_away(None, receiver, 0)

    why = f"the prefill server at {address} does not run sglang-lp"
    assert manager.recorded[7].startswith(f'sglang-lp ["{why}')
    assert receiver.aborted == 1
    assert why in caplog.text


def test_a_guarded_prefill_server_is_asked_once(bootstrap, guard, caplog):
    manager, address = Manager(), bootstrap(guard)
    meet(manager, address, guard)
    receiver = Receiver(manager, address)
    turn_away(None, receiver, 0)

    assert (receiver.aborted, manager.recorded) == (0, {})
    assert "another policy" not in caplog.text
    Peers(None).ask(lambda *_: True, manager, address)  # known already: no request is sent


def test_another_policy_is_said_and_served(bootstrap, guard, caplog):
    manager = Manager()
    address = bootstrap(SimpleNamespace(fingerprint="another"))
    meet(manager, address, guard)
    receiver = Receiver(manager, address)
    turn_away(None, receiver, 0)

    assert receiver.aborted == 0
    assert "has another policy than this decode server" in caplog.text


def test_a_prefill_server_that_does_not_answer_is_asked_again(guard):
    manager = Manager()

    assert met(manager, "127.0.0.1:9", guard) is False
    assert manager.prefill_info_table == {}


@contextmanager
def saying(*pieces, pause=0.0):
    """Answer one request with exactly these bytes; yields the address."""

    def serve():
        connection, _ = server.accept()
        with connection, suppress(OSError):  # it hung up
            connection.recv(65536)
            for piece in pieces:
                connection.sendall(piece)
                time.sleep(pause)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        thread.join()


OK = b"HTTP/1.0 200 OK\r\n\r\n"


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"{",
        b"[]",
        b"5",
        b'"policy"',
        b"null",
        b"{}",
        b'{"policy": null}',
        b'{"policy": ["a"]}',
        b"[" * 1000,
        b"\xff\xfe",
        b'{"policy": "' + b"a" * 10**6 + b'"}',
    ],
)
def test_an_answer_that_names_no_policy_is_that_of_an_unguarded_server(guard, said):
    manager = Manager()
    with saying(OK + said) as address:
        assert met(manager, address, guard)
        receiver = Receiver(manager, address)
        turn_away(None, receiver, 0)

    assert manager.recorded[7].startswith('sglang-lp ["the prefill server at')


def test_no_redirect_is_followed(guard):
    manager = Manager()
    with (
        saying(OK + b'{"policy": "x"}') as other,
        saying(b"HTTP/1.0 302 Found\r\nLocation: http://%b/\r\n\r\n" % other.encode()) as address,
    ):
        assert met(manager, address, guard)
        receiver = Receiver(manager, address)
        turn_away(None, receiver, 0)
        socket.create_connection(other.split(":")).close()  # it still waits for its request

    assert receiver.aborted == 1


@pytest.mark.parametrize(
    ("pieces", "pause"),
    [
        ([b"nonsense\r\n\r\n"], 0),
        ([b"HTTP/1.0 200 OK\r\nContent-Length: 99\r\n\r\n{"], 0),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], 0),
        ([b"HTTP/1.0 200 OK\r\nContent-Encoding: gzip\r\n\r\n{}{}"], 0),
        ([b""], 0.5),
        ([OK, *[b" "] * 20], 0.05),  # never silent for long
        ([b"HTTP/1.0 200 OK\r\n", *[b"X: y\r\n"] * 20], 0.05),  # nor with its headers
    ],
)
def test_half_an_answer_is_none_and_nobody_waits_for_the_rest(guard, monkeypatch, pieces, pause):
    monkeypatch.setattr(disaggregated, "_SECONDS", 0.2)
    manager = Manager()
    with saying(*pieces, pause=pause) as address:
        began = time.monotonic()
        assert met(manager, address, guard) is False
        assert time.monotonic() - began < 0.5

    assert manager.prefill_info_table == {}


def test_what_sglang_failed_itself_is_left_to_it(guard):
    manager = Manager()
    with saying(OK) as address:
        met(manager, address, guard)
    receiver = Receiver(manager, address)
    receiver.bootstrap_infos = None
    turn_away(None, receiver, 0)
    del receiver.bootstrap_infos  # which SGLang's own class sets last
    turn_away(None, receiver, 0)

    assert receiver.aborted == 0


def test_many_that_are_turned_away_take_one_thread(guard, monkeypatch):
    monkeypatch.setattr(disaggregated, "_GRACE", 0.1)
    manager = Manager()
    told = []
    with saying(OK) as address:
        met(manager, address, guard)
    before = threading.active_count()
    for number in range(200):
        receiver = Receiver(manager, address)
        receiver._send_abort_notification = partial(told.append, number)
        turn_away(None, receiver, 0)

    assert threading.active_count() <= before + 1
    deadline = time.monotonic() + 10
    while len(told) < 200 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert told == [*range(200)]


def test_an_address_is_told_without_what_a_log_would_take_for_a_line(guard, caplog):
    manager = Manager()
    assert met(manager, "h\nWARNING forged \x1b[2J:1", guard) is False

    assert not [one for one in caplog.messages if "\n" in one or "\x1b" in one]


# The first token, on the decode server


def test_the_first_token_is_asked_for_again_and_the_processor_starts_again():
    played = Played(ForcedSequenceLogitProcessor, {"token_ids": [5, 6]}, [1], vocab_size=100)
    row = played.row
    row.start()

    assert ask_again(row, 100) is None
    assert (row.edit_log.edited.spans, row.edit_log.forced.spans) == ([[0, 1]], [[0, 1]])

    # What holds for good is said at the first look, and has to be heard by the next step.
    words = Played(BadWordsLogitProcessor, {"token_ids": [5], "lengths": [1]}, [1], vocab_size=100)
    words.row.start()
    ask_again(words.row, 100)
    words.source.append(9)
    import torch

    from sglang_lp._engine.batch import Batch
    from sglang_lp.testing import step

    logits = torch.zeros(1, 100)
    logits[0, 5] = 9
    assert step(Batch(), lambda _tokens: logits.clone(), [words]) != [5]


def test_an_item_that_the_prefill_server_began_goes_on_on_the_decode_server():
    import torch

    from sglang_lp._engine.batch import Batch

    items = [tokens for _, tokens, _ in served_items()]
    first, size = items[9][0], 1024
    played = Played(serving(), {"catalogue": "items"}, [1], vocab_size=size)
    played.row.start()
    assert ask_again(played.row, size) is None
    played.source.append(first)

    logits = torch.zeros(1, size)
    Batch().step(logits, [played.row], [played.custom_params])

    left = logits[0].isfinite().nonzero().view(-1).tolist()
    assert left == sorted({tokens[1] for tokens in items if tokens[0] == first})


class AfterOne(Finishes):
    """Ends a request depending on its prompt, and counts how often it is asked."""

    asked = 0

    def start(self, request):
        return [*request.prompt_ids] == [1]

    def edit(self, request, edits):
        type(self).asked += 1
        if request.state:
            super().edit(request, edits)


def test_who_was_not_started_yet_is_started_to_be_asked():
    played = Played(AfterOne, {"at": 0}, [1], vocab_size=100)

    assert ask_again(played.row, 100) == End("enough", "stop")


def test_a_processor_that_asks_for_the_logits_is_left_alone():
    class Asks(ForcedSequenceLogitProcessor):
        def edit(self, request, edits):
            request.top(1)

    played = Played(Asks, {"token_ids": [5]}, [1], vocab_size=100)
    played.row.start()

    assert ask_again(played.row, 100) is None
    assert played.row.edit_log.edited.spans == []


def test_the_first_token_of_a_resumed_answer_is_asked_for_where_it_is():
    request = FakeRequest([1, 7, 8])
    custom_params = request.custom_params({})
    host = StockHost(request, may_lag=False)
    host.resumed = 2
    params = ForcedSequenceLogitProcessor.parse_params({"token_ids": [7, 8, 9]})
    row = attach_row(custom_params, [Serving(ForcedSequenceLogitProcessor(), params)], host)

    assert ask_again(row, 100) is None
    assert row.edit_log.report(2, 1)["forced_at"] == [[0, 1]]


def test_an_end_at_the_first_token_is_made_there():
    played = Played(AfterOne, {"at": 0}, [1], vocab_size=100)
    played.row.start()
    AfterOne.asked = 0
    req = SimpleNamespace(
        output_ids=array("q", [9]),
        finished_reason=None,
        finished_len=None,
        to_finish=None,
        sampling_params=SimpleNamespace(custom_params=played.custom_params),
    )
    req.finished = lambda: req.finished_reason is not None
    note_first(None, "queue", SimpleNamespace(req=req))
    resume(req, 100)
    resume(req, 100)  # it may wait for room in the batch, and is asked once
    assert AfterOne.asked == 1
    update_finish_state(lambda *_: None, req)

    assert (req.finished_reason.to_json(), req.finished_len) == (
        {"type": "stop", "matched": "enough"},
        1,
    )


# Refusals


@pytest.mark.parametrize("mode", ["prefill", "decode"])
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RequestError("no"), Coded("no", "invalid_request", by_client=True)),
        (ValueError('["no"]'), Coded('["no"]', "invalid_request")),
    ],
    ids=["ours", "SGLang's"],
)
def test_a_refused_request_is_stood_in_for_at_the_same_place(mode, error, told):
    from sglang.srt.managers.io_struct import GenerateReqInput

    sent = []

    async def generate_request(obj):
        obj.normalize_batch_and_arguments()
        sent.append(obj)
        yield {}

    manager = SimpleNamespace(
        server_args=SimpleNamespace(disaggregation_mode=mode), generate_request=generate_request
    )
    obj = GenerateReqInput(
        input_ids=[[5, 6], [7]],
        sampling_params={"n": 2, "max_new_tokens": 50},
        bootstrap_host="h",
        bootstrap_port=1,
        bootstrap_room=[10, 20],
    )

    async def refuse():
        with pytest.raises(type(error), match="no"), sending_placeholder(manager, obj):
            raise error
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    asyncio.run(refuse())
    assert sorted(one.bootstrap_room for one in sent) == [10, 10, 20, 20]
    for one in sent:
        assert (one.bootstrap_host, one.bootstrap_port) == ("h", 1)
        assert one.sampling_params["max_new_tokens"] == 1
        assert one.custom_logit_processor is None
        given = one.sampling_params.get("custom_params")
        if mode == "prefill":
            check_origin(given)
            assert given == {REFUSAL: told.text}
        else:
            assert given is None
            assert [*one.input_ids] in ([5, 6], [7])


def test_nobody_waits_for_a_server_of_its_own():
    manager = SimpleNamespace(server_args=SimpleNamespace(disaggregation_mode="null"))
    for obj in (SimpleNamespace(bootstrap_room=1), SimpleNamespace(), None):
        with pytest.raises(RequestError), sending_placeholder(manager, obj):
            raise RequestError("no")


@pytest.mark.parametrize(
    "fields",
    [
        {"bootstrap_room": "seven"},
        {"bootstrap_room": [7, 8, 9]},
        {"bootstrap_host": ["only one"], "bootstrap_room": [7, 8]},
        {"text": ["a", "b"], "input_ids": [[1], [2]], "input_embeds": [[[0.5]], [[0.5]]]},
        {"rid": ["same", "same"]},
    ],
)
def test_a_refusal_stays_what_it_is_where_nothing_can_stand_in(fields):
    from sglang.srt.managers.io_struct import GenerateReqInput

    async def generate_request(_obj):
        yield {}

    manager = SimpleNamespace(
        server_args=SimpleNamespace(disaggregation_mode="decode"),
        generate_request=generate_request,
    )
    obj = GenerateReqInput(**{"text": ["a", "b"], "bootstrap_room": 7, **fields})

    async def refuse():
        with pytest.raises(RequestError, match="no"), sending_placeholder(manager, obj):
            raise RequestError("no")

    asyncio.run(refuse())
