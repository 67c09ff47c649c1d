"""The catalogues of a policy, opened: all of them as they should be, or no server."""

import numpy as np
import pytest

from sglang_lp.catalogue.build import build
from sglang_lp.catalogue.file import save
from sglang_lp.catalogue.source import MAX_CATALOGUES, Source
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
    source = Source(file="items.cat")
    with pytest.raises(PolicyError, match="a name like an identifier, got 'my items'"):
        Policy(catalogues={"my items": source})
    with pytest.raises(PolicyError, match=f"at most {MAX_CATALOGUES}, got {MAX_CATALOGUES + 1}"):
        Policy(catalogues={f"c{n}": source for n in range(MAX_CATALOGUES + 1)})
