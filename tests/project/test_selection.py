"""``-m`` selects the tests that CONTRIBUTING.md promises: a suite runs only where it is named."""

import re
from pathlib import Path

import pytest

from scripts.targets import QUICK_ROOMS

ROOT = Path(__file__).parents[2]
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
(DOCUMENTED,) = re.findall(r'pytest -m "(.+?)"`', CONTRIBUTING)

UNMARKED = "test_every_worker_takes_its_arguments"
FLEET = "test_hadolint_finds_nothing_in_the_dockerfile"
DOCS = "test_the_search_works_in_a_folder"


class Collected:
    """A plugin of pytest that keeps the names of the selected tests."""

    names: set[str]

    def pytest_collection_finish(self, session):
        self.names = {item.name for item in session.items} & {UNMARKED, FLEET, DOCS}


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], {UNMARKED}),
        (["-m", DOCUMENTED], {UNMARKED}),
        (["-m", "engine"], set()),
        (["-m", "fleet"], {FLEET}),
        (["-m", "docs"], {DOCS}),
        (["-m", "fleet or docs"], {FLEET, DOCS}),
        (["-m", "not fleet"], {UNMARKED}),
    ],
)
def test_what_runs_on_request_runs_only_where_it_is_named(arguments, names):
    collected = Collected()
    files = [ROOT / "tests/fleet/test_deploy.py", ROOT / "tests/browser/test_site.py"]
    quietly = ["--collect-only", "-qq", "--rootdir", ROOT, "-p", "no:cacheprovider"]

    pytest.main([*map(str, [*quietly, *files]), *arguments], plugins=[collected])

    assert collected.names == names


def test_functions_raise_on_a_fleet_after_they_raised_on_single_servers():
    class Order:
        def pytest_collection_finish(self, session):
            self.files = [item.path for item in session.items]

    order = Order()
    files = [
        ROOT / f"tests/{name}.py" for name in ("fleet/test_injected_apart", "live/test_injected")
    ]
    quietly = ["--collect-only", "-qq", "--rootdir", ROOT, "-p", "no:cacheprovider"]

    pytest.main([*map(str, [*quietly, *files]), "-m", "faults and (fleet or not fleet)"], [order])

    assert order.files[0] == files[1]
    assert order.files[-1] == files[0]


@pytest.mark.parametrize("room", QUICK_ROOMS)
def test_a_room_of_the_quick_tests_has_tests(room):
    assert [*(ROOT / "tests" / room).rglob("test_*.py")]
