"""Complex operands as parts and pairs, and results made of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np

from baregrad.base.errors import DTypeError
from baregrad.dtypes import DType, complex_of, part_of, result_type
from baregrad.ir.core.node import Node
from baregrad.tensor.array.axes import one_axis, own_axis, plain, several_axes
from baregrad.tensor.array.nodes import broadcast_shapes
from baregrad.tensor.complex.complex_tensor import ComplexTensor
from baregrad.tensor.tensor import Tensor

Parts = tuple[Tensor, Tensor]


def common_dtype(*operands: Any) -> DType:
    """The complex dtype that operands meet in: tensors, arrays and scalars."""
    arrays: list[DType] = []
    zero_dim: list[DType] = []
    scalars: list[Any] = []
    for one in map(plain, operands):
        if isinstance(one, Tensor):
            (arrays if one.ndim else zero_dim).append(one.dtype)
        else:
            scalars.append(1 if isinstance(one, Node) else one)
    return complex_of(result_type(arrays, zero_dim, scalars))


def lifted(operand: Any, device: str) -> Any:
    """A tensor, a Python scalar or a size as it is; anything else as a tensor."""
    operand = plain(operand) if not hasattr(operand, "item") else operand
    if isinstance(operand, Tensor | bool | int | float | complex | Node):
        return operand
    made = Tensor(operand, device=device)
    return made if made.ndim or isinstance(operand, np.ndarray) else made.item()


def as_pairs(operand: Any, dtype: DType, device: str) -> Tensor:
    """The parts of an operand along a last axis, in the dtype of the parts of `dtype`."""
    if isinstance(operand, ComplexTensor):
        return operand.pairs().cast(part_of(dtype))
    if not isinstance(operand, Tensor):
        if isinstance(operand, Node):
            return as_pairs(Tensor(operand, device=device), dtype, device)
        made = Tensor.full((), operand, dtype=dtype, device=device)
        assert isinstance(made, ComplexTensor)
        return made.pairs()
    real = operand.cast(part_of(dtype))
    return real.unsqueeze(-1).pad((0, 1))


def operands(*given: Any) -> tuple[DType, tuple[Tensor, ...]]:
    """The dtype that operands meet in, and the pairs of each in it; they broadcast."""
    device = next(one for one in given if isinstance(one, Tensor)).device
    known = [lifted(one, device) for one in given]
    dtype = common_dtype(*known)
    return dtype, tuple([as_pairs(one, dtype, device) for one in known])


def together(*given: Any) -> tuple[Tensor, ...]:
    """The pairs of operands, of which it is known that they broadcast. Raises ShapeError."""
    _, found = operands(*given)
    # Before an error shows shapes of pairs.
    broadcast_shapes(*[one.shape[:-1] for one in found])
    return found


def parts(x: Tensor) -> Parts:
    """The real and the imaginary part of a complex tensor, as views."""
    assert isinstance(x, ComplexTensor)
    pairs = x.pairs()
    return pairs[..., 0], pairs[..., 1]


def both(*given: Any) -> tuple[Parts, ...]:
    """The parts of each operand, in the dtype that all meet in."""
    return tuple([(one[..., 0], one[..., 1]) for one in together(*given)])


def paired(real: Tensor, imag: Tensor) -> ComplexTensor:
    """The complex tensor of two parts of one dtype, which broadcast."""
    if real.shape != imag.shape:
        shape = (real.detach() + imag.detach()).shape
        real, imag = real.expand(shape), imag.expand(shape)
    return ComplexTensor.of_pairs(real.stack(imag, dim=-1))


def turned(pairs: Tensor) -> Tensor:
    """The pairs of i times complex numbers: (-im, re)."""
    return pairs.flip(-1) * signs(pairs, -1.0, 1.0)


def signs(like: Tensor, real: float, imag: float) -> Tensor:
    """Two numbers along an axis of 2, of the dtype and device of a tensor."""
    last = Tensor.arange(2, dtype=like.dtype, device=like.device)
    return last * (imag - real) + real


# Arguments that are written into a tensor; what is real has no imaginary part to write.
_WRITTEN = frozenset({"value", "values", "src", "source"})


def of_real_and_imag(function: Callable[..., Tensor]) -> Callable[..., ComplexTensor]:
    """A function of each part by itself, such as one that moves elements, for complex tensors.

    Its first argument and what is written into that are brought to one complex dtype and taken
    apart; the others, as indices and masks, are the same for both parts.
    """
    first, *_ = names = list(inspect.signature(function).parameters)
    data = _WRITTEN | {first}

    @wraps(function)
    def method(*args: Any, **kwargs: Any) -> ComplexTensor:
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        numbers = {name: one for name, one in given.items() if name in data and one is not None}
        apart = {
            # A number stays one, which has a place wherever numbers do.
            name: (complex(one).real, complex(one).imag) if isinstance(one, int | float | complex)
            else (pairs[..., 0], pairs[..., 1])
            for (name, one), pairs in zip(numbers.items(), operands(*numbers.values())[1],
                                          strict=True)
        }
        halves = [
            function(*[apart[name][place] if name in apart else one
                       for name, one in zip(names, args, strict=False)],
                     **{name: apart[name][place] if name in apart else one
                        for name, one in kwargs.items()})
            for place in (0, 1)
        ]
        return paired(*halves)

    return method


def axis_of(x: Tensor, dim: int) -> int:
    """An axis of a complex tensor counted from 0, which its pairs have as well."""
    return own_axis(dim, x.ndim)


def axes_of(x: Tensor, dim: Any) -> tuple[int, ...]:
    """Axes of a complex tensor counted from 0; all for None."""
    return several_axes(dim, x.ndim)


def new_axis_of(x: Tensor, dim: int) -> int:
    """The place of a new axis counted from 0."""
    return one_axis(dim, x.ndim + 1)


def refuse_order(*_: Any, **__: Any) -> Any:
    """Raise DTypeError: complex numbers have no order."""
    raise DTypeError(
        "complex numbers have no order", hint="compare their sizes, abs(), or one part, .real"
    )
