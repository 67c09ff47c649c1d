"""The picture of the README: one question, answered without and with a processor.

python -m scripts.picture

Starts a server with SmolLM2-135M-Instruct, which ``make demo`` makes, asks twice, and writes
``docs/before-after.svg``. Its colours follow the reader's light or dark mode.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import orjson

from demo.server import serve_speaking
from demo.speaking import chat, find_speaking_model
from sglang_lp import attach
from sglang_lp.cli import http

PICTURE = Path(__file__).parents[1] / "docs" / "before-after.svg"
QUESTION = "Is the sun a star?"
CHOICES = ["yes", "no", "I do not know"]
_MODEL = "SmolLM2-135M-Instruct"
#: Columns of a panel in characters, and sizes in pixels.
_COLUMNS, _LINE, _PANEL, _GAP = 46, 22, 420, 20

_STYLE = """
text { font: 15px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #1f2328 }
.head { font-weight: 600 } .soft { fill: #59636e }
rect { fill: #f6f8fa; stroke: #d1d9e0 }
@media (prefers-color-scheme: dark) {
  text { fill: #f0f6fc } .soft { fill: #9198a1 }
  rect { fill: #151b23; stroke: #3d444d }
}
"""


def main() -> None:
    """Ask twice, and draw both answers."""
    model = find_speaking_model()
    if model is None:
        raise SystemExit("expected the model of make demo, got none; run make demo")
    request = {
        "text": chat(QUESTION),
        "sampling_params": {"temperature": 0, "max_new_tokens": 32},
    }
    chosen = attach("ChoiceLogitProcessor", choices=CHOICES)
    with serve_speaking(model) as url:
        before, after = (_ask(url, body) for body in (request, chosen.generate_body(request)))
    PICTURE.write_text(draw(before, after), encoding="utf-8")


def _ask(url: str, body: dict[str, Any]) -> str:
    answer = http.request("POST", http.base_of(url, "URL"), "/generate", body)
    if not isinstance(answer.body, dict) or "text" not in answer.body:
        raise SystemExit(http.told(answer))
    return " ".join(str(answer.body["text"]).split())


def draw(before: str, after: str) -> str:
    """Return both answers as an SVG, next to each other.

    Args:
        before: The model's own answer.
        after: Its answer with the choice.
    """
    panels = [("no processor", before), (f"choices = {orjson.dumps(CHOICES).decode()}", after)]
    lines = [textwrap.wrap(text, _COLUMNS) for _, text in panels]
    height = _LINE * (max(map(len, lines)) + 2) + 10
    width = 2 * _PANEL + _GAP
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 40}" role="img">',
        "<title>One question, answered without and with ChoiceLogitProcessor</title>",
        f"<desc>{escape(orjson.dumps({'before': before, 'after': after}).decode())}</desc>",
        f"<style>{_STYLE}</style>",
        f'<text x="4" y="22"><tspan class="soft">{_MODEL}: </tspan>{escape(QUESTION)}</text>',
    ]
    for place, ((title, _), answer) in enumerate(zip(panels, lines, strict=True)):
        x = place * (_PANEL + _GAP)
        drawn.append(f'<rect x="{x + 1}" y="38" width="{_PANEL - 2}" height="{height}" rx="6"/>')
        drawn.append(f'<text x="{x + 14}" y="62" class="head soft">{escape(title)}</text>')
        drawn += [
            f'<text x="{x + 14}" y="{62 + _LINE * (number + 1)}">{escape(line)}</text>'
            for number, line in enumerate(answer)
        ]
    return "\n".join([*drawn, "</svg>\n"])


if __name__ == "__main__":
    main()
