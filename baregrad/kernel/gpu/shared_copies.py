"""Copies in shared memory: all threads of a block make them, each a part.

The elements are numbered in the order in which the input lies, and dealt out so that neighbouring
threads read neighbours, several at a time where they lie together. The copy itself may lie in
another order: then its rows are padded, so that writes have no bank conflicts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from math import prod

from baregrad.base.errors import ScheduleError
from baregrad.dtypes import DType, dtypes
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Alloc
from baregrad.ir.core.axes import THREAD_BINDS
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, extent_of, range_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.ir.core.substitution import substitute
from baregrad.ir.protocol.attributes import TensorBox
from baregrad.kernel.facts.analysis import by_id
from baregrad.kernel.gpu.shared_layouts import in_rows, pitch_of
from baregrad.kernel.instructions.mma_sync import TILE
from baregrad.kernel.instructions.wgmma import is_of_groups, lanes_of_tile
from baregrad.target.gpu import GpuTarget

# Beyond the ids of a kernel's own axes and of its copies' axes.
FIRST_ID = 1 << 21
# Bytes between the ends of rows that are written across: rows stay aligned to vectors.
APART = 16
VECTOR_BYTES = 16
# Points of an axis of threads before these share the folding of vectors.
MANY_POINTS = 16
# Rounds of copying that are written out one by one, so that their loads are under way together; and
# elements of them, where that makes more rounds.
MOST_ROUNDS, TOGETHER = 4, 16
# The same where they are under way while the threads compute.
MOST_ROUNDS_AHEAD = 64


@dataclass(slots=True)
class SharedCopy:
    """A statement of a copy: in `loop` and under `condition`, if any, `value` goes to `places`.

    box: that of which the value is the array, and the places are those of a COPYTO's.
    """

    loop: Node | None
    condition: Node | None
    value: Node
    places: tuple[Node, ...]
    box: TensorBox | None = None


def thread_axes(roots: list[Node]) -> tuple[Node, ...]:
    """An axis for each dimension in which a kernel's blocks have threads, below all its OUTs."""
    found: dict[str, Node] = {}
    for node in toposort(*roots):
        if node.op is Ops.RANGE and node.arg.is_thread:
            found.setdefault(node.arg.bind, node)
        elif node.op is Ops.RANGE and node.arg.bind == TILE:
            if is_of_groups(node) or "thread" not in found:
                found["thread"] = lanes_of_tile(node)
    return tuple([found[bind] for bind in THREAD_BINDS if bind in found])


def copied_by_threads(
    stage: Node, threads: tuple[Node, ...], number: int
) -> tuple[Node, SharedCopy]:
    """The shared array of a STAGE, and what fills it; `number` distinguishes arrays."""
    value, *axes = stage.src
    order = by_id(set(axes))
    sizes = tuple([_constant(axis) for axis in order])
    elements = prod(sizes)
    crossed = order[-1] is not axes[-1]
    shape = [_constant(axis) for axis in axes]
    layout = stage.arg.layout
    row = row_of(stage)
    if layout is not None:
        shape[-len(row) :] = [pitch_of(layout)]
    elif crossed:
        shape[-1] += APART // max(value.dtype.itemsize, 1)
    swizzled = layout if layout is not None and layout.swizzle is not None else None
    where = Alloc(number, "shared", tuple(shape), swizzled, stage.arg.depth, f"s{number}")
    buffer = Node(Ops.ALLOC, value.dtype, (), where)
    lanes = 1 if crossed else math.gcd(_lanes(value, order[-1]), shape[-1])
    base = FIRST_ID + 8 * number
    place: Dim = 0
    stride = 1
    if lanes > 1:
        place = range_node(lanes, base, "", "vector")
        stride = lanes
    for step, axis in enumerate(threads):
        own = range_node(_constant(axis), base + 1 + step, "", axis.arg.bind)
        place = index.add(place, index.mul(own, stride))
        stride *= _constant(axis)
    rounds = -(-elements // stride)
    loop: Node | None = None
    if rounds > 1:
        most = max(MOST_ROUNDS, TOGETHER // lanes) if stage.arg.depth == 1 else MOST_ROUNDS_AHEAD
        unit = "unroll" if rounds <= most else "loop"
        each = range_node(rounds, base + 5, "", unit)
        place = index.add(place, index.mul(each, stride))
        loop = each if unit == "loop" else None
    condition = None
    if elements % stride:
        whole = index.floordiv(place, lanes)
        condition = index.less(whole, elements // lanes)
    digits = tuple([index.as_node(digit) for digit in index.unflatten(place, sizes)])
    mapping = dict(zip(order, digits, strict=True))
    places = in_rows([mapping[axis] for axis in axes], row)
    return buffer, SharedCopy(loop, condition, substitute(value, mapping), places)


def row_of(stage: Node) -> tuple[int, ...]:
    """The sizes of a STAGE's axes, the last ones, that are one in its array."""
    axes = stage.src[1:]
    layout = stage.arg.layout
    count = 1 if layout is None else len(axes) - len(layout.digits) + 1
    return tuple([_constant(axis) for axis in axes[len(axes) - count :]])


def check_shared(kernel: Node, target: GpuTarget) -> None:
    """Raise ScheduleError if a loop-level KERNEL keeps more for a block than it can hold."""
    nodes = toposort(kernel)
    arrays = {n for n in nodes if n.op is Ops.ALLOC and n.arg.space == "shared"}
    nbytes = sum(
        prod(array.shape) * array.arg.depth * max(array.dtype.itemsize, 1) for array in arrays
    )
    nbytes += _exchanged(nodes)
    if nbytes > target.shared_bytes_per_block:
        raise ScheduleError(
            f"copies do not fit the shared memory of {target.name}'s blocks",
            found=f"{nbytes} bytes", wanted=f"at most {target.shared_bytes_per_block}",
        )


def _exchanged(nodes: list[Node]) -> int:
    """Bytes through which threads show each other what they fold, at most."""
    dims: dict[str, int] = {}
    folds: set[tuple[int, DType, int]] = set()
    shared_out: set[tuple[int, DType, int, str]] = set()
    for node in nodes:
        if node.op is Ops.RANGE and node.arg.is_thread:
            dims[node.arg.bind] = _constant(node)
        elif node.op is Ops.REDUCE:
            over = [child for child in node.src if child.op is Ops.RANGE and child.arg.is_thread]
            free = [axis for axis in node.ranges if axis.arg.bind == "vector"]
            lanes = prod([_constant(axis) for axis in free])
            for place, dtype in enumerate(node.arg.monoid.states if over else ()):
                nbytes = lanes * max(dtype.itemsize, 1)
                folds.add((place, dtype, nbytes))
                shared_out |= {
                    (place, dtype, nbytes, axis.arg.bind) for axis in over
                    if is_shared_out(_constant(axis), lanes)
                }  # fmt: skip
    threads = prod(dims.values())
    found = sum(threads * nbytes for _, _, nbytes in folds)
    for _, _, nbytes, bind in shared_out:
        inner = THREAD_BINDS[: THREAD_BINDS.index(bind)]
        stride = prod([dims.get(one, 1) for one in inner])
        found += (threads - (dims[bind] - 1) * stride) * nbytes
    return found


def is_shared_out(points: int, lanes: int) -> bool:
    """Whether vectors of so many points along an axis are folded by a thread for each element."""
    return points >= MANY_POINTS and 1 < lanes <= points


def _constant(axis: Node) -> int:
    extent = extent_of(axis)
    assert isinstance(extent, int)
    return extent


def _lanes(value: Node, inner: Node) -> int:
    """Elements along an axis that a thread copies at once: as many as some read has together.

    Or as many as are unpacked from the same words. 1 if they do not lie together, or if a condition
    is another one for each.
    """
    extent = _constant(inner)
    for lanes in (16, 8, 4, 2):
        if extent % lanes or lanes * max(value.dtype.itemsize, 1) > VECTOR_BYTES:
            continue
        chunk = range_node(extent // lanes, FIRST_ID - 2, "", "loop")
        lane = range_node(lanes, FIRST_ID - 1, "", "vector")
        place = index.as_node(index.add(index.mul(chunk, lanes), lane))
        if _is_together(substitute(value, {inner: place}), lane, lanes):
            return lanes
    return 1


def _is_together(value: Node, lane: Node, lanes: int) -> bool:
    """Whether a vector's elements lie together in some read, all under the same conditions.

    Or in words that are read once for all of them.
    """
    found, is_apart, has_words = False, False, False
    for node in toposort(value):
        if node.op is Ops.GUARD and lane in node.src[0].ranges:
            return False
        if node.op is Ops.LOAD and lane in node.ranges and node.dtype is not dtypes.bool:
            terms, constant = index.linear(node.src[1])
            others = [scale for atom, scale in terms.items() if atom is not lane]
            apart = any(lane in atom.ranges for atom in terms if atom is not lane)
            aligned = not any(other % lanes for other in (constant, *others))
            is_apart = True
            found = found or (terms.get(lane) == 1 and not apart and aligned)
        elif node.op is Ops.LOAD:
            has_words = has_words or node.dtype.kind == "uint"
    return found or (has_words and not is_apart and lane in value.ranges)
