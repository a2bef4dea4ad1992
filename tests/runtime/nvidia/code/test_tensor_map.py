"""Tensor maps against calls of the vendor's encoder.

`data/tensor-map-samples.jsonl.xz` was recorded from the vendor's encoder, driver 580.159.04: each
line holds a call's arguments, its return code (0 or 1) and, where it was 0, the 128 bytes.
"""

from __future__ import annotations

import functools
import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from baregrad.base.errors import ArgumentError, BaregradError, FileFormatError, UnsupportedDType
from baregrad.runtime.nvidia.code.tensor_map import ELEMENT_TYPES, TensorMap

RECORDED = Path(__file__).parents[1] / "data" / "tensor-map-samples.jsonl.xz"
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


def map_of(call: dict[str, Any]) -> TensorMap:
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
        assert map_of(call).encode().hex() == call["map"], call


@pytest.mark.differential
def test_every_recorded_refusal_is_refused() -> None:
    calls = [call for call in recorded() if call["rc"] != 0]
    assert len(calls) == 768
    for call in calls:
        with pytest.raises(ArgumentError):
            map_of(call)


def test_maps_decode_to_what_they_were_made_of() -> None:
    for call in recorded():
        if call["rc"] == 0:
            made = map_of(call)
            assert TensorMap.decode(made.encode()) == made
            # The hardware reads no more than this.
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
