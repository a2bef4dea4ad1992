"""Quantised operators: integers that stand for scaled numbers."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from baregrad.dtypes import DType, computed_for, dtypes
from baregrad.io.onnx.call import Function, NodeCall, Result, own_axis, standard
from baregrad.io.onnx.ops.casting import converted, element
from baregrad.io.onnx.ops.nn import convolved
from baregrad.tensor import Tensor


def beside(x: Tensor, scale: Tensor, axis: int, block: int = 0) -> Tensor:
    """A scale, or zero point, of one number, of one for each place of an axis, or of blocks."""
    if scale.ndim == 0 or (scale.ndim == 1 and scale.shape[0] == 1):
        return scale.reshape(())
    axis = own_axis(axis, x.ndim)
    if scale.ndim == 1:
        return scale.reshape(tuple(-1 if at == axis else 1 for at in range(x.ndim)))
    size = block or -(-x.shape[axis] // scale.shape[axis])
    return scale.repeat_interleave(size, axis).narrow(axis, 0, x.shape[axis])


def _plain(x: Tensor) -> Tensor:
    """Storage-only elements as ones that are computed with."""
    return x.cast(computed_for(x.dtype)) if x.dtype.storage_only else x


def quantised(x: Tensor, scale: Tensor, zero: Tensor | None, dtype: DType) -> Tensor:
    """round(x / scale) + zero, cut to the range of `dtype`."""
    wide = x.cast(dtypes.float32) if x.dtype.bits < 32 or x.dtype.is_int else x
    over = wide / scale.cast(wide.dtype)
    if dtype.kind == "float":
        return converted(over, dtype)
    over = over.round()
    if zero is not None:
        over = over + _plain(zero).cast(over.dtype)
    return over.clamp(dtype.min, dtype.max).cast(computed_for(dtype)).cast(dtype)


def dequantised(x: Tensor, scale: Tensor, zero: Tensor | None) -> Tensor:
    """(x - zero) * scale, in the dtype of the scale."""
    wide = _plain(x)
    wide = wide.cast(dtypes.int32) if wide.dtype.is_int and wide.dtype.bits < 32 else wide
    if zero is not None:
        wide = wide - _plain(zero).cast(wide.dtype)
    return (wide.cast(dtypes.float32) * scale.cast(dtypes.float32)).cast(scale.dtype)


def _quantize(call: NodeCall) -> Result:
    x, scale = call[0], call[1]
    code = call.attribute("output_dtype", 0)
    dtype = call.dtype(2) if call.has(2) else dtypes.uint8
    if code:
        dtype = element(call, code)
    axis, block = call.attribute("axis", 1), call.attribute("block_size", 0)
    zero = beside(x, _plain(call[2]), axis, block) if call.has(2) else None
    return quantised(x, beside(x, scale, axis, block), zero, dtype)


def _dequantize(call: NodeCall) -> Result:
    x, scale = call[0], call[1]
    axis, block = call.attribute("axis", 1), call.attribute("block_size", 0)
    zero = beside(x, _plain(call[2]), axis, block) if call.has(2) else None
    found = dequantised(x, beside(x, scale, axis, block), zero)
    code = call.attribute("output_dtype", 0)
    return found.cast(element(call, code)) if code else found


def dynamic(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`x` as uint8 of its own range with zero, the scale and the zero point."""
    low, high = x.amin().minimum(0), x.amax().maximum(0)
    scale = (high - low) / 255
    scale = (scale == 0).where(1, scale)
    zero = (-low / scale).round().clamp(0, 255)
    made = ((x / scale).round() + zero).clamp(0, 255).cast(dtypes.uint8)
    return made, scale, zero.cast(dtypes.uint8)


def _less(x: Tensor, zero: Tensor | None, axis: int | None = None) -> Tensor:
    wide = x.cast(dtypes.int32)
    if zero is None:
        return wide
    shift = zero.cast(dtypes.int32)
    if shift.ndim == 1 and shift.shape[0] != 1 and axis is not None:
        own = own_axis(axis, x.ndim)
        shift = shift.reshape(tuple(-1 if at == own else 1 for at in range(x.ndim)))
    elif shift.ndim == 1:
        shift = shift.reshape(())
    return wide - shift


def _matmul_integer(call: NodeCall) -> Result:
    return _less(call[0], call.maybe(2), -2) @ _less(call[1], call.maybe(3), -1)


def _conv_integer(call: NodeCall) -> Result:
    return convolved(call, _less(call[0], call.maybe(2)), _less(call[1], call.maybe(3), 0), None)


def requantised(call: NodeCall, total: Tensor, scale: Tensor, at: int) -> Tensor:
    """Sums of products of integers, times their scale, over that of the output."""
    out, zero = call[at], call[at + 1]
    # One factor for all three scales, as others have it: it decides ties.
    factor = scale.cast(dtypes.float32) / out.reshape(()).cast(dtypes.float32)
    over = total.cast(dtypes.float32) * factor
    return quantised(over, Tensor.ones((), device=call.device), zero.reshape(()), zero.dtype)


def _qlinear_matmul(call: NodeCall) -> Result:
    a, b = call[0], call[3]
    total = _less(a, call[2], -2) @ _less(b, call[5], -1)
    a_scale, b_scale = call[1], call[4]
    if a_scale.ndim == 1 and a_scale.shape[0] > 1:
        a_scale = a_scale.reshape(-1, 1)
    elif a_scale.ndim == 1:
        a_scale = a_scale.reshape(())
    scale = a_scale.cast(dtypes.float32) * b_scale.cast(dtypes.float32)
    return requantised(call, total, scale, 6)


def _qlinear_conv(call: NodeCall) -> Result:
    x, weight = _less(call[0], call[2]), _less(call[3], call[5], 0)
    scale = call[1].reshape(()) * (
        call[4].reshape((1, -1, *(1,) * (x.ndim - 2))) if call[4].ndim and call[4].shape[0] > 1
        else call[4].reshape(())
    )
    return requantised(call, convolved(call, x, weight, call.maybe(8)), scale, 6)


def _float_form(function: Any, inputs: int) -> Function:
    """An operator on quantised inputs (x, scale, zero)*, then the scale and zero of the output."""

    def run(call: NodeCall) -> Result:
        given = [dequantised(call[3 * at], call[3 * at + 1].reshape(()),
                             call[3 * at + 2].reshape(()) if call.has(3 * at + 2) else None)
                 for at in range(inputs)]  # fmt: skip
        found = function(call, *given)
        zero = call.maybe(3 * inputs + 1)
        dtype = call[0].dtype if zero is None else zero.dtype
        return quantised(found, call[3 * inputs].reshape(()),
                         None if zero is None else zero.reshape(()), dtype)  # fmt: skip

    return run


def _qlinear_pool(call: NodeCall, x: Tensor) -> Tensor:
    first = 1 if call.attribute("channels_last", 0) else 2
    return x.mean(list(range(first, first + x.ndim - 2)), True)


def _qlinear_softmax(call: NodeCall, x: Tensor) -> Tensor:
    axis = own_axis(call.attribute("axis", -1), x.ndim)
    if call.wanted("opset") >= 13:
        return x.softmax(axis)
    return x.flatten(axis).softmax(-1).reshape(x.shape)


MICROSOFT = MappingProxyType({
    "QLinearAdd": _float_form(lambda call, a, b: a + b, 2),
    "QLinearMul": _float_form(lambda call, a, b: a * b, 2),
    "QLinearSigmoid": _float_form(lambda call, x: x.sigmoid(), 1),
    "QLinearLeakyRelu": _float_form(
        lambda call, x: x.leaky_relu(call.attribute("alpha", 0.01)), 1),
    "QLinearSoftmax": _float_form(_qlinear_softmax, 1),
    "QLinearGlobalAveragePool": _float_form(_qlinear_pool, 1),
    "QuantizeLinear": _quantize, "DequantizeLinear": _dequantize,
})  # fmt: skip

OPERATORS = MappingProxyType(standard({
    "QuantizeLinear": _quantize, "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": lambda call: dynamic(call[0]), "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer, "QLinearMatMul": _qlinear_matmul,
    "QLinearConv": _qlinear_conv,
}))  # fmt: skip
