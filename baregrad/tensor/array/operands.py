"""Operands: Python scalars, arrays and tensors brought to one dtype and one device.

The tensors of one operation are of one class, which the type `Operand` does not say: where an
operand decides the class of a result, that check of types is switched off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from baregrad.base.errors import ArgumentError, DeviceError, DTypeError
from baregrad.dtypes import (
    DEFAULT_FLOAT,
    DType,
    check_computed,
    cut_to_integer,
    default_float,
    dtypes,
    result_type,
)
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import COMPARE, Op, Ops
from baregrad.tensor.array import nodes
from baregrad.tensor.array.axes import plain
from baregrad.tensor.array.grad_mode import enable_grad, grad_enabled
from baregrad.tensor.array.tensor_like import Operand, Scalar, Tensor, TensorLike
from baregrad.tensor.array.views import Pulled, twin

F = TypeVar("F", bound=Callable[..., Any])


def one_device(tensors: Sequence[TensorLike]) -> str:
    """The device that all tensors are on. Raises DeviceError when there are several."""
    device = tensors[0].device
    for other in tensors:
        if other.device != device:
            raise DeviceError(
                "tensors on different devices",
                found=f"{device} and {other.device}",
                wanted="one device",
                hint=f"move one, for example with to({device!r})",
            )
    return device


def lift(value: Operand, beside: Tensor) -> Tensor | Scalar | Node:
    """A tensor or scalar as it is; an array or sequence as a tensor on the device of `beside`."""
    if isinstance(value, TensorLike):
        return value  # type: ignore[return-value]
    if isinstance(value, bool | int | float | Node):
        return value
    if isinstance(value, np.bool_ | np.integer | np.floating):
        scalar = value.item()
        if isinstance(scalar, bool | int | float):
            return scalar
    if isinstance(value, np.ndarray | list | tuple | complex | np.complexfloating):
        return type(beside)(value, device=beside.device)
    raise DTypeError(
        "not an operand of a tensor",
        found=f"{type(value).__name__} {value!r:.60}",
        wanted="a tensor, a scalar or an array",
    )


def common_dtype(operands: Sequence[Tensor | Scalar | Node]) -> DType:
    """The dtype that operands meet in: tensors with axes outrank those without, and scalars."""
    only: DType | None = None
    weak = 0
    for x in operands:
        if isinstance(x, TensorLike):
            dtype = x.dtype
            if only is not None and dtype is not only:
                return _promoted(operands)
            only = dtype
        else:
            weak = max(weak, 2 if isinstance(x, float) else 0 if isinstance(x, bool) else 1)
    # Most operations meet here: one dtype, and scalars of no higher category.
    if only is not None and weak <= _CATEGORY[only.kind]:
        return only
    return _promoted(operands)


# The integers that an operand may be beside any dtype; beside uint64 its own as well.
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1
_CATEGORY = MappingProxyType(
    {"bool": 0, "uint": 1, "int": 1, "index": 1, "float": 2, "complex": 3}
)


def _promoted(operands: Sequence[Tensor | Scalar | Node]) -> DType:
    arrays = [x.dtype for x in operands if isinstance(x, TensorLike) and x.ndim]
    zero_dim = [x.dtype for x in operands if isinstance(x, TensorLike) and not x.ndim]
    scalars = [1 if isinstance(x, Node) else x for x in operands if not isinstance(x, TensorLike)]
    return result_type(arrays, zero_dim, scalars)


def as_node(value: Tensor | Scalar | Node, dtype: DType) -> Node:
    """An operand as a node of `dtype`. Raises DTypeError for a complex one."""
    if isinstance(value, TensorLike):
        return nodes.cast(value.node, dtype)
    if isinstance(value, Node):
        return nodes.cast(value, dtype)
    assert isinstance(value, bool | int | float)
    if value.__class__ is int and not _LEAST <= value <= _MOST and dtype.kind in ("int", "uint"):
        if dtype is not dtypes.uint64 or not 0 <= value <= int(dtype.max):
            raise ArgumentError(
                f"an operand that {dtype} has not", found=value, wanted=f"{_LEAST} to {_MOST}"
            )
    try:
        return const(value, dtype)
    except OverflowError as error:
        raise ArgumentError(f"an operand that {dtype} has not", found=f"{error}") from error


def as_stored(value: Tensor | Scalar | Node, dtype: DType) -> Node:
    """What is stored as a node of `dtype`. Raises as `check_stored` for a scalar it has not."""
    value = plain(value)
    if value.__class__ in (int, float):
        check_stored(value, value, dtype)
    return as_node(value, dtype)


def as_chosen(value: Tensor | Scalar | Node, dtype: DType) -> Node:
    """As `as_stored`; but a scalar may become an infinity of a narrow float dtype.

    So it is where PyTorch makes a tensor of its own of the scalar first: `where`, `x[...] = value`.
    """
    if dtype.kind == "float" and dtype.bits < DEFAULT_FLOAT.bits:
        return as_node(plain(value), dtype)
    return as_stored(value, dtype)


def check_stored(low: int | float, high: int | float, dtype: DType) -> None:
    """Raise ArgumentError unless a dtype has numbers of the size of low to high.

    Integers are cut off; DTypeError for an infinity, and for what is no number, among them. As in
    PyTorch unsigned ones take a negative integer that they have without its sign, but no other
    negative number; and floats their infinities, but nothing between those and their largest.
    """
    if dtype.kind == "float":
        most, least = dtype.max, dtype.min
        if not any(abs(one) > most and one not in _INFINITIES for one in (low, high)):
            return
    elif dtype.kind in ("int", "uint"):
        most = dtype.max
        least = dtype.min if dtype.kind == "int" or low.__class__ is float else -most
        # Not a number is not within.
        if least <= low and high <= most:
            return
        for number in (low, high):
            cut_to_integer(number, dtype)
    else:
        return
    raise ArgumentError(
        f"a value that {dtype} has not", found=high if low >= least else low,
        wanted=f"{least} to {most}", hint="take a wider dtype",
    )


_INFINITIES = (math.inf, -math.inf)


def elementwise(
    op: Op, *operands: Operand, dtype: DType | None = None
) -> Tensor:  # type: ignore[type-var]
    """`op` over operands that broadcast, in the dtype that they meet in unless one is given.

    At least one operand is a tensor. Comparisons give bool.
    """
    first = next(x for x in operands if isinstance(x, TensorLike))
    lifted = [lift(x, first) for x in operands]
    tensors = [x for x in lifted if isinstance(x, TensorLike)]
    if dtype is None:
        dtype = common_dtype(lifted)
    device = one_device(tensors) if len(tensors) > 1 else first.device
    node = nodes.alu(op, *(as_node(x, dtype) for x in lifted))
    if op in COMPARE:
        return type(first)._make(node, device)  # type: ignore[return-value]
    grad = grad_enabled() and any(x.requires_grad for x in tensors)
    return type(first)._make(node, device, grad)  # type: ignore[return-value]


def result(node: Node, x: Tensor, *others: TensorLike) -> Tensor:
    """A tensor of `node`, on the device of its sources, which carries their gradients."""
    device = one_device((x, *others)) if others else x.device
    grad = grad_enabled() and (x.requires_grad or any(y.requires_grad for y in others))
    if grad and (node is x.node or any(node is y.node for y in others)):
        node = twin(node)
    return type(x)._make(node, device, grad)


def stepwise(value: Tensor, *sources: TensorLike) -> Tensor:
    """`value`, which follows its sources in steps: gradients reach them, and are 0.

    value: computed of detached sources. sources: broadcast to its shape.
    """
    never = const(False, dtypes.bool)
    node = value.node
    for source in sources:
        if source.requires_grad:
            node = nodes.where(never, nodes.cast(source.node, value.dtype), node)
    return result(node, value, *sources)


class _Derivative:
    """The gradient of an argument, which a function's own rule makes of that of its value.

    The value that the rule takes is marked as the first one was: its gradients come by it as well.
    Nodes are held, what tensors show now: these may be written over.
    """

    __slots__ = ("argument", "device", "kind", "more", "rule", "value")

    def __init__(
        self, value: TensorLike, x: TensorLike, rule: Callable[..., Any],
        more: tuple[TensorLike, ...],
    ) -> None:  # fmt: skip
        self.kind = type(x)
        self.device = x.device
        self.rule = rule
        self.value = value.node
        self.argument = x.node
        self.more = [one.node for one in more]

    def marked(self) -> Any:
        mark = Pulled((self.argument,), self)
        node = Node(Ops.DETACH, self.value.dtype, (self.value,), mark)
        return self.kind._make(node, self.device, True)

    def __call__(self, gradient: Node) -> tuple[Node]:
        g, x, *more = [
            self.kind._holding(node, self.device, node.dtype.kind == "float", ())
            for node in (gradient, self.argument, *self.more)
        ]
        # Whoever asked for it may take its gradient, whatever is recorded meanwhile.
        with enable_grad():
            return (self.rule(g, x, self.marked(), *more).node,)


def derived(value: Tensor, x: Tensor, rule: Callable[..., Tensor], *more: Tensor) -> Tensor:
    """`value` as a function of `x` whose gradient is rule(gradient of the value, x, value, *more).

    x, more: of the value's shape, what it was made of. The rule is of ops of one element each, as
    it says itself, and differentiated in turn. One that multiplies the gradient but once gives no
    difference of infinities, as a sum over the ops that made the value may.
    """
    if not (grad_enabled() and x.requires_grad):
        return value
    marked: Tensor = _Derivative(value, x, rule, more).marked()
    return marked


def broadcast_operands(
    beside: Tensor, *operands: Operand, dtype: DType | None = None
) -> tuple[Tensor, ...]:
    """Operands as tensors of one dtype and one shape, views where they were tensors.

    Of what is no tensor one is made as `lift` does, on the device of `beside`.
    """
    lifted = [lift(x, beside) for x in operands]
    if dtype is None:
        dtype = common_dtype(lifted)
    same = [as_tensor(x, beside, dtype) for x in lifted]
    shape = nodes.broadcast_shapes(*(x.shape for x in same))
    return tuple(x.expand(shape) for x in same)


def as_tensor(value: Tensor | Scalar | Node, beside: Tensor, dtype: DType) -> Tensor:
    """An operand as a tensor of `dtype`; a scalar becomes one of shape ()."""
    if isinstance(value, TensorLike):
        return value.cast(dtype)
    return type(beside)._make(as_node(value, dtype), beside.device)


def float_dtype(dtype: DType) -> DType:
    """The dtype of a float function's result: the float32 default for integers and bools."""
    return dtype if dtype.kind == "float" else default_float()


def accumulator(dtype: DType) -> DType:
    """The dtype that an operation on `dtype` computes in: float32 for the narrower floats.

    Raises DTypeError for a dtype that is not computed with.
    """
    check_computed(dtype)
    return nodes.accumulator(dtype)


def through_float32(function: F) -> F:
    """Wrap a function of several ops so that narrow floats are rounded once, at the end.

    Integers and bools become float32; float16 and bfloat16 are computed in float32.
    """

    @wraps(function)
    def wrapped(x: TensorLike, *args: Any, **kwargs: Any) -> Any:
        dtype = float_dtype(x.dtype)
        check_computed(dtype)
        if dtype.bits >= 32:
            return function(x.cast(dtype), *args, **kwargs)
        return function(x.cast(dtypes.float32), *args, **kwargs).cast(dtype)

    return wrapped  # type: ignore[return-value]
