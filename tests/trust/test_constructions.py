"""Every construction is refused, leaves no trace, and gets an answer that is safe to show."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_lp.errors import PayloadRefused
from sglang_lp.trust import Policy, Verifier
from support import constructions

ROOT = Path(__file__).parents[2]
EVERYTHING = [pytest.param(payload, id=name) for name, payload in constructions.everything()]


@pytest.fixture(scope="module")
def verifier():
    return Verifier(Policy.default())


@pytest.mark.parametrize("payload", EVERYTHING)
def test_it_is_refused_with_a_message_that_is_safe_to_show(verifier, payload):
    with pytest.raises(PayloadRefused) as caught:
        verifier.lookup(payload)
    message = str(caught.value)

    assert message.isascii()
    assert message.isprintable()
    assert len(message) < 600
    # No part of the pickle, and no allowed name that the client did not send.
    if isinstance(payload, str) and payload.startswith("{"):
        assert payload[14:46] not in message or len(payload) < 46
    for name in ("ForcedSequence", "Inkling", "Glm4Moe", "DeepSeekR1"):
        assert name not in message


#: Runs in a process of its own: an audit hook cannot be taken away again.
TRIPWIRES = """
import copyreg, json, sys
from support import constructions
from sglang_lp import builtins
from sglang_lp.trust import Policy, Verifier

verifier = Verifier(Policy.default())
payloads = list(constructions.everything())
copyreg.add_extension("os", "system", 1)
copyreg._extension_cache[1] = print  # warm: the unpicklers skip find_class
classes = [getattr(builtins, name) for name in builtins.__all__]

tripped, armed = [], False
def hook(event, arguments):
    if armed and not event.startswith(("object.__getattr__", "sys._getframe")):
        tripped.append([current, event])
sys.addaudithook(hook)

def state():
    bases = {base for cls in classes for base in cls.__mro__}
    main = [name for name in vars(sys.modules["__main__"])]
    return (
        [(base, dict(vars(base))) for base in sorted(bases, key=repr)],
        sorted(sys.modules),
        sorted(main),
        dict(copyreg._extension_cache),
        dict(copyreg._extension_registry),
        dict(copyreg.dispatch_table),
        dict(vars(builtins)),
    )

if sys.argv[1] == "unpickle":  # this one executes nothing, it only rewrites a class
    payloads = [pair for pair in payloads if pair[0] == "04_build-slot-state-needs"]
current = payload = before = after = None
before = state()
for current, payload in payloads:
    armed = True
    try:
        if sys.argv[1] == "verify":
            verifier.lookup(payload)
        else:
            import dill
            dill.loads(bytes.fromhex(json.loads(payload)["callable"]))
    except Exception:
        pass
    finally:
        armed = False
after = state()
print(json.dumps({"tripped": tripped, "same": before == after, "tried": len(payloads)}))
"""


def watched(what):
    made = subprocess.run(
        [sys.executable, "-c", TRIPWIRES, what],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return json.loads(made.stdout)


def test_no_refusal_imports_opens_executes_or_changes_anything():
    seen = watched("verify")

    assert seen["tripped"] == []
    assert seen["same"]
    assert seen["tried"] == len(EVERYTHING)


def test_the_tripwires_trip_when_a_construction_is_unpickled():
    seen = watched("unpickle")

    assert seen["tripped"] == [["04_build-slot-state-needs", "pickle.find_class"]]
    assert not seen["same"]
