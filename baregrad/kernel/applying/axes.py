"""The axes of a kernel while a schedule is applied: names, extents, order, units.

Steps act on this table alone; the kernel is rewritten once, at the end (`apply.py`). Each original
axis is covered by one or more pieces (a main part and tails), each an affine sum of new axes.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from baregrad.base.errors import ScheduleError
from baregrad.ir.core import index
from baregrad.ir.core.axes import THREAD_BINDS
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.applying.staging_checks import (
    check_prefetch,
    check_room,
    check_shares,
    check_stream,
)
from baregrad.kernel.facts.analysis import Facts, distinct_axes, out_axes
from baregrad.kernel.gpu.pipelines import check_pipeline
from baregrad.kernel.gpu.shared_layouts import check_layout
from baregrad.kernel.instructions.amx import check_tiles
from baregrad.kernel.instructions.dot_instructions import check_tensorize
from baregrad.kernel.instructions.mma_sync import check_mma
from baregrad.kernel.language.schedule import (
    CPU_UNITS,
    DOT_INSTRUCTIONS,
    GPU_UNITS,
    Bind,
    Collapse,
    Pipeline,
    Prefetch,
    Reorder,
    Schedule,
    Split,
    StageInput,
    StageReduce,
    Step,
    StreamOutput,
    Tensorize,
)
from baregrad.target import AnyTarget, CpuTarget, GpuTarget

SCANNED = "a scan runs along the axis"
# A tile may have so many times the elements that the registers hold: what is spilled is slow, and
# each element is code.
TILES = 4
WARP = 32
_DOTS = dict.fromkeys(DOT_INSTRUCTIONS, check_tensorize)
_TENSORS = MappingProxyType({**_DOTS, "mma": check_mma, "amx": check_tiles})


@dataclass(eq=False, slots=True)
class Axis:
    """One axis.

    `serial` says why it must run in order on one thread, `whole` why it cannot be split, and
    `exact` why its parts must divide it; empty where that is not so. origin: the axis that it is
    all or a part of, original or collapsed: what `AxisTable.pieces` is asked for.
    """

    name: str
    extent: Dim
    reduced: bool
    origin: str
    unit: str = "loop"
    serial: str = ""
    whole: str = ""
    exact: str = ""


Terms = tuple[tuple[str, int], ...]


class Limit(NamedTuple):
    """A condition of a partial tile: start + sum of scale*axis < extent."""

    start: Dim
    terms: Terms
    extent: Dim


class Piece(NamedTuple):
    """A part of an original axis: start + sum of scale*axis; nothing where `axes` are never run.

    Where one of the `limits` does not hold it does nothing.
    """

    start: Dim
    terms: Terms
    limits: tuple[Limit, ...] = ()


@dataclass(slots=True)
class AxisTable:
    """The state of a schedule in the making.

    names: of the original axes. axes: by name. order: outermost first. pieces: of each original
    axis. merged: original axis -> (axis that it was collapsed into, its stride there, its extent).
    groups: the original axes of a collapsed one, innermost first. staged: what copies lie over.
    streamed, ahead: the arrays that pass the caches by, and how others are asked for before their
    time. tensorized: what instructions do. tiled: the step that a core's matrix unit does, whose
    instructions are `tile_instructions`, None for any. dot_instructions: those of the machine that
    add up the products of a lane's numbers. several, masked: whether some axis has a tail, or a
    partial tile. room: bytes that one copy may have. registers: elements that a tile may have. Both
    are 0 where nothing is known of the machine.
    """

    facts: Facts
    names: dict[Node, str] = field(default_factory=dict)
    axes: dict[str, Axis] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    merged: dict[Node, tuple[str, Dim, Dim]] = field(default_factory=dict)
    groups: dict[str, tuple[Node, ...]] = field(default_factory=dict)
    staged_inputs: list[StageInput] = field(default_factory=list)
    staged_reductions: list[StageReduce] = field(default_factory=list)
    staged: set[str] = field(default_factory=set)
    streamed: set[int] = field(default_factory=set)
    ahead: dict[int, Prefetch] = field(default_factory=dict)
    pipelines: list[Pipeline] = field(default_factory=list)
    tensorized: set[str] = field(default_factory=set)
    matrix: bool = False
    tiled: Tensorize | None = None
    dot_instructions: tuple[str, ...] = DOT_INSTRUCTIONS
    several: bool = False
    masked: bool = False
    tile_instructions: tuple[str, ...] | None = None
    grain: int = 1
    gpu: GpuTarget | None = None
    room: int = 0
    registers: int = 0

    def apply(self, step: Step) -> None:
        """Apply one step. Raises ScheduleError where it is not legal."""
        if isinstance(step, Split):
            self._split(step)
        elif isinstance(step, Bind):
            self._bind(step)
        elif isinstance(step, Reorder):
            self._reorder(step)
        elif isinstance(step, Collapse):
            self._collapse(step)
        elif isinstance(step, StreamOutput):
            check_stream(self, step)
            self.streamed.add(step.param)
        elif isinstance(step, Prefetch):
            check_prefetch(self, step)
            self.ahead[step.param] = step
        elif isinstance(step, Pipeline):
            check_pipeline(self, step)
        elif isinstance(step, Tensorize):
            _TENSORS[step.instruction](self, step)
        else:
            self._stage(step)

    def _stage(self, step: StageInput | StageReduce) -> None:
        """A copy in scratch memory: of a constant size, over axes that stay as they are."""
        names = step.names if isinstance(step, StageInput) else (step.axis, *step.axes)
        if len(set(names)) != len(names):
            raise ScheduleError(f"{step} names an axis twice")
        if isinstance(step, StageInput):
            check_layout(step, self.gpu is not None)
        sizes = []
        for name in names:
            axis = self.axis(name, step)
            if not isinstance(axis.extent, int):
                raise ScheduleError(f"{step} is not legal: a copy has a constant size")
            if axis.unit == "pool":
                self._check_chunks(axis, self.grain, step)
            if name in self.tensorized:
                raise ScheduleError(f"{step} is not legal: {axis.serial}", found=name)
            sizes.append(self.grain if axis.unit == "pool" else axis.extent)
        if isinstance(step, StageInput):
            # What sums of axes reach, and so its room, is known where it is copied.
            self.staged_inputs.append(step)
        else:
            check_room(self, step, sizes[1:])
            self.staged_reductions.append(step)
        self.staged.update(names)

    def _check_chunks(self, axis: Axis, grain: int, step: Step) -> None:
        """Refuse copies over the pool's axis, of which each chunk has its part, of two sizes."""
        if index.mod(axis.extent, grain) != 0:
            raise ScheduleError(
                f"{step} is not legal: a copy has a constant size, and the last chunk is shorter",
                found=f"{axis.extent} iterations in chunks of {grain}",
                wanted="a grain that divides them",
            )

    def check_tiles(self) -> None:
        """Refuse tiles that are far more than registers hold."""
        tiled = [axis for axis in self.axes.values() if axis.unit in ("vector", "unroll")]
        if not self.registers or len(tiled) < 2:
            return
        # No expression has more than all tiles together.
        extents = [axis.extent for axis in tiled if isinstance(axis.extent, int)]
        if prod(extents) <= TILES * self.registers:
            return
        sizes = {}
        for node in (*self.facts.data, *self.facts.reduced):
            merged = self.merged.get(node)
            name = merged[0] if merged else self.names[node]
            sizes[name, node] = max(map(self._tile_of, self.pieces[name]))
        sets = [out_axes(out) for out in self.facts.outs]
        sets += [each.free.union(each.own) for each in self.facts.reductions]
        for axes in sets:
            largest: dict[str, int] = {}
            for (name, node), size in sizes.items():
                if node in axes:
                    largest[name] = size
            count = prod(largest.values())
            if count > TILES * self.registers:
                raise ScheduleError(
                    "the tile of one expression is far more than registers hold",
                    found=f"{count} elements", wanted=f"at most {TILES * self.registers}",
                    hint="bind fewer or shorter axes to vector and unroll",
                )

    def _tile_of(self, piece: Piece) -> int:
        """Elements of a piece that are spread over registers at once."""
        count = 1
        for name, _ in piece.terms:
            axis = self.axes[name]
            if axis.unit in ("vector", "unroll") and isinstance(axis.extent, int):
                count *= axis.extent
        return count

    def _free(self, axis: Axis, step: Step) -> None:
        """Refuse what would change an axis that a copy lies over."""
        if axis.name in self.staged:
            raise ScheduleError(
                f"{step} is not legal: a copy lies over the axis", found=axis.name,
                hint="split and bind first, stage afterwards",
            )

    def axis(self, name: str, step: Step) -> Axis:
        """The axis called `name`."""
        found = self.axes.get(name)
        if found is None:
            raise ScheduleError(
                f"{step} names an axis that is not there", found=name, wanted=", ".join(self.order)
            )
        return found

    def _add(self, axis: Axis, step: Step) -> None:
        if axis.name in self.axes or not axis.name.isidentifier():
            raise ScheduleError(
                f"{step} makes an axis that is there already, or whose name is no identifier",
                found=axis.name,
            )
        self.axes[axis.name] = axis

    def _split(self, step: Split) -> None:
        axis = self.axis(step.axis, step)
        self._free(axis, step)
        if axis.whole or axis.serial:
            raise ScheduleError(
                f"{step} is not legal: {axis.whole or axis.serial}", found=axis.name
            )
        if axis.unit != "loop":
            raise ScheduleError(
                f"{step} is not legal: the axis is bound already", found=axis.unit,
                hint="split first, then bind the parts",
            )
        tile = step.tile
        rest = index.mod(axis.extent, tile)
        if rest != 0 and (axis.exact or not (step.tail or step.masked)):
            raise ScheduleError(
                f"{step} is not legal: {axis.exact or 'the sizes do not divide the extent'}",
                found=f"extent {axis.extent}, tile {tile}",
                wanted="a divisor, tail='name', or masked=True",
            )
        if step.masked and step.tail:
            raise ScheduleError(f"{step} is not legal", wanted="a tail or a mask, not both")
        partial = step.masked and rest != 0
        count = index.floordiv(index.add(axis.extent, tile - 1 if partial else 0), tile)
        terms = []
        scale = tile
        for position, (name, size) in enumerate(step.parts):
            extent = size if position else count
            scale = scale // size if position else tile
            self._add(Axis(name, extent, axis.reduced, axis.origin, exact=axis.exact), step)
            terms.append((name, scale))
        names = [name for name, _ in step.parts]
        self.masked = self.masked or partial
        if step.tail:
            self.several = True
            self._add(Axis(step.tail, rest, axis.reduced, axis.origin), step)
            names.append(step.tail)
        place = self.order.index(axis.name)
        self.order[place : place + 1] = names
        del self.axes[axis.name]
        covered = index.mul(count, tile)
        limit = _limit(axis.extent, terms) if partial else None
        self.pieces[axis.origin] = _split_pieces(
            self.pieces[axis.origin], axis.name, terms, step.tail, covered, limit
        )

    def _bind(self, step: Bind) -> None:
        axis = self.axis(step.axis, step)
        units = CPU_UNITS if self.gpu is None else GPU_UNITS
        if step.unit not in units:
            raise ScheduleError(
                f"{step} names a unit that a {'CPU' if self.gpu is None else 'GPU'} has not",
                found=step.unit, wanted=", ".join(units),
            )
        if step.unit == "loop":
            return
        if axis.serial:
            raise ScheduleError(f"{step} is not legal: {axis.serial}", found=step.unit)
        if step.unit == "pool":
            if axis.reduced:
                raise ScheduleError(
                    f"{step} is not legal: a reduced axis cannot be shared out among threads",
                    found=axis.name, wanted="an axis of the output",
                )
            if axis.name in self.staged:
                self._check_chunks(axis, step.grain, step)
            taken = [other.name for other in self.axes.values() if other.unit == "pool"]
            if taken:
                raise ScheduleError(f"{step} is not legal: one axis is the pool's", found=taken[0])
            self.grain = step.grain
        elif step.unit == "grid":
            if axis.reduced:
                raise ScheduleError(
                    f"{step} is not legal: blocks do not meet, so none can reduce along an axis",
                    found=axis.name, wanted="an axis of the output",
                )
        elif not isinstance(axis.extent, int):
            raise ScheduleError(
                f"{step} is not legal: a tile needs a constant extent", found=axis.extent
            )
        elif self.registers and axis.extent > self.registers:
            raise ScheduleError(
                f"{step} is not legal: a tile lies in registers", found=f"{axis.extent} elements",
                wanted=f"at most {self.registers}", hint="split the axis first",
            )
        if axis.whole:
            piped = any(pipeline.axis == axis.name for pipeline in self.pipelines)
            if piped or axis.unit in THREAD_BINDS or step.unit in THREAD_BINDS:
                raise ScheduleError(f"{step} is not legal: {axis.whole}", found=step.unit)
        # An empty axis runs on nothing; a tile of no elements would be no tile. One block or one
        # thread is nothing to tell apart.
        if axis.extent != 0 and (axis.extent != 1 or self.gpu is None):
            axis.unit = step.unit
            if step.unit in THREAD_BINDS:
                self._check_threads(step)

    def _check_threads(self, step: Bind) -> None:
        """Axes of one dimension of the block are as long as each other; a block has its limit."""
        # The lanes of a warp that has a matrix unit do are nobody else's.
        sizes: dict[str, Dim] = {"thread": WARP} if self.matrix else {}
        if self.matrix and step.unit == "thread":
            raise ScheduleError(f"{step} is not legal: the lanes of a warp are taken")
        for other in self.axes.values():
            if other.unit not in THREAD_BINDS:
                continue
            known = sizes.setdefault(other.unit, other.extent)
            if known != other.extent:
                raise ScheduleError(
                    f"{step} is not legal: a block has one size along {step.unit}",
                    found=f"{known} and {other.extent}", wanted="axes of one extent",
                )
        threads = 1
        for size in sizes.values():
            threads *= int(size) if isinstance(size, int) else 1
        assert self.gpu is not None
        if threads > self.gpu.threads_per_block:
            raise ScheduleError(
                f"{step} is not legal: {self.gpu.name} has no block of so many threads",
                found=threads, wanted=f"at most {self.gpu.threads_per_block}",
            )

    def _reorder(self, step: Reorder) -> None:
        if len(set(step.axes)) != len(step.axes):
            raise ScheduleError(f"{step} names an axis twice")
        if not self.axes.keys() >= set(step.axes):
            for name in step.axes:
                self.axis(name, step)
        places = sorted(map(self.order.index, step.axes))
        serial = [name for name in self.order if self.axes[name].serial]
        for place, name in zip(places, step.axes, strict=True):
            self.order[place] = name
        if serial and serial != [name for name in self.order if self.axes[name].serial]:
            raise ScheduleError(
                f"{step} is not legal: {self.axes[serial[0]].serial}",
                wanted=f"the order {', '.join(serial)} kept",
            )
        if not self.facts.scanned:
            return
        data = [self.axes[name] for name in self.order if not self.axes[name].reduced]
        for outer, inner in itertools.pairwise(data):
            if outer.whole == SCANNED and inner.whole != SCANNED:
                raise ScheduleError(
                    f"{step} is not legal: {SCANNED}", wanted=f"{inner.name} outside {outer.name}"
                )

    def _collapse(self, step: Collapse) -> None:
        nodes = []
        named = {name: node for node, name in self.names.items()}
        for name in step.axes:
            axis = self.axis(name, step)
            self._free(axis, step)
            node = named.get(name)
            why = axis.whole or axis.serial or axis.exact
            if node is None or len(self.pieces.get(name, ())) != 1 or why:
                raise ScheduleError(
                    f"{step} is not legal: {why or 'the axis was changed'}",
                    found=name, wanted="fresh axes",
                )
            nodes.append(node)
        if len(nodes) < 2 or len({self.axes[name].reduced for name in step.axes}) != 1:
            raise ScheduleError(f"{step} is not legal", wanted="two or more axes of one kind")
        together = frozenset(nodes)
        for reduction in self.facts.reductions:
            if len(together.intersection(reduction.own)) not in (0, len(nodes)):
                raise ScheduleError(
                    f"{step} is not legal: a reduction runs along some of these axes alone",
                    wanted="axes that are reduced together",
                )
        total = index.product(self.axes[name].extent for name in step.axes)
        reduced = self.axes[step.axes[0]].reduced
        self._add(Axis(step.name, total, reduced, step.name), step)
        self.order[self.order.index(step.axes[0])] = step.name
        stride: Dim = 1
        for node, name in reversed(tuple(zip(nodes, step.axes, strict=True))):
            extent = self.axes[name].extent
            self.merged[node] = (step.name, stride, extent)
            stride = index.mul(stride, extent)
            del self.axes[name], self.pieces[name]
            if name in self.order:
                self.order.remove(name)
        self.pieces[step.name] = [Piece(0, ((step.name, 1),))]
        self.groups[step.name] = tuple(reversed(nodes))


def _split_pieces(
    pieces: list[Piece],
    axis: str,
    parts: list[tuple[str, int]],
    tail: str,
    covered: Dim,
    limit: Limit | None,
) -> list[Piece]:
    found: list[Piece] = []
    for piece in pieces:
        scales = dict(piece.terms)
        if axis not in scales:
            found.append(piece)
            continue
        terms = _replaced(piece.terms, axis, parts)
        old = tuple([each._replace(terms=_replaced(each.terms, axis, parts))
                     for each in piece.limits])
        found.append(Piece(piece.start, terms, old if limit is None else (*old, limit)))
        if tail:
            last = [(tail, 1)]
            shifted = []
            for each in piece.limits:
                scale = dict(each.terms).get(axis, 0)
                start = index.add(each.start, index.mul(covered, scale))
                shifted.append(Limit(start, _replaced(each.terms, axis, last), each.extent))
            start = index.add(piece.start, index.mul(covered, scales[axis]))
            found.append(Piece(start, _replaced(piece.terms, axis, last), tuple(shifted)))
    return found


def _replaced(terms: Terms, axis: str, parts: list[tuple[str, int]]) -> Terms:
    """A sum in which an axis is a sum of others."""
    found = [term for term in terms if term[0] != axis]
    for name, scale in terms:
        if name == axis:
            found.extend((part, scale * size) for part, size in parts)
    return tuple(found)


def _limit(extent: Dim, parts: list[tuple[str, int]]) -> Limit:
    """That a sum of parts, outermost first, lies below the extent of what they are parts of.

    Inner parts that fill the extent evenly have no say: a vector lies inside or outside whole.
    """
    for place, (_, size) in enumerate(parts):
        if index.mod(extent, size) == 0:
            scaled = tuple((name, each // size) for name, each in parts[: place + 1])
            return Limit(0, scaled, index.floordiv(extent, size))
    return Limit(0, tuple(parts), extent)


def fresh_table(facts: Facts, gpu: GpuTarget | None = None) -> AxisTable:
    """The axes of a kernel before any step, on a CPU or, given its row, on a GPU."""
    table = AxisTable(facts, gpu=gpu)
    axes, names, order, pieces = table.axes, table.names, table.order, table.pieces
    for node, (name, extent, reduced, serial, whole, exact) in fresh_axes(facts).items():
        axes[name] = Axis(name, extent, reduced, name, "loop", serial, whole, exact)
        names[node] = name
        order.append(name)
        pieces[name] = [Piece(0, ((name, 1),))]
    return table


class Fresh(NamedTuple):
    """An axis before any step: what `Axis` has of it."""

    name: str
    extent: Dim
    reduced: bool
    serial: str
    whole: str
    exact: str


def fresh_axes(facts: Facts) -> dict[Node, Fresh]:
    """The axes of a kernel before any step, in the order of loops; found once."""
    if facts.fresh is None:
        facts.fresh = _fresh_axes(facts)
    return facts.fresh


def _fresh_axes(facts: Facts) -> dict[Node, Fresh]:
    labels = [node.arg.axis for node in facts.axes]
    serial = _serial_axes(facts) if facts.ordered else {}
    staged = {axis for stage in facts.stages for axis in stage.src[1:]}
    scanned = facts.scanned
    data = frozenset(facts.data)
    order = list(facts.axes)
    if scanned:
        # A scan's accumulator must outlive the loops inside its own: its axis goes inside others.
        order.sort(key=lambda axis: axis in scanned)
    found: dict[Node, Fresh] = {}
    for node in order:
        reduced = node not in data
        whole = SCANNED if node in scanned else ""
        exact = "a value is staged along the axis" if node in staged else ""
        found[node] = Fresh(axis_name(node, reduced, labels), extent_of(node), reduced,
                            whole or serial.get(node, ""), whole, exact)
    return found


def table_for(facts: Facts, target: AnyTarget | None) -> AxisTable:
    """The axes of a kernel before any step, with the limits of a machine where it is known."""
    table = fresh_table(facts, target if isinstance(target, GpuTarget) else None)
    if isinstance(target, GpuTarget):
        table.dot_instructions = ()
    if isinstance(target, CpuTarget):
        table.dot_instructions = target.dot_instructions
        table.tile_instructions = target.tile_instructions
        table.room = target.l3_bytes
        table.registers = target.vector_registers * target.vector_bytes
    return table


def table_after(facts: Facts, schedule: Schedule, target: AnyTarget | None) -> AxisTable:
    """The axes of a kernel after all steps of a schedule. Raises ScheduleError for illegal ones."""
    table = table_for(facts, target)
    for step in schedule.steps:
        table.apply(step)
    table.check_tiles()
    for request in table.ahead.values():
        if request.loops:
            check_shares(table, request)
    return table


def axis_name(node: Node, reduced: bool, labels: list[str]) -> str:
    """What schedules call an original axis. labels: those of all axes of the kernel."""
    label: str = node.arg.axis
    if label and labels.count(label) == 1 and label.isidentifier():
        return label
    return f"{'r' if reduced else 'i'}{node.arg.id}"


def _serial_axes(facts: Facts) -> dict[Node, str]:
    """Axes along which a scatter's writes must keep their order."""
    found: dict[Node, str] = {}
    for out in facts.ordered:
        for child in out.src[1:]:
            for axis in child.ranges:
                found[axis] = "writes along the axis may meet and keep their order"
    counts: dict[Node, int] = {}
    for out in facts.ordered:
        counts[out.src[0]] = counts.get(out.src[0], 0) + 1
    for out in facts.ordered:
        if counts[out.src[0]] == 1:
            for axis in distinct_axes(out):
                found.pop(axis, None)
    return found
