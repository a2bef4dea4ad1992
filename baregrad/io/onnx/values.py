"""What flows between nodes: tensors on a device, and what the host knows.

Shapes and the arithmetic on them stay on the host, as NumPy arrays. One with symbolic extents is
an array of objects: integers, and nodes that stand for integers. Strings are arrays of `str`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from baregrad.base.errors import DTypeError, UnsupportedDType
from baregrad.dtypes import DType, dtypes, from_numpy
from baregrad.io.tensors import mapped_tensor
from baregrad.ir.core.node import Node
from baregrad.tensor import Tensor

HostArray = np.ndarray[Any, Any]
# None is an optional value that is not there.
Value = Tensor | HostArray | list[Any] | None

# More elements than any shape or list of indices has are computed on the device.
MOST_ON_HOST = 1 << 10


def dtype_named(name: str) -> DType:
    """The dtype of elements that NumPy, or ml_dtypes, calls `name`. Raises UnsupportedDType."""
    found = vars(dtypes).get(name)
    if not isinstance(found, DType):
        raise UnsupportedDType("elements of a type that tensors do not have", found=name)
    return found


def is_native(dtype: np.dtype[Any]) -> bool:
    """Whether tensors have elements of this type; others are kept and converted on the host."""
    known: set[str] = set(vars(dtypes))
    return dtype.name in known


def is_symbolic(array: HostArray) -> bool:
    """Whether an array has integers that are known later."""
    return bool(array.dtype == object)


def is_text(value: Value) -> bool:
    """Whether a value is of strings."""
    return isinstance(value, np.ndarray) and value.dtype.kind == "U"


def dims(shape: Sequence[Any]) -> HostArray:
    """A shape as a vector of int64, or of objects where an extent is symbolic."""
    if any(isinstance(extent, Node) for extent in shape):
        found = np.empty(len(shape), object)
        found[:] = list(shape)
        return found
    return np.array(shape, np.int64).reshape(len(shape))


def as_ints(array: HostArray) -> list[Any]:
    """The elements of a vector as Python integers and symbolic ones."""
    flat = array.reshape(-1)
    return [one if isinstance(one, Node) else int(one) for one in flat.tolist()]


def tensor_of(array: HostArray, device: str) -> Tensor:
    """An array as a tensor. Raises DTypeError for strings."""
    if is_symbolic(array):
        flat = [Tensor(one, dtype=dtypes.int64, device=device) for one in array.reshape(-1)]
        if not array.ndim:
            return flat[0]
        return Tensor.stack(*flat).reshape(array.shape)
    if array.dtype.kind == "U":
        raise DTypeError("strings are computed on the host alone", found=f"{array!r:.60}")
    dtype = from_numpy(array.dtype)
    if array.size <= MOST_ON_HOST or dtype.bits < 8 or dtype.storage is None:
        return Tensor(array, device=device)
    raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return mapped_tensor(raw.data, dtype, array.shape, device)


def array_of(value: Value) -> Any:
    """A value as the caller of a model may compare it: arrays, lists of them, or None."""
    if isinstance(value, Tensor):
        if value.dtype.numpy is not None:
            return value.numpy()
        import ml_dtypes

        return value._raw().view(np.dtype(getattr(ml_dtypes, value.dtype.name)))
    if isinstance(value, list):
        return [array_of(one) for one in value]
    return value


def count(shape: Sequence[Any]) -> int:
    """The number of elements of a shape; of a symbolic one, very many."""
    total = 1
    for extent in shape:
        total *= int(extent) if isinstance(extent, int | np.integer) else 1 << 40
    return total
