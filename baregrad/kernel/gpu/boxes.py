"""Copies of whole boxes of an array, which an engine makes beside all threads from a tensor map.

A map describes an array by up to five dimensions, each with its own stride; a box is some elements
of each. It lands in shared memory with its first dimension innermost, in rows of 128 bytes whose
chunks are exchanged, and what lies beyond the array's sizes is zeros there. So conditions of a copy
are sizes of its map. Where another array says which matrix of a stack is read, that is where a box
begins, kept one step beside the array at most: there all is zeros, as conditions on it ask. An
element must not be computed, but float32 may be rounded to tfloat32, which the engine does. What a
box begins at and skips must be whole words of 16 bytes. Source: PTX ISA, "Tensor" and
"cp.async.bulk.tensor".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product, takewhile
from math import prod
from typing import NamedTuple

from baregrad.base.errors import CompilerBug, ScheduleError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc
from baregrad.ir.core.bounds import INFINITE
from baregrad.ir.core.index import Terms
from baregrad.ir.core.node import Node, const, make_node, range_node
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.protocol.attributes import CopyTo, TensorBox
from baregrad.kernel.gpu.shared_copies import FIRST_ID, SharedCopy, row_of
from baregrad.kernel.gpu.shared_layouts import in_rows, pitch_of
from baregrad.kernel.gpu.window_boxes import WindowBox, kept_window

ENGINE = "tma"
# The unit of such copies, in bytes; bytes of a row; and what a map has at most: dimensions,
# elements of a box along one, elements along one, bytes of a stride. Where a box begins is int32.
UNIT, ROW_NBYTES = 16, 128
MOST_RANK, MOST_BOX, MOST_SIZE, MOST_STRIDE = 5, 256, 1 << 32, 1 << 40
MOST_CORNER = (1 << 31) - 1
_READS = Ops.LOAD.bit | Ops.INDEX.bit
# Boxes that fill one panel, since each is an instruction of a lone thread.
MOST_BOXES = 64


class BoxCopy(NamedTuple):
    """A box, where it begins along each dimension, and how many of the axes it covers."""

    box: TensorBox
    corner: tuple[Node, ...]
    covered: int


@dataclass(slots=True)
class _Dimension:
    """A dimension of a map while it is found out: `corner` is where the box begins along it.

    own: the copy's axes in it, by their steps. size: 0 where no condition says it yet. chosen: what
    other arrays say of the corner, by the numbers of it that there are; 0 where nobody says.
    """

    stride: int
    box: int
    own: Terms
    corner: Terms = field(default_factory=dict)
    constant: int = 0
    size: int = 0
    chosen: Terms = field(default_factory=dict)

    @property
    def steps(self) -> Terms:
        """Steps of all that moves along the dimension."""
        return {**self.own, **self.corner}


def box_of(value: Node, axes: Sequence[Node]) -> BoxCopy | None:
    """The box that a copy of `value` over some axes is, the innermost first; None for none.

    It covers as many of them as it can: the others are left for a box at each of their points.
    """
    conditions, read = _element_of(value)
    if read.op is not Ops.LOAD or read.src[0].op is not Ops.PARAM or len(read.src) != 2:
        return None
    dtype = read.dtype
    terms, constant = index.linear(read.src[1])
    if dtype is dtypes.bool or dtype.itemsize not in (1, 2, 4) or constant < 0:
        return None
    if min(terms.values(), default=0) <= 0:
        return None
    # Of an axis whose digits lie in several dimensions each point has a box of its own.
    divided = {one for atom in terms if atom.op is not Ops.RANGE for one in atom.ranges}
    if not all(axis in terms or axis in divided for axis in axes):
        return None
    axes = list(takewhile(lambda axis: axis not in divided, axes))
    # Of the fewer dimensions it covers, the more are left for what else moves.
    for most, in_parts in product(range(MOST_RANK - 1, 1, -1), (True, False)):
        found = _dimensions(terms, axes, dtype, most, in_parts)
        if found is not None:
            dimensions, covered = found
            others = {atom: n for atom, n in terms.items() if atom not in axes[:covered]}
            _place(dimensions, others, constant)
            if _is_map(dimensions, conditions, dtype):
                return _as_copy(dimensions, covered)
    return None


def _element_of(value: Node) -> tuple[list[Node], Node]:
    """What is read for an element, rounded to tfloat32 or not, and under which conditions."""
    conditions: list[Node] = []
    while value.op is Ops.GUARD or is_rounded(value):
        if value.op is Ops.GUARD:
            conditions += index.conjuncts(value.src[0])
        value = value.src[-1]
    return list(dict.fromkeys(conditions)), value


def _guarded_once(value: Node) -> Node:
    """An element under all its conditions at once, whatever is done to it inside them."""
    conditions, read = _element_of(value)
    element = read if read.dtype is value.dtype else Node(Ops.CAST, value.dtype, (read,))
    if not conditions:
        return element
    return Node(Ops.GUARD, value.dtype, (index.both(*conditions), element))


def is_rounded(value: Node) -> bool:
    """Whether a value is a float32 rounded as the engine does on its way."""
    return value.op is Ops.CAST and value.dtype is dtypes.tfloat32 and (
        value.src[0].dtype is dtypes.float32
    )


def _is_map(dimensions: list[_Dimension], conditions: Sequence[Node], dtype: DType) -> bool:
    """Whether dimensions are those of a map under some conditions, which say their sizes."""
    begins = [one for one in conditions if _begin_of(one) is not None]
    ends = [one for one in conditions if _begin_of(one) is None]
    # What ends with the rows of each matrix says so before it is asked which matrices there are.
    ends.sort(key=lambda condition: bool(condition.mask & _READS))
    if not all(_bound(dimensions, condition) for condition in ends):
        return False
    chosen = [_chosen_in(dimensions, _begin_of(condition)) for condition in begins]
    return all([*chosen, *map(_sized, dimensions)]) and _suits(dimensions, dtype)


def _begin_of(condition: Node) -> Node | None:
    """The number in an array that a condition asks not to be negative; None for others."""
    if condition.op is not Ops.CMPLT:
        return None
    terms, constant = index.linear(index.sub(*condition.src))
    (atom, scale), *others = terms.items() or ((condition, 0),)
    return atom if not others and (scale, constant) == (-1, -1) and _is_chosen(atom) else None


def _is_chosen(atom: Node) -> bool:
    """Whether a term of a place is what another array says."""
    return atom.op is not Ops.RANGE and bool(atom.mask & _READS)


def _chosen_in(dimensions: list[_Dimension], atom: Node | None) -> bool:
    """Whether a box that begins at a negative number of steps lies ahead of its dimension.

    Then the number is kept from -1 to how many there are.
    """
    for one in dimensions:
        step = one.corner.get(atom, 0) if atom is not None else 0
        if atom is None or not step:
            continue
        within = {**one.steps}
        del within[atom]
        # The number may have an end of its own, so that no condition speaks of one.
        _end(one)
        if not _below(within, step - one.constant) or not one.size or one.size % step:
            return False
        one.chosen[atom] = one.size // step
        return True
    return False


def _as_copy(dimensions: list[_Dimension], covered: int) -> BoxCopy:
    strides = tuple([each.stride for each in dimensions])
    box = TensorBox(
        tuple([each.size for each in dimensions]), strides, tuple([each.box for each in dimensions])
    )
    return BoxCopy(box, tuple(map(_corner, dimensions)), covered)


def _corner(dimension: _Dimension) -> Node:
    """Where a box begins along a dimension."""
    terms: Terms = {}
    for atom, count in dimension.corner.items():
        most = dimension.chosen.get(atom)
        kept = atom if most is None else index.as_node(index.minimum(index.maximum(atom, -1), most))
        terms[kept] = terms.get(kept, 0) + count
    return index.from_linear(terms, dimension.constant)


def _dimensions(
    terms: Terms, axes: Sequence[Node], dtype: DType, most: int, in_parts: bool
) -> tuple[list[_Dimension], int] | None:
    """The dimensions that a box has, and how many axes it covers; None where rows are no runs.

    most: dimensions. in_parts: whether one that goes on from rows may be one of its own.
    """
    row = ROW_NBYTES // dtype.itemsize
    own: Terms = {}
    lanes = 1
    for axis in axes:
        if lanes == row:
            break
        if terms[axis] != lanes:
            return None
        own[axis] = lanes
        lanes *= _size(axis)
    if lanes != row:
        return None
    found = [_Dimension(1, row, own)]
    for covered, axis in enumerate(axes[len(own) :], len(own)):
        stride, size, last = terms[axis], _size(axis), found[-1]
        reached = last.stride * last.box
        if len(found) > 1 and stride == reached and last.box * size <= MOST_BOX:
            last.own[axis] = last.box
            last.box *= size
        elif size <= MOST_BOX and (in_parts or stride != row) and len(found) < most:
            found.append(_Dimension(stride, size, {axis: 1}))
        else:
            return found, covered
    return found, len(axes)


def _place(dimensions: list[_Dimension], terms: Terms, constant: int) -> None:
    """Say where a box begins along its dimensions: each term is whole steps of one of them."""
    ordered = sorted(dimensions, key=lambda each: -each.stride)
    for atom, scale in terms.items():
        at = next(each for each in ordered if scale % each.stride == 0)
        at.corner[atom] = scale // at.stride
    for each in ordered:
        each.constant, constant = divmod(constant, each.stride)


def _bound(dimensions: list[_Dimension], condition: Node) -> bool:
    """Whether a condition is the size of a dimension, which is said then."""
    if condition.op is not Ops.CMPLT:
        return False
    terms, constant = index.linear(index.sub(*condition.src))
    inside = [each for each in dimensions if not each.steps.keys().isdisjoint(terms)]
    if not inside:
        return False
    top = max(inside, key=lambda each: each.stride)
    axis, step = next((a, n) for a, n in top.steps.items() if a in terms)
    if terms[axis] < 1:
        return False
    # A condition may count whole groups of steps, or steps of other dimensions besides.
    group, scale = max(step // terms[axis], 1), max(terms[axis] // step, 1)
    if group * terms[axis] != scale * step or top.size:
        return False
    within: Terms = {}
    apart: Terms = {}
    for atom, count in top.steps.items():
        told = group * terms.pop(atom, 0)
        if told and told != scale * count:
            return False
        if not told and (atom in top.own or count < group):
            within[atom] = count
        elif not told:
            apart[atom] = count
    # A box may begin inside a group, whose end is then the size, unless it reaches beyond that.
    begin = top.constant % group
    begin = begin if _below(within, group - begin) else 0
    if constant % scale or not (_below(within, group) and _below(terms, scale)):
        return False
    top.size = top.constant - begin - group * (constant // scale)
    return _part(dimensions, top, apart)


def _below(terms: Terms, size: int) -> bool:
    """Whether a sum is a place within so many."""
    place = index.from_linear(terms, 0)
    return index.lower(place) >= 0 and index.upper(place) < size


def _part(dimensions: list[_Dimension], top: _Dimension, apart: Terms) -> bool:
    """Give terms of which a condition does not speak dimensions of their own, if there are any."""
    top.corner = {atom: count for atom, count in top.corner.items() if atom not in apart}
    while apart:
        step = min(apart.values())
        corner = {atom: n // step for atom, n in apart.items() if n % step == 0}
        apart = {atom: n for atom, n in apart.items() if atom not in corner}
        dimensions.append(_Dimension(top.stride * step, 1, {}, corner))
    return len(dimensions) <= MOST_RANK


def _end(dimension: _Dimension) -> Node:
    """Give a dimension without a size the end of the last box; return where boxes begin."""
    corner = _corner(dimension)
    high = index.upper(corner)
    if not dimension.size and high < INFINITE:
        dimension.size = high + dimension.box
    return corner


def _sized(dimension: _Dimension) -> bool:
    """Whether a dimension has a size: without conditions it is the end of the last box."""
    corner = _end(dimension)
    low, high = index.lower(corner), index.upper(corner)
    is_ahead = low >= 0 or (bool(dimension.chosen) and low >= -MOST_CORNER)
    return is_ahead and high <= MOST_CORNER and 1 <= dimension.size <= MOST_SIZE


def _suits(dimensions: list[_Dimension], dtype: DType) -> bool:
    """Whether what a box begins at and skips are whole words."""
    first, *others = dimensions
    moves = [first.constant, *first.corner.values(), *[each.stride for each in others]]
    nbytes = [move * dtype.itemsize for move in moves]
    return not any(each % UNIT for each in nbytes) and max(nbytes) < MOST_STRIDE


def _size(axis: Node) -> int:
    return int(axis.src[0].arg)


def copied_in_boxes(stage: Node, number: int) -> tuple[Node, list[SharedCopy]]:
    """The shared array of a STAGE, and the boxes that fill it; `number` distinguishes arrays.

    Raises ScheduleError where it is not made of such.
    """
    value, *own = stage.src
    first = FIRST_ID + 8 * number
    axes = [range_node(_size(axis), first + at, "", "unroll") for at, axis in enumerate(own)]
    found = _found(stage, axes)
    window = _window_of(stage)
    if found is None and window is None:
        raise _no_box(stage)
    layout, row = stage.arg.layout, row_of(stage)
    shape = [_size(axis) for axis in own]
    shape[-len(row) :] = [pitch_of(layout)]
    where = Alloc(number, "shared", tuple(shape), layout, stage.arg.depth, f"s{number}")
    buffer = Node(Ops.ALLOC, value.dtype, (), where)
    if found is None:
        assert window is not None
        places = in_rows(own, row)
        return buffer, _at_points(window.box, window.corner, window.apart, value, places, buffer)
    box, apart, value = found
    places = in_rows(axes, row)
    if not apart:
        return buffer, [SharedCopy(None, None, value, places)]
    # Boxes of one map, whatever is known of the edges at each point.
    return buffer, _at_points(box.box, box.corner, apart, value, places, buffer)


def _at_points(
    box: TensorBox, corners: Sequence[Node], apart: Sequence[Node], value: Node,
    places: Sequence[Node], buffer: Node,
) -> list[SharedCopy]:  # fmt: skip
    """Boxes of a map: one for each point of the axes apart."""
    _, read = _element_of(value)
    flat = index.as_node(index.flatten(places, buffer.arg.shape))
    zero = {axis: const(0, dtypes.index) for axis in flat.ranges}
    copies = []
    for point in product(*[range(_size(axis)) for axis in apart]):
        here = {a: const(at, dtypes.index) for a, at in zip(apart, point, strict=True)}
        corner = [substitute(one, here) for one in corners]
        first = substitute(flat, {**zero, **here})
        copies.append(SharedCopy(None, None, read.src[0], (first, *corner), box))
    return copies


def is_of_boxes(stage: Node) -> bool:
    """Whether the engine fills the array of a STAGE: what `copied_in_boxes` would not refuse."""
    return _found(stage, list(stage.src[1:])) is not None or _window_of(stage) is not None


def _window_of(stage: Node) -> WindowBox | None:
    """The box of a window whose places fill a STAGE; None where a copy is none."""
    window = kept_window(stage)
    _, read = _element_of(stage.src[0])
    if window is None or read.op is not Ops.LOAD or not _is_of_rows(stage):
        return None
    return window if prod(map(_size, window.apart)) <= MOST_BOXES else None


def _is_of_rows(stage: Node) -> bool:
    """Whether rows of a STAGE lie as an engine has them land, with exchanged chunks."""
    layout = stage.arg.layout
    if layout is None or layout.swizzle is None:
        return False
    return prod(row_of(stage)) * stage.src[0].dtype.itemsize == ROW_NBYTES


def _found(stage: Node, axes: Sequence[Node]) -> tuple[BoxCopy, list[Node], Node] | None:
    """The box of a STAGE over `axes` in place of its own, those that it does not cover, the value.

    None where its elements are no boxes.
    """
    value, *own = stage.src
    if not _is_of_rows(stage):
        return None
    value = _guarded_once(substitute(value, dict(zip(own, axes, strict=True))))
    moving = _moving(axes)
    found = box_of(value, moving[::-1])
    if found is None:
        return None
    apart = moving[: len(moving) - found.covered]
    return (found, apart, value) if prod(map(_size, apart)) <= MOST_BOXES else None


def _no_box(stage: Node) -> ScheduleError:
    return ScheduleError(
        "a factor is no box of an input that an engine could copy", found=stage.src[0],
        wanted="elements as they are, rows of 128 bytes with exchanged chunks (swizzle=3), and "
        "strides of whole words of 16 bytes",
        hint="pipeline(..., engine='async')",
    )


def _moving(axes: Sequence[Node]) -> list[Node]:
    return [axis for axis in axes if _size(axis) > 1]


def as_box(copy: Node) -> Node:
    """A COPYTO element by element as that of a box: array, input, slot, place in it, corner."""
    if copy.arg.box is not None:
        return copy
    target, value, slot, *places = copy.src
    terms, first = index.flat_terms(places, target.arg.shape)
    axes = sorted(terms, key=lambda axis: terms[axis])
    found = box_of(value, axes)
    if found is None or found.covered != len(axes):
        raise CompilerBug("what was a box is none any more", found=value)
    _, read = _element_of(value)
    src = (target, read.src[0], slot, const(first, dtypes.index), *found.corner)
    return make_node(Ops.COPYTO, dtypes.token, src, CopyTo(ENGINE, box=found.box))
