"""Sums of a product's results on GPUs, made in parts by the kernel of the product.

Statistics of what a product stores, as of a norm, are a kernel that reads all of it again. Where
that does not fit a cache, the product writes sums of parts of neighbouring columns beside it, and
that kernel reads these. A sum of squared distances from a mean is put together from those of each
part from its own. Source: Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for
Computing Sample Variances", 1979.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from baregrad.base.bits import round_up
from baregrad.dtypes import dtypes
from baregrad.engine.plans.unpacked_beside import ALIGNMENT, MOST_MORE, room, taken
from baregrad.ir.core import index
from baregrad.ir.core.attrs import Out, Param, Reduce
from baregrad.ir.core.index import Dim
from baregrad.ir.core.monoid import primitive
from baregrad.ir.core.node import (
    Node,
    alu,
    const,
    extent_of,
    make_node,
    range_node,
    scalar,
    toposort,
)
from baregrad.ir.core.op import ELEMENTWISE, Ops, mask_of
from baregrad.ir.core.substitution import substitute
from baregrad.kernel import choose_schedule, facts_of
from baregrad.kernel.facts.analysis import iterations, with_sums
from baregrad.kernel.facts.axis_table import fresh_axes
from baregrad.kernel.gpu.side_sums import PART, TileSide, fills, tiles_of
from baregrad.schedule.partition import kernel_of
from baregrad.schedule.plan import Launch, Plan, PlannedBuffer
from baregrad.target.gpu import GpuTarget

# Bytes of results that no cache holds.
LEAST_NBYTES = 1 << 25
_HALVES = (dtypes.bfloat16, dtypes.float16)
_F32 = dtypes.float32
_OTHERS = mask_of((Ops.SCAN, Ops.FOLD, Ops.STAGE, Ops.PROJ, Ops.GUARD))


def with_side_sums(plan: Plan, target: GpuTarget) -> Plan:
    """The plan with sums of long products' results made of parts that the products sum."""
    steps, buffers = list(plan.steps), list(plan.buffers)
    arena = plan.arena_nbytes
    if not target.warpgroup_warps or not isinstance(arena, int):
        return plan
    most = arena + MOST_MORE
    known: dict[Node, _Matrix | None] = {}
    for at in range(len(steps)):
        front = _product_of(steps, buffers, at)
        if front is None:
            continue
        kernel = steps[front].kernel
        if kernel not in known:
            known[kernel] = _matrix_of(kernel, target)
        matrix = known[kernel]
        sums = None if matrix is None else _Sums.of(steps[at], matrix)
        if sums is None:
            continue
        offsets, spans = [], taken(steps, buffers, -1, front, at)
        for _ in sums.values:
            offset = room(sums.nbytes, 0, spans)
            offsets.append(offset)
            spans = sorted([*spans, (offset, offset + sums.nbytes)])
        end = round_up(max(offsets) + sums.nbytes, ALIGNMENT)
        if end > most:
            continue
        arena = max(arena, end)
        places = tuple(range(len(buffers), len(buffers) + len(offsets)))
        shape = sums.matrix.shape
        buffers += [
            PlannedBuffer("temp", _F32, shape, sums.nbytes, offset=offset) for offset in offsets
        ]
        steps[front] = sums.product(steps[front], places)
        steps[at] = sums.reader(steps[at], places)
    if steps == list(plan.steps):
        return plan
    return replace(plan, steps=tuple(steps), buffers=tuple(buffers), arena_nbytes=arena)


def _product_of(
    steps: Sequence[Launch], buffers: Sequence[PlannedBuffer], at: int
) -> int | None:
    """The step that writes all that a step of sums alone reads, if it is long; else None."""
    step = steps[at]
    count = len(step.writes)
    if step.writes != tuple(range(count)) or len(step.buffers) != count + 1 or step.part:
        return None
    kernel = step.kernel
    if not kernel.mask & Ops.REDUCE.bit or kernel.mask & (_OTHERS | Ops.VAR.bit):
        return None
    if any(out.arg != Out() for out in kernel.src):
        return None
    place = step.buffers[count]
    read = buffers[place]
    if read.dtype not in _HALVES or not isinstance(read.nbytes, int):
        return None
    if read.nbytes < LEAST_NBYTES or read.kind not in ("temp", "output"):
        return None
    writer = next((n for n in reversed(range(at)) if _writes(steps[n], place)), None)
    if writer is None:
        return None
    front = steps[writer]
    is_alone = front.writes == (0,) and len(front.kernel.src) == 1 and front.part is None
    return writer if is_alone and not front.kernel.arg.sums else None


def _writes(step: Launch, place: int) -> bool:
    return any(step.buffers[slot] == place for slot in step.writes)


@dataclass(frozen=True, slots=True)
class _Matrix:
    """A product as a matrix: its OUT, its axes as rows and columns, its number of arrays."""

    out: Node
    rows: tuple[Node, ...]
    columns: tuple[Node, ...]
    arrays: int

    @property
    def shape(self) -> tuple[int, int]:
        """That of sums of parts of its columns: neighbouring rows are neighbours."""
        return iterations(self.columns) // PART, iterations(self.rows)

    def value(self, row: Dim, column: Dim) -> Node:
        """The element of a row and a column."""
        at: dict[Node, Node] = {}
        for axes, place in ((self.rows, row), (self.columns, column)):
            extents = tuple([extent_of(axis) for axis in axes])
            found = index.unflatten(place, extents)
            at |= {axis: index.as_node(one) for axis, one in zip(axes, found, strict=True)}
        return substitute(self.out.src[1], at)


def _matrix_of(kernel: Node, target: GpuTarget) -> _Matrix | None:
    """A kernel as a product that can sum parts of its columns, if it is one."""
    (out,) = kernel.src
    places = [place for place in out.src[2:] if place.op is not Ops.CONST]
    if out.arg != Out() or kernel.mask & Ops.VAR.bit or not kernel.mask & Ops.REDUCE.bit:
        return None
    if any(place.op is not Ops.RANGE for place in places) or len({*places}) != len(places):
        return None
    if iterations(places) != prod(out.src[0].shape):
        return None
    tiles = tiles_of(choose_schedule(kernel, target))
    if tiles is None:
        return None
    names = {axis.name: node for node, axis in fresh_axes(facts_of(kernel)).items()}

    def axes_of(side: TileSide) -> tuple[Node, ...]:
        return tuple([names[name] for name in side.axes if name in names])

    rows, columns = axes_of(tiles.rows), axes_of(tiles.columns)
    if {*rows, *columns} != {*places} or len(rows) + len(columns) != len(places):
        return None
    if not fills(tiles.rows, iterations(rows)) or not fills(tiles.columns, iterations(columns)):
        return None
    arrays = len({node.arg.slot for node in toposort(kernel) if node.op is Ops.PARAM})
    return _Matrix(out, rows, columns, arrays)


class _NotSums(Exception):
    """A kernel is not of sums over whole parts of columns."""


@dataclass(slots=True)
class _Sums:
    """A kernel of sums over a product's results, on its way to be one of sums over their parts.

    values: what the parts' sums are of, each the value of an OUT of the product. read: the axis
    that stands for those of a sum, by these.
    """

    matrix: _Matrix
    first: int
    next_id: int
    values: dict[Node, int] = field(default_factory=dict)
    read: dict[tuple[Node, ...], Node] = field(default_factory=dict)
    outs: list[Node] = field(default_factory=list)
    part: Node = field(init=False)
    row: Node = field(init=False)
    inner: tuple[Node, Node] = field(init=False)

    def __post_init__(self) -> None:
        used = [node.arg.id for node in toposort(self.matrix.out) if node.op is Ops.RANGE]
        number = 1 + max(used)
        parts, rows = self.matrix.shape
        self.part, self.row = range_node(parts, number), range_node(rows, number + 1)
        self.inner = range_node(PART, number + 2), range_node(PART, number + 3)

    @classmethod
    def of(cls, step: Launch, matrix: _Matrix) -> _Sums | None:
        """The sums of a kernel, None where they are not such."""
        used = [node.arg.id for node in toposort(step.kernel) if node.op is Ops.RANGE]
        found = cls(matrix, len(step.writes), 1 + max(used))
        try:
            for out in step.kernel.src:
                if any(place.mask & Ops.INDEX.bit for place in out.src[2:]):
                    return None
                array, value, *places = out.src
                found.outs.append(
                    Node(Ops.OUT, dtypes.token, (array, found.rewritten(value), *places), out.arg)
                )
        except _NotSums:
            return None
        return found if found.values else None

    @property
    def nbytes(self) -> int:
        """Bytes of the sums of all parts."""
        return prod(self.matrix.shape) * _F32.itemsize

    def rewritten(self, node: Node) -> Node:
        """A value made of sums of parts."""
        if not node.mask & Ops.INDEX.bit:
            return node
        if node.op in ELEMENTWISE:
            src = tuple([self.rewritten(one) for one in node.src])
            return make_node(node.op, node.dtype, src, node.arg)
        if node.op is not Ops.REDUCE or node.arg.monoid != primitive(Ops.ADD, _F32):
            raise _NotSums
        value, *axes = node.src
        near = _distance(value, axes)
        if near is None:
            total = self._part(value, axes, self._plain)
        else:
            x, mean = near
            sums = self._part(x, axes, self._plain)
            count = const(float(PART), _F32)
            apart = alu(Ops.SUB, alu(Ops.DIV, sums, count), self.rewritten(mean))
            moved = alu(Ops.MUL, alu(Ops.MUL, apart, apart), count)
            total = alu(Ops.ADD, self._part(x, axes, self._squares), moved)
        axis = self.read[tuple(axes)]
        if axis.op is Ops.CONST:
            return total
        return make_node(Ops.REDUCE, _F32, (total, axis), node.arg)

    def _part(
        self, value: Node, axes: Sequence[Node], made: Callable[[Node, Node], Node]
    ) -> Node:
        """What is read of one part; `value` is of one element, `made` says what is stored."""
        (element,) = _elements(value)
        part, row = self._place(element, axes)
        inner = index.add(index.mul(self.part, PART), self.inner[0])
        own = self.matrix.value(self.row, inner)
        stored = made(substitute(value, {element: own}), own)
        number = self.values.setdefault(stored, len(self.values))
        array = Node(Ops.PARAM, _F32, (), Param(self.first + number, self.matrix.shape))
        return scalar(Ops.INDEX, _F32, (array, index.as_node(part), index.as_node(row)))

    def _plain(self, value: Node, own: Node) -> Node:
        """The sum of a part."""
        return _added(value, self.inner[0])

    def _squares(self, value: Node, own: Node) -> Node:
        """The sum of a part's squared distances from its own mean."""
        other = substitute(value, {self.inner[0]: self.inner[1]})
        mean = alu(Ops.DIV, _added(other, self.inner[1]), const(float(PART), _F32))
        near = alu(Ops.SUB, value, mean)
        return _added(alu(Ops.MUL, near, near), self.inner[0])

    def _place(self, element: Node, axes: Sequence[Node]) -> tuple[Dim, Dim]:
        """The part and the row of elements that are added up, whole parts of neighbours."""
        array, *places = element.src
        shape = self.matrix.out.src[0].shape
        flat = index.flatten(places, array.shape)
        at = dict(zip(self.matrix.out.src[2:], index.unflatten(flat, shape), strict=True))

        def place_of(side: tuple[Node, ...]) -> Dim:
            return index.flatten([at[a] for a in side], [extent_of(a) for a in side])

        row, column = place_of(self.matrix.rows), place_of(self.matrix.columns)
        terms, constant = index.linear(column)
        length = 1
        for axis in sorted(axes, key=lambda one: terms.get(one, 0)):
            if terms.pop(axis, 0) != length:
                raise _NotSums
            length *= index.upper(extent_of(axis))
        rest = index.from_linear(terms, constant)
        if length % PART or constant % PART or any(each % PART for each in terms.values()):
            raise _NotSums
        if not {*axes}.isdisjoint(rest.ranges | index.as_node(row).ranges):
            raise _NotSums
        key = tuple(axes)
        if key not in self.read:
            self.read[key] = index.as_node(0)
            if length > PART:
                self.read[key] = range_node(length // PART, self.next_id)
                self.next_id += 1
        return index.add(index.floordiv(rest, PART), index.as_dim(self.read[key])), row

    def product(self, step: Launch, places: tuple[int, ...]) -> Launch:
        """The launch of the product that stores the parts' sums at these buffers too."""
        shape, outs = self.matrix.shape, []
        for value, number in self.values.items():
            array = Node(Ops.PARAM, _F32, (), Param(self.matrix.arrays + number, shape))
            src = (array, value, self.part, self.row)
            outs.append(make_node(Ops.OUT, dtypes.token, src, Out()))
        return step._replace(
            kernel=with_sums(step.kernel, tuple(outs)),
            buffers=(*step.buffers, *places),
            writes=(*step.writes, *range(len(step.buffers), len(step.buffers) + len(places))),
        )

    def reader(self, step: Launch, places: tuple[int, ...]) -> Launch:
        """The launch that makes whole sums of those at these buffers."""
        kernel, slots = kernel_of(tuple(self.outs), self.first)
        read = [places[slot - self.first] for slot in slots]
        return step._replace(kernel=kernel, buffers=(*step.buffers[: self.first], *read))


def _added(value: Node, axis: Node) -> Node:
    return make_node(Ops.REDUCE, _F32, (value, axis), Reduce(primitive(Ops.ADD, _F32)))


def _distance(value: Node, axes: Sequence[Node]) -> tuple[Node, Node] | None:
    """x and m of (x - m)**2, where m is the same for all elements of the axes."""
    if value.op is not Ops.MUL or value.src[0] is not value.src[1]:
        return None
    (near, _) = value.src
    if near.op is not Ops.SUB or not near.src[1].ranges.isdisjoint(axes):
        return None
    return (near.src[0], near.src[1]) if near.src[1].op is not Ops.CONST else None


def _elements(value: Node) -> set[Node]:
    """The one element that an elementwise value is of; raises _NotSums for other values."""
    nodes = toposort(value, enter=lambda node: node.op in ELEMENTWISE)
    found = {node for node in nodes if node.op is Ops.INDEX}
    if len(found) != 1 or value.dtype is not _F32:
        raise _NotSums
    (element,) = found
    for node in nodes:
        if node is element or node.op is Ops.CONST:
            continue
        # What is not stored is told from what is by its dtype.
        if node.op not in ELEMENTWISE or node.dtype is element.dtype:
            raise _NotSums
    return found
