"""Views as index arithmetic: where element `idx` of a view lies in its source.

Each rule takes the view and one index per axis of it, and gives one index per axis of its source. A
view that holds zeros of its own (PAD) also gives the condition under which there is a source
element.
"""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

from baregrad.dtypes import dtypes
from baregrad.ir.analysis.regroup import reshape_groups, same_axes
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim, as_node
from baregrad.ir.core.node import Node, const, rebuild, toposort
from baregrad.ir.core.op import Op, Ops, mask_of
from baregrad.ir.core.shape import is_zero

Idx = tuple[Node, ...]
ZERO = const(0, dtypes.index)
_AFFINE_LIMIT = 64  # nodes of an integer expression that is tried as index arithmetic


def _permute(view: Node, idx: Idx) -> Idx:
    return taken(_permuted(view), (*idx, ZERO))


def _expand(view: Node, idx: Idx) -> Idx:
    return taken(_expanded(view), (*idx, ZERO))


def _shrink(view: Node, idx: Idx) -> Idx:
    found = []
    for cut, place in zip(view.arg, idx, strict=True):
        if cut.step != 1 or not is_zero(cut.start):
            place = as_node(index.add(index.mul(place, cut.step), cut.start))
        found.append(place)
    return tuple(found)


def _flip(view: Node, idx: Idx) -> Idx:
    found = list(idx)
    for axis in view.arg:
        last = index.sub(view.shape[axis], 1)
        found[axis] = as_node(index.sub(last, idx[axis]))
    return tuple(found)


def _window(view: Node, idx: Idx) -> Idx:
    window = view.arg
    found = list(idx[:-1])
    position = index.mul(idx[window.axis], window.stride)
    found[window.axis] = as_node(index.add(position, index.mul(idx[-1], window.dilation)))
    return tuple(found)


def _reshape(view: Node, idx: Idx) -> Idx:
    source, shape = view.src[0].shape, view.shape
    found: list[Node] = []
    for (first, last), (begin, end) in reshape_groups(source, shape):
        if last - first == 1 and end - begin == 1:
            found.append(idx[begin])
        elif last > first:
            offset = _offset(idx[begin:end], shape[begin:end])
            if last - first == 1:
                found.append(as_node(offset))
            else:
                found += [as_node(i) for i in index.unflatten(offset, source[first:last])]
    return tuple(found)


def _offset(places: Idx, shape: tuple[Any, ...]) -> Dim:
    """The row-major offset of an element; axes of extent 1 do not count."""
    counted: list[Node] = []
    extents = []
    for place, extent in zip(places, shape, strict=True):
        if place is not ZERO or extent != 1:
            counted.append(place)
            extents.append(extent)
    if len(counted) < 2:
        return counted[0] if counted else 0
    return index.from_linear(*index.flat_terms(counted, extents))


Rule = Callable[[Node, Idx], Idx]
VIEW_RULES: MappingProxyType[Op, Rule] = MappingProxyType(
    {
        Ops.RESHAPE: _reshape,
        Ops.PERMUTE: _permute,
        Ops.EXPAND: _expand,
        Ops.SHRINK: _shrink,
        Ops.FLIP: _flip,
        Ops.WINDOW: _window,
        Ops.DETACH: lambda view, idx: idx,
    }
)
VIEWS = mask_of(VIEW_RULES)


def through_pad(view: Node, idx: Idx) -> tuple[Node, Idx]:
    """(condition, source index) of element `idx` of a PAD."""
    conditions: list[Node] = []
    found: list[Node] = []
    for place, pad, extent in zip(idx, view.arg, view.src[0].shape, strict=True):
        inner: Dim = place if is_zero(pad.lo) else index.sub(place, pad.lo)
        if pad.interior:
            step = pad.interior + 1
            conditions.append(index.less(index.mod(inner, step), 1))
            inner = index.floordiv(inner, step)
        if not is_zero(pad.lo) or not is_zero(pad.hi) or pad.interior:
            conditions.append(index.at_least(inner, 0))
            conditions.append(index.less(inner, extent))
        found.append(as_node(inner))
    return index.both(*conditions), tuple(found)


def through_fold(fold: Node, idx: Idx, tap: Dim) -> tuple[Node, Idx]:
    """(condition, source index) of tap `tap` of element `idx` of a FOLD."""
    window = fold.arg
    positions = fold.src[0].shape[window.axis]
    offset = index.sub(idx[window.axis], index.mul(tap, window.dilation))
    conditions = []
    if window.stride != 1:
        conditions.append(index.less(index.mod(offset, window.stride), 1))
    place = index.floordiv(offset, window.stride)
    conditions.append(index.at_least(place, 0))
    conditions.append(index.less(place, positions))
    found = list(idx)
    found[window.axis] = as_node(place)
    return index.both(*conditions), (*found, as_node(tap))


# --- views that only move axes --------------------------------------------------------------------


def taken(axes: tuple[int, ...], whole: Idx) -> Idx:
    """The places at `axes` of an index behind which a 0 stands, for -1."""
    return tuple([whole[axis] for axis in axes])


def axes_of(view: Node) -> tuple[int, ...] | None:
    """For each axis of a view's source which axis of the view has its place; -1 for extent 1.

    None where a place takes arithmetic.
    """
    op = view.op
    if op is Ops.PERMUTE:
        return _permuted(view)
    if op is Ops.EXPAND:
        return _expanded(view)
    return _reshaped(view) if op is Ops.RESHAPE else None


def _permuted(view: Node) -> tuple[int, ...]:
    found = [0] * len(view.arg)
    for position, axis in enumerate(view.arg):
        found[axis] = position
    return tuple(found)


def _expanded(view: Node) -> tuple[int, ...]:
    source = view.src[0].shape
    return tuple(
        [-1 if e.__class__ is int and e == 1 else axis for axis, e in enumerate(source)]
    )


def _reshaped(view: Node) -> tuple[int, ...] | None:
    """Axes of extent 1 that come and go."""
    source = view.src[0].shape
    kept = {axis: place for place, axis in same_axes(source, view.shape).items()}
    if len(kept) + source.count(1) < len(source):
        return None
    return tuple([kept.get(axis, -1) for axis in range(len(source))])


# --- data-dependent indices -----------------------------------------------------------------------


def to_index(value: Node) -> Node:
    """An integer expression as an index node; index arithmetic where it provably never wraps."""
    if value.dtype is dtypes.index:
        return value
    if value.op is Ops.CONST:
        return const(int(value.arg), dtypes.index)
    if value.op is Ops.CAST and value.src[0].dtype is dtypes.index:
        inner = value.src[0]
        return inner if _fits(inner, value) else Node(Ops.CAST, dtypes.index, (value,))
    if value.mask & (Ops.INDEX.bit | Ops.REDUCE.bit | Ops.SCAN.bit) == 0:
        found = _affine(value)
        if found is not None:
            return found
    return Node(Ops.CAST, dtypes.index, (value,))


def _fits(exact: Node, value: Node) -> bool:
    """Whether every value of `exact` is representable in the integer dtype of `value`."""
    dtype = value.dtype
    if dtype.kind not in ("int", "uint"):
        return False
    low = -(1 << (dtype.bits - 1)) if dtype.kind == "int" else 0
    high = (1 << (dtype.bits - (dtype.kind == "int"))) - 1
    return index.lower(exact) >= low and index.upper(exact) <= high


_EXACT: MappingProxyType[Op, Callable[[Node, Node], Dim]] = MappingProxyType(
    {Ops.ADD: index.add, Ops.SUB: index.sub, Ops.MUL: index.mul}
)


def _affine(value: Node) -> Node | None:
    """The exact index expression of load-free integer arithmetic, or None."""
    nodes = toposort(value, enter=lambda n: n.dtype is not dtypes.index)
    if len(nodes) > _AFFINE_LIMIT:
        return None
    exact: dict[Node, Node] = {}
    for node in nodes:
        if node.dtype is dtypes.index:
            exact[node] = node
            continue
        found: Dim | None = None
        if node.op is Ops.CONST:
            found = int(node.arg)
        elif node.op is Ops.CAST and node.src[0] in exact:
            found = exact[node.src[0]]
        elif node.op in _EXACT and all(child in exact for child in node.src):
            found = _EXACT[node.op](exact[node.src[0]], exact[node.src[1]])
        elif node.op in (Ops.FLOORDIV, Ops.MOD) and all(child in exact for child in node.src):
            size = exact[node.src[1]]
            if size.op is Ops.CONST and int(size.arg) > 0:
                rule = index.floordiv if node.op is Ops.FLOORDIV else index.mod
                found = rule(exact[node.src[0]], int(size.arg))
        if found is None or node.dtype.kind not in ("int", "uint"):
            return None
        exact[node] = as_node(found)
        if not _fits(exact[node], node):
            return None
    return exact[value]


def replace_inside(expression: Node, exprs: dict[Node, Node]) -> Node:
    """`expression` with placeholders replaced and index arithmetic simplified again."""

    def visit(node: Node) -> Node | None:
        if node.op is Ops.CAST and node.dtype is dtypes.index:
            return to_index(node.src[0])
        return index.resimplify(node)

    return rebuild(
        expression, visit, memo=dict(exprs), enter=lambda node: node.mask & Ops.INDEX.bit != 0
    )
