"""Which axes of a value only repeat its elements."""

from __future__ import annotations

from typing import Any

from baregrad.graph.views import DATA, constant_of, is_one
from baregrad.ir.node import Node
from baregrad.ir.op import ELEMENTWISE, Ops, mask_of
from baregrad.ir.regroup import same_axes

_DEPTH = 16  # nodes that are looked at
_EXPAND = Ops.EXPAND.bit
_ELEMENTWISE = mask_of(ELEMENTWISE)


def is_repeated(node: Node, axis: int) -> bool:
    """Whether all elements along an axis are one, as far as views and arithmetic tell."""
    stack = [(node, axis)]
    seen = 0
    while stack:
        node, axis = stack.pop()
        seen += 1
        if seen > _DEPTH:
            return False
        shape = node.shape
        if not shape:
            continue
        extent = shape[axis]
        if extent.__class__ is int and extent == 1:
            continue
        mask = node.mask
        if not mask & DATA and constant_of(node) is not None:
            continue
        if not mask & _EXPAND:
            return False  # nothing below repeats anything
        op = node.op
        if op is Ops.EXPAND:
            if not is_one(node.src[0].shape[axis]):
                stack.append((node.src[0], axis))
        elif op is Ops.PERMUTE:
            stack.append((node.src[0], node.arg[axis]))
        elif op is Ops.RESHAPE:
            found = axis_before_reshape(node.src[0].shape, shape, axis)
            if found is None:
                return False
            stack.append((node.src[0], found))
        elif op is Ops.FLIP:
            stack.append((node.src[0], axis))
        elif op is Ops.WINDOW and axis not in (node.arg.axis, len(shape) - 1):
            stack.append((node.src[0], axis))
        elif op.bit & _ELEMENTWISE:
            stack.extend([(child, axis) for child in node.src])
        else:
            return False
    return True


def axis_before_reshape(old: tuple[Any, ...], new: tuple[Any, ...], axis: int) -> int | None:
    """The axis of `old` that a reshape leaves unchanged as `axis` of `new`; None for others."""
    return same_axes(old, new).get(axis)
