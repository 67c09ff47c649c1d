"""The table of docs/versions.md has the stored test results of each supported SGLang."""

import orjson

from scripts import versions
from scripts.environments import RELEASES
from sglang_lp.server.versions import NEWEST, OLDEST
from support.settings import ROOT


def stored():
    return orjson.loads((ROOT / versions.STORED).read_bytes())


def test_the_page_shows_what_is_stored():
    assert versions.table(stored()) in (ROOT / versions.PAGE).read_text()


def test_every_supported_release_was_tried_and_nothing_failed():
    assert [*stored()] == [*RELEASES, NEWEST]
    assert RELEASES[0] == OLDEST
    for release, modules in stored().items():
        assert {f"tests/live/{module}.py" for module in modules} == {*versions.CORE}
        for module, outcomes in modules.items():
            assert "failed" not in outcomes, f"{release}: {module}"
            assert outcomes.get("passed") or outcomes.get("skipped")


def test_the_core_names_modules_that_there_are():
    assert all((ROOT / module).exists() for module in versions.CORE)
