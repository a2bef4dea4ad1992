"""Laws of conversions: casts that change nothing, and pairs of casts that are one."""

from __future__ import annotations

from baregrad.dtypes import DType, dtypes
from baregrad.ir.algebra.rewrite import Captures, Rule, booleans, equation, term, values, var
from baregrad.ir.core.monoid import slot
from baregrad.ir.core.node import Node, alu, cast, const
from baregrad.ir.core.op import Ops


def lossless(source: DType, target: DType) -> bool:
    """Whether every value of `source` is one of `target`'s, so that a cast and back is nothing."""
    if source is target:
        return True
    if target.format is not None and target.format.powers:
        return False
    if source.kind == "bool":
        return True
    if target.kind == "float" and target.format is not None:
        form = target.format
        if source.kind == "float" and source.format is not None:
            narrow = source.format
            return (
                narrow.mantissa_bits <= form.mantissa_bits
                and narrow.largest <= form.largest
                and narrow.least_exponent - narrow.mantissa_bits
                >= form.least_exponent - form.mantissa_bits
                and (form.special == "ieee" or narrow.special in ("none", form.special))
            )
        digits = source.bits - (source.kind == "int")
        return source.kind in ("int", "uint") and digits <= form.mantissa_bits + 1 <= form.bias
    if source.kind == "uint" and target.kind in ("int", "index"):
        return source.bits < (target.bits or 64)
    if source.kind == "int" and target.kind in ("int", "index"):
        return source.bits <= (target.bits or 64)
    return source.kind == target.kind == "uint" and source.bits <= target.bits


def halves_for(dtype: DType, beside: DType) -> DType | None:
    """The 16-bit floats that a narrower float is where it meets another factor; None for none.

    Both become the same, unless the other one is wider than that.
    """
    for half in (beside,) if beside.bits == 16 else (dtypes.float16, dtypes.bfloat16):
        if lossless(dtype, half) and (beside.bits >= 16 or lossless(beside, half)):
            return half
    return None


def _cast_pair(found: Captures, node: Node) -> Node | None:
    """CAST of CAST is one CAST where the first keeps the value, or both only cut off high bits."""
    x, middle, target = found["x"], node.src[0].dtype, node.dtype
    source = x.dtype
    if lossless(source, middle):
        # By way of a float an integer saturates, directly it wraps: the same only within range.
        by_float = middle.kind == "float" and source.kind != "float" and target.kind != "float"
        if not by_float or target.kind == "bool" or lossless(source, target):
            return cast(x, target)
        return None
    whole = all(dtype.kind in ("int", "uint") for dtype in (source, middle, target))
    return cast(x, target) if whole and middle.bits >= target.bits else None


def _bitcast_pair(found: Captures, node: Node) -> Node | None:
    x = found["x"]
    if node.src[0].dtype.kind == "bool":
        # Every bit pattern but zero is True, so the pattern is lost.
        return None
    return x if x.dtype is node.dtype else Node(Ops.BITCAST, node.dtype, (x,))


P, I8, I32 = slot(0, dtypes.bool), slot(0, dtypes.int8), slot(0, dtypes.int32)
CAST_RULES = (
    Rule(
        "cast-same", "cast(x, dtype of x) → x, and bitcast likewise",
        "generic code casts to a dtype that is there already",
        term((Ops.CAST, Ops.BITCAST), var("x", values)),
        lambda found, node: found["x"] if found["x"].dtype is node.dtype else None,
        Node(Ops.CAST, dtypes.int8, (slot(0, dtypes.int8),)), slot(0, dtypes.int8),
    ),
    Rule(
        "cast-pair",
        "cast(cast(x, B), C) → cast(x, C), if B holds every x, or B and C only cut bits off",
        "mixed precision casts up and down around every operation",
        term(Ops.CAST, term(Ops.CAST, var("x", values)), kinds=values), _cast_pair,
        cast(cast(I8, dtypes.int32), dtypes.int16), cast(I8, dtypes.int16),
    ),
    Rule(
        "bitcast-pair", "bitcast(bitcast(x, B), C) → bitcast(x, C), if B is not bool",
        "bits that go there and back have not changed",
        term(Ops.BITCAST, term(Ops.BITCAST, var("x", values)), kinds=values), _bitcast_pair,
        Node(Ops.BITCAST, dtypes.int32, (Node(Ops.BITCAST, dtypes.uint32, (I32,)),)), I32,
    ),
    equation(
        "truth-of-cast", "cast(p) != 0 → p, if p is bool",
        "masks become numbers to be multiplied with, and are then compared again",
        alu(Ops.CMPNE, cast(P, dtypes.float32), const(0.0, dtypes.float32)), P, booleans,
    ),
)
