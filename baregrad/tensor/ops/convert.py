"""Conversions: dtypes, devices, NumPy, Python numbers, DLPack, text."""

from __future__ import annotations

import importlib
import mmap
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from baregrad.base.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    GradientError,
    ShapeError,
)
from baregrad.dtypes import DType, array_dtype, cut_to_integer, decode, dtypes, to_numpy
from baregrad.ir.core.attrs import BufferRef
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.link import session
from baregrad.tensor.array.operands import result
from baregrad.tensor.array.storage import buffer_node
from baregrad.tensor.array.tensor_like import Tensor, TensorLike
from baregrad.tensor.ops.creation import as_raw, choose_device
from baregrad.tensor.ops.shapes import as_format, laid_out, preserve_format

PRINTED = 1000  # elements from which printing shortens


class Printing:
    """How values are shown, as `set_printoptions` says."""

    settings: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"precision": 4, "threshold": PRINTED}
    )


# --- dtypes and devices -------------------------------------------------------------------------


def cast(x: Tensor, dtype: object) -> Tensor:
    """Return the values in another dtype, or `x` itself; floats saturate to integers, NaN is 0."""
    wanted = array_dtype(dtype)
    if wanted is x.dtype:
        return x
    return result(nodes.cast(x.node, wanted), x)


def to(
    x: Tensor, *args: Any, dtype: object = None, device: str | None = None,
    non_blocking: bool = False, copy: bool = False, memory_format: object = preserve_format,
) -> Tensor:
    """Return the values in another dtype, on another device, or both; `x` itself if it fits.

    Positional arguments may be a dtype, a device's name, or a tensor to be like, and `non_blocking`
    and `copy` behind them. copy: a new tensor if it fits too. non_blocking says nothing: nobody
    waits before the values are read. memory_format: how the result lies, such as
    baregrad.channels_last.
    """
    # A flag without anything ahead of it says nothing: it is no dtype either.
    flags = [arg for arg in args[1:] if arg.__class__ is bool]
    if flags:
        args = (args[0], *[arg for arg in args[1:] if arg.__class__ is not bool])
        copy = copy or any(flags[1:])
    for arg in args:
        if isinstance(arg, TensorLike):
            dtype, device = arg.dtype, arg.device
        elif isinstance(arg, str) and not hasattr(dtypes, arg):
            device = arg
        else:
            dtype = arg
    y = x
    if device is not None and choose_device(device) != x.device:
        where = choose_device(device)
        if x.is_paired:
            moved: Tensor = to(x.pairs(), where)
            return type(x)._on(moved._storage, moved._steps).to(dtype or x.dtype)
        node = Node(Ops.COPY, x.dtype, (x.node,), where)
        y = type(x)._make(node, where, x.requires_grad)
    y = y if dtype is None else y.cast(dtype)
    y = laid_out(y, as_format(memory_format))
    return y.clone() if copy and y is x else y


def cpu(x: Tensor) -> Tensor:
    """Return the values on the device CPU; `x` itself if it is there."""
    return to(x, device="CPU")


def cuda(
    x: Tensor, device: int | str | None = None, non_blocking: bool = False,
    memory_format: object = preserve_format,
) -> Tensor:
    """Return the values on a GPU of the device CUDA, the first unless given; see `to`."""
    named = device if isinstance(device, str) else f"CUDA:{device}" if device else "CUDA"
    return to(x, device=named, memory_format=memory_format)


def pin_memory(x: Tensor) -> Tensor:
    """Return `x` itself: copies to a GPU go through pinned memory wherever they begin."""
    return x


def is_cuda(x: Tensor) -> bool:
    """Whether the values lie on a GPU."""
    return x.device.split(":")[0] in ("CUDA", "NV")


def is_not(x: Tensor) -> bool:
    """False: no tensor is of that kind of device or layout."""
    return False


def get_device(x: Tensor) -> int:
    """Return the number of the GPU that the values lie on, -1 where they lie on none."""
    name, _, number = x.device.partition(":")
    return int(number or 0) if name in ("CUDA", "NV") else -1


def is_lazily(x: Tensor) -> bool:
    """Return false: what a tensor shows is computed, not noted for later."""
    return False


def itself(x: Tensor) -> Tensor:
    """Return `x`, which is what it shows."""
    return x


def is_cpu(x: Tensor) -> bool:
    """Whether the values lie in the host's memory."""
    return x.device.split(":")[0] in ("CPU", "REF")


def is_signed(x: Tensor) -> bool:
    """Whether the dtype has numbers below 0."""
    return x.dtype.kind not in ("uint", "bool")


def type_as(x: Tensor, other: Tensor) -> Tensor:
    """Return the values in the dtype and on the device of another tensor."""
    return to(x, other)


def is_floating_point(x: Tensor) -> bool:
    """Return whether the dtype is one of floats."""
    return x.dtype.kind == "float"


def _to_dtype(dtype: DType) -> Callable[[Tensor], Tensor]:
    def method(x: Tensor) -> Tensor:
        return cast(x, dtype)

    method.__name__ = method.__qualname__ = dtype.name
    method.__doc__ = f"Return the values as {dtype.name}."
    return method


to_float, to_double = _to_dtype(dtypes.float32), _to_dtype(dtypes.float64)
to_half, to_bfloat16 = _to_dtype(dtypes.float16), _to_dtype(dtypes.bfloat16)
to_int, to_long = _to_dtype(dtypes.int32), _to_dtype(dtypes.int64)
to_short, to_char = _to_dtype(dtypes.int16), _to_dtype(dtypes.int8)
to_byte, to_bool = _to_dtype(dtypes.uint8), _to_dtype(dtypes.bool)


def clone(x: Tensor, memory_format: object = preserve_format) -> Tensor:
    """Return a tensor of the same value with a storage of its own; gradients pass.

    memory_format: how it lies, such as baregrad.channels_last; in row-major order unless given.
    """
    made = result(x.node, x)
    return laid_out(made, as_format(memory_format))


# --- out ----------------------------------------------------------------------------------------


def numpy(x: Tensor) -> np.ndarray[Any, Any]:
    """Return the values as a NumPy array of their own memory; computes them.

    Raises UnsupportedDType for dtypes that NumPy lacks, such as bfloat16.
    """
    wanted = to_numpy(x.dtype)
    return x._raw().view(wanted)


def __array__(  # noqa: N807 - NumPy's protocol
    x: Tensor, dtype: Any = None, copy: bool | None = None
) -> np.ndarray[Any, Any]:
    """Return the values as a NumPy array, for numpy.asarray and its kin."""
    array = numpy(x)
    return array if dtype is None else array.astype(dtype)


def tolist(x: Tensor) -> Any:
    """Return the values as nested lists of Python numbers, or one number; computes them."""
    raw = x._raw()
    values = raw.view(x.dtype.numpy) if x.dtype.numpy is not None else decode(raw, x.dtype)
    return values.tolist()


def item(x: Tensor) -> Any:
    """Return the one element as a Python number; computes it. Raises ShapeError for several."""
    if any(not (e.__class__ is int and e == 1) for e in x.shape):
        raise ShapeError(
            "item() is of tensors with one element",
            found=f"shape {list(x.shape)}",
            hint="use tolist(), or index one element",
        )
    return tolist(x.reshape(()) if x.ndim else x)


def truth(x: Tensor) -> bool:
    """Return the truth of the one element; computes it."""
    if any(not (e.__class__ is int and e == 1) for e in x.shape):
        raise ShapeError(
            "the truth of several elements is not defined",
            found=f"shape {list(x.shape)}",
            wanted="one element",
            hint="use any() or all()",
        )
    return bool(item(x))


def as_index(x: Tensor) -> int:
    """Return the one integer element, where Python wants an index; computes it."""
    if x.dtype.kind not in ("int", "uint"):
        raise DTypeError("only an integer tensor is an index", found=f"dtype {x.dtype}")
    return cut_to_integer(item(x), dtypes.int64)


def length(x: Tensor) -> int:
    """Return the extent of the first axis. Raises ShapeError when there is none."""
    if not x.ndim:
        raise ShapeError("a tensor without axes has no length", hint="item() reads its one element")
    return x.shape[0]


def iterate(x: Tensor) -> Iterator[Tensor]:
    """Yield the views along the first axis."""
    if not x.ndim:
        raise ShapeError("a tensor without axes cannot be iterated over")
    for i in range(length(x)):
        yield x[i]


def as_float(x: Tensor) -> float:
    """Return the one element as a Python float; computes it."""
    return float(item(x))


def as_complex(x: Tensor) -> complex:
    """Return the one element as a Python complex number; computes it."""
    return complex(item(x))


def as_int(x: Tensor) -> int:
    """Return the one element as a Python int, rounded toward zero; computes it."""
    return cut_to_integer(item(x), dtypes.int64)


# --- copies -------------------------------------------------------------------------------------


def deep_copy(x: Tensor, memo: dict[int, Any]) -> Tensor:
    """Return an independent leaf of the same value, as copy.deepcopy wants it.

    Raises GradientError for a result of operations that are recorded for gradients.
    """
    if not x.is_leaf:
        raise GradientError(
            "only leaves are copied deeply", hint="copy detach() of it, or use clone()"
        )
    copied = clone(x.detach())
    if x._gradient is not None:
        copied._gradient = clone(x._gradient.detach())
    memo[id(x)] = copied
    return copied.requires_grad_() if x.requires_grad else copied


def reduce(x: Tensor) -> tuple[Any, ...]:
    """Return how to make the tensor again, as pickle wants it; computes it."""
    facts = (x._raw(), x.dtype, x.device, x.requires_grad and x.is_leaf)
    return rebuild, (type(x), *facts)


def rebuild(
    cls: type[Tensor], raw: np.ndarray[Any, Any], dtype: DType, device: str, requires_grad: bool
) -> Tensor:
    """Return the tensor of the raw elements that `reduce` gave."""
    from baregrad.tensor.array.storage import buffer_node

    where = session().known_device(device)
    made = cls._make(buffer_node(session().upload(raw, dtype, raw.shape, where), dtype), where)
    return made.requires_grad_() if requires_grad else made


# --- the array API -------------------------------------------------------------------------------


def __array_namespace__(  # noqa: N807 - the array API's protocol
    x: Tensor, *, api_version: str | None = None
) -> Any:
    """Return `baregrad.array_api`, the functions of the Python array API.

    Raises ArgumentError for a version of it other than 2021.12 to 2024.12.
    """
    if api_version not in (None, *_ARRAY_API_VERSIONS):
        raise ArgumentError(
            "there is no such version of the array API here", found=repr(api_version),
            wanted=", ".join(_ARRAY_API_VERSIONS),
        )
    # By name: that room is made of tensors, and asked of them alone.
    return importlib.import_module("baregrad.array_api")


_ARRAY_API_VERSIONS = ("2021.12", "2022.12", "2023.12", "2024.12")


def to_device(x: Tensor, device: str, /, *, stream: Any = None) -> Tensor:
    """Return the values on a device; this is `to` under the name that the array API gives it."""
    return to(x, device=device)


# --- DLPack -------------------------------------------------------------------------------------


def __dlpack__(  # noqa: N807 - the array API's protocol
    x: Tensor, *, stream: Any = None, max_version: tuple[int, int] | None = None,
    dl_device: tuple[Any, int] | None = None, copy: bool | None = None,
) -> Any:
    """Return a DLPack capsule of a copy of the values: of a tensor of CUDA on its GPU, else here.

    A consumer that names its version and neither a stream nor a device, as `np.from_dlpack` does,
    reads the CPU's memory alone and is given a copy there. The copy is done when this returns,
    whatever the `stream`. Raises ArgumentError for `copy=False`, and for another device than the
    tensor's own and the CPU's, (1, 0).
    """
    place = __dlpack_device__(x)
    # The array API lets one that takes a GPU's memory leave its stream out, too; the capsule then
    # says that it is of the CPU.
    is_host = dl_device is None and stream is None and max_version is not None
    device = (1, 0) if is_host else place if dl_device is None else dl_device
    wanted = int(device[0]), int(device[1])
    if copy is False or wanted not in (place, (1, 0)):
        raise ArgumentError(
            "a tensor gives other libraries a copy", found=f"copy={copy}, dl_device={dl_device}",
            wanted=f"copy=None, dl_device={place} or (1, 0)",
        )
    if wanted[0] == _DLPACK_CUDA:
        from baregrad.runtime.dlpack import capsule_of

        (ref,) = session().realize([x.detach()._value()], x.device)
        owner: Any = session()
        device = owner.backend(x.device).device
        fresh = device.duplicate(ref.handle)
        device.synchronize()
        return capsule_of(fresh, x.dtype, tuple(x.shape), wanted[1])
    array = numpy(x)
    return array.__dlpack__() if max_version is None else array.__dlpack__(max_version=max_version)


# DLPack's numbers of devices: memory of CUDA, and that which it pinned or moves by itself.
_DLPACK_CUDA, _DLPACK_CUDA_HOST, _DLPACK_CUDA_MANAGED = 2, 3, 13


def __dlpack_device__(x: Tensor) -> tuple[int, int]:  # noqa: N807 - the array API's protocol
    """Return the DLPack device of the capsule: a GPU of CUDA, or the CPU."""
    name, _, number = x.device.partition(":")
    return (_DLPACK_CUDA, int(number or 0)) if name == "CUDA" else (1, 0)


def from_dlpack(cls: type[Tensor], data: Any, *, device: str | None = None) -> Tensor:
    """Return a tensor of the values that an array which speaks DLPack has now.

    Of host memory it is on the CPU unless `device` says more, and shared where nothing can change
    it, else copied; of a GPU's memory it is a copy on the device CUDA of that GPU. What is computed
    later is computed of the values of now, and writes to the tensor never reach the array. Raises
    DeviceError for a GPU's memory that is wanted on another device: memory of NV is in no context
    of CUDA.
    """
    if not hasattr(data, "__dlpack__"):
        raise DTypeError(
            "not an array that speaks DLPack", found=f"{type(data).__name__} {data!r:.40}",
            hint="copy it instead: Tensor(data)",
        )
    place = data.__dlpack_device__() if hasattr(data, "__dlpack_device__") else (1, 0)
    kind, number = int(place[0]), int(place[1])
    if kind in (1, _DLPACK_CUDA_HOST):
        return share(cls, np.from_dlpack(data), device)
    own = f"CUDA:{number}" if number else "CUDA"
    if kind not in (_DLPACK_CUDA, _DLPACK_CUDA_MANAGED) or choose_device(device or own) != own:
        raise DeviceError(
            "an array in memory of another device", found=f"DLPack's ({kind}, {number})",
            wanted=f"the CPU's memory, or a GPU's on {own}",
            hint=f"from_dlpack(data, device={own!r}), or move it to the host first",
        )
    from baregrad.runtime.dlpack import copied_from

    owner: Any = session()
    target = owner.backend(own).device
    capsule = data.__dlpack__(stream=int(target.context.stream or 0) or None)
    found = copied_from(capsule, target, number)
    ref = BufferRef(found.buffer, found.shape, own)
    return cls._make(buffer_node(ref, found.dtype), own)


def from_numpy(cls: type[Tensor], array: np.ndarray[Any, Any]) -> Tensor:
    """Return a tensor of the values that a NumPy array has now.

    The memory is shared where it is read-only for good and in row-major order, else copied: what is
    computed later is computed of the values of now.
    """
    if not isinstance(array, np.ndarray):
        raise DTypeError(
            "not a NumPy array", found=f"{type(array).__name__} {array!r:.40}",
            hint="Tensor(data) takes lists and numbers as well",
        )
    return share(cls, array, None)


def share(cls: type[Tensor], array: np.ndarray[Any, Any], device: str | None) -> Tensor:
    """A tensor over a NumPy array's memory where nothing can change that, else of a copy."""
    if not array.nbytes or array.dtype.kind == "c" or not _is_constant(array):
        return cls(array, device=device)
    raw, found = as_raw(array, None)
    where = choose_device(device)
    ref = session().wrap(raw, found, raw.shape, where)
    return cls._make(buffer_node(ref, found), where)


def _is_constant(array: np.ndarray[Any, Any]) -> bool:
    """Whether an array lies in memory that neither it nor what it is a view of can write."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        if owner.base is None:
            # Its flag can be set again.
            return False
        owner = owner.base
    return isinstance(owner, bytes | mmap.mmap) and memoryview(owner).readonly


# --- text ---------------------------------------------------------------------------------------


def as_format_spec(x: Tensor, spec: str) -> str:
    """Return the one number of a tensor without axes as a format says; others as text.

    Raises TypeError for a format of a tensor with axes, as PyTorch does.
    """
    if x.ndim == 0 and not x.is_unmade:
        return format(x.item(), spec)
    return object.__format__(x, spec)


def contains(x: Tensor, value: Any) -> bool:
    """Return whether an element equals a number, or a tensor beside it; computes it."""
    if not isinstance(value, TensorLike | int | float | complex):
        raise DTypeError(
            "a tensor contains numbers", found=f"{type(value).__name__} {value!r:.40}",
            wanted="a number or a tensor",
        )
    found: Any = x == value
    return truth(found.any())


def backwards(x: Tensor) -> Tensor:
    """Return the elements along the first axis from the last to the first."""
    return x.flip(0) if x.ndim else x


def text(x: Tensor) -> str:
    """Return the values as text, shortened when there are many; computes them."""
    facts = [f"dtype={x.dtype}"]
    if x.device != session().default_device():
        facts.append(f"device={x.device!r}")
    if x.requires_grad:
        facts.append("requires_grad=True")
    if not all(isinstance(extent, int) for extent in x.shape):
        return f"Tensor(shape={list(x.shape)}, {', '.join(facts)})"
    raw = x._raw()
    values = raw.view(x.dtype.numpy) if x.dtype.numpy is not None else decode(raw, x.dtype)
    with np.printoptions(**Printing.settings):
        shown = np.array2string(values, separator=", ", prefix="Tensor(")
    if not values.size and values.ndim != 1:
        facts.insert(0, f"shape={values.shape}")
    return f"Tensor({shown}, {', '.join(facts)})"
