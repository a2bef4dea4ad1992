"""What linear algebra takes: floating-point matrices, and how results get gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from baregrad.base.errors import DTypeError, LinAlgError, ShapeError
from baregrad.dtypes import dtypes
from baregrad.ir.core.attrs import Slice
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.linalg.blocks import is_captured
from baregrad.tensor import Tensor
from baregrad.tensor.array import grad_mode, nodes
from baregrad.tensor.array.core import check_shape_is_int
from baregrad.tensor.array.link import session
from baregrad.tensor.array.operands import one_device
from baregrad.tensor.array.views import Pulled, twin


def check_tensors(what: str, *values: object) -> None:
    """Raise DTypeError unless all are tensors."""
    for x in values:
        if not isinstance(x, Tensor):
            raise DTypeError(f"{what} is of tensors", found=f"{type(x).__name__} {x!r:.40}")


_REAL = (dtypes.float32, dtypes.float64)
_ALSO_COMPLEX = (*_REAL, dtypes.complex64, dtypes.complex128)


def check_matrices(
    what: str, *tensors: Tensor, square: bool = False, also_complex: bool = False
) -> None:
    """Raise unless tensors are matrices, or batches of them, of one floating-point dtype.

    square: whether the first is to have as many rows as columns. also_complex: whether numbers may
    be complex.
    """
    check_tensors(what, *tensors)
    for x in tensors:
        if x.ndim < 2:
            raise ShapeError(
                f"{what} is of matrices, or batches of them", found=f"shape {list(x.shape)}",
                wanted="two axes or more",
            )  # fmt: skip
        if x.dtype not in (_ALSO_COMPLEX if also_complex else _REAL):
            raise DTypeError(
                f"{what} is of float32{', float64 or complex' if also_complex else ' or float64'}",
                found=f"dtype {x.dtype}",
                hint="cast it first, for example with float()",
            )  # fmt: skip
        if x.dtype is not tensors[0].dtype:
            raise DTypeError(
                f"{what} is of one dtype", found=f"{tensors[0].dtype} and {x.dtype}"
            )
        check_shape_is_int(x.shape, what)
    one_device(tensors)
    rows, columns = tensors[0].shape[-2:]
    if square and rows != columns:
        raise ShapeError(f"{what} is of square matrices", found=f"shape {list(tensors[0].shape)}")


def batch(x: Tensor) -> Tensor:
    """x (..., m, n) without its gradients, as (B, m, n)."""
    return x.detach().reshape(math.prod(x.shape[:-2]), *x.shape[-2:])


def broadcast_batches(*tensors: Tensor) -> list[Tensor]:
    """Matrices with leading axes that are broadcast to each other's."""
    shape = nodes.broadcast_shapes(*(x.shape[:-2] for x in tensors))
    return [x if x.shape[:-2] == shape else x.expand(*shape, *x.shape[-2:]) for x in tensors]


def check_equations(A: Tensor, B: Tensor) -> list[Tensor]:  # noqa: N803 - PyTorch's names
    """Return A and B with leading axes broadcast; raise unless their rows are as many."""
    if A.shape[-2] != B.shape[-2]:
        raise ShapeError(
            "the rows of a system of equations are as many as those of its matrix",
            found=f"{list(A.shape)} and {list(B.shape)}",
        )
    return broadcast_batches(A, B)


def refuse_if(wrong: Callable[[], Tensor], message: str, hint: str) -> None:
    """Raise LinAlgError if any of some bools, or integers, is true; where nobody can look, pass."""
    if session().watching.downloads:
        return
    found = wrong()
    if not is_captured(found) and bool(found.numpy().any()):
        raise LinAlgError(message, hint=hint)


def linked(
    value: Tensor, sources: Sequence[Tensor], pull: Callable[[Tensor, Tensor], Sequence[Any]]
) -> Tensor:
    """`value` as a function of `sources`, whose gradients `pull` makes of the value and its own.

    `pull(value, gradient)` gives a gradient for each source, of which gradients can be taken again
    if it is made of the value and the sources.
    """
    if not grad_mode.grad_enabled() or not any(x.requires_grad for x in sources):
        return value
    if value.is_complex() or any(x.is_complex() for x in sources):
        return _linked_pairs(value, sources, pull)
    marks = tuple(twin(x.node) for x in sources)
    below = value.detach().node
    for mark in marks:
        # Chosen nowhere: it says what the value depends on.
        if 0 in mark.shape:
            continue
        corner = nodes.reshape(nodes.shrink(mark, (Slice(0, 1),) * len(mark.shape)), ())
        below = nodes.alu(Ops.WHERE, const(False, dtypes.bool), corner, below)
    held: list[Node] = []

    def rule(gradient: Node) -> tuple[Node, ...]:
        made = [Tensor._make(node, value.device, True) for node in (held[0], gradient)]
        # Whoever asked for it may take its gradient, whatever is recorded meanwhile.
        with grad_mode.enable_grad():
            found = pull(made[0], made[1])
            return tuple(
                nodes.cast(nodes.sum_to(part.node, x.shape), x.dtype)
                for part, x in zip(found, sources, strict=True)
            )

    marked = Node(Ops.DETACH, below.dtype, (below,), Pulled(marks, rule))
    held.append(marked)
    return Tensor._make(marked, value.device, True)


def _linked_pairs(
    value: Tensor, sources: Sequence[Tensor], pull: Callable[[Tensor, Tensor], Sequence[Any]]
) -> Tensor:
    """`linked` of complex tensors: gradients are pairs of the derivatives by both parts."""
    is_complex = value.is_complex()

    def pairs_of(x: Tensor) -> Tensor:
        return x.view_as_real() if x.is_complex() else x

    def pull_pairs(found: Tensor, gradient: Tensor) -> list[Tensor]:
        if is_complex:
            found, gradient = found.view_as_complex(), gradient.contiguous().view_as_complex()
        parts = pull(found, gradient)
        return [
            pairs_of(part) if x.is_complex() or not part.is_complex() else part.real
            for part, x in zip(parts, sources, strict=True)
        ]

    made = linked(pairs_of(value), [pairs_of(x) for x in sources], pull_pairs)
    return made.view_as_complex() if is_complex else made
