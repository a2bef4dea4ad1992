"""Element-wise work: functions, arithmetic of arrays, broadcasts, masks, casts, integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from baregrad.apps.beside.draws import Draw
from baregrad.apps.sweep.pick import INTEGERS, Pick
from baregrad.apps.sweep.sweep_op import Maker, SweepOp, shape_text

# Name, arrays, function, whether it is smooth, and whether it wants positive numbers.
_FUNCTIONS: tuple[tuple[str, int, Callable[..., Any], bool, bool], ...] = (
    ("add", 2, lambda k, x, y: x + y, True, False),
    ("mul", 2, lambda k, x, y: x * y, True, False),
    ("div", 2, lambda k, x, y: x / (y * y + 1), True, False),
    ("maximum", 2, lambda k, x, y: x.maximum(y), False, False),
    ("addcmul", 3, lambda k, x, y, z: x.addcmul(y, z, value=0.5), True, False),
    ("lerp", 3, lambda k, x, y, z: x.lerp(y, z), True, False),
    ("where", 3, lambda k, x, y, z: k.where(x > 0, y, z), False, False),
    ("masked_fill", 2, lambda k, x, y: y.masked_fill(x > 1, 0.5), False, False),
    ("exp", 1, lambda k, x: x.exp(), True, False),
    ("log", 1, lambda k, x: x.log(), True, True),
    ("rsqrt", 1, lambda k, x: x.rsqrt(), True, True),
    ("pow", 1, lambda k, x: x**2.5, True, True),
    ("sigmoid", 1, lambda k, x: x.sigmoid(), True, False),
    ("tanh", 1, lambda k, x: x.tanh(), True, False),
    ("erf", 1, lambda k, x: x.erf(), True, False),
    ("sin", 1, lambda k, x: x.sin(), True, False),
    ("gelu", 1, lambda k, x: k.gelu(x), True, False),
    ("silu", 1, lambda k, x: k.silu(x), True, False),
    ("softplus", 1, lambda k, x: k.softplus(x), True, False),
    ("leaky_relu", 1, lambda k, x: k.leaky_relu(x, 0.1), False, False),
    ("clamp", 1, lambda k, x: x.clamp(-0.5, 1.0), False, False),
    ("floor", 1, lambda k, x: (x * 4).floor(), False, False),
    ("abs", 1, lambda k, x: x.abs(), False, False),
    (
        "chain of five", 2, lambda k, x, y: ((x * 0.5 + y).sigmoid() - 0.25) * x, True, False,
    ),
)


def _function(row: tuple[str, int, Callable[..., Any], bool, bool]) -> Maker:
    name, count, function, is_smooth, is_positive = row

    def make(pick: Pick) -> SweepOp:
        shape, dtype = pick.shape(), pick.floats()
        # Positive numbers are far from 0, where rounding makes large differences.
        scale, shift = (0.1, 2.0) if is_positive else (1.0, 0.0)
        inputs = tuple(Draw(shape, dtype, scale, shift) for _ in range(count))
        return SweepOp(
            f"{name} of {shape_text(shape)}", inputs, function,
            tuple(range(count)) if is_smooth else (),
        )

    return make


def _broadcast(pick: Pick) -> SweepOp:
    """A row, a column or one number with a matrix."""
    shape, dtype = pick.shape(2, 3), pick.floats()
    other = tuple(size if pick.chance(0.5) else 1 for size in shape)
    return SweepOp(
        f"broadcast {shape_text(shape)} by {shape_text(other)}",
        (Draw(shape, dtype), Draw(other, dtype)), lambda k, x, y: (x + y) * y, (0, 1),
    )


def _cast(pick: Pick) -> SweepOp:
    shape, dtype = pick.shape(), pick.floats()
    name = pick.one(("float", "half", "bfloat16", "int", "bool"))
    return SweepOp(
        f"{name}() of {shape_text(shape)}", (Draw(shape, dtype, 3.0),),
        lambda k, x: getattr(x, name)(), takes_more=False,
    )


def _integers(pick: Pick) -> SweepOp:
    shape, dtype = pick.shape(), pick.one(INTEGERS)
    name, function = pick.one((
        ("x*3+y", lambda k, x, y: x * 3 + y), ("x//7", lambda k, x, y: (x + y) // 7),
        ("x%y", lambda k, x, y: x % (y + 1)), ("x&y|1", lambda k, x, y: (x & y) | 1),
        ("x<y", lambda k, x, y: x < y), ("x<<2^y", lambda k, x, y: (x << 2) ^ y),
    ))
    draw = Draw(shape, dtype, below=1000)
    return SweepOp(f"{name} of {shape_text(shape)}", (draw, draw), function, takes_more=False)


ELEMENTWISE: tuple[tuple[str, Maker], ...] = (
    *((row[0], _function(row)) for row in _FUNCTIONS),
    ("broadcast", _broadcast), ("cast", _cast), ("integers", _integers), ("integers", _integers),
)
