"""What is known while a kernel is rewritten for one choice of the parts of its axes; chunks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod

from baregrad.dtypes import DType, dtypes
from baregrad.ir.analysis.words import in_word
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Param
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, instruction, make_node, range_node, scalar, toposort
from baregrad.ir.core.op import Ops
from baregrad.kernel.applying.stage_in_output import is_alike
from baregrad.kernel.applying.staging_checks import shares_of
from baregrad.kernel.facts.analysis import Offset, out_axes
from baregrad.kernel.facts.axis_table import Axis, AxisTable, Limit, Piece
from baregrad.kernel.loops.loop_pieces import is_carried, scoped_below, widened

Pieces = dict[Node, Piece]
_PARAM = Ops.PARAM.bit
# Beyond the ids of any kernel's own axes.
CHUNK_ID = 1 << 20


@dataclass(slots=True)
class Scope:
    """One choice of pieces for the original axes, and what was rewritten under it.

    ranges: the final axis of each name (in a copying loop, and in a sum that is kept, some stand
    for others). early: what is rewritten is computed ahead of the condition that keeps an OUT
    within partial tiles, so that reads have guards of their own. copying: it is what a copy is made
    of, and not copied in its turn. finals: the final axes and scales of an original one. The rest
    is what was found: of nodes, of the parts of reductions, of axes, of accesses.
    """

    pieces: Pieces
    ranges: Mapping[str, Node]
    early: bool = False
    copying: bool = False
    done: dict[Node, Node] = field(default_factory=dict)
    parts: dict[Node, tuple[Node, ...]] = field(default_factory=dict)
    finals: dict[Node, list[tuple[Node, int]]] = field(default_factory=dict)
    offsets: dict[Offset, Node] = field(default_factory=dict)
    limits: dict[tuple[Limit, ...], Node] = field(default_factory=dict)


def chunks_of(axis: Axis, grain: int, position: int) -> tuple[Node, Node]:
    """The chunks of the parallel axis, and the iterations of one; the last may have fewer."""
    count = index.floordiv(index.add(axis.extent, grain - 1), grain)
    # Tails run with the last chunk, so there is one even where no whole tile is.
    count = index.maximum(count, 1)
    chunk = range_node(count, CHUNK_ID, f"{axis.name}_chunk", "pool")
    length: Dim = grain
    if index.mod(axis.extent, grain) != 0 or index.lower(axis.extent) < 1:
        length = index.minimum(grain, index.sub(axis.extent, index.mul(chunk, grain)))
    return chunk, range_node(length, position, axis.name)


def is_chunks(table: AxisTable, name: str) -> bool:
    """Whether the pool's axis can be one loop of which a chunk is some iterations.

    It is around all others, all that the kernel does depends on it, and no chunk is shorter:
    nothing is left to be done once a chunk.
    """
    axis, facts = table.axes[name], table.facts
    if table.grain == 1 or table.order[0] != name or not isinstance(axis.extent, int):
        return False
    if axis.extent % table.grain or table.staged or facts.stages or facts.scanned:
        return False
    if any(step.axis == name for step in table.pipelines):
        # Of a loop over part of the axis nobody knows which iteration is the first.
        return False
    pieces = {node: table.pieces_of(node) for node in facts.data}
    if any(len(each) > 1 for each in pieces.values()):
        return False
    parts = {node for node, (piece,) in pieces.items() if name in dict(piece.terms)}
    every = [*[each.free for each in facts.reductions], *map(out_axes, facts.outs)]
    return not any(map(parts.isdisjoint, every))


def flat_array(node: Node, table: AxisTable, words: frozenset[int]) -> Node:
    """A PARAM as one flat axis; of words, where those are what is read."""
    slot, shape, name = node.arg[:3]
    dtype = node.dtype
    streamed, asked = slot in table.streamed, table.ahead.get(slot)
    if len(shape) == 1 and asked is None and not streamed and slot not in words:
        return node
    size: Dim = prod(shape) if node.mask == _PARAM else index.product(shape)
    if slot in words:
        size, dtype = index.floordiv(size, in_word(dtype)), dtypes.int32
    if asked is None and isinstance(size, int):
        return _flat(slot, dtype, size, name, streamed)
    flat = Param(slot, (size,), name, streamed)
    if asked is not None:
        flat = flat._replace(ahead=asked.nbytes, shares=shares_of(table, asked))
    return make_node(Ops.PARAM, dtype, (), flat)


@lru_cache(1 << 10)
def _flat(slot: int, dtype: DType, size: int, name: str, streamed: bool) -> Node:
    """An argument of one axis: those of kernels are alike."""
    return instruction(Ops.PARAM, dtype, (), Param(slot, (size,), name, streamed), (size,))


def plain(node: Node, done: dict[Node, Node]) -> Node:
    """A node over its sources as they were rewritten."""
    if not node.src:
        return node
    src = tuple([done[child] for child in node.src])
    current = node if src == node.src else scalar(node.op, node.dtype, src, node.arg)
    if node.dtype is not dtypes.index and not node.op.bit & index.CONDITIONS:
        return current
    simpler = index.resimplify(current)
    return current if simpler is None else simpler


def is_sum_alone(out: Node, kernel: Node) -> bool:
    """Whether an OUT writes a staged REDUCE as it is, to neighbours, and nothing else reads that.

    The loops of the reduction stand outside those of its stage. What has the same element at every
    step may be an argument that the output is written over: its sum is made elsewhere, as is one
    whose lanes lie far apart in the output, since it is read and written time and again.
    """
    value = out.src[1]
    if value.op is not Ops.INDEX or value.src[0].op is not Ops.STAGE or out.arg.monoid is not None:
        return False
    stage = value.src[0]
    if len(stage.src) < 2 or not is_carried(stage):
        return False
    total = stage.src[0]
    monoid, _ = widened(total.arg.monoid, total.src[:1])
    if stage.arg.space != "scratch" or monoid.states != (out.src[0].dtype,):
        return False
    if any(stage in scoped_below(other.src[1:]) for other in kernel.src if other is not out):
        return False
    if any(axis.arg.bind == "tile" for axis in total.src[1:]) and not _takes_tiles(out):
        return False
    return not _lies_apart(out.src[2]) and not _reads_one_element(total, out.src[0])


def _takes_tiles(out: Node) -> bool:
    """Whether each element of a staged tile has a place of its own in an output."""
    terms, _ = index.linear(out.src[2])
    return out.src[2].op is not Ops.WHERE and all(axis in terms for axis in out.src[1].src[1:])


def _lies_apart(place: Node) -> bool:
    """Whether the lanes of a vector at a flat offset are no neighbours."""
    if place.op is Ops.WHERE:
        place = place.src[1]
    terms, _ = index.linear(place)
    for atom, scale in terms.items():
        if any(axis.arg.bind == "vector" for axis in atom.ranges):
            return atom.op is not Ops.RANGE or scale != 1
    return False


def _reads_one_element(total: Node, array: Node) -> bool:
    """Whether a REDUCE reads an element that its axes do not move, of an array like `array`."""
    steps = frozenset(total.src[1:])
    return any(
        node.op in (Ops.LOAD, Ops.INDEX) and node.src[0].op is Ops.PARAM
        and is_alike(node.src[0], array) and node.ranges.isdisjoint(steps)
        for node in toposort(total.src[0])
    )
