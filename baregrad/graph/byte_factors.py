"""Products of bytes as groups of warps multiply them: both factors lie along what is summed.

Those units read 8-bit floats and integers as they are, but only rows of what is summed. So a
factor that lies across is stored turned first, which many results share; and what was stored as
16-bit floats, for machines that multiply no narrower ones, is read as the bytes it was made of.
"""

from __future__ import annotations

from baregrad.dtypes import DType, dtypes
from baregrad.graph.traced import Traced, rewrite
from baregrad.graph.views import in_memory
from baregrad.ir.core.node import Node, cast
from baregrad.ir.core.op import Ops
from baregrad.target import AnyTarget

# Results that share a factor, along either side, and steps of a sum that are worth it.
_LEAST_SIDE, _LEAST_DEPTH = 64, 128
_FLOATS = (dtypes.float8_e4m3fn, dtypes.float8_e5m2)
_INTS = (dtypes.int8, dtypes.uint8)
_STEPS = 32
_VIEWS = (Ops.EXPAND, Ops.RESHAPE, Ops.PERMUTE)


def has_bytes(target: AnyTarget) -> bool:
    """Whether groups of warps of a machine multiply 8-bit floats and integers."""
    return target.kind == "gpu" and all(
        target.multiplies_in_groups(dtype.name, _STEPS) for dtype in (*_FLOATS, *_INTS)
    )


def _fit(node: Node) -> Node | None:
    """A sum of products of bytes along its last axis, of factors that lie along it."""
    product = node.src[0]
    last = len(product.shape) - 1
    if node.arg.monoid.primitive is not Ops.ADD or node.arg.axes != (last,):
        return None
    if product.op is not Ops.MUL or product.dtype not in (dtypes.float32, dtypes.int32):
        return None
    bases = [_base(side) for side in product.src]
    kinds = [dtypes.bool if base is None else base.dtype for base in bases]
    floats = all(kind in _FLOATS for kind in kinds) and product.dtype is dtypes.float32
    ints = kinds[0] is kinds[1] and kinds[0] in _INTS and product.dtype is dtypes.int32
    if not (floats or ints) or not _is_large(product, [_rows(side) for side in product.src]):
        return None
    sides = tuple([_along(side) for side in product.src])
    if sides == product.src:
        return None
    return node.replace(src=(product.replace(src=sides), *node.src[1:]))


def _base(side: Node) -> Node | None:
    """The bytes that a factor shows and widens, however it is turned and kept; None for others."""
    passed = list[DType]()
    while side.dtype.bits != 8:
        is_kept = side.op is Ops.CONTIGUOUS and side.dtype is dtypes.float16
        if not (is_kept or side.op in _VIEWS or side.op is Ops.CAST):
            return None
        passed.append(side.dtype)
        side = side.src[0]
    return side if all(_holds(each, side.dtype) for each in passed) else None


def _holds(wide: DType, narrow: DType) -> bool:
    """Whether a dtype has all numbers of one of 8 bits."""
    if wide.bits < 16 or wide.is_float:
        return wide.bits >= 16
    return narrow.kind == "uint" or (narrow.kind == wide.kind == "int")


def _rows(side: Node) -> tuple[int, ...]:
    """The axes along which a factor has more than one element of its own."""
    while side.op in (Ops.CAST, Ops.EXPAND):
        side = side.src[0]
    return tuple([axis for axis, extent in enumerate(side.shape[:-1]) if extent != 1])


def _is_large(product: Node, own: list[tuple[int, ...]]) -> bool:
    """Whether either side has rows of its own, and sums are long enough."""
    shape = product.shape
    if not all(isinstance(extent, int) for extent in shape):
        return False
    # Copies that threads need not wait for end with a step of an instruction.
    if shape[-1] < _LEAST_DEPTH or shape[-1] % _STEPS:
        return False
    for mine, other in (own, own[::-1]):
        count = 1
        for axis in mine:
            count *= 1 if axis in other else shape[axis]
        if count < _LEAST_SIDE:
            return False
    return True


def _along(side: Node) -> Node:
    """A factor whose bytes lie along its last axis: as it shows them, or stored so."""
    views, node = list[Node](), side
    while node.op in (Ops.EXPAND, Ops.CAST) or (node.op is Ops.RESHAPE and _keeps_last(node)):
        if node.op is not Ops.CAST:
            views.append(node)
        node = node.src[0]
    found = _as_bytes(node)
    if not _lies_along(found):
        found = Node(Ops.CONTIGUOUS, found.dtype, (found,))
    for view in reversed(views):
        found = view.replace(dtype=found.dtype, src=(found, *view.src[1:]))
    return cast(found, side.dtype)


def _as_bytes(node: Node) -> Node:
    """Views of what was widened, of the bytes that it was made of instead; kept, if it was."""
    views, is_kept = list[Node](), False
    while node.op in _VIEWS or node.dtype.bits != 8:
        if node.op in _VIEWS:
            views.append(node)
        is_kept = is_kept or node.op is Ops.CONTIGUOUS
        node = node.src[0]
    if is_kept:
        node = in_memory(node)
    for view in reversed(views):
        node = view.replace(dtype=node.dtype, src=(node, *view.src[1:]))
    return node


def _keeps_last(node: Node) -> bool:
    """Whether a RESHAPE has the last axis of what it is of, and no other in it."""
    return bool(node.shape and node.src[0].shape and node.shape[-1] == node.src[0].shape[-1])


def _lies_along(node: Node) -> bool:
    """Whether the last axis of some views is that of what they are of."""
    last = len(node.shape) - 1
    while node.op in _VIEWS:
        if node.op is Ops.PERMUTE:
            last = node.arg[last]
        elif node.op is Ops.RESHAPE:
            if last != len(node.shape) - 1 or not _keeps_last(node):
                return False
            last = len(node.src[0].shape) - 1
        node = node.src[0]
    return last == len(node.shape) - 1


def _walk(order: list[Node], changed: dict[Node, Node]) -> Node:
    return rewrite(order, _fit, Ops.REDUCE.bit, changed)


BYTE_FACTORS = Traced(
    "byte_factors", "groups of warps multiply bytes that lie along what is summed", _walk,
    ("reductions",),
)  # fmt: skip
