"""Floating-point arithmetic: exact rounding in every mode, NaN and subnormals as documented.

Source: PTX ISA, "Floating Point Instructions" and "Half Precision Floating Point Instructions". A
NaN result is the canonical one. The `.approx` functions give the nearest value, moved by `skew`
times the error that the manual allows (APPROXIMATIONS), so a test may ask for the worst.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from baregrad.testing.virtual_gpu.ptx.block import Block, Execute, Index
from baregrad.testing.virtual_gpu.ptx.operands import Decoder
from baregrad.testing.virtual_gpu.ptx.rounding import (
    ROUNDINGS,
    decode,
    encode,
    exact_low,
    flush,
    fma_double,
    fma_single,
    round_pair,
    saturate,
    two_sum,
    values_of,
)
from baregrad.testing.virtual_gpu.ptx.syntax import PtxInstruction
from baregrad.testing.virtual_gpu.ptx.types import TYPES, Array, OperandType

Function = Callable[..., Array]

_NAN: Final = np.uint32(0x7FFFFFFF).view(np.float32)
# Functions by name: NumPy's, and the documented error: (relative, absolute) for f32.
APPROXIMATIONS: Final[Mapping[str, tuple[Function, float, float]]] = MappingProxyType({
    "ex2": (np.exp2, 2.0**-22, 0.0),
    "lg2": (np.log2, 0.0, 2.0**-22),
    "sin": (np.sin, 0.0, 2.0**-20.5),
    "cos": (np.cos, 0.0, 2.0**-20.5),
    "tanh": (np.tanh, 2.0**-11, 0.0),
    "rcp": (np.reciprocal, 2.0**-23, 0.0),
    "sqrt": (np.sqrt, 2.0**-23, 0.0),
    "rsqrt": (lambda x: 1.0 / np.sqrt(x), 2.0**-22.9, 0.0),
})
# For the 16-bit types: (relative, absolute).
_HALF_ERRORS: Final = MappingProxyType({
    ("ex2", "f16"): (2.0**-9.9, 0.0), ("ex2", "bf16"): (2.0**-7, 0.0),
    ("tanh", "f16"): (0.0, 2.0**-10.987), ("tanh", "bf16"): (0.0, 2.0**-8),
})


def tidy(values: Array) -> Array:
    """Return f32 results with every NaN the canonical one."""
    if values.dtype == np.float32:
        bad = np.isnan(values)
        if bad.any():
            return np.where(bad, _NAN, values)
    return values


def by_lanes(row: OperandType, function: Function) -> Function:
    """Return a function of packed values from one of their lanes; of others, itself."""
    if not row.lane:
        return function
    lane = TYPES[row.lane].numpy

    def packed(*operands: Array) -> Array:
        halves = [np.ascontiguousarray(one).view(lane).reshape(-1, 2) for one in operands]
        result = np.ascontiguousarray(function(*halves))
        return result.astype(lane, copy=False).view(row.numpy).reshape(-1)

    return packed


# ---- the four operations ------------------------------------------------------------------------


def exact_pair(operation: str, parts: list[Array]) -> tuple[Array, Array | float]:
    """Return float64 (high, low) of an operation on values of at most 24 bits."""
    if operation == "mul":
        return parts[0] * parts[1], 0.0
    if operation == "add":
        return two_sum(parts[0], parts[1])
    if operation == "sub":
        return two_sum(parts[0], -parts[1])
    return two_sum(parts[0] * parts[1], parts[2])


def rounded(operation: str, name: str, mode: str) -> Function:
    """Return `add`, `sub`, `mul` or `fma` of a float type, rounded once in a mode."""
    native = {"add": np.add, "sub": np.subtract, "mul": np.multiply}.get(operation)
    if native is not None and mode == "rn" and name in ("f32", "f64"):
        return lambda a, b: tidy(native(a, b))
    if name == "f64":
        return lambda *parts: _double(operation, mode, parts)

    at_once = operation == "fma" and name == "f32" and mode == "rn"

    def through_pairs(*operands: Array) -> Array:
        if at_once and (found := fma_single(*operands)) is not None:
            return tidy(found)
        parts = [decode(one, name) for one in operands]
        high, low = exact_pair(operation, parts)
        if mode == "rm":
            high = _zero_rounded_down(operation, parts, high)
        return values_of(round_pair(high, low, name, mode), name)

    return through_pairs


def _zero_rounded_down(operation: str, parts: list[Array], high: Array) -> Array:
    """Return sums with a zero as -0, which it is toward minus infinity, but for 0 + 0."""
    if operation == "mul":
        return high
    left = parts[0] * parts[1] if operation == "fma" else parts[0]
    right = -parts[1] if operation == "sub" else parts[-1]
    below = (high == 0) & (np.signbit(left) | np.signbit(right))
    return np.where(below, -0.0, high)


def _double(operation: str, mode: str, parts: tuple[Array, ...]) -> Array:
    parts = tuple(np.broadcast_arrays(*parts))
    if operation in ("add", "sub"):
        high, low = two_sum(parts[0], parts[1] if operation == "add" else -parts[1])
    else:
        addend = parts[2] if operation == "fma" else np.zeros_like(parts[0])
        high = parts[0] * parts[1] if operation == "mul" else fma_double(*parts)
        if mode == "rn":
            return high
        low = exact_low(high, (parts[0], parts[1], addend), "fma")
    return values_of(round_pair(high, low, "f64", mode), "f64")


def quotient(operation: str, name: str, mode: str) -> Function:
    """Return `div`, `sqrt` or `rcp` of f32 or f64, rounded once in a mode."""

    def native(*parts: Array) -> Array:
        if operation == "div":
            return np.asarray(parts[0] / parts[1])
        one = parts[0].dtype.type(1)
        return np.sqrt(parts[0]) if operation == "sqrt" else np.asarray(one / parts[0])

    if mode == "rn":
        return lambda *parts: tidy(native(*parts))

    def directed(*operands: Array) -> Array:
        parts = [np.asarray(one, np.float64) for one in np.broadcast_arrays(*operands)]
        if operation == "rcp":
            parts = [np.ones_like(parts[0]), parts[0]]
        kind = "sqrt" if operation == "sqrt" else "div"
        high = np.sqrt(parts[0]) if kind == "sqrt" else parts[0] / parts[1]
        low = exact_low(high, tuple(parts), kind)
        return values_of(round_pair(high, low, name, mode), name)

    return directed


# ---- builders -----------------------------------------------------------------------------------


def build(
    decoder: Decoder, instruction: PtxInstruction, row: OperandType, function: Function, count: int
) -> Execute:
    """Return the instruction that writes `function` of its `count` operands, one type for all.

    Applies `.ftz`, `.sat` and `.relu`.
    """
    if len(instruction.operands) != count + 1:
        decoder.refuse(instruction, f"it takes {count} operands")
    readers = [decoder.read(instruction, one, row) for one in instruction.operands[1:]]
    write = decoder.write(instruction, instruction.operands[0], row)
    lane = row.lane or row.name
    ftz = instruction.has("ftz") and lane in ("f32", "f16")
    sat, relu = instruction.has("sat"), instruction.has("relu")

    def whole(*parts: Array) -> Array:
        if ftz:
            parts = tuple(flush(one, lane) for one in parts)
        result = function(*parts)
        if ftz:
            result = flush(result, lane)
        if sat or relu:
            value = decode(result, lane)
            limit = saturate(value) if sat else np.where(value < 0, 0.0, value)
            result = values_of(encode(limit, lane), lane)
        return result

    compute = by_lanes(row, whole)

    if count == 2:
        first, second = readers

        def run_pair(block: Block, index: Index) -> None:
            write(block, index, compute(first(block, index), second(block, index)))

        return run_pair

    def run(block: Block, index: Index) -> None:
        write(block, index, compute(*[one(block, index) for one in readers]))

    return run


def arithmetic(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`add`, `sub`, `mul`, `fma` and `mad` of floats."""
    row = decoder.type_of(instruction)
    operation = {"mad": "fma"}.get(instruction.opcode, instruction.opcode)
    mode = instruction.one_of(ROUNDINGS, "rn")
    function = rounded(operation, row.lane or row.name, mode)
    return build(decoder, instruction, row, function, 3 if operation == "fma" else 2)


def divide(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`div` of floats: `.approx`, `.full`, or rounded."""
    row = decoder.type_of(instruction)
    if row.name not in ("f32", "f64"):
        decoder.refuse(instruction, "division is of f32 and f64")
    mode = instruction.one_of(ROUNDINGS, "rn")
    function = quotient("div", row.name, mode)
    if not instruction.has("approx", "full"):
        return build(decoder, instruction, row, function, 2)

    def approximate(a: Array, b: Array) -> Array:
        result = function(a, b)
        # Beyond 2^126 the reciprocal that it multiplies with is zero.
        tiny = (np.abs(b) > np.float32(2.0**126)) & np.isfinite(a) & instruction.has("approx")
        return np.where(tiny, np.copysign(np.float32(0), result), result)

    return _approximated(decoder, instruction, row, approximate, (2.0**-22, 0.0), 2)


def transcendental(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`ex2`, `lg2`, `sin`, `cos`, `tanh`, `rcp`, `sqrt` and `rsqrt`."""
    row = decoder.type_of(instruction)
    name = instruction.opcode
    if name in ("rcp", "sqrt") and not instruction.has("approx"):
        mode = instruction.one_of(ROUNDINGS, "rn")
        return build(decoder, instruction, row, quotient(name, row.name, mode), 1)
    compute, relative, absolute = APPROXIMATIONS[name]
    lane = row.lane or row.name
    if lane != "f32":
        relative, absolute = _HALF_ERRORS.get((name, lane), (relative, absolute))

    def function(x: Array) -> Array:
        return np.asarray(compute(decode(x, lane)))

    return _approximated(decoder, instruction, row, function, (relative, absolute), 1)


def _approximated(
    decoder: Decoder, instruction: PtxInstruction, row: OperandType, function: Function,
    errors: tuple[float, float], count: int,
) -> Execute:
    lane = row.lane or row.name
    current = [0.0]

    def nearest(*parts: Array) -> Array:
        values = function(*parts)
        if values.dtype != np.float64:
            values = values.astype(np.float64)
        if current[0]:
            relative, absolute = errors
            values = values * (1.0 + current[0] * relative) + current[0] * absolute
        return values_of(encode(values, lane), lane)

    inner = build(decoder, instruction, row, nearest, count)

    def run(block: Block, index: Index) -> None:
        current[0] = block.skew
        inner(block, index)

    return run


# ---- choosing and signs -------------------------------------------------------------------------


def extreme(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`min` and `max` of floats: NaN loses, unless `.NaN` says that it wins; -0 is below +0."""
    row = decoder.type_of(instruction)
    name = row.lane or row.name
    least = instruction.opcode == "min"
    nan_wins = instruction.has("NaN")

    def function(a: Array, b: Array) -> Array:
        a, b = np.broadcast_arrays(a, b)
        left, right = decode(a, name), decode(b, name)
        below = (left < right) | (left == right) & np.signbit(left)
        no_left, no_right = np.isnan(left), np.isnan(right)
        first = (below if least else ~below) & ~no_left | no_right
        result = np.where(first, a, b)
        bad = no_left | no_right if nan_wins else no_left & no_right
        if bad.any():
            nan = values_of(encode(np.full(1, np.nan), name), name)
            result = np.where(bad, nan, result)
        if instruction.has("abs"):
            sign = np.signbit(left) ^ np.signbit(right)
            value = np.abs(decode(result, name))
            result = values_of(encode(np.where(sign, -value, value), name), name)
        return result

    return build(decoder, instruction, row, function, 2)


def sign_operation(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`abs` and `neg` of floats, by the sign bit alone."""
    row = decoder.type_of(instruction)
    bits = TYPES[row.lane].bits if row.lane else row.bits
    dtype = np.dtype(f"uint{bits}")
    sign = dtype.type(1 << (bits - 1))

    def function(a: Array) -> Array:
        raw = np.ascontiguousarray(a).view(dtype)
        raw = raw & ~sign if instruction.opcode == "abs" else raw ^ sign
        return np.asarray(raw.view(a.dtype))

    return build(decoder, instruction, row, function, 1)


def copy_sign(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`copysign`: the magnitude of the second with the sign of the first."""
    row = decoder.type_of(instruction)
    return build(decoder, instruction, row, lambda a, b: np.copysign(b, a), 2)


def test_property(decoder: Decoder, instruction: PtxInstruction) -> Execute:
    """`testp`: whether a float is finite, infinite, a number, NaN, normal or subnormal."""
    row = decoder.type_of(instruction)
    read = decoder.read(instruction, instruction.operands[1], row)
    write = decoder.write(instruction, instruction.operands[0], TYPES["pred"])
    smallest = 2.0**-126 if row.name == "f32" else 2.0**-1022
    tests: dict[str, Function] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda x: ~np.isnan(x),
        "notanumber": np.isnan,
        "normal": lambda x: np.isfinite(x) & (np.abs(x) >= smallest),
        "subnormal": lambda x: np.abs(x) < smallest,
    }
    name = instruction.one_of(tuple(tests))
    if not name:
        decoder.refuse(instruction)
    return lambda block, index: write(block, index, tests[name](read(block, index)))
