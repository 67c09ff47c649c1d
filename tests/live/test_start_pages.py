"""The start pages work as they are written: their commands are run, on a machine without a GPU.

A page's model is found by its name, in a cache that holds the demo model under this name. Only the
port differs.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from support.servers.server import launch
from support.settings import CPU_ARGUMENTS, ROOT, environment

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

START = ROOT / "docs" / "start"
CURL = "http://127.0.0.1:30000"
#: SGLang's own defaults, except where a busy machine of two cores would wait.
DEFAULTS = {
    **dict.fromkeys(CPU_ARGUMENTS),
    "model_path": None,
    "skip_server_warmup": True,
    "sleep_on_idle": True,
}


def blocks(page, language):
    text = (START / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(page):
    """Return the commands of the toolkit on a page, as words."""
    lines = "".join(blocks(page, "console")).splitlines()
    return [shlex.split(line[2:]) for line in lines if line.startswith("$ sglang-lp")]


def cache_of(model, name, folder):
    """Make a cache of Hugging Face that holds a model under a name."""
    held = folder / f"models--{name.replace('/', '--')}"
    snapshot = held / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    for file in Path(model).iterdir():
        (snapshot / file.name).symlink_to(file.resolve())
    (held / "refs").mkdir()
    (held / "refs" / "main").write_text("0" * 40)
    return folder


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    from demo.model import ensure_model

    (serve,) = (words for words in commands("server.md") if "--cpu" in words)
    directory = tmp_path_factory.mktemp("page")
    cache = cache_of(ensure_model(), serve[-1], directory / "cache")
    command = (sys.executable, "-m", "sglang_lp", *serve[1:])
    variables = {"HF_HUB_CACHE": str(cache)}
    with launch(ensure_model(), directory, DEFAULTS, command=command, variables=variables) as one:
        yield one


def run(words, **settings):
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=300, cwd=ROOT, **settings
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_requests_of_the_page_for_servers_are_answered(started):
    without, banned = (
        orjson.loads(run(["sh", "-c", block.replace(CURL, started.url)]))
        for block in blocks("server.md", "sh")
    )

    assert without["text"]
    assert banned["text"]
    assert "5" not in banned["text"]
    assert "five" not in banned["text"]


def test_the_python_of_the_page_for_requests_runs(started):
    chat, refused, _ = blocks("requests.md", "python")
    code = (chat + refused).replace(CURL, started.url)

    said = run([sys.executable, "-c", code], env=environment({}))
    assert "did you mean 'words'?" in said


def test_the_recipes_run(started):
    recipes = "".join(blocks("../recipes.md", "python"))
    asked = recipes.count("print(ask(")

    code = recipes.replace(CURL, started.url).replace("print(ask(", "print('>', ask(")
    code = code.replace("**more,\n", "temperature=0,\n**more,\n", 1)
    said = run([sys.executable, "-c", code], env=environment({}))
    answers = [one.strip() for one in said.removeprefix("> ").split("\n> ")]
    assert len(answers) == asked
    assert '{"answer": "' in answers[0]
    assert answers[1] in {"yes", "no", "I do not know"}
    # An answer that ends inside of its thoughts has no word of the answer.
    assert "source:" in answers[3] or "</think>" not in answers[3]


def test_the_commands_of_the_pages_run(started):
    for words in commands("requests.md"):
        run([sys.executable, "-m", "sglang_lp", *words[1:]], env=environment({}))
    (doctor,) = (words for words in commands("server.md") if "--url" in words)
    asked = [word.replace(CURL, started.url) for word in doctor[1:]]
    said = run([sys.executable, "-m", "sglang_lp", *asked], env=environment({}))
    assert "FAILED" not in said


@pytest.mark.parametrize("name", ["curl.sh", "http_generate.py", "openai_client.py"])
def test_an_example_is_answered_and_shows_the_processor(name, started):
    program = "sh" if name.endswith(".sh") else sys.executable
    said = run([program, f"examples/{name}", started.url], env=environment({}))

    if name == "curl.sh":
        before, after = (orjson.loads(line)["text"] for line in said.splitlines())
        assert before not in {"four", "five"}
        assert after in {"four", "five"}
    elif name == "http_generate.py":
        with_it, without = said.splitlines()
        assert "Hello world!" in with_it
        assert "Hello world!" not in without


def test_an_engine_in_this_process_answers_with_and_without_a_word():
    from demo.model import ensure_model

    said = run(
        [sys.executable, "examples/engine_async.py", str(ensure_model())],
        env=environment({"OMP_NUM_THREADS": "1"}),
    )
    own, other = re.findall(r"^(?:the model's own answer|without .*?): (.*)$", said, re.MULTILINE)
    (word,) = re.findall(r"^without '(.*?)':", said, re.MULTILINE)
    assert word.lower() in own.lower()
    assert word.lower() not in other.lower()
