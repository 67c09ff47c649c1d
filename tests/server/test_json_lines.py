"""A server's log can be JSON lines, by the file that SGLang's own variable names."""

import logging
import logging.config
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sglang_lp.errors import Unsupported
from sglang_lp.server.json_lines import JsonLines
from sglang_lp.trust import Audit, Gate

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "logging.json"

#: SGLang reads the file with orjson and hands it to dictConfig.
PROGRAM = """
import logging.config, pathlib, sys
import orjson
logging.config.dictConfig(orjson.loads(pathlib.Path(sys.argv[1]).read_text()))
logging.getLogger("sglang_lp.server").warning("two\\nlines of %s", "text")
logging.getLogger("sglang").debug("too fine")
"""


def formatted(caplog):
    return [orjson.loads(JsonLines().format(record)) for record in caplog.records]


def test_the_example_writes_one_object_for_each_record():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, CONFIGURATION],
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = [orjson.loads(line) for line in done.stderr.splitlines()]
    assert line.pop("time").endswith("+00:00")
    assert line.pop("process") > 0
    assert line == {
        "level": "WARNING",
        "logger": "sglang_lp.server",
        "message": "two\nlines of text",
    }


def test_a_refusal_is_entries_of_the_line(caplog):
    with caplog.at_level(logging.WARNING, logger="sglang_lp.audit"):
        Audit(60).refused(Gate.ADMISSION, Unsupported("beams"))

    (line,) = formatted(caplog)
    assert (line["event"], line["reason"], line["level"]) == ("refused", "unsupported", "WARNING")
    assert "message" not in line


def test_a_traceback_is_one_entry(caplog):
    try:
        _ = 1 / 0
    except ZeroDivisionError:
        logging.getLogger("sglang_lp").exception("it failed")

    (line,) = formatted(caplog)
    assert line["message"] == "it failed"
    assert line["traceback"].endswith("ZeroDivisionError: division by zero")


@given(st.text(st.characters(codec=None)) | st.just("\ud800"))
def test_every_text_is_one_line(text):
    record = logging.makeLogRecord({"name": "x", "msg": "%s", "args": (text,)})
    line = JsonLines().format(record)
    assert "\n" not in line
    assert "message" in orjson.loads(line)


@pytest.mark.parametrize("name", ["sglang_lp.audit", "x"])
def test_the_clock_is_utc(name):
    record = logging.makeLogRecord({"name": name, "msg": "{}", "created": 0.5})
    assert orjson.loads(JsonLines().format(record))["time"] == "1970-01-01T00:00:00.500000+00:00"
