"""Sums whose accumulators are kept in scratch memory while the loop over their panels runs."""

from __future__ import annotations

from baregrad.ir.core.attrs import StageInfo
from baregrad.ir.core.node import Node, make_node, rebuild
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.kernel.facts.axis_table import AxisTable
from baregrad.kernel.instructions.instruction import (
    OCTET,
    is_narrow,
    scaled_bits,
    scaled_product,
)
from baregrad.kernel.instructions.mma_sync import TILE


def in_parts(node: Node, at: Node) -> Node:
    """A REDUCE along `at` whose axes inside of that are reduced first, in registers."""
    own = [child for child in node.src if child.op is Ops.RANGE]
    inner = [axis for axis in own if axis.arg.id > at.arg.id and not axis.arg.is_tile]
    if not inner:
        return node
    # What is spread over registers is added up in the innermost loops.
    inner += [axis for axis in own if axis.arg.is_tile]
    outer = [axis for axis in own if axis not in inner]
    part = make_node(Ops.REDUCE, node.dtype, (node.src[0], *inner), node.arg)
    return make_node(Ops.REDUCE, node.dtype, (part, *outer), node.arg)


def in_panels(kernel: Node, table: AxisTable) -> Node:
    """A KERNEL whose sums of scaled products are of panels' sums, if a matrix unit makes these.

    Single warps' sums of 8-bit floats are so, scaled or not; those of groups are told apart later.
    """
    if table.gpu is None or not table.matrix:
        return kernel
    by_warps = table.matrix == table.gpu.warp_lanes

    def visit(node: Node) -> Node | None:
        if node.op is not Ops.REDUCE or node.arg.monoid.primitive is not Ops.ADD:
            return None
        product, scale = scaled_product(node, scaled_bits(table.gpu))
        if scale is None:
            octets = product.op is Ops.MUL and all(is_narrow(each, OCTET) for each in product.src)
            return _by_panels(node) if by_warps and octets else None
        own = [child for child in node.src if child.op is Ops.RANGE]
        inner = [axis for axis in own if axis not in scale.ranges]
        outer = [axis for axis in own if axis in scale.ranges]
        part = make_node(Ops.REDUCE, node.dtype, (product, *inner), node.arg)
        value = make_node(Ops.MUL, node.dtype, (part, scale))
        return make_node(Ops.REDUCE, node.dtype, (value, *outer), node.arg)

    return rebuild(kernel, visit)


def _by_panels(node: Node) -> Node | None:
    """A REDUCE by a warp's unit, of 8-bit floats, as one along its outermost axis of its parts."""
    own = sorted([child for child in node.src if child.op is Ops.RANGE], key=lambda a: a.arg.id)
    if len(own) < 2 or not any(axis.arg.bind == TILE for axis in own):
        return None
    part = make_node(Ops.REDUCE, node.dtype, (node.src[0], *own[1:]), node.arg)
    return make_node(Ops.REDUCE, node.dtype, (part, own[0]), node.arg)


def is_of_panels(value: Node) -> bool:
    """Whether a value is what a matrix unit summed of a panel, scaled: one rounding adds it up."""
    part = value.src[0] if value.op is Ops.MUL else value
    own = part.src[1:] if part.op is Ops.REDUCE and part is not value else ()
    return any(axis.op is Ops.RANGE and axis.arg.bind == TILE for axis in own)


def kept_in_scratch(
    node: Node, at: Node, axes: list[Node], first: int, matrix: tuple[Node, ...]
) -> Node | None:
    """The element in scratch memory of a reduction along `at` for all of `axes`, or None.

    The axes inside `at` are reduced first, in registers, and their result is added. first: from
    where on ids of the copies' axes are free. matrix: the axes that a matrix unit does, which are
    all within such a sum.
    """
    own = [child for child in node.src if child.op is Ops.RANGE]
    tiles = {axis for axis in node.ranges if axis.arg.is_tile}
    if at not in own or not node.ranges.issuperset(axes):
        return None
    if node.arg.monoid.primitive is None or not tiles.issubset(axes):
        return None
    if not set(matrix) <= {*own, *axes}:
        return None
    if not matrix:
        node = in_parts(node, at)
    elif any(a.arg.id > at.arg.id and not a.arg.is_tile and a not in matrix for a in own):
        return None
    # The axes of the kept array in place of the loops around it.
    binds = {axis: TILE if axis in matrix else axis.arg.bind for axis in axes}
    args = [axis.arg._replace(id=first + axis.arg.id, bind=binds[axis]) for axis in axes]
    copies = tuple([axis.replace(arg=arg) for axis, arg in zip(axes, args, strict=True)])
    changed = dict(zip(axes, copies, strict=True))
    for axis in matrix:
        if axis in own:
            changed[axis] = axis.replace(arg=axis.arg._replace(bind=TILE))
    value = substitute(node, changed)
    stage = make_node(Ops.STAGE, node.dtype, (value, *copies), StageInfo("scratch"))
    return make_node(Ops.INDEX, stage.dtype, (stage, *axes))
