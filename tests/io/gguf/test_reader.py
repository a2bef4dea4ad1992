"""Files as `gguf` writes them, split files, and each way in which a file can be wrong."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter

from baregrad.base.errors import (
    ArgumentError,
    BaregradError,
    FileFormatError,
    IndexOutOfRange,
    UnsupportedError,
)
from baregrad.io.gguf import (
    TYPES,
    GgufFile,
    Kind,
    PackedWeight,
    TensorToWrite,
    TypedValue,
    by_name,
    write_gguf,
)
from baregrad.io.gguf.values import Cursor
from tests.io.gguf.packed import PACKED, random_rows, reference

METADATA = {
    "general.architecture": "llama",
    "general.name": "näme",
    "llama.block_count": 3,
    "llama.rope.freq_base": 1e5,
    "tokenizer.ggml.tokens": ["a", "", "ß\n"],
    "tokenizer.ggml.scores": [0.5, -1.25, 0.0],
    "tokenizer.ggml.token_type": [1, -2, 3],
    "tokenizer.ggml.add_bos_token": True,
    "negative": -5,
    "large": 1 << 40,
}


def by_gguf(path: Path) -> dict[str, np.ndarray]:
    """Write a file of all packed types and four others by the package `gguf`."""
    writer = GGUFWriter(path, "llama")
    writer.add_string("general.name", "näme")
    writer.add_uint32("llama.block_count", 3)
    writer.add_float64("precise", 0.1)
    writer.add_int8("small", -7)
    writer.add_array("tokens", ["a", "", "ß"])
    writer.add_array("numbers", [1, 2, 3])
    writer.add_bool("yes", True)
    tensors: dict[str, np.ndarray] = {}
    for row in PACKED:
        if row.name in GGMLQuantizationType.__members__ and row.name != "Q8_1":
            tensors[row.name] = random_rows(row, 3, 2 * row.block)
            writer.add_tensor(row.name, tensors[row.name],
                              raw_dtype=GGMLQuantizationType[row.name])  # fmt: skip
    for dtype in ("float32", "float16", "int32", "float64"):
        tensors[dtype] = np.arange(24).reshape(2, 3, 4).astype(dtype)
        writer.add_tensor(dtype, tensors[dtype])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tensors


def test_a_file_that_gguf_wrote_reads_as_it_was_meant(tmp_path: Path) -> None:
    tensors = by_gguf(tmp_path / "a.gguf")
    with GgufFile.open(tmp_path / "a.gguf") as file:
        assert file.version == 3
        metadata = dict(file.metadata)
        assert metadata == {
            "general.architecture": "llama", "general.name": "näme", "llama.block_count": 3,
            "precise": 0.1, "small": -7, "tokens": ["a", "", "ß"], "numbers": [1, 2, 3],
            "yes": True,
        }  # fmt: skip
        assert list(file.tensors) == list(tensors)
        for name, values in tensors.items():
            tensor = file.tensors[name]
            raw = tensor.raw()
            assert not raw.flags.writeable
            assert raw.tobytes() == values.tobytes()
            dense = PackedWeight.from_file(tensor).dense().numpy()
            if tensor.type.is_packed:
                assert tensor.shape == (3, 2 * tensor.type.block)
                assert np.array_equal(dense, reference(tensor.type, values))
            else:
                assert np.array_equal(dense, values.astype(np.float32))


def written(path: Path, **more: object) -> Path:
    row = by_name("Q4_0")
    tensors = {
        "blk.0.a": TensorToWrite(row, (4, 64), random_rows(row, 4, 64)),
        "blk.0.b": TensorToWrite(by_name("F32"), (5,), np.arange(5, dtype=np.float32)),
        "blk.0.c": TensorToWrite(by_name("F16"), (2, 3), lambda: np.ones((2, 3), np.float16)),
    }
    write_gguf(path, {**METADATA, **more}, tensors)  # type: ignore[dict-item]
    return path


@pytest.mark.parametrize("alignment", [1, 8, 32, 256])
def test_what_we_write_we_read(tmp_path: Path, alignment: int) -> None:
    path = written(tmp_path / "a.gguf", **{"general.alignment": alignment})
    with GgufFile.open(path) as file:
        assert {key: file.metadata[key] for key in METADATA} == METADATA
        assert all(tensor.offset % alignment == 0 for tensor in file.tensors.values())
        assert file.tensor("blk.0.b").raw().view(np.float32).tolist() == [[0, 1, 2, 3, 4]]
        with pytest.raises(IndexOutOfRange, match="no tensor of this name"):
            file.tensor("none")
        raw = file.tensor("blk.0.c").raw()
    assert raw.view(np.float16).tolist() == [[1, 1, 1], [1, 1, 1]]
    with pytest.raises(ArgumentError, match="is closed"):
        file.tensor("blk.0.b")


def test_metadata_keeps_its_kinds_when_written_again(tmp_path: Path) -> None:
    by_gguf(tmp_path / "a.gguf")
    with GgufFile.open(tmp_path / "a.gguf") as file:
        tensors = {
            name: TensorToWrite(tensor.type, tensor.shape, tensor.raw())
            for name, tensor in file.tensors.items()
        }
        write_gguf(tmp_path / "b.gguf", file.values, tensors)
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


def test_strings_of_arrays_keep_bytes_that_are_no_text(tmp_path: Path) -> None:
    odd = b"a\xff\xc3".decode("utf-8", "surrogateescape")
    path = written(tmp_path / "a.gguf", tokens=[odd, "b"])
    with GgufFile.open(path) as file:
        tokens = file.metadata["tokens"]
    assert isinstance(tokens, list)
    assert str(tokens[0]).encode("utf-8", "surrogateescape") == b"a\xff\xc3"


def long_arrays() -> list[list[bytes]]:
    """Strings that are short, with some that are not, with zeros, empty, and that are no UTF-8."""
    rng = np.random.default_rng(7)
    short = [bytes(rng.integers(33, 127, rng.integers(1, 30), np.uint8)) for _ in range(30000)]
    odd = [b"", b"\0", b"\0" * 7, b"x" * 255, b"x" * 256, b"x" * 300, b"\xff\xfe", "ß".encode(),
           b"a\0\0\0\0\0\0\0", b"\7" + b"\0" * 7 + b"abcdefg"]  # fmt: skip
    mixed = [odd[int(at)] if at < len(odd) else short[int(at)] for at in rng.permutation(3000)]
    late = [*short[:9000], *odd, *short[9000:18000]]
    return [short, mixed, late, short[:1025], short[:1024], [b"\xff"] * 2000, [b"\0"] * 2000,
            [b"x" * 255] * 3000, [b"y" * 256] * 1500, [b""] * 1500]  # fmt: skip


@pytest.mark.parametrize("tail", [b"", b"\0" * 40, b"\5" + b"\0" * 7 + b"later" + b"\0" * 9])
def test_long_arrays_of_strings_are_read_one_by_one(tail: bytes) -> None:
    for texts in long_arrays():
        data = b"".join(struct.pack("<Q", len(each)) + each for each in texts)
        cursor = Cursor("a.gguf", memoryview(b"abc" + data + tail))
        cursor.place = 3
        found = cursor.texts(len(texts), "words")
        assert [each.encode("utf-8", "surrogateescape") for each in found] == texts
        assert cursor.place == 3 + len(data)
        with pytest.raises(FileFormatError, match="the file ends within"):
            Cursor("a.gguf", memoryview(data[:-1])).texts(len(texts), "words")


def split(folder: Path, count: int = 3, **more: object) -> Path:
    """Write a split model of `count` parts with one tensor each and return the first's path."""
    for index in range(count):
        metadata: dict[str, object] = {
            "split.no": TypedValue(index, Kind.UINT16),
            "split.count": TypedValue(count, Kind.UINT16),
            "split.tensors.count": TypedValue(count, Kind.INT32),
        }
        if not index:
            metadata |= METADATA
        metadata |= more
        values = np.full(4, index, np.float32)
        write_gguf(
            folder / f"m-{index + 1:05d}-of-{count:05d}.gguf",
            metadata,  # type: ignore[arg-type]
            {f"t{index}": TensorToWrite(by_name("F32"), (4,), values)},
        )
    return folder / f"m-00001-of-{count:05d}.gguf"


def test_the_first_part_opens_the_others(tmp_path: Path) -> None:
    with GgufFile.open(split(tmp_path)) as file:
        assert list(file.tensors) == ["t0", "t1", "t2"]
        assert file.metadata["general.architecture"] == "llama"
        for index in range(3):
            assert file.tensors[f"t{index}"].raw().view(np.float32).tolist() == [[index] * 4]


@pytest.mark.parametrize("damage, message", [
    (lambda folder: (folder / "m-00002-of-00003.gguf").unlink(), "part 2 of 3 is missing"),
    (lambda folder: (folder / "m-00003-of-00003.gguf").write_bytes(
        (folder / "m-00002-of-00003.gguf").read_bytes()), "is not the part that its name says"),
    (lambda folder: split(folder, 3, **{"split.tensors.count": 4}), "another number of tensors"),
    (lambda folder: (folder / "m-00001-of-00003.gguf").write_bytes(
        (folder / "m-00002-of-00003.gguf").read_bytes()), "is not the first part"),
    (lambda folder: split(folder, 3, **{"split.count": 70000, "split.no": 0}), "its name"),
])  # fmt: skip
def test_parts_that_do_not_belong_together_are_refused(
    tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    path = split(tmp_path)
    damage(tmp_path)
    with pytest.raises(FileFormatError, match=message):
        GgufFile.open(path)


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def key(name: str, kind: int, raw: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + raw


def tensor(
    name: str, dims: tuple[int, ...] = (4,), kind: int = 0, offset: int = 0, rank: int | None = None
) -> bytes:
    count = len(dims) if rank is None else rank
    return (
        text(name) + struct.pack("<I", count) + struct.pack(f"<{len(dims)}Q", *dims)
        + struct.pack("<IQ", kind, offset)
    )  # fmt: skip


def raw_file(
    keys: list[bytes] | None = None,
    tensors: list[bytes] | None = None,
    *,
    magic: bytes = b"GGUF",
    version: bytes = struct.pack("<I", 3),
    counts: tuple[int, int] | None = None,
    nbytes: int = 64,
) -> bytes:
    keys, tensors = keys or [], tensors or []
    n_tensors, n_keys = counts or (len(tensors), len(keys))
    head = magic + version + struct.pack("<QQ", n_tensors, n_keys) + b"".join([*keys, *tensors])
    return head + bytes(-len(head) % 32) + bytes(nbytes)


HOSTILE: list[tuple[str, bytes, str]] = [
    ("empty", b"", "ends within the first four bytes"),
    ("magic", raw_file(magic=b"GGML"), "not a GGUF file"),
    ("version 1", raw_file(version=struct.pack("<I", 1)), "found 1, wanted 2 or 3"),
    ("version 4", raw_file(version=struct.pack("<I", 4)), "found 4, wanted 2 or 3"),
    ("big-endian", raw_file(version=struct.pack(">I", 3)), "big-endian"),
    ("many keys", raw_file(counts=(0, 1 << 40)), "the number of keys is out of range"),
    ("many tensors", raw_file(counts=(1 << 63, 0)), "the number of tensors is out of range"),
    ("missing keys", raw_file(counts=(0, 9), nbytes=0), "the file ends within"),
    ("repeated key", raw_file([key("a", 4, bytes(4)), key("a", 4, bytes(4))]), "given twice"),
    ("kind", raw_file([key("a", 13, bytes(8))]), "of an unknown kind"),
    ("bool", raw_file([key("a", 7, b"\2")]), "is no bool"),
    ("bools", raw_file([key("a", 9, struct.pack("<IQ", 7, 2) + b"\1\2")]), "no array of bools"),
    ("long string", raw_file([key("a", 8, struct.pack("<Q", 1 << 62))]), "length .* out of range"),
    ("string past the end", raw_file([key("a", 8, struct.pack("<Q", 4096))]), "the file ends"),
    ("not text", raw_file([key("a", 8, struct.pack("<Q", 2) + b"\xff\xfe")]), "is not UTF-8"),
    ("nested", raw_file([key("a", 9, struct.pack("<IQ", 9, 1) + bytes(64))]), "array of arrays"),
    ("long array", raw_file([key("a", 9, struct.pack("<IQ", 0, 1 << 60))]), "out of range"),
    ("array past the end", raw_file([key("a", 9, struct.pack("<IQ", 12, 4096))]), "file ends"),
    ("many texts", raw_file([key("a", 9, struct.pack("<IQ", 8, 1 << 23))]), "is too long"),
    ("texts past the end", raw_file([key("a", 9, struct.pack("<IQ", 8, 1 << 20))]), "file ends"),
    ("endless text", raw_file([key("a", 9, struct.pack("<IQQ", 8, 1, (1 << 64) - 1))]), "file end"),
    ("alignment 3", raw_file([key("general.alignment", 4, struct.pack("<I", 3))]), "alignment"),
    ("alignment 0", raw_file([key("general.alignment", 4, bytes(4))]), "general.alignment is wro"),
    ("alignment u64", raw_file([key("general.alignment", 10, struct.pack("<Q", 32))]), "as uint32"),
    ("two names", raw_file(None, [tensor("a"), tensor("a", offset=32)]), "stands for two tensors"),
    ("rank", raw_file(None, [tensor("a", (1, 1, 1, 1, 1))]), "number of dimensions"),
    ("zero extent", raw_file(None, [tensor("a", (4, 0))]), "is empty"),
    ("negative extent", raw_file(None, [tensor("a", ((1 << 64) - 4,))]), "extents is out of range"),
    ("overflow", raw_file(None, [tensor("a", (1 << 40, 1 << 40))]), "is too large"),
    ("partial block", raw_file(None, [tensor("a", (33,), 2)]), "multiple of 32"),
    ("offset", raw_file(None, [tensor("a", offset=8)]), "is not aligned"),
    ("past the end", raw_file(None, [tensor("a", (64,))]), "the file ends within tensor"),
    ("far past the end", raw_file(None, [tensor("a", offset=(1 << 63) - 32)]), "the file ends"),
    ("overlap", raw_file(None, [tensor("a", (12,)), tensor("b", offset=32)]), "overlaps tensor 'a"),
    ("removed", raw_file(None, [tensor("a", (32,), 4)]), "type 4, Q4_2"),
    ("fork", raw_file(None, [tensor("a", (32,), 137)]), "type 137"),
]  # fmt: skip


@pytest.mark.parametrize("name, data, message", HOSTILE, ids=[row[0] for row in HOSTILE])
def test_wrong_files_are_refused_by_name(
    tmp_path: Path, name: str, data: bytes, message: str
) -> None:
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(data)
    with pytest.raises((FileFormatError, UnsupportedError), match=message) as caught:
        GgufFile.open(path)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize("number", [4, 5, 31, 32, 33, 36, 37, 38, 43, 200, 0xFFFFFFFF])
def test_types_that_are_not_read_are_named(tmp_path: Path, number: int) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(raw_file(None, [tensor("a", (256,), number)], nbytes=4096))
    with pytest.raises(UnsupportedError, match=f"type {number}"):
        GgufFile.open(path)


def test_every_type_of_the_table_is_read(tmp_path: Path) -> None:
    for row in TYPES:
        path = tmp_path / f"{row}.gguf"
        path.write_bytes(raw_file(None, [tensor("a", (256,), row.id)], nbytes=4096))
        with GgufFile.open(path) as file:
            assert file.tensors["a"].type is row


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = written(tmp_path / "a.gguf").read_bytes()
    end = max(t.offset + t.nbytes for t in GgufFile.open(tmp_path / "a.gguf").tensors.values())
    cut = tmp_path / "cut.gguf"
    for length in range(end):
        cut.write_bytes(whole[:length])
        with pytest.raises(BaregradError):
            GgufFile.open(cut)
