"""Operators of elements."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from baregrad.bridges.torch_memory import dtype_of
from baregrad.tensor import Tensor

# Those whose name and arguments are a method's.
_METHODS = (
    "abs", "acos", "acosh", "addcdiv", "addcmul", "asin", "asinh", "atan", "atan2", "atanh",
    "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "bitwise_left_shift",
    "bitwise_right_shift", "ceil", "copysign", "cos", "cosh", "erf", "erfc", "exp", "exp2",
    "expm1", "floor", "fmod", "hypot", "isinf", "isnan", "isfinite", "lerp", "log", "log10",
    "log1p", "log2", "logical_and", "logical_not", "logical_or", "logical_xor", "maximum",
    "minimum", "neg", "reciprocal", "remainder", "relu", "round", "rsqrt", "sigmoid", "sign",
    "signbit", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc", "xlogy", "silu",
    "leaky_relu", "hardtanh", "hardswish", "hardsigmoid", "softplus", "mish",
    "masked_fill", "nan_to_num", "logaddexp", "deg2rad", "rad2deg", "frac", "sinc",
    "erfinv", "fmax", "fmin", "lgamma", "digamma", "i0",
)
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def _method(name: str) -> Callable[..., Any]:
    def call(x: Any, *rest: Any, **named: Any) -> Any:
        return getattr(_tensor(x, rest), name)(*rest, **named)

    return call


def _tensor(x: Any, others: tuple[Any, ...] = ()) -> Tensor:
    """`x` as a tensor; numbers come first in some overloads."""
    if isinstance(x, Tensor):
        return x
    like = next((one for one in others if isinstance(one, Tensor)), None)
    return Tensor(x) if like is None else Tensor(x, dtype=like.dtype, device=like.device)


def _add(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return x + (y if alpha == 1 else y * alpha)


def _sub(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return x - (y if alpha == 1 else y * alpha)


def _rsub(x: Any, y: Any, *, alpha: Any = 1) -> Any:
    return y - (x if alpha == 1 else x * alpha)


def _div(x: Any, y: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode == "floor":
        return _tensor(x, (y,)).floor_divide(y)
    if rounding_mode == "trunc":
        return _tensor(x, (y,)).div(y, rounding_mode="trunc")
    return x / y


def _pow(x: Any, y: Any) -> Any:
    return x**y


def _clamp(x: Tensor, low: Any = None, high: Any = None) -> Tensor:
    return x if low is None and high is None else x.clamp(low, high)


def _clamp_min(x: Tensor, low: Any) -> Tensor:
    return x.clamp(low, None)


def _clamp_max(x: Tensor, high: Any) -> Tensor:
    return x.clamp(None, high)


def _where(condition: Tensor, x: Any, y: Any) -> Tensor:
    return condition.where(x, y)


def _gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return x.gelu(approximate=approximate)


def _to_copy(x: Tensor, *, dtype: Any = None, **_: Any) -> Tensor:
    return x if dtype is None else x.cast(dtype_of(dtype))


def _convert(x: Tensor, dtype: Any) -> Tensor:
    return x.cast(dtype_of(dtype))


def _same(x: Any, **_: Any) -> Any:
    return x


def _copy(x: Tensor, source: Tensor, *_: Any) -> Tensor:
    return source.cast(x.dtype).expand(*x.shape)


def _gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        t = inner.tanh()
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
        return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)
    below = 0.5 * (1 + (x * math.sqrt(0.5)).erf())
    return grad * (below + x * (-0.5 * x * x).exp() / math.sqrt(2 * math.pi))


def _elu(x: Tensor, alpha: float = 1, scale: float = 1, input_scale: float = 1) -> Tensor:
    return (x > 0).where(x * scale, ((x * input_scale).expm1()) * (alpha * scale))


def _threshold_backward(grad: Tensor, x: Tensor, threshold: float) -> Tensor:
    return (x > threshold).where(grad, 0)


def _shrunk_backward(grad: Tensor, x: Tensor, bound: float) -> Tensor:
    return ((x < -bound) | (x > bound) | x.isnan()).where(grad, 0)


ELEMENTWISE: MappingProxyType[str, Callable[..., Any]] = MappingProxyType({
    **{name: _method(name) for name in (*_METHODS, *_COMPARISONS)},
    "add": _add, "sub": _sub, "rsub": _rsub, "mul": lambda x, y: x * y, "div": _div, "pow": _pow,
    "floor_divide": _method("floor_divide"), "clamp": _clamp, "clamp_min": _clamp_min,
    "clamp_max": _clamp_max, "where": _where, "gelu": _gelu, "gelu_backward": _gelu_backward,
    "threshold_backward": _threshold_backward, "_to_copy": _to_copy,
    "convert_element_type": _convert, "clone": _same, "alias": _same, "detach": _same,
    "elu": _elu, "lift_fresh_copy": _same, "lift_fresh": _same,
    "hardshrink_backward": _shrunk_backward, "softshrink_backward": _shrunk_backward,
    "fill": lambda x, value: x.zeros_like() + value,
    "copy": _copy,
})
