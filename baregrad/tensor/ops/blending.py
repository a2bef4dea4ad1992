"""A tensor and what is added to it in one step: lerp, addcmul, addcdiv."""

from __future__ import annotations

import math
from collections.abc import Callable

from baregrad.base.errors import DTypeError
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.operands import broadcast_operands, common_dtype, elementwise, lift
from baregrad.tensor.array.tensor_like import Operand, Scalar, Tensor, TensorLike
from baregrad.tensor.ops.elementwise import div, rsub


def lerp(x: Tensor, end: Operand, weight: Operand) -> Tensor:
    """Return x + weight*(end - x), written so that weight 1 gives exactly `end`.

    16-bit floats are rounded once, at the end.
    """
    # First of all in the dtype of the result, where a difference of integers cannot wrap.
    end, weight = lift(end, x), lift(weight, x)
    dtype = common_dtype((x, end, weight))
    x, end = x.cast(dtype), end.cast(dtype) if isinstance(end, TensorLike) else end
    return _rounded_once(_lerp, x, end, weight)


def _lerp(x: Tensor, end: Tensor | Scalar | Node, weight: Tensor | Scalar | Node) -> Tensor:
    difference = rsub(x, end)
    if isinstance(weight, TensorLike):
        near = weight.abs() < 0.5
        found: Tensor = near.where(
            x + difference * weight, rsub(difference * (1 - weight), end)
        )
        return found
    assert isinstance(weight, int | float)
    if math.fabs(weight) < 0.5:
        return x + difference * weight
    return rsub(difference * (1 - weight), end)


def addcmul(x: Tensor, a: Operand, b: Operand, *, value: float = 1) -> Tensor:
    """Return x + value*a*b; 16-bit floats are rounded once, at the end.

    Raises DTypeError where neither factor is a tensor or an array.
    """

    def added(x: Tensor, a: Operand, b: Operand) -> Tensor:
        product: Tensor = elementwise(Ops.MUL, *broadcast_operands(x, a, b))
        return x + (product if value == 1 else product * value)

    return _rounded_once(added, x, *_factors("addcmul", x, a, b))


def addcdiv(x: Tensor, a: Operand, b: Operand, *, value: float = 1) -> Tensor:
    """Return x + value*a/b; 16-bit floats are rounded once, at the end.

    Raises DTypeError where neither factor is a tensor or an array.
    """

    def added(x: Tensor, a: Operand, b: Operand) -> Tensor:
        quotient = div(broadcast_operands(x, a, b)[0], b)
        return x + (quotient if value == 1 else quotient * value)

    return _rounded_once(added, x, *_factors("addcdiv", x, a, b))


def _rounded_once(
    function: Callable[..., Tensor], *operands: Tensor | Scalar | Node
) -> Tensor:
    """A function of several ops of operands of one dtype, which computes 16-bit floats wider."""
    dtype = common_dtype(operands)
    wide = nodes.accumulator(dtype)
    if wide == dtype:
        return function(*operands)
    widened = [one.cast(wide) if isinstance(one, TensorLike) else one for one in operands]
    rounded: Tensor = function(*widened).cast(dtype)
    return rounded


def _factors(
    name: str, x: Tensor, a: Operand, b: Operand
) -> tuple[Tensor | Scalar | Node, Tensor | Scalar | Node]:
    a, b = lift(a, x), lift(b, x)
    if not isinstance(a, TensorLike) and not isinstance(b, TensorLike):
        raise DTypeError(
            f"{name} is of tensors", found=f"{a!r:.40} and {b!r:.40}", wanted="at least one tensor"
        )
    return a, b
