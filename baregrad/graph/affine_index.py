"""Integer arrays that count along one of their axes: IOTA through views and simple arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType

from baregrad.graph.views import constant_of
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.core.shape import is_one

_DEPTH = 12  # nodes between an array and its IOTA


@dataclass(frozen=True, slots=True)
class AffineIndex:
    """An array of integers that is start + step * (place along `axis`); axis -1: constant."""

    axis: int
    start: int
    step: int


def affine_index_of(node: Node) -> AffineIndex | None:
    """What `node` is if it counts along one of its axes; never wraps around in its dtype."""
    chain: list[Node] = []
    while node.op is not Ops.IOTA:
        if len(chain) > _DEPTH or not node.src:
            return None
        chain.append(node)
        node = _counting_operand(node)
    found: AffineIndex | None = AffineIndex(0, 0, 1)
    extent = node.shape[0]
    for above in reversed(chain):
        rule = _RULES.get(above.op)
        if rule is None or found is None:
            return None
        found = rule(above, found)
    if found is None or not _representable(found, extent, [node, *chain]):
        return None
    return found


def _counting_operand(node: Node) -> Node:
    """The operand that is not a constant."""
    if len(node.src) == 2 and constant_of(node.src[0]) is not None:
        return node.src[1]
    return node.src[0]


def _representable(found: AffineIndex, extent: Dim, chain: list[Node]) -> bool:
    most = max(abs(found.start), abs(found.start + found.step * index.upper(extent)))
    least = min(node.dtype.bits for node in chain)
    signed = all(node.dtype.kind == "int" for node in chain)
    low = min(found.start, found.start + found.step * index.upper(extent))
    return most < 1 << (least - 1) and (signed or low >= 0)


def _through_reshape(node: Node, found: AffineIndex) -> AffineIndex | None:
    """Axes of extent 1 that come and go."""
    old, new = node.src[0].shape, node.shape
    kept_old = [axis for axis, extent in enumerate(old) if not is_one(extent)]
    kept_new = [axis for axis, extent in enumerate(new) if not is_one(extent)]
    if [old[axis] for axis in kept_old] != [new[axis] for axis in kept_new]:
        return None
    if found.axis not in kept_old:
        return None
    return AffineIndex(kept_new[kept_old.index(found.axis)], found.start, found.step)


def _through_shrink(node: Node, found: AffineIndex) -> AffineIndex | None:
    piece = node.arg[found.axis]
    if not isinstance(piece.start, int):
        return None
    start = found.start + found.step * piece.start
    return AffineIndex(found.axis, start, found.step * piece.step)


def _through_flip(node: Node, found: AffineIndex) -> AffineIndex | None:
    if found.axis not in node.arg:
        return found
    extent = node.shape[found.axis]
    if not isinstance(extent, int):
        return None
    return AffineIndex(found.axis, found.start + found.step * (extent - 1), -found.step)


def _through_add(node: Node, found: AffineIndex) -> AffineIndex | None:
    constants = [constant_of(child) for child in node.src]
    value = next((c for c in constants if c is not None), None)
    if value is None:
        return None
    start, step = found.start, found.step
    if node.op is Ops.ADD:
        return AffineIndex(found.axis, start + int(value.arg), step)
    if constants[0] is not None:
        return AffineIndex(found.axis, int(value.arg) - start, -step)
    return AffineIndex(found.axis, start - int(value.arg), step)


def _through_cast(node: Node, found: AffineIndex) -> AffineIndex | None:
    return found if node.dtype.kind in ("int", "uint") else None


_RULES: MappingProxyType[Op, Callable[[Node, AffineIndex], AffineIndex | None]] = MappingProxyType(
    {
        Ops.RESHAPE: _through_reshape,
        Ops.EXPAND: lambda node, found: found,
        Ops.PERMUTE: lambda node, found: AffineIndex(
            node.arg.index(found.axis), found.start, found.step
        ),
        Ops.SHRINK: _through_shrink,
        Ops.FLIP: _through_flip,
        Ops.ADD: _through_add,
        Ops.SUB: _through_add,
        Ops.CAST: _through_cast,
    }
)
