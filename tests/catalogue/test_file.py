"""Catalogue files: a saved catalogue loads unchanged, and a broken file raises an error."""

import numpy as np
import pytest

from sglang_lp.catalogue.build import PAD, build
from sglang_lp.catalogue.file import load, save
from sglang_lp.catalogue.index import CatalogueError

ITEMS = np.array([[5, 7], [5, 8], [6, 7], [5, 7]], dtype=np.int32)


def built(**options):
    return build(
        ITEMS,
        np.array([b"ring", b"bell", "\u00fcber".encode(), b"book"]),
        sets={"fresh": np.array([True, False, True, False])},
        **options,
    )


def equal(one, other):
    return (
        one.version == other.version
        and one.shape == other.shape
        and all(
            a.dtype == b.dtype and a.tolist() == b.tolist()
            for a, b in zip(one.arrays, other.arrays, strict=True)
        )
        and {name: bits.tolist() for name, bits in one.sets.items()}
        == {name: bits.tolist() for name, bits in other.sets.items()}
    )


@pytest.mark.parametrize("end", [None, 99])
def test_a_mapped_index_is_the_one_that_was_built(tmp_path, end):
    index = built(end=end)

    size = save(index, tmp_path / "items.cat")

    assert size == (tmp_path / "items.cat").stat().st_size
    assert equal(load(tmp_path / "items.cat"), index)
    load(tmp_path / "items.cat", whole=True)


def test_items_of_unequal_length_come_back(tmp_path):
    index = build(np.array([[5, PAD], [6, 7], [6, 8]], np.int32))

    save(index, tmp_path / "items.cat")

    assert equal(load(tmp_path / "items.cat"), index)


def test_whoever_mapped_a_file_keeps_it_when_another_takes_its_place(tmp_path):
    path = tmp_path / "items.cat"
    save(built(), path)
    old = load(path)

    save(build(ITEMS[:1]), path)

    assert equal(old, built())
    assert load(path).shape.items == 1
    assert [one.name for one in tmp_path.iterdir()] == ["items.cat"]


def test_a_damaged_array_is_named(tmp_path):
    path = tmp_path / "items.cat"
    save(built(), path)
    raw = bytearray(path.read_bytes())
    raw[raw.rindex(b"bell")] ^= 1
    path.write_bytes(raw)

    with pytest.raises(CatalogueError, match="damaged: ids does not match its checksum"):
        load(path, whole=True)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda raw: raw[:100], "expected a catalogue, got 100 bytes"),
        (lambda raw: raw[:-4096], "it was cut or is still being copied"),
        (lambda raw: b"PAR1" + raw[4:], "sglang-lp catalogue build"),
        (lambda raw: raw[:16] + b"!" + raw[17:], "the header cannot be read: JSON is malformed"),
        (lambda raw: raw.replace(b'"levels"', b'"knots!"'), "the header cannot be read: Object"),
        (lambda raw: raw.replace(b'"items":3', b'"items":9'), "do not fit its shape"),
        (lambda raw: raw.replace(b'"|S5"', b'"|O8"'), "expected a known type"),
        (lambda raw: raw.replace(b'"by_id"', b'"by_if"'), "array 'by_id' is missing"),
    ],
)
def test_a_file_that_is_no_catalogue_is_refused_with_the_reason(tmp_path, damage, message):
    path = tmp_path / "items.cat"
    save(built(), path)
    path.write_bytes(damage(path.read_bytes()))

    with pytest.raises(CatalogueError, match=message):
        load(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(CatalogueError, match="cannot be read: No such file"):
        load(tmp_path / "none.cat")
    with pytest.raises(CatalogueError, match="cannot be written: No such file"):
        save(built(), tmp_path / "none" / "items.cat")
