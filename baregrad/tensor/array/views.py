"""Views: which part of its storage a tensor shows, and how writing through it changes the storage.

A view is a tuple of steps, each a movement op with its attribute, applied in order to the storage's
value. A step (DETACH, None) stops gradients, and (DETACH, leaf) is where they arrive. Strides say
what the same view would be in memory, which decides whether a reshape is a view as in NumPy.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any, ClassVar

from baregrad.base.errors import ShapeError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Slice
from baregrad.ir.core.node import Node, const
from baregrad.ir.core.op import Op, Ops
from baregrad.ir.core.requirements import value_of
from baregrad.ir.core.shape import is_one
from baregrad.tensor.array import nodes

Step = tuple[Op, Any]
Hook = Callable[[Node], Node | None]
Dim = int | Node
Strides = tuple[Any, ...]
# What makes views in which elements stand more than once, beside windows.
_MADE_BY = MappingProxyType({Ops.EXPAND: "expand", Ops.SHRINK: "as_strided"})
_STOP: Step = (Ops.DETACH, None)


class Reviewed:
    """A mark that is another one once any tensor got other steps: who remembers them need not look.

    Not a number: of two threads that count at once, one could set it back to what was seen.
    """

    mark: ClassVar[object] = object()


class Assigned:
    """The same of gradients: another mark once any tensor got another one, or none any more."""

    mark: ClassVar[object] = object()


def assign_gradient(tensor: Any, gradient: Any) -> None:
    """Let a tensor have this gradient from now on, None for none."""
    tensor._gradient = gradient
    Assigned.mark = object()


def change_steps(tensor: Any, steps: tuple[Step, ...]) -> None:
    """Let a tensor show its storage through other steps from now on."""
    tensor._steps = steps
    tensor._cached = None
    Reviewed.mark = object()


class Leaf:
    """The identity of a tensor that gradients are accumulated in; graphs hold it alone."""

    __slots__ = ("__weakref__", "hooks", "owner")

    def __init__(self, owner: Any) -> None:
        self.owner = weakref.ref(owner)
        # What is called with each gradient that arrives, if anything ever was to be.
        self.hooks: Hooks | None = None

    def __repr__(self) -> str:
        return "leaf"


class Hooks:
    """A mark at which gradients go on, as functions of a tensor's user change them.

    before: functions of a gradient, that give another one or None. after: those that are told once
    a leaf's gradient was added up.
    """

    __slots__ = ("after", "before")

    def __init__(self) -> None:
        self.before: tuple[Hook, ...] = ()
        self.after: tuple[Hook, ...] = ()

    def __repr__(self) -> str:
        return "hooks"

    def changed(self, gradient: Node) -> Node:
        """The gradient as the functions leave it."""
        for hook in self.before:
            found = hook(gradient)
            gradient = gradient if found is None else found
        return gradient


def hooks_at(steps: Sequence[Step]) -> Hooks | None:
    """The functions that gradients pass at a tensor of these steps, if it ever had any."""
    mark = steps[-1][1] if steps else None
    if isinstance(mark, Leaf):
        return mark.hooks
    return mark if isinstance(mark, Hooks) else None


class Cut:
    """The mark where a captured call's graph is cut from what was computed before: `node`."""

    __slots__ = ("node",)

    def __init__(self, node: Node) -> None:
        self.node = node

    def __repr__(self) -> str:
        return "cut"


class Twin:
    """A mark that gradients pass: what is read through it is read by one tensor alone.

    Nodes are one where they are equal, tensors are not: each has a gradient of its own.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "twin"


class Again:
    """A mark that gradients pass, on an operand of a result that was computed before.

    It makes that result a node of its own. It is no tensor's value, and which of two equal results
    has it depends on what was written out first: gradients are made as if it were not there.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "again"


Pull = Callable[[Node], tuple[Node | None, ...]]


class Pulled:
    """A mark at which gradients go on to what the value was made of, as a rule says.

    sources: nodes that the value was made of, be they below it or not, as where it was computed.
    rule: from the gradient of the value to one for each source, None where there is none. once: the
    same for gradients that are not differentiated again, where that is less work.
    """

    __slots__ = ("once", "rule", "sources")

    def __init__(self, sources: tuple[Node, ...], rule: Pull, once: Pull | None = None) -> None:
        self.sources = sources
        self.rule = rule
        self.once = rule if once is None else once

    def __repr__(self) -> str:
        return "pulled"


def passed_on(value: Node, source: Node) -> Node:
    """A value whose gradient is that of another one, which it took the place of."""
    if value.dtype.kind != "float" or not source.mask & Ops.DETACH.bit:
        return value
    return Node(Ops.DETACH, value.dtype, (value,), Pulled((source,), lambda gradient: (gradient,)))


def twin(node: Node) -> Node:
    """The value of a node that another tensor has, for a tensor made of that one."""
    return Node(Ops.DETACH, node.dtype, (node,), Twin())


def made_distinct(node: Node) -> Node:
    """A result that is no other tensor's: as it is, or where it was computed before, once more.

    The second one reads an operand through a mark, so that its gradient does not reach the first.
    """
    memo = node.memo
    if Again not in memo:
        memo[Again] = True
        return node
    if node.op is Ops.PROJ:
        return Node(Ops.PROJ, node.dtype, (_marked(node.src[0]),), node.arg)
    return _marked(node)


def _marked(node: Node) -> Node:
    for position, source in enumerate(node.src):
        if source.dtype.kind == "float" and source.mask & Ops.DETACH.bit:
            again = Node(Ops.DETACH, source.dtype, (source,), Again())
            src = (*node.src[:position], again, *node.src[position + 1 :])
            return Node(node.op, node.dtype, src, node.arg)
    return node


def passes_gradients(node: Node) -> bool:
    """Whether gradients go on through a node, as far as marks are concerned."""
    return node.op is not Ops.DETACH or node.arg.__class__ in (Twin, Again, Pulled, Hooks)


def without_again(node: Node) -> Node:
    """What an operand is, without the mark that it is read once more."""
    return node.src[0] if node.op is Ops.DETACH and node.arg.__class__ is Again else node


@dataclass(frozen=True, slots=True)
class Diagonal:
    """The attribute of a SHRINK step that shows a diagonal of the last two axes as one axis.

    It starts at (row, column) and has `count` elements.
    """

    row: int
    column: int
    count: int

    def of(self, value: Node) -> Node:
        """The diagonal: every (columns + 1)-th element of the two axes laid out as one."""
        *front, rows, columns = value.shape
        flat = nodes.reshape(value, (*front, rows * columns))
        return nodes.shrink(flat, self.slices(tuple(front), columns))

    def slices(self, front: tuple[Any, ...], columns: int) -> tuple[Slice, ...]:
        """What is kept of the axis that the two were merged into."""
        start = self.row * columns + self.column if self.count else 0
        stop = start + (self.count - 1) * (columns + 1) + 1 if self.count else 0
        return (*nodes.whole(front), Slice(start, stop, columns + 1))


@dataclass(frozen=True, slots=True)
class Strided:
    """The attribute of a SHRINK step that shows elements of one axis by strides from an offset."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def places(self) -> Node:
        """Where each element lies along the axis."""
        found = nodes.broadcast(const(self.offset, dtypes.int64), self.shape)
        for axis, stride in enumerate(self.strides):
            line = nodes.iota_along(self.shape, axis)
            found = nodes.alu(
                Ops.ADD, found, nodes.alu(Ops.MUL, line, const(stride, dtypes.int64))
            )
        return found

    @property
    def is_apart(self) -> bool:
        """Whether each stride is longer than all that shorter ones span: none meets another."""
        span = 0
        for stride, extent in sorted(zip(self.strides, self.shape, strict=True)):
            if extent > 1 and stride <= span:
                return False
            span += stride * (extent - 1)
        return True


def show(value: Node, step: Step) -> Node:
    """The value that one step of a view makes of `value`."""
    op, arg = step
    if op is Ops.RESHAPE:
        return nodes.reshape(value, arg)
    if op is Ops.PERMUTE:
        return nodes.permute(value, arg)
    if op is Ops.EXPAND:
        return nodes.expand(value, arg)
    if op is Ops.SHRINK and isinstance(arg, Strided):
        return nodes.gather(value, arg.places())
    if op is Ops.SHRINK:
        return arg.of(value) if isinstance(arg, Diagonal) else nodes.shrink(value, arg)
    if op is Ops.FLIP:
        return nodes.flip(value, arg)
    if op is Ops.BITCAST:
        return nodes.reinterpret(value, arg)
    return nodes.fitting(Node(op, value.dtype, (value,), arg))


def write(base: Node, steps: tuple[Step, ...], value: Node) -> Node:
    """The storage's value after `value` was written through a view of it."""
    levels = [base]
    for step in steps:
        levels.append(show(levels[-1], step))
    for step, before in zip(reversed(steps), reversed(levels[:-1]), strict=True):
        value = _unshow(before, step, value)
    return value


def _unshow(before: Node, step: Step, value: Node) -> Node:
    op, arg = step
    if op is Ops.RESHAPE:
        return nodes.reshape(value, before.shape)
    if op is Ops.PERMUTE:
        return nodes.permute(value, nodes.opposite(arg))
    if op is Ops.FLIP:
        return nodes.flip(value, arg)
    if op is Ops.DETACH:
        return value
    if op is Ops.BITCAST:
        return nodes.reinterpret(value, before.dtype)
    if op is Ops.SHRINK and isinstance(arg, Diagonal):
        *front, rows, columns = before.shape
        flat = nodes.reshape(before, (*front, rows * columns))
        cuts = arg.slices(tuple(front), columns)
        return nodes.reshape(_overwrite(flat, cuts, value), before.shape)
    if op is Ops.SHRINK and isinstance(arg, Strided):
        if arg.is_apart:
            return nodes.scatter(before, value, (arg.places(),), None)
    elif op is Ops.SHRINK:
        return _overwrite(before, arg, value)
    if value.shape == before.shape:
        return value
    raise ShapeError(
        "cannot write through a view in which elements stand more than once",
        found=f"a view made by {_MADE_BY.get(op, 'unfold')}",
        wanted="a view with one place for each element",
        hint="write into clone() of it",
    )


def _overwrite(before: Node, slices: tuple[Slice, ...], value: Node) -> Node:
    """`before` with `value` in place of what the slices keep."""
    pads = nodes.unshrink(slices, before.shape)
    inside = nodes.pad(nodes.broadcast(const(True, dtypes.bool), value.shape), pads)
    return nodes.where(inside, nodes.pad(value, pads), before)


def is_whole(steps: tuple[Step, ...]) -> bool:
    """Whether steps show a storage as it is, not a part or in another order."""
    for op, _ in steps:  # noqa: SIM110 - asked about at every call
        if op is not Ops.DETACH:
            return False
    return True


def stopped(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Steps at whose end gradients stop, once."""
    return steps if steps and steps[-1] == _STOP else (*steps, _STOP)


def data_of(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Steps to `Tensor.data`, told by two stops, which nothing else leaves behind each other."""
    return (*stopped(steps), _STOP)


def are_data(steps: tuple[Step, ...]) -> bool:
    """Whether steps show `Tensor.data`, or a view of it."""
    return any(pair == (_STOP, _STOP) for pair in pairwise(steps))


def is_symbolic(steps: tuple[Step, ...]) -> bool:
    """Whether steps cut or shape by extents that are variables."""
    return any(_holds_node(arg) for op, arg in steps if op is not Ops.DETACH)


def bound(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Steps with the values of their variables put in, as far as these are bound."""
    if not is_symbolic(steps):
        return steps
    return tuple((op, arg if op is Ops.DETACH else _bound_arg(arg)) for op, arg in steps)


def _bound_arg(arg: Any) -> Any:
    if isinstance(arg, Node):
        value = value_of(arg)
        return arg if value is None else value
    if not isinstance(arg, tuple):
        return arg
    found = [_bound_arg(one) for one in arg]
    return type(arg)(*found) if hasattr(arg, "_fields") else tuple(found)


def _holds_node(arg: Any) -> bool:
    return isinstance(arg, Node) or (isinstance(arg, tuple) and any(map(_holds_node, arg)))


# --- strides ------------------------------------------------------------------------------------


def row_major(shape: tuple[Any, ...]) -> Strides:
    """The strides, in elements, of a whole array."""
    strides: list[Dim] = []
    step: Dim = 1
    for extent in reversed(shape):
        strides.append(step)
        step = index.as_dim(index.mul(extent, step))
    return tuple(reversed(strides))


def after(step: Step, value: Node, strides: Strides, offset: Dim) -> tuple[Strides, Dim]:
    """Strides and offset after one step, in elements of its dtype; `value` is shown before it."""
    op, arg = step
    shape = value.shape
    if op is Ops.BITCAST and arg.bits != value.dtype.bits:
        found = resized(shape, strides, offset, value.dtype, arg)
        assert found is not None
        return found
    if op is Ops.PERMUTE:
        return tuple(strides[axis] for axis in arg), offset
    if op is Ops.EXPAND:
        repeated = (old != new for old, new in zip(shape, arg, strict=True))
        return tuple(0 if again else s for again, s in zip(repeated, strides, strict=True)), offset
    if op is Ops.SHRINK and isinstance(arg, Strided):
        moved = index.add(offset, index.mul(strides[0], arg.offset))
        return tuple(index.mul(strides[0], one) for one in arg.strides), index.as_dim(moved)
    if op is Ops.SHRINK and isinstance(arg, Diagonal):
        begin = index.add(index.mul(strides[-2], arg.row), index.mul(strides[-1], arg.column))
        merged = index.add(strides[-2], strides[-1])
        return (*strides[:-2], merged), index.as_dim(index.add(offset, begin))
    if op is Ops.SHRINK:
        for one, s in zip(arg, strides, strict=True):
            offset = index.add(offset, index.mul(one.start, s))
        return tuple(
            index.mul(s, one.step) for one, s in zip(arg, strides, strict=True)
        ), index.as_dim(offset)
    if op is Ops.FLIP:
        result = list(strides)
        for axis in arg:
            offset = index.add(offset, index.mul(index.sub(shape[axis], 1), strides[axis]))
            result[axis] = index.mul(strides[axis], -1)
        return tuple(result), index.as_dim(offset)
    if op is Ops.WINDOW:
        result = [*strides, index.mul(strides[arg.axis], arg.dilation)]
        result[arg.axis] = index.mul(strides[arg.axis], arg.stride)
        return tuple(result), offset
    if op is Ops.RESHAPE:
        found = reshaped(shape, strides, arg)
        assert found is not None
        return found, offset
    return strides, offset


def resized(
    shape: tuple[Any, ...], strides: Strides, offset: Dim, old: DType, new: DType
) -> tuple[Strides, Dim] | None:
    """Strides and offset in elements of a dtype of another size; None where they are not whole.

    Elements along the last axis are neighbours in memory, and as many as fill whole ones.
    """
    if not shape or strides[-1] != 1:
        return None
    if new.bits < old.bits:
        count = old.bits // new.bits
        finer = [index.as_dim(index.mul(s, count)) for s in strides[:-1]]
        return (*finer, 1), index.as_dim(index.mul(offset, count))
    count = new.bits // old.bits
    moved = [s for extent, s in zip(shape, strides[:-1], strict=False) if not is_one(extent)]
    if any(index.mod(each, count) != 0 for each in (shape[-1], offset, *moved)):
        return None
    whole = [index.as_dim(index.floordiv(s, count)) for s in strides[:-1]]
    return (*whole, 1), index.as_dim(index.floordiv(offset, count))


def reshaped(shape: tuple[Any, ...], strides: Strides, wanted: tuple[Any, ...]) -> Strides | None:
    """The strides of a view of another shape, None where only a copy can have it.

    Axes that lie next to each other in memory are merged, then split anew; NumPy decides so too.
    """
    if strides == row_major(shape):
        return row_major(wanted)
    kept = [(extent, s) for extent, s in zip(shape, strides, strict=True) if not is_one(extent)]
    if [extent for extent, _ in kept] == [extent for extent in wanted if not is_one(extent)]:
        # Axes of one element come and go.
        found: list[Dim] = []
        for extent in reversed(wanted):
            found.append(1 if is_one(extent) else kept.pop()[1])
        return tuple(reversed(found))
    if not all(isinstance(value, int) for value in (*shape, *strides, *wanted)):
        return None
    if 0 in shape:
        return row_major(wanted)
    runs: list[tuple[int, int]] = []
    for extent, stride in zip(shape, strides, strict=True):
        if extent == 1:
            continue
        if runs and runs[-1][1] == extent * stride:
            runs[-1] = (runs[-1][0] * extent, stride)
        else:
            runs.append((extent, stride))
    return _split(runs, wanted)


def _split(runs: list[tuple[int, int]], wanted: tuple[int, ...]) -> Strides | None:
    """Strides for the extents `wanted`, each a part of one run of memory."""
    result: list[int] = []
    left = list(reversed(runs))
    rest, step = left.pop() if left else (1, 1)
    for extent in wanted:
        if extent == 1:
            result.append(rest * step)
            continue
        if rest == 1 and left:
            rest, step = left.pop()
        if rest % extent:
            return None
        rest //= extent
        result.append(rest * step)
    return tuple(result) if rest == 1 and not left else None
