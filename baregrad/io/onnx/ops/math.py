"""Arithmetic, comparisons, logic and activations, element by element."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.dtypes import DType, dtypes
from baregrad.io.onnx.call import Function, NodeCall, Result, of_tensor, standard
from baregrad.tensor import Tensor


def _binary(function: Callable[[Any, Any], Any]) -> Function:
    """An operator of two inputs that broadcast; constants take part as numbers."""

    def run(call: NodeCall) -> Result:
        a, b = call.operand(0), call.operand(1)
        if not isinstance(a, Tensor) and not isinstance(b, Tensor):
            a = call[0]
        a, b = _legacy(call, a, b)
        if not isinstance(a, Tensor):
            dtype = b.dtype
            a = Tensor(a, dtype=dtype, device=call.device)
        return function(a, b)

    return run


def _legacy(call: NodeCall, a: Any, b: Any) -> tuple[Any, Any]:
    """Operands that opset 6 and older line up at an axis."""
    if call.version < 7 and call.attribute("broadcast") and isinstance(b, Tensor):
        axis = call.attribute("axis", a.ndim - b.ndim)
        b = b.reshape((*b.shape, *(1,) * (a.ndim - axis - b.ndim)))
    return a, b


def _div(a: Tensor, b: Any) -> Tensor:
    if a.dtype.kind == "float":
        return a.div(b)
    return a.div(b, rounding_mode="trunc")


def _mod(call: NodeCall) -> Result:
    a, b = call[0], call[1]
    return a.fmod(b) if call.attribute("fmod", 0) else a.remainder(b)


def _pow(call: NodeCall) -> Result:
    base = call[0]
    value = call.value(1)
    if isinstance(value, np.ndarray) and value.ndim == 0 and value.dtype.kind in "biuf":
        number = value.item()
        if base.dtype.kind == "float":
            return base.pow(float(number))
        if isinstance(number, int) and number >= 0:
            return base.pow(number)
    exponent = call[1]
    if base.dtype.kind != "float" and exponent.dtype.kind == "float":
        return base.cast(exponent.dtype).pow(exponent).cast(base.dtype)
    return base.pow(exponent.cast(base.dtype))


def _several(function: Callable[[Tensor, Any], Tensor]) -> Function:
    def run(call: NodeCall) -> Result:
        found = call[0]
        for at in range(1, len(call.inputs)):
            found = function(found, call[at])
        return found

    return run


def _mean(call: NodeCall) -> Result:
    return _several(Tensor.add)(call) / len(call.inputs)


def _bit_shift(call: NodeCall) -> Result:
    a, b = call[0], call[1]
    left = call.wanted("direction") == "LEFT"
    wide = b >= a.dtype.bits
    signed = a.dtype.is_signed and not left
    places = wide.where(a.dtype.bits - 1 if signed else 0, b)
    found = a.bitwise_left_shift(places) if left else a.bitwise_right_shift(places)
    return found if signed else wide.where(0, found).cast(a.dtype)


def _clip(call: NodeCall) -> Result:
    x = call[0]
    if call.version < 11:
        low, high = call.attribute("min"), call.attribute("max")
    else:
        low = call.operand(1) if call.has(1) else None
        high = call.operand(2) if call.has(2) else None
    if low is None and high is None:
        return x
    if isinstance(low, Tensor) or isinstance(high, Tensor):
        # As the standard has it: where the bounds cross, the upper one wins.
        x = x if low is None else x.maximum(low)
        return x if high is None else x.minimum(high)
    if low is not None and high is not None and low > high:
        return x.full_like(high)
    return x.clamp(low, high)


def _sign(x: Tensor) -> Tensor:
    if not x.dtype.is_signed:
        return (x > 0).cast(x.dtype)
    return x.isnan().where(x, x.sign()) if x.dtype.kind == "float" else x.sign()


def _thresholded(call: NodeCall) -> Result:
    x = call[0]
    return (x > call.attribute("alpha", 1.0)).where(x, 0)


def _is_inf(call: NodeCall) -> Result:
    x = call[0]
    x = x.cast(dtypes.float32) if x.dtype.bits < 16 else x
    found = x.isinf()
    if not call.attribute("detect_negative", 1):
        return found & (x > 0)
    if not call.attribute("detect_positive", 1):
        return found & (x < 0)
    return found


def _wide(function: Callable[[Tensor], Tensor]) -> Function:
    """A function of floats of which narrow ones are computed as float32."""

    def run(call: NodeCall) -> Result:
        x = call[0]
        if x.dtype.kind == "float" and x.dtype.bits < 32:
            return function(x.cast(dtypes.float32)).cast(x.dtype)
        return function(x)

    return run


# --- activations ----------------------------------------------------------------------------------


def _hard_sigmoid(call: NodeCall) -> Result:
    x = call[0]
    alpha, beta = call.attribute("alpha", 0.2), call.attribute("beta", 0.5)
    return (x * alpha + beta).clamp(0, 1)


def _selu(call: NodeCall) -> Result:
    x = call[0]
    alpha = call.attribute("alpha", 1.6732632423543772)
    gamma = call.attribute("gamma", 1.0507009873554805)
    return gamma * (x > 0).where(x, alpha * (x.minimum(0).exp() - 1))


def _prelu(call: NodeCall) -> Result:
    x, slope = call[0], call[1]
    if slope.ndim == 1 and x.ndim > 1 and slope.shape[0] == x.shape[1] != x.shape[-1]:
        slope = slope.reshape((-1, *(1,) * (x.ndim - 2)))
    return (x < 0).where(x * slope, x)


def _shrink(call: NodeCall) -> Result:
    x, bias, edge = call[0], call.attribute("bias", 0.0), call.attribute("lambd", 0.5)
    if x.dtype.kind != "float":
        wide = x.cast(dtypes.float32)
        low, high = (wide + bias).cast(x.dtype), (wide - bias).cast(x.dtype)
        return (wide < -edge).where(low, (wide > edge).where(high, 0))
    return (x < -edge).where(x + bias, (x > edge).where(x - bias, 0))


def softmax_of(function: Callable[[Tensor, int], Tensor]) -> Function:
    """Softmax and its like, which before opset 13 are of all axes from one on."""

    def run(call: NodeCall) -> Result:
        x = call[0]
        axis = call.attribute("axis", -1 if call.version >= 13 else 1)
        axis = axis + x.ndim if axis < 0 else axis
        if call.version >= 13 or axis == x.ndim - 1:
            return function(x, axis)
        rows = math.prod(x.shape[:axis])
        return function(x.reshape(rows, -1), 1).reshape(x.shape)

    return run


def _hardmax(x: Tensor, axis: int) -> Tensor:
    first = x.argmax(axis, keepdim=True)
    places = Tensor.arange(x.shape[axis], device=x.device)
    shape = tuple(-1 if at == axis else 1 for at in range(x.ndim))
    return (places.reshape(shape) == first).cast(x.dtype)


def _gelu(call: NodeCall) -> Result:
    return call[0].gelu(approximate=call.attribute("approximate", "none"))


def _swish(call: NodeCall) -> Result:
    x, alpha = call[0], call.attribute("alpha", 1.0)
    return x * (x if alpha == 1 else x * alpha).sigmoid()


def _einsum(call: NodeCall) -> Result:
    return Tensor.einsum(call.wanted("equation"), *call.tensors())


def _matmul(call: NodeCall) -> Result:
    return call[0] @ call[1]


def _gemm(call: NodeCall) -> Result:
    a, b = call[0], call[1]
    a = a.mT if call.attribute("transA", 0) else a
    b = b.mT if call.attribute("transB", 0) else b
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    found = a @ b
    if alpha != 1:
        found = found * _factor(alpha, found.dtype)
    if call.has(2) and beta != 0:
        c = call[2]
        found = found + (c if beta == 1 else c * _factor(beta, c.dtype))
    return found


def _factor(value: float, dtype: DType) -> float | int:
    return value if dtype.kind == "float" else int(value)


def _det(call: NodeCall) -> Result:
    x = call[0]
    n = x.shape[-1]
    if not isinstance(n, int) or n > 64:
        raise call.refuse("is of matrices of at most 64 rows", found=n)
    # Gauss's elimination with the largest pivot of each column.
    found = x.new_ones(*x.shape[:-2])
    rows = x
    for step in range(n):
        column = rows[..., 0].abs()
        at = column.argmax(-1, keepdim=True).unsqueeze(-1)
        size = n - step
        chosen = rows.take_along_dim(at.expand((*rows.shape[:-2], 1, size)), -2)
        pivot = chosen[..., 0, 0]
        found = found * (at[..., 0, 0] == 0).where(pivot, -pivot)
        if size == 1:
            break
        first = rows[..., :1, :]
        index = Tensor.arange(size, device=x.device).reshape(-1, 1)
        swapped = (index == at).where(first, rows)[..., 1:, :]
        safe = (pivot == 0).where(1, pivot).unsqueeze(-1).unsqueeze(-1)
        rows = (swapped - swapped[..., :1] / safe * chosen)[..., 1:]
    return found



OPERATORS = MappingProxyType(standard({
    "Add": _binary(lambda a, b: a | b if a.dtype is dtypes.bool else a + b),
    "Sub": _binary(lambda a, b: a - b), "Mul": _binary(lambda a, b: a * b),
    "Div": _binary(_div), "Mod": _mod, "Pow": _pow,
    "Max": _several(Tensor.maximum), "Min": _several(Tensor.minimum),
    "Sum": _several(Tensor.add), "Mean": _mean,
    "Neg": of_tensor(Tensor.neg), "Abs": of_tensor(Tensor.abs), "Sign": of_tensor(_sign),
    "Reciprocal": of_tensor(Tensor.reciprocal), "Sqrt": of_tensor(Tensor.sqrt),
    "Exp": of_tensor(Tensor.exp), "Log": of_tensor(Tensor.log), "Erf": of_tensor(Tensor.erf),
    "Ceil": of_tensor(Tensor.ceil), "Floor": of_tensor(Tensor.floor),
    "Round": of_tensor(Tensor.round),
    "Sin": of_tensor(Tensor.sin), "Cos": of_tensor(Tensor.cos), "Tan": _wide(Tensor.tan),
    "Asin": _wide(Tensor.asin), "Acos": _wide(Tensor.acos), "Atan": _wide(Tensor.atan),
    "Sinh": _wide(Tensor.sinh), "Cosh": _wide(Tensor.cosh), "Tanh": of_tensor(Tensor.tanh),
    "Asinh": _wide(Tensor.asinh), "Acosh": _wide(Tensor.acosh), "Atanh": _wide(Tensor.atanh),
    "Equal": _binary(Tensor.eq), "Less": _binary(Tensor.lt), "Greater": _binary(Tensor.gt),
    "LessOrEqual": _binary(Tensor.le), "GreaterOrEqual": _binary(Tensor.ge),
    "And": _binary(Tensor.logical_and), "Or": _binary(Tensor.logical_or),
    "Xor": _binary(Tensor.logical_xor), "Not": of_tensor(Tensor.logical_not),
    "BitwiseAnd": _binary(Tensor.bitwise_and), "BitwiseOr": _binary(Tensor.bitwise_or),
    "BitwiseXor": _binary(Tensor.bitwise_xor), "BitwiseNot": of_tensor(Tensor.bitwise_not),
    "BitShift": _bit_shift, "IsNaN": of_tensor(Tensor.isnan), "IsInf": _is_inf,
    "Clip": _clip, "Where": lambda call: call[0].where(call[1], call[2]),
    "Relu": of_tensor(Tensor.relu), "Sigmoid": of_tensor(Tensor.sigmoid),
    "HardSigmoid": _hard_sigmoid, "HardSwish": of_tensor(Tensor.hardswish),
    "LeakyRelu": lambda call: call[0].leaky_relu(call.attribute("alpha", 0.01)),
    "Elu": lambda call: call[0].elu(call.attribute("alpha", 1.0)),
    "Celu": lambda call: call[0].celu(call.attribute("alpha", 1.0)),
    "Selu": _selu, "PRelu": _prelu, "Softplus": of_tensor(Tensor.softplus),
    "Softsign": of_tensor(Tensor.softsign), "Mish": of_tensor(Tensor.mish),
    "ThresholdedRelu": _thresholded,
    "Shrink": _shrink, "Gelu": _gelu, "Swish": _swish,
    "Softmax": softmax_of(Tensor.softmax), "LogSoftmax": softmax_of(Tensor.log_softmax),
    "Hardmax": softmax_of(_hardmax),
    "MatMul": _matmul, "Gemm": _gemm, "Einsum": _einsum, "Det": _det,
}))  # fmt: skip
