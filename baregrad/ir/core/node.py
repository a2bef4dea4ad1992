"""Nodes: the one immutable, interned graph from tensor to machine code.

Two nodes with the same op, dtype, sources and attribute are the same object, so equality is
identity and a dict keyed by nodes needs no deep comparison. The intern table holds nodes weakly: a
graph lives as long as somebody holds its root. What an analysis finds about a node stays true for
ever, because nodes never change; `shape`, `ranges` and `mask` are computed when a node is made, so
no walk ever recurses.
"""

from __future__ import annotations

import math
import weakref
from _weakref import _remove_dead_weakref as _remove_dead  # type: ignore[attr-defined]
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

from baregrad.dtypes import DType, cut_to_integer, dtypes
from baregrad.ir.core.axes import Range
from baregrad.ir.core.integers import SIGNS, IntegerArithmetic
from baregrad.ir.core.op import COMPARE, STATEMENTS, Op, Ops, mask_of
from baregrad.ir.core.shape_table import LIKE_SOURCES, SHAPES, infer_shape, plain_shape

Key = tuple[Op, DType, tuple["Node", ...], Any]
NO_RANGES: frozenset[Node] = frozenset()


class _Entry(weakref.ref["Node"]):
    """A weak entry of the intern table that knows its own key."""

    __slots__ = ("key",)
    key: Key


class _Interned:
    """The weak intern table, unobservable except through the identity of equal nodes.

    small: index constants of small size, held because they are asked for all the time.
    """

    def __init__(self) -> None:
        self.table: dict[Key, _Entry] = {}
        self.small: dict[int, Node] = {}

    def forget(self, entry: _Entry, remove: Callable[..., None] = _remove_dead) -> None:
        """Drop an entry whose node died, unless an equal node has taken its place.

        remove: does so with one lookup, and no other thread can put a node in between the look and
        the removal. It is at hand when the interpreter ends and this module is gone.
        """
        remove(self.table, entry.key)


_interned = _Interned()
# Looked up once: most of what a compiler of ours does is making nodes.
_find = _interned.table.get
_insert = _interned.table.setdefault
_forget = _interned.forget
_find_small = _interned.small.get
_MOST_SMALL = 1 << 16
_create = object.__new__
_CONST = Ops.CONST
_RANGE = Ops.RANGE
_VAR = Ops.VAR.bit
_COMPARE = mask_of(COMPARE)
_BOOL = dtypes.bool
_INDEX = dtypes.index
# Kernels number their axes alike, so that the same few attributes are asked for again and again.
_range = lru_cache(1 << 10)(Range)
# What makes an op other than one of elements, which has the shape and axes of its sources: its
# shape is asked for; it has none; it closes axes; it is one; it has none where its sources do.
_ASKS, _BARE, _CLOSES, _IS_AXIS, _SCALAR = 1, 2, 4, 8, 16
_CLOSING = frozenset((Ops.REDUCE, Ops.STAGE, Ops.OUT, Ops.KERNEL, *STATEMENTS))


class _Kinds(dict[Op, int]):
    """For each op how the shape and the axes of its nodes are found."""

    def __missing__(self, op: Op) -> int:
        # Rules of shapes are made of nodes, and so are added after this module was imported.
        kind = 0 if op in LIKE_SOURCES else _ASKS if op in SHAPES.cells else _BARE
        if op in _CLOSING:
            kind |= _CLOSES | (_SCALAR if op is Ops.REDUCE else 0)
        self[op] = kind | (_IS_AXIS if op is _RANGE else 0)
        return self[op]


_kind_of = _Kinds().__getitem__


class Node:
    """One operation of the graph.

    op: its row of the op table. dtype: of its value (`token` for statements). src: its sources.
    arg: its typed attribute. shape: of its value, () for the scalars of the kernel level. ranges:
    the free axes of its value, RANGE nodes at or below it that nothing below closes; a statement
    has none. mask: the bits of every op at or below it.
    """

    __slots__ = (
        "__weakref__",
        "_bounds",
        "_memo",
        "arg",
        "dtype",
        "mask",
        "op",
        "ranges",
        "shape",
        "src",
    )
    op: Op
    dtype: DType
    src: tuple[Node, ...]
    arg: Any
    shape: tuple[Any, ...]
    ranges: frozenset[Node]
    _bounds: tuple[int, int] | None
    _memo: dict[Any, Any] | None
    mask: int

    def __new__(cls, op: Op, dtype: DType, src: tuple[Node, ...] = (), arg: Any = None) -> Node:
        """Return the one node of these fields; the shape rule of `op` may raise ShapeError."""
        return make_node(op, dtype, src, arg)

    @property
    def ndim(self) -> int:
        """Number of axes of `shape`."""
        return len(self.shape)

    @property
    def memo(self) -> dict[Any, Any]:
        """A per-node cache for analyses; what is put there must be true for ever."""
        if self._memo is None:
            self._memo = {}
        return self._memo

    def has(self, *ops: Op) -> bool:
        """True when one of `ops` is at or below this node."""
        return bool(self.mask & mask_of(ops))

    def replace(self, **fields: Any) -> Node:
        """The node with some of op, dtype, src and arg changed."""
        return Node(
            fields.get("op", self.op),
            fields.get("dtype", self.dtype),
            fields.get("src", self.src),
            fields.get("arg", self.arg),
        )

    def __repr__(self) -> str:
        if (text := _spelled(self)) is not None:
            return text
        shape = list(self.shape) if self.shape else ""
        arg = "" if self.arg is None else f", {self.arg!r}"
        return f"{self.op.name}({self.dtype.name}{shape}{arg}; {len(self.src)} src)"

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("nodes are not pickled; use baregrad.ir.text.dump.dump and parse")

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of a symbolic value is not known: {self!r}")


class Integer(IntegerArithmetic, Node):
    """A node of dtype index over variables: what users reckon with. Having an order costs `==`."""

    __slots__ = ()


def _spelled(node: Node, depth: int = 6) -> str | None:
    """A symbolic integer as it would be written, `n=5 + 1` for one with a value; None for others.

    depth: of operators, below which `...` stands.
    """
    if node.op is Ops.VAR:
        return f"{node.arg.name}={node.src[0].arg}" if node.src else str(node.arg.name)
    sign = SIGNS.get(node.op)
    if sign is None or node.dtype is not dtypes.index:
        return None
    if not depth:
        return "..."
    parts = []
    for one in node.src:
        text = str(one.arg) if one.op is Ops.CONST else _spelled(one, depth - 1)
        if text is None:
            return None
        parts.append(f"({text})" if one.op in SIGNS else text)
    return sign.join(parts)


def make_node(
    op: Op,
    dtype: DType,
    src: tuple[Node, ...] = (),
    arg: Any = None,
    known: tuple[Any, ...] | None = None,
) -> Node:
    """What `Node(...)` returns, for code that makes many: calling a class costs more than this.

    `known` is the node's shape of plain numbers, where the caller has it already.
    """
    key: Key = (op, dtype, src, arg if op is not _CONST else _const_key(arg))
    entry = _find(key)
    if entry is not None:
        found = entry()
        if found is not None:
            return found
    mask = op.bit
    ranges = NO_RANGES
    shape: Any = ()
    mixed = False
    for child in src:
        mask |= child.mask
        below = child.ranges
        if below is not ranges and below:
            if not ranges:
                ranges = below
            elif not below <= ranges:
                ranges = ranges | below
        theirs = child.shape
        if theirs and theirs is not shape:
            if shape and theirs != shape:
                mixed = True
            shape = theirs
    node = _create(Integer if dtype is _INDEX and mask & _VAR else Node)
    node.op, node.dtype = op, dtype
    node.src, node.arg = src, arg
    kind = _kind_of(op)
    # Elementwise ops, most of all, on operands of one shape or on scalars, are done here.
    if known is not None:
        shape = known
    elif (kind & _ASKS and (shape or not kind & _SCALAR)) or (mixed and not kind & _BARE):
        shape = plain_shape(op, src, arg)
        if shape is None:
            shape = infer_shape(op, src, arg)
            mask |= _symbols(op, shape, arg)
    if kind:
        if kind & _BARE:
            shape = ()
        if kind & _CLOSES and ranges:
            ranges = _closed(op, src, arg, ranges)
        elif kind & _IS_AXIS:
            # An axis holds itself by this, so that it is freed when cycles are looked for.
            ranges = frozenset((node,))
    node.shape, node.ranges = shape, ranges
    node.mask = mask
    node._bounds = node._memo = None
    entry = _Entry(node, _forget)
    entry.key = key
    return node if _insert(key, entry) is entry else _kept(key, entry, node)


def instruction(
    op: Op, dtype: DType, src: tuple[Node, ...], arg: Any = None, shape: tuple[Any, ...] = ()
) -> Node:
    """What `make_node` returns for a node of the linear or tensor level, whose shape is at hand.

    Nor have statements axes, so there are none to be found among the sources. The rest is written
    out again, as a call would cost what this saves: a fifth of a node, of which kernels have
    hundreds. No CONST is made so, whose key is another, and nothing that symbolic extents may be
    below.
    """
    key: Key = (op, dtype, src, arg)
    entry = _find(key)
    if entry is not None:
        found = entry()
        if found is not None:
            return found
    node = _create(Node)
    node.op, node.dtype = op, dtype
    node.src, node.arg = src, arg
    mask = op.bit
    for child in src:
        mask |= child.mask
    node.shape, node.ranges = shape, NO_RANGES
    node.mask = mask
    node._bounds = node._memo = None
    entry = _Entry(node, _forget)
    entry.key = key
    return node if _insert(key, entry) is entry else _kept(key, entry, node)


def alike(node: Node, src: tuple[Node, ...]) -> Node:
    """What `make_node` returns for a tensor-level node over other sources of the same shapes.

    Its shape is not inferred again, symbolic or not. The node is no CONST.
    """
    key: Key = (node.op, node.dtype, src, node.arg)
    entry = _find(key)
    found = None if entry is None else entry()
    if found is not None:
        return found
    made = _create(type(node))
    made.op, made.dtype, made.src, made.arg = key
    made.shape, made.ranges = node.shape, node.ranges
    for child, other in zip(src, node.src, strict=True):
        if child.mask != other.mask:
            mask = node.op.bit | _symbols(node.op, node.shape, node.arg)
            for child in src:
                mask |= child.mask
            break
    else:
        mask = node.mask
    made.mask = mask
    made._bounds = made._memo = None
    entry = _Entry(made, _forget)
    entry.key = key
    return made if _insert(key, entry) is entry else _kept(key, entry, made)


def scalar(op: Op, dtype: DType, src: tuple[Node, ...], arg: Any = None) -> Node:
    """What `make_node` returns for a scalar of the kernel or loop level that closes no axes.

    Most nodes of a kernel's loops are such: values, and terms of addresses. It is written out as
    `instruction` is. What is made so has sources and is no RANGE.
    """
    key: Key = (op, dtype, src, arg)
    entry = _find(key)
    if entry is not None:
        found = entry()
        if found is not None:
            return found
    if len(src) == 2:
        # Most have two sources.
        first, last = src
        mask = op.bit | first.mask | last.mask
        ranges, below = first.ranges, last.ranges
        if not ranges:
            ranges = below
        elif not below <= ranges:
            ranges = ranges | below
    else:
        mask = op.bit
        for child in src:
            mask |= child.mask
        ranges = NO_RANGES.union(*[child.ranges for child in src])
    node = _create(Integer if dtype is _INDEX and mask & _VAR else Node)
    node.op, node.dtype = op, dtype
    node.src, node.arg = src, arg
    node.shape, node.ranges = (), ranges
    node.mask = mask
    node._bounds = node._memo = None
    entry = _Entry(node, _forget)
    entry.key = key
    return node if _insert(key, entry) is entry else _kept(key, entry, node)


def _kept(key: Key, entry: _Entry, node: Node) -> Node:
    """The node of these fields that is interned: `node`, unless there is one by now."""
    while True:
        held = _insert(key, entry)
        if held is entry:
            return node
        other = held()
        if other is not None:
            return other
        _forget(held)


def _symbols(op: Op, shape: tuple[Any, ...], arg: Any) -> int:
    """The ops of what is symbolic in a node's shape and attribute, whose ends it need not show."""
    mask = 0
    for extent in shape:
        if extent.__class__ is not int:
            mask |= extent.mask
    if op is Ops.SHRINK or op is Ops.PAD:
        for end in [end for one in arg for end in one[:2]]:
            if end.__class__ is not int:
                mask |= end.mask
    return mask


def _const_key(value: Any) -> Any:
    """A hashable that differs for 0.0 and -0.0, for True and 1; NaNs are one."""
    kind = value.__class__
    if kind is float:
        if value != value:
            return ("float", "nan")
        if value == 0.0:
            return ("zero", math.copysign(1.0, value))
    return (kind, value)


def _closed(
    op: Op, src: tuple[Node, ...], arg: Any, found: frozenset[Node]
) -> frozenset[Node]:
    """The ranges of the sources less those that the node closes."""
    if op is Ops.REDUCE:
        return found.difference(src[arg.monoid.arity :])
    if op is Ops.STAGE:
        return found.difference(src[1:])
    return NO_RANGES


# --- making nodes ------------------------------------------------------------------------------


def const(value: bool | int | float, dtype: DType) -> Node:
    """A scalar constant of this dtype; integers wrap to its width, `index` is unbounded."""
    canonical: bool | int | float
    if dtype is _INDEX:
        canonical = value if value.__class__ is int else int(value)
        found = _find_small(canonical)
        if found is None:
            found = make_node(_CONST, dtype, (), canonical)
            if 0 <= canonical < _MOST_SMALL:
                _interned.small[canonical] = found
        return found
    kind = dtype.kind
    if kind == "bool":
        canonical = bool(value)
    elif kind == "float":
        canonical = float(value)
    elif kind in ("int", "uint"):
        canonical = cut_to_integer(value, dtype) & ((1 << dtype.bits) - 1)
        if kind == "int" and canonical >> (dtype.bits - 1):
            canonical -= 1 << dtype.bits
    else:
        canonical = int(value)
    return make_node(_CONST, dtype, (), canonical)


def range_node(extent: int | Node, id: int, axis: str = "", bind: str = "loop") -> Node:
    """A fresh axis [0, extent) of the kernel level."""
    size = extent if isinstance(extent, Node) else const(extent, _INDEX)
    return make_node(_RANGE, _INDEX, (size,), _range(id, axis, bind))


def extent_of(axis: Node) -> int | Node:
    """The extent of a RANGE: an int, or an index node when symbolic."""
    size = axis.src[0]
    return int(size.arg) if size.op is Ops.CONST else size


def alu(op: Op, *src: Node) -> Node:
    """An arithmetic node: comparisons give bool, all others have the dtype of their last source."""
    return make_node(op, _BOOL if op.bit & _COMPARE else src[-1].dtype, src)


def cast(value: Node, dtype: DType) -> Node:
    """`value` converted to `dtype`; nothing when it has it already."""
    return value if value.dtype is dtype else make_node(Ops.CAST, dtype, (value,))


# --- walking -----------------------------------------------------------------------------------


def toposort(*roots: Node, enter: Callable[[Node], bool] | None = None) -> list[Node]:
    """Every node below `roots`, sources first, each once; below a node only if `enter(node)`."""
    order: list[Node] = []
    seen: set[Node] = set()
    add, mark = order.append, seen.add
    # The nodes above the one being walked, each with its sources still to come.
    path: list[tuple[Node, Iterator[Node]]] = []
    for root in roots:
        if root in seen:
            continue
        mark(root)
        if enter is not None and not enter(root):
            add(root)
            continue
        node, sources = root, iter(root.src)
        while True:
            for child in sources:
                if child in seen:
                    continue
                mark(child)
                if child.src and (enter is None or enter(child)):
                    path.append((node, sources))
                    node, sources = child, iter(child.src)
                    break
                add(child)
            else:
                add(node)
                if not path:
                    break
                node, sources = path.pop()
    return order


def fill(
    done: dict[Node, Any],
    roots: tuple[Node, ...],
    visit: Callable[[Node, Any], Any],
    known: Any,
    enter: Callable[[Node], bool],
) -> None:
    """`done[node] = visit(node, known)` for what `done` lacks at or below `roots`, sources first.

    Below a node only if `enter(node)`. A walk of `toposort` that needs no list of what it met.
    """
    path: list[tuple[Node, Iterator[Node]]] = []
    for root in roots:
        if root in done:
            continue
        if not enter(root):
            done[root] = visit(root, known)
            continue
        node, sources = root, iter(root.src)
        while True:
            for child in sources:
                if child in done:
                    continue
                if child.src and enter(child):
                    path.append((node, sources))
                    node, sources = child, iter(child.src)
                    break
                done[child] = visit(child, known)
            else:
                done[node] = visit(node, known)
                if not path:
                    break
                node, sources = path.pop()


def toposort_having(mask: int, *roots: Node) -> list[Node]:
    """The nodes at or below which an op of `mask` stands, sources first, each once."""
    order: list[Node] = []
    seen: set[Node] = set()
    add, mark = order.append, seen.add
    path: list[tuple[Node, Iterator[Node]]] = []
    for root in roots:
        if root in seen or not root.mask & mask:
            continue
        mark(root)
        node, sources = root, iter(root.src)
        while True:
            for child in sources:
                if child.mask & mask and child not in seen:
                    mark(child)
                    if child.src:
                        path.append((node, sources))
                        node, sources = child, iter(child.src)
                        break
                    add(child)
            else:
                add(node)
                if not path:
                    break
                node, sources = path.pop()
    return order


def rebuild(
    root: Node,
    visit: Callable[[Node], Node | None],
    *,
    memo: dict[Node, Node] | None = None,
    enter: Callable[[Node], bool] | None = None,
) -> Node:
    """One bottom-up walk: each node, its sources already replaced, is offered to `visit`.

    `visit` returns the replacement, or None to keep the node; the replacement is not visited again.
    A subtree for which `enter` is false stays untouched. `memo` may be shared between roots.
    """
    done: dict[Node, Node] = {} if memo is None else memo
    # As in `toposort`, None stands on a node whose sources come before it.
    stack: list[Node | None] = [root]
    push, pop = stack.append, stack.pop
    while stack:
        node = pop()
        if node is not None:
            if node in done:
                continue
            if enter is not None and not enter(node):
                done[node] = node
                continue
            if node.src:
                push(node)
                push(None)
                for child in reversed(node.src):
                    if child not in done:
                        push(child)
                continue
            current = node
        else:
            node = pop()
            assert node is not None
            current = node
            for child in node.src:
                if done[child] is not child:
                    src = tuple([done[one] for one in node.src])
                    current = make_node(node.op, node.dtype, src, node.arg)
                    break
        replaced = visit(current)
        done[node] = current if replaced is None else replaced
    return done[root]


def count_uses(roots: Iterable[Node]) -> dict[Node, int]:
    """For every node below `roots`, how many sources refer to it."""
    uses: dict[Node, int] = {}
    for node in toposort(*roots):
        uses.setdefault(node, 0)
        for child in node.src:
            uses[child] = uses.get(child, 0) + 1
    return uses
