"""Training by 8-bit floats: linear layers whose products are of them, and of their gradients.

Each operand is divided by a scale, so that its largest magnitude is the largest of the dtype, and
rounded to e4m3, gradients to e5m2; products are summed in float32 and multiplied by both scales.
The scales are of the values at hand, one for each operand: nothing is kept from step to step.
Source: P. Micikevicius et al., "FP8 formats for deep learning", 2022.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from baregrad.base.errors import ArgumentError, DTypeError, ShapeError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Ops
from baregrad.nn.layers import Linear
from baregrad.nn.module import Module
from baregrad.tensor import Tensor
from baregrad.tensor.array import nodes
from baregrad.tensor.array.operands import one_device, result
from baregrad.tensor.array.views import Pulled, twin
from baregrad.tensor.ops.products import contract

F32 = dtypes.float32
VALUES, GRADIENTS = dtypes.float8_e4m3fn, dtypes.float8_e5m2


class _Scaled(NamedTuple):
    """A matrix of 8-bit floats, and the float32 that each is to be multiplied by.

    They are kept as the float16 that they are: so matrix units read them as they lie.
    """

    codes: Node
    scale: Node

    @property
    def turned(self) -> _Scaled:
        """The transposed matrix."""
        return _Scaled(nodes.permute(self.codes, (1, 0)), self.scale)


class Float8Linear(Linear):
    """`Linear` by products of e4m3, and of e5m2 for gradients, one scale for each operand.

    Parameters and state are those of `Linear`: they stay in their own dtype.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Return x @ weight.T + bias; raises ShapeError and DTypeError."""
        return float8_linear(x, self.weight, self.bias)


def to_float8(module: Module, which: Callable[[str, Linear], bool] | None = None) -> Module:
    """Make the linear layers of a module, below it, those of 8-bit floats; return the module.

    `which` is asked with the path and the layer, as for leaving out a last layer. Parameters are
    kept, so optimisers may be made before or after. Raises ArgumentError for what is no module.
    """
    if not isinstance(module, Module):
        raise ArgumentError("to_float8 takes a module", found=f"{type(module).__name__}")
    for path, parent in list(module.named_modules()):
        for name, child in list(parent.named_children()):
            full = f"{path}.{name}" if path else name
            if type(child) is Linear and (which is None or which(full, child)):
                made = Float8Linear.__new__(Float8Linear)
                vars(made).update(vars(child))
                setattr(parent, name, made)
    return module


def float8_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x @ weight.T + bias: (..., I), (O, I), (O) -> (..., O), by products of 8-bit floats.

    The result has the dtype of `x`, and gradients those of what they are of. Rows of zeros stay
    so; what holds an infinity or NaN gives NaN. Raises ShapeError for shapes that do not fit,
    DTypeError for other dtypes than floats of 16 or 32 bits.
    """
    if weight.ndim != 2 or not x.ndim or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            "a linear layer takes (..., inputs) and (outputs, inputs)",
            found=f"{list(x.shape)} and {list(weight.shape)}",
        )
    for each in (x, weight):
        if not each.dtype.is_float or each.dtype.bits not in (16, 32):
            raise DTypeError(
                "products of 8-bit floats are of floats", found=each.dtype,
                wanted="float32, bfloat16 or float16",
            )  # fmt: skip
    one_device((x, weight))
    # Marked, so that views made of them do not pass them by.
    inputs, factors = twin(x.node), twin(weight.node)
    rows = _matrix(inputs)
    left, right = _scaled(rows, VALUES), _scaled(factors, VALUES)
    shape = (*x.shape[:-1], weight.shape[0])
    out = nodes.cast(nodes.reshape(_product(left, right), shape), x.dtype)

    def pull(gradient: Node) -> tuple[Node, ...]:
        given = _scaled(_matrix(gradient), GRADIENTS)
        to_inputs = nodes.reshape(_product(given, right.turned), inputs.shape)
        to_factors = _product(given.turned, left.turned)
        return nodes.cast(to_inputs, x.dtype), nodes.cast(to_factors, weight.dtype)

    marked = Node(Ops.DETACH, out.dtype, (out,), Pulled((inputs, factors), pull))
    product = result(marked, x, weight)
    return product if bias is None else product + bias


def _matrix(x: Node) -> Node:
    """A node's rows along its last axis."""
    count: Dim = 1
    for extent in x.shape[:-1]:
        count = index.mul(count, extent)
    return nodes.reshape(x, (index.as_dim(count), x.shape[-1]))


def _scaled(x: Node, dtype: DType) -> _Scaled:
    """A matrix as 8-bit floats, the largest of which is the largest that there is."""
    wide = nodes.cast(x, F32)
    largest = nodes.reduce(Ops.MAX, Node(Ops.ABS, F32, (wide,)), (0, 1))
    is_zero = nodes.alu(Ops.CMPEQ, largest, const(0.0, F32))
    largest = nodes.alu(Ops.WHERE, is_zero, const(1.0, F32), largest)
    scale = nodes.div(largest, const(dtype.max, F32))
    codes = nodes.cast(nodes.div(wide, nodes.broadcast(scale, x.shape)), dtype)
    kept = nodes.cast(codes, dtypes.float16)
    return _Scaled(Node(Ops.CONTIGUOUS, kept.dtype, (kept,)), scale)


def _product(left: _Scaled, right: _Scaled) -> Node:
    """The sums over the last axes of two matrices, in float32."""
    sums = contract(
        nodes.unsqueeze(left.codes, 1), nodes.unsqueeze(right.codes, 0), (2,), F32
    )
    return nodes.mul(sums, nodes.broadcast(nodes.mul(left.scale, right.scale), sums.shape))
