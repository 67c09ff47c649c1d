"""Items as an operator has them: a table of ids, tokens or texts, and the sets of each item."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from sglang_lp.catalogue.build import PAD
from sglang_lp.catalogue.index import CatalogueError
from sglang_lp.errors import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["COLUMNS", "FORMATS", "MAX_SETS", "Items", "read"]

#: Columns of a table, under their default names.
COLUMNS = ("id", "tokens", "text", "sets")

#: Formats, by the suffix of the file.
FORMATS = (".arrow", ".feather", ".jsonl", ".npy", ".parquet")

#: Most named sets of a catalogue: each takes one bit an item.
MAX_SETS = 1024

#: Longest item id that is a text, in bytes of UTF-8.
_MAX_ID = 64

#: Texts that a tokenizer gets at once.
_TEXTS = 65_536


class Items(NamedTuple):
    """Items in the order of the file.

    Attributes:
        codes: Tokens, shape ``(items, levels)``, int32, filled with ``PAD`` behind shorter items.
        ids: Shape ``(items,)``, int64 or bytes of UTF-8; ``None`` if the file has none.
        sets: By name of a set, whether it has each item, shape ``(items,)``.
    """

    codes: NDArray[np.int32]
    ids: NDArray[Any] | None
    sets: dict[str, NDArray[np.bool_]]


def read(
    path: str | Path,
    columns: Mapping[str, str] | None = None,
    *,
    tokenizer: Any = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Items:
    """Read the items of a file.

    Args:
        path: A file whose suffix is one of ``FORMATS``. ``.npy`` holds token ids, shape
            ``(items, levels)``, with -1 behind shorter items. The others hold a table.
        columns: Names of the columns of a table, where they differ from ``COLUMNS``. ``tokens``
            holds lists of token ids; without it, ``text`` holds texts for the tokenizer. ``id``
            (whole numbers or texts) and ``sets`` (lists of names) may be missing.
        tokenizer: A tokenizer of the library ``tokenizers``, for texts.
        progress: Called with the number of texts tokenized so far, and the number of all texts.

    Raises:
        CatalogueError: The file cannot be read, or a column does not fit.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise CatalogueError(
            f"items {path}: expected a file that ends in {', '.join(FORMATS)}, "
            f"got {shown(path.name)}"
        )
    try:
        path.stat()  # pyarrow's own error says no more than the name
        if path.suffix == ".npy":
            return Items(_codes_of(np.load(path, mmap_mode="r")), None, {})
        table = _table(path)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise CatalogueError(f"items {path}: cannot be read: {why}") from error
    names = {column: column for column in COLUMNS} | dict(columns or {})
    for column, name in (columns or {}).items():
        if column not in COLUMNS or name not in table.column_names:
            raise CatalogueError(
                f"items {path}: expected {', '.join(COLUMNS)} and columns among "
                f"{', '.join(table.column_names)}, got {column}={name}"
            )
    found = {column: table[name] for column, name in names.items() if name in table.column_names}
    try:
        return _items(found, tokenizer, progress)
    except CatalogueError as error:
        raise CatalogueError(f"items {path}: {error}") from error


def _table(path: Path) -> Any:
    try:
        import pyarrow as pa
        import pyarrow.feather
        import pyarrow.json
        import pyarrow.parquet
    except ImportError:
        raise CatalogueError(
            "reading this format takes pyarrow: pip install 'sglang-lp[catalogue]'"
        ) from None
    try:
        if path.suffix == ".parquet":
            return pyarrow.parquet.read_table(path)
        if path.suffix == ".jsonl":
            return pyarrow.json.read_json(path)
        return pyarrow.feather.read_table(path)
    except pa.ArrowException as error:
        raise CatalogueError(f"items {path}: cannot be read: {error}") from error


def _items(found: Mapping[str, Any], tokenizer: Any, progress: Callable[[int, int], None]) -> Items:
    if "tokens" in found:
        codes = _listed(found["tokens"])
    elif "text" not in found:
        raise CatalogueError(
            "expected a column tokens or a column text, got neither; --column names another"
        )
    elif tokenizer is None:
        raise CatalogueError(
            "expected a tokenizer for the column text, got none; give the model's directory "
            "(--model)"
        )
    else:
        codes = _tokenized(found["text"], tokenizer, progress)
    ids = _ids(found["id"]) if "id" in found else None
    sets = _sets(found["sets"]) if "sets" in found else {}
    return Items(codes, ids, sets)


def _codes_of(codes: NDArray[Any]) -> NDArray[np.int32]:
    if codes.ndim != 2 or codes.dtype.kind not in "iu":  # noqa: PLR2004 - items and levels
        raise CatalogueError(
            "expected whole numbers of the shape (items, levels), got "
            f"{codes.dtype} of the shape {codes.shape}"
        )
    if codes.size and not PAD <= int(codes.min()) <= int(codes.max()) < 1 << 31:
        raise CatalogueError(
            "expected token ids, and -1 only after a shorter item, got numbers from "
            f"{int(codes.min())} to {int(codes.max())}"
        )
    return codes.astype(np.int32)


def _listed(column: Any) -> NDArray[np.int32]:
    """Return lists of token ids as rows of equal length."""
    import pyarrow as pa

    kind = column.type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if pa.types.is_fixed_size_list(kind):
        column = column.cast(pa.list_(kind.value_type))
    elif not is_list:
        raise CatalogueError(f"tokens: expected lists of token ids, got {kind}")
    if not pa.types.is_integer(column.type.value_type):
        raise CatalogueError(f"tokens: expected lists of token ids, got {kind}")
    _refuse_missing(column, "tokens")
    values = column.combine_chunks().flatten()
    _refuse_missing(values, "tokens")
    lengths = np.asarray(pa.compute.list_value_length(column)).astype(np.int64)
    return _rows(_numbers(values), lengths)


def _numbers(values: Any) -> NDArray[np.int32]:
    numbers = np.asarray(values)
    if len(numbers) and not 0 <= int(numbers.min()) <= int(numbers.max()) < 1 << 31:
        raise CatalogueError(
            "tokens: expected token ids, got numbers from "
            f"{int(numbers.min())} to {int(numbers.max())}"
        )
    return numbers.astype(np.int32)


def _rows(values: NDArray[np.int32], lengths: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return lists of numbers, one after the other, as rows that end with ``PAD``."""
    width = int(lengths.max()) if len(lengths) else 0
    if (lengths == width).all():
        return values.reshape(len(lengths), width)
    codes = np.full((len(lengths), width), PAD, dtype=np.int32)
    codes[np.arange(width) < lengths[:, None]] = values
    return codes


def _tokenized(
    column: Any, tokenizer: Any, progress: Callable[[int, int], None]
) -> NDArray[np.int32]:
    import pyarrow as pa

    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise CatalogueError(f"text: expected texts, got {column.type}")
    _refuse_missing(column, "text")
    numbers: list[NDArray[np.int32]] = []
    lengths: list[int] = []
    for start in range(0, len(column), _TEXTS):
        texts = column[start : start + _TEXTS].to_pylist()
        for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False):
            numbers.append(np.array(encoding.ids, dtype=np.int32))
            lengths.append(len(encoding.ids))
        progress(min(start + _TEXTS, len(column)), len(column))
    values = np.concatenate(numbers) if numbers else np.zeros(0, dtype=np.int32)
    return _rows(values, np.array(lengths, dtype=np.int64))


def _ids(column: Any) -> NDArray[Any]:
    import pyarrow as pa

    _refuse_missing(column, "id")
    if pa.types.is_integer(column.type):
        try:
            return np.asarray(column.cast(pa.int64()))
        except pa.ArrowInvalid as error:
            raise CatalogueError(f"id: expected numbers of 64 bits: {error}") from error
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise CatalogueError(f"id: expected whole numbers or texts, got {column.type}")
    longest = pa.compute.max(pa.compute.binary_length(column)).as_py() or 1
    if longest > _MAX_ID:
        raise CatalogueError(f"id: expected texts of at most {_MAX_ID} bytes, got {longest}")
    if pa.compute.any(pa.compute.match_substring(column, "\0")).as_py():
        raise CatalogueError("id: expected texts without a NUL character, got one with it")
    return np.array(column.cast(pa.binary()).to_pylist(), dtype=f"S{longest}")


def _sets(column: Any) -> dict[str, NDArray[np.bool_]]:
    import pyarrow as pa

    kind = column.type
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)) or not (
        pa.types.is_string(kind.value_type) or pa.types.is_null(kind.value_type)
    ):
        raise CatalogueError(f"sets: expected lists of names, got {kind}")
    names = pa.compute.list_flatten(column).cast(pa.string())  # of empty lists alone it has no type
    _refuse_missing(names, "sets")
    different = sorted(names.unique().to_pylist())
    if len(different) > MAX_SETS:
        raise CatalogueError(f"sets: expected at most {MAX_SETS} names, got {len(different)}")
    if any(not name for name in different):
        raise CatalogueError(f"sets: expected names, got {shown('')}")
    parents = np.asarray(pa.compute.list_parent_indices(column))
    numbers = np.asarray(pa.compute.index_in(names, pa.array(different, pa.string())))
    found = {}
    for number, name in enumerate(different):
        found[name] = np.zeros(len(column), dtype=np.bool_)
        found[name][parents[numbers == number]] = True
    return found


def _refuse_missing(values: Any, name: str) -> None:
    if values.null_count:
        raise CatalogueError(
            f"{name}: expected a value for every item, got {values.null_count} null"
        )
