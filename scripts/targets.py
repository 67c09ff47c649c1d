"""Targets of the Makefile: the steps of each, and the words that choose a part of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from scripts import environments
from scripts.environments import DEMO_MODEL, ENV, FLEET, PYTHON
from scripts.steps import Step

__all__ = ["QUICK_ROOMS", "TARGETS", "Choice", "Target"]


@dataclass(frozen=True)
class Choice:
    """One value of a target's variable, such as ``SUITE=drafts``."""

    help: str
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Target:
    """One word after ``make``.

    Attributes:
        help: What it does, in a few words.
        steps: Steps without further words.
        variable: Name of the variable that chooses other steps, ``SUITE`` or ``PART``.
        choices: Values of that variable.
        options: Variables that are options of the last step's command: ``SEED=1`` is ``--seed 1``.
    """

    help: str
    steps: tuple[Step, ...]
    variable: str = ""
    choices: dict[str, Choice] = field(default_factory=dict)
    options: tuple[str, ...] = ()


def _python(title: str, *arguments: str) -> Step:
    return Step(title, (PYTHON, "-m", *arguments))


#: pytest in two processes; tests/conftest.py says which tests stay together. Not for two suites: a
#: test of ``fleet`` starts several servers, and the tests of ``faults`` share the sets of functions
#: that have raised.
ON_TWO_CORES = ("-n", "2")

#: Mooncake and SGLang's transfers listen on every interface: these steps get a private one.
ALONE = ("unshare", "--map-root-user", "--net", PYTHON, "-m", "scripts.alone")

CHECK = (
    _python("ruff check", "ruff", "check", "."),
    _python("ruff format", "ruff", "format", "--check", "."),
    _python("mypy", "mypy"),
)

#: Rooms that most changes break and that need no SGLang, whose import alone takes seconds.
QUICK_ROOMS = ("_engine", "builtins", "catalogue", "client", "policy", "processor", "text", "wire")
QUICK = Step(
    "the quick tests",
    (
        *("env", "OMP_NUM_THREADS=1"),  # the tensors are small: a second thread costs more
        *(PYTHON, "-m", "pytest", "--quiet", "-rfE", "-m", "not engine and not slow"),
        *("--hypothesis-profile", "quick", "-p", "support.without_sglang", *ON_TWO_CORES),
        *(f"tests/{room}" for room in QUICK_ROOMS),
    ),
)

DOCS = (
    *environments.DOCS_TOOLS,
    _python(
        "spelling",
        *("codespell_lib", "sglang_lp", "docs", "demo", "examples"),
        *("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md"),
    ),
    _python(
        "the site",
        *("sphinx", "--quiet", "--fail-on-warning", "--fresh-env"),
        *("--conf-dir", "docs", ".", "build/site"),
    ),
)

SUITES = {
    "drafts": Choice(
        "further servers: every drafter, LoRA adapters, several ranks",
        (*ENV, *DEMO_MODEL, _python("pytest -m drafts", "pytest", "-m", "drafts", *ON_TWO_CORES)),
    ),
    "fleet": Choice(
        "several servers: behind a router, prefill and decode apart, Ray",
        (
            *ENV,
            *DEMO_MODEL,
            *FLEET,
            Step("pytest -m fleet", (*ALONE, PYTHON, "-m", "pytest", "-m", "fleet")),
        ),
    ),
    "versions": Choice(
        "the core of the engine tests on each supported SGLang",
        (
            *ENV,
            *DEMO_MODEL,
            *environments.OTHER_RELEASES,
            _python("the engine tests on each SGLang", "scripts.versions"),
        ),
    ),
    "faults": Choice(
        "every function of the toolkit raises, in turn, on busy servers",
        (
            *ENV,
            *DEMO_MODEL,
            *FLEET,
            Step(
                "pytest -m faults",
                (*ALONE, PYTHON, "-m", "pytest", "-m", "faults and (fleet or not fleet)"),
            ),
        ),
    ),
    "trust": Choice(
        "fuzzes the verifier, then mutates the trust boundary",
        (
            *ENV,
            *environments.FUZZER,
            _python("fuzz the verifier", "fuzz.verifier"),
            *environments.MUTATION_TESTER,
            _python("mutate the trust boundary", "scripts.mutants"),
        ),
    ),
    "docs": Choice(
        "builds the site and opens every page in Chromium",
        (*ENV, *DOCS, _python("pytest -m docs", "pytest", "-m", "docs")),
    ),
    "canary": Choice(
        "the newest SGLang on the registry: what moved",
        (*ENV, *DEMO_MODEL, *environments.CANARY, _python("what moved", "scripts.canary")),
    ),
}

#: ``docs/scale.md`` is calculated from the results of two benchmarks.
PAGES = _python("pages that use several results", "benchmarks.renew")
PARTS = {
    "adapters": Choice(
        "what adapting a class of another engine adds to a step",
        (*ENV, _python("what an adapter adds", "benchmarks.adapters.measure")),
    ),
    "bounds": Choice(
        "what one request costs the others at most",
        (*ENV, _python("what one request costs at most", "benchmarks.bounds.measure")),
    ),
    "catalogue": Choice(
        "what catalogues cost: the index, and rows that write items",
        (*ENV, _python("what a catalogue costs", "benchmarks.catalogue.measure")),
    ),
    "closing": Choice(
        "what structured answers that are complete cost",
        (*ENV, _python("what complete answers cost", "benchmarks.closing")),
    ),
    "complete": Choice(
        "the share of structured answers that parse, by their limit",
        (*ENV, *DEMO_MODEL, _python("answers that parse", "benchmarks.complete")),
    ),
    "dashboard": Choice(
        "draws the Grafana dashboard from two servers under load",
        (*ENV, _python("two servers under load", "benchmarks.dashboard")),
    ),
    "drafts": Choice(
        "what a verify step of speculative decoding adds",
        (
            *ENV,
            _python("what a verify step adds", "benchmarks.drafts.measure"),
            _python("every processor on drafts", "benchmarks.drafts.at_work"),
            PAGES,
        ),
    ),
    "fields": Choice(
        "what the checks of an ordinary request cost",
        (*ENV, _python("what the checks of a request cost", "benchmarks.rules.fields")),
    ),
    "matrix": Choice(
        "what servers do with formats, tools, streams and thinking",
        (*ENV, _python("formats, tools, streams and thinking", "benchmarks.matrix")),
    ),
    "rules": Choice(
        "what the operator's decisions cost a request",
        (*ENV, _python("what the operator's decisions cost", "benchmarks.rules.measure")),
    ),
    "strict": Choice(
        "strict thinking compared with this toolkit",
        (*ENV, *DEMO_MODEL, _python("strict thinking and this toolkit", "benchmarks.rules.strict")),
    ),
    "text": Choice(
        "what banned words and choices cost",
        (*ENV, _python("what texts cost", "benchmarks.text")),
    ),
    "trust": Choice(
        "what the trust boundary costs, and a siege of a real server",
        (
            *ENV,
            _python("what the trust boundary costs", "benchmarks.trust.measure"),
            _python("the siege of a real server", "benchmarks.trust.siege"),
        ),
    ),
}

TARGETS = {
    "env": Target("sets up .venv: minutes of downloads once, then a second", ENV),
    "model": Target("trains the demo model: a minute on two idle cores, once", (*ENV, *DEMO_MODEL)),
    "demo": Target(
        "shows the toolkit on a real SGLang server",
        (
            *ENV,
            *DEMO_MODEL,
            *(replace(step, needed=False) for step in environments.SPEAKING),
            _python("demo", "demo"),
        ),
    ),
    "quick": Target("check, and the tests that need no SGLang: a minute", (*ENV, *CHECK, QUICK)),
    "test": Target(
        "check, and every test but those of a suite",
        (*ENV, *DEMO_MODEL, *CHECK, _python("pytest", "pytest", *ON_TWO_CORES)),
        "SUITE",
        SUITES,
    ),
    "check": Target("ruff and mypy", (*ENV, *CHECK)),
    "docs": Target("builds the site in build/site; a warning is an error", (*ENV, *DOCS)),
    "bench": Target(
        "what processors add to a decoding step, next to SGLang's own",
        (
            *ENV,
            _python("steps", "benchmarks.cost.measure"),
            _python("batches that sleep", "benchmarks.cost.sleep"),
            _python("sampling masks and raw logprobs", "benchmarks.cost.rollouts"),
            _python("budgets that watch for loops", "benchmarks.cost.watch"),
            _python("rules in a phase, and chains", "benchmarks.cost.phases"),
            _python("rows that run by forms", "benchmarks.cost.forms"),
            _python("requests that arrive at once", "benchmarks.cost.arrivals"),
            _python("0.3.0 and this version", "benchmarks.cost.turns"),
            _python("tables of 0.3.0 in this version", "benchmarks.cost.releases"),
            PAGES,
        ),
        "PART",
        PARTS,
    ),
    "soak": Target(
        "ten minutes of random requests, every answer checked",
        (
            *ENV,
            *DEMO_MODEL,
            _python("ten minutes of random requests", "benchmarks.soak.run"),
            _python(
                "a search for a request that thinks more than the ceiling",
                *("pytest", "--quiet", "--hypothesis-profile", "soak"),
                *("tests/live/test_reasoning.py", "-k", "more_than_the_ceiling"),
            ),
        ),
    ),
    "hunt": Target(
        "searches for a request that breaks a promise; MINUTES=10 SEED=1",
        (*ENV, *DEMO_MODEL, _python("a search for broken promises", "hunt")),
        options=("MINUTES", "SEED"),
    ),
    "evidence": Target(
        "what processors do to the answers of SmolLM2-135M: up to an hour",
        (
            *ENV,
            *environments.SPEAKING,
            _python("evidence on a model that speaks", "benchmarks.evidence"),
        ),
    ),
    "lock": Target(
        "pins the dependencies of pyproject.toml in requirements.lock", environments.RESOLVE
    ),
}
