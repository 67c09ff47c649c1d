"""Sphinx's settings for the site: ``make docs``.

The source is the whole checkout, so that links in Markdown files work in the repository and in the
site. Files that are not pages are copied into the site.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the pages are about this checkout, not about what is installed

project = "sglang-lp"
author = project_copyright = "The sglang-lp authors"
version = release = metadata.version("sglang-lp")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
include_patterns = ["docs/**.md", "*.md", "scripts/*.md"]
root_doc = "docs/index"

#: The site's navigation, which Markdown cannot express: a part for each kind of reader. Pages that
#: are not named here come last.
NAVIGATION = {
    "Send requests": [
        *("start/requests", "recipes", "processors", "text", "choices"),
        *("thinking", "think-less", "thinking-models"),
        *("structured", "try", "trace", "request-fields", "routes", "errors", "evidence"),
        "api/client",
    ],
    "Run a server": [
        *("start/server", "install", "/SECURITY", "policy", "operating", "monitoring", "runbook"),
        "watermark",
        *("deploying", "disaggregation", "performance", "performance-drafts", "performance-gpu"),
        *("bounds", "scale", "matrix"),
        *("versions", "upgrading", "api/trust"),
    ],
    "Write processors": [
        *("start/processor", "bring-your-own", "history", "api/writing", "api/testing"),
    ],
    "Train and recommend": ["rollouts", "catalogues", "beams"],
    "More": ["glossary", "/README", "api/trace", "api/errors", "/CHANGELOG", "/CONTRIBUTING"],
}
#: Folders whose pages are below a page in the navigation, in the order of its links.
BELOW = {"docs/processors": "docs/processors/"}
#: Pages that no reader needs in the navigation; others link to them.
ASIDE = ("scripts/mutants",)

html_theme = "furo"
if "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text():
    html_theme_options = {
        "announcement": f"These pages are about what comes after {release}. Those of a release are "
        "in its tag: <em>SGLang versions</em> says where."
    }
html_static_path = ["static"]
html_css_files = ["copy.css", "fit.css"]
html_js_files = [(script, {"defer": "defer"}) for script in ("copy.js", "snippets.js")]
html_search_scorer = str(ROOT / "docs" / "scorer.js")
html_title = f"sglang-lp {release}"
html_copy_source = False
html_show_sphinx = False
templates_path: list[str] = []

myst_heading_anchors = 4
# The headings of a changelog repeat themselves, and README's first section is not its second level.
suppress_warnings = ["myst.header"]
myst_links_external_new_tab = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_use_ivar = True
napoleon_include_init_with_doc = False


def _navigate(app: Sphinx, name: str, source: list[str]) -> None:
    """Add the navigation to the front page, and to pages that have others below them."""
    if name in ASIDE:
        source[0] = f"---\norphan: true\n---\n\n{source[0]}"
    elif name in BELOW:
        folder = BELOW[name]
        linked = re.findall(rf"\(({Path(folder).name}/\w+)\.md\)", source[0])
        below = [f"{Path(folder).parent.as_posix()}/{page}" for page in dict.fromkeys(linked)]
        missing = {page for page in app.env.found_docs if page.startswith(folder)} - {*below}
        source[0] += _toctree([f"/{page}" for page in (*below, *sorted(missing))])
    elif name == root_doc:
        named = {
            page[1:] if page[0] == "/" else f"docs/{page}"
            for pages in NAVIGATION.values()
            for page in pages
        }
        below_others = tuple(BELOW.values())
        rest = app.env.found_docs - named - {root_doc, *ASIDE}
        others = [f"/{page}" for page in sorted(rest) if not page.startswith(below_others)]
        for caption, pages in NAVIGATION.items():
            last = caption == [*NAVIGATION][-1]
            listed = [*pages, *(others if last else ())]
            source[0] += _toctree(listed, f":caption: {caption}\n")


def _toctree(pages: list[str], options: str = "") -> str:
    listed = "\n".join(pages)
    return f"\n```{{toctree}}\n:hidden:\n{options}\n{listed}\n```\n"


def _skip(_app: Sphinx, _what: str, _name: str, thing: Any, skip: bool, _options: Any) -> bool:  # noqa: FBT001
    """Leave out what Python writes itself about the fields of a named tuple."""
    return skip or str(getattr(thing, "__doc__", "")).startswith("Alias for field number")


def _lead_to_the_front_page(app: Sphinx, error: Exception | None) -> None:
    """Give the site an ``index.html`` at its root, which is what a host serves."""
    if error is None:
        page = f"{root_doc}.html"
        (Path(app.outdir) / "index.html").write_text(
            f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html_title}</title>'
            f'<meta http-equiv="refresh" content="0; url={page}">'
            f'<a href="{page}">{html_title}</a></html>\n'
        )


def setup(app: Sphinx) -> None:
    """Connect the above."""
    app.connect("build-finished", _lead_to_the_front_page)
    app.connect("source-read", _navigate)
    app.connect("autodoc-skip-member", _skip)
