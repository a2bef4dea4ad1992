"""Schedules for a CPU that differ from a given one by one decision.

Every change keeps the schedule's form: splits, then binds, then the order of the loops, then
copies. Most changes are legal; the others are refused by the table of axes, which costs less than
knowing beforehand.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple, TypeVar

from baregrad.base.errors import ScheduleError
from baregrad.ir.core.index import Dim
from baregrad.kernel.applying.axes import apply_step, table_after
from baregrad.kernel.facts.analysis import ArrayAccess, Facts
from baregrad.kernel.facts.axis_table import AxisTable, table_for
from baregrad.kernel.language.schedule import (
    Bind,
    Collapse,
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
from baregrad.kernel.planning.cpu.streams import AHEAD_NBYTES
from baregrad.kernel.search.retile import renamed, retiled
from baregrad.target import CpuTarget

BLOCKS = (4, 8, 16, 32, 64)
LONGEST_UNROLL = 16
LEAST_BLOCKED = 8
FURTHEST_NBYTES = 1 << 14
GRAINS = (0.25, 0.5, 2.0, 4.0)
# Where steps stand in a schedule's normal form, by kind; what is not here comes last.
_PLACES: MappingProxyType[type[Step], int] = MappingProxyType({
    Collapse: 0, Split: 0, Tensorize: 1, Bind: 1, Reorder: 2, StageInput: 4, StageReduce: 4,
})


@dataclass(frozen=True, slots=True)
class Move:
    """A schedule that differs from another by one decision, and what that is."""

    schedule: Schedule
    what: str


_Kind = TypeVar("_Kind", bound=Step)


class _Part(NamedTuple):
    """An inner part of an axis that is split: which one, and the unit that it runs on."""

    split: Split
    extent: int
    place: int
    unit: str

    @property
    def size(self) -> int:
        return self.split.parts[self.place + 1][1]

    def sizes(self, size: int) -> tuple[int, ...]:
        """The sizes of all inner parts, this one's being another."""
        parts = enumerate(self.split.parts[1:])
        return tuple([size if place == self.place else old for place, (_, old) in parts])

    def resized(self, schedule: Schedule, size: int) -> Schedule:
        """A schedule with this part of another size."""
        return retiled(schedule, self.split, self.sizes(size), self.extent)


@dataclass(frozen=True, slots=True)
class _State:
    """A legal schedule, in its normal form, and its axes.

    before: the extent of each axis that was split, by its name.
    """

    facts: Facts
    target: CpuTarget
    schedule: Schedule
    table: AxisTable
    before: dict[str, Dim]

    def of(self, kind: type[_Kind]) -> tuple[_Kind, ...]:
        """The steps of one kind."""
        return tuple([step for step in self.schedule.steps if isinstance(step, kind)])

    def parts(self) -> list[_Part]:
        """The inner parts of axes of a constant extent, but those of tails."""
        tails = {step.tail for step in self.of(Split)}
        found = []
        for step in self.of(Split):
            extent = self.before[step.axis]
            if isinstance(extent, int) and step.axis not in tails:
                units = [self.unit(name) for name, _ in step.parts[1:]]
                found += [_Part(step, extent, at, unit) for at, unit in enumerate(units)]
        return found

    def arrays(self, taken: Iterable[int], writes: bool | None = None) -> Iterator[ArrayAccess]:
        """The first access to each argument, but those `taken`; writes or reads alone."""
        seen = set(taken)
        for access in self.facts.accesses:
            slot = access.array.arg.slot
            wanted = writes is None or access.write is writes
            if wanted and (writes is not False or access.copyable) and slot not in seen:
                seen.add(slot)
                yield access

    def loops(self) -> list[str]:
        """The axes that are loops, outermost first."""
        table = self.table
        units = ("loop", "pool")
        return [name for name in table.order if table.axes[name].unit in units]

    def has_lanes(self) -> bool:
        """Whether some axis lies along vectors."""
        return any(axis.unit == "vector" for axis in self.table.axes.values())

    def unit(self, name: str) -> str:
        axis = self.table.axes.get(name)
        return "loop" if axis is None else axis.unit

    def with_steps(self, *added: Step, dropped: tuple[Step, ...] = ()) -> Schedule:
        left = [step for step in self.schedule.steps if step not in dropped]
        return normal(Schedule((*left, *added)))


def neighbours(facts: Facts, schedule: Schedule, target: CpuTarget) -> Iterator[Move]:
    """Every legal schedule that is one change away from a legal one, each once."""
    schedule = normal(schedule)
    before: dict[str, Dim] = {}
    table = table_for(facts, target)
    for step in schedule.steps:
        if isinstance(step, Split) and step.axis in table.axes:
            before[step.axis] = table.axes[step.axis].extent
        apply_step(table, step)
    state = _State(facts, target, schedule, table, before)
    seen = {schedule}
    for kind in _KINDS:
        for changed, what in kind(state):
            changed = normal(changed)
            if changed not in seen:
                seen.add(changed)
                if is_legal(facts, changed, target):
                    yield Move(changed, what)


def is_legal(facts: Facts, schedule: Schedule, target: CpuTarget) -> bool:
    """Whether every step may be applied."""
    try:
        table_after(facts, schedule, target)
    except ScheduleError:
        return False
    return True


def normal(schedule: Schedule) -> Schedule:
    """The same schedule with its steps by kind: axes, binds, order, the parallel axis, copies."""

    def place(step: Step) -> int:
        if isinstance(step, Bind) and step.unit == "pool":
            return 3
        return _PLACES.get(type(step), 5)

    return Schedule(tuple(sorted(schedule.steps, key=place)))


# --- kinds of changes ---------------------------------------------------------------------------

_Changes = Iterator[tuple[Schedule, str]]


def _sizes(state: _State) -> _Changes:
    """Tiles of other sizes: each part by itself, and parts of two axes against each other."""
    for part in state.parts():
        for new in _other_sizes(part.size, part.extent, part.unit):
            name = part.split.parts[part.place + 1][0]
            yield part.resized(state.schedule, new), f"{name}={new}"
    yield from _traded(state)


def _traded(state: _State) -> _Changes:
    """One spread-out axis shorter and another longer: register tiles of other proportions."""
    # A vector may be several registers.
    spread = [part for part in state.parts() if part.unit in ("unroll", "vector")]
    for one, other in itertools.product(spread, spread):
        for factor in (2,) if "vector" in (one.unit, other.unit) else (2, 3):
            fewer, more = one.size // factor, other.size * factor
            if one.split is other.split or not fewer:
                continue
            changed = one.resized(state.schedule, fewer)
            if other.split in changed.steps and more <= other.extent:
                what = f"{one.sizes(fewer)} by {other.sizes(more)}"
                yield other.resized(changed, more), what


def _other_sizes(size: int, extent: int, unit: str) -> list[int]:
    if unit == "vector":
        found = [size * 2, size // 2]
    elif unit == "unroll":
        found = [size + 1, size - 1, size + 2, size - 2, size * 2, size // 2, 1]
    else:
        found = [size * 2, size // 2, size * 4, size // 4, 1]
        found += [d for d in range(size // 2, size * 2) if d and extent % d == 0][:4]
    return [new for new in dict.fromkeys(found) if 1 <= new <= extent and new != size]


def _order(state: _State) -> _Changes:
    """Two neighbouring loops in the other order, or one loop moved to either end."""
    loops = state.loops()
    for place in range(len(loops) - 1):
        swapped = [*loops]
        swapped[place], swapped[place + 1] = swapped[place + 1], swapped[place]
        yield _ordered(state, swapped), f"{loops[place]} inside {loops[place + 1]}"
    for name in loops:
        rest = [each for each in loops if each != name]
        yield _ordered(state, [name, *rest]), f"{name} outermost"
        yield _ordered(state, [*rest, name]), f"{name} innermost"


def _ordered(state: _State, loops: list[str]) -> Schedule:
    """The schedule with its loops in this order; what is no loop stays where it is."""
    names = iter(loops)
    order = tuple([next(names) if name in loops else name for name in state.table.order])
    return state.with_steps(Reorder(order), dropped=state.of(Reorder))


def _pool(state: _State) -> _Changes:
    """Chunks of other sizes, another parallel axis, or none."""
    bound = next((step for step in state.of(Bind) if step.unit == "pool"), None)
    table = state.table
    dropped = () if bound is None else (bound,)
    if bound is not None:
        extent = table.axes[bound.axis].extent
        for factor in GRAINS:
            grain = max(round(bound.grain * factor), 1)
            if grain != bound.grain and (not isinstance(extent, int) or grain < extent):
                other = Bind(bound.axis, "pool", grain)
                yield state.with_steps(other, dropped=dropped), f"grain {grain}"
        yield state.with_steps(dropped=dropped), "one chunk"
    for name in state.loops():
        axis = table.axes[name]
        if axis.reduced or axis.unit == "pool" or not isinstance(axis.extent, int):
            continue
        chunks = max(4 * getattr(state.target, "cores", 1), 8)
        if axis.extent > 1:
            other = Bind(name, "pool", max(axis.extent // chunks, 1))
            yield state.with_steps(other, dropped=dropped), f"threads share {name}"


def _units(state: _State) -> _Changes:
    """An axis spread over registers that was a loop, or the other way round; lanes elsewhere."""
    table = state.table
    for step in state.of(Bind):
        if step.unit in ("unroll", "vector"):
            yield state.with_steps(dropped=(step,)), f"{step.axis} a loop"
        if step.unit == "vector":
            other = Bind(step.axis, "unroll")
            yield state.with_steps(other, dropped=(step,)), f"{step.axis} over registers"
    for name in table.order:
        axis = table.axes[name]
        if axis.unit != "loop" or not isinstance(axis.extent, int) or axis.extent < 2:
            continue
        if axis.extent <= LONGEST_UNROLL:
            yield state.with_steps(Bind(name, "unroll")), f"{name} over registers"
        if not state.has_lanes() and axis.extent <= 2 * state.target.lanes(4):
            yield state.with_steps(Bind(name, "vector")), f"lanes along {name}"


def _blocks(state: _State) -> _Changes:
    """A loop in two, its inner part innermost, spread over registers, or outside the others."""
    table = state.table
    loops = state.loops()
    lanes = state.target.lanes(4)
    for place, name in enumerate(loops):
        axis = table.axes[name]
        extent = axis.extent
        if not isinstance(extent, int) or extent < LEAST_BLOCKED or axis.unit != "loop":
            continue
        if axis.whole or axis.serial or name in table.staged:
            continue
        outer, inner, tail = f"{name}_o", f"{name}_i", f"{name}_r"
        if inner in table.axes or len(name) > 24:
            continue
        for size in BLOCKS:
            if size * 2 > extent:
                break
            cut = Split(name, ((outer, 0), (inner, size)), tail if extent % size else "")
            first = [*loops[:place], outer, *loops[place + 1 :]]
            yield _blocked(state, cut, first), f"{name} in {size}s, inside"
            if size <= 8:
                more = [Bind(tail, "unroll")] if extent % size > 1 else []
                spread = state.with_steps(cut, Bind(inner, "unroll"), *more)
                yield _renamed_loop(spread, name, outer), f"{size} of {name} over registers"
        if not state.has_lanes() and extent >= lanes:
            cut = Split(name, ((outer, 0), (inner, lanes)), tail if extent % lanes else "")
            wide = state.with_steps(cut, Bind(inner, "vector"))
            yield _renamed_loop(wide, name, outer), f"lanes along {name}"


def _blocked(state: _State, cut: Split, loops: list[str]) -> Schedule:
    """The schedule with an axis cut in two, its inner part inside `loops`."""
    outer, inner = cut.parts[0][0], cut.parts[1][0]
    names, old = iter(loops), state.loops()
    order = [next(names) if name in old else name for name in state.table.order]
    # A tail's loop follows what it ends.
    if cut.tail:
        order.insert(order.index(outer) + 1, cut.tail)
    tiles = [name for name in order if state.unit(name) in ("vector", "unroll")]
    at = min([order.index(name) for name in tiles], default=len(order))
    order.insert(at if all(t in order[at:] for t in tiles) else len(order), inner)
    return state.with_steps(cut, Reorder(tuple(order)), dropped=state.of(Reorder))


def _renamed_loop(schedule: Schedule, old: str, new: str) -> Schedule:
    """What was said of the place of a loop is said of its outer part."""
    return Schedule(tuple([
        renamed(step, {old: new}) if isinstance(step, Reorder) else step for step in schedule.steps
    ]))


def _copies(state: _State) -> _Changes:
    """A copy less, copies of one input less, or an input copied as another one is."""
    inputs = state.of(StageInput)
    stages: tuple[StageInput | StageReduce, ...] = (*inputs, *state.of(StageReduce))
    if stages:
        yield state.with_steps(dropped=stages), "no copies"
    for param in dict.fromkeys(step.param for step in inputs):
        own = tuple(step for step in inputs if step.param == param)
        if len(own) < len(stages):
            yield state.with_steps(dropped=own), f"input {param} in place"
        for step in own:
            if len(step.axes) > 1:
                turned = replace(step, axes=(*step.axes[1:], step.axes[0]))
                yield state.with_steps(turned, dropped=(step,)), f"another layout of input {param}"
    if inputs:
        lanes = 0 if inputs[0].lanes else state.target.lanes(4)
        others = tuple(replace(step, lanes=lanes) for step in inputs)
        how = "vectors" if lanes else "elements"
        yield state.with_steps(*others, dropped=inputs), f"copies by {how}"
    yield from _more_copies(state, inputs)


def _more_copies(state: _State, inputs: Iterable[StageInput]) -> _Changes:
    table = state.table
    for access in state.arrays([step.param for step in inputs], writes=False):
        param = access.array.arg.slot
        used: set[str] = set()
        for node in access.axes:
            used.update(name for name, _ in table.pieces_of(node)[0].terms)
        own = [name for name in table.order if name in used]
        tile = [name for name in own if table.axes[name].unit in ("vector", "unroll")]
        reduced = [name for name in own if table.axes[name].reduced and name not in tile]
        inner = [name for name in own if table.axes[name].unit == "loop" and name not in reduced]
        for axes in ([*reduced, *tile], [*inner[-1:], *reduced, *tile]):
            if axes and (reduced or inner):
                yield state.with_steps(StageInput(param, tuple(axes))), f"a copy of input {param}"


def _streams(state: _State) -> _Changes:
    """Non-temporal stores to an output, or ordinary ones."""
    streamed = state.of(StreamOutput)
    for step in streamed:
        yield state.with_steps(dropped=(step,)), f"output {step.param} through the caches"
    for access in state.arrays([step.param for step in streamed], writes=True):
        param = access.array.arg.slot
        asked = tuple([step for step in state.of(Prefetch) if step.param == param])
        found = state.with_steps(StreamOutput(param), dropped=asked)
        yield found, f"output {param} past the caches"


def _requests(state: _State) -> _Changes:
    """An array asked for ahead of time, further ahead, or not at all."""
    known = state.of(Prefetch)
    for step in known:
        yield state.with_steps(dropped=(step,)), f"array {step.param} not asked for"
        if step.nbytes < FURTHEST_NBYTES:
            further = replace(step, nbytes=2 * step.nbytes)
            yield state.with_steps(further, dropped=(step,)), f"array {step.param} asked earlier"
    for access in state.arrays([step.param for step in known]):
        param = access.array.arg.slot
        yield state.with_steps(Prefetch(param, AHEAD_NBYTES)), f"array {param} asked for"


# What a GPU has no use for: shares of a pool, caches to ask ahead of or to pass by.
_KINDS: tuple[Callable[[_State], _Changes], ...] = (
    _sizes, _pool, _streams, _requests, _order, _units, _copies, _blocks,
)
