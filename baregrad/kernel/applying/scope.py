"""What is known while a kernel is rewritten for one choice of the parts of its axes; chunks."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import NamedTuple

from baregrad.dtypes import DType, dtypes
from baregrad.ir.analysis.words import in_word
from baregrad.ir.core import index
from baregrad.ir.core.attrs import KernelInfo, Out, Param
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, instruction, make_node, range_node, scalar
from baregrad.ir.core.op import Ops
from baregrad.kernel.applying.axes import Axis, AxisTable, Limit, Piece
from baregrad.kernel.applying.staging_checks import shares_of
from baregrad.kernel.facts.analysis import Offset, out_axes

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


class Write(NamedTuple):
    """An OUT over final axes: its array, value and place, what it is of, and its axes."""

    src: tuple[Node, Node, Node]
    arg: Out
    axes: frozenset[Node]


class Scheduled(NamedTuple):
    """A kernel over final axes, as its OUTs: what is only handed on need be no node."""

    src: tuple[Write, ...]
    arg: KernelInfo

    def node(self) -> Node:
        """The KERNEL."""
        outs = [instruction(Ops.OUT, dtypes.token, write.src, write.arg) for write in self.src]
        return instruction(Ops.KERNEL, dtypes.token, tuple(outs), self.arg)


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
    parts: set[Node] = set()
    for node in facts.data:
        merged = table.merged.get(node)
        pieces = table.pieces[merged[0] if merged else table.names[node]]
        if len(pieces) > 1:
            return False
        if name in dict(pieces[0].terms):
            parts.add(node)
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


def value_of(piece: Piece, terms: dict[Node, int], merged: tuple[str, Dim, Dim] | None) -> Node:
    """What an original axis is, given its piece and the final axes that that is a sum of.

    merged: what it was collapsed into, its stride there and its extent.
    """
    value: Dim
    if isinstance(piece.start, int):
        value = index.from_linear(terms, piece.start)
    else:
        value = index.total((index.from_linear(terms, 0), piece.start))
    if merged is not None:
        value = index.mod(index.floordiv(value, merged[1]), merged[2])
    return index.as_node(value)


def every_choice(
    groups: Iterable[list[Node]], options: Sequence[tuple[Piece, ...]]
) -> Iterator[Pieces]:
    """Every choice of one piece for each group of axes."""
    whole = [*groups]
    for chosen in itertools.product(*options):
        pieces: Pieces = {}
        for nodes, piece in zip(whole, chosen, strict=True):
            for node in nodes:
                pieces[node] = piece
        yield pieces
