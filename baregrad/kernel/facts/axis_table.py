"""The axes of a kernel while a schedule is made and applied: names, extents, order, units.

Each original axis is covered by one or more pieces (a main part and tails), each an affine sum of
new axes. Steps act on this table alone (`applying/axes.py`), and instructions say of it what they
want; the kernel is rewritten once, at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.index import Dim
from baregrad.ir.core.node import Node, extent_of
from baregrad.kernel.facts.analysis import Facts, distinct_axes, out_axes
from baregrad.kernel.language.schedule import (
    Pipeline,
    Prefetch,
    Roles,
    StageFactor,
    StageInput,
    StageReduce,
    Step,
    Tensorize,
)
from baregrad.target import AnyTarget, GpuTarget

SCANNED = "a scan runs along the axis"


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
    time. tensorized: what instructions do. matrix: the threads whose matrix unit does some axes,
    if any. blocks: those of the grid, at most, 0 for no limit. teams: sets of threads of each that
    take its iterations in turns. cut: whether the last ones are cut. roles: of warps, if some of
    them copy. cluster: those that run together, 1 for each by itself. staged_outputs: those that go
    through shared memory. tiled: the step that a core's does.
    several, masked: whether some axis has a tail, or a partial tile. instructions: those of the
    machine, None for any. room: bytes that one copy may have. registers: elements that a tile may
    have. Both are 0 where nothing is known of the machine.
    """

    facts: Facts
    names: dict[Node, str] = field(default_factory=dict)
    axes: dict[str, Axis] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    merged: dict[Node, tuple[str, Dim, Dim]] = field(default_factory=dict)
    groups: dict[str, tuple[Node, ...]] = field(default_factory=dict)
    staged_inputs: list[StageInput] = field(default_factory=list)
    staged_factors: list[StageFactor] = field(default_factory=list)
    staged_reductions: list[StageReduce] = field(default_factory=list)
    staged: set[str] = field(default_factory=set)
    streamed: set[int] = field(default_factory=set)
    ahead: dict[int, Prefetch] = field(default_factory=dict)
    pipelines: list[Pipeline] = field(default_factory=list)
    tensorized: set[str] = field(default_factory=set)
    matrix: int = 0
    blocks: int = 0
    teams: int = 1
    cut: bool = False
    roles: Roles | None = None
    cluster: int = 1
    staged_outputs: set[int] = field(default_factory=set)
    tiled: Tensorize | None = None
    several: bool = False
    masked: bool = False
    instructions: tuple[str, ...] | None = None
    grain: int = 1
    gpu: GpuTarget | None = None
    room: int = 0
    registers: int = 0

    def axis(self, name: str, step: Step) -> Axis:
        """The axis called `name`."""
        found = self.axes.get(name)
        if found is None:
            raise ScheduleError(
                f"{step} names an axis that is not there", found=name, wanted=", ".join(self.order)
            )
        return found

    def pieces_of(self, node: Node) -> list[Piece]:
        """The pieces that cover one of the kernel's own axes, or what it was collapsed into."""
        merged = self.merged.get(node)
        return self.pieces[merged[0] if merged else self.names[node]]

    def has(self, instruction: str) -> bool:
        """Whether the machine, if it is known, has an instruction."""
        return self.instructions is None or instruction in self.instructions


def fresh_axes(facts: Facts) -> dict[Node, Axis]:
    """The axes of a kernel before any step, in the order of loops; found once, never changed."""
    if facts.fresh is None:
        facts.fresh = _fresh_axes(facts)
    return facts.fresh


def _fresh_axes(facts: Facts) -> dict[Node, Axis]:
    labels = [node.arg.axis for node in facts.axes]
    serial = _serial_axes(facts) if facts.ordered else {}
    staged = {axis for stage in facts.stages for axis in stage.src[1:]}
    scanned = facts.scanned
    data = frozenset(facts.data)
    order = list(facts.axes)
    if scanned:
        # A scan's accumulator must outlive the loops inside its own: its axis goes inside others.
        order.sort(key=lambda axis: axis in scanned)
    found: dict[Node, Axis] = {}
    for node in order:
        reduced = node not in data
        whole = SCANNED if node in scanned else ""
        exact = "a value is staged along the axis" if node in staged else ""
        name, why = axis_name(node, reduced, labels), whole or serial.get(node, "")
        found[node] = Axis(name, extent_of(node), reduced, name, "loop", why, whole, exact)
    return found


def table_for(facts: Facts, target: AnyTarget | None = None) -> AxisTable:
    """The axes of a kernel before any step, with the limits of a machine where it is known."""
    table = AxisTable(facts)
    if target is not None and target.kind == "gpu":
        table.gpu, table.instructions = target, ()
    elif target is not None:
        table.instructions = target.dot_instructions + target.tile_instructions
        table.room = target.l3_bytes
        table.registers = target.vector_registers * target.vector_bytes
    for node, fresh in fresh_axes(facts).items():
        name = fresh.name
        table.axes[name] = Axis(name, fresh.extent, fresh.reduced, name, "loop", fresh.serial,
                                fresh.whole, fresh.exact)
        table.names[node] = name
        table.order.append(name)
        table.pieces[name] = [Piece(0, ((name, 1),))]
    return table


def axis_name(node: Node, reduced: bool, labels: list[str]) -> str:
    """What schedules call an original axis. labels: those of all axes of the kernel."""
    label: str = node.arg.axis
    if label and labels.count(label) == 1 and label.isidentifier():
        return label
    return f"{'r' if reduced else 'i'}{node.arg.id}"


def _serial_axes(facts: Facts) -> dict[Node, str]:
    """Axes along which a scatter's writes must keep their order."""
    found = set().union(*[out_axes(out) for out in facts.ordered])
    arrays = [out.src[0] for out in facts.ordered]
    for out in facts.ordered:
        if arrays.count(out.src[0]) == 1:
            found -= distinct_axes(out)
    return dict.fromkeys(found, "writes along the axis may meet and keep their order")
