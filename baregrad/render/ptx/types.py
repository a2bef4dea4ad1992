"""Types, registers and constants as PTX spells them.

Integers of 8 and 16 bits live in registers of 32 bits, extended by their sign or by zeros, since
PTX has no registers for them or none that compute as fast; a truth value is a predicate in
registers and a byte in memory. Source: PTX ISA, "Fundamental Types" and "Constants".
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from baregrad.base.errors import CompilerBug
from baregrad.dtypes import DType, dtypes, encode
from baregrad.render.interface import INTEGERS, round_float32


@dataclass(frozen=True, slots=True)
class PtxType:
    """How values of a dtype are held.

    prefix: of its registers' names. declared: the type of the registers. compute: the type that
    arithmetic is done in. bits: the type of moves and choices. memory: the type of loads and
    stores of one element.
    """

    prefix: str
    declared: str
    compute: str
    bits: str
    memory: str


def sign_text(dtype: DType) -> str:
    """The letter of an integer dtype in PTX's types."""
    return "s" if dtype.kind == "int" else "u"


def _integer(dtype: DType) -> PtxType:
    sign = sign_text(dtype)
    if dtype.bits == 64:
        return PtxType("%rd", "b64", f"{sign}64", "b64", "b64")
    memory = "b32" if dtype.bits == 32 else f"{sign}{dtype.bits}"
    return PtxType("%r", "b32", f"{sign}32", "b32", memory)


TYPES: MappingProxyType[DType, PtxType] = MappingProxyType(
    {
        dtypes.bool: PtxType("%p", "pred", "pred", "pred", "u8"),
        **{dtype: _integer(dtype) for dtype in INTEGERS},
        dtypes.float16: PtxType("%h", "b16", "f16", "b16", "b16"),
        dtypes.bfloat16: PtxType("%h", "b16", "bf16", "b16", "b16"),
        # Their codes: they are widened, and nothing else.
        dtypes.float8_e4m3fn: PtxType("%r", "b32", "e4m3", "b32", "u8"),
        dtypes.float8_e5m2: PtxType("%r", "b32", "e5m2", "b32", "u8"),
        # Its code is that of a float32.
        dtypes.tfloat32: PtxType("%r", "b32", "tf32", "b32", "b32"),
        dtypes.float32: PtxType("%f", "f32", "f32", "f32", "f32"),
        dtypes.float64: PtxType("%fd", "f64", "f64", "f64", "f64"),
    }
)
# Registers by prefix, in the order of their declarations.
DECLARED: MappingProxyType[str, str] = MappingProxyType(
    {row.prefix: row.declared for row in TYPES.values()}
)


def ptx_type(dtype: DType) -> PtxType:
    """How values of a dtype are held; raises CompilerBug where lowering should have removed it."""
    found = TYPES.get(dtype)
    if found is None:
        raise CompilerBug("PTX has no registers for a dtype; it was to be lowered", found=dtype)
    return found


def literal(value: float, dtype: DType) -> str:
    """A number as PTX spells it: floats by their bits, so that nothing is lost."""
    if dtype.kind != "float":
        whole = int(value)
        return f"{whole}U" if whole >> 63 > 0 else str(whole)
    if dtype is dtypes.float64:
        return f"0d{_bits('<d', '<Q', value):016X}"
    if dtype is dtypes.float32:
        return f"0f{_bits('<f', '<I', round_float32(value)):08X}"
    code = encode(np.asarray(round_float32(value), np.float32), dtype)
    return f"0x{int(code):04X}"


def _bits(form: str, code: str, value: float) -> int:
    if math.isnan(value):
        value = math.nan
    found: int = struct.unpack(code, struct.pack(form, value))[0]
    return found
