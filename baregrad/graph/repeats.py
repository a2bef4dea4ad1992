"""Which axes of a value only repeat its elements, and along which its elements are neighbours.

And what an element of a value that is reduced is made of: arrays, and operations.
"""

from __future__ import annotations

from math import gcd, prod
from typing import Any

from baregrad.graph.views import DATA, constant_of
from baregrad.ir.analysis.regroup import same_axes
from baregrad.ir.core import index
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import ELEMENTWISE, MOVEMENT, Ops, mask_of

_DEPTH = 16  # nodes that are looked at
_MOST_SEEN = 64  # the same for how arrays lie
_MOST_MADE_OF = 64  # the same for what a value is made of
_EXPAND = Ops.EXPAND.bit
_ELEMENTWISE = mask_of(ELEMENTWISE)
_BELOW = _ELEMENTWISE | mask_of(MOVEMENT)
# What takes as long as so many additions.
_DEAR_WORK = 16
_DEAR = mask_of(
    (Ops.EXP, Ops.EXP_NEAR, Ops.EXP2, Ops.EXP2_NEAR, Ops.LOG, Ops.LOG2, Ops.SIN, Ops.COS, Ops.TANH,
     Ops.ERF, Ops.GELU, Ops.GELU_NEAR, Ops.ATAN, Ops.POW)
)


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


def is_matrix_product(value: Node, axes: tuple[int, ...]) -> bool:
    """Whether a product is summed whose factors are each used for several results."""
    while value.op is Ops.CAST:
        value = value.src[0]
    if value.op is not Ops.MUL:
        return False
    free = [axis for axis, e in enumerate(value.shape) if axis not in axes and e != 1]
    return all(any(is_repeated(factor, axis) for axis in free) for factor in value.src)


def sides_of(product: Node, axes: tuple[int, ...]) -> tuple[int, int, int]:
    """How many results of a MUL that is summed over `axes` each factor alone has, and both.

    Rows, columns, and such products, at most.
    """
    left, right = product.src
    sides = [1, 1, 1]
    for axis, extent in enumerate(product.shape):
        if axis in axes or extent == 1:
            continue
        alone = is_repeated(right, axis), is_repeated(left, axis)
        sides[alone.index(True) if any(alone) else 2] *= index.upper(extent)
    rows, columns, both = sides
    return rows, columns, both


def neighbours(node: Node, axis: int, with_zeros: bool = False) -> int:
    """How many elements lie side by side along an axis, or a multiple, behind views and casts.

    with_zeros: there may be as many zeros beside them. 1 where views part them, where some extent
    is symbolic, or where the axis is not innermost.
    """
    count = node.shape[axis]
    while isinstance(count, int) and (node.op in MOVEMENT or node.op is Ops.CAST):
        below, shape = node.src[0], node.src[0].shape
        if node.op is Ops.CAST:
            pass
        elif node.op is Ops.PERMUTE:
            axis = node.arg[axis]
        elif node.op is Ops.SHRINK:
            kept = node.arg[axis]
            count = gcd(count, kept.start) if kept.step == 1 and kept.start.__class__ is int else 1
        elif node.op is Ops.RESHAPE:
            found = _fastest(shape, node.shape, axis)
            axis, count = (0, 1) if found is None else (found, gcd(count, shape[found]))
        elif node.op is Ops.WINDOW:
            count = 1 if axis in (node.arg.axis, len(node.shape) - 1) else count
        elif node.op is Ops.FLIP:
            count = 1 if axis in node.arg else count
        elif node.op is Ops.PAD and with_zeros:
            count = count if shape[axis] == count and not node.arg[axis].lo else 1
        elif node.op is not Ops.EXPAND or shape[axis] != count:
            return 1
        if count == 1:
            return 1
        node = below
    return count if isinstance(count, int) and axis == len(node.shape) - 1 else 1


def result_order(node: Node, chunk: int) -> tuple[int, ...] | None:
    """The order of axes in which a sum of products is best stored; None where that is its own.

    What is copied in chunks of neighbours along an axis is multiplied along that. If the innermost
    axis of the results is another one of the same factor, no two of its results would be stored
    together: then that axis is to be the innermost one.
    """
    value, summed = node.src[0], node.arg.axes
    kept = [axis for axis in range(len(value.shape)) if axis not in summed]
    long = [axis for axis in kept if value.shape[axis] != 1]
    for factor, other in (value.src, value.src[::-1]) if long else ():
        if is_repeated(factor, long[-1]) or not is_repeated(other, long[-1]):
            continue
        own = [axis for axis in long if is_repeated(other, axis)]
        found = [axis for axis in own if neighbours(factor, axis, True) % chunk == 0]
        if found and found[-1] != long[-1]:
            inner = kept.index(found[-1])
            return (*[axis for axis in range(len(kept)) if axis != inner], inner)
    return None


def _fastest(old: tuple[Any, ...], new: tuple[Any, ...], axis: int) -> int | None:
    """The axis of `old` along which an axis of `new` begins to run; None where that is none."""
    if any(extent.__class__ is not int for extent in (*old, *new)):
        return None
    step = prod(new[axis + 1 :])
    found = [place for place, extent in enumerate(old)
             if extent > 1 and prod(old[place + 1 :]) == step]  # fmt: skip
    return found[0] if found else None


def axis_before_reshape(old: tuple[Any, ...], new: tuple[Any, ...], axis: int) -> int | None:
    """The axis of `old` that a reshape leaves unchanged as `axis` of `new`; None for others."""
    return same_axes(old, new).get(axis)


def innermost(value: Node) -> int:
    """The axis along which neighbours lie in memory: the last one, or that of a permuted array."""
    found = set[int]()
    todo, seen = [(value, tuple(range(len(value.shape))))], set[Node]()
    while todo:
        node, axes = todo.pop()
        if node in seen or not axes or len(node.shape) != len(axes):
            continue
        seen.add(node)
        if node.op is Ops.PERMUTE:
            own = dict(zip(node.arg, axes, strict=True))
            todo.append((node.src[0], tuple([own[axis] for axis in range(len(axes))])))
        elif node.op in ELEMENTWISE and len(seen) < _MOST_SEEN:
            todo += [(child, axes) for child in node.src]
        elif node.op is not Ops.EXPAND:
            found.add(axes[last_axis(node.shape)])
    return found.pop() if len(found) == 1 else last_axis(value.shape)


def last_axis(shape: tuple[Any, ...]) -> int:
    """The last axis of several elements."""
    return max([axis for axis, extent in enumerate(shape) if extent != 1], default=0)


def is_of_several(value: Node, axes: tuple[int, ...]) -> bool:
    """Whether a value is computed from the elements of two arrays, as a loss is, and is no norm's.

    It is a norm's if a result of the row itself is in it, as in a softmax or a variance. What all
    rows share is an array as others are: nothing tells it from them where there is one row.
    """
    long = [axis for axis in axes if value.shape[axis] != 1]
    todo, seen, found = [value], set[Node](), set[Node]()
    while todo and len(seen) < _MOST_MADE_OF:
        node = todo.pop()
        if node in seen or not node.mask & DATA:
            continue
        seen.add(node)
        if node.shape == value.shape and all(is_repeated(node, axis) for axis in long):
            if node.mask & Ops.REDUCE.bit:
                return False
            continue
        if node.op.bit & _BELOW:
            todo += node.src
        elif node.op is not Ops.IOTA:
            found.add(node)
    return len(found) > 1


def work_of(value: Node, axes: tuple[int, ...]) -> int:
    """Operations for each element of a value that is reduced, 1 at least.

    Without those that need a result of the row itself: what normalises a row is made of sums that
    have the same other ones.
    """
    long = [axis for axis in axes if value.shape[axis] != 1]
    todo, seen, found = [value], set[Node](), 0
    while todo and len(seen) < _MOST_MADE_OF:
        node = todo.pop()
        if node in seen or not node.mask & DATA or not node.op.bit & _BELOW:
            continue
        seen.add(node)
        if node.shape == value.shape and all(is_repeated(node, axis) for axis in long):
            continue
        if node.op.bit & _ELEMENTWISE and not node.mask & Ops.REDUCE.bit:
            found += _DEAR_WORK if node.op.bit & _DEAR else 1
        todo += node.src
    return max(found, 1)
