"""Coverage-guided fuzzing of the verifier: accepted if and only if in the table, never a crash.

A part of ``make test SUITE=trust``. It starts from every construction of
``support/constructions.py``, runs for a bounded time, and stops at the first input that breaks a
rule, which it leaves in ``.cache/fuzz``. Further arguments are libFuzzer's:
``-max_total_time=3600``, or a file to replay.
"""

from __future__ import annotations

import contextlib
import json
import pickle
import sys
from collections.abc import Iterator

import atheris

with atheris.instrument_imports(include=["sglang_lp.wire", "sglang_lp.trust"]):
    from sglang_lp import builtins, wire
    from sglang_lp.errors import PayloadRefused
    from sglang_lp.trust import Policy, Verifier
    from sglang_lp.trust.verifier import MAX_CHARS
    from support import constructions
    from support.settings import ROOT

SECONDS = 120
#: Longest message that a refusal may have.
MAX_MESSAGE = 600
CACHE = ROOT / ".cache" / "fuzz"
VERIFIER = Verifier(Policy.default())
#: Built by pickle itself and not by the code under test.
PICKLES = {
    pickle.dumps(getattr(builtins, name), protocol): getattr(builtins, name)
    for name in builtins.__all__
    for protocol in range(6)
}
NAMES = {
    text: getattr(builtins, name)
    for name in builtins.__all__
    for text in (name, f"{builtins.__name__}:{name}")
}
for _name in constructions.STOCK_NAMES:
    _upgraded = getattr(builtins, _name)
    NAMES[f"{constructions.STOCK}:{_name}"] = _upgraded
    PICKLES |= dict.fromkeys(wire.references(constructions.STOCK, _name), _upgraded)

_events: list[str] = []
_armed = False


def _hook(event: str, _arguments: object) -> None:
    if _armed:
        _events.append(event)


def expected(text: str) -> type | None:
    """Return the class of a text, found with JSON and hex only."""
    if text in NAMES:
        return NAMES[text]
    try:
        # Not orjson, which drops a key that comes twice.
        ((key, value),) = json.loads(text, object_pairs_hook=list)
        pickled = bytes.fromhex(value)
    except (ValueError, TypeError, RecursionError):
        return None
    if key == "callable" and f'"{pickled.hex()}"' in text and '"callable"' in text:
        return PICKLES.get(pickled)
    return None


def check_text(text: str) -> None:
    """Check every rule on one payload."""
    global _armed  # noqa: PLW0603 - an audit hook has no other way to know
    found = None
    message = ""
    _armed = True
    try:
        found = VERIFIER.lookup(text)
    except PayloadRefused as error:
        message = str(error)
    finally:
        _armed = False
    if _events:
        raise RuntimeError(f"audit events: {_events}")
    if not message.isascii() or not (found or message.isprintable()) or len(message) > MAX_MESSAGE:
        raise RuntimeError("a message that is not safe to show")
    if (found.processor if found else None) is not (
        expected(text) if len(text) <= MAX_CHARS else None
    ):
        raise RuntimeError("accepted, but not in the table, or the other way round")
    if found and VERIFIER.lookup(found.payload) is not found:
        raise RuntimeError("the canonical text is for another class")


def one_input(data: bytes) -> None:
    """Try one input as a text, and as a pickle in a well-formed text."""
    check_text(data.decode("utf-8", "surrogateescape"))
    check_text(wire.encode(data))
    wire.describe(data)
    wire.opcodes(data)


def seeds() -> Iterator[bytes]:
    """Yield the first inputs: constructions as text and as pickles, and allowed pickles."""
    yield from PICKLES
    for _, payload in constructions.everything():
        if isinstance(payload, str) and len(payload) <= 2 * MAX_CHARS:
            yield payload.encode("utf-8", "surrogateescape" if payload.isascii() else "replace")
            with contextlib.suppress(PayloadRefused):
                yield wire.decode(payload, len(payload))


def main() -> None:
    """Fuzz within bounds, or replay the files that are given."""
    corpus = CACHE / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for seed in seeds():
        (corpus / wire.digest(seed)).write_bytes(seed)
    sys.addaudithook(_hook)
    given = sys.argv[1:] or [f"-max_total_time={SECONDS}"]
    replay = any(not argument.startswith("-") for argument in given)
    bounds = ["-max_len=2048", "-timeout=5", f"-artifact_prefix={CACHE}/", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *bounds, *given, *([] if replay else [str(corpus)])], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
