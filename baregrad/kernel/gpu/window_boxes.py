"""Boxes of windows: places of an image one after the other, with zeros for what lies beside it.

The rows of a convolution's panel are places of an image that a window moves along: columns, then
rows, then images, which are joined to one axis. An engine walks along them by itself where a map
says between which corners: it steps along the first dimension, at its end goes on with the next
row, and so on, and takes some channels at each place. Taps of the window are offsets from there,
and what is beyond the array's sizes, padding that is nowhere stored, is zeros. The channels lie
innermost. Source: PTX ISA, "Im2col mode".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

from baregrad.dtypes import dtypes
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim, Terms
from baregrad.ir.core.node import Node, const, extent_of
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.protocol.attributes import TensorBox, Walk
from baregrad.kernel.facts.analysis import ArrayAccess

# What a map has at most: elements along a dimension, bytes of a stride, steps of a walk, dimensions
# that it walks along; where a box begins; its places. Bits that the corners, and the offsets, of
# all dimensions share; bytes of a word, and of the channels of a place.
MOST_SIZE, MOST_STRIDE, MOST_STEP, MOST_SPATIAL = 1 << 32, 1 << 40, 8, 3
MOST_CORNER, MOST_PLACES = (1 << 31) - 1, 256
CORNER_BITS, UNIT, ROW_NBYTES = 16, 16, 128
_MEMO = "kernel.window"


@dataclass(slots=True)
class _Dimension:
    """A dimension of a map: a place along it is step * walked + others + begin.

    walked: the axis that walks along it, None for none. others: axes that move the window. size: of
    the array, 0 until it is known. is_checked: whether a condition says that no place is negative.
    """

    stride: int
    walked: Node | None = None
    step: int = 1
    others: Terms = field(default_factory=dict)
    begin: int = 0
    size: int = 0
    is_checked: bool = False

    @property
    def least(self) -> int:
        """The least that the other axes add."""
        return sum([min(0, count * (_size(axis) - 1)) for axis, count in self.others.items()])

    @property
    def most(self) -> int:
        """The most that the other axes add."""
        return sum([max(0, count * (_size(axis) - 1)) for axis, count in self.others.items()])

    @property
    def low(self) -> int:
        """The first place of a walk."""
        return self.begin + self.least

    @property
    def last(self) -> int:
        """The last place of a walk."""
        return self.low + (0 if self.walked is None else self.step * (_size(self.walked) - 1))


class ImageWindow(NamedTuple):
    """The dimensions of a factor that is a window: channels innermost, then those of its walk.

    Images, the last ones, have no corners.
    """

    channels: _Dimension
    spatial: tuple[_Dimension, ...]
    images: _Dimension


class WindowBox(NamedTuple):
    """A box of a window, and where it begins for each point of some axes of its copy."""

    box: TensorBox
    corner: tuple[Node, ...]
    apart: tuple[Node, ...]


def keep_window(stage: Node, window: WindowBox | None) -> None:
    """Note at a STAGE of what window it is a box, as long as it is there."""
    stage.memo[_MEMO] = window


def kept_window(stage: Node) -> WindowBox | None:
    """The box of a window that a STAGE was made as."""
    found: WindowBox | None = stage.memo.get(_MEMO)
    return found


def window_of(
    read: ArrayAccess, walked: Sequence[Node], channels: Node, panel: int = 1
) -> ImageWindow | None:
    """The window that a read is, walked along joined axes, the outermost first; None for none.

    channels: the axis of neighbours. panel: into how many places a walk is cut; what is read beyond
    its end is zeros, or else there is nothing beyond.
    """
    strides, array = read.offset.strides, read.array
    if read.offset.rest or array.op is not Ops.PARAM or array.dtype is dtypes.bool:
        return None
    if array.dtype.itemsize not in (1, 2, 4) or strides.get(channels) != 1 or channels in walked:
        return None
    if any(not isinstance(extent_of(axis), int) for axis in strides):
        return None
    row = ROW_NBYTES // array.dtype.itemsize
    if _size(channels) % row or any(strides.get(axis, 0) <= 0 for axis in walked):
        return None
    along = {axis: _Dimension(strides[axis], axis) for axis in reversed(walked)}
    conditions = [] if read.guard is None else index.conjuncts(read.guard.src[0])
    if not all(_bound(along, condition, strides) for condition in conditions):
        return None
    if any(channels in one.others for one in along.values()):
        return None
    found = _found(list(along.values()), strides, channels, read.offset.constant)
    if found is None or not _suits(found, array.dtype.itemsize):
        return None
    is_whole = prod(map(_size, walked)) % panel == 0
    return found if is_whole or not found.images.others else None


def _bound(along: Mapping[Node, _Dimension], condition: Node, strides: Mapping[Node, int]) -> bool:
    """Whether a condition is an edge of one dimension, which is said then."""
    if condition.op is not Ops.CMPLT:
        return False
    terms, constant = index.linear(index.sub(*condition.src))
    moving = [axis for axis in terms if axis in along]
    if len(moving) != 1 or not all(axis in strides for axis in terms):
        return False
    (axis,) = moving
    found = along[axis]
    is_end = terms[axis] > 0
    others = {one: count if is_end else -count for one, count in terms.items()}
    step = others.pop(axis)
    if found.size or found.is_checked:
        is_said = found.size if is_end else found.is_checked
        if is_said or (found.step, found.others) != (step, others):
            return False
    elif strides[axis] % step:
        return False
    found.stride, found.step, found.others = strides[axis] // step, step, others
    if is_end:
        # As if it began at 0.
        found.size = -constant
        return found.size > 0
    found.is_checked, found.begin = True, -constant - 1
    return True


def _found(
    every: list[_Dimension], strides: Mapping[Node, int], channels: Node, constant: int
) -> ImageWindow | None:
    """The dimensions, in the order of a walk, with all axes that move the window."""
    left = dict(strides)
    for one in every:
        for axis, count in one.others.items():
            left[axis] -= count * one.stride
    inside = _Dimension(1, channels)
    free = [one for one in every if not (one.size or one.is_checked)]
    for axis, move in left.items():
        if axis is not channels and all(axis is not one.walked for one in every) and move:
            where = _moved(free, move) or inside
            where.others = {**where.others, axis: move // where.stride}
    for one in every:
        constant -= one.begin * one.stride
    for one in sorted(every, key=lambda one: -one.stride):
        if not one.is_checked:
            one.begin, constant = divmod(constant, one.stride)
    inside.begin = constant
    for one in (inside, *every):
        if one.low < 0 and not one.is_checked:
            return None
        one.size = one.size + one.begin if one.size else one.last - one.least + one.most + 1
    last = every[-1]
    if len(every) > 1 and last.step == 1 and not last.is_checked:
        return ImageWindow(inside, tuple(every[:-1]), last)
    whole = max([one.stride * one.size for one in every])
    return ImageWindow(inside, tuple(every), _Dimension(whole + -whole % UNIT, size=1))


def _moved(free: Sequence[_Dimension], move: int) -> _Dimension | None:
    """The dimension without conditions that an axis moves by whole steps; None for none.

    Steps of a walk may be several of a dimension's.
    """
    for one in sorted(free, key=lambda one: -one.stride):
        if move % one.stride == 0:
            return one
    for one in sorted(free, key=lambda one: one.stride):
        if move > 0 and one.stride % move == 0 and one.step * (one.stride // move) <= MOST_STEP:
            count = one.stride // move
            one.stride, one.step = move, one.step * count
            one.others = {axis: count * each for axis, each in one.others.items()}
            return one
    return None


def _suits(window: ImageWindow, itemsize: int) -> bool:
    """Whether a map says all of a window, whose channels move by whole words."""
    channels, spatial, images = window
    if not 1 <= len(spatial) <= MOST_SPATIAL:
        return False
    words = [*channels.others.values(), channels.begin, *[one.stride for one in window[1]],
             images.stride]  # fmt: skip
    nbytes = [abs(each) * itemsize for each in words]
    if any(each % UNIT for each in nbytes) or max(nbytes) >= MOST_STRIDE:
        return False
    span = 1 << CORNER_BITS // len(spatial)
    for one in spatial:
        corners = one.low, one.last - (one.size - 1)
        if not all(-span // 2 <= corner < span // 2 for corner in corners):
            return False
        if one.most - one.least >= span or one.step > MOST_STEP:
            return False
    sizes = [one.size for one in (channels, *spatial, images)]
    return max(sizes) <= min(MOST_SIZE, MOST_CORNER)


def window_box(
    window: ImageWindow, places: Mapping[Node, Node], own: Sequence[Node],
    walk: Node, along: Node, itemsize: int,
) -> WindowBox | None:  # fmt: skip
    """The box that a copy over the axes `own` is, the outermost first; None for none.

    places: of each of a read's axes. walk: the place on the joined axis of a window's walk. along:
    that on the one of which channels are the innermost part.
    """
    row = ROW_NBYTES // itemsize
    lanes = _run(along, own, row)
    if prod(map(_size, lanes)) != row:
        return None
    rows = _run(walk, own[: len(own) - len(lanes)], MOST_PLACES)
    terms, begin = index.linear(along)
    others = [begin, *[scale for axis, scale in terms.items() if axis not in lanes]]
    if not rows or any(other % row for other in others):
        return None
    zero = {axis: const(0, dtypes.index) for axis in (*rows, *lanes)}
    channels, spatial, images = window
    here = {axis: substitute(place, zero) for axis, place in places.items()}
    corner: list[Dim] = [_place(channels, here, channels.begin)]
    for one in spatial:
        assert one.walked is not None
        corner.append(index.add(index.mul(here[one.walked], one.step), one.low))
    count = prod([_size(one.walked) for one in spatial if one.walked is not None])
    image = index.floordiv(substitute(walk, zero), count)
    corner.append(index.total([image, index.as_dim(_place(images, here, images.begin, False))]))
    corner += [_place(one, here, -one.least, False) for one in spatial]
    dimensions = (channels, *spatial, images)
    walked = Walk(
        tuple([one.low for one in spatial]),
        tuple([one.last - (one.size - 1) for one in spatial]),
        tuple([one.step for one in spatial]),
    )
    box = TensorBox(
        tuple([one.size for one in dimensions]), tuple([one.stride for one in dimensions]),
        (row, prod(map(_size, rows))), walked,
    )  # fmt: skip
    apart = tuple(own[: len(own) - len(rows) - len(lanes)])
    return WindowBox(box, tuple(map(index.as_node, corner)), apart)


def _run(place: Node, own: Sequence[Node], most: int) -> list[Node]:
    """The last of some axes, which are places one after the other: at most so many."""
    terms, _ = index.linear(place)
    found: list[Node] = []
    count = 1
    for axis in reversed(own):
        size = _size(axis)
        if size > 1 and (terms.get(axis) != count or count * size > most):
            break
        found.insert(0, axis)
        count *= size
    return found


def _place(one: _Dimension, here: Mapping[Node, Node], begin: int, walks: bool = True) -> Node:
    """A place along a dimension, of the walk or of what moves it alone."""
    terms = [index.mul(here[axis], count) for axis, count in one.others.items()]
    if walks and one.walked is not None:
        terms.append(index.mul(here[one.walked], one.step))
    return index.as_node(index.total([*terms, begin]))


def _size(axis: Node) -> int:
    return int(axis.src[0].arg)
