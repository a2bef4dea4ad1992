"""Gradient rules of elementwise ops and conversions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from baregrad.dtypes import dtypes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.tensor.array.nodes import (
    add,
    alu,
    cast,
    div,
    mul,
    neg,
    scalar,
    sub,
    where,
    zeros_like,
)

Gradients = tuple[Node | None, ...]
Rule = Callable[[Node, Node], Gradients]


def _unary(derivative: Callable[[Node, Node], Node]) -> Rule:
    """The rule of y = f(x) whose derivative is a function of x and y."""

    def rule(node: Node, gradient: Node) -> Gradients:
        return (mul(gradient, derivative(node.src[0], node)),)

    return rule


def _sign(x: Node) -> Node:
    zero, one = scalar(0, x), scalar(1, x)
    negative = where(alu(Ops.CMPLT, x, zero), neg(one), zero)
    return where(alu(Ops.CMPLT, zero, x), one, negative)


def _sqrt(node: Node, gradient: Node) -> Gradients:
    return (div(mul(gradient, scalar(0.5, node)), node),)


def _log(node: Node, gradient: Node) -> Gradients:
    return (div(gradient, node.src[0]),)


def _log2(node: Node, gradient: Node) -> Gradients:
    (x,) = node.src
    return (div(gradient, mul(x, scalar(math.log(2), x))),)


def _erf(x: Node, y: Node) -> Node:
    bell = Node(Ops.EXP, x.dtype, (neg(mul(x, x)),))
    return mul(bell, scalar(2 / math.sqrt(math.pi), x))


def _gelu(x: Node, y: Node) -> Node:
    """The normal distribution's integral up to x, and x times its density.

    Of 16-bit numbers' the density is nearly that: the gradient is rounded to as many bits.
    """
    part = Node(Ops.ERF, x.dtype, (mul(x, scalar(math.sqrt(0.5), x)),))
    half = scalar(0.5, x)
    if x.op is Ops.CAST and x.src[0].dtype.bits == 16:
        power = mul(mul(x, x), scalar(-0.5 * math.log2(math.e), x))
        bell = Node(Ops.EXP2_NEAR, x.dtype, (power,))
    else:
        bell = Node(Ops.EXP, x.dtype, (neg(mul(mul(x, x), half)),))
    density = mul(bell, scalar(1 / math.sqrt(2 * math.pi), x))
    return add(add(mul(part, half), half), mul(x, density))


def _atan(node: Node, gradient: Node) -> Gradients:
    (x,) = node.src
    return (div(gradient, add(mul(x, x), scalar(1, x))),)


def _mul(node: Node, gradient: Node) -> Gradients:
    a, b = node.src
    if _is_of_tfloat32(a) or _is_of_tfloat32(b):
        # Products of gradients are made by the same units.
        gradient = cast(cast(gradient, dtypes.tfloat32), gradient.dtype)
    return mul(gradient, b), mul(gradient, a)


def _is_of_tfloat32(x: Node) -> bool:
    """Whether a node repeats what was widened from tfloat32."""
    while x.op is Ops.EXPAND:
        (x,) = x.src
    return x.op is Ops.CAST and x.src[0].dtype is dtypes.tfloat32


def _div(node: Node, gradient: Node) -> Gradients:
    _, b = node.src
    return div(gradient, b), neg(div(mul(gradient, node), b))


def _mod(node: Node, gradient: Node) -> Gradients:
    a, b = node.src
    quotient = Node(Ops.FLOOR, node.dtype, (div(a, b),))
    # Of different signs the quotient is below 0, though it may be too small to differ from it.
    zero = scalar(0, a)
    apart = alu(Ops.CMPNE, alu(Ops.CMPLT, a, zero), alu(Ops.CMPLT, b, zero))
    small = alu(Ops.AND, alu(Ops.CMPEQ, quotient, zero), alu(Ops.CMPNE, a, zero))
    quotient = where(alu(Ops.AND, small, apart), scalar(-1, a), quotient)
    return gradient, neg(mul(gradient, quotient))


def _pow(node: Node, gradient: Node) -> Gradients:
    a, b = node.src
    zero, one = scalar(0, a), scalar(1, a)
    flat = alu(Ops.CMPEQ, b, zero)
    slope = mul(b, alu(Ops.POW, a, sub(b, one)))
    to_base = where(flat, zero, mul(gradient, slope))
    # At 0**b with b >= 0 the logarithm is infinite but the limit of the derivative is 0.
    vanishing = alu(Ops.AND, alu(Ops.CMPEQ, a, zero), alu(Ops.CMPLE, zero, b))
    logarithm = Node(Ops.LOG, a.dtype, (where(vanishing, one, a),))
    to_exponent = where(vanishing, zero, mul(gradient, mul(node, logarithm)))
    return to_base, to_exponent


def _extreme(node: Node, gradient: Node) -> Gradients:
    """MAX and MIN: to the chosen operand, half to each where they are equal, all beside a NaN."""
    a, b = node.src
    zero, half = scalar(0, gradient), mul(gradient, scalar(0.5, gradient))
    below, above = alu(Ops.CMPLT, a, b), alu(Ops.CMPLT, b, a)
    if node.op is Ops.MIN:
        below, above = above, below
    equal = alu(Ops.CMPEQ, a, b)
    return (
        where(equal, half, where(below, zero, gradient)),
        where(equal, half, where(above, zero, gradient)),
    )


def _where(node: Node, gradient: Node) -> Gradients:
    zero = scalar(0, gradient)
    condition = node.src[0]
    return None, where(condition, gradient, zero), where(condition, zero, gradient)


def _fma(node: Node, gradient: Node) -> Gradients:
    a, b, _ = node.src
    return mul(gradient, b), mul(gradient, a), gradient


def _cast(node: Node, gradient: Node) -> Gradients:
    (x,) = node.src
    if x.dtype is dtypes.tfloat32:
        # Sums are kept as they are: it is factors that are rounded.
        return (gradient,)
    # Scales, which have no sign, hold no gradient: that may be 0 or negative.
    holds = x.dtype.kind == "float" and x.dtype.is_signed
    return (cast(gradient, x.dtype) if holds else None,)


def _zero(node: Node, gradient: Node) -> Gradients:
    """Rounding: constant almost everywhere."""
    return (zeros_like(node.src[0]),)


ELEMENTWISE_RULES: Mapping[Op, Rule] = MappingProxyType(
    {
        Ops.NEG: lambda node, gradient: (neg(gradient),),
        Ops.ABS: _unary(lambda x, y: _sign(x)),
        Ops.RECIPROCAL: _unary(lambda x, y: neg(mul(y, y))),
        Ops.SQRT: _sqrt,
        Ops.EXP: _unary(lambda x, y: y),
        Ops.EXP_NEAR: _unary(lambda x, y: y),
        Ops.EXP2: _unary(lambda x, y: mul(y, scalar(math.log(2), y))),
        Ops.EXP2_NEAR: _unary(lambda x, y: mul(y, scalar(math.log(2), y))),
        Ops.LOG: _log,
        Ops.LOG2: _log2,
        Ops.SIN: _unary(lambda x, y: Node(Ops.COS, x.dtype, (x,))),
        Ops.COS: _unary(lambda x, y: neg(Node(Ops.SIN, x.dtype, (x,)))),
        Ops.TANH: _unary(lambda x, y: sub(scalar(1, y), mul(y, y))),
        Ops.ERF: _unary(_erf),
        **dict.fromkeys((Ops.GELU, Ops.GELU_NEAR), _unary(_gelu)),
        Ops.ATAN: _atan,
        Ops.FLOOR: _zero,
        Ops.CEIL: _zero,
        Ops.TRUNC: _zero,
        Ops.RINT: _zero,
        Ops.ADD: lambda node, gradient: (gradient, gradient),
        Ops.SUB: lambda node, gradient: (gradient, neg(gradient)),
        Ops.MUL: _mul,
        Ops.DIV: _div,
        Ops.MOD: _mod,
        Ops.POW: _pow,
        Ops.MAX: _extreme,
        Ops.MIN: _extreme,
        Ops.WHERE: _where,
        Ops.FMA: _fma,
        Ops.CAST: _cast,
    }
)
