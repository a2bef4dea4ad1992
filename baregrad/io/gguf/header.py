"""What a GGUF file says of itself, checked before any weight is read.

A file is the bytes GGUF, a version, the numbers of tensors and of keys, the metadata, the table of
tensors, then the data, which starts at a multiple of the alignment as each tensor in it does. All
numbers are little-endian. Source: the description of the format in ggml/include/gguf.h of
github.com/ggml-org/llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from baregrad.base.errors import ShapeError, UnsupportedError
from baregrad.io.excerpt import excerpt
from baregrad.io.gguf.types import GgmlType, by_id
from baregrad.io.gguf.values import MAX_KEY_NBYTES, Cursor, Kind, TypedValue

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT_KEY = "general.alignment"
DEFAULT_ALIGNMENT = 32
MAX_DIMS = 4
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 18
MAX_NAME_NBYTES = 1024
MAX_ALIGNMENT = 1 << 20
_MAX_NBYTES = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor lies: `offset` and `nbytes` count bytes, from the start of the file.

    `shape` is row-major: files hold the extents the other way round.
    """

    name: str
    shape: tuple[int, ...]
    type: GgmlType
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Version, metadata with kinds, and tensors by name, in the order of the file."""

    version: int
    values: Mapping[str, TypedValue]
    entries: Mapping[str, TensorPlace]


def read_header(path: str, data: memoryview) -> GgufHeader:
    """Read and check the header of the file whose bytes are `data`.

    Raises FileFormatError for a broken or hostile file and UnsupportedError for a version or an
    element type that is not read here.
    """
    cursor = Cursor(path, data)
    version = _version(cursor)
    n_tensors = cursor.count("the number of tensors", MAX_TENSORS)
    n_keys = cursor.count("the number of keys", MAX_KEYS)
    values = _values(cursor, n_keys)
    alignment = _alignment(cursor, values.get(ALIGNMENT_KEY))
    rows = [_row(cursor, number) for number in range(n_tensors)]
    start = cursor.place + -cursor.place % alignment
    entries: dict[str, TensorPlace] = {}
    for name, shape, type_, offset in rows:
        if name in entries:
            raise cursor.error("a name stands for two tensors", found=excerpt(name))
        entries[name] = _entry(cursor, name, shape, type_, start, offset, alignment)
    _check_overlap(cursor, list(entries.values()))
    return GgufHeader(version, MappingProxyType(values), MappingProxyType(entries))


def _version(cursor: Cursor) -> int:
    magic = bytes(cursor.take(4, "the first four bytes"))
    if magic != MAGIC:
        raise cursor.error(
            "not a GGUF file", found=excerpt(magic), wanted=f"{MAGIC!r} as its first bytes"
        )
    version = int(cursor.number(Kind.UINT32, "the version"))
    if version in VERSIONS:
        return version
    hint = "convert the model again with a current converter"
    if version and version & 0xFFFF == 0:
        hint = "numbers of this file are big-endian: convert it to little-endian"
    raise UnsupportedError(
        f"{cursor.path!r}: a version of GGUF that is not read here",
        found=version, wanted=" or ".join(map(str, VERSIONS)), hint=hint,
    )  # fmt: skip


def _values(cursor: Cursor, count: int) -> dict[str, TypedValue]:
    values: dict[str, TypedValue] = {}
    for number in range(count):
        key = cursor.text(f"the name of key {number}", MAX_KEY_NBYTES)
        if key in values:
            raise cursor.error("a key is given twice", found=excerpt(key))
        values[key] = cursor.value(f"the value of {excerpt(key)}")
    return values


def _alignment(cursor: Cursor, value: TypedValue | None) -> int:
    if value is None:
        return DEFAULT_ALIGNMENT
    found = value.value
    if (
        value.kind is not Kind.UINT32
        or not isinstance(found, int)
        or not 1 <= found <= MAX_ALIGNMENT
        or found & (found - 1)
    ):
        raise cursor.error(
            f"{ALIGNMENT_KEY} is wrong",
            found=f"{excerpt(found)} ({value.kind.name.lower()})",
            wanted=f"a power of two up to {MAX_ALIGNMENT}, as uint32",
        )
    return found


def _row(cursor: Cursor, number: int) -> tuple[str, tuple[int, ...], GgmlType, int]:
    name = cursor.text(f"the name of tensor {number}", MAX_NAME_NBYTES)
    what = f"tensor {excerpt(name)}"
    n_dims = cursor.count(f"{what}, its number of dimensions", MAX_DIMS, Kind.UINT32)
    dims = [cursor.count(f"{what}, its extents", _MAX_NBYTES) for _ in range(n_dims)]
    if 0 in dims:
        raise cursor.error(f"{what} is empty", found=dims, wanted="extents of 1 or more")
    type_ = by_id(cursor.count(f"{what}, its type", 0xFFFFFFFF, Kind.UINT32),
                  f"{cursor.path!r}: {what}")  # fmt: skip
    offset = cursor.count(f"{what}, its offset", _MAX_NBYTES)
    return name, tuple(reversed(dims)), type_, offset


def _entry(
    cursor: Cursor,
    name: str,
    shape: tuple[int, ...],
    type_: GgmlType,
    start: int,
    offset: int,
    alignment: int,
) -> TensorPlace:
    what = f"tensor {excerpt(name)}"
    try:
        nbytes = type_.row_nbytes(shape[-1] if shape else 1)
    except ShapeError as error:
        raise cursor.error(
            f"{what}: {error.message}", found=error.found, wanted=error.wanted
        ) from error
    for extent in shape[:-1]:
        nbytes *= extent
    if nbytes > _MAX_NBYTES:
        raise cursor.error(f"{what} is too large", found=shape, wanted="less than 2**63 bytes")
    if offset % alignment:
        raise cursor.error(
            f"{what} is not aligned", found=f"offset {offset}", wanted=f"a multiple of {alignment}"
        )
    if start + offset + nbytes > len(cursor.data):
        raise cursor.error(
            f"the file ends within {what}",
            found=f"{len(cursor.data)} bytes", wanted=f"{start + offset + nbytes}",
        )  # fmt: skip
    return TensorPlace(name, shape, type_, start + offset, nbytes)


def _check_overlap(cursor: Cursor, entries: Sequence[TensorPlace]) -> None:
    ordered = sorted(entries, key=lambda entry: entry.offset)
    for before, after in pairwise(ordered):
        if before.offset + before.nbytes > after.offset:
            raise cursor.error(
                f"tensor {excerpt(after.name)} overlaps tensor {excerpt(before.name)}",
                found=f"byte {after.offset}",
                wanted=f"{before.offset + before.nbytes} or more",
            )
