"""Arithmetic of shapes: operators on arrays that the host knows, of integers and symbolic ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.io.onnx.call import (
    Function,
    NodeCall,
    Result,
    own_axis,
    shape_of,
    slice_of,
    standard,
)
from baregrad.io.onnx.values import MOST_ON_HOST, HostArray, count, is_symbolic
from baregrad.ir.core.index import lower, upper
from baregrad.ir.core.node import Node


class NotOnHost(Exception):
    """Raised by what is left to the device: large arrays, and types that only it computes."""


def _array(call: NodeCall, at: int) -> HostArray:
    value = call.value(at)
    if not isinstance(value, np.ndarray):
        raise NotOnHost
    return value


def _plain(array: HostArray) -> HostArray:
    """An array without symbolic elements as one of int64."""
    if is_symbolic(array) and not any(isinstance(one, Node) for one in array.reshape(-1)):
        return array.astype(np.int64)
    return array


def _of(function: Callable[..., Any]) -> Function:
    """An operator whose result has the dtype of its first input."""

    def run(call: NodeCall) -> Result:
        arrays = [_array(call, at) for at in range(len(call.inputs))]
        if any(one.dtype.kind not in "biufO" for one in arrays):
            raise NotOnHost
        symbolic = any(map(is_symbolic, arrays))
        found = np.asarray(function(*arrays), object if symbolic else arrays[0].dtype)
        return _plain(found)

    return run


def _comparison(function: Callable[..., Any]) -> Function:
    def run(call: NodeCall) -> Result:
        a, b = _array(call, 0), _array(call, 1)
        if a.dtype.kind not in "biufOU":
            raise NotOnHost
        return np.asarray(function(a, b), np.bool_)

    return run


def _equal(a: HostArray, b: HostArray) -> HostArray:
    """Which elements are the same, as far as that holds for every size."""
    if is_symbolic(a) or is_symbolic(b):
        return np.frompyfunc(_same, 2, 1)(a, b)  # type: ignore[no-any-return]
    return np.asarray(a == b)


def _same(a: Any, b: Any) -> bool:
    """Whether two extents are one. Raises NotOnHost where that depends on sizes known later."""
    if a is b or not (isinstance(a, Node) or isinstance(b, Node)):
        return bool(a == b)
    if upper(a) < lower(b) or upper(b) < lower(a):
        return False
    raise NotOnHost


def _divided(a: HostArray, b: HostArray) -> HostArray:
    """A quotient; of integers, cut toward zero."""
    if a.dtype.kind == "f":
        return a / b
    if is_symbolic(a) or is_symbolic(b):
        return np.asarray(a // b, object)
    if not np.all(b):
        raise NotOnHost
    quotient, rest = a // b, a % b
    return np.asarray(quotient + ((rest != 0) & ((a < 0) != (b < 0))), a.dtype)


def _modulo(call: NodeCall) -> Result:
    a, b = _array(call, 0), _array(call, 1)
    if call.attribute("fmod", 0) or a.dtype.kind not in "iuO" or (
        not is_symbolic(b) and not np.all(b)
    ):
        raise NotOnHost
    return np.asarray(a % b)


def _shape(call: NodeCall) -> Result:
    found = shape_of(call.value(0))
    return found[call.attribute("start", 0) : call.attribute("end", len(found))]


def _size(call: NodeCall) -> Result:
    value = shape_of(call.value(0))
    found = np.empty((), value.dtype)
    found[()] = math.prod(value.tolist())
    return found


def _gather(call: NodeCall) -> Result:
    data, places = _array(call, 0), _array(call, 1)
    axis = own_axis(call.attribute("axis", 0), data.ndim)
    if is_symbolic(places) or np.any(places >= data.shape[axis]):
        raise NotOnHost
    if is_symbolic(data):
        found = np.take(data, places, axis)
        return _plain(np.asarray(found, object))
    return np.asarray(np.take(data, places, axis), data.dtype)


def _concat(call: NodeCall) -> Result:
    arrays = [_array(call, at) for at in range(len(call.inputs))]
    if sum(one.size for one in arrays) > MOST_ON_HOST:
        raise NotOnHost
    if any(map(is_symbolic, arrays)):
        arrays = [one.astype(object) for one in arrays]
    return np.concatenate(arrays, call.wanted("axis"))


def _slice(call: NodeCall) -> Result:
    data = _array(call, 0)
    starts, ends, axes, steps = call.slice_bounds()
    if any(isinstance(one, Node) for one in (*starts, *ends)):
        raise NotOnHost
    key = [slice(None)] * data.ndim
    for at, axis in enumerate(axes if axes is not None else range(len(starts))):
        step = steps[at] if steps else 1
        key[axis] = slice_of(data.shape[axis], starts[at], ends[at], step)
    return _plain(data[tuple(key)])


def _unsqueeze(call: NodeCall) -> Result:
    data = _array(call, 0)
    axes = call.axes() or []
    ndim = data.ndim + len(axes)
    kept = {own_axis(axis, ndim) for axis in axes}
    if len(kept) != len(axes):
        raise call.broken("adds an axis twice", axes)
    shape = iter(data.shape)
    return data.reshape([1 if axis in kept else next(shape) for axis in range(ndim)])


def _squeeze(call: NodeCall) -> Result:
    data, axes = _array(call, 0), call.axes()
    return np.squeeze(data) if axes is None else np.squeeze(data, tuple(axes))


def _reshape(call: NodeCall) -> Result:
    data, wanted = _array(call, 0), call.integers(1)
    if any(isinstance(one, Node) for one in wanted):
        raise NotOnHost
    if not call.attribute("allowzero", 0):
        wanted = [one if one else data.shape[at] for at, one in enumerate(wanted)]
    if not data.size:
        raise NotOnHost
    return data.reshape(wanted)


def _cast(call: NodeCall) -> Result:
    data = _array(call, 0)
    to = call.wanted("to")
    if data.dtype.kind not in "biufO" or to not in _KINDS:
        raise NotOnHost
    if is_symbolic(data):
        # A size fits any integer; as a float it is computed on the device.
        if to not in (6, 7, 12, 13):
            raise NotOnHost
        return data
    if data.dtype.kind == "f" and _KINDS[to] != "float64" and (
        _KINDS[to] not in ("float32", "bool") and not np.all(np.isfinite(data))
    ):
        raise NotOnHost
    return data.astype(_KINDS[to])


_KINDS = MappingProxyType({
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    9: "bool", 11: "float64", 12: "uint32", 13: "uint64",
})  # fmt: skip


def _range(call: NodeCall) -> Result:
    start, limit, delta = (_array(call, at).reshape(-1)[0] for at in range(3))
    if any(isinstance(one, Node) for one in (start, limit, delta)):
        raise NotOnHost
    start, limit, delta = start.item(), limit.item(), delta.item()
    if not delta or abs((limit - start) / delta) > MOST_ON_HOST:
        raise NotOnHost
    return np.arange(start, limit, delta, dtype=_array(call, 0).dtype)


def _constant_of_shape(call: NodeCall) -> Result:
    shape = call.integers(0)
    if count(shape) > MOST_ON_HOST:
        raise NotOnHost
    value = call.attribute("value", np.zeros(1, np.float32))
    if value.dtype.kind not in "biuf":
        raise NotOnHost
    return np.full(shape, value.reshape(-1)[0], value.dtype)


def _where(call: NodeCall) -> Result:
    condition, a, b = (_array(call, at) for at in range(3))
    if is_symbolic(condition) or a.dtype.kind not in "biufO":
        raise NotOnHost
    if is_symbolic(a) or is_symbolic(b):
        a, b = a.astype(object), b.astype(object)
    return _plain(np.where(condition, a, b))


def _reduced(function: Callable[..., Any]) -> Function:
    def run(call: NodeCall) -> Result:
        data = _array(call, 0)
        axes = call.axes()
        if data.dtype.kind not in "iuO" or not data.size or axes == []:
            raise NotOnHost
        if axes is None and call.attribute("noop_with_empty_axes", 0):
            return data
        keep = bool(call.attribute("keepdims", 1))
        found = function(data, axis=None if axes is None else tuple(axes), keepdims=keep)
        return np.asarray(found, data.dtype)

    return run


def _expand(call: NodeCall) -> Result:
    data, shape = _array(call, 0), call.integers(1)
    if count(shape) > MOST_ON_HOST:
        raise NotOnHost
    whole = np.broadcast_shapes(data.shape, tuple(shape))
    return np.broadcast_to(data, whole).copy()


def _tile(call: NodeCall) -> Result:
    data, times = _array(call, 0), call.integers(1)
    if count(times) * data.size > MOST_ON_HOST:
        raise NotOnHost
    return np.tile(data, times)


def _split(call: NodeCall) -> Result:
    data = _array(call, 0)
    sizes = call.axes("split", 1)
    axis = own_axis(call.attribute("axis", 0), data.ndim)
    if sizes is None:
        parts = call.attribute("num_outputs", len(call.node.outputs))
        each = -(-data.shape[axis] // parts)
        sizes = [each] * (parts - 1)
        sizes.append(data.shape[axis] - sum(sizes))
    if any(isinstance(one, Node) for one in sizes):
        raise NotOnHost
    if sum(sizes) != data.shape[axis]:
        raise call.broken(f"has parts that are not {data.shape[axis]} together", sizes)
    return tuple(np.split(data, np.cumsum(sizes)[:-1], axis))


def _constant(call: NodeCall) -> Result:
    for name, dtype in (("value_float", np.float32), ("value_floats", np.float32),
                        ("value_int", np.int64), ("value_ints", np.int64)):  # fmt: skip
        if call.attribute(name) is not None:
            return np.array(call.attribute(name), dtype)
    for name in ("value_string", "value_strings"):
        if call.attribute(name) is not None:
            return np.array(call.attribute(name), str)
    found = call.attribute("value", call.attribute("sparse_value"))
    assert isinstance(found, np.ndarray)
    return found


def _nonzero(call: NodeCall) -> Result:
    data = _array(call, 0)
    if is_symbolic(data):
        raise NotOnHost
    return np.array(np.nonzero(data), np.int64).reshape(data.ndim, -1)


# Operators of what the host knows in any case, whatever it knows of the elements.
LOOKS_AT_SHAPES = frozenset({("", "Shape"), ("", "Size"), ("", "Constant")})

HOST: MappingProxyType[tuple[str, str], Function] = MappingProxyType(standard({
    "Shape": _shape, "Size": _size, "Constant": _constant,
    "Add": _of(lambda a, b: a + b), "Sub": _of(lambda a, b: a - b),
    "Mul": _of(lambda a, b: a * b), "Div": _of(_divided), "Mod": _modulo,
    "Neg": _of(lambda a: -a), "Abs": _of(abs),
    "Min": _of(lambda a, *b: _folded(np.minimum, a, b)),
    "Max": _of(lambda a, *b: _folded(np.maximum, a, b)),
    "Floor": _of(np.floor), "Ceil": _of(np.ceil), "Sqrt": _of(np.sqrt),
    "Identity": lambda call: _array(call, 0),
    "Equal": _comparison(_equal), "Less": _comparison(lambda a, b: a < b),
    "Greater": _comparison(lambda a, b: a > b),
    "LessOrEqual": _comparison(lambda a, b: a <= b),
    "GreaterOrEqual": _comparison(lambda a, b: a >= b),
    "And": _comparison(lambda a, b: a & b), "Or": _comparison(lambda a, b: a | b),
    "Not": _of(np.logical_not),
    "Gather": _gather, "Concat": _concat, "Slice": _slice, "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze, "Reshape": _reshape, "Cast": _cast, "Range": _range,
    "ConstantOfShape": _constant_of_shape, "Where": _where, "Expand": _expand, "Tile": _tile,
    "Split": _split, "NonZero": _nonzero,
    "ReduceProd": _reduced(np.prod), "ReduceSum": _reduced(np.sum),
    "ReduceMax": _reduced(np.max), "ReduceMin": _reduced(np.min),
    "Transpose": lambda call: np.transpose(_array(call, 0), call.attribute("perm")),
}))  # fmt: skip


def _folded(function: Callable[..., Any], first: Any, others: tuple[Any, ...]) -> Any:
    """`function` of two, over several."""
    for one in others:
        first = function(first, one)
    return first


