"""Products drawn at random: of any dtypes, layouts and sizes, with views, edges and batches."""

from __future__ import annotations

import random
from math import prod
from typing import NamedTuple

from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.index import Dim, variable
from baregrad.ir.core.node import Node, alu, cast, extent_of, range_node
from baregrad.ir.core.op import Ops
from tests.kernel import kernels as k

F32, TF32 = dtypes.float32, dtypes.tfloat32
KINDS = (
    (dtypes.bfloat16, dtypes.bfloat16, F32), (dtypes.float16, dtypes.float16, F32),
    (dtypes.float8_e4m3fn, dtypes.float8_e5m2, F32), (dtypes.int8, dtypes.int8, dtypes.int32),
    (TF32, TF32, F32),
)  # fmt: skip


# So many fit a GPU.
MOST_RESULTS = 1 << 30


class Limits(NamedTuple):
    """The longest axis, the most rows or columns, and whether extents may be symbolic."""

    axis: int = 4096
    side: int = 16384
    symbolic: bool = True


LARGE = Limits()
# What an interpreter of GPU programs does in a second.
SMALL = Limits(64, 160, False)


def any_product(rng: random.Random, limits: Limits = LARGE) -> Node:
    """A kernel that is one sum of products over one or two axes."""
    kinds = rng.choice(KINDS)
    rows, columns = _side(rng, limits, 64), _side(rng, limits, 64)
    depth = _side(rng, limits, 128)[:2]
    batch = [min(_size(rng, limits.axis), 8 if limits.symbolic else 2) for _ in range(_few(rng))]
    while prod(rows) * prod(columns) * prod(batch) > MOST_RESULTS:
        side = max(rows, columns, key=prod)
        side[side.index(max(side))] //= 2
    every = [
        range_node(_extent(rng, f"v{place}", size, limits), place)
        for place, size in enumerate([*batch, *rows, *columns, *depth])
    ]
    ends = [len(batch), len(batch) + len(rows), len(batch) + len(rows) + len(columns)]
    shared, left, right, summed = (
        every[a:b] for a, b in zip([0, *ends], [*ends, len(every)], strict=True)
    )
    # An axis that one factor lacks is of the other's side.
    lacking = {axis: rng.choice((0, 0, 0, 0, 1, 2)) for axis in shared}
    factors = []
    for slot, own, dtype in ((1, left, kinds[0]), (2, right, kinds[1])):
        axes = [*[axis for axis in shared if lacking[axis] != slot], *own, *summed]
        factors.append(cast(_read(rng, slot, dtype, axes, len(summed)), kinds[2]))
    total = k.reduce(Ops.ADD, alu(Ops.MUL, *factors), *summed)
    order = [*shared, *left, *right]
    if rng.random() < 0.3:
        rng.shuffle(order)
    result = k.param(0, *[extent_of(axis) for axis in order], dtype=kinds[2])
    return k.kernel(k.out(result, total, *order), name="product")


def _few(rng: random.Random) -> int:
    return rng.choice((0, 0, 1, 2))


def _size(rng: random.Random, most: int) -> int:
    """From 1 to `most`, all magnitudes alike; often what tiles or copies divide."""
    step = rng.choice((1, 8, 8, 16, 16, 32, 64, 64, 128))
    return max(min(round(2 ** rng.uniform(0, 12)), most) // step * step, 1)


def _extent(rng: random.Random, name: str, size: int, limits: Limits) -> Dim:
    """A size, or now and then a number of that at most."""
    if limits.symbolic and rng.random() < 0.03:
        return variable(name, rng.choice((0, 1, size)), size)
    return size


def _side(rng: random.Random, limits: Limits, least: int) -> list[int]:
    """The sizes of one to three axes, so many points together at least."""
    found = [_size(rng, limits.axis) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    while prod(found) > limits.side:
        found[found.index(max(found))] //= 2
    while prod(found) < least:
        found[rng.randrange(len(found))] *= 2
    return found


def _order(rng: random.Random, axes: list[Node], summed: int, narrow: bool) -> list[Node]:
    """In which order axes lie in memory, of which the last ones are summed."""
    how = rng.random()
    if how < (0.7 if narrow else 0.4):
        return axes
    if how < 0.8:
        return [*axes[-summed:], *axes[:-summed]]
    return rng.sample(axes, len(axes))


def _read(
    rng: random.Random, slot: int, dtype: DType, axes: list[Node], summed: int
) -> Node:
    """An element of an array whose axes lie in any order, as part of more, or overlapping."""
    chunk = 16 // dtype.itemsize
    guarded, stride, place = rng.random() < 0.05, 1, rng.choice([0] * 16 + [1, 8, 64, 1600])
    begin: Dim = place
    conditions = []
    for axis in reversed(_order(rng, axes, summed, dtype.itemsize != 2)):
        size = index.upper(extent_of(axis))
        step = stride * rng.choice([1] * 39 + [2])
        if rng.random() < 0.04 and stride > 1:
            # Windows that overlap.
            step = rng.choice((1, 8, chunk, 2 * chunk, 64))
        at: Dim = axis
        if guarded and rng.random() < 0.4:
            at = index.sub(axis, rng.choice((0, 1, 2, 8)))
            conditions.append(index.inside(at, size))
        if rng.random() < 0.015:
            at = index.sub(size - 1, at)
        begin = index.add(begin, index.mul(at, step))
        stride = max(stride, step) * size + _pad(rng)
    if rng.random() < 0.03:
        scale = rng.choice((1, 16, stride))
        begin = index.add(begin, index.mul(variable("off", 0, 100), scale))
    begin = index.as_node(begin)
    most = max(index.upper(begin) + 1, 1)
    if rng.random() < 0.03:
        conditions.append(index.less(begin, max(most // 2, 1)))
    read = k.at(k.param(slot, most, dtype=F32 if dtype is TF32 else dtype), begin)
    kept = [one for one in conditions if one.op is not Ops.CONST]
    if kept:
        read = k.guard(index.both(*kept), read)
    return cast(read, TF32) if dtype is TF32 else read


def _pad(rng: random.Random) -> int:
    return rng.choice((1, 8, 8, 16, 16, 64)) if rng.random() < 0.15 else 0
