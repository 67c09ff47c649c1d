"""The catalogues of a policy, opened: all of them as they should be, or no server."""

import os
from queue import Queue

import numpy as np
import pytest

from sglang_lp.catalogue.build import build
from sglang_lp.catalogue.file import save
from sglang_lp.catalogue.index import CatalogueError, Index
from sglang_lp.catalogue.opened import Renewal
from sglang_lp.catalogue.source import MAX_CATALOGUES, CatalogueSource
from sglang_lp.catalogue.watching import watch
from sglang_lp.errors import PolicyError
from sglang_lp.trust import Policy

SETS = {"fresh": [True, False, True], "eu": [False, True, True], "old": [False, True, False]}


@pytest.fixture
def folder(tmp_path):
    """A folder with a catalogue of three items, ``items.cat``."""
    named = {name: np.array(own) for name, own in SETS.items()}
    save(build(np.array([[1, 2], [1, 3], [4, 5]], np.int32), sets=named), tmp_path / "items.cat")
    return tmp_path


def opened(folder, table):
    path = folder / "policy.toml"
    path.write_text(f"[catalogues.items]\n{table}")
    return Policy.from_toml(path).open_catalogues()


def tokens_after_nothing(found):
    return found.tokens(0, 0).tolist()


def test_a_file_is_looked_for_beside_the_policy(folder):
    (one,) = opened(folder, 'file = "items.cat"').now.values()

    assert (one.name, one.index.shape.items) == ("items", 3)
    assert one.sets == {*SETS}
    assert tokens_after_nothing(one.within(())) == [1, 4]
    assert tokens_after_nothing(one.within((("old",),))) == [1]
    assert one.within((("fresh", "old"), ("eu",))).total == 2


def test_the_operators_sets_hold_for_every_request(folder):
    (one,) = opened(folder, 'file = "items.cat"\nsets = ["eu"]\nalways = ["fresh"]').now.values()

    assert one.sets == {"eu"}
    assert one.within(()).total == 2
    assert tokens_after_nothing(one.within((("eu",),))) == [4]


def test_the_counts_of_sets_are_made_once(folder):
    (one,) = opened(folder, 'file = "items.cat"').now.values()

    assert one.within((("eu",),)) is one.within((["eu"],))
    twice = [["old", "eu", "old"], ["fresh"], ["eu", "old"]]
    assert one.within(twice) is one.within([["fresh"], ["eu", "old"]])


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ('file = "none.cat"', "catalogues.items: .*none.cat: cannot be read"),
        ('file = "policy.toml"', "catalogues.items: .*policy.toml: expected a catalogue"),
        ('file = "items.cat"\nsets = ["new"]', "catalogues.items: expected the sets 'new' in"),
        ('file = "items.cat"\nalways = ["new"]', "catalogues.items: expected the sets 'new' in"),
        ('file = "items.cat"\nalways = ["fresh", "old"]', "an item that is in all sets of always"),
        (
            'path = "items.cat"',
            "catalogues.items: unknown key 'path'; expected one of file, sets, always",
        ),
        ("", "catalogues.items: expected a table with file, got none; its keys: file, sets"),
    ],
)
def test_a_server_does_not_start_with_a_catalogue_that_is_not_as_the_policy_says(
    folder, table, message
):
    with pytest.raises(PolicyError, match=message):
        opened(folder, table)


def test_a_server_does_not_start_with_a_damaged_catalogue(folder):
    path = folder / "items.cat"
    bytes_ = bytearray(path.read_bytes())
    bytes_[16 * 4096] ^= 1  # of the first array
    path.write_bytes(bytes_)

    with pytest.raises(PolicyError, match=r"catalogues.items: .*damaged"):
        opened(folder, 'file = "items.cat"')


def test_names_and_number_of_catalogues_are_bounded():
    source = CatalogueSource(file="items.cat")
    with pytest.raises(PolicyError, match="a name like an identifier, got 'my items'"):
        Policy(catalogues={"my items": source})
    with pytest.raises(PolicyError, match=f"at most {MAX_CATALOGUES}, got {MAX_CATALOGUES + 1}"):
        Policy(catalogues={f"c{n}": source for n in range(MAX_CATALOGUES + 1)})


# New versions


def index_of(*items, sets=True):
    named = {name: np.ones(len(items), bool) for name in SETS} if sets else {}
    return build(np.array(items, np.int32), sets=named)


def looks(catalogues, times=2):
    """Return the outcomes of some looks for new versions."""
    return [found for _ in range(times) for found in catalogues.renew()]


class User:
    """Stands for a request of a version."""


def test_a_new_file_is_taken_up_at_the_second_look_and_the_old_version_lives_on(folder):
    catalogues = opened(folder, 'file = "items.cat"')
    old = catalogues.now["items"]
    assert looks(catalogues) == []

    save(index_of((7, 8)), folder / "items.cat")

    assert looks(catalogues, 1) == []  # it may still be being written
    assert looks(catalogues, 1) == [Renewal("items")]
    written = (folder / "items.cat").stat().st_mtime
    assert catalogues.now["items"].written == pytest.approx(written)
    assert tokens_after_nothing(catalogues.now["items"].within(())) == [7]
    assert tokens_after_nothing(old.within(())) == [1, 4]
    assert looks(catalogues) == []


def test_the_same_items_in_another_file_are_no_new_version(folder):
    catalogues = opened(folder, 'file = "items.cat"')
    before = catalogues.now

    save(before["items"].index, folder / "items.cat")

    assert looks(catalogues) == []
    assert catalogues.now is before


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda path: path.write_bytes(b"x" * 5000), "expected a file that"),
        (lambda path: path.write_bytes(path.read_bytes()[:-4096]), "it was cut or is still"),
        (lambda path: save(index_of((7, 8), sets=False), path), "expected the sets 'eu' in"),
        (lambda path: save(index_of((7, 100)), path), "0 to 99, got 100"),
    ],
)
def test_a_version_that_cannot_be_opened_changes_nothing_and_is_told_once(folder, spoil, problem):
    catalogues = opened(folder, 'file = "items.cat"\nsets = ["eu"]')
    catalogues.fit(100)
    before = catalogues.now

    spoil(folder / "items.cat")

    (told,) = looks(catalogues, 5)
    assert problem in told.problem
    assert catalogues.now is before
    save(index_of((7, 8)), folder / "items.cat")
    assert looks(catalogues) == [Renewal("items")]


def test_a_file_that_could_not_be_read_is_taken_up_when_its_permissions_are_mended(
    folder, monkeypatch
):
    catalogues = opened(folder, 'file = "items.cat"')
    path = folder / "items.cat"
    save(index_of((7, 8)), path)
    path.chmod(0)
    with monkeypatch.context() as unreadable:  # root may read every file
        unreadable.setattr("sglang_lp.catalogue.opened.load", deny)
        assert [one.problem for one in looks(catalogues, 3)] == ["catalogues.items: denied"]

    path.chmod(0o644)

    assert looks(catalogues) == [Renewal("items")]


def deny(_path, **_):
    raise CatalogueError("denied")


def test_the_file_of_the_version_in_use_put_back_after_a_refused_file_is_told(folder):
    catalogues = opened(folder, 'file = "items.cat"')
    good = (folder / "items.cat").read_bytes()
    version = catalogues.versions
    (folder / "items.cat").write_bytes(b"x" * 5000)
    assert [one.problem is None for one in looks(catalogues)] == [False]

    (folder / "items.cat").write_bytes(good)

    assert looks(catalogues, 5) == [Renewal("items")]
    assert catalogues.versions == version


def test_without_a_file_the_version_stays(folder):
    catalogues = opened(folder, 'file = "items.cat"')
    before = catalogues.now
    (folder / "items.cat").unlink()

    assert looks(catalogues) == []
    assert catalogues.now is before
    save(index_of((7, 8)), folder / "items.cat")
    assert looks(catalogues) == [Renewal("items")]


def test_a_third_version_waits_for_the_requests_of_the_first(folder):
    catalogues = opened(folder, 'file = "items.cat"')
    user = User()
    catalogues.now["items"].users.add(user)
    save(index_of((7, 8)), folder / "items.cat")
    assert looks(catalogues) == [Renewal("items")]

    save(index_of((9, 8)), folder / "items.cat")

    assert looks(catalogues, 5) == []
    del user
    assert looks(catalogues) == [Renewal("items")]
    assert tokens_after_nothing(catalogues.now["items"].within(())) == [9]


def test_a_server_does_not_start_with_tokens_that_its_model_lacks(folder):
    catalogues = opened(folder, 'file = "items.cat"')
    catalogues.fit(6)

    with pytest.raises(CatalogueError, match=r"catalogues.items: .*0 to 4, got 5; build it for"):
        catalogues.fit(5)


def test_a_server_does_not_start_with_a_token_that_ends_the_answer_inside_of_an_item(folder):
    catalogues = opened(folder, 'file = "items.cat"')
    catalogues.fit(100, {2, 3, 5})

    with pytest.raises(CatalogueError, match=r"catalogues.items: .*got 1 inside of .* item 0"):
        catalogues.fit(100, {1})


def test_the_items_are_checked_once_for_a_model_however_many_requests_come(folder, monkeypatch):
    catalogues = opened(folder, 'file = "items.cat"')
    catalogues.fit(100, {2})
    checked = []
    monkeypatch.setattr(Index, "misfit", lambda *given: checked.append(given))

    catalogues.fit(100, {2})
    assert checked == []
    catalogues.fit(101, {2})
    assert len(checked) == 1


def test_a_thread_looks_for_new_versions_and_names_its_process(folder, caplog):
    caplog.set_level("INFO", logger="sglang_lp")
    catalogues = opened(folder, 'file = "items.cat"')
    renewed = Queue()
    watch(catalogues, renewed.put, "scheduler")

    save(index_of((7, 8)), folder / "items.cat")

    assert renewed.get(timeout=20) == Renewal("items")

    (folder / "items.cat").write_bytes(b"x" * 5000)

    assert renewed.get(timeout=20).problem
    process = f"(scheduler process, pid {os.getpid()})"
    taken_up, refused = caplog.messages
    assert taken_up.startswith("catalogues.items: takes up ")
    assert "; the version before it stays " in refused
    assert taken_up.endswith(process)
    assert refused.endswith(process)
