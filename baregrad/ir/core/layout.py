"""Layouts: digit lists with at most one XOR, for memory, fragments, packing and quants alike.

A layout is a list of digits (extent, logical axis, logical stride, physical axis, physical
stride): for d in 0..extent-1 the digit adds d*logical_stride to its logical axis and
d*physical_stride to its physical axis. Read from left to right it maps an element to where it
lies; from right to left it says what lies there.

Physical axes: `bit` (an address in bits), `reg`, `lane`, `warp`, `group`, `cta`, `slot`. A digit
without a logical axis is a replica: the same element lies at each of its places. A digit without a
physical axis is a broadcast: its elements share one place. Gaps between physical strides are
padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from baregrad.base.errors import UnsupportedLayout
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim

PHYSICAL_AXES = ("bit", "reg", "lane", "warp", "group", "cta", "slot")


@dataclass(frozen=True, slots=True, order=True)
class Digit:
    """`extent` steps along a logical axis and along a physical one; an empty name means none."""

    extent: int
    logical: str
    logical_stride: int
    physical: str
    physical_stride: int

    def __repr__(self) -> str:
        left = f"{self.logical}*{self.logical_stride}" if self.logical else "replica"
        right = f"{self.physical}*{self.physical_stride}" if self.physical else "broadcast"
        return f"{self.extent}: {left} -> {right}"


@dataclass(frozen=True, slots=True)
class Swizzle:
    """On a byte address a: a ^ (((a >> (base+shift)) & (2**bits - 1)) << base)."""

    bits: int
    base: int
    shift: int

    def __call__(self, address: int) -> int:
        """The swizzled byte address; applying it twice gives the address back."""
        picked = (address >> (self.base + self.shift)) & ((1 << self.bits) - 1)
        return address ^ (picked << self.base)

    @property
    def alignment(self) -> int:
        """Bytes at which the pattern repeats: the base of a swizzled buffer must be a multiple."""
        return 1 << (self.base + self.shift + self.bits)


@dataclass(frozen=True, slots=True)
class Layout:
    """An arrangement of an array's elements over memory, registers, lanes and warps.

    `offset` is a constant in bits on the `bit` axis. Raises UnsupportedLayout for unknown physical
    axes.
    """

    digits: tuple[Digit, ...]
    swizzle: Swizzle | None = None
    offset: int = 0

    def __post_init__(self) -> None:
        for digit in self.digits:
            if digit.physical and digit.physical not in PHYSICAL_AXES:
                raise UnsupportedLayout(
                    f"{digit.physical!r} is no physical axis", wanted=", ".join(PHYSICAL_AXES)
                )
            if digit.extent < 1:
                raise UnsupportedLayout(
                    f"the digit {digit!r} has no elements", wanted="extent >= 1"
                )

    def extents(self) -> dict[str, int]:
        """The extent of each logical axis, on the assumption that its digits cover it."""
        found: dict[str, int] = {}
        for digit in self.digits:
            if digit.logical:
                reach = (digit.extent - 1) * digit.logical_stride
                found[digit.logical] = found.get(digit.logical, 0) + reach
        return {axis: reach + 1 for axis, reach in found.items()}

    def place(self, element: Mapping[str, int]) -> dict[str, int]:
        """Where an element lies (its first place, where replicas hold several)."""
        where = self._origin()
        for digit in self.digits:
            if digit.logical and digit.physical:
                step = element[digit.logical] // digit.logical_stride % digit.extent
                where[digit.physical] += step * digit.physical_stride
        return self._swizzled(where)

    def _origin(self) -> dict[str, int]:
        where = dict.fromkeys(self.physical_axes(), 0)
        if self.offset or "bit" in where:
            where["bit"] = self.offset
        return where

    def _swizzled(self, where: dict[str, int]) -> dict[str, int]:
        if self.swizzle is not None:
            byte, rest = divmod(where["bit"], 8)
            where["bit"] = self.swizzle(byte) * 8 + rest
        return where

    def address(self, element: Mapping[str, Dim], axis: str = "bit") -> Dim:
        """Where an element lies on one physical axis, as index arithmetic; the swizzle left out."""
        where: Dim = self.offset if axis == "bit" else 0
        for digit in self.digits:
            if digit.logical and digit.physical == axis:
                step = index.floordiv(element[digit.logical], digit.logical_stride)
                step = index.mod(step, digit.extent)
                where = index.add(where, index.mul(step, digit.physical_stride))
        return where

    def physical_axes(self) -> tuple[str, ...]:
        """The physical axes used, in the canonical order."""
        used = {digit.physical for digit in self.digits}
        return tuple(axis for axis in PHYSICAL_AXES if axis in used)

    def entries(self) -> Iterator[tuple[dict[str, int], dict[str, int]]]:
        """Every (element, place) pair, replicas and broadcasts included."""
        for steps in product(*(range(digit.extent) for digit in self.digits)):
            element: dict[str, int] = {}
            where = self._origin()
            for step, digit in zip(steps, self.digits, strict=True):
                if digit.logical:
                    element[digit.logical] = (
                        element.get(digit.logical, 0) + step * digit.logical_stride
                    )
                if digit.physical:
                    where[digit.physical] += step * digit.physical_stride
            yield element, self._swizzled(where)

    def renamed(self, names: Mapping[str, str]) -> Layout:
        """The same arrangement of axes of other names."""
        digits = tuple(replace(d, logical=names.get(d.logical, d.logical)) for d in self.digits)
        return Layout(digits, self.swizzle, self.offset)

    def nbytes(self) -> int:
        """Bytes that the layout spans, gaps and the whole last row counted."""
        reach = [d.extent * d.physical_stride for d in self.digits if d.physical == "bit"]
        return -(-max(reach, default=0) // 8)

    def continues(self, part: Layout) -> bool:
        """Whether `part` is the beginning of this layout along each axis: the same but shorter.

        Such a part may be taken at any multiple of its extent, as instructions do with tiles.
        """
        if self.swizzle != part.swizzle or len(self.digits) != len(part.digits):
            return False
        return all(
            (mine.logical, mine.logical_stride, mine.physical, mine.physical_stride)
            == (theirs.logical, theirs.logical_stride, theirs.physical, theirs.physical_stride)
            and mine.extent % theirs.extent == 0
            for mine, theirs in zip(self.digits, part.digits, strict=True)
        )


def row_major(bits: int, *axes: tuple[str, int], pitch: int = 0) -> Layout:
    """A row-major array of elements of `bits` bits; `pitch` elements from row to row (0: dense)."""
    digits = []
    stride = bits
    for position, (name, extent) in enumerate(reversed(axes)):
        digits.append(Digit(extent, name, 1, "bit", stride))
        stride *= pitch if position == 0 and pitch else extent
    return Layout(tuple(digits))


def swizzled_tile(row: str, rows: int, column: str, columns: int, bits: int, span: int) -> Layout:
    """A K-major tile as bulk copies write and `wgmma` reads it: rows of `span` bytes, swizzled.

    span is 128, 64 or 32 bytes; columns beyond one span follow as further panels.
    """
    shapes = {128: Swizzle(3, 4, 3), 64: Swizzle(2, 4, 3), 32: Swizzle(1, 4, 3)}
    if span not in shapes:
        raise UnsupportedLayout(f"no swizzle has a span of {span} bytes", wanted="128, 64 or 32")
    per_row = span * 8 // bits
    digits = [
        Digit(rows, row, 1, "bit", span * 8),
        Digit(min(columns, per_row), column, 1, "bit", bits),
    ]
    if columns > per_row:
        digits.append(Digit(columns // per_row, column, per_row, "bit", span * 8 * rows))
    return Layout(tuple(digits), shapes[span])


def wgmma_accumulator(n: int) -> Layout:
    """Where element (m, n) of a 64 x n `wgmma` accumulator lies; measured on an H200."""
    return Layout(
        (
            Digit(4, "n", 2, "lane", 1),
            Digit(8, "m", 1, "lane", 4),
            Digit(4, "m", 16, "warp", 1),
            Digit(2, "n", 1, "reg", 1),
            Digit(2, "m", 8, "reg", 2),
            Digit(n // 8, "n", 8, "reg", 4),
        )
    )
