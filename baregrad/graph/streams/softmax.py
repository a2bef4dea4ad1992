"""The weights of a softmax times values: how that is found, and one reduction that replaces it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from baregrad.dtypes import DType, dtypes
from baregrad.graph.streams.parts import KeyParts, combined, parts_of
from baregrad.graph.views import below_views, cut, expand, lengthened, reshape, stored
from baregrad.ir.analysis.stream import is_float32_sum, is_of_bytes, rounded, shown, stream
from baregrad.ir.core.attrs import Reduce
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import Node, alu, const, rebuild
from baregrad.ir.core.op import Op, Ops

F32 = dtypes.float32
ONE, ZERO = const(1.0, F32), const(0.0, F32)
_VIEWS = (Ops.EXPAND, Ops.RESHAPE)
POWERS = (Ops.EXP, Ops.EXP_NEAR, Ops.EXP2_NEAR)


class WeighedValues(NamedTuple):
    """A sum of products of powers with values, divided by the sum of the powers, both rounded.

    exponent: x, over (..., rows, keys). power: 2 ** (x - ceil(max(x))). weights: the powers, as a
    float32 that is rounded to 16 bits, or 0 where dropout leaves none. product: the sum of
    products. share: what the sum of the powers is multiplied by.
    """

    exponent: Node
    power: Node
    weights: Node
    product: Node
    share: Node = ONE

    @property
    def dtype(self) -> DType:
        """What weights, and the powers that are summed, are rounded to."""
        found: DType = self.weights.src[0].dtype
        return found


def lifted(x: Node, power: Op) -> Node:
    """Powers relative to what each exponent counts for in a maximum by itself."""
    return Node(power, F32, (alu(Ops.SUB, x, raised(x, power)),))


def raised(x: Node, power: Op) -> Node:
    """What an exponent counts for in the maximum: powers of two are relative to whole ones."""
    return Node(Ops.CEIL, F32, (x,)) if power is Ops.EXP2_NEAR else x


def streamed(node: Node, found: WeighedValues, now: Callable[[Node], Node]) -> Node:
    """Attention's result, rounded to 16 bits: over a reduction of three states.

    now: what became of a node.
    """
    values, parts = _values(found, now)
    how = Reduce(stream(F32, 2, Ops.EXP2), found.product.arg.axes)
    if parts is not None:
        quotient = combined(values, how, parts)
    else:
        folded = Node(Ops.REDUCE, F32, values, how)
        total, summed = (Node(Ops.PROJ, F32, (folded,), part) for part in (1, 2))
        divisor = alu(Ops.WHERE, alu(Ops.CMPEQ, total, ZERO), ONE, total)
        if found.share is not ONE:
            divisor = alu(Ops.MUL, divisor, found.share)
        quotient = alu(Ops.DIV, summed, divisor)
    made = Node(Ops.CAST, node.dtype, (quotient,))
    return Node(Ops.CONTIGUOUS, node.dtype, (made,))


def state_beside(found: WeighedValues, part: int, now: Callable[[Node], Node]) -> Node | None:
    """The maximum of an exponent, or the sum of powers, of the reduction that gives the result.

    None where that is made of parts of the keys, or of weights that are not the powers alone. now:
    what became of a node that is not made of powers.
    """
    if found.weights.src[0].src[0] is not found.power:
        return None
    values, parts = _values(found, now)
    if parts is not None:
        return None
    folded = Node(Ops.REDUCE, F32, values, Reduce(stream(F32, 2, Ops.EXP2), found.product.arg.axes))
    state = Node(Ops.PROJ, F32, (folded,), part)
    last = len(state.shape) - 1
    # Columns share it.
    return reshape(stored(cut(state, last, 0, 1)), state.shape[:last])


def _values(
    found: WeighedValues, now: Callable[[Node], Node]
) -> tuple[tuple[Node, ...], KeyParts | None]:
    """What the reduction is of, over (..., rows, columns, keys), and how keys are shared out."""
    x, factor = now(found.exponent), now(found.product.src[0].src[1])
    is_plain = found.weights.src[0].src[0] is found.power and found.share is ONE
    are_bytes = is_of_bytes(shown(shown(factor).src[0]))
    rows, keys = x.shape[-2:]
    parts = parts_of(rows, keys, are_bytes) if is_plain else None
    if parts is not None:
        # Those beyond the last key count for nothing.
        x = lengthened(x, len(x.shape) - 1, parts.keys, const(float("-inf"), F32))
        factor = lengthened(factor, len(factor.shape) - 1, parts.keys, const(0.0, factor.dtype))
    shape = factor.shape
    own = lifted(x, Ops.EXP2_NEAR)
    if is_plain:
        again = rebuild(found.weights, lambda node: None, memo={found.power: own})
    else:
        power = now(found.power)
        again = rebuild(now(found.weights), lambda one: own if one is power else None)
    values = (
        _along(raised(x, Ops.EXP2_NEAR), shape), _along(rounded(own, found.dtype), shape),
        alu(Ops.MUL, _along(again, shape), factor),
    )
    return values, parts


def matched(node: Node) -> WeighedValues | None:
    """The parts of `sum(p * v) / sum(e)`, p made of e, e = 2 ** (x - ceil(max(x)))."""
    if node.op is not Ops.DIV or node.dtype is not F32:
        return None
    product, divisor = node.src
    if not is_float32_sum(product):
        return None
    last = len(product.src[0].shape) - 1
    if product.arg.axes != (last,) or product.src[0].op is not Ops.MUL:
        return None
    over = product.src[0].src[0]
    weights = _below(over)
    power = _power(weights)
    if power is None or power.op is not Ops.EXP2_NEAR or power.src[0].op is not Ops.SUB:
        return None
    x = power.src[0].src[0]
    shape = (*product.src[0].shape[:-2], product.src[0].shape[-1])
    fits = over.shape == product.src[0].shape and x.shape == power.shape == shape
    summed = rounded(power, weights.src[0].dtype)
    total, share = _below(divisor), ONE
    if total.op is Ops.MUL and _below(total.src[1]).op is Ops.CONST:
        total, share = _below(total.src[0]), _below(total.src[1])
    if not (fits and highest(power) is not None and _is_total(total, summed)):
        return None
    return WeighedValues(x, power, weights, product, share)


def _below(node: Node) -> Node:
    """What is repeated along axes that it has not."""
    return below_views(node, _VIEWS)


def _power(weights: Node) -> Node | None:
    """The powers that a rounded factor is made of, or those of them that dropout leaves."""
    if weights.op is not Ops.CAST or weights.src[0].op is not Ops.CAST:
        return None
    if weights.src[0].dtype.bits != 16:
        return None
    inner = weights.src[0].src[0]
    if inner.op is Ops.WHERE and _below(inner.src[2]) is ZERO:
        inner = inner.src[1]
    return inner


def highest(power: Node) -> Node | None:
    """The maximum over the last axis of x in a power of x - max(x), or of 2 above all of them.

    Of powers of two it is of what each x is rounded up to, and where it is -inf, 0 is taken.
    """
    if power.src[0].op is not Ops.SUB or power.dtype is not F32:
        return None
    x, high = power.src[0].src
    found = _below(high)
    if power.op is Ops.EXP2_NEAR:
        if found.op is not Ops.WHERE:
            return None
        found = _below(found.src[1])
    if found.op is not Ops.REDUCE or found.arg.monoid is not primitive(Ops.MAX, F32):
        return None
    over = found.src[0]
    if power.op is not Ops.EXP2_NEAR and over.op is Ops.CONTIGUOUS:
        over = over.src[0]
    is_last = found.arg.axes == (len(x.shape) - 1,)
    return found if is_last and over is raised(x, power.op) else None


def _is_total(node: Node, summed: Node) -> bool:
    """Whether a value is the sum of some powers over the last axis, 1 where that is 0."""
    if node.op is not Ops.WHERE:
        return False
    found = _below(node.src[2])
    return is_float32_sum(found) and found.src[0] is summed


def _along(value: Node, shape: tuple[int | Node, ...]) -> Node:
    """A value over (..., rows, keys) as one over (..., rows, columns, keys)."""
    return expand(reshape(value, (*shape[:-2], 1, shape[-1])), shape)
