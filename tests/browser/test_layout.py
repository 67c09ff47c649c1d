"""Pages of the documentation fit a wide window and a telephone: ``make test SUITE=docs``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

SITE = Path(__file__).parents[2] / "build" / "site"
PAGES = sorted(
    {path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html")} - {"index.html"}
)
#: Pages to read: no source code, no index, no changelog, and no page made from docstrings, in which
#: a heading for every section would fill the contents.
READ = [
    page
    for page in PAGES
    if page.startswith(("docs/", "scripts/", "README", "SECURITY", "CONTRIBUTING"))
]
#: Pages for readers end before this height in a wide window, in pixels. Pages made of docstrings
#: are for looking up.
HEIGHT = 12_000
PLOTS = sorted(path.stem for path in (Path(__file__).parents[2] / "docs" / "plots").glob("*.svg"))
WIDE, NARROW = (1280, 800), (390, 844)
SCREENS = 3

#: What is wider than the column without a scroll of its own, what is cut, and tables that scroll.
OVERFLOW = r"""
const [wide] = arguments, found = [];
const root = document.documentElement, main = document.querySelector("[role=main]");
const column = main.getBoundingClientRect();
const text = (element) => (element.textContent || element.alt || "").trim().slice(0, 60);
const tell = (how, element) => found.push(`${how}: <${element.localName}> ${text(element)}`);
const scrolls = (element) => ["auto", "scroll"].includes(getComputedStyle(element).overflowX);
function isInScroll(element) {
  for (let at = element.parentElement; at !== main; at = at.parentElement) {
    if (scrolls(at)) return true;
  }
  return false;
}
if (root.scrollWidth > root.clientWidth) found.push("the page is wider than its window");
const kinds = "img, svg, table, pre, p, li, dd, code, span, a, .table-wrapper";
for (const element of main.querySelectorAll(kinds)) {
  let {right} = element.getBoundingClientRect();
  for (const node of scrolls(element) ? [] : element.childNodes) {
    if (node.nodeType !== Node.TEXT_NODE) continue;
    const range = document.createRange();
    range.selectNodeContents(node); // text may be wider than the box of its paragraph
    right = Math.max(right, range.getBoundingClientRect().right);
  }
  // A table's wrapper is wider than its column by a few pixels on either side.
  if (right > column.right + 8 && !isInScroll(element)) tell("beyond its column", element);
}
for (const element of main.querySelectorAll("*")) {
  const cuts = ["hidden", "clip"].includes(getComputedStyle(element).overflowX);
  // A width of 1 is how a theme hides text that only a screen reader reads.
  const {clientWidth, scrollWidth} = element;
  if (cuts && clientWidth > 1 && scrollWidth > clientWidth) tell("cut", element);
}
for (const {clientWidth, scrollWidth, firstChild} of main.querySelectorAll(".table-wrapper")) {
  if (wide && scrollWidth > clientWidth) tell("scrolls in a wide window", firstChild);
}
for (const block of wide ? main.querySelectorAll("pre") : []) {
  if (block.scrollWidth > block.clientWidth) tell("scrolls in a wide window", block);
}
return found;
"""

#: Heights from each heading to the next heading, less the tallest table between them, in pixels.
STRETCHES = r"""
const main = document.querySelector("[role=main]"), top = (one) => one.getBoundingClientRect().top;
const headings = [...main.querySelectorAll("h1, h2, h3, h4, dt.sig")];
const ends = [...headings.slice(1).map(top), main.getBoundingClientRect().bottom];
const tables = [...main.querySelectorAll("table")];
return headings.map((heading, number) => {
  const inside = tables.filter((one) => top(one) > top(heading) && top(one) < ends[number]);
  const longest = Math.max(0, ...inside.map((one) => one.getBoundingClientRect().height));
  return [heading.textContent, Math.round(ends[number] - top(heading) - longest)];
});
"""


@pytest.fixture
def opened(browser):
    def show(page, size):
        browser.resize(*size)
        browser.open(SITE / page)
        return browser

    yield show
    browser.forget_the_size()


@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
@pytest.mark.parametrize("page", PAGES)
def test_everything_on_a_page_fits_its_column_or_scrolls_by_itself(opened, page, size):
    assert opened(page, size).run(OVERFLOW, size == WIDE) == []


@pytest.mark.parametrize("page", READ)
def test_a_heading_comes_every_three_screens_of_text(opened, page):
    stretches = opened(page, WIDE).run(STRETCHES)

    assert stretches
    assert [one for one in stretches if one[1] > SCREENS * WIDE[1]] == []


@pytest.mark.parametrize("page", [page for page in READ if not page.startswith("docs/api/")])
def test_a_page_is_no_longer_than_its_reader_scrolls(opened, page):
    assert opened(page, WIDE).run("return document.documentElement.scrollHeight") <= HEIGHT


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/processors/")])
def test_the_request_of_a_processor_is_on_the_first_screen(opened, page):
    end = opened(page, WIDE).run(
        "return document.querySelector('.highlight-sh').getBoundingClientRect().bottom"
    )

    assert end <= WIDE[1]


@pytest.mark.parametrize(
    ("html", "how"),
    [
        (
            "<img src='../_images/trace.png' style='max-width: none; width: 2000px'>",
            "beyond its column",
        ),
        ("<table><tr><td style='min-width: 2000px'>wide</table>", "beyond its column"),
        ("<div class='highlight'><pre>" + "word " * 50, "scrolls in a wide window"),
        ("<p style='white-space: nowrap'>" + "word " * 500, "beyond its column"),
        ("<p style='white-space: nowrap; overflow: hidden'>" + "word " * 500, "cut"),
        (
            "<div class='table-wrapper container'><table><tr><td style='min-width: 2000px'>wide",
            "scrolls in a wide window",
        ),
    ],
)
def test_what_does_not_fit_is_found(opened, html, how):
    browser = opened("docs/index.html", WIDE)
    browser.run(
        "document.querySelector('[role=main]').insertAdjacentHTML('beforeend', arguments[0])", html
    )

    assert any(one.startswith(how) for one in browser.run(OVERFLOW, True))


def test_a_stretch_without_a_heading_is_found(opened):
    browser = opened("docs/index.html", WIDE)
    browser.run(
        "document.querySelector('[role=main]').insertAdjacentHTML('beforeend', arguments[0])",
        "<p>word" * 200,
    )

    assert max(height for _, height in browser.run(STRETCHES)) > SCREENS * WIDE[1]


@pytest.mark.parametrize("chosen", ["light", "dark"])
def test_a_plot_follows_the_theme_that_the_reader_chose(opened, chosen):
    browser = opened("docs/evidence.html", WIDE)
    browser.run("document.body.dataset.theme = arguments[0]", chosen)

    schemes = browser.run(
        "return [...document.querySelectorAll('img[src$=svg]')]"
        ".map((plot) => getComputedStyle(plot).colorScheme)"
    )
    assert {*schemes} == {chosen}


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("plot", PLOTS)
def test_the_text_of_a_plot_stands_out_from_its_background(browser, plot, dark):
    browser.open(SITE / "_images" / f"{plot}.svg")
    browser.dark(on=dark)
    try:
        fills = browser.run(
            "return [...document.querySelectorAll('#patch_1 path, text, [id^=text_] use')]"
            ".map((one) => getComputedStyle(one).fill)"
        )
    finally:
        browser.dark(on=False)
    background, *texts = map(luminance, fills)

    assert texts
    assert (background < 0.5) == dark
    for text in texts:
        # The contrast of WCAG 2.2, level AA.
        assert (max(text, background) + 0.05) / (min(text, background) + 0.05) >= 4.5


def luminance(colour: str) -> float:
    """Return the relative luminance of ``rgb(r, g, b)``, as WCAG 2.2 defines it."""
    parts = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    red, green, blue = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
