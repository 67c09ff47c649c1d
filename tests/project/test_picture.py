"""The picture of the README shows what it claims, in light and in dark mode."""

import xml.etree.ElementTree as ET

import orjson

from scripts.picture import BUDGET, GAP, PANEL, PICTURE, draw

SVG = "{http://www.w3.org/2000/svg}"


def answers():
    described = ET.parse(PICTURE).getroot().find(f"{SVG}desc").text
    return orjson.loads(described)


def test_the_picture_is_what_its_script_draws_of_its_answers():
    assert draw(**answers()) == PICTURE.read_text()


def test_the_budget_saves_tokens_and_leaves_the_answer():
    before, after = answers().values()

    assert after["answer"] == before["answer"] != ""
    assert before["thought"].startswith(after["thought"].rstrip())
    assert BUDGET < after["tokens"] < 2 * BUDGET < before["tokens"]


def test_every_line_lies_inside_its_panel():
    root = ET.parse(PICTURE).getroot()
    _, _, _, height = map(float, root.get("viewBox").split())
    widest = 0.62 * 15  # pixels of a character of these fonts at most
    question, *lines = root.iter(f"{SVG}text")

    assert len(lines) > 10
    for text in (question, *lines):
        left = float(text.get("x"))
        panel = PANEL if left < PANEL else 2 * PANEL + GAP
        room = 2 * PANEL + GAP if text is question else panel - 8
        assert left + widest * len("".join(text.itertext())) <= room, "".join(text.itertext())
        assert float(text.get("y")) <= height - 8


def test_the_colours_follow_the_readers_mode():
    assert "prefers-color-scheme: dark" in PICTURE.read_text()
