"""The page of a trace, opened in a real browser."""

from __future__ import annotations

import random

import pytest

from sglang_lp.client import attach
from sglang_lp.trace import write_page
from support.fakes.exchanges import budget, chained, spelled

# What would run or load something if it came out as HTML.
HOSTILE = '</script><img src=x onerror="document.title=1"><b>&amp;</b>\u2028 <!--'


@pytest.fixture
def opened(browser, tmp_path):
    def show(trace, beside=None):
        page = tmp_path / "trace.html"
        page.write_text(write_page(trace, beside), encoding="utf-8")
        browser.open(page)
        return browser

    return show


def text_of(browser, number=0):
    return browser.run(f"return document.getElementById('text{number}').textContent")


def about(browser):
    return browser.run("return document.getElementById('about').textContent")


def test_the_text_on_the_page_is_the_answer(opened):
    trace = chained()
    browser = opened(trace)

    assert text_of(browser) == trace.text
    assert browser.errors == []
    assert len(browser.requests) == 1, "nothing is asked for but the page"


def test_a_forced_end_tells_its_cause_to_the_mouse_and_to_the_keyboard(opened):
    from selenium.webdriver import ActionChains, Keys

    trace = chained()
    browser = opened(trace)
    (place,) = [i for i, token in enumerate(trace.tokens) if token.text == "</think>"]
    end = browser.driver.find_element("id", f"t0-{place}")
    ActionChains(browser.driver).move_to_element(end).perform()
    words = "`</think>` forced: 6 of 6 tokens thought"
    assert words in about(browser)

    browser.run("document.getElementById('text0').focus()")
    browser.press(Keys.HOME)
    assert words not in about(browser)
    for _ in range(place):
        browser.press(Keys.ARROW_RIGHT)
    assert words in about(browser)
    browser.press("p")
    assert r"`\n` forced" in about(browser)
    browser.press("n")
    assert words in about(browser)


def test_html_in_tokens_stays_text(opened):
    trace = spelled(HOSTILE * 3, attach("BadWordsLogitProcessor", words=[HOSTILE]))
    browser = opened(trace)

    assert text_of(browser) == trace.text
    assert browser.driver.title == "Trace"
    assert browser.run("return document.images.length") == 0
    assert browser.errors == []


def test_a_page_that_was_tampered_with_runs_and_loads_nothing(opened, tmp_path, browser):
    page = write_page(chained()).replace(
        "<header>",
        "<header><script>document.title = 'run'</script>"
        "<img src='https://example.invalid/x.png'><iframe src='https://example.invalid/'></iframe>",
    )
    (tmp_path / "tampered.html").write_text(page, encoding="utf-8")
    browser.open(tmp_path / "tampered.html")

    assert browser.driver.title == "Trace"
    assert "Content Security Policy" in " ".join(browser.errors)


def test_two_answers_stand_side_by_side(opened):
    with_it, without = chained(), spelled("one two three, and on")
    browser = opened(with_it, without)

    assert [text_of(browser, number) for number in (0, 1)] == [with_it.text, without.text]
    browser.run("document.getElementById('text1').focus()")
    browser.press("d")
    assert "the first difference" in about(browser)
    assert browser.run("return document.querySelectorAll('.on').length") == 2
    assert browser.errors == []


@pytest.mark.parametrize("dark", [False, True])
def test_what_happened_shows_without_colours(opened, dark):
    trace = chained()
    browser = opened(trace)
    browser.dark(on=dark)
    try:
        look = browser.run(
            "const style = (kind) => { const one = getComputedStyle(document.querySelector("
            "'.text ' + kind)); return [one.fontWeight, one.fontStyle, one.borderBottomStyle,"
            " one.outlineStyle]; }; return ['.forced', '.think', '.limited'].map(style)"
        )
        back = browser.run("return getComputedStyle(document.body).backgroundColor")
    finally:
        browser.dark(on=False)

    assert len({tuple(one) for one in look}) == len(look)
    assert (back == "rgb(255, 255, 255)") != dark


def test_a_hundred_thousand_tokens_can_be_used_within_two_seconds(opened):
    words = random.Random(0).choices([" sheep", " left", " many", "\n", "?", " farmer"], k=100_000)
    thought, said = "".join([*words[:89_999], " sheep"]), "".join(words[90_000:])
    text = f"<think>{thought}\n</think>{said}"
    trace = spelled(text, budget(90_000))
    assert len(trace.tokens) > 100_000
    assert trace.problems == []
    took = []
    for _ in range(3):  # the best time counts: other programs share the CPU
        browser = opened(trace)
        took.append(browser.run("return Number(document.documentElement.dataset.ready)"))
    browser.run("document.getElementById('text0').focus()")
    browser.press("\ue010")  # End: the other side of the answer

    last = len(trace.tokens) - 1
    assert f"Position {last} of 0 to {last}:" in about(browser)
    assert min(took) < 2000, f"usable after {took} ms"
    assert text_of(browser) == trace.text
