"""The places of an array that a copy of a box moves, in the order in which they land.

Source: PTX ISA, "Tiled mode" and "Im2col mode".
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from baregrad.ir.evaluate.alu import Array
from baregrad.ir.protocol.attributes import TensorBox, Walk


def box_elements(box: TensorBox, begins: Sequence[int]) -> tuple[Array, Array]:
    """Of each element of a box that begins somewhere: its offset, and whether it is there.

    begins: along each dimension, the innermost first; of a walk, then its offsets.
    """
    rank = len(box.shape)
    shape, strides = (np.array(sizes, np.int64) for sizes in (box.shape, box.strides))
    if box.walk is not None:
        index = _walked(box, box.walk, begins)
    else:
        places = np.stack(np.unravel_index(np.arange(prod(box.box)), box.box[::-1]))[::-1]
        index = places + np.array(begins)[:, None]
    assert len(index) == rank
    inside = np.asarray(((index >= 0) & (index < shape[:, None])).all(0))
    return np.where(inside, strides @ index, 0), inside


def _walked(box: TensorBox, walk: Walk, begins: Sequence[int]) -> Array:
    """The places of a walk, each with some channels, as columns of an array."""
    rank = len(box.shape)
    channels, count = box.box
    offsets = np.array([0, *begins[rank:], 0])
    at = list(begins[:rank])
    found = []
    for _ in range(count):
        found.append(np.array(at) + offsets)
        for axis in range(1, rank):
            if axis == rank - 1:
                at[axis] += 1
                break
            at[axis] += walk.steps[axis - 1]
            if at[axis] <= box.shape[axis] - 1 + walk.high[axis - 1]:
                break
            at[axis] = walk.low[axis - 1]
    index = np.repeat(np.stack(found, axis=1), channels, axis=1)
    index[0] += np.tile(np.arange(channels), count)
    return index
