"""Every page of the documentation, opened from its folder: ``make test SUITE=docs``."""

from __future__ import annotations

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.docs

SITE = Path(__file__).parents[2] / "build" / "site"
ROOT_PAGE = "index.html"
PAGES = sorted({path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html")} - {ROOT_PAGE})


def test_the_site_has_the_pages_of_every_path():
    wanted = {"docs/index", "README", "SECURITY", "CHANGELOG", "docs/processors", "docs/rollouts"}
    wanted |= {f"docs/start/{path}" for path in ("requests", "server", "processor")}

    assert {f"{page}.html" for page in wanted} <= {*PAGES}


def test_the_root_of_the_site_leads_to_its_front_page(browser):
    from selenium.webdriver.support.ui import WebDriverWait

    browser.driver.get((SITE / ROOT_PAGE).as_uri())
    WebDriverWait(browser.driver, 20).until(
        lambda driver: driver.current_url.endswith("/docs/index.html")
    )

    assert (SITE / "docs" / "index.html").exists()


@pytest.mark.parametrize("page", PAGES)
def test_a_page_opens_without_an_error_and_asks_for_nothing_elsewhere(browser, page):
    browser.open(SITE / page)

    assert browser.run("return document.querySelector('[role=main]').textContent.trim()")
    assert browser.errors == []
    assert {urlsplit(url).scheme for url in browser.requests} <= {"file", "data"}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_within_the_site_leads_somewhere(browser, page):
    browser.open(SITE / page)
    links = browser.run("return [...document.links].map((link) => link.href)")
    inside = {urlsplit(link).path for link in links if link.startswith("file:")}

    assert [link for link in inside if not Path(link).exists()] == []


def copied(browser, page):
    """Press every button of a page; return what each of them copies."""
    browser.open(SITE / page)
    return browser.run("""
        const copied = [];
        navigator.clipboard.writeText = async (text) => copied.push(text);
        document.querySelectorAll("button.copy").forEach((button) => button.click());
        return copied;
    """)


def test_the_button_of_a_console_copies_its_commands_and_nothing_else(browser):
    texts = copied(browser, "docs/start/requests.html")

    assert "pip install sglang-lp openai\n" in texts
    assert any(text.startswith("from openai import OpenAI\n") for text in texts)
    assert not any(text.startswith("$ ") for text in texts)


def test_the_button_copies_the_whole_of_a_here_document(browser):
    (text,) = (one for one in copied(browser, "docs/deploying.html") if "<<'EOF'" in one)

    assert text.startswith("curl ")
    assert text.endswith("\nEOF\n")


def search(browser, url, words):
    """Search the site for words; return the links and the snippets that it shows."""
    from selenium.webdriver.support.ui import WebDriverWait

    browser.visit(f"{url}/search.html?q={words.replace(' ', '+')}")
    WebDriverWait(browser.driver, 20).until(
        lambda _: "finished" in browser.run("return document.body.textContent")
    )
    return browser.run("""
        const all = (what) => [...document.querySelectorAll(`#search-results li ${what}`)];
        return [all("a").map((one) => one.href), all("p.context").map((one) => one.textContent)];
    """)


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("banned words", "processors/BadWordsLogitProcessor"),
        ("json", "structured"),
        ("semantic id", "catalogues"),
        ("systemd", "deploying"),
        ("thinking budget", "processors/ThinkingBudgetLogitProcessor"),
    ],
)
def test_the_search_shows_the_page_that_is_meant_among_the_first_three(browser, words, page):
    links, _ = search(browser, SITE.as_uri(), words)

    assert f"docs/{page}.html" in " ".join(links[:3])


def test_the_search_works_in_a_folder(browser):
    links, snippets = search(browser, SITE.as_uri(), "thinking budget")

    assert any("docs/thinking.html" in link for link in links)
    assert snippets == []
    assert browser.errors == []


@pytest.fixture
def served():
    """Serve the site on loopback."""
    handler = partial(QuietHandler, directory=str(SITE))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_a_served_site_finds_a_processor_by_its_name_and_shows_what_stands_around_it(
    browser, served
):
    links, snippets = search(browser, served, "CiteFromPromptLogitProcessor")

    assert "docs/processors/CiteFromPromptLogitProcessor.html" in links[0]
    assert any("CiteFromPromptLogitProcessor" in snippet for snippet in snippets)
    assert {urlsplit(url).hostname for url in browser.requests} <= {"127.0.0.1", None}
