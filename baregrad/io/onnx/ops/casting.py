"""Conversions between element types. Types that tensors do not have are converted on the host."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from baregrad.base.errors import UnsupportedDType
from baregrad.dtypes import DType, computed_for, dtypes
from baregrad.io.onnx.call import NodeCall, Result, standard
from baregrad.io.onnx.packages import onnx_package
from baregrad.io.onnx.values import HostArray, array_of, dtype_named, is_native, is_text
from baregrad.tensor import Tensor


def numpy_element(code: int) -> np.dtype[Any] | None:
    """NumPy's dtype, or ml_dtypes's, that a TensorProto's code names, None for strings."""
    onnx = onnx_package()
    if code == onnx.TensorProto.STRING:
        return None
    found: np.dtype[Any] = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code))
    return found


def element(call: NodeCall, code: int) -> DType:
    """The dtype that a TensorProto's code names. Raises UnsupportedDType."""
    found = numpy_element(code)
    if found is None:
        raise call.refuse("makes strings")
    return dtype_named(found.name)


def _to_text(array: HostArray) -> HostArray:
    if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
        texts = [_number(one) for one in array.reshape(-1)]
        return np.array(texts, str).reshape(array.shape)
    return array.astype(str)


def _number(value: np.floating[Any]) -> str:
    return {"nan": "NaN", "inf": "INF", "-inf": "-INF"}.get(str(value), str(value))


def converted(x: Tensor, dtype: DType, saturate: bool = True) -> Tensor:
    """Values in another dtype; of narrow floats those too large become the largest, or not."""
    if dtype.kind == "float" and dtype.bits == 8 and x.dtype.kind == "float":
        wide = x.cast(computed_for(x.dtype))
        if saturate:
            wide = wide.isnan().where(wide, wide.clamp(dtype.min, dtype.max))
        return wide.cast(dtype)
    if dtype is dtypes.bool:
        return (x.cast(computed_for(x.dtype)) if x.dtype.storage_only else x) != 0
    if dtype.is_int and x.dtype.kind == "float" and dtype.bits < 32:
        # As C converts: to an integer, whose lower bits stay.
        wide = x.cast(dtypes.float32) if x.dtype.bits < 32 else x
        return wide.cast(dtypes.int64).cast(dtype)
    return x.cast(dtype)


def _on_host(array: HostArray, dtype: np.dtype[Any], saturate: bool) -> HostArray:
    """An array of a type that tensors do not have."""
    import ml_dtypes

    if "int" in dtype.name:
        return array.astype(np.int64).astype(dtype)
    if saturate:
        wide = array.astype(np.float64)
        limits: Any = vars(ml_dtypes)["finfo"](dtype)
        least, most = float(limits.min), float(limits.max)
        bounded = np.clip(wide, min(least, most), most) if least < 0 else np.minimum(wide, most)
        array = np.where(np.isnan(wide), wide, bounded).astype(np.float32)
    return array.astype(dtype)


def cast(call: NodeCall, dtype: np.dtype[Any] | None) -> Result:
    """Input 0 in another dtype, None for strings."""
    value = call.value(0)
    if dtype is None:
        return value if is_text(value) else _to_text(call.host(0))
    saturate = bool(call.attribute("saturate", 1))
    value = _plain(call)
    if not is_native(dtype):
        array = value if isinstance(value, np.ndarray) else call.host(0)
        return _on_host(array, dtype, saturate)
    return converted(call.scope.tensor(value), dtype_named(dtype.name), saturate)


def cast_like(call: NodeCall) -> Result:
    """Input 0 in the dtype of input 1."""
    like = call.value(1)
    if is_text(like):
        return cast(call, None)
    if isinstance(like, np.ndarray) and like.dtype != object:
        return cast(call, like.dtype)
    dtype = call.dtype(1)
    return converted(call.scope.tensor(_plain(call)), dtype, bool(call.attribute("saturate", 1)))


def _plain(call: NodeCall) -> Any:
    """Input 0, of strings and types of the host as numbers that tensors have."""
    value = call.value(0)
    if is_text(value):
        return np.array([float(one) for one in call.host(0).reshape(-1)]).reshape(call.shape(0))
    if isinstance(value, np.ndarray) and value.dtype != object and not is_native(value.dtype):
        return value.astype(np.int8 if "int" in value.dtype.name else np.float32)
    return value


def _bit_cast(call: NodeCall) -> Result:
    x = call[0]
    dtype = element(call, call.wanted("to"))
    if is_text(call.value(0)):
        raise UnsupportedDType("the bits of strings are not reinterpreted")
    if dtypes.bool in (dtype, x.dtype):
        data = np.asarray(array_of(x))
        return Tensor(data.view(dtype.numpy), device=call.device)
    return x.contiguous().bitcast(dtype)


OPERATORS = MappingProxyType(standard({
    "Cast": lambda call: cast(call, numpy_element(call.wanted("to"))),
    "CastLike": cast_like, "BitCast": _bit_cast,
}))  # fmt: skip
