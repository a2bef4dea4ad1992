"""The tensor map that a bulk tensor copy reads: 128 bytes in memory, and the places it means.

Source of what the fields mean: CUDA driver API, "Tensor Map Object Management"; PTX ISA, "Tensor".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from baregrad.testing.virtual_gpu.ptx.types import Array

# Bytes of an element by its code: u8 u16 u32 i32 u64 i64 f16 f32 f32 (flushed) f64 bf16.
_ELEMENT_NBYTES: Final = (1, 2, 4, 4, 8, 8, 2, 4, 4, 8, 2)
_SPANS: Final = (0, 32, 64, 128)


@dataclass(frozen=True, slots=True)
class DecodedTensorMap:
    """A tensor in global memory and the box that a copy moves, the innermost axis first.

    `strides` are bytes, of the axes from 1 on; `steps` the strides between elements of the box;
    `span` the bytes within which 16-byte chunks are exchanged, 0 for none. rounds: float32 that is
    copied to shared memory is rounded to tf32. low, high: of the mode im2col, the corners of the
    pixels of all axes but the first and the last; the box is then channels, and pixels.
    """

    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    element_nbytes: int
    element_code: int
    span: int
    interleave: int
    fills_nan: bool
    rounds: bool
    low: tuple[int, ...] = ()
    high: tuple[int, ...] = ()

    @classmethod
    def decode(cls, data: bytes) -> DecodedTensorMap:
        """Return what the 128 bytes of a tensor map say."""
        words = np.frombuffer(data, "<u4").astype(np.int64).tolist()
        flags = words[2]
        rank = (flags >> 4 & 7) + 1
        code = flags >> 7 & 15
        strides = [
            (words[3 + axis] | (words[7] >> 4 * axis & 15) << 32) * 16 for axis in range(rank - 1)
        ]
        box = [(words[13] >> 24) + 1] + [
            (words[14] >> 8 * axis & 255) + 1 for axis in range(rank - 1)
        ]
        low, high = _corners(words, rank)
        if low:
            box = [box[0], (words[15] & 1023) + 1]
        return cls(
            address=words[0] | words[1] << 32,
            sizes=tuple(words[8 + axis] + 1 for axis in range(rank)),
            strides=tuple(strides),
            box=tuple(box),
            steps=tuple((words[13] >> 3 * axis & 7) + 1 for axis in range(rank)),
            element_nbytes=_ELEMENT_NBYTES[code] if code < len(_ELEMENT_NBYTES) else 0,
            element_code=code,
            span=_SPANS[flags >> 13 & 3],
            interleave=flags >> 11 & 3,
            fills_nan=bool(flags >> 15 & 1),
            rounds=bool(flags >> 16 & 1),
            low=low,
            high=high,
        )

    @property
    def counts(self) -> tuple[int, ...]:
        """Elements of the box along each axis; a step along the innermost has no effect."""
        if self.low:
            return self.box
        rest = zip(self.box[1:], self.steps[1:], strict=True)
        return (self.box[0], *(size // step for size, step in rest))

    @property
    def nbytes(self) -> int:
        """Bytes of a whole box, which an mbarrier should expect."""
        return int(np.prod(self.counts)) * self.element_nbytes

    def places(
        self, coordinates: tuple[int, ...], shared: int, offsets: tuple[int, ...] = ()
    ) -> tuple[Array, Array, Array]:
        """Return, for each element of the box: its address, its place in shared memory, if inside.

        `shared` is the address of the box in shared memory, on which the exchange of chunks acts.
        offsets: of the mode im2col, what is added to the places of pixels.
        """
        counts = self.counts
        grid = np.meshgrid(*[np.arange(one) for one in reversed(counts)], indexing="ij")
        axes = [one.reshape(-1) for one in reversed(grid)]
        if self.low:
            pixels = self._pixels(coordinates[1:], offsets)
            positions = [coordinates[0] + axes[0], *[along[axes[1]] for along in pixels]]
        else:
            steps = (1, *self.steps[1:])
            positions = [
                begin + along * step
                for begin, along, step in zip(coordinates, axes, steps, strict=True)
            ]
        inside = np.ones(len(axes[0]), bool)
        address = np.full(len(axes[0]), self.address, np.int64)
        for axis, position in enumerate(positions):
            inside &= (position >= 0) & (position < self.sizes[axis])
            address += position * (self.strides[axis - 1] if axis else self.element_nbytes)
        inner = counts[0] * self.element_nbytes
        pitch = max(inner, self.span) if self.span else inner
        row = np.zeros(len(axes[0]), np.int64)
        for axis in range(len(counts) - 1, 0, -1):
            row = row * counts[axis] + axes[axis]
        places = swizzle(shared + row * pitch + axes[0] * self.element_nbytes, self.span)
        return address, places, inside


    def _pixels(self, begin: tuple[int, ...], offsets: tuple[int, ...]) -> list[Array]:
        """The places of pixels along all axes but the first, from `begin` on.

        The number of a pixel is counted in base pixels of the bounding box, the fastest first.
        """
        counts = [
            (size - 1 + high - low) // step + 1
            for size, low, high, step in zip(
                self.sizes[1:-1], self.low, self.high, self.steps[1:-1], strict=True
            )
        ]
        number, whole = begin[-1] * int(np.prod(counts)), 1
        for at, low, count, step in zip(begin, self.low, counts, self.steps[1:-1], strict=False):
            number += (at - low) // step * whole
            whole *= count
        numbers = number + np.arange(self.box[1])
        found = []
        for low, count, step, offset in zip(
            self.low, counts, self.steps[1:-1], offsets, strict=True
        ):
            found.append(low + numbers % count * step + offset)
            numbers = numbers // count
        return [*found, numbers]


def _corners(words: list[int], rank: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The lower and the upper corners of a map for im2col; nothing for others."""
    if not words[2] & 1:
        return (), ()
    bits = 16 // (rank - 2)
    fields = [
        [words[14] >> half + bits * axis & (1 << bits) - 1 for axis in range(rank - 2)]
        for half in (0, 16)
    ]
    low, high = (
        tuple([one - (one >> bits - 1 << bits) for one in corner]) for corner in fields
    )
    return low, high


def swizzle(addresses: Array, span: int) -> Array:
    """Return shared addresses with 16-byte chunks exchanged within spans of 32, 64 or 128 bytes."""
    if not span:
        return addresses
    mask = span // 16 - 1
    return np.asarray(addresses ^ ((addresses >> 7 & mask) << 4))
