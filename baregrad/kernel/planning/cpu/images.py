"""How a convolution copies what windows reach of its image, a band of rows at a time.

Rows that several windows reach are then in the second cache, one after the other, with the zeros
around the image among them: the innermost loop has no conditions. It runs along channels, which
are more than the taps of a window: a loop of three iterations is mostly its end.
"""

from __future__ import annotations

from typing import NamedTuple

from baregrad.base.bits import round_up
from baregrad.kernel.facts.analysis import ArrayAccess, itemsize, moves_of
from baregrad.kernel.language.schedule import StageInput
from baregrad.kernel.planning.common.tiling import CpuPlan, PlannedAxis, loop_names, points
from baregrad.target.cpu import CpuTarget

# Rows of the output from which on few rows of the image are copied for two bands.
LEAST_BAND = 4
MOST_BAND = 16
# Channels that are worth a copy of an image that might be read where it lies.
LEAST_CHANNELS = 16


class Slide(NamedTuple):
    """An axis of the output, one of the window, and how far they move the image, in its steps."""

    axis: PlannedAxis
    taps: PlannedAxis
    stride: int
    dilation: int

    def reach(self, count: int) -> int:
        """Elements of the image that `count` windows reach."""
        return self.stride * (count - 1) + self.dilation * (self.taps.size - 1) + 1


class Image(NamedTuple):
    """What is copied of an image.

    slides: in the order in which they move it, the farthest first. channels: what else is summed.
    band: the axis of rows of which `rows` are copied at a time; None where that is all of them.
    """

    access: ArrayAccess
    slides: tuple[Slide, ...]
    channels: tuple[PlannedAxis, ...]
    band: PlannedAxis | None
    rows: int

    def holds(self, axis: PlannedAxis | None) -> bool:
        """Whether a copy runs along all of an axis of the output."""
        return axis is not self.band and any(axis is slide.axis for slide in self.slides)

    def spread(self) -> list[PlannedAxis]:
        """The axes of the output that the steps of a register tile may lie along."""
        return [slide.axis for slide in self.slides if slide.axis is not self.band]

    def trips(self, axis: PlannedAxis) -> int:
        """The iterations of an axis that threads may share."""
        if axis is self.band:
            return axis.size // self.rows
        return 1 if self.holds(axis) else axis.size

    def order(self) -> list[PlannedAxis]:
        """The reduced axes as loops: taps, and channels inside them where those are more."""
        taps = [slide.taps for slide in self.slides]
        if points(self.channels) > taps[-1].size:
            return [*taps, *self.channels]
        return [*taps[:-1], *self.channels, taps[-1]]


def image_of(
    image: ArrayAccess, moves_image: list[PlannedAxis], own: list[PlannedAxis], lanes: int,
    target: CpuTarget,
) -> Image | None:
    """What to copy of an image at a time; None where no band of it fits the second cache."""
    slides: list[Slide] = []
    channels: list[PlannedAxis] = []
    for axis in own:
        slide = _slide(image, moves_image, axis)
        if slide is not None:
            slides.append(slide)
        elif image.stride(axis.nodes[-1]):
            channels.append(axis)
        else:
            return None
    slides.sort(key=lambda slide: -abs(slide.axis.stride(image) or 0))
    if len({slide.axis for slide in slides}) < len(slides) or not slides:
        return None
    if not _lies_in_zeros(image, slides):
        return None
    last = slides[-1]
    if min(abs(axis.stride(image) or 0) for axis in (last.axis, last.taps)) != 1:
        return None
    row = round_up(last.reach(last.axis.size), lanes) * max(itemsize(image.array.dtype), 4)
    row *= points(channels)
    for slide in slides[1:-1]:
        row *= slide.reach(slide.axis.size)
    room = target.l2_bytes * 3 // 8
    if len(slides) == 1:
        fits_whole = row <= room and image.copyable
        return Image(image, (last,), tuple(channels), None, 1) if fits_whole else None
    first = slides[0]
    size = first.axis.size
    fits = [
        count for count in range(1, min(size, MOST_BAND) + 1)
        if size % count == 0 and first.reach(count) * row <= room
    ]
    narrow = not fits or (fits[-1] < min(LEAST_BAND, size) and not image.guarded)
    if narrow or not image.copyable:
        return None
    band = None if fits[-1] == size else first.axis
    return Image(image, tuple(slides), tuple(channels), band, fits[-1])


def _lies_in_zeros(image: ArrayAccess, slides: list[Slide]) -> bool:
    """Whether what a read's conditions leave out lies around the image, however it is reached."""
    if image.guard is None:
        return True
    moves = moves_of(image.guard, image.guard.src[1])
    if moves is None:
        return False
    address, *conditions = moves
    for slide in slides:
        axis, taps = slide.axis.nodes[-1], slide.taps.nodes[-1]
        for each in conditions:
            if each.get(axis, 0) * address.get(taps, 0) != each.get(taps, 0) * address.get(axis, 0):
                return False
    return True


def overlap(image: ArrayAccess, axis: PlannedAxis, taps: PlannedAxis) -> bool:
    """Whether an axis of the output and a reduced one move an image by overlapping steps."""
    far, step = abs(axis.stride(image) or 0), abs(taps.stride(image) or 0)
    return 0 < step < far * axis.size and far < step * taps.size


def _slide(image: ArrayAccess, moves_image: list[PlannedAxis], taps: PlannedAxis) -> Slide | None:
    """The axis of the output along which the windows lie whose elements are along `taps`."""
    step = abs(taps.stride(image) or 0)
    found: Slide | None = None
    for axis in moves_image:
        far = abs(axis.stride(image) or 0)
        if not overlap(image, axis, taps):
            continue
        unit = min(step, far)
        if step % unit or far % unit or _rank(image, step) != _rank(image, far):
            continue
        if found is None or far > abs(found.axis.stride(image) or 0):
            found = Slide(axis, taps, far // unit, step // unit)
    return found


def _rank(image: ArrayAccess, stride: int) -> int:
    """How many of the array's axes lie inside the one that a stride runs along."""
    size, rank = 1, 0
    for extent in reversed(image.array.shape[1:]):
        size *= extent if isinstance(extent, int) else stride + 1
        if size > stride:
            break
        rank += 1
    return rank


def cut_band(plan: CpuPlan, image: Image) -> list[PlannedAxis]:
    """Cut the rows of the output into bands; the loop inside a band, if there are several."""
    axis = image.band
    if axis is None:
        return []
    outer, inner = f"{axis.name}o", f"{axis.name}i"
    plan.cut(axis, {outer: 0, inner: image.rows}, {})
    loops = [axis.loops.pop()]
    return [PlannedAxis(inner, image.rows, axis.nodes, False, image.rows, loops, planned=True)]


def stage_image(plan: CpuPlan, image: Image, second: PlannedAxis) -> None:
    """Copy the image, for the tiles of the main part and of each tail of the axis of the steps."""
    plan.because(
        "array {} is copied {} rows of windows at a time, rows that windows share once",
        image.access.array.arg.slot, image.rows,
    )
    channels = [name for axis in image.channels for name in _names(axis)]
    for place, tile in enumerate(second.tiles or [()]):
        groups = []
        for slide in image.slides:
            axis = slide.axis
            if axis is image.band:
                names = [f"{axis.name}i"]
            elif axis is second:
                names = [*([] if place else loop_names([axis])), *tile]
            else:
                names = _names(axis)
            groups.append("+".join([*names, *_names(slide.taps)]))
        axes = (*groups[:-1], *channels, groups[-1])
        plan.stages.append(StageInput(image.access.array.arg.slot, axes, plan.lanes))


def _names(axis: PlannedAxis) -> list[str]:
    """The loops and tile axes of an axis without tails."""
    tiles = [name for tile in axis.tiles for name in tile]
    return [*loop_names([axis]), *tiles] or [axis.name]
