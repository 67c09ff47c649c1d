"""The pictures of the README: one question, answered without and with a thinking budget.

python -m scripts.picture

Starts a server with the demo model, which overthinks every question, asks twice, and writes
``docs/before-after.svg``, whose colours follow the reader's light or dark mode, and
``docs/trace.png``, the trace of both answers in Chromium.
"""

from __future__ import annotations

import tempfile
import textwrap
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import orjson
from selenium.webdriver import Keys
from tokenizers import Tokenizer

from demo.corpus import QUESTIONS, prompt
from demo.model import SpecialTokens, ensure_model
from demo.server import serve
from sglang_lp import attach, cli
from sglang_lp.cli import http
from support.browser import browsing

PICTURE = Path(__file__).parents[1] / "docs" / "before-after.svg"
SCREENSHOT = PICTURE.with_name("trace.png")
QUESTION = next(iter(QUESTIONS))
BUDGET = 32
#: Columns of a panel in characters, its lines of thought, and sizes in pixels.
COLUMNS, _LINES, _LINE, PANEL, GAP = 43, 9, 22, 430, 20

_STYLE = """
text { font: 15px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328 }
.head { font-weight: 600 } .soft { fill: #59636e } .forced { font-weight: 700; fill: #0a6640 }
rect { fill: #f6f8fa; stroke: #d1d9e0 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .soft { fill: #9198a1 } .forced { fill: #6fdc9f }
  rect { fill: #151b23; stroke: #3d444d }
}
"""


def main() -> None:
    """Ask twice, and draw both answers."""
    model = ensure_model()
    request = {
        "text": prompt(QUESTION),
        "sampling_params": {"temperature": 0, "max_new_tokens": 400},
        "return_logprob": True,
        "top_logprobs_num": 3,
        "return_text_in_logprobs": True,
    }
    budget = attach("ThinkingBudgetLogitProcessor", thinking_budget=BUDGET)
    bodies = request, budget.generate_body(request)
    with serve(model) as url:
        answers = [_ask(url, body) for body in bodies]
    before, after = (_read(model, answer["output_ids"]) for answer in answers)
    PICTURE.write_text(draw(before, after), encoding="utf-8")
    _photograph(model, [*zip(bodies, answers, strict=True)])


def _ask(url: str, body: dict[str, Any]) -> dict[str, Any]:
    answer = http.request("POST", http.base_of(url, "URL"), "/generate", body)
    if not isinstance(answer.body, dict) or "output_ids" not in answer.body:
        raise SystemExit(http.told(answer))
    return answer.body


def _photograph(model: Path, exchanges: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """Write a picture of the trace of the second exchange next to the first, at its forced end."""
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for number, exchange in enumerate(reversed(exchanges)):
            for what, content in zip(("request", "answer"), exchange, strict=True):
                file = Path(folder, f"{what}{number or ''}.json")
                file.write_bytes(orjson.dumps(content))
                files.append(str(file))
        page = Path(folder, "trace.html")
        options = ("--tokenizer", str(model), "--output", str(page))
        cli.main(["trace", *options, *files[:2], "--beside", *files[2:]])
        with browsing() as driver:
            size = {"width": 1300, "height": 720, "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            driver.get(page.as_uri())
            driver.execute_script("document.getElementById('text0').focus()")
            # The last edit is the end of thinking.
            driver.switch_to.active_element.send_keys(f"{Keys.END}p")
            driver.execute_script("document.documentElement.style.overflow = 'hidden'")
            driver.execute_script("window.scrollTo(0, 0)")
            driver.save_screenshot(str(SCREENSHOT))


def _read(model: Path, ids: list[int]) -> dict[str, Any]:
    """Return the thought and the answer of generated tokens, and how many tokens they are."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    special = SpecialTokens.of(model)
    end = ids.index(special.end_think)
    thought = tokenizer.decode(ids[ids.index(special.think) + 1 : end])
    return {"tokens": len(ids), "thought": thought, "answer": tokenizer.decode(ids[end + 1 :])}


def draw(before: dict[str, Any], after: dict[str, Any]) -> str:
    """Return both answers as an SVG, next to each other.

    Args:
        before: ``thought``, ``answer`` and number of ``tokens`` without a processor.
        after: The same with the budget.
    """
    width = 2 * PANEL + GAP
    panels = [("no processor", before), (f"thinking_budget={BUDGET}", after)]
    height = _LINE * (_LINES + 4) + 10
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 40}" role="img">',
        "<title>One question, answered without and with a thinking budget</title>",
        f"<desc>{escape(orjson.dumps({'before': before, 'after': after}).decode())}</desc>",
        f"<style>{_STYLE}</style>",
        f'<text x="4" y="22">A model that overthinks: {escape(QUESTION)}</text>',
    ]
    for place, (title, answer) in enumerate(panels):
        x = place * (PANEL + GAP)
        drawn.append(f'<rect x="{x + 1}" y="38" width="{PANEL - 2}" height="{height}" rx="6"/>')
        end = ("soft", "forced")[place]
        lines = [("head", f"{title}: {answer['tokens']} tokens"), *_lines(answer, end)]
        drawn += [
            f'<text x="{x + 14}" y="{62 + _LINE * number}" class="{kind}">{escape(line)}</text>'
            for number, (kind, line) in enumerate(lines)
        ]
    return "\n".join([*drawn, "</svg>\n"])


def _lines(answer: dict[str, Any], end: str) -> list[tuple[str, str]]:
    """Return the lines of a panel, each with its kind: thought, end of thinking, answer.

    The middle of a long thought is left out.

    Args:
        answer: As in :func:`draw`.
        end: Kind of the end of thinking.
    """
    thought = textwrap.wrap(f"<think> {answer['thought'].strip()}", COLUMNS)
    if len(thought) > _LINES:
        left_out = len(thought) - _LINES + 1
        thought = [*thought[: _LINES - 2], f"… {left_out} more lines …", thought[-1]]
    said = answer["answer"].strip()
    return [
        *(("soft", line) for line in thought),
        (end, "</think>"),
        *(("head", line) for line in textwrap.wrap(said, COLUMNS)),
    ]


if __name__ == "__main__":
    main()
