"""Making tensors: from data, filled, ranges, identity matrices."""

from __future__ import annotations

import importlib
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from baregrad.base.errors import ArgumentError, DeviceError, DTypeError, ShapeError
from baregrad.dtypes import (
    DType,
    array_dtype,
    as_dtype,
    decode,
    default_float,
    dtypes,
    encode,
    from_numpy,
    part_of,
    scalar_dtype,
)
from baregrad.engine.session import current_session
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.axes import plain
from baregrad.tensor.array.link import session
from baregrad.tensor.array.operands import as_stored, check_stored
from baregrad.tensor.array.storage import buffer_node
from baregrad.tensor.array.tensor_like import Extents, Tensor, TensorLike

RANGED = 1 << 20  # the most integers whose range is noted as they come in


def as_shape(extents: tuple[Extents, ...]) -> tuple[Any, ...]:
    """The shape that arguments like (2, 3) or ((2, 3),) spell. Raises ShapeError."""
    if len(extents) == 1 and isinstance(extents[0], list | tuple):
        extents = tuple(extents[0])
    shape = []
    for extent in extents:
        if isinstance(extent, Node):
            shape.append(int(extent.arg) if extent.op is Ops.CONST else extent)
            continue
        extent = plain(extent)
        if isinstance(extent, bool) or not isinstance(extent, int):
            raise ShapeError(
                "an extent is an integer", found=f"{type(extent).__name__} {extent!r:.40}"
            )
        if extent < 0:
            raise ShapeError("an extent cannot be negative", found=str(list(extents)))
        shape.append(extent)
    return tuple(shape)


def check_count(shape: Sequence[Any]) -> None:
    """Raise ShapeError for a shape of more elements than any memory has addresses."""
    count = 1
    for extent in shape:
        if extent.__class__ is int:
            count *= extent
    if count >> 62 > 0:
        raise ShapeError("no memory has so many elements", found=f"{list(shape)}"[:80])


def choose_device(device: str | None) -> str:
    """The device named, in upper case, or the session's default. Raises UnsupportedDevice."""
    if device is None:
        return session().default_device()
    if not isinstance(device, str):
        raise DeviceError(
            "a device is named", found=f"{type(device).__name__} {device!r:.40}", wanted="a string",
            hint="for example 'CPU'",
        )
    return session().known_device(device.upper())


# --- from data ----------------------------------------------------------------------------------


def build(cls: type[Tensor], data: Any, dtype: object, device: str | None) -> Tensor:
    """A tensor of data; see `Tensor`."""
    wanted = None if dtype is None else as_dtype(dtype)
    wanted = wanted if wanted is None or wanted.is_complex else array_dtype(wanted)
    if isinstance(data, TensorLike):
        copy = data.detach().clone()
        copy = copy if device is None else copy.to(device)
        return copy if wanted is None else copy.cast(wanted)  # type: ignore[return-value]
    where = choose_device(device)
    if isinstance(data, Node):
        return cls._make(nodes.cast(data, wanted or dtypes.int64), where)
    if isinstance(data, BufferRef):
        if wanted is None:
            raise DTypeError("a buffer does not say its dtype", wanted="dtype=...")
        return cls._make(buffer_node(data, wanted), data.device)
    if isinstance(data, list | tuple) and _holds_tensors(data):
        made = _stack(cls, data).to(where)
        return made if wanted is None else made.cast(wanted)
    raw, found = as_raw(data, wanted)
    ref = session().upload(raw, part_of(found), raw.shape, where)
    maker = complex_class(cls) if found.is_complex else cls
    made = maker._make(buffer_node(ref, part_of(found)), where)
    if found.kind == "int" and 0 < raw.size <= RANGED:
        values = decode(raw, found)
        made._storage.known = (int(values.min()), int(values.max()))
    return made if wanted is None else made.cast(wanted)


def complex_class(cls: type[Tensor]) -> type[Tensor]:
    """The class of the complex tensors beside a class of tensors."""
    if cls.is_paired:
        return cls
    # By name: it is made of the class of real tensors.
    room = importlib.import_module("baregrad.tensor.complex.complex_tensor")
    found: type[Tensor] = room.ComplexTensor
    return found


def _holds_tensors(data: Sequence[Any]) -> bool:
    while isinstance(data, list | tuple) and data:
        data = data[0]
    return isinstance(data, TensorLike)


def _stack(cls: type[Tensor], data: Any) -> Tensor:
    if isinstance(data, list | tuple):
        parts = [_stack(cls, part) for part in data]
        return parts[0].stack(*parts[1:])
    return data if isinstance(data, TensorLike) else cls(data)  # type: ignore[return-value]


def as_raw(data: Any, wanted: DType | None) -> tuple[np.ndarray[Any, Any], DType]:
    """Raw elements of data and their dtype, which is `wanted` or one that casts to it on a device.

    Python numbers become int64, float32, complex64 or bool; complex ones pairs of their parts, as
    another axis. Raises DTypeError or ShapeError.
    """
    torch_tensor = _from_torch(data)
    if torch_tensor is not None:
        return torch_tensor
    if isinstance(data, bytes | bytearray | memoryview):
        found = wanted or dtypes.uint8
        nbytes = memoryview(data).nbytes
        if nbytes % found.itemsize:
            raise ShapeError(
                "bytes are whole elements", found=f"{nbytes} bytes",
                wanted=f"a multiple of the {found.itemsize} bytes of {found}",
            )
        return np.frombuffer(data, found.storage), found
    array = _as_array(data)
    if array.dtype.kind == "c" or (wanted is not None and wanted.is_complex):
        found = wanted or (from_numpy(array.dtype) if hasattr(data, "dtype") else scalar_dtype(0j))
        if not found.is_complex:
            raise DTypeError(
                "complex numbers have an imaginary part, which this dtype cannot hold",
                found=f"{array.dtype} to {found}", hint="take one part: array.real, array.imag",
            )
        return _as_pairs(array, found), found
    if isinstance(data, np.ndarray | np.generic) or hasattr(data, "__array_interface__"):
        if wanted is not None and array.dtype.kind == "f" and wanted.kind == "float":
            return encode(array, wanted), wanted
        found = from_numpy(array.dtype)
        assert found.storage is not None
        return np.ascontiguousarray(array).view(found.storage).reshape(array.shape), found
    found = wanted or _dtype_of_python(array)
    if wanted is None and array.dtype.kind == "f" and _are_large_integers(data, array):
        found = dtypes.int64
    is_within = found is dtypes.int64 and array.dtype.kind in "bi"
    if found.kind in ("int", "uint") and array.size and not is_within:
        low, high = array.min().item(), array.max().item()
        if array.dtype.kind == "f" and max(-low, high) > _WHOLE:
            # NumPy makes floats of large integers beside small ones: what each was is looked up.
            array = _large_integers(data, found)
        else:
            check_stored(low, high, found)
    if found.kind in ("int", "uint", "bool") and array.dtype.kind == "f":
        return encode(array, dtypes.float64), dtypes.float64
    return encode(array, found), found


# Up to here a float64 is the integer that it was made of.
_WHOLE = 1 << 53


def _are_large_integers(data: Any, array: np.ndarray[Any, Any]) -> bool:
    """Whether lists of which NumPy made floats hold integers alone, some of them beyond int64."""
    if not array.size or float(np.abs(array).max()) < 1 << 63:
        return False
    return all(isinstance(one, int) for one in np.array(data, dtype=object).ravel())


def _large_integers(data: Any, dtype: DType) -> np.ndarray[Any, Any]:
    """Numbers of nested lists, cut off, as an integer dtype has them. Raises ArgumentError."""
    given = np.array(data, dtype=object)
    numbers = given.ravel().tolist()
    for one in numbers:
        check_stored(one, one, dtype)
    whole = [int(one) for one in numbers]
    if dtype.kind == "uint":
        return np.array([one % (1 << dtype.bits) for one in whole], np.uint64).reshape(given.shape)
    return np.array(whole, np.int64).reshape(given.shape)


def _as_pairs(array: np.ndarray[Any, Any], dtype: DType) -> np.ndarray[Any, Any]:
    """Raw elements of the parts of complex numbers, real and imaginary, along a last axis."""
    part = part_of(dtype)
    assert part.numpy is not None and part.storage is not None
    with np.errstate(over="ignore"):
        pairs = np.stack((array.real, array.imag), axis=-1).astype(part.numpy)
    return pairs.view(part.storage)


def _dtype_of_python(array: np.ndarray[Any, Any]) -> DType:
    if array.dtype.kind == "b":
        return dtypes.bool
    if array.dtype.kind in "iu":
        return scalar_dtype(0)
    return default_float()


def _as_array(data: Any) -> np.ndarray[Any, Any]:
    try:
        array = np.asarray(data)
    except ValueError as problem:
        raise ShapeError(
            "nested lists of different lengths make no array",
            found=str(problem)[:120],
            hint="pad them to one length first",
        ) from None
    if array.dtype.kind == "O" and all(isinstance(one, int | float) for one in array.ravel()):
        # Integers that no dtype of NumPy has.
        return array.astype(np.float64)
    if array.dtype.kind not in "biufc" and array.dtype.name not in ("bfloat16",):
        if not (array.dtype.kind == "V" and array.dtype.itemsize <= 2):
            raise DTypeError(
                "a tensor holds numbers or bools",
                found=f"{type(data).__name__} of NumPy dtype {array.dtype}",
                hint="convert it to numbers first",
            )
    return array


def _from_torch(data: Any) -> tuple[np.ndarray[Any, Any], DType] | None:
    """Raw elements of a PyTorch tensor; None for anything else. PyTorch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(data, torch.Tensor):
        return None
    host = data.detach().cpu().contiguous()
    name = str(host.dtype).removeprefix("torch.")
    found = as_dtype(name)
    if found.is_complex:
        return _as_pairs(host.resolve_conj().numpy(), found), found
    assert found.storage is not None
    if found.numpy is None:
        host = host.view(torch.int16 if found.bits == 16 else torch.uint8)
    array: np.ndarray[Any, Any] = host.numpy()
    return array.view(found.storage).reshape(array.shape), found


# --- filled -------------------------------------------------------------------------------------


def full(
    cls: type[Tensor],
    shape: Extents,
    fill_value: bool | int | float | complex,
    *,
    dtype: object = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor of one value; its dtype is that of the value unless given."""
    extents = as_shape((shape,))
    check_count(extents)
    found = scalar_dtype(fill_value) if dtype is None else as_dtype(dtype)
    if found.is_complex:
        made = _full_complex(cls, extents, fill_value, found, choose_device(device))
        return made.requires_grad_() if requires_grad else made
    if isinstance(fill_value, complex | np.complexfloating):
        raise DTypeError("complex numbers have an imaginary part, which this dtype cannot hold",
                         found=f"{fill_value} to {found}")  # fmt: skip
    node = nodes.broadcast(as_stored(fill_value, array_dtype(found)), extents)
    made = cls._make(node, choose_device(device))
    return made.requires_grad_() if requires_grad else made


def _full_complex(
    cls: type[Tensor], shape: tuple[Any, ...], value: complex, dtype: DType, device: str
) -> Tensor:
    part = part_of(dtype)
    number = complex(value)
    parts = [nodes.full(one, (*shape, 1), part) for one in (number.real, number.imag)]
    pairs = nodes.concatenate(tuple(parts), len(shape))
    return complex_class(cls)._make(pairs, device)


def zeros(
    cls: type[Tensor],
    *shape: Extents,
    dtype: object = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor of zeros; the shape is given as (2, 3) or as 2, 3."""
    found = default_float() if dtype is None else dtype
    return full(cls, as_shape(shape), 0, dtype=found, device=device, requires_grad=requires_grad)


def stored_zeros(
    cls: type[Tensor], shape: tuple[int, ...], dtype: DType, device: str | None = None,
    *, is_touched: bool = False,
) -> Tensor:
    """Return a tensor of zeros in memory of its own, to be written there.

    Where the host sees the device's memory, that takes no time before it is touched, and no
    memory: unless `is_touched`, the system gives it page by page.
    """
    where = choose_device(device)
    device_of = current_session().backend(where).device
    buffer = device_of.allocate_zeroed(math.prod(shape) * dtype.itemsize)
    if is_touched and device_of.host_visible and buffer.nbytes:
        device_of.copy_in(buffer, np.zeros(buffer.nbytes, np.uint8))
    return cls._make(buffer_node(BufferRef(buffer, shape, where), dtype), where)


def ones(
    cls: type[Tensor],
    *shape: Extents,
    dtype: object = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor of ones; the shape is given as (2, 3) or as 2, 3."""
    found = default_float() if dtype is None else dtype
    return full(cls, as_shape(shape), 1, dtype=found, device=device, requires_grad=requires_grad)


def empty(
    cls: type[Tensor],
    *shape: Extents,
    dtype: object = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor whose values are not to be relied on; they are zeros."""
    return zeros(cls, *shape, dtype=dtype, device=device, requires_grad=requires_grad)


def full_like(
    x: Tensor, fill_value: bool | int | float | complex | Tensor, *, dtype: object = None,
    device: str | None = None, requires_grad: bool = False, memory_format: object = None,
) -> Tensor:
    """Return a tensor of one value with the shape and, unless given, dtype and device of `x`.

    memory_format: how it lies, such as baregrad.channels_last; in row-major order unless given.
    """
    made = _like(x, fill_value, x.dtype if dtype is None else as_dtype(dtype))
    if memory_format is not None:
        made = made.contiguous(memory_format=memory_format)
    return _finished(made, device, requires_grad)


def _like(x: Tensor, fill_value: Any, found: DType) -> Tensor:
    if found.is_complex and not isinstance(fill_value, TensorLike):
        return _full_complex(type(x), x.shape, fill_value, found, x.device)
    if x.is_paired and not isinstance(fill_value, TensorLike):
        return full(type(x)._real(), x.shape, fill_value, dtype=found, device=x.device)
    if isinstance(fill_value, TensorLike):
        return fill_value.cast(found).expand(x.shape).clone()  # type: ignore[return-value]
    scalar_dtype(fill_value)
    return type(x)._make(nodes.broadcast(as_stored(fill_value, found), x.shape), x.device)


def _finished(made: Tensor, device: str | None, requires_grad: bool) -> Tensor:
    """A new tensor on the device that was asked for, as the leaf that was."""
    made = made if device is None else made.to(device)
    return made.requires_grad_() if requires_grad else made


def zeros_like(
    x: Tensor, *, dtype: object = None, device: str | None = None, requires_grad: bool = False,
    memory_format: object = None,
) -> Tensor:
    """Return zeros with the shape and, unless given, dtype and device of `x`."""
    return full_like(x, 0, dtype=dtype, device=device, requires_grad=requires_grad,
                     memory_format=memory_format)


def ones_like(
    x: Tensor, *, dtype: object = None, device: str | None = None, requires_grad: bool = False,
    memory_format: object = None,
) -> Tensor:
    """Return ones with the shape and, unless given, dtype and device of `x`."""
    return full_like(x, 1, dtype=dtype, device=device, requires_grad=requires_grad,
                     memory_format=memory_format)


def empty_like(
    x: Tensor, *, dtype: object = None, device: str | None = None, requires_grad: bool = False,
    memory_format: object = None,
) -> Tensor:
    """Return a tensor shaped as `x` whose values are not to be relied on; they are zeros."""
    return full_like(x, 0, dtype=dtype, device=device, requires_grad=requires_grad,
                     memory_format=memory_format)


def new_full(
    x: Tensor, size: Extents, fill_value: bool | int | float | complex, *, dtype: object = None,
    device: str | None = None, requires_grad: bool = False,
) -> Tensor:
    """Return a tensor of one value, of the dtype and device of `x` unless given."""
    found = x.dtype if dtype is None else dtype
    made: Tensor = full(
        type(x)._real(), size, fill_value, dtype=found, requires_grad=requires_grad,
        device=x.device if device is None else device,
    )
    return made


def new_zeros(
    x: Tensor, *size: Extents, dtype: object = None, device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return zeros of the dtype and device of `x` unless given; the size is as of `zeros`."""
    return new_full(x, as_shape(size), 0, dtype=dtype, device=device, requires_grad=requires_grad)


def new_ones(
    x: Tensor, *size: Extents, dtype: object = None, device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return ones of the dtype and device of `x` unless given; the size is as of `ones`."""
    return new_full(x, as_shape(size), 1, dtype=dtype, device=device, requires_grad=requires_grad)


def new_tensor(
    x: Tensor, data: Any, *, dtype: object = None, device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a tensor of data, of the dtype and device of `x` unless given."""
    made = type(x)._real()(data, x.dtype if dtype is None else dtype, device or x.device)
    return made.requires_grad_() if requires_grad else made


def made_beside(x: Tensor, *data: Any, device: str | None = None) -> Tensor:
    """Return a tensor of the dtype of `x`: of sizes, with values to be written over, or of data.

    A tuple is of sizes, as a shape is; a list, an array or a tensor is data.
    """
    given = data[0] if len(data) == 1 else None
    if isinstance(given, TensorLike | list) or (isinstance(given, np.ndarray) and given.ndim):
        return new_tensor(x, given, device=device)
    return new_zeros(x, *(data or (0,)), device=device)


# --- ranges -------------------------------------------------------------------------------------


def arange(
    cls: type[Tensor],
    start: float | Node,
    stop: float | Node | None = None,
    step: float = 1,
    *,
    dtype: object = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return start, start + step, ... before stop; one argument alone is the stop, from 0.

    The dtype is int64 when every argument is an integer, else float32. Raises ArgumentError for a
    step of 0 or one that leads away from `stop`.
    """
    if stop is None:
        start, stop = 0, start
    if isinstance(stop, Node) or isinstance(start, Node):
        return _symbolic_arange(cls, start, stop, step, dtype, device)
    if step == 0:
        raise ArgumentError("arange with a step of 0 never ends", hint="give another step")
    if not all(isinstance(each, int) or math.isfinite(each) for each in (start, stop, step)):
        raise ArgumentError(
            "arange counts between finite numbers", found=f"{start}, {stop}, {step}"
        )
    if (stop - start) * step < 0:
        raise ArgumentError(f"arange from {start} to {stop} with a step of {step}: the wrong way")
    found = scalar_dtype(start + stop + step) if dtype is None else array_dtype(dtype)
    count = math.ceil((stop - start) / step)
    if found.is_int and not all(isinstance(each, int) for each in (start, stop, step)):
        # As PyTorch has it: integers are counted by integers, int64 up to one as well.
        start, stop, step = int(start), int(stop), int(step)
        if found is dtypes.int64:
            if step == 0:
                raise ArgumentError("arange with a step of 0 never ends", found=f"dtype {found}")
            count = max(math.ceil((stop - start) / step), 0)
    made = cls._make(_line(count, start, step, found), choose_device(device))
    return made.requires_grad_() if requires_grad else made


def _line(count: Any, start: float, step: float, dtype: DType) -> Node:
    """start + i*step for i in [0, count): computed in float64 or int64, then rounded once."""
    narrow_int = dtype.kind in ("int", "uint")
    wide = dtypes.int64 if narrow_int and isinstance(start + step, int) else dtypes.float64
    if dtype.kind == "float" and dtype.bits == 32 and start == int(start) and step == int(step):
        # Whole numbers of less than 24 bits are exact in float32 as well.
        reach = max(abs(start), abs(start + step * (count if isinstance(count, int) else 0)))
        wide = dtypes.float32 if isinstance(count, int) and reach < 1 << 24 else wide
    line = nodes.iota(count)
    line = nodes.cast(line, wide)
    if step != 1:
        line = nodes.mul(line, as_stored(step, wide))
    if start != 0:
        line = nodes.add(line, as_stored(start, wide))
    return nodes.cast(line, dtype)


def _symbolic_arange(
    cls: type[Tensor], start: Any, stop: Any, step: float, dtype: object, device: str | None
) -> Tensor:
    from baregrad.ir.core import index

    if step != 1:
        raise ShapeError("arange with a symbolic bound", found=f"a step of {step}", wanted="1")
    found = dtypes.int64 if dtype is None else array_dtype(dtype)
    line = nodes.iota(index.as_dim(index.sub(stop, start)))
    line = nodes.add(line, nodes.size_as(start, dtypes.int64))
    return cls._make(nodes.cast(line, found), choose_device(device))


def linspace(
    cls: type[Tensor],
    start: float,
    stop: float,
    steps: int,
    *,
    dtype: object = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return `steps` evenly spaced values from start to stop, both included."""
    found = default_float() if dtype is None else array_dtype(dtype)
    # Of tensors as well.
    start, stop = [one if isinstance(one, int) else float(one) for one in (start, stop)]
    if found.is_int:
        start, stop = int(start), int(stop)
        check_stored(min(start, stop), max(start, stop), found)
    if steps < 0:
        raise ArgumentError("linspace wants a number of values", found=steps, wanted="0 or more")
    step = (stop - start) / (steps - 1) if steps > 1 else 0.0
    place = nodes.cast(nodes.iota(steps), dtypes.float64)
    up = nodes.add(nodes.mul(place, const(step, dtypes.float64)), const(start, dtypes.float64))
    back = nodes.sub(const(steps - 1, dtypes.float64), place)
    down = nodes.sub(const(stop, dtypes.float64), nodes.mul(back, const(step, dtypes.float64)))
    # Counted from the nearer end, both ends are exact.
    middle = nodes.alu(Ops.CMPLT, place, const(steps // 2, dtypes.float64))
    line = nodes.where(middle, up, down) if steps > 1 else up
    made = cls._make(nodes.cast(line, found), choose_device(device))
    return made.requires_grad_() if requires_grad else made


def eye(
    cls: type[Tensor],
    rows: int,
    columns: int | None = None,
    *,
    dtype: object = None,
    device: str | None = None,
    requires_grad: bool = False,
) -> Tensor:
    """Return a matrix with ones on its diagonal, square unless `columns` is given."""
    shape = as_shape((rows, rows if columns is None else columns))
    check_count(shape)
    found = default_float() if dtype is None else as_dtype(dtype)
    same = nodes.alu(Ops.CMPEQ, nodes.iota_along(shape, 0), nodes.iota_along(shape, 1))
    made = cls._make(nodes.cast(same, array_dtype(part_of(found))), choose_device(device))
    made = made.cast(found) if found.is_complex else made
    return made.requires_grad_() if requires_grad else made
