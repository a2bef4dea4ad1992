"""The safetensors reader and writer, against the `safetensors` package and hostile files."""

from __future__ import annotations

import json
import os
import struct
import tracemalloc

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baregrad.base.errors import DTypeError, FileFormatError, IndexOutOfRange, ShapeError
from baregrad.io.element_types import BY_NAME, BY_SAFETENSORS, ELEMENT_TYPES
from baregrad.io.safetensors import DATA_ALIGNMENT, SafetensorsFile, write

NUMPY_NAMES = (
    "bool",
    "uint8",
    "int8",
    "uint16",
    "int16",
    "uint32",
    "int32",
    "uint64",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
)
TORCH_NAMES = (
    *NUMPY_NAMES,
    "bfloat16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
)
SHAPES = ((), (1,), (7,), (0,), (2, 0, 3), (3, 4), (2, 3, 5))


def random_bytes(name: str, nbytes: int) -> bytes:
    # Bytes other than 0 and 1 are no booleans.
    limit = 2 if name == "bool" else 256
    return np.random.default_rng(nbytes).integers(0, limit, nbytes, dtype=np.uint8).tobytes()


def encode(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype: object, shape: object, begin: object, end: object) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def count(shape) -> int:
    return int(np.prod(shape, dtype=np.int64))


@pytest.mark.differential
def test_reads_what_numpy_saves(tmp_path):
    path = tmp_path / "a.safetensors"
    arrays = {}
    for name in NUMPY_NAMES:
        for shape in SHAPES:
            data = random_bytes(name, count(shape) * np.dtype(name).itemsize)
            arrays[f"{name}{shape}"] = np.frombuffer(data, name).reshape(shape)
    safetensors.numpy.save_file(arrays, path, metadata={"who": "numpy", "é": "ü"})
    with SafetensorsFile(path) as file:
        assert set(file.keys()) == set(arrays)
        assert dict(file.metadata) == {"who": "numpy", "é": "ü"}
        for key, array in arrays.items():
            assert file.entry(key).dtype == array.dtype.name
            assert file.entry(key).shape == array.shape
            assert bytes(file.raw(key)) == array.tobytes()


@pytest.mark.differential
def test_reads_what_torch_saves(tmp_path):
    path = tmp_path / "a.safetensors"
    tensors = {}
    for name in TORCH_NAMES:
        for shape in SHAPES:
            data = random_bytes(name, count(shape) * BY_NAME[name].itemsize)
            flat = torch.frombuffer(bytearray(data or b"\0" * 16), dtype=getattr(torch, name))
            tensors[f"{name}{shape}"] = flat[: count(shape)].reshape(shape).clone()
    safetensors.torch.save_file(tensors, path)
    with SafetensorsFile(path) as file:
        for key, tensor in tensors.items():
            assert file.entry(key).dtype == str(tensor.dtype).removeprefix("torch.")
            assert file.entry(key).shape == tuple(tensor.shape)
            plain = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
            assert bytes(file.raw(key)) == plain.tobytes()


@pytest.mark.differential
def test_torch_reads_what_we_write(tmp_path):
    path = tmp_path / "a.safetensors"
    tensors = {}
    for name in TORCH_NAMES:
        for shape in SHAPES:
            nbytes = count(shape) * BY_NAME[name].itemsize
            tensors[f"{name}{shape}"] = (name, shape, random_bytes(name, nbytes))
    write(path, tensors, {"format": "pt", "ключ": 'value \n " \\'})
    loaded = safetensors.torch.load_file(path)
    assert set(loaded) == set(tensors)
    for key, (name, shape, data) in tensors.items():
        tensor = loaded[key]
        assert (str(tensor.dtype), tuple(tensor.shape)) == (f"torch.{name}", shape)
        assert tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() == data
    with safetensors.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt", "ключ": 'value \n " \\'}


@pytest.mark.differential
@pytest.mark.parametrize("name", [t.name for t in ELEMENT_TYPES if t.safetensors])
def test_package_accepts_our_header_for_every_dtype(tmp_path, name):
    element = BY_NAME[name]
    path = tmp_path / "a.safetensors"
    data = random_bytes(name, 4 * element.bits // 8)
    write(path, {"x": (name, (4,), data)})
    ((key, info),) = safetensors.deserialize(path.read_bytes())
    assert (key, info["dtype"], info["shape"]) == ("x", element.safetensors, [4])
    assert bytes(info["data"]) == data


def test_round_trip_is_exact_and_aligned(tmp_path):
    path = tmp_path / "a.safetensors"
    tensors = {
        "bytes": ("uint8", (3,), b"abc"),
        "wide": ("float64", (2,), np.array([1.5, np.nan]).tobytes()),
        "half": ("bfloat16", (1, 1), b"\x80\x3f"),
    }
    write(path, tensors, {"a": "b"})
    with SafetensorsFile(path) as file:
        assert dict(file.metadata) == {"a": "b"}
        assert len(file) == 3
        assert "wide" in file
        assert "narrow" not in file
        for key, (dtype, shape, data) in tensors.items():
            found = file.entry(key)
            assert (found.dtype, found.shape, bytes(file.raw(key))) == (dtype, shape, data)
            assert found.offset % BY_NAME[dtype].itemsize == 0
        assert min(file.entry(key).offset for key in file) % DATA_ALIGNMENT == 0


def test_empty_file_of_tensors(tmp_path):
    path = tmp_path / "a.safetensors"
    write(path, {})
    with SafetensorsFile(path) as file:
        assert file.keys() == ()
    assert safetensors.numpy.load_file(path) == {}


def test_raw_is_a_read_only_window_on_the_file(tmp_path):
    path = tmp_path / "a.safetensors"
    nbytes = 1 << 24
    write(path, {"x": ("uint8", (nbytes,), bytes(nbytes))})
    tracemalloc.start()
    with SafetensorsFile(path) as file:
        raw = file.raw("x")
        array = np.frombuffer(raw, np.uint8)
        assert raw.readonly
        assert not array.flags.writeable
        assert np.shares_memory(array, np.frombuffer(file.raw("x"), np.uint8))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < nbytes // 16
    # The view outlives the file object; a closed file hands out no more.
    assert array[nbytes - 1] == 0
    with pytest.raises(ValueError, match="is closed"):
        file.raw("x")


def test_unknown_name_lists_what_there_is(tmp_path):
    path = tmp_path / "a.safetensors"
    write(path, {"x": ("uint8", (), b"1")})
    with SafetensorsFile(path) as file, pytest.raises(IndexOutOfRange, match=r"'y'.*one of 'x'"):
        file.raw("y")


def test_write_replaces_whole_files_and_cleans_up(tmp_path, monkeypatch):
    path = tmp_path / "a.safetensors"
    write(path, {"x": ("uint8", (1,), b"1")})
    before = path.read_bytes()

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write(path, {"x": ("uint8", (1,), b"2")})
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


def test_write_through_a_link_keeps_the_link(tmp_path):
    target = tmp_path / "target"
    link = tmp_path / "link"
    link.symlink_to(target)
    write(link, {"x": ("uint8", (1,), b"1")})
    assert link.is_symlink()
    with SafetensorsFile(target) as file:
        assert bytes(file.raw("x")) == b"1"


@pytest.mark.parametrize(
    ("tensors", "error", "message"),
    [
        ({"x": ("float7", (1,), b"1")}, DTypeError, "'float7', wanted one of bool"),
        ({"x": ("complex128", (1,), bytes(16))}, DTypeError, "cast it first"),
        ({"x": ("float32", (2,), b"1234")}, ShapeError, "4 bytes, wanted 8 for"),
        ({"x": ("uint8", (-1,), b"")}, ShapeError, "size -1"),
        ({"__metadata__": ("uint8", (1,), b"1")}, FileFormatError, "cannot hold this name"),
        ({"\ud800": ("uint8", (1,), b"1")}, FileFormatError, "surrogates not allowed"),
        ({"x": ("uint8", (2,), memoryview(b"1234")[::2])}, ShapeError, "strided view"),
        (
            {"x": ("float32", (2, 3), np.zeros((3, 2), np.float32).T)},
            ShapeError,
            "ascontiguousarray",
        ),
    ],
)
def test_write_refuses(tmp_path, tensors, error, message):
    with pytest.raises(error, match=message):
        write(tmp_path / "a.safetensors", tensors)
    assert list(tmp_path.iterdir()) == []


ONE = entry("U8", [1], 0, 1)
HOSTILE = {
    "empty": (b"", "0 bytes, wanted 8 bytes of header length"),
    "seven bytes": (b"1234567", "7 bytes"),
    "huge header": (struct.pack("<Q", 1 << 62) + b"{}", "a header of 4611686018427387904 bytes"),
    "header past the end": (struct.pack("<Q", 3) + b"{}", "a header of 3 bytes in a file of 10"),
    "no header": (struct.pack("<Q", 0), "'{' as its first byte"),
    "leading space": (encode(b" {}"), "'{' as its first byte"),
    "a list": (encode(b"[]"), "'{' as its first byte"),
    "not JSON": (encode(b"{nonsense}"), "header is not JSON"),
    "two values": (encode(b"{}{}"), "header is not JSON"),
    "not UTF-8": (encode(b'{"\xff": 1}'), "header is not UTF-8"),
    "half a surrogate": (
        encode(b'{"\\ud800": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}'),
        "header is not UTF-8",
    ),
    "deep": (encode(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "nesting of 4 levels"),
    "deep objects": (encode(b'{"a":' * 100_000), "nesting of 4 levels"),
    "unclosed strings": (encode(b'{"' + b'\\"' * 300_000), "header is not JSON"),
    "many digits": (encode(b'{"a": 1' + b"0" * 100_000 + b"}"), "header is not JSON"),
    "NaN": (encode(b'{"__metadata__": NaN}'), "finite numbers"),
    "repeated tensor": (
        encode(b'{"a": %s, "a": %s}' % ((json.dumps(ONE).encode(),) * 2), b"1"),
        "repeats a key: found 'a'",
    ),
    "repeated dtype": (
        encode(b'{"a": {"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}', b"1"),
        "repeats a key: found 'dtype'",
    ),
    "tensor is a number": (encode({"a": 1}), "a table of dtype, shape, data_offsets"),
    "no dtype": (encode({"a": {"shape": [1], "data_offsets": [0, 1]}}, b"1"), "no dtype"),
    "unknown dtype": (encode({"a": entry("F7", [1], 0, 1)}, b"1"), "unknown dtype: found 'F7'"),
    "dtype is a list": (encode({"a": entry([], [1], 0, 1)}, b"1"), "unknown dtype"),
    "negative size": (encode({"a": entry("U8", [-1], 0, 1)}, b"1"), "found -1"),
    "fractional size": (encode({"a": entry("U8", [1.0], 0, 1)}, b"1"), "found 1.0"),
    "true as size": (encode({"a": entry("U8", [True], 0, 1)}, b"1"), "found True"),
    "size beyond 63 bits": (encode({"a": entry("U8", [1 << 63], 0, 1)}, b"1"), "2\\*\\*63 - 1"),
    "giant product": (encode({"a": entry("U8", [1 << 40] * 9, 0, 1)}, b"1"), "too large"),
    "giant beside zero": (encode({"a": entry("U8", [1 << 62, 8, 0], 0, 0)}), "too large"),
    "long shape": (encode({"a": entry("U8", [2] * 200_000, 0, 1)}, b"1"), "too large"),
    "shape is a number": (encode({"a": entry("U8", 1, 0, 1)}, b"1"), "list of integers"),
    "more data than shape": (
        encode({"a": entry("U8", [1], 0, 2)}, b"12"),
        "found 2 bytes, wanted 1",
    ),
    "less data than shape": (encode({"a": entry("F32", [9], 0, 4)}, b"1234"), "wanted 36"),
    "half a byte": (encode({"a": entry("F4", [3], 0, 1)}, b"1"), "wanted 1.5"),
    "one offset": (
        encode({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0]}}, b"1"),
        "\\[begin, end\\]",
    ),
    "backward offsets": (encode({"a": entry("U8", [1], 1, 0)}, b"1"), "\\[begin, end\\]"),
    "negative offset": (encode({"a": entry("U8", [1], -1, 0)}, b"1"), "found -1"),
    "offsets out of range": (
        encode({"a": entry("U8", [4], 0, 4)}, b"1"),
        "cut short: found 1 byte",
    ),
    "far offsets": (encode({"a": entry("U8", [1], 1 << 60, (1 << 60) + 1)}, b"1"), "leaves a gap"),
    "overlap": (
        encode({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 1, 3)}, b"123"),
        "tensor 'b' overlaps tensor 'a'",
    ),
    "same place": (encode({"a": ONE, "b": ONE}, b"1"), "overlaps"),
    "gap": (
        encode({"a": ONE, "b": entry("U8", [1], 2, 3)}, b"123"),
        "leaves a gap after tensor 'a'",
    ),
    "gap at the start": (encode({"a": entry("U8", [1], 1, 2)}, b"12"), "after the start"),
    "trailing bytes": (encode({"a": ONE}, b"12"), "bytes of no tensor: found 2 bytes"),
    "trailing bytes, no tensors": (encode({}, b"1"), "bytes of no tensor"),
    "metadata is a list": (encode({"__metadata__": []}), "text by key"),
    "metadata holds numbers": (encode({"__metadata__": {"a": 1}}), "metadata 'a': found 1"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_file(tmp_path, case):
    data, message = HOSTILE[case]
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(FileFormatError, match=message) as caught:
        SafetensorsFile(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "hostile.safetensors" in str(caught.value)
    assert "fetch or save it again" in str(caught.value) or "save it with" in str(caught.value)
    assert len(str(caught.value)) < 1000
    # Proportional to the file, whatever its numbers say.
    assert peak < 200_000 + 40 * len(data)


def test_folder_and_pipe_are_refused(tmp_path):
    with pytest.raises(FileFormatError, match="a folder, device or pipe"):
        SafetensorsFile(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(FileFormatError, match="a regular file"):
        SafetensorsFile(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError):
        SafetensorsFile(tmp_path / "absent")


def sound_file() -> bytes:
    header = {
        "__metadata__": {"format": "pt"},
        "a": entry("F32", [2, 3], 0, 24),
        "b.c": entry("BF16", [4], 24, 32),
        "empty": entry("U8", [0], 32, 32),
    }
    return encode(header, bytes(range(32)))


@pytest.mark.property
@settings(
    max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_corrupted_bytes_raise_only_our_error(tmp_path, data):
    content = bytearray(sound_file())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        kind = data.draw(st.sampled_from(("set", "cut", "insert", "remove")))
        if kind == "set":
            content[at] = data.draw(st.integers(0, 255))
        elif kind == "cut":
            del content[max(at, 1) :]
        elif kind == "insert":
            content[at:at] = data.draw(st.sampled_from((b'"', b"[", b"{", b"9", b"-", b"\\", b",")))
        else:
            del content[at : at + data.draw(st.integers(1, 8))]
            content = content or bytearray(b"\0")
    path = tmp_path / "fuzz.safetensors"
    path.write_bytes(content)
    try:
        file = SafetensorsFile(path)
    except FileFormatError:
        return
    # What is accepted must be whole, and the reference must accept it too.
    for name in file:
        found = file.entry(name)
        assert len(file.raw(name)) == found.nbytes
        assert found.offset + found.nbytes <= len(content)
    expected = dict(safetensors.deserialize(bytes(content)))
    assert set(expected) == set(file.keys())
    for name, info in expected.items():
        assert BY_SAFETENSORS[info["dtype"]].name == file.entry(name).dtype
        assert tuple(info["shape"]) == file.entry(name).shape
        assert bytes(info["data"]) == bytes(file.raw(name))


@pytest.mark.property
@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(header=st.binary(max_size=80), data=st.binary(max_size=16), framed=st.booleans())
def test_random_bytes_raise_only_our_error(tmp_path, header, data, framed):
    path = tmp_path / "fuzz.safetensors"
    path.write_bytes(encode(b"{" + header, data) if framed else header)
    try:
        SafetensorsFile(path)
    except FileFormatError as error:
        assert str(error)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_written_to_and_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    array = np.arange(5, dtype=np.int32)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write(pipe, {"a": ("int32", (5,), array.tobytes())})
        found = os.read(reader, 1 << 16)
    finally:
        os.close(reader)
    assert pipe.is_fifo() and len(list(tmp_path.iterdir())) == 1
    np.testing.assert_array_equal(safetensors.numpy.load(found)["a"], array)
