"""Types and constants as LLVM IR spells them."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from functools import lru_cache
from types import MappingProxyType

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core.node import Node, const
from baregrad.render.interface import INTEGERS, round_float32

# Bytes of the vectors that machines can write without leaving them in caches.
STREAMED_NBYTES = (16, 32, 64)

# LLVM's type of a dtype, and its name in intrinsics.
_ELEMENTS: MappingProxyType[DType, tuple[str, str]] = MappingProxyType(
    {
        **{dtype: (f"i{dtype.bits}", f"i{dtype.bits}") for dtype in INTEGERS},
        dtypes.bool: ("i1", "i1"),
        dtypes.float16: ("half", "f16"),
        dtypes.float32: ("float", "f32"),
        dtypes.float64: ("double", "f64"),
    }
)


@lru_cache(1 << 10)
def type_text(dtype: DType, lanes: int = 1) -> str:
    """LLVM's type of a scalar or vector."""
    element = _ELEMENTS[dtype][0]
    return element if lanes == 1 else f"<{lanes} x {element}>"


def value_type(node: Node) -> str:
    """LLVM's type of a linear value; of a tile, that of a row."""
    shape = node.shape
    return type_text(node.dtype, shape[-1]) if shape else _ELEMENTS[node.dtype][0]


@lru_cache(1 << 10)
def order_text(first: int, count: int) -> str:
    """The constant lanes first, first + 1, ... that a `shufflevector` takes."""
    return lanes_text(range(first, first + count))


def lanes_text(lanes: Sequence[int]) -> str:
    """Any constant lanes that a `shufflevector` takes."""
    return f"<{len(lanes)} x i32> <i32 {', i32 '.join(map(str, lanes))}>"


@lru_cache(1 << 8)
def mask_text(count: int, lanes: int) -> str:
    """A constant mask of the first lanes."""
    each = ", ".join(["i1 true"] * count + ["i1 false"] * (lanes - count))
    return f"<{each}>"


def suffix_text(dtype: DType, lanes: int) -> str:
    """The part of an intrinsic's name that says the type."""
    name = _ELEMENTS[dtype][1]
    return name if lanes == 1 else f"v{lanes}{name}"


@lru_cache(1 << 10)
def constant_text(node: Node, lanes: int = 1) -> str:
    """A constant as LLVM spells it; in every lane of a vector. Kernels have the same few."""
    scalar = _scalar_text(node)
    if lanes == 1:
        return scalar
    if scalar in ("0", "false", "0x0000000000000000"):
        return "zeroinitializer"
    element = type_text(node.dtype)
    return "<" + ", ".join([f"{element} {scalar}"] * lanes) + ">"


def _scalar_text(node: Node) -> str:
    value = node.arg
    kind = node.dtype.kind
    if kind == "bool":
        return "true" if value else "false"
    if kind != "float":
        return str(int(value))
    if math.isnan(value):
        return "0xH7E00" if node.dtype is dtypes.float16 else "0x7FF8000000000000"
    if node.dtype is dtypes.float16:
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    if node.dtype is dtypes.float32:
        value = round_float32(value)
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


def splat_text(value: float, dtype: DType, lanes: int) -> str:
    """A number in every lane."""
    return constant_text(const(value, dtype), lanes)


def lanes_of(node: Node) -> int:
    """The lanes of a linear value, 1 for a scalar; those of a tile's rows."""
    return node.shape[-1] if node.shape else 1
