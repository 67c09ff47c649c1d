"""Items out of an operator's files: every format says the same, and what does not fit is named."""

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from sglang_lp.catalogue.index import CatalogueError
from sglang_lp.catalogue.items import read

ROWS = [
    {"id": 10, "tokens": [5, 7, 9], "sets": ["fresh", "eu"]},
    {"id": 11, "tokens": [5, 8], "sets": []},
    {"id": -4, "tokens": [6], "sets": ["eu"]},
]
CODES = [[5, 7, 9], [5, 8, -1], [6, -1, -1]]


def written(path, rows=ROWS):
    if path.suffix == ".jsonl":
        path.write_bytes(b"".join(orjson.dumps(row) + b"\n" for row in rows))
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    else:
        pyarrow.feather.write_feather(pa.Table.from_pylist(rows), path)
    return path


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".feather", ".arrow"])
def test_every_format_holds_the_same_items(tmp_path, suffix):
    items = read(written(tmp_path / f"items{suffix}"))

    assert items.codes.tolist() == CODES
    assert items.codes.dtype == np.int32
    assert items.ids.tolist() == [10, 11, -4]
    assert {name: own.tolist() for name, own in items.sets.items()} == {
        "eu": [True, False, True],
        "fresh": [True, False, False],
    }


def test_an_array_holds_token_ids_alone(tmp_path):
    np.save(tmp_path / "items.npy", np.array(CODES, dtype=np.int64))

    items = read(tmp_path / "items.npy")

    assert (items.codes.tolist(), items.ids, items.sets) == (CODES, None, {})


def test_columns_may_have_other_names_and_ids_may_be_texts(tmp_path):
    rows = [{"sku": "ring-ü", "sid": [1, 2]}, {"sku": "b", "sid": [1, 3]}]

    items = read(written(tmp_path / "items.parquet", rows), {"id": "sku", "tokens": "sid"})

    assert items.codes.tolist() == [[1, 2], [1, 3]]
    assert [one.decode() for one in items.ids.tolist()] == ["ring-ü", "b"]


def test_tokens_of_a_fixed_number_are_read(tmp_path):
    tokens = pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2))
    pyarrow.parquet.write_table(pa.table({"tokens": tokens}), tmp_path / "items.parquet")

    items = read(tmp_path / "items.parquet")

    assert (items.codes.tolist(), items.ids) == ([[1, 2], [3, 4]], None)


def test_texts_become_the_tokens_of_the_model(tmp_path):
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    tokenizer = Tokenizer(WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    seen = []

    items = read(
        written(tmp_path / "items.jsonl", [{"text": "a b"}, {"text": "b"}]),
        tokenizer=tokenizer,
        progress=lambda done, total: seen.append((done, total)),
    )

    assert items.codes.tolist() == [[0, 1], [1, -1]]
    assert seen == [(2, 2)]


@pytest.mark.parametrize(
    ("rows", "columns", "message"),
    [
        ([{"id": 1}], {}, "a column tokens or a column text, got neither"),
        ([{"text": "a"}], {}, "expected a tokenizer for the column text"),
        ([{"tokens": 3}], {}, "tokens: expected lists of token ids, got int64"),
        ([{"tokens": ["a"]}], {}, "tokens: expected lists of token ids, got list<"),
        ([{"tokens": [-1]}], {}, "tokens: expected token ids, got numbers from -1 to -1"),
        ([{"tokens": [1 << 31]}], {}, f"got numbers from {1 << 31} to"),
        ([{"tokens": [1]}, {"tokens": None}], {}, "tokens: expected a value for every item, got 1"),
        ([{"tokens": [1], "id": 0.5}], {}, "id: expected whole numbers or texts, got double"),
        ([{"tokens": [1], "id": "x" * 65}], {}, "id: expected texts of at most 64 bytes, got 65"),
        ([{"tokens": [1], "id": "a\0b"}], {}, "without a NUL"),
        ([{"tokens": [1], "sets": "a"}], {}, "sets: expected lists of names, got string"),
        ([{"tokens": [1], "sets": [""]}], {}, "sets: expected names, got ''"),
        ([{"tokens": [1]}], {"tokens": "sid"}, "among tokens, got tokens=sid"),
        ([{"tokens": [1]}], {"codes": "tokens"}, "expected id, tokens, text, sets and"),
    ],
)
def test_a_column_that_does_not_fit_is_named(tmp_path, rows, columns, message):
    with pytest.raises(CatalogueError, match=message):
        read(written(tmp_path / "items.parquet", rows), columns)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("items.csv", b"1,2", "expected a file that ends in .arrow"),
        ("items.npy", b"no array", "cannot be read"),
        ("items.parquet", b"no table", "cannot be read"),
        ("items.jsonl", b"{", "cannot be read"),
    ],
)
def test_a_file_that_cannot_be_read_says_so(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(CatalogueError, match=message):
        read(tmp_path / name)
    with pytest.raises(CatalogueError, match=r"No such file|expected a file"):
        read(tmp_path / f"missing-{name}")


@pytest.mark.parametrize("codes", [np.zeros(3, np.int32), np.zeros((2, 2)), np.full((1, 1), -2)])
def test_an_array_of_another_kind_is_refused(tmp_path, codes):
    np.save(tmp_path / "items.npy", codes)

    with pytest.raises(CatalogueError, match="expected"):
        read(tmp_path / "items.npy")


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".feather"])
def test_items_of_no_set_at_all_have_no_sets(tmp_path, suffix):
    rows = [{**row, "sets": []} for row in ROWS]

    items = read(written(tmp_path / f"items{suffix}", rows))

    assert (items.codes.tolist(), items.sets) == (CODES, {})
