"""Shapes of nodes about to be made: the rule of each op, and shapes that were found before.

The rules themselves stand in `shape`, which is made of nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from baregrad.base.errors import ShapeError
from baregrad.ir.core.op import ALU, Column, Op, Ops, mask_of

Shape = tuple[Any, ...]


class Operand(Protocol):
    """What a shape rule sees of a source: a node."""

    @property
    def op(self) -> Op:
        """Its row of the op table."""

    @property
    def src(self) -> tuple[Operand, ...]:
        """Its sources."""

    @property
    def arg(self) -> Any:
        """Its attribute."""

    @property
    def shape(self) -> Shape:
        """Its extents, ints or nodes."""


Operands = tuple[Operand, ...]
SHAPES: Column[Callable[[Op, Operands, Any], Shape]] = Column("shape rule")


@SHAPES(
    Ops.CAST, Ops.BITCAST, Ops.LOOKUP, Ops.FLIP, Ops.PROJ, Ops.CONTIGUOUS, Ops.DETACH, Ops.COPY,
    Ops.READ,
)
def like_source(op: Op, src: Operands, arg: Any) -> Shape:
    """The shape of the only source."""
    return src[0].shape


@SHAPES(*ALU)
def like_operands(op: Op, src: Operands, arg: Any) -> Shape:
    """All operands have one shape; a scalar () goes with anything."""
    shape: Shape = ()
    for child in src:
        theirs = child.shape
        if theirs:
            if not shape:
                shape = theirs
            elif theirs is not shape and theirs != shape:
                raise ShapeError(
                    f"{op.name} of shapes {[list(c.shape) for c in src]}: they must be equal here "
                    "(broadcasting was to be made explicit with EXPAND)"
                )
    return shape


# Ops whose value has the shape of their sources, as that of arithmetic has.
LIKE_SOURCES = frozenset(SHAPES.cells)
# Ops whose shape is that of their source and their attribute alone, and is dear to find.
_ASKED_AGAIN = mask_of((Ops.RESHAPE, Ops.PERMUTE, Ops.EXPAND, Ops.PAD, Ops.WINDOW, Ops.REDUCE))
_MOST = 1 << 12  # shapes that are remembered
INTS = frozenset((int,))


class _Known:
    """Shapes found before: each pass makes the nodes above a change again, and layers are alike."""

    def __init__(self) -> None:
        self.shapes: dict[Any, Shape] = {}


_known = _Known()
_find_shape = _known.shapes.get


def plain_shape(op: Op, src: Operands, arg: Any) -> Shape | None:
    """The shape of a node about to be made, where it was found before and nothing is symbolic."""
    if op.bit & _ASKED_AGAIN:
        return _find_shape((op, src[0].shape, arg if op is not Ops.REDUCE else arg.axes))
    return None


def infer_shape(op: Op, src: Operands, arg: Any) -> Shape:
    """The shape of a node about to be made; raises ShapeError when the sources do not fit."""
    if op.bit & _ASKED_AGAIN:
        return _asked_first(op, src, arg)
    rule = SHAPES.get(op)
    return rule(op, src, arg) if rule is not None else ()


def _asked_first(op: Op, src: Operands, arg: Any) -> Shape:
    """What the rule of `op` says; shapes without symbolic extents are kept."""
    found = SHAPES.cells[op](op, src, arg)
    part = arg if op is not Ops.REDUCE else arg.axes
    # No node is to be kept alive.
    if _is_plain(src[0].shape) and _is_plain(part):
        shapes = _known.shapes
        if len(shapes) >= _MOST:
            shapes.clear()
        shapes[op, src[0].shape, part] = found
    return found


def _is_plain(values: tuple[Any, ...]) -> bool:
    """Whether extents, or the parts of an attribute, are made of ints alone."""
    if INTS.issuperset(map(type, values)):
        return True
    return all(isinstance(one, tuple) and INTS.issuperset(map(type, one)) for one in values)
