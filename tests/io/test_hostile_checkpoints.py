"""Checkpoints made to harm: each is refused with a reason, and nothing in it runs."""

from __future__ import annotations

import builtins
import functools
import importlib.util
import os
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from baregrad.base.errors import FileFormatError
from baregrad.io.torch_checkpoint import read_checkpoint

_SPEC = importlib.util.spec_from_file_location(
    "checkpoints_made_by_hand", Path(__file__).parent / "checkpoints.py"
)
make = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(make)


# Hostile programs. Each is a pickle; the archive around it is sound.

FOUR = make.storage()
TENSOR = make.name("torch._utils", "_rebuild_tensor_v2")
ORDERED = make.name("collections", "OrderedDict")


def call(module: str, attribute: str, argument: bytes = b")") -> bytes:
    return make.program(make.name(module, attribute) + argument + b"R")


DOUBLING = b"]q\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(99))

HOSTILE = {
    "os.system": (make.reducing(os.system, "touch CANARY"), r"posix\.system"),
    "builtins.eval": (make.reducing(builtins.eval, "open('CANARY','w')"), r"__builtin__\.eval"),
    "exec": (make.reducing(builtins.exec, "open('CANARY','w')"), r"__builtin__\.exec"),
    "open": (make.reducing(open, "CANARY", "w"), r"io\.open"),
    "subprocess": (
        make.reducing(subprocess.check_call, ["touch", "CANARY"]),
        r"commands\.check_call",
    ),
    "getattr": (make.reducing(getattr, 1, "real"), "getattr', which is not in the table"),
    "import": (make.reducing(__import__, "os"), "__import__"),
    "nested load": (call("torch.storage", "_load_from_bytes"), "_load_from_bytes"),
    "dotted name": (call("torch", "serialization.os.system"), "not in the table"),
    "system by STACK_GLOBAL": (
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch CANARY\x85R.",
        r"os\.system",
    ),
    "numbers as a name": (b"\x80\x04K\x01K\x02\x93.", "the name 1.2"),
    "INST": (b"\x80\x02(ios\nsystem\n.", "opcode 0x69"),
    "OBJ": (b"\x80\x02(cos\nsystem\no.", r"os\.system"),
    "EXT1": (b"\x80\x02\x82\x01.", "opcode 0x82"),
    "out-of-band buffer": (b"\x80\x05\x97.", "opcode 0x97"),
    "protocol 0": (b"I1\n.", "opcode 0x49"),
    "protocol 9": (b"\x80\x09N.", "pickle protocol 9"),
    "REDUCE chain": (make.program(ORDERED + b")R" + b")R" * 50), "a call of a dict"),
    "call of a text": (make.program(make.text("os.system") + b")R"), "a call of 'os.system'"),
    "call of a dtype": (call("torch", "float32"), "a call of a TorchName"),
    "call of a type": (call("torch", "Tensor"), "which is no function"),
    "call of a storage class": (call("torch", "FloatStorage"), "a call of a _StorageKind"),
    "arguments are no tuple": (make.program(ORDERED + b"NR"), "arguments None"),
    "BUILD on a tensor": (make.program(make.tensor(FOUR) + b"}b"), "state a dict of 0 items for"),
    "BUILD with a number": (make.program(b"}K\x01b"), "state 1 for"),
    "huge bytearray": (
        call("builtins", "bytearray", make.number(1 << 40) + b"\x85"),
        "bytes made of",
    ),
    "bytes by another codec": (
        call("_codecs", "encode", make.text("a") + make.text("zip") + b"\x86"),
        "bytes made of",
    ),
    "huge text": (b"\x80\x02X\xff\xff\xff\xffabc.", "4294967295 bytes where 4 are left"),
    "huge bytes": (b"\x80\x04\x8e" + b"\xff" * 8 + b"abc.", "18446744073709551615 bytes"),
    "huge bytearray opcode": (
        b"\x80\x05\x96" + b"\xff" * 7 + b"\x00abc.",
        "bytes where 4 are left",
    ),
    "huge integer": (b"\x80\x02\x8b\xff\xff\xff\x7fabc.", "2147483647 bytes where 4"),
    "huge frame": (b"\x80\x04\x95" + b"\xff" * 7, "8 bytes where 7 are left"),
    "endless name": (b"\x80\x02c" + b"a" * 5000, "a name without end in 512 bytes"),
    "name is not UTF-8": (b"\x80\x02c\xff\n\xff\n.", "a malformed value"),
    "text is not UTF-8": (b"\x80\x02X\x01\x00\x00\x00\xff.", "a malformed value"),
    "memo bomb": (b"\x80\x02]r\xff\xff\xff\xffj\xff\xff\xff\x7f.", "memo 2147483647, which was"),
    "empty program": (b"", "the end of the bytes"),
    "no value": (b"\x80\x02.", "the end of the bytes or of the stack"),
    "cut short": (b"\x80\x02]", "the end of the bytes"),
    "no mark": (b"\x80\x02Nt.", "no mark"),
    "tuple of too few": (b"\x80\x02N\x86.", "1 values for a tuple of 2"),
    "items for a number": (b"\x80\x02K\x01(K\x01K\x02u.", "items for 1 instead of a dict"),
    "items for a dict": (b"\x80\x02}K\x01a.", "instead of a list"),
    "odd items": (b"\x80\x02}(K\x01u.", "1 values as pairs"),
    "list as key": (b"\x80\x02}]K\x01s.", r"the key \[\]"),
    "deep tuple as key": (b"\x80\x02})" + b"\x85" * 50_000 + b"Ns.", "a flat tuple"),
    "tensor as key": (make.program(b"}" + make.tensor(FOUR) + b"Ns"), "the key a StoredTensor"),
    "set of lists": (call("builtins", "set", b"](]e\x85"), r"the key \[\]"),
    "list inside itself": (b"\x80\x02]q\x00h\x00a.", "a container inside of itself"),
    "dict inside itself": (b"\x80\x02}q\x00K\x01h\x00s.", "a container inside of itself"),
    "doubling lists": (make.program(DOUBLING), "places, wanted <="),
    "deep lists": (make.program(b"]" * 50_000 + b"a" * 49_999), "49999 levels of nesting"),
    "persistent id is a text": (make.program(make.text("0") + b"Q"), "the persistent id '0'"),
    "persistent id of a module": (
        make.program(b"(" + make.text("module") + b"NNNNtQ"),
        "the persistent id",
    ),
    "storage type is a dtype": (
        make.program(make.storage(kind=make.name("torch", "float32"))),
        "the persistent id",
    ),
    "storage key climbs": (make.program(make.storage("../../etc/passwd")), "letters and digits"),
    "storage is absent": (make.program(make.storage("77")), "lacks a member"),
    "storage larger than its member": (
        make.program(make.storage(count=5)),
        "of 20 bytes in a member of 16",
    ),
    "storage of negative size": (make.program(make.storage(count=-1)), "-1 as a storage's size"),
    "storage of giant size": (make.program(make.storage(count=1 << 61)), "in a member of 16"),
    "storage of two types": (
        make.program(
            b"(" + FOUR + make.storage(kind=make.name("torch", "IntStorage")) + b"t",
        ),
        "two sizes or types",
    ),
    "offset beyond": (make.program(make.tensor(FOUR, 1)), "reaches element 5 of a storage of 4"),
    "negative offset": (make.program(make.tensor(FOUR, -1)), "-1 as a tensor's offset"),
    "stride beyond": (make.program(make.tensor(FOUR, 0, (2,), (4,))), "reaches element 5"),
    "negative stride": (
        make.program(make.tensor(FOUR, 3, (4,), (-1,))),
        "-1 as a tensor's strides",
    ),
    "negative size": (make.program(make.tensor(FOUR, 0, (-4,))), "-4 as a tensor's shape"),
    "giant shape": (make.program(make.tensor(FOUR, 0, (1 << 62,))), "reaches element"),
    "giant expansion": (make.program(make.tensor(FOUR, 0, (1 << 40,), (0,))), r"save its \.clone"),
    "giant empty tensor": (
        make.program(make.tensor(FOUR, 0, (1 << 62, 8, 0), (0, 0, 0))),
        r"save its \.clone",
    ),
    "strides of another rank": (make.program(make.tensor(FOUR, 0, (4,), (1, 1))), "with strides"),
    "rank 65": (make.program(make.tensor(FOUR, 0, (1,) * 65, (1,) * 65)), "with strides"),
    "tensor without storage": (make.program(TENSOR + b"(NNNNtR"), "a tensor made of"),
    "tensor of nothing": (make.program(TENSOR + b")R"), "a tensor made of"),
    "tensor of an untyped storage": (
        make.program(
            make.tensor(make.storage(count=16, kind=make.name("torch", "UntypedStorage")))
        ),
        "without a dtype",
    ),
    "shape is a list": (
        make.program(TENSOR + b"(" + FOUR + b"K\x00]]\x89NtR"),
        "where a tuple belongs",
    ),
    "parameter of nothing": (
        call("torch._utils", "_rebuild_parameter", b"(N\x89Nt"),
        "a parameter made of",
    ),
    "state of another class": (
        call("torch._tensor", "_rebuild_from_type_v2", b"(" + TENSOR + b"N)}t"),
        "a tensor of the class None",
    ),
    "dict of numbers": (call("collections", "OrderedDict", b"(K\x01K\x02lt\x85"), "."),
}


@pytest.fixture
def canary(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    yield
    assert not (tmp_path / "CANARY").exists()


@pytest.mark.usefixtures("canary")
@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_program(tmp_path, case):
    program, message = HOSTILE[case]
    path = tmp_path / "hostile.pt"
    path.write_bytes(make.archive(program))
    modules = set(sys.modules)
    tracemalloc.start()
    try:
        with pytest.raises(FileFormatError, match=message) as caught:
            read_checkpoint(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "hostile.pt" in str(caught.value)
    assert caught.value.hint
    assert len(str(caught.value)) < 1000
    # Codecs of the standard library load when a name in the archive first needs them.
    assert not [m for m in set(sys.modules) - modules if not m.startswith("encodings.")]
    assert peak < 1_000_000 + 400 * len(program)


@pytest.mark.usefixtures("canary")
@pytest.mark.parametrize("case", ["os.system", "builtins.eval", "memo bomb", "huge text"])
def test_hostile_program_in_the_older_format(tmp_path, case):
    program, message = HOSTILE[case]
    path = tmp_path / "hostile.pt"
    torch.save([], path, _use_new_zipfile_serialization=False)
    head = path.read_bytes().removesuffix(b"\x80\x02]q\x00.\x80\x02]q\x00.")
    path.write_bytes(head + program + b"\x80\x02].")
    with pytest.raises(FileFormatError, match=message.replace("4 are left", "8 are left")):
        read_checkpoint(path)


def test_traps_do_spring_in_python(tmp_path, monkeypatch):
    """The hostile files are what they claim: Python's own unpickler runs them."""
    import pickle

    monkeypatch.chdir(tmp_path)
    pickle.loads(HOSTILE["open"][0]).close()
    assert (tmp_path / "CANARY").exists()


def test_source_has_no_way_to_run_a_pickle():
    room = Path(importlib.util.find_spec("baregrad.io").submodule_search_locations[0])
    sources = "".join(path.read_text() for path in room.glob("*.py"))
    for word in (
        "import pickle",
        "importlib",
        "__import__",
        "eval(",
        "exec(",
        "getattr(",
        "marshal",
    ):
        assert word not in sources, word


# Hostile files around sound programs.


@functools.cache
def legacy_file() -> bytes:
    """Made once: it names its storages by where they lie in memory."""
    buffer = __import__("io").BytesIO()
    tensors = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.int16)}
    torch.save(tensors, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def zip_file() -> bytes:
    body = make.tensor(make.storage()) + make.tensor(make.storage("1", 2))
    return make.archive(
        make.program(b"(" + body + b"t"), {"0": bytes(range(16)), "1": bytes(range(8))}
    )


FILES = {
    "empty": (b"", "is not a PyTorch checkpoint"),
    "text": (b"hello", "is not a PyTorch checkpoint: found b'hello'"),
    "bare pickle": (b"\x80\x02N.", "is not a PyTorch checkpoint"),
    "zip without a program": (
        make.archive(b"", extra={}).replace(b"data.pkl", b"data.foo"),
        "0 of",
    ),
    "two programs": (make.archive(b"\x80\x02N.", extra={"b/data.pkl": b"N."}), "2 of FOLDER"),
    "big-endian": (
        make.archive(b"\x80\x02N.").replace(b"little", b"bigger"),
        "has foreign bytes: found b'bigger'",
    ),
    "zip of nothing": (b"PK\x05\x06" + bytes(18), "0 of FOLDER"),
    "cut zip": (zip_file()[:-30], "no end record"),
    "cut older file": (legacy_file()[:-1], "is cut short"),
    "older file without storages": (
        legacy_file().split(struct.pack("<q", 6))[0],
        "is cut short",
    ),
    "older file, other count": (
        legacy_file().replace(struct.pack("<q", 6), struct.pack("<q", 7)),
        "7 elements",
    ),
    "older file, negative count": (
        legacy_file().replace(struct.pack("<q", 6), struct.pack("<q", -6)),
        "-6 elements",
    ),
    "older file, another protocol": (
        legacy_file().replace(b"M\xe9\x03.", b"M\xea\x03.", 1),
        "is of another protocol: found 1002",
    ),
    "older file, big-endian": (
        legacy_file().replace(b"little_endianq\x02\x88", b"little_endianq\x02\x89"),
        "has foreign bytes",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_hostile_file(tmp_path, case):
    data, message = FILES[case]
    path = tmp_path / "hostile.pt"
    path.write_bytes(data)
    with pytest.raises(FileFormatError, match=message) as caught:
        read_checkpoint(path)
    assert "hostile.pt" in str(caught.value)


def test_compressed_program_is_bounded(tmp_path):
    path = tmp_path / "bomb.pt"
    program = make.program(b"N" * (1 << 23))
    path.write_bytes(make.archive(program, method=zipfile.ZIP_DEFLATED))
    with pytest.raises(FileFormatError, match=r"inflates to too much: found 8388611 bytes from"):
        read_checkpoint(path)


def read_all(path: Path) -> None:
    for tensor in read_checkpoint(path).tensors().values():
        bits = tensor.bits()
        assert bits.shape == tensor.shape
        np.ascontiguousarray(bits).tobytes()


@pytest.mark.property
@pytest.mark.parametrize("source", [zip_file, legacy_file], ids=("zip", "legacy"))
@settings(
    max_examples=400,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
)
@given(data=st.data())
def test_corrupted_bytes_raise_only_our_error(tmp_path, source, data):
    content = bytearray(source())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        kind = data.draw(st.sampled_from(("set", "cut", "flip", "repeat")))
        if kind == "set":
            content[at] = data.draw(st.integers(0, 255))
        elif kind == "flip":
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "cut":
            del content[max(at, 1) :]
        else:
            content[at:at] = content[at : at + data.draw(st.integers(1, 40))]
    path = tmp_path / "fuzz.pt"
    path.write_bytes(content)
    try:
        read_all(path)
    except FileFormatError as error:
        assert str(error)


OPCODES = bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x98))
PIECES = (
    FOUR,
    TENSOR,
    ORDERED,
    make.tensor(FOUR),
    make.numbers(2, 2),
    make.text("storage"),
    make.name("torch", "float32"),
    make.name("torch._tensor", "_rebuild_from_type_v2"),
    b"K\x01",
    b"q\x00",
    b"h\x00",
    b"(",
    b")",
    b"]",
    b"}",
    b"t",
    b"R",
    b"Q",
    b"a",
    b"s",
)


@pytest.mark.property
@settings(
    max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    pieces=st.lists(
        st.one_of(st.sampled_from(PIECES), st.sampled_from([bytes([code]) for code in OPCODES])),
        max_size=25,
    )
)
def test_random_programs_raise_only_our_error(tmp_path, pieces):
    path = tmp_path / "fuzz.pt"
    path.write_bytes(make.archive(make.program(b"".join(pieces))))
    try:
        read_all(path)
    except FileFormatError as error:
        assert str(error)
