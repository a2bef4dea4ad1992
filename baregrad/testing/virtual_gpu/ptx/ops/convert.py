"""Conversions, moves, comparisons and choices.

Source: PTX ISA, "Data Movement and Conversion Instructions: cvt", "Comparison and Selection".
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Final

import numpy as np

from baregrad.base.floats import encode_float
from baregrad.dtypes import dtypes
from baregrad.testing.virtual_gpu.ptx.block import Block, Execute, Index
from baregrad.testing.virtual_gpu.ptx.operands import Decoder
from baregrad.testing.virtual_gpu.ptx.ops.floats import by_lanes
from baregrad.testing.virtual_gpu.ptx.ops.integers import assemble
from baregrad.testing.virtual_gpu.ptx.rounding import (
    ROUNDINGS,
    decode,
    encode,
    flush,
    round_pair,
    saturate,
    two_sum,
    values_of,
)
from baregrad.testing.virtual_gpu.ptx.syntax import OperandPair, PtxInstruction, Vector
from baregrad.testing.virtual_gpu.ptx.types import TYPES, UNSIGNED, Array, OperandType

Convert = Callable[[Array], Array]

_TO_INTEGRAL: Final = MappingProxyType(
    {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
)
_LARGEST: Final = MappingProxyType({
    "f16": 65504.0, "bf16": dtypes.bfloat16.max, "tf32": 2.0**128 - 2.0**117, "e4m3": 448.0,
    "e5m2": 57344.0, "f32": float(np.finfo(np.float32).max),
})


# ---- cvt ----------------------------------------------------------------------------------------


def convert(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`cvt`."""
    to, source = decoder.type_of(instruction, -2), decoder.type_of(instruction, -1)
    if to.lane and not source.lane:
        return _pack(decoder, instruction, to, source)
    if to.lane or source.lane:
        if not (to.lane and source.lane):
            decoder.refuse(instruction)
        return _unpack(decoder, instruction, to, source)
    function = _converter(decoder, instruction, to, source)
    return assemble(decoder, instruction, function, (source,), to)


def _converter(
    decoder: Decoder, instruction: PtxInstruction, to: OperandType, source: OperandType
) -> Convert:
    if "pred" in (to.name, source.name):
        decoder.refuse(instruction)
    if not to.is_float and not source.is_float:
        return _between_integers(to, source, instruction.has("sat"))
    if not source.is_float:
        return _from_integer(to, source, instruction.one_of(ROUNDINGS, "rn"))
    if not to.is_float:
        return _to_integer(instruction, to, source)
    return _between_floats(instruction, to, source)


def _between_integers(to: OperandType, source: OperandType, sat: bool) -> Convert:
    if not sat:
        return lambda a: a.astype(to.numpy)
    low, high = np.iinfo(to.numpy).min, np.iinfo(to.numpy).max
    start = max(int(low), int(np.iinfo(source.numpy).min))
    end = min(int(high), int(np.iinfo(source.numpy).max))
    limits = source.numpy.type(start), source.numpy.type(end)
    return lambda a: np.clip(a, *limits).astype(to.numpy)


def _from_integer(to: OperandType, source: OperandType, mode: str) -> Convert:
    if mode == "rn" and to.name in ("f32", "f64"):
        return lambda a: a.astype(to.numpy)

    def function(a: Array) -> Array:
        if source.bits < 64:
            return values_of(round_pair(a.astype(np.float64), 0.0, to.name, mode), to.name)
        half = source.numpy.type(32)
        top = (a >> half).astype(np.float64) * 2.0**32
        low = (a & source.numpy.type(0xFFFFFFFF)).astype(np.float64)
        return values_of(round_pair(*two_sum(top, low), to.name, mode), to.name)

    return function


def _to_integer(instruction: PtxInstruction, to: OperandType, source: OperandType) -> Convert:
    integral = _TO_INTEGRAL[instruction.one_of(tuple(_TO_INTEGRAL), "rzi")]
    ftz = instruction.has("ftz") and source.name == "f32"
    info = np.iinfo(to.numpy)
    # NaN is 0, but the top bit where either side has 64 bits.
    wide = source.name == "f64" or to.bits == 64
    nan = np.array([1 << (to.bits - 1) if wide else 0], UNSIGNED[to.bits]).view(to.numpy)

    def function(a: Array) -> Array:
        value = integral(decode(flush(a, "f32") if ftz else a, source.name))
        above, below = value >= float(info.max), value <= float(info.min)
        inside = np.where(above | below | np.isnan(value), 0.0, value).astype(to.numpy)
        inside = np.where(above, to.numpy.type(info.max), inside)
        inside = np.where(below, to.numpy.type(info.min), inside)
        return np.where(np.isnan(value), nan, inside)

    return function


def _between_floats(instruction: PtxInstruction, to: OperandType, source: OperandType) -> Convert:
    mode = instruction.one_of(ROUNDINGS, "rn")
    integral = _TO_INTEGRAL.get(instruction.one_of(tuple(_TO_INTEGRAL)))
    ftz = instruction.has("ftz")

    def function(a: Array) -> Array:
        if ftz and source.name == "f32":
            a = flush(a, "f32")
        value = decode(a, source.name)
        if integral is not None:
            value = integral(value)
        result = _narrow(instruction, value, to.name, mode)
        return flush(result, "f32") if ftz and to.name == "f32" else result

    return function


def _narrow(instruction: PtxInstruction, value: Array, name: str, mode: str) -> Array:
    """Round float64 values to a float type, with `.sat`, `.relu` and `.satfinite`."""
    if instruction.has("sat"):
        value = saturate(value)
    if instruction.has("relu"):
        value = np.where(value <= 0, 0.0, value)
    if instruction.has("satfinite"):
        if name in ("e4m3", "e5m2"):
            form = (dtypes.float8_e4m3fn if name == "e4m3" else dtypes.float8_e5m2).format
            assert form is not None
            codes = encode_float(value, form, True).astype(np.uint8)
            return np.where(np.isnan(value), np.uint8(0x7F), codes)
        value = np.clip(value, -_LARGEST[name], _LARGEST[name])
    return values_of(round_pair(value, 0.0, name, mode), name)


def _pack(
    decoder: Decoder, instruction: PtxInstruction, to: OperandType, source: OperandType
) -> Execute:
    """`cvt.f16x2.f32 d, high, low`."""
    mode = instruction.one_of(ROUNDINGS, "rn")
    lane = TYPES[to.lane]
    wide = to.numpy

    def function(high: Array, low: Array) -> Array:
        upper = _narrow(instruction, decode(high, source.name), lane.name, mode).astype(wide)
        lower = _narrow(instruction, decode(low, source.name), lane.name, mode).astype(wide)
        return np.asarray(upper << wide.type(lane.bits) | lower)

    return assemble(decoder, instruction, function, (source, source), to)


def _unpack(
    decoder: Decoder, instruction: PtxInstruction, to: OperandType, source: OperandType
) -> Execute:
    """`cvt.f16x2.e4m3x2` and back."""
    mode = instruction.one_of(ROUNDINGS, "rn")
    to_lane, from_lane = TYPES[to.lane], TYPES[source.lane]

    def function(a: Array) -> Array:
        halves = np.ascontiguousarray(a).view(from_lane.numpy)
        codes = _narrow(instruction, decode(halves, from_lane.name), to_lane.name, mode)
        return codes.astype(to_lane.numpy, copy=False).view(to.numpy)

    return assemble(decoder, instruction, function, (source,), to)


# ---- mov ----------------------------------------------------------------------------------------


def move(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`mov`, which packs and unpacks vectors too."""
    row = decoder.type_of(instruction)
    target, source = instruction.operands
    if isinstance(target, Vector) and isinstance(source, Vector):
        decoder.refuse(instruction, "a move between vectors")
    read = decoder.read(instruction, source, row)
    write = decoder.write(instruction, target, row)
    return lambda block, index: write(block, index, read(block, index))


# ---- comparing ----------------------------------------------------------------------------------

_ORDERED: Final = MappingProxyType({
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
    "ge": np.greater_equal, "lo": np.less, "ls": np.less_equal, "hi": np.greater,
    "hs": np.greater_equal,
})
_BOOLEAN: Final = MappingProxyType(
    {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}
)
_COMPARISONS: Final = (*_ORDERED, "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")


def comparison(name: str, row: OperandType) -> Callable[[Array, Array], Array]:
    """Return a comparison of values of a type; those ending in `u` hold for NaN."""
    if not row.is_float:
        return _ORDERED[name]
    lane = row.lane or row.name

    def function(a: Array, b: Array) -> Array:
        left, right = decode(a, lane), decode(b, lane)
        unordered = np.isnan(left) | np.isnan(right)
        if name in ("num", "nan"):
            return unordered if name == "nan" else ~unordered
        if name in _ORDERED:
            return np.asarray(_ORDERED[name](left, right) & ~unordered)
        return np.asarray(_ORDERED[name[:2]](left, right) | unordered)

    return function


def set_predicate(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`setp`: a comparison, combined with a predicate; `p|q` takes the opposite as well."""
    row = decoder.type_of(instruction)
    name = instruction.one_of(_COMPARISONS)
    if not name:
        decoder.refuse(instruction)
    compare = comparison(name, row)
    pred = TYPES["pred"]
    target, left, right, *rest = instruction.operands
    first, second = (
        (target.first, target.second) if isinstance(target, OperandPair) else (target, None)
    )
    a, b = (decoder.read(instruction, one, row) for one in (left, right))
    other = decoder.read(instruction, rest[0], pred) if rest else None
    combine = _BOOLEAN[instruction.one_of(tuple(_BOOLEAN), "and")]
    write = decoder.write(instruction, first, pred)
    write_second = None if second is None else decoder.write(instruction, second, pred)
    ftz = instruction.has("ftz") and row.name == "f32"

    def run(block: Block, index: Index) -> None:
        x, y = a(block, index), b(block, index)
        if ftz:
            x, y = flush(x, "f32"), flush(y, "f32")
        if row.lane:
            # The halves have a predicate each.
            lanes = [np.ascontiguousarray(one).view(np.uint16).reshape(-1, 2) for one in (x, y)]
            found = compare(lanes[0], lanes[1])
            result, opposite = found[:, 0], found[:, 1]
        else:
            result = compare(x, y)
            opposite = ~result
        if other is not None:
            extra = other(block, index)
            result, opposite = combine(result, extra), combine(opposite, extra)
        write(block, index, result)
        if write_second is not None:
            write_second(block, index, opposite)

    return run


def set_value(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`set`: a comparison's result as a number: ones or 1.0."""
    to, row = decoder.type_of(instruction, -2), decoder.type_of(instruction, -1)
    name = instruction.one_of(_COMPARISONS)
    if not name or len(instruction.operands) != 3:
        decoder.refuse(instruction)
    compare = comparison(name, row)
    lane = TYPES[to.lane] if to.lane else to
    true = np.array([-1]).astype(lane.numpy)
    if lane.is_float:
        true = values_of(encode(np.ones(1), lane.name), lane.name)
    zero = true.dtype.type(0)

    def function(a: Array, b: Array) -> Array:
        return np.where(compare(a, b), true, zero)

    whole = by_lanes(row, function)
    if row.lane:
        return assemble(decoder, instruction, whole, (row, row), TYPES["b32"])
    return assemble(decoder, instruction, function, (row, row), to)


def select(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`selp`: one of two values, by a predicate."""
    row = decoder.type_of(instruction)

    def function(a: Array, b: Array, chosen: Array) -> Array:
        return np.where(chosen, a, b)

    return assemble(decoder, instruction, function, (row, row, TYPES["pred"]), row)


def select_by_sign(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`slct`: one of two values, by a number's sign."""
    row, by = decoder.type_of(instruction, -2), decoder.type_of(instruction, -1)

    def function(a: Array, b: Array, sign: Array) -> Array:
        return np.where(sign >= 0, a, b)

    return assemble(decoder, instruction, function, (row, row, by), row)


CONVERSIONS: Final = MappingProxyType({
    "cvt": convert, "mov": move, "setp": set_predicate, "set": set_value, "selp": select,
    "slct": select_by_sign,
})
