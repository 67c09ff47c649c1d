"""Every page of the documentation, opened from its folder: ``make test SUITE=docs``."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytestmark = pytest.mark.docs

SITE = Path(__file__).parents[2] / "build" / "site"
ROOT_PAGE = "index.html"
PAGES = sorted({path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html")} - {ROOT_PAGE})


def test_the_site_has_the_pages_of_all_three_paths():
    wanted = {"docs/index", "README", "SECURITY", "CHANGELOG", "docs/processors"}
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


def test_the_button_of_a_console_copies_its_commands_and_nothing_else(browser):
    browser.open(SITE / "docs" / "start" / "requests.html")
    copied = browser.run("""
        const copied = [];
        navigator.clipboard.writeText = async (text) => copied.push(text);
        document.querySelector(".highlight-console button.copy").click();
        document.querySelector(".highlight-python button.copy").click();
        return copied;
    """)

    assert copied[0] == "pip install sglang-lp openai\n"
    assert copied[1].startswith("from openai import OpenAI\n")


def test_the_search_works_in_a_folder(browser):
    from selenium.webdriver.support.ui import WebDriverWait

    browser.driver.get(f"{(SITE / 'search.html').as_uri()}?q=thinking+budget")
    WebDriverWait(browser.driver, 20).until(
        lambda _: browser.run("return document.querySelectorAll('#search-results li a').length")
    )
    found = browser.run(
        "return [...document.querySelectorAll('#search-results li a')].map((one) => one.href)"
    )

    assert any("docs/thinking.html" in link for link in found)
