"""What PyTorch's programs ask of the memory and the history of tensors, as far as there is such."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from baregrad.base.errors import DTypeError, GradientError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.tensor.array.nodes import broadcast_shapes
from baregrad.tensor.array.tensor_like import Tensor
from baregrad.tensor.array.views import change_steps
from baregrad.tensor.ops.creation import as_shape


class MemoryOf(NamedTuple):
    """The memory that a tensor and its views share, as far as programs ask about it."""

    identity: int
    length: int
    itemsize: int

    def data_ptr(self) -> int:
        """Return a number that is the same for all tensors that share this memory, and no other."""
        return self.identity

    def nbytes(self) -> int:
        """Return how many bytes it has."""
        return self.length * self.itemsize

    def size(self) -> int:
        """Return how many elements it has."""
        return self.length

    def element_size(self) -> int:
        """Return the bytes of an element."""
        return self.itemsize


class History(NamedTuple):
    """What made a tensor, as far as programs look whether there is such a thing."""

    operation: str

    def name(self) -> str:
        """Return what PyTorch would call the operation's gradient, such as AddBackward0."""
        return f"{self.operation.title().replace('_', '')}Backward0"

    def __repr__(self) -> str:
        return f"<{self.name()}>"


def storage(x: Tensor) -> MemoryOf:
    """Return the memory that the tensor and its views share."""
    return MemoryOf(id(x._storage) << 40, math.prod(x._storage.node.shape), x.dtype.itemsize)


def storage_offset(x: Tensor) -> int:
    """Return how many elements of its memory lie before the tensor's first."""
    found: int = x._strides()[1]
    return found


def data_ptr(x: Tensor) -> int:
    """Return a number that tensors have in common whose memory begins at the same element.

    It is no address: values may move when they are written over. 0 for a tensor without elements.
    """
    if not x.numel():
        return 0
    return (id(x._storage) << 40) + storage_offset(x) * x.dtype.itemsize


def is_set_to(x: Tensor, tensor: Tensor) -> bool:
    """Return whether both show the same elements of the same memory in the same order."""
    return x._storage is tensor._storage and x.shape == tensor.shape \
        and x._strides() == tensor._strides()


def share_memory_(x: Tensor) -> Tensor:
    """Return `x`, which other threads see as it is; processes that it is sent to have copies."""
    return x


def record_stream(x: Tensor, stream: object) -> None:
    """Do nothing: memory is given to others in the order of the work."""


def grad_fn(x: Tensor) -> History | None:
    """What made the tensor, None for one that requires no gradients or is no result."""
    if x.is_leaf or not x.requires_grad:
        return None
    return History(x._value().op.name)


def no_name(x: Tensor) -> None:
    """None: tensors have no names."""


def first_output(x: Tensor) -> int:
    """0: each result has a history of its own."""
    return 0


def strided(x: Tensor) -> str:
    """How elements lie: by strides."""
    return "strided"


def apply_(x: Tensor, callable: Callable[[Any], Any]) -> Tensor:
    """Write a Python function of each element over `x`, which is read; return `x`.

    Raises GradientError where `x` requires gradients, which would not pass the function.
    """
    return _by_python(x, callable, (x,))


def map_(x: Tensor, tensor: Tensor, callable: Callable[[Any, Any], Any]) -> Tensor:
    """Write a Python function of each element and another tensor's over `x`, both read."""
    return _by_python(x, callable, (x, tensor))


def _by_python(x: Tensor, function: Callable[..., Any], operands: Sequence[Tensor]) -> Tensor:
    if x.requires_grad:
        raise GradientError("Python functions of elements pass no gradients",
                            hint="call it on x.data, or write it with tensors")  # fmt: skip
    if tuple(x.shape) != broadcast_shapes(*[tuple(one.shape) for one in operands]):
        raise ShapeError("a tensor that is written over keeps its shape", found=list(x.shape),
                         wanted=f"one that {list(operands[-1].shape)} broadcasts to")  # fmt: skip
    arrays = [one.numpy() for one in operands]
    made = [function(*values) for values in zip(*[one.ravel().tolist() for one in
                                                 np.broadcast_arrays(*arrays)], strict=True)]
    return x.copy_(type(x)(np.array(made, dtype=arrays[0].dtype).reshape(x.shape)).to(x.device))


def resize_(x: Tensor, *sizes: Any) -> Tensor:
    """Be a tensor of other sizes: with the elements in their order, and zeros behind them.

    `x` has memory of its own then, and views of it keep what they had. Raises GradientError where
    it requires gradients.
    """
    if x.requires_grad:
        raise GradientError("a tensor that requires gradients keeps its sizes",
                            hint="reshape makes another one")  # fmt: skip
    shape = as_shape(sizes)
    if not all(isinstance(one, int) and one >= 0 for one in shape):
        raise ShapeError("sizes are integers from 0 on", found=list(shape))
    count, wanted = x.numel(), math.prod(shape)
    flat = x.reshape(-1)[: min(count, wanted)]
    made = flat.pad((0, wanted - flat.shape[0])).reshape(shape).clone()
    x._storage, x._layout, x._look = made._storage, None, None
    change_steps(x, made._steps)
    return x


def resize_as_(x: Tensor, the_template: Tensor) -> Tensor:
    """Be a tensor of another's sizes; see `resize_`."""
    return resize_(x, tuple(the_template.shape))


def set_(x: Tensor, source: Tensor | None = None) -> Tensor:
    """Share another tensor's memory and sizes from now on; of no elements without one."""
    if x.requires_grad:
        raise GradientError("a tensor that requires gradients keeps its memory",
                            hint="x.data = other writes other values into it")  # fmt: skip
    kind: Any = type(x)
    found: Tensor = kind.zeros(0, dtype=x.dtype) if source is None else source.detach()
    if found.dtype is not x.dtype:
        raise DTypeError("memory of its dtype", found=found.dtype, wanted=x.dtype)
    x._storage, x._layout, x._look = found._storage, None, None
    change_steps(x, found._steps)
    return x


def new_empty_strided(
    x: Tensor, size: Sequence[int], stride: Sequence[int], dtype: object = None,
    device: str | None = None, requires_grad: bool = False,
) -> Tensor:
    """Return a tensor of a size; its values are not to be relied on, and lie in row-major order."""
    if len(size) != len(stride):
        raise ShapeError("a stride for each axis", found=list(stride), wanted=list(size))
    kind: Any = type(x)
    made: Tensor = kind.zeros(
        *size, dtype=dtype or x.dtype, device=device or x.device, requires_grad=requires_grad
    )
    return made


def as_strided_scatter(
    x: Tensor, src: Tensor, size: Sequence[int], stride: Sequence[int],
    storage_offset: int | None = None,
) -> Tensor:
    """Return a copy of `x` with `src` at the elements that `as_strided` would show."""
    kind: Any = type(x)
    places = kind.arange(x.numel(), device=x.device).reshape(x.shape)
    chosen = places.as_strided(size, stride, storage_offset or 0)
    if tuple(src.shape) != tuple(size):
        raise ShapeError("what is written has the size", found=list(src.shape), wanted=list(size))
    flat: Any = x.reshape(-1)
    made = flat.scatter(0, chosen.reshape(-1), src.cast(x.dtype).reshape(-1))
    found: Tensor = made.reshape(x.shape)
    return found


def frexp(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mantissas from 0.5 up to 1, signed, and exponents (int32): x = mantissa * 2**exponent.

    0, infinities and NaN are mantissas with an exponent of 0. Gradients pass the mantissas. Raises
    DTypeError for others than floats.
    """
    if not x.dtype.is_float:
        raise DTypeError("frexp is of floats", found=x.dtype, hint="cast them: x.float()")
    given: Any = x.detach()
    wide = given if x.dtype.bits >= 32 else given.cast(dtypes.float32)
    digits, bias = (52, 1023) if wide.dtype is dtypes.float64 else (23, 127)
    word = dtypes.int64 if digits == 52 else dtypes.int32
    # Numbers of fewer digits have no exponent of their own.
    is_small = wide.abs() < 2.0 ** (2 - bias)
    scaled = is_small.where(wide * 2.0**64, wide)
    bits = scaled.contiguous().bitcast(word).bitwise_right_shift(digits)
    found = bits.bitwise_and(2 * bias + 1) - (bias - 1) - is_small.where(64, 0).cast(word)
    is_odd = (wide == 0) | ~wide.isfinite()
    exponent = is_odd.where(0, found).cast(dtypes.int32)
    # In three steps, none of which leaves the dtype's range.
    third = exponent // 3
    powers = [third, third, exponent - 2 * third]
    mantissa = x
    for power in powers:
        mantissa = mantissa * (-power).cast(wide.dtype).exp2().cast(x.dtype)
    return mantissa, exponent


def to_complex64(x: Tensor) -> Tensor:
    """Return the values as complex64."""
    return x.cast(dtypes.complex64)


def to_complex128(x: Tensor) -> Tensor:
    """Return the values as complex128."""
    return x.cast(dtypes.complex128)


def histogram(
    x: Tensor, bins: int | Tensor, *, range: Sequence[float] | None = None,
    weight: Tensor | None = None, density: bool = False,
) -> Any:
    """Return how many elements lie in each bin, and where bins end; see `baregrad.histogram`."""
    from importlib import import_module

    make = import_module("baregrad.tensor.torch_names").histogram
    return make(x, bins, range=range, weight=weight, density=density)


def dim_order(x: Tensor) -> tuple[int, ...]:
    """Return the axes from the outermost in memory inwards."""
    strides = x._strides()[0]
    return tuple(sorted(range(x.ndim), key=lambda axis: -strides[axis]))

