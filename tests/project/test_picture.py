"""The picture of the README shows what it claims, in light and in dark mode."""

import xml.etree.ElementTree as ET

import orjson

from scripts.picture import CHOICES, PICTURE, draw

SVG = "{http://www.w3.org/2000/svg}"


def answers():
    described = ET.parse(PICTURE).getroot().find(f"{SVG}desc").text
    return orjson.loads(described)


def test_the_picture_is_what_its_script_draws_of_its_answers():
    assert draw(**answers()) == PICTURE.read_text()


def test_the_second_answer_is_one_of_the_choices_and_the_first_is_none():
    assert answers()["before"] not in CHOICES
    assert answers()["after"] in CHOICES


def test_every_line_lies_inside_its_panel():
    root = ET.parse(PICTURE).getroot()
    _, _, width, height = map(float, root.get("viewBox").split())
    widest = 0.62 * 15  # pixels of a character of these fonts at most

    for text in root.iter(f"{SVG}text"):
        right = float(text.get("x")) + widest * len("".join(text.itertext()))
        assert right <= width
        assert float(text.get("y")) <= height


def test_the_colours_follow_the_readers_mode():
    assert "prefers-color-scheme: dark" in PICTURE.read_text()
