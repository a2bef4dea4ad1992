"""Which axes of a value only repeat its elements."""

from __future__ import annotations

from typing import Any

from baregrad.graph.views import DATA, constant_of
from baregrad.ir.analysis.regroup import same_axes
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import ELEMENTWISE, Ops, mask_of

_DEPTH = 16  # nodes that are looked at
_EXPAND = Ops.EXPAND.bit
_ELEMENTWISE = mask_of(ELEMENTWISE)


def is_repeated(node: Node, axis: int) -> bool:
    """Whether all elements along an axis are one, as far as views and arithmetic tell."""
    # Operands of arithmetic that are still to be looked at.
    rest: list[tuple[Node, int]] = []
    for _ in range(_DEPTH):
        shape = node.shape
        mask = node.mask
        op = node.op
        if not shape or shape[axis] == 1:
            pass
        elif not mask & DATA and constant_of(node) is not None:
            pass
        elif not mask & _EXPAND:
            return False  # nothing below repeats anything
        elif op is Ops.EXPAND:
            below = node.src[0]
            if below.shape[axis] != 1:
                node = below
                continue
        elif op is Ops.RESHAPE:
            below = node.src[0]
            found = axis_before_reshape(below.shape, shape, axis)
            if found is None:
                return False
            node, axis = below, found
            continue
        elif op is Ops.PERMUTE:
            node, axis = node.src[0], node.arg[axis]
            continue
        elif op is Ops.FLIP or (
            op is Ops.WINDOW and axis != node.arg.axis and axis != len(shape) - 1
        ):
            node = node.src[0]
            continue
        elif op.bit & _ELEMENTWISE:
            *others, node = node.src
            rest += [(child, axis) for child in others]
            continue
        else:
            return False
        if not rest:
            return True
        node, axis = rest.pop()
    return False


def sides_of(product: Node, axes: tuple[int, ...]) -> tuple[int, int, int] | None:
    """How many results of a MUL that is summed over `axes` each factor alone has, and both.

    Rows, columns, and such products; None where some extent is symbolic.
    """
    left, right = product.src
    sides = [1, 1, 1]
    for axis, extent in enumerate(product.shape):
        if not isinstance(extent, int):
            return None
        if axis in axes or extent == 1:
            continue
        alone = is_repeated(right, axis), is_repeated(left, axis)
        sides[alone.index(True) if any(alone) else 2] *= extent
    rows, columns, both = sides
    return rows, columns, both


def axis_before_reshape(old: tuple[Any, ...], new: tuple[Any, ...], axis: int) -> int | None:
    """The axis of `old` that a reshape leaves unchanged as `axis` of `new`; None for others."""
    return same_axes(old, new).get(axis)
