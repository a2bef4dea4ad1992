"""Tensor-level graphs by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import monoid
from baregrad.ir.core.attrs import Pad, Param, Reduce, Scan, Scatter, Slice, Window
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.node import alu as make_alu
from baregrad.ir.core.op import Ops

F32, I64 = dtypes.float32, dtypes.int64


class A:
    """A tensor-level value with NumPy-like operators."""

    def __init__(self, node: Node) -> None:
        self.node = node

    @property
    def shape(self) -> tuple[Any, ...]:
        return self.node.shape

    # elementwise
    def alu(self, op: Any, *others: Any) -> A:
        operands = [self, *(o if isinstance(o, A) else value(o, self.node.dtype) for o in others)]
        shape = _broadcast([x.shape for x in operands])
        return A(make_alu(op, *(x.to(shape).node if x.shape else x.node for x in operands)))

    def __add__(self, other: Any) -> A:
        return self.alu(Ops.ADD, other)

    def __sub__(self, other: Any) -> A:
        return self.alu(Ops.SUB, other)

    def __mul__(self, other: Any) -> A:
        return self.alu(Ops.MUL, other)

    def __truediv__(self, other: Any) -> A:
        return self.alu(Ops.DIV, other)

    def __lt__(self, other: Any) -> A:
        return self.alu(Ops.CMPLT, other)

    def eq(self, other: Any) -> A:
        return self.alu(Ops.CMPEQ, other)

    def maximum(self, other: Any) -> A:
        return self.alu(Ops.MAX, other)

    def where(self, yes: A, no: Any) -> A:
        no = no if isinstance(no, A) else value(no, yes.node.dtype)
        shape = _broadcast([x.shape for x in (self, yes, no)])
        nodes = [x.to(shape).node if x.shape else x.node for x in (self, yes, no)]
        return A(make_alu(Ops.WHERE, *nodes))

    def exp(self) -> A:
        return A(make_alu(Ops.EXP, self.node))

    def log(self) -> A:
        return A(make_alu(Ops.LOG, self.node))

    def sqrt(self) -> A:
        return A(make_alu(Ops.SQRT, self.node))

    def reciprocal(self) -> A:
        return A(make_alu(Ops.RECIPROCAL, self.node))

    def relu(self) -> A:
        return self.maximum(0)

    def cast(self, dtype: DType) -> A:
        return A(Node(Ops.CAST, dtype, (self.node,)))

    # movement
    def _op(self, op: Any, arg: Any) -> A:
        return A(Node(op, self.node.dtype, (self.node,), arg))

    def reshape(self, *shape: Any) -> A:
        return self if shape == self.shape else self._op(Ops.RESHAPE, shape)

    def permute(self, *axes: int) -> A:
        return self._op(Ops.PERMUTE, axes)

    def expand(self, *shape: Any) -> A:
        return self if shape == self.shape else self._op(Ops.EXPAND, shape)

    def to(self, shape: tuple[Any, ...]) -> A:
        """Broadcast."""
        missing = len(shape) - len(self.shape)
        return self.reshape(*(1,) * missing, *self.shape).expand(*shape)

    def pad(self, *pads: Any) -> A:
        return self._op(Ops.PAD, tuple(p if isinstance(p, Pad) else Pad(*p) for p in pads))

    def shrink(self, *cuts: Any) -> A:
        return self._op(Ops.SHRINK, tuple(Slice(*c) for c in cuts))

    def flip(self, *axes: int) -> A:
        return self._op(Ops.FLIP, axes)

    def window(self, axis: int, taps: int, stride: int = 1, dilation: int = 1) -> A:
        return self._op(Ops.WINDOW, Window(axis, taps, stride, dilation, self.shape[axis]))

    def fold(self, axis: int, extent: Any, stride: int = 1, dilation: int = 1) -> A:
        return self._op(Ops.FOLD, Window(axis, self.shape[-1], stride, dilation, extent))

    def contiguous(self) -> A:
        return A(Node(Ops.CONTIGUOUS, self.node.dtype, (self.node,)))

    # structure
    def reduce(self, op: Any, *axes: int, keep: bool = False) -> A:
        axes = tuple(sorted(a % len(self.shape) for a in (axes or range(len(self.shape)))))
        found = self._op(Ops.REDUCE, Reduce(monoid.primitive(op, self.node.dtype), axes))
        if keep:
            return found.reshape(*(1 if i in axes else e for i, e in enumerate(self.shape)))
        return found

    def sum(self, *axes: int, keep: bool = False) -> A:
        return self.reduce(Ops.ADD, *axes, keep=keep)

    def max(self, *axes: int, keep: bool = False) -> A:
        return self.reduce(Ops.MAX, *axes, keep=keep)

    def mean(self, *axes: int, keep: bool = False) -> A:
        count = 1
        for axis in axes or range(len(self.shape)):
            count *= self.shape[axis]
        return self.sum(*axes, keep=keep) * (1.0 / count)

    def scan(self, axis: int, op: Any = Ops.ADD) -> A:
        return self._op(Ops.SCAN, Scan(monoid.primitive(op, self.node.dtype), axis))

    def argmax(self, axis: int) -> tuple[A, A]:
        places = iota_along(self.shape, axis)
        arg = Reduce(monoid.arg_extreme(Ops.MAX, self.node.dtype), (axis,))
        whole = Node(Ops.REDUCE, self.node.dtype, (self.node, places.node), arg)
        first = Node(Ops.PROJ, self.node.dtype, (whole,), 0)
        return A(first), A(Node(Ops.PROJ, I64, (whole,), 1))

    def gather(self, *places: A) -> A:
        shape = _broadcast([p.shape for p in places])
        nodes = (self.node, *(p.to(shape).node for p in places))
        return A(Node(Ops.GATHER, self.node.dtype, nodes))

    def scatter(self, values: A, *places: A, op: Any = None) -> A:
        shape = _broadcast([p.shape for p in places])
        arg = Scatter(None if op is None else monoid.primitive(op, self.node.dtype))
        nodes = (self.node, values.to(shape).node, *(p.to(shape).node for p in places))
        return A(Node(Ops.SCATTER, self.node.dtype, nodes, arg))

    def __matmul__(self, other: A) -> A:
        m, k = self.shape
        n = other.shape[1]
        left = self.reshape(m, 1, k)
        right = other.permute(1, 0).reshape(1, n, k)
        return (left * right).sum(2)

    def softmax(self) -> A:
        e = (self - self.max(-1, keep=True)).exp()
        return e / e.sum(-1, keep=True)


def param(slot: int, *shape: Any, dtype: DType = F32) -> A:
    return A(Node(Ops.PARAM, dtype, (), Param(slot, tuple(shape))))


def value(number: Any, dtype: DType = F32) -> A:
    return A(const(number, dtype))


def iota(extent: Any, dtype: DType = I64) -> A:
    if isinstance(extent, Node):
        return A(Node(Ops.IOTA, dtype, (extent,)))
    return A(Node(Ops.IOTA, dtype, (), extent))


def iota_along(shape: Sequence[Any], axis: int) -> A:
    line = iota(shape[axis])
    beside = [e if i == axis % len(shape) else 1 for i, e in enumerate(shape)]
    return line.reshape(*beside).expand(*shape)


def _broadcast(shapes: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    ndim = max(map(len, shapes))
    padded = [(1,) * (ndim - len(s)) + tuple(s) for s in shapes]
    return tuple(next((e for e in axis if e != 1), 1) for axis in zip(*padded, strict=True))


def sink(*values: A) -> Node:
    return Node(Ops.SINK, dtypes.token, tuple(v.node for v in values))
