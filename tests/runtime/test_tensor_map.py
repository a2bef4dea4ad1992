"""Tensor maps against calls of the vendor's encoder, and as programs take them.

`data/tensor-map-samples.jsonl.xz` was recorded from the vendor's encoder, driver 580.159.04: each
line holds a call's arguments, its return code (0 or 1) and, where it was 0, the 128 bytes.
`data/tensor-map-walk-samples.jsonl.xz` is the like of the encoder for the mode im2col.
"""

from __future__ import annotations

import functools
import json
import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from baregrad.base.errors import (
    ArgumentError,
    BaregradError,
    CompileError,
    FileFormatError,
    UnsupportedDType,
)
from baregrad.program import MapSpec, Program
from baregrad.runtime.commands import Slot
from baregrad.runtime.nvidia.device import NvDevice
from baregrad.runtime.tensor_map import ELEMENT_TYPES, TensorMap, map_of
from baregrad.testing.virtual_gpu.virtual_port import VirtualPort
from tests.runtime.cuda import kernels
from tests.testing.virtual_gpu.virtual_tools import cubin_of

RECORDED = Path(__file__).parent / "data" / "tensor-map-samples.jsonl.xz"
NAMES = {
    "u8": "uint8", "u16": "uint16", "u32": "uint32", "i32": "int32", "u64": "uint64",
    "i64": "int64", "f16": "float16", "f32": "float32", "f32ftz": "float32_ftz",
    "f64": "float64", "bf16": "bfloat16", "tf32": "tfloat32", "tf32ftz": "tfloat32_ftz",
}  # fmt: skip
# The encoder's numbers; 4 and up are the swizzles of later chips, refused there.
INTERLEAVES = (0, 16, 32)
SWIZZLES = (0, 32, 64, 128, -4, -5, -6)
PROMOTIONS = (0, 64, 128, 256)


@functools.cache
def recorded() -> tuple[dict[str, Any], ...]:
    with lzma.open(RECORDED, "rt") as lines:
        return tuple(json.loads(line) for line in lines)


def recorded_map(call: dict[str, Any]) -> TensorMap:
    return TensorMap(
        element=NAMES[call["dtype"]],
        address=call["addr"],
        shape=tuple(call["dims"]),
        strides=tuple(call["strides"]),
        box=tuple(call["box"]),
        steps=tuple(call["estr"]),
        interleave=INTERLEAVES[call["inter"]],
        swizzle=SWIZZLES[call["swz"]],
        promotion=PROMOTIONS[call["l2"]],
        nan_outside=bool(call["oob"]),
    )


@pytest.mark.differential
def test_every_recorded_map_is_made_byte_for_byte() -> None:
    calls = [call for call in recorded() if call["rc"] == 0]
    assert len(calls) == 2780
    assert {call["dtype"] for call in calls} == set(NAMES)
    for call in calls:
        assert recorded_map(call).encode().hex() == call["map"], call


@pytest.mark.differential
def test_every_recorded_refusal_is_refused() -> None:
    calls = [call for call in recorded() if call["rc"] != 0]
    assert len(calls) == 768
    for call in calls:
        with pytest.raises(ArgumentError):
            recorded_map(call)


def test_maps_decode_to_what_they_were_made_of() -> None:
    for call in recorded():
        if call["rc"] == 0:
            made = recorded_map(call)
            assert TensorMap.decode(made.encode()) == made
            # The hardware reads no more than this.
            assert TensorMap.decode(made.encode()[:64]) == made


WALKS = Path(__file__).parent / "data" / "tensor-map-walk-samples.jsonl.xz"
# The encoder's numbers of types.
TYPES = (
    "u8", "u16", "u32", "i32", "u64", "i64", "f16", "f32", "f64", "bf16", "f32ftz", "tf32",
    "tf32ftz",
)  # fmt: skip


def recorded_walk(call: dict[str, Any]) -> TensorMap:
    return TensorMap(
        element=NAMES[TYPES[call["dt"]]],
        address=call["addr"],
        shape=tuple(call["dim"]),
        strides=tuple(call["strides"]),
        box=(call["chan"], call["pix"]),
        steps=tuple(call["steps"]),
        swizzle=SWIZZLES[call["swz"]],
        promotion=PROMOTIONS[call["l2"]],
        nan_outside=bool(call["oob"]),
        low=tuple(call["low"]),
        high=tuple(call["up"]),
    )


@pytest.mark.differential
def test_every_recorded_walk_is_made_or_refused() -> None:
    with lzma.open(WALKS, "rt") as lines:
        calls = [json.loads(line) for line in lines]
    assert [call["rc"] for call in calls].count(0) == 415
    assert {len(call["dim"]) for call in calls if call["rc"] == 0} == {3, 4, 5}
    for call in calls:
        if call["rc"]:
            with pytest.raises(ArgumentError):
                recorded_walk(call)
            continue
        made = recorded_walk(call)
        assert made.encode().hex() == call["hex"], call
        assert TensorMap.decode(made.encode()[:64]) == made


PLAIN: dict[str, Any] = {
    "element": "float16", "address": 0x1000, "shape": (64, 64), "strides": (128,), "box": (64, 8),
}  # fmt: skip


def test_the_plain_map_is_right() -> None:
    made = TensorMap(**PLAIN)
    assert (made.rank, made.box_nbytes, made.tile_alignment) == (2, 1024, 16)
    assert made.steps == (1, 1)
    assert TensorMap(**PLAIN | {"swizzle": 128}).tile_alignment == 1024


@pytest.mark.parametrize("change,message", [
    ({"address": 0x1008}, "cannot begin there"),
    ({"address": 1 << 57}, "cannot begin there"),
    ({"shape": (), "strides": (), "box": ()}, "1 to 5 dimensions"),
    ({"shape": (8,) * 6, "strides": (128,) * 5, "box": (8,) * 6}, "1 to 5 dimensions"),
    ({"shape": (0, 64)}, "dimension of a tensor map"),
    ({"shape": (64, 2**32 + 1)}, "dimension of a tensor map"),
    ({"strides": (120,)}, "pad the rows"),
    ({"strides": (-128,)}, "stride of a tensor map"),
    ({"strides": (1 << 40,)}, "stride of a tensor map"),
    ({"strides": ()}, "strides of a tensor map"),
    ({"box": (64, 0)}, "box of a tensor map is out of range"),
    ({"box": (64, 257)}, "box of a tensor map is out of range"),
    ({"box": (64,)}, "box of a tensor map do not fit"),
    ({"box": (4, 8)}, "no multiple of 16 bytes: found 8"),
    ({"box": (256, 256), "steps": (1, 1), "element": "float32", "strides": (256,)}, "shared"),
    ({"steps": (1, 9)}, "step of a tensor map"),
    ({"steps": (0, 1)}, "step of a tensor map"),
    ({"swizzle": 64}, "span of its swizzle"),
    ({"swizzle": 16}, "no swizzle"),
    ({"interleave": 16}, "3 to 5 dimensions"),
    ({"promotion": 32}, "no promotion"),
    ({"element": "uint16", "nan_outside": True}, "NaN"),
])
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        TensorMap(**PLAIN | change)


def test_interleaving_by_32_bytes_wants_more_alignment() -> None:
    boxed = {"shape": (16, 8, 8), "box": (16, 8, 8), "interleave": 32}
    TensorMap(**PLAIN | boxed | {"strides": (128, 1024)})
    with pytest.raises(ArgumentError, match="multiple of 32"):
        TensorMap(**PLAIN | boxed | {"strides": (48, 1024)})
    with pytest.raises(ArgumentError, match="multiple of 32"):
        TensorMap(**PLAIN | boxed | {"strides": (128, 1024), "address": 0x1010})


def test_unknown_elements_are_named() -> None:
    with pytest.raises(UnsupportedDType, match="float8"):
        TensorMap(**PLAIN | {"element": "float8"})


def test_what_is_no_map_is_not_decoded() -> None:
    made = TensorMap(**PLAIN).encode()
    with pytest.raises(FileFormatError, match="cut short"):
        TensorMap.decode(made[:63])
    for bit in range(64 * 8):
        broken = bytearray(made)
        broken[bit // 8] ^= 1 << bit % 8
        try:
            again = TensorMap.decode(bytes(broken))
        except BaregradError as error:
            assert isinstance(error, FileFormatError)
        else:
            assert again.element in ELEMENT_TYPES


def replays(device: Any, program: Program) -> None:
    """A kernel copies its map; each replay has that of the buffer that it is given."""
    spec = program.maps[0]
    target, fixed = device.allocate(128), device.allocate(1 << 16)
    commands, alone = device.command_list(), device.command_list()
    kernel = device.load(program)
    for _ in range(12):
        # So many are a graph where the device makes one.
        commands.exec(kernel, [target, Slot(0, 64)])
    alone.exec(kernel, [target, fixed])
    for number in range(8):
        buffer = device.allocate(1 << 16)
        device.submit(commands, [buffer])
        assert target.contents().tobytes() == map_of(spec, buffer.address + 64), number
        device.submit(alone)
        assert target.contents().tobytes() == map_of(spec, fixed.address)


def test_replays_have_the_maps_of_their_buffers() -> None:
    program = kernels.mapped(MapSpec(1, 2, (200, 128), (400,), (64, 32), 128))
    with kernels.cuda() as device:
        replays(device, program)
        assert "cuGraphExecKernelNodeSetParams_v2" in device.fake.calls
    device = NvDevice(port=VirtualPort())
    code = cubin_of(kernels.MAPPED.replace("sm_90a", "sm_90"))
    replays(device, replace(program, code=code))
    with pytest.raises(CompileError, match="2 of 8 bytes, 0 of 128"):
        device.load(replace(program, code=code, maps=()))
    device.close()
