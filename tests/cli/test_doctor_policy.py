"""``doctor`` finds what a server would refuse in a policy, in the same words, and nothing else."""

import copy
import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest

from sglang_lp.cli import main, serve
from sglang_lp.errors import PolicyError
from sglang_lp.policy import Policy
from sglang_lp.server.gate.guard import Guard
from sglang_lp.trust import Gate
from support.watermarks import GREEN, write_key

pytestmark = pytest.mark.slow

MODEL = Path(__file__).parents[2] / ".cache" / "demo-model"
THINK = "ThinkingBudgetLogitProcessor"

#: A policy with every section, which the demo model can be served with.
WHOLE = {
    "builtins": True,
    "stock": "upgrade",
    "allow": ["support.processors.scripted:Scripted"],
    "may_resume": False,
    "pin": [{"name": "trial", "sha256": "a" * 64, "size": 474}],
    "limits": {"logged_refusals_per_minute": 60},
    "defaults": {"processor": THINK, "params": {"thinking_budget": 64, "closing": "Enough."}},
    "always": [
        {"processor": "BadWordsLogitProcessor", "params": {"words": ["project chimera"]}},
        {"processor": "MinLengthLogitProcessor", "params": {"min_tokens": 2}},
    ],
    "profiles": {
        "support": {
            "processors": [
                {"processor": "DRYLogitProcessor", "params": {"dry_multiplier": 0.8}},
                {"processor": THINK, "params": {"thinking_budget": 16}},
            ],
            "may_set": ["dry_multiplier"],
        },
        "words": {
            "processors": [{"processor": "ForcedSequenceLogitProcessor", "params": {"text": "Hi"}}]
        },
    },
    "ceilings": {
        "thinking_budget": {"at_most": 128, "above": "lower"},
        "dry_multiplier": {"at_most": 1, "above": "refuse"},
    },
    "effort": {"low": 16, "answer_room": 8},
}
WRONG = (True, -1, 10**6, 0.5, "x", "", [], ["x"], [10**6], {}, {"at_most": 1}, [{}], "a:B")
#: Mistakes that a tokenizer or a vocabulary shows.
OF_THE_MODEL = (
    {
        "always": [
            {"processor": "DisallowedTokensLogitsProcessor", "params": {"token_ids": [10**6]}}
        ]
    },
    {"defaults": {"processor": "Qwen3ThinkingBudgetLogitProcessor", "params": {}}},
    {"ceilings": {"thinking_budget": {"at_most": 1}}},
    {
        "defaults": {
            "processor": THINK,
            "params": {"thinking_start": "<nothing of this>", "thinking_end": "</nothing>"},
        }
    },
)


@pytest.fixture(scope="module")
def process():
    """Return the attributes that the guard reads of an SGLang process with the demo model."""
    from transformers import AutoTokenizer

    config = json.loads((MODEL / "config.json").read_text())
    return SimpleNamespace(
        model_config=SimpleNamespace(
            vocab_size=config["vocab_size"],
            is_generation=True,
            hf_eos_token_id={config["eos_token_id"]},
        ),
        server_args=SimpleNamespace(
            speculative_algorithm=None, enable_custom_logit_processor=True, reasoning_parser=None
        ),
        tokenizer=AutoTokenizer.from_pretrained(MODEL),
    )


@pytest.fixture(autouse=True)
def no_server(monkeypatch):
    monkeypatch.setattr(serve, "run", lambda _arguments: None)
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    monkeypatch.setenv("SGLANG_LP_POLICY", "")


def broken(rng):
    """Return a policy with one mistake, or with a change that is none."""
    policy = copy.deepcopy(WHOLE)
    places = [*tables(policy)]
    table, key = rng.choice(places)
    mistake = rng.randrange(4)
    if mistake == 0 and isinstance(key, str):
        table[key[:-1] or "k"] = table.pop(key)  # misspelt
    elif mistake == 1:
        del table[key]
    elif mistake == 2 and isinstance(table, dict):
        table["surplus"] = 1
    else:
        table[key] = rng.choice(WRONG)
    return policy


def tables(value):
    """Yield each place of a policy: the table or list, and the key or index."""
    for key, one in [*(value.items() if isinstance(value, dict) else enumerate(value))]:
        yield value, key
        if isinstance(one, dict | list):
            yield from tables(one)


def toml(value):
    """Write a value as TOML on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}" = {toml(one)}' for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


def refused_by_a_server(path, process):
    try:
        Guard(Policy.from_toml(path)).learn(Gate.SCHEDULER, process)
    except PolicyError as error:
        return str(error)
    return None


def found_by_doctor(path, capsys, *options):
    main(["doctor", "--policy", str(path), *options])
    said = capsys.readouterr().out.splitlines()
    found = [line.partition(": ")[2] for line in said if line.startswith("FAILED  policy")]
    assert len(found) <= 1
    return found[0] if found else None


@pytest.fixture
def written(tmp_path):
    tmp_path.chmod(0o755)

    def write(policy):
        path = tmp_path / "policy.toml"
        path.write_text("".join(f"{key} = {toml(value)}\n" for key, value in policy.items()))
        return path

    return write


def test_a_right_policy_is_right_to_both(written, process, capsys):
    path = written(WHOLE)

    assert refused_by_a_server(path, process) is None
    assert found_by_doctor(path, capsys, "--model", str(MODEL)) is None


def test_doctor_says_of_a_broken_policy_what_a_server_says(written, process, capsys):
    rng = random.Random(7)
    found = set()
    for _ in range(100):
        path = written(broken(rng))
        expected = refused_by_a_server(path, process)

        assert found_by_doctor(path, capsys, "--model", str(MODEL)) == expected
        assert found_by_doctor(path, capsys) == expected
        code = main(["serve", "--policy", str(path), "--", "--model-path", "x"])
        said = capsys.readouterr().err
        assert (code, said) == (
            (0, "") if expected is None else (2, f"sglang-lp serve: {expected}\n")
        )
        found.add(expected and expected.partition(": ")[2].partition(" got ")[0])
    assert None in found
    assert len(found) > 40


@pytest.mark.parametrize("change", OF_THE_MODEL)
def test_with_the_model_doctor_finds_what_its_tokenizer_shows(change, written, process, capsys):
    path = written(WHOLE | change)
    expected = refused_by_a_server(path, process)

    assert expected is not None
    assert found_by_doctor(path, capsys) is None
    assert found_by_doctor(path, capsys, "--model", str(MODEL)) == expected


def test_a_reasoning_parser_without_a_model_is_wrong_usage(capsys):
    assert main(["doctor", "--reasoning-parser", "qwen3"]) == 2
    assert "--reasoning-parser: expected --model with it" in capsys.readouterr().err


def test_a_reasoning_parser_names_the_delimiters(written, capsys):
    path = written({"effort": {"low": 4}})
    options = ("--model", str(MODEL), "--reasoning-parser")

    assert found_by_doctor(path, capsys, *options, "qwen3") is None
    assert "expected a parser of this SGLang" in found_by_doctor(path, capsys, *options, "none")


def test_a_program_gets_a_line_of_json_for_each_check(tmp_path, capsys):
    (tmp_path / "policy.toml").write_text("alow = []")
    assert main(["doctor", "--json", "--policy", str(tmp_path / "policy.toml")]) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    assert all(line.keys() == {"where", "check", "result", "text"} for line in lines)
    results = {line["check"]: line["result"] for line in lines}
    assert results["Python"] == results["SGLang"] == "ok"
    assert results["policy"] == "failed"
    assert results["policy and model"] == "skipped"


def test_doctor_says_of_a_watermark_key_what_a_server_says(written, process, capsys):
    path = written({"watermark": "watermark.toml"})
    key = write_key(path.parent, "kgw", GREEN)
    assert refused_by_a_server(path, process) is None
    assert found_by_doctor(path, capsys) is None
    key.chmod(0o644)

    said = found_by_doctor(path, capsys)
    assert "expected a file that only its owner may read, got permissions 0644" in str(said)
    assert "got permissions 0644" in str(refused_by_a_server(path, process))
