"""The page of ``sglang-lp try``, opened in a real browser."""

from __future__ import annotations

import time
from threading import Thread

import pytest

from sglang_lp.cli.trying.page_server import PageServer
from sglang_lp.cli.trying.target import Target
from sglang_lp.policy import Policy
from support.fakes.offering import PLAIN, answering
from support.servers.listening import Answered, listening

# What would run or load something if it came out as HTML.
HOSTILE = (
    " a</pre><img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>"
)


@pytest.fixture
def tried(browser):
    """Open the page for a server that a test plays; returns the requests that the server gets."""
    ended = []

    def show(**changed):
        answer, got = answering(**changed)
        context = listening(answer)
        url = context.__enter__()
        server = PageServer(Target.find(url, Policy()))
        Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        ended.append((context, server))
        browser.visit(server.page)
        wait(browser, "return document.documentElement.dataset.ready")
        return got

    yield show
    for context, server in ended:
        server.shutdown()
        server.server_close()
        context.__exit__(None, None, None)


def wait(browser, script):
    """Wait until a script returns something true, and return that."""
    end = time.monotonic() + 30
    while not (found := browser.run(script)):
        assert time.monotonic() < end, script
        time.sleep(0.05)
    return found


def field(browser, name):
    return browser.driver.find_element("id", name)


def status(browser):
    return field(browser, "status").text


def send(browser):
    field(browser, "send").click()
    wait(
        browser,
        "const said = document.getElementById('status').textContent;"
        "return said && !said.startsWith('Waiting')",
    )


def fill(browser, name, text):
    element = field(browser, name)
    element.clear()
    element.send_keys(text)


def choose(browser, name, text):
    from selenium.webdriver.support.select import Select

    Select(field(browser, name)).select_by_visible_text(text)


def answers(browser):
    return browser.run(
        "return [...document.querySelectorAll('.answer')].map((one) => one.textContent)"
    )


def test_a_prompt_is_sent_with_and_without_the_processor_by_the_keyboard_alone(tried, browser):
    from selenium.webdriver import ActionChains, Keys

    got = tried()
    browser.press(Keys.TAB)
    browser.press(Keys.ARROW_DOWN)  # another processor, and back
    browser.press(Keys.ARROW_UP)
    browser.press(Keys.TAB)
    assert browser.run("return document.activeElement.id") == "field-words"
    browser.press(Keys.CONTROL + "a" + Keys.NULL + "five" + Keys.ENTER + "six")
    ActionChains(browser.driver).key_down(Keys.CONTROL).send_keys(Keys.ENTER).key_up(
        Keys.CONTROL
    ).perform()
    wait(browser, "return document.getElementById('status').textContent.startsWith('Both')")

    assert answers(browser) == [" the answer is six", PLAIN]
    (sent,) = (one.body for one in got if one.body and "custom_params" in one.body)
    assert sent["custom_logit_processor"] == "BadWordsLogitProcessor"
    assert sent["custom_params"] == {"words": ["five", "six"], "ignore_case": True}
    assert browser.errors == []


def test_the_trace_of_both_answers_is_in_the_page(tried, browser):
    tried()
    send(browser)
    browser.driver.switch_to.frame(field(browser, "trace"))
    try:
        wait(browser, "return document.documentElement.dataset.ready")
        texts = [field(browser, f"text{number}").get_property("textContent") for number in (0, 1)]
        browser.run("document.getElementById('text0').focus()")
        browser.press("d")
        about = field(browser, "about").text
    finally:
        browser.driver.switch_to.default_content()

    assert texts == [" the answer is six", PLAIN]
    assert "the first difference" in about
    assert browser.errors == []


def test_the_request_can_be_copied_in_three_forms(tried, browser):
    tried()
    send(browser)
    # A browser without a window has no clipboard.
    browser.run("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    shown = []
    for name in ("curl", "Python with openai", "Python"):
        choose(browser, "language", name)
        field(browser, "copy").click()
        wait(browser, "return document.getElementById('copied').textContent === 'Copied.'")
        shown.append(browser.run("return document.getElementById('snippet').textContent"))
        assert browser.run("return window.copied") == shown[-1]
    assert [one.split()[0] for one in shown] == ["curl", "from", "import"]

    browser.run("navigator.clipboard.writeText = () => Promise.reject(new Error())")
    field(browser, "copy").click()
    wait(browser, "return getSelection().toString()")
    assert "Ctrl C" in field(browser, "copied").text


def test_the_form_follows_the_processor_and_takes_what_only_the_server_knows(tried, browser):
    got = tried()
    choose(browser, "processor", "own:Own")
    field(browser, "send").click()
    assert not browser.run("return document.getElementById('field-size').checkValidity()")
    assert not any(one.body for one in got), "nothing is sent without a required value"
    fill(browser, "field-size", "12")
    send(browser)
    choose(browser, "processor", "ChainLogitProcessor")
    send(browser)

    sent = [one.body["custom_params"] for one in got if one.body and "custom_params" in one.body]
    assert sent[0] == {"size": 12}
    assert sent[1]["chain"]
    assert any(key.startswith("1.") for key in sent[1]), "the links of the chain"


def test_what_is_no_object_is_refused_in_the_field(tried, browser):
    got = tried()
    choose(browser, "processor", "ChainLogitProcessor")
    fill(browser, "field-", "[1]")
    field(browser, "send").click()

    assert "Expected an object" in browser.run(
        "return document.getElementById('field-').validationMessage"
    )
    assert not any(one.body for one in got)
    fill(browser, "field-", '{"0.words": ["a"]}')
    send(browser)
    assert any(one.body for one in got)


def test_a_refusal_is_shown_with_its_message(tried, browser):
    tried(completions=Answered(400, {"error": {"message": "words: expected a list"}}))
    send(browser)

    assert status(browser) == "2 of 2 requests failed."
    assert "HTTP 400: words: expected a list" in field(browser, "answers").text
    assert not field(browser, "trace").is_displayed()
    assert field(browser, "note").text == "There is no answer to trace."


def test_html_in_an_answer_stays_text(tried, browser):
    tried(said=HOSTILE)
    send(browser)

    assert answers(browser)[0] == HOSTILE
    assert browser.driver.title == "Try a processor"
    assert browser.run("return document.images.length") == 0
    assert browser.errors == []


def test_a_page_that_is_gone_says_what_to_do(tried, browser):
    tried()
    browser.run("fetch = () => Promise.reject(new TypeError('gone'))")
    send(browser)

    assert "start sglang-lp try again" in status(browser)


#: Elements that are wider than the window.
WIDE = (
    "return [...document.querySelectorAll('body *')].filter((one) => "
    "one.getBoundingClientRect().right > document.documentElement.clientWidth + 1)"
    ".map((one) => one.tagName + '#' + one.id)"
)


@pytest.mark.parametrize("width", [390, 1280])
def test_everything_fits_the_window_and_every_field_has_a_label(tried, browser, width):
    browser.resize(width, 844)
    try:
        tried()
        choose(browser, "processor", "DRYLogitProcessor")
        browser.run("document.querySelector('details').open = true")
        send(browser)
        assert browser.run(WIDE) == []
        browser.driver.switch_to.frame(field(browser, "trace"))
        inside = "const page = document.documentElement; return page.scrollWidth - page.clientWidth"
        assert browser.run(inside) == 0
    finally:
        browser.driver.switch_to.default_content()
        browser.forget_the_size()
    unnamed = browser.run(
        "return [...document.querySelectorAll('input, select, textarea')]"
        ".filter((one) => !one.labels.length || !one.labels[0].textContent.trim()).length"
    )
    assert unnamed == 0


#: Contrast of the text of each kind of element with its background, the smallest first.
CONTRAST = r"""
const bright = (colour) => {
  const [r, g, b] = colour.match(/[\d.]+/g).slice(0, 3).map((one) => one / 255)
    .map((one) => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (one) => {
  const colour = getComputedStyle(one).backgroundColor;
  return colour === "rgba(0, 0, 0, 0)" ? behind(one.parentElement) : colour;
};
return Math.min(...[...document.querySelectorAll("p, label, button, input, pre, select, .dim")]
  .map((one) => [bright(getComputedStyle(one).color), bright(behind(one))])
  .map(([a, b]) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)));
"""


@pytest.mark.parametrize("dark", [False, True])
def test_the_page_can_be_read_in_light_and_dark(tried, browser, dark):
    browser.dark(on=dark)
    try:
        tried()
        send(browser)
        back = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert (back == "rgb(255, 255, 255)") != dark
        assert browser.run(CONTRAST) >= 4.5
    finally:
        browser.dark(on=False)
