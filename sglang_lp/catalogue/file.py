"""The file of an index: a header of JSON, then each array on a page of its own.

A reader maps the file, which takes no time that grows with the catalogue, or reads it whole. A
server reads it whole: a process that mapped a file dies if another process writes into it.
"""

from __future__ import annotations

import mmap
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from sglang_lp.catalogue.index import Arrays, CatalogueError, Index, IndexSizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["load", "save"]

_MAGIC = b"SGLPCAT1"
_PAGE = 4096
_MAX_HEADER = 1 << 20
#: Types of arrays that a file may hold: int32, int64, bits, and texts of up to 64 bytes.
_DTYPES = frozenset(["<i4", "<i8", "|u1", *(f"|S{width}" for width in range(1, 65))])


class _Array(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Place and type of an array in a file.

    Attributes:
        name: Name of the array, or ``set:`` and the name of a set.
        dtype: numpy's name of its type.
        count: Number of its elements.
        offset: Place of its first byte in the file.
        crc: CRC-32 of its bytes.
    """

    name: str
    dtype: str
    count: int
    offset: int
    crc: int


class _Header(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Contents of the header of a file.

    Attributes:
        version: Version of the index.
        shape: Shape of the index.
        arrays: The arrays, in the order of the file.
        size: Size of the file in bytes.
    """

    version: str
    shape: IndexSizes
    arrays: list[_Array]
    size: int


def save(index: Index, path: str | Path) -> int:
    """Write a file, and put it in the place of an older one in one step.

    Args:
        index: The index.
        path: The file to write.

    Returns:
        Size of the file in bytes.

    Raises:
        CatalogueError: The file cannot be written.
    """
    path = Path(path)
    named = dict(_named(index))
    table, at = [], _PAGE * 16
    for name, array in named.items():
        crc = zlib.crc32(array.data.cast("B")) if array.nbytes else 0
        table.append(_Array(name, array.dtype.str, len(array), at, crc))
        at += -(-array.nbytes // _PAGE) * _PAGE
    header = msgspec.json.encode(_Header(index.version, index.shape, table, at))
    if len(header) > _PAGE * 16 - 16:
        raise CatalogueError(f"catalogue {path}: too many sets for one file")
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with new.open("wb") as file:
            file.write(_MAGIC + len(header).to_bytes(8, "little") + header)
            for one, array in zip(table, named.values(), strict=True):
                file.seek(one.offset)
                if array.nbytes:
                    file.write(array.data.cast("B"))
            file.truncate(at)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise CatalogueError(f"catalogue {path}: cannot be written: {error.strerror}") from error
    finally:
        new.unlink(missing_ok=True)
    return at


def load(path: str | Path, *, whole: bool = False) -> Index:
    """Return the index of a file. Its arrays cannot be written.

    Args:
        path: The file to read.
        whole: Whether to read the file into memory and compare it with its checksums; otherwise
            it is mapped.

    Raises:
        CatalogueError: The file cannot be read, is no catalogue, or is damaged.
    """
    mapped, header = _open(Path(path), whole=whole)
    arrays = {one.name: _array(mapped, one) for one in header.arrays}
    for one in header.arrays if whole else ():
        array = arrays[one.name]
        if array.nbytes and zlib.crc32(array.data.cast("B")) != one.crc:
            raise CatalogueError(
                f"catalogue {path}: damaged: {one.name} does not match its checksum; build it again"
            )
    try:
        own = Arrays(*(arrays.pop(name) for name in Arrays._fields))
    except KeyError as error:
        raise CatalogueError(f"catalogue {path}: array {error} is missing") from None
    sets = {name.removeprefix("set:"): array for name, array in arrays.items()}
    _check_sizes(path, header.shape, own, sets)
    return Index(header.shape, own, sets, header.version)


def _named(index: Index) -> Iterator[tuple[str, NDArray[Any]]]:
    for name, array in index.arrays._asdict().items():
        yield name, np.ascontiguousarray(array)
    for name, bits in sorted(index.sets.items()):
        yield f"set:{name}", np.ascontiguousarray(bits)


def _open(path: Path, *, whole: bool) -> tuple[mmap.mmap | bytes, _Header]:
    """Map or read a file, and parse its header.

    Raises:
        CatalogueError: As :func:`load`.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < _PAGE:
                raise CatalogueError(f"catalogue {path}: expected a catalogue, got {size} bytes")
            mapped = file.read() if whole else mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    except OSError as error:
        raise CatalogueError(f"catalogue {path}: cannot be read: {error.strerror}") from error
    length = int.from_bytes(mapped[8:16], "little")
    if mapped[:8] != _MAGIC or length > _MAX_HEADER:
        raise CatalogueError(
            f"catalogue {path}: expected a file that `sglang-lp catalogue build` wrote, got another"
        )
    try:
        header = msgspec.json.decode(mapped[16 : 16 + length], type=_Header)
    except msgspec.DecodeError as error:
        raise CatalogueError(f"catalogue {path}: the header cannot be read: {error}") from error
    if header.size != len(mapped):
        raise CatalogueError(
            f"catalogue {path}: expected {header.size} bytes, got {len(mapped)}: it was cut or is "
            "still being copied; copy it under another name, then rename it"
        )
    return mapped, header


def _array(mapped: mmap.mmap | bytes, one: _Array) -> NDArray[Any]:
    if one.dtype not in _DTYPES:
        raise CatalogueError(
            f"array {one.name}: expected a known type, got {one.dtype}; build it anew"
        )
    dtype = np.dtype(one.dtype)
    if one.count < 0 or one.offset < 0 or one.offset + one.count * dtype.itemsize > len(mapped):
        raise CatalogueError(f"array {one.name}: ends after the end of the file; build it anew")
    return np.frombuffer(mapped, dtype=dtype, count=one.count, offset=one.offset)


def _check_sizes(
    path: str | Path, shape: IndexSizes, arrays: Arrays, sets: dict[str, NDArray[Any]]
) -> None:
    """Refuse arrays that do not fit the shape.

    Raises:
        CatalogueError: An array has another size.
    """
    ids = len(arrays.ids)
    fits = (
        len(shape.offsets) == shape.levels + 2
        and len(shape.branch) == shape.levels
        and len(arrays.first) == shape.inner + 1
        and len(arrays.token) == shape.nodes
        and len(arrays.low) == (shape.nodes if shape.ragged else shape.inner + shape.levels)
        and len(arrays.high) == (shape.nodes if shape.ragged else 0)
        and len(arrays.start) in {0, shape.items + 1}
        and (ids == shape.items or len(arrays.start) > 0)
        and len(arrays.by_id) == ids
        and all(len(bits) == (shape.items + 7) // 8 for bits in sets.values())
    )
    if not fits:
        raise CatalogueError(f"catalogue {path}: the arrays do not fit its shape; build it again")
