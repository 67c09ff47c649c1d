"""The cost of checking the fields of an ordinary request that names no processor.

``make bench PART=fields`` prints a table and stores it in ``benchmarks/results/fields.json``. 0.3.0
made none of these checks, so each row is a cost that 0.3.0 does not have. Times are processor times
of the thread for one request: medians of rounds in which the checks take turns. A chat gives SGLang
23 sampling parameters; a body of ``/generate`` has the parameters that the client wrote.
"""

from __future__ import annotations

import gc
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from benchmarks.stored import FOLDER, store
from benchmarks.tables import table
from sglang_lp.server.front import routes
from sglang_lp.server.front.families import Families
from sglang_lp.server.front.whole_requests import WholeRequests
from sglang_lp.server.gate.field_checks import check_received
from sglang_lp.server.gate.guard import Guard
from sglang_lp.trust import Policy

ROUNDS, REQUESTS = 61, 200
VOCAB, CONTEXT = 151_936, 32_768
TEXT = "What is two plus three? " * 20
PLAIN: Mapping[str, Any] = {"temperature": 0.7, "top_p": 0.9}
CHAT: dict[str, Any] = {
    "model": "demo",
    "messages": [{"role": "user", "content": TEXT}],
    **PLAIN,
    "max_tokens": 256,
    "stream": True,
}
GENERATE: dict[str, Any] = {
    "text": TEXT,
    "sampling_params": {**PLAIN, "max_new_tokens": 256},
    "stream": True,
}

Case = tuple[Callable[[], Any], Callable[[Any], object]]


class _State:
    """SGLang's state of a request, as far as a family reads it."""


def cases() -> dict[str, Case]:
    """Map the checks to functions that make what is checked, and that check it."""
    from sglang.srt.entrypoints import http_server
    from sglang.srt.entrypoints.openai.protocol import ChatCompletionRequest
    from sglang.srt.managers.io_struct import GenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    states: dict[str, Any] = {}
    manager = SimpleNamespace(
        model_config=SimpleNamespace(vocab_size=VOCAB, context_len=CONTEXT),
        rid_to_state=states,
        tokenizer=None,
    )
    guard = Guard(Policy())
    whole, families = WholeRequests(guard), Families(guard)
    sampling = ChatCompletionRequest(**CHAT).to_sampling_params([], {}, None)
    received = SimpleNamespace(
        sampling_params=SamplingParams(**sampling), logprob=None, origin_input_ids=[1] * 120
    )
    received.sampling_params.normalize(None)

    def chat() -> Any:
        return GenerateReqInput(
            text=TEXT,
            sampling_params={**sampling},
            stream=True,
            return_logprob=False,
            logprob_start_len=-1,
            top_logprobs_num=0,
            return_text_in_logprobs=True,
        )

    def generate() -> Any:
        return GenerateReqInput(**{**GENERATE, "sampling_params": {**GENERATE["sampling_params"]}})

    def follow(obj: Any) -> None:
        families.begin(manager, obj)
        obj.rid, states["a"] = "a", _State()
        families.join(None, manager, obj)
        states.clear()

    def route(name: str, body: Any) -> Case:
        scope = {"endpoint": getattr(http_server, name)}
        return lambda: None, lambda _: routes.check(scope, body)

    return {
        "route, a chat": route("openai_v1_chat_completions", CHAT),
        "route, /generate": route("generate_request", GENERATE),
        "fields, a chat": (chat, lambda obj: whole.check(manager, obj)),
        "fields, /generate": (generate, lambda obj: whole.check(manager, obj)),
        "requests of one client": (generate, follow),
        "fields, in the scheduler": (lambda: None, lambda _: check_received(received, VOCAB)),
    }


def micros(case: Case) -> float:
    """Return the processor time of one check."""
    make, check = case
    made = [make() for _ in range(REQUESTS)]
    began = time.thread_time()
    for one in made:
        check(one)
    return (time.thread_time() - began) / REQUESTS * 1e6


def main() -> int:
    """Measure, print and store."""
    checks = cases()
    rounds: dict[str, list[float]] = {name: [] for name in checks}
    gc.disable()
    for _ in range(ROUNDS):
        for name, case in checks.items():
            rounds[name].append(micros(case))
    gc.enable()
    found = {name: round(statistics.median(times), 2) for name, times in rounds.items()}
    print("\n".join(table(("check", "µs"), ((name, f"{one:.2f}") for name, one in found.items()))))
    shared = sum(one for name, one in found.items() if "chat" not in name and "/g" not in name)
    totals = {
        form: round(shared + found[f"route, {form}"] + found[f"fields, {form}"], 2)
        for form in ("a chat", "/generate")
    }
    print("\n".join(f"{form}: {total:.2f} µs in all" for form, total in totals.items()))
    results = {
        "python": platform.python_version(),
        "sglang": version("sglang"),
        "check_us": found,
        "all_us": totals,
    }
    store(results, FOLDER / "fields.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
