"""What symbolic extents must satisfy: sizes and ends that the shape rules leave open.

A movement op over symbolic extents may be right for some values of the variables and read outside
its array for others. What bounds do not prove is a requirement: checked where the op is made if its
variables are bound there, and again whenever they are bound, for each run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from baregrad.base.errors import ShapeError
from baregrad.ir.core import index
from baregrad.ir.core.integers import EXACT
from baregrad.ir.core.node import Node, toposort
from baregrad.ir.core.op import Column, Op, Ops

Dim = int | Node
Rule = Callable[[tuple[Dim, ...], Any], Iterator["Requirement"]]
REQUIREMENTS: Column[Rule] = Column("requirement")


class Requirement(NamedTuple):
    """`left` is at most `right`, or with `equal` just that; `what` says what would go wrong."""

    what: str
    left: Dim
    right: Dim
    equal: bool = False

    def variables(self) -> frozenset[str]:
        """The names of the variables that it is about."""
        dims = [dim for dim in (self.left, self.right) if isinstance(dim, Node)]
        found = (node for dim in dims for node in toposort(dim) if node.op is Ops.VAR)
        return frozenset(node.arg.name for node in found)

    def check(self, left: int, right: int) -> None:
        """Raise ShapeError where the values of the two sides do not do."""
        if left == right if self.equal else left <= right:
            return
        found, wanted = _side(left, self.left), _side(right, self.right)
        limit = "" if self.equal else "at most "
        if isinstance(self.left, int) and not self.equal:
            # The number is the limit, and what has variables is what was found.
            found, wanted, limit = wanted, found, "at least "
        hint = "bind other values, or take sizes that fit for every one"
        raise ShapeError(self.what, found=found, wanted=limit + wanted, hint=hint)


def _side(value: int, dim: Dim) -> str:
    return str(value) if isinstance(dim, int) else f"{value}, which is {dim!r}"


def value_of(dim: Any, variables: Mapping[str, int] | None = None) -> int | None:
    """The value of an extent: of `variables`, or of those that are bound. None where one is not."""
    if isinstance(dim, int):
        return dim
    values: dict[Node, int] = {}
    for node in toposort(dim):
        if node.op is Ops.VAR:
            found = node.src[0].arg if node.src else (variables or {}).get(node.arg.name)
            if found is None:
                return None
            values[node] = found
    return exact_value(dim, values)


def exact_value(root: Node, values: dict[Node, int]) -> int:
    """The value of index arithmetic or a condition, given those of its variables and axes.

    values: receives the values of all nodes below `root` that it lacks. Raises KeyError for an op
    that is no arithmetic.
    """
    for node in toposort(root, enter=lambda one: one not in values):
        if node not in values:
            known = [values[child] for child in node.src]
            values[node] = node.arg if node.op is Ops.CONST else EXACT[node.op](*known)
    return values[root]


def requirements(node: Node) -> tuple[Requirement, ...]:
    """What a node's own symbolic extents must satisfy, as far as bounds leave it open."""
    if REQUIREMENTS.get(node.op) is None:
        return ()
    found: tuple[Requirement, ...] | None = node.memo.get("requirements")
    if found is None:
        found = node.memo["requirements"] = requirements_of(node.op, *moved(node))
    return found


def moved(node: Node) -> tuple[tuple[Dim, ...], Any]:
    """The shape that a movement is of, and what it makes of it."""
    shape = node.src[0].shape if node.src else ()
    return shape, node.shape if node.op is Ops.IOTA else node.arg


def requirements_of(op: Op, shape: tuple[Dim, ...], made: Any) -> tuple[Requirement, ...]:
    """What such an op of an array of this shape requires, as far as bounds leave it open."""
    rule = REQUIREMENTS.get(op)
    return () if rule is None else tuple(_open(rule(shape, made)))


class _Notes(threading.local):
    """Where each thread notes the nodes that it requires something of."""

    def __init__(self) -> None:
        self.found: dict[Node, None] | None = None


_NOTES = _Notes()


@contextmanager
def noting(found: dict[Node, None]) -> Iterator[None]:
    """Inside the block the nodes that this thread requires something of are added to `found`."""
    before, _NOTES.found = _NOTES.found, found
    try:
        yield
    finally:
        _NOTES.found = before


def noted() -> dict[Node, None] | None:
    """Where this thread's requirements are noted, if anywhere."""
    return _NOTES.found


def note_in(found: dict[Node, None] | None) -> None:
    """Have this thread's requirements noted where they were, after a block was torn."""
    _NOTES.found = found


def require(node: Node) -> None:
    """Check what a node that is being made requires. Raises ShapeError."""
    asked = requirements(node)
    check(asked)
    if asked and _NOTES.found is not None:
        _NOTES.found[node] = None


def check(asked: Iterable[Requirement], variables: Mapping[str, int] | None = None) -> None:
    """Check requirements whose variables have values. Raises ShapeError."""
    for one in asked:
        left, right = value_of(one.left, variables), value_of(one.right, variables)
        if left is not None and right is not None:
            one.check(left, right)


def _open(asked: Iterator[Requirement]) -> Iterator[Requirement]:
    """Those requirements that do not hold for every value."""
    for one in asked:
        if isinstance(one.left, int) and isinstance(one.right, int):
            one.check(one.left, one.right)
            continue
        if one.equal:
            if one.left is not one.right:
                yield one
        elif index.upper(index.sub(one.left, one.right)) > 0:
            yield one


@REQUIREMENTS(Ops.RESHAPE)
def _reshape(shape: tuple[Any, ...], arg: Any) -> Iterator[Requirement]:
    sizes = index.product(shape), index.product(arg)
    what = f"cannot reshape {list(shape)} to {list(arg)}: the sizes differ"
    yield Requirement(what, *sizes, equal=True)
    # Two negative extents make a size that fits.
    yield from _made(shape, [extent for extent in arg if extent not in shape])


@REQUIREMENTS(Ops.SHRINK)
def _shrink(shape: tuple[Any, ...], arg: Any) -> Iterator[Requirement]:
    for axis, (extent, cut) in enumerate(zip(shape, arg, strict=True)):
        what = f"the part {cut.start!r}:{cut.stop!r} leaves axis {axis} of extent {extent!r}"
        yield Requirement(what, 0, cut.start)
        yield Requirement(what, cut.start, cut.stop)
        yield Requirement(what, cut.stop, extent)


@REQUIREMENTS(Ops.WINDOW)
def _window(shape: tuple[Any, ...], arg: Any) -> Iterator[Requirement]:
    span = arg.dilation * (arg.taps - 1) + 1
    extent = shape[arg.axis]
    what = f"a window of {span} elements does not fit an axis of extent {extent!r}"
    if span == 1:
        what = f"an axis of extent {extent!r} has no element"
    yield Requirement(what, span, extent)


@REQUIREMENTS(Ops.PAD)
def _pad(shape: tuple[Any, ...], arg: Any) -> Iterator[Requirement]:
    for axis, pad in enumerate(arg):
        for side in (pad.lo, pad.hi):
            yield Requirement(f"axis {axis} is padded by a negative amount", 0, side)


@REQUIREMENTS(Ops.EXPAND, Ops.IOTA)
def _made(shape: tuple[Any, ...], arg: Iterable[Dim]) -> Iterator[Requirement]:
    """Extents that are no part of what was there."""
    for extent in arg:
        yield Requirement("an extent cannot be negative", 0, extent)
