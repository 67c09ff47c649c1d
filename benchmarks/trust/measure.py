"""Costs of the trust boundary, next to SGLang's own deserializer; no hostile payload passes.

``make bench PART=trust`` prints a table, stores it in ``benchmarks/results/trust.json``,
and exits with 1 if anything was accepted, executed or imported that should not be. Times are
medians of rounds in which the two sides take turns, so that load on the machine meets both.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dill
from sglang.srt.sampling import custom_logit_processor as stock

from benchmarks.machine import machine
from benchmarks.stored import FOLDER, store
from sglang_lp import builtins, wire
from sglang_lp.errors import PayloadRefused, RefusalReason
from sglang_lp.trust import Audit, Gate, Policy, Verifier
from support import constructions

SEED = 20_260_903
MUTATIONS = 1_000_000
REFUSED = 1_000_000
SPELLINGS = 100_000
ROUNDS = 31

VERIFIER = Verifier(Policy.default())
GOOD = builtins.DisallowedTokensLogitsProcessor
STOCK = stock.DisallowedTokensLogitsProcessor

#: Audit events seen while a payload was being verified.
_events: list[str] = []
_armed = False


def _hook(event: str, _arguments: Any) -> None:
    if _armed:
        _events.append(event)


def accepted(payload: object) -> bool:
    """Verify under the tripwire."""
    global _armed  # noqa: PLW0603 - an audit hook has no other way to know
    _armed = True
    try:
        VERIFIER.lookup(payload)  # type: ignore[arg-type]
    except PayloadRefused:
        return False
    finally:
        _armed = False
    return True


def mutated(random_: random.Random, texts: list[str]) -> str:
    """Change a valid payload: in its pickle, in its hex, or in the JSON around it."""
    text = random_.choice(texts)
    for _ in range(random_.choice((1, 1, 1, 2, 3, 5))):
        at = random_.randrange(len(text) + 1)
        match random_.randrange(6):
            case 0:
                text = text[:at] + text[at + random_.randrange(1, 5) :]
            case 1:
                text = text[:at] + random_.choice(' \n\t0123456789abcdefA{}":,\\u') + text[at:]
            case 2:
                text = text[:at] + chr(random_.randrange(0x250)) + text[at + 1 :]
            case 3:
                other = random_.choice(texts)
                text = text[:at] + other[random_.randrange(len(other)) :]
            case 4:  # one bit of one byte of the pickle
                at = 14 + (at // 2) * 2
                pair = text[at : at + 2]
                with contextlib.suppress(ValueError):
                    byte = int(pair, 16) ^ 1 << random_.randrange(8)
                    text = f"{text[:at]}{byte:02x}{text[at + 2 :]}"
            case 5:
                upto = min(len(text), at + random_.randrange(1, 20))
                text = text[:upto] + text[at:]
    return text


def in_table(text: str, pickles: set[bytes], names: set[str]) -> bool:
    """Tell by JSON and hex, independently of the verifier, whether a text is allowed."""
    if text in names:
        return True
    try:
        # Not orjson, which drops a key that comes twice.
        pairs = json.loads(text, object_pairs_hook=list)
        ((key, value),) = pairs
        pickled = bytes.fromhex(value)
    except (ValueError, TypeError, RecursionError):
        return False
    plain = f'"{pickled.hex()}"' in text and '"callable"' in text
    return key == "callable" and plain and isinstance(pairs, list) and pickled in pickles


def measure_soundness(report: dict[str, Any]) -> bool:
    tried = [payload for _, payload in constructions.everything()]
    sys.addaudithook(_hook)
    modules = set(sys.modules)
    wrong = sum(accepted(payload) for payload in tried)
    allowed_names = {(builtins.__name__, name) for name in builtins.__all__}
    allowed_names |= {(stock.__name__, name) for name in constructions.STOCK_NAMES}
    pickles = {pickled for names in allowed_names for pickled in wire.references(*names)}
    names = {f"{module}:{name}" for module, name in allowed_names} | {*builtins.__all__}
    texts = [text for pickled in sorted(pickles) for text in wire.spellings(pickled)]
    random_ = random.Random(SEED)
    allowed = 0
    for _ in range(MUTATIONS):
        text = mutated(random_, texts)
        is_allowed = in_table(text, pickles, names)
        allowed += is_allowed
        wrong += accepted(text) is not is_allowed
    report["soundness"] = {
        "constructions": len(tried),
        "mutations": MUTATIONS,
        "seed": SEED,
        "mutations_that_are_in_the_table": allowed,
        "wrongly_decided": wrong,
        "audit_events": len(_events),
        "modules_imported": len(set(sys.modules) - modules),
    }
    print(f"constructions tried                    {len(tried):>12,}")
    print(f"seeded mutations tried                 {MUTATIONS:>12,}  ({allowed:,} in the table)")
    print(f"wrongly accepted or refused            {wrong:>12,}  target 0")
    print(f"executed, opened (audit events)        {len(_events):>12,}  target 0")
    print(
        f"modules imported                       {len(set(sys.modules) - modules):>12,}  target 0"
    )
    return not wrong and not _events and not set(sys.modules) - modules


def side_by_side(works: dict[str, Callable[[], object]], number: int) -> dict[str, float]:
    """Return the median time of each piece of work in µs, taking turns."""
    rounds: dict[str, list[float]] = {name: [] for name in works}
    gc.disable()
    for _ in range(ROUNDS):
        for name, work in works.items():
            start = time.perf_counter_ns()
            for _ in range(number):
                work()
            rounds[name].append((time.perf_counter_ns() - start) / number / 1000)
    gc.enable()
    return {name: statistics.median(times) for name, times in rounds.items()}


def measure_lookups(report: dict[str, Any]) -> None:
    payload, stock_payload = GOOD.to_str(), STOCK.to_str()
    # SGLang caches by string, so what is new to it is a string that it has not seen; ours is
    # "cold" whenever the text itself is no key.
    spelled = payload.replace(": ", ":  ")
    pickled = wire.decode(stock_payload, 4096)
    load = stock._cache_from_str.__wrapped__  # noqa: SLF001 - what an uncached from_str costs
    VERIFIER.lookup(payload)
    stock.CustomLogitProcessor.from_str(stock_payload)
    times = side_by_side(
        {
            "warm: Verifier.lookup": lambda: VERIFIER.lookup(payload),
            "warm: SGLang from_str": lambda: stock.CustomLogitProcessor.from_str(stock_payload),
            "cold: Verifier.lookup": lambda: VERIFIER.lookup(spelled),
            "cold: SGLang dill.loads": lambda: dill.loads(pickled),
            "cold: SGLang from_str": lambda: load(stock_payload),
        },
        5000,
    )
    report["lookup_us"] = times
    for name, micros in times.items():
        print(f"{name:<38} {micros:>9.2f} µs")
    for kind, theirs in (("warm", "SGLang from_str"), ("cold", "SGLang dill.loads")):
        met = times[f"{kind}: Verifier.lookup"] <= times[f"{kind}: {theirs}"]
        report[f"{kind}_no_slower"] = met
        print(f"  {kind} no slower than {theirs}: {'met' if met else 'MISSED'}")


def refusing(payload: Any) -> Callable[[], object]:
    def work() -> None:
        with contextlib.suppress(PayloadRefused):
            VERIFIER.lookup(payload)

    return work


def measure_refusals(report: dict[str, Any]) -> None:
    works = {name: refusing(payload) for name, payload in constructions.everything()}
    longest = "m." * 127 + "m", "n" * 255
    works["longest-reference"] = refusing(wire.payload_for(*longest))
    works["longest-reference-p0"] = refusing(wire.encode(wire.reference_pickle(*longest, 0)))
    times = side_by_side(works, 20)
    worst = max(times, key=lambda name: times[name])
    sizes = {
        f"{size:,} characters": refusing("{" + " " * (size - 1))
        for size in (2_000, 100_000, 10_000_000, 100_000_000)
    }
    big = side_by_side(sizes, 200)
    logging.getLogger("sglang_lp.audit").disabled = True  # its lines are not what is measured
    audit = Audit(1)
    error = PayloadRefused("m", reason=RefusalReason.MALFORMED)
    trail = side_by_side({"audit": lambda: audit.refused(Gate.ADMISSION, error)}, 2000)["audit"]
    report["refusal_us"] = {
        "median": statistics.median(times.values()),
        "worst": times[worst],
        "worst_construction": worst,
        "beyond_the_cap": big,
        "counting_it_in_the_audit_trail": trail,
    }
    print(f"a refusal, median of constructions     {statistics.median(times.values()):>9.2f} µs")
    print(f"a refusal, worst construction          {times[worst]:>9.2f} µs  target 20 ({worst})")
    for name, micros in big.items():
        print(f"a refusal of {name:<25} {micros:>9.2f} µs  target 20")
    print(f"counting it in the audit trail         {trail:>9.2f} µs")


def resident_mb() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def growth_mb(work: Callable[[int], object], times: int) -> float:
    """Return how much memory many calls leave behind, after a thousand to warm up."""
    for i in range(1000):
        work(i)
    before = resident_mb()
    for i in range(1000, times):
        work(i)
    return resident_mb() - before


def refuse_distinct(i: int) -> None:
    with contextlib.suppress(PayloadRefused):
        VERIFIER.lookup(wire.payload_for("attacker.module", f"Class{i}"))


def spelled(payload: str, i: int) -> str:
    return f"{i:020b}".replace("0", " ").replace("1", "\t") + payload


def measure_memory(report: dict[str, Any]) -> None:
    good, stock_good = GOOD.to_str(), STOCK.to_str()
    from_str = stock.CustomLogitProcessor.from_str
    growths = {
        f"{REFUSED:,} distinct refused payloads": growth_mb(refuse_distinct, REFUSED),
        f"{SPELLINGS:,} spellings of one class": growth_mb(
            lambda i: VERIFIER.lookup(spelled(good, i)), SPELLINGS
        ),
        f"SGLang, {SPELLINGS:,} spellings of one class": growth_mb(
            lambda i: from_str(spelled(stock_good, i)), SPELLINGS
        ),
    }
    report["memory_growth_mb"] = growths
    for name, grown in growths.items():
        target = "" if name.startswith("SGLang") else "target within 5"
        print(f"{name:<42} {grown:>+7.1f} MB  {target}")


def main() -> int:
    report: dict[str, Any] = {"machine": machine()}
    measure_lookups(report)
    measure_refusals(report)
    measure_memory(report)
    sound = measure_soundness(report)
    store(report, FOLDER / "trust.json")
    print("sound" if sound else "NOT SOUND: something was decided wrongly, executed or imported")
    return 0 if sound else 1


if __name__ == "__main__":
    sys.exit(main())
