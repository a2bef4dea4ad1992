"""Arrays from numbers and from other arrays."""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np

from baregrad.array_api.values import Value, joined
from baregrad.base.errors import ArgumentError, DTypeError
from baregrad.dtypes import DType, dtypes, part_of
from baregrad.tensor import Tensor
from baregrad.tensor.ops.creation import choose_device


def asarray(
    obj: Any,
    /,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    copy: bool | None = None,
) -> Tensor:
    """Return an array of numbers, nested lists, or what holds an array; `obj` itself if it may be.

    copy: True always copies, False raises ArgumentError where that would be needed.
    """
    if isinstance(obj, Tensor):
        same = (dtype is None or obj.dtype is dtype) and (device is None or obj.device == device)
        if same and not copy:
            return obj
        _may_copy(copy)
        found = obj if dtype is None else obj.cast(dtype)
        found = found if device is None else found.to(device)
        return found.clone() if found is obj else found
    _may_copy(copy)
    return Tensor(obj, dtype=dtype, device=device)


def _may_copy(copy: bool | None) -> None:
    if copy is False:
        raise ArgumentError("this needs a copy", found="copy=False", hint="leave `copy` out")


def from_dlpack(
    x: Any, /, *, device: str | None = None, copy: bool | None = None
) -> Tensor:
    """Return an array that shares its memory with another library's, or holds a copy of it."""
    found = Tensor.from_dlpack(x)
    if device is not None and found.device != device:
        _may_copy(copy)
        return found.to(device)
    return found.clone() if copy else found


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    """Return start, start + step, ... up to `stop`, which is left out."""
    low, high = (0, start) if stop is None else (start, stop)
    if dtype is None:
        whole = all(isinstance(each, int) for each in (low, high, step))
        dtype = dtypes.int64 if whole else dtypes.float32
    if step == 0:
        raise ArgumentError("a step is not 0", found="step=0")
    if (high - low) / step <= 0:
        return Tensor.zeros(0, dtype=dtype, device=device)
    return Tensor.arange(low, high, step, dtype=dtype, device=device)


def linspace(
    start: complex,
    stop: complex,
    /,
    num: int,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    endpoint: bool = True,
) -> Tensor:
    """Return `num` numbers at equal distances from `start` to `stop`."""
    wanted = dtype or (dtypes.complex64 if _is_complex(start, stop) else dtypes.float32)
    if wanted.is_complex:
        first, last = complex(start), complex(stop)
        real, imag = (
            linspace(a, b, num, dtype=part_of(wanted), device=device, endpoint=endpoint)
            for a, b in ((first.real, last.real), (first.imag, last.imag))
        )
        return real.complex(imag)
    count = num if endpoint else num + 1
    made = Tensor.linspace(_real(start), _real(stop), count, dtype=wanted, device=device)
    return made[:num]


def _is_complex(*numbers: Any) -> bool:
    return any(isinstance(each, complex) for each in numbers)


def _real(number: Any) -> float:
    if _is_complex(number):
        raise DTypeError("a complex number has no place among real ones", found=repr(number))
    real: float = number
    return real


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    """Return ones on the k-th diagonal, zeros beside it."""
    columns = n_rows if n_cols is None else n_cols
    rows = Tensor.arange(n_rows, device=device).unsqueeze(1)
    places = Tensor.arange(columns, device=device)
    # A diagonal outside of the matrix may have any number.
    return (places - rows == max(-n_rows, min(k, columns))).cast(dtype or dtypes.float32)


def full(
    shape: int | tuple[int, ...],
    fill_value: Value,
    *,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    """Return an array of one number."""
    if isinstance(fill_value, Tensor):
        dtype = dtype or fill_value.dtype
    number = fill_value.item() if isinstance(fill_value, Tensor | np.generic) else fill_value
    if dtype is None:
        kinds = {bool: dtypes.bool, int: dtypes.int64, complex: dtypes.complex64}
        dtype = kinds.get(type(number), dtypes.float32)
    return Tensor.full(_shape(shape), number, dtype=dtype, device=device)


def _shape(shape: int | tuple[int, ...]) -> tuple[int, ...]:
    return tuple(map(index, shape)) if isinstance(shape, tuple | list) else (index(shape),)


def zeros(
    shape: int | tuple[int, ...], *, dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """Return an array of zeros."""
    return full(shape, 0, dtype=dtype or dtypes.float32, device=device)


def ones(
    shape: int | tuple[int, ...], *, dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """Return an array of ones."""
    return full(shape, 1, dtype=dtype or dtypes.float32, device=device)


# Nothing is left unwritten here.
empty = zeros


def full_like(
    x: Tensor,
    /,
    fill_value: bool | int | float | complex,
    *,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    """Return an array of one number, like another in what is not said."""
    return full(x.shape, fill_value, dtype=dtype or x.dtype, device=device or x.device)


def zeros_like(
    x: Tensor, /, *, dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """Return zeros, like another array in what is not said."""
    return full_like(x, 0, dtype=dtype, device=device)


def ones_like(x: Tensor, /, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """Return ones, like another array in what is not said."""
    return full_like(x, 1, dtype=dtype, device=device)


empty_like = zeros_like


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Return the coordinates of a grid for each of its axes."""
    dtype = joined(*(x.dtype for x in arrays)) if arrays else dtypes.float32
    given = [x.cast(dtype) for x in arrays]
    if len(given) < 2:
        return [x.clone() for x in given]
    return list(Tensor.meshgrid(*given, indexing=indexing))


def tril(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Return what is on and below the k-th diagonal, zeros above it."""
    return x.tril(max(-_FAR, min(k, _FAR)))


def triu(x: Tensor, /, *, k: int = 0) -> Tensor:
    """Return what is on and above the k-th diagonal, zeros below it."""
    return x.triu(max(-_FAR, min(k, _FAR)))


def default_device() -> str:
    """The device of arrays for which none is named."""
    return choose_device(None)


# A diagonal that is outside of any matrix.
_FAR = 1 << 62
pi, e, inf, nan, newaxis = math.pi, math.e, math.inf, math.nan, None
