"""What a loop, a choice or a kernel of text runs: programs over places.

It is run on a device at once, or into a command list.

A place is a buffer or a slot of a list. A work is planned once: of a body of plain operations it is
an executable, of one with loops in it several works in order. It is played over the places of its
arguments, of its results and of scratch memory, as often as a loop has steps.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from baregrad.base.bits import round_up
from baregrad.base.errors import CompilerBug
from baregrad.dtypes import dtypes
from baregrad.engine.canonical import Canonical
from baregrad.engine.control.sources import shared_below
from baregrad.engine.executor import Executable, Where
from baregrad.engine.launch import launch_expr
from baregrad.ir.analysis.liveness import ALIGNMENT, Interval, pack
from baregrad.ir.core import control
from baregrad.ir.core.attrs import BufferRef, Param
from baregrad.ir.core.node import Node, make_node, toposort
from baregrad.ir.core.op import Ops
from baregrad.program import LaunchExpr, evaluate
from baregrad.runtime.buffers import Buffer
from baregrad.runtime.commands import CommandList, Kernel, Operand, Slot
from baregrad.schedule.memory import nbytes_of

Places = Sequence[Operand]
NOTHING: frozenset[int] = frozenset()


def part_of(place: Operand, offset: int, nbytes: int) -> Operand:
    """Some bytes of a place."""
    if isinstance(place, Slot):
        return Slot(place.index, place.offset + offset)
    return place.view(offset, nbytes)


class Player(Protocol):
    """Who does what a work asks for."""

    variables: Mapping[str, int]

    def launch(
        self, executable: Executable, params: Places, written: Places, scratch: Operand | None
    ) -> None:
        """Run an executable over places."""
        ...

    def copy(self, target: Operand, source: Operand, nbytes: int) -> None:
        """Copy bytes from place to place."""
        ...

    def run(self, kernel: Kernel, operands: Places) -> None:
        """Run one kernel over places."""
        ...

    def holds(self, place: Operand) -> bool:
        """Whether the bool at a place is true."""
        ...


class AtOnce:
    """Runs on a device, one list after the other."""

    def __init__(
        self, backend: Any, variables: Mapping[str, int], where: Where | None
    ) -> None:
        self.backend = backend
        self.device = backend.device
        self.variables = variables
        self._where = where
        self._copies: dict[int, CommandList] = {}
        self._kernels: dict[Kernel, CommandList] = {}

    def launch(
        self, executable: Executable, params: Places, written: Places, scratch: Operand | None
    ) -> None:
        """Submit an executable's own list."""
        table: Any = [*params[: executable.input_count], *written]
        if scratch is not None:
            table.append(scratch)
        executable.submit(table, self.variables, self._where)

    def copy(self, target: Operand, source: Operand, nbytes: int) -> None:
        """Copy bytes on the device."""
        assert isinstance(target, Buffer) and isinstance(source, Buffer)
        if not nbytes:
            return
        if not self.backend.compiles:
            part = source if source.nbytes == nbytes else source.view(0, nbytes)
            whole = target if target.nbytes == nbytes else target.view(0, nbytes)
            self.device.copy_in(whole, part.contents())
            return
        commands = self._copies.get(nbytes)
        if commands is None:
            commands = self._copies[nbytes] = self.device.command_list()
            commands.copy(Slot(0), Slot(1), nbytes)
        self.device.submit(commands, [target, source])

    def run(self, kernel: Kernel, operands: Places) -> None:
        """Submit a list of one kernel, which is made once."""
        commands = self._kernels.get(kernel)
        if commands is None:
            commands = self._kernels[kernel] = self.device.command_list()
            commands.exec(kernel, [Slot(place) for place in range(len(operands))])
        self.device.submit(commands, operands)

    def holds(self, place: Operand) -> bool:
        """Read a bool, once all that was submitted is done."""
        assert isinstance(place, Buffer)
        found = np.zeros(1, np.uint8)
        self.device.copy_out(place if place.nbytes == 1 else place.view(0, 1), found)
        return bool(found[0])


class IntoList:
    """Appends to a command list; `variables` are those that are the same at every submission."""

    def __init__(
        self, commands: CommandList, variables: Mapping[str, int], where: Where | None
    ) -> None:
        self.commands = commands
        self.variables = variables
        self._where = where

    def launch(
        self, executable: Executable, params: Places, written: Places, scratch: Operand | None
    ) -> None:
        """Record an executable's commands over places."""
        buffers = executable.plan.buffers

        def resolve(index: int) -> Operand:
            one = buffers[index]
            if one.kind == "param":
                return params[one.slot]
            if one.kind == "output":
                return written[one.slot]
            assert scratch is not None
            if isinstance(scratch, Slot):
                return Slot(scratch.index, scratch.offset + one.offset)
            return scratch.view(one.offset, scratch.nbytes - one.offset)

        executable.record(self.commands, resolve, self.variables, self._where)

    def copy(self, target: Operand, source: Operand, nbytes: int) -> None:
        """Record a copy."""
        if nbytes:
            self.commands.copy(target, source, nbytes)

    def run(self, kernel: Kernel, operands: Places) -> None:
        """Record one kernel."""
        self.commands.exec(kernel, operands)

    def holds(self, place: Operand) -> bool:
        """Nothing can be read."""
        raise CompilerBug("a list was recorded of what depends on values", found=place)


class BodyWork(Protocol):
    """A body, planned: results over arguments.

    count: of its results. is_fixed: it is the same commands at every run, of sizes that are known.
    commands: how many these are, about. over: which results may lie where the argument of the same
    number does. leaves: the programs that it is made of.
    """

    count: int
    is_fixed: bool
    commands: int
    over: frozenset[int]
    leaves: list[tuple[Canonical, Any]]

    def scratch(self, variables: Mapping[str, int]) -> int:
        """The bytes of memory that a run needs."""
        ...

    def passed(self, part: int) -> int | None:
        """Which argument a result is, None where it is computed."""
        ...

    def play(
        self, player: Player, params: Places, wanted: Sequence[Operand | None],
        scratch: Operand | None, over: Collection[int] = NOTHING,
    ) -> list[Operand]:
        """Run it once: where each result lies.

        wanted: where results are to be written that are computed; one that is an argument, or
        another result, lies where that does. over: the results that are written over arguments.
        """
        ...


def program_of(sink: Node) -> Canonical:
    """A SINK over PARAMs as a program."""
    made = {node: node for node in toposort(sink) if node is not sink}
    return Canonical(sink, (), {}, made, True)


class Plain:
    """A body without loops in it, compiled."""

    def __init__(self, backend: Any, sink: Node, donated: Collection[int]) -> None:
        program = program_of(sink)
        self.executable: Executable = backend.prepare(program, {i: i for i in donated})
        self.count = len(sink.src)
        plan = self.executable.plan
        sizes = [one.nbytes for one in plan.buffers]
        self.is_fixed = all(size.__class__ is int for size in (*sizes, plan.arena_nbytes))
        self.commands = len(plan.steps)
        slots = {output: plan.buffers[param].slot for output, param in plan.over}
        once = [index for index in plan.outputs if plan.outputs.count(index) == 1]
        self.over = frozenset(
            part for part, index in enumerate(plan.outputs)
            if slots.get(index) == part and index in once
        )
        self.leaves = [(program, self.executable)]

    def scratch(self, variables: Mapping[str, int]) -> int:
        """The bytes of the arena."""
        return self.executable.arena_nbytes(variables)

    def passed(self, part: int) -> int | None:
        """Which argument a result is."""
        plan = self.executable.plan
        one = plan.buffers[plan.outputs[part]]
        return one.slot if one.kind == "param" else None

    def play(
        self, player: Player, params: Places, wanted: Sequence[Operand | None],
        scratch: Operand | None, over: Collection[int] = NOTHING,
    ) -> list[Operand]:
        """Run the plan once."""
        executable = self.executable.written_over({part: part for part in over})
        plan = executable.plan
        first = {index: part for part, index in reversed(list(enumerate(plan.outputs)))}
        written: list[Any] = [wanted[first[index]] for index in executable.output_indices]
        if executable.launches:
            player.launch(executable, params, written, scratch)
        found: list[Any] = []
        for index in plan.outputs:
            one = plan.buffers[index]
            found.append(params[one.slot] if one.kind == "param" else wanted[first[index]])
        return found


class Evaluated:
    """A body that a backend evaluates, which has no lists."""

    is_fixed = False
    commands = 0
    over: frozenset[int] = frozenset()

    def __init__(self, backend: Any, sink: Node) -> None:
        self._backend = backend
        self._program = program_of(sink)
        self._executable = backend.prepare(self._program, {})
        self.count = len(sink.src)
        self.leaves: list[tuple[Canonical, Any]] = []

    def scratch(self, variables: Mapping[str, int]) -> int:
        """It has memory of its own."""
        return 0

    def passed(self, part: int) -> int | None:
        """Every result is computed."""
        return None

    def play(
        self, player: Player, params: Places, wanted: Sequence[Operand | None],
        scratch: Operand | None, over: Collection[int] = NOTHING,
    ) -> list[Operand]:
        """Evaluate it once."""
        refs = tuple([BufferRef(place, (), self._backend.name) for place in params])
        program = Canonical(self._program.sink, refs, player.variables, {})
        results = self._backend.execute(self._executable, program, None)
        found: list[Operand] = []
        for buffer, place in zip(results, wanted, strict=True):
            target = buffer if place is None else place
            if target is not buffer:
                player.copy(target, buffer, buffer.nbytes)
            found.append(target)
        return found


def plain_work(backend: Any, sink: Node, donated: Collection[int] = NOTHING) -> BodyWork:
    """The work of a body without loops in it."""
    if backend.compiles:
        return Plain(backend, sink, donated)
    return Evaluated(backend, sink)


# --- several works in order ---------------------------------------------------------------------


class _Stage:
    """One of several works: which values it takes and gives, by number."""

    def __init__(self, work: BodyWork, takes: Sequence[int], gives: Sequence[int]) -> None:
        self.work = work
        self.takes = takes
        self.gives = gives


class Staged:
    """A body with loops in it: what comes before each, the loop, and what comes after."""

    over: frozenset[int] = frozenset()

    def __init__(self, backend: Any, sink: Node, inputs: int, made: Any) -> None:
        self._backend = backend
        self._made = made
        self.count = len(sink.src)
        self._inputs = inputs
        self._number: dict[Node, int] = {}
        self._sizes: list[LaunchExpr] = []
        self._stages: list[_Stage] = []
        for node in toposort(sink):
            if node.op is Ops.PARAM:
                self._number[node] = node.arg.slot
        for group in control.groups(sink.src):
            values = group[0].src
            self._compute([*values, *shared_below(sink.src, values, self._is_open)])
            takes = [self._number.get(one, -1) for one in group[0].src]
            self._add(made(backend, group), takes, group)
        self._compute(sink.src)
        self._results = [self._number[root] for root in sink.src]
        self.is_fixed = all(one.work.is_fixed for one in self._stages)
        self.commands = sum(one.work.commands for one in self._stages)
        self.leaves = [leaf for one in self._stages for leaf in one.work.leaves]

    def _is_open(self, node: Node) -> bool:
        return node not in self._number

    def _compute(self, roots: Sequence[Node]) -> None:
        """A stage for what of some values there is not yet."""
        missing = [one for one in dict.fromkeys(roots) if one not in self._number]
        if not missing:
            return
        done: dict[Node, Node] = {}
        takes: list[int] = []
        for node in toposort(*missing, enter=lambda one: one not in self._number):
            number = self._number.get(node)
            if number is not None:
                done[node] = Node(Ops.PARAM, node.dtype, (), Param(len(takes), node.shape))
                takes.append(number)
            else:
                src = tuple([done[one] for one in node.src])
                done[node] = make_node(node.op, node.dtype, src, node.arg)
        sink = Node(Ops.SINK, dtypes.token, tuple([done[one] for one in missing]))
        self._add(plain_work(self._backend, sink), takes, missing)

    def _add(self, work: BodyWork, takes: Sequence[int], made: Sequence[Node]) -> None:
        gives = []
        for node in made:
            number = self._inputs + len(self._sizes)
            self._number[node] = number
            self._sizes.append(launch_expr(nbytes_of(node)))
            gives.append(number)
        self._stages.append(_Stage(work, takes, gives))

    def _layout(self, variables: Mapping[str, int]) -> tuple[int, list[int], int]:
        """The bytes that the stages share, where each value lies after them, and the end."""
        shared = max((one.work.scratch(variables) for one in self._stages), default=0)
        shared = round_up(shared, ALIGNMENT)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for place, stage in enumerate(self._stages):
            for number in stage.gives:
                first[number] = last[number] = place
            for number in stage.takes:
                last[number] = place
        end = len(self._stages)
        last.update(dict.fromkeys(self._results, end))
        intervals = [
            Interval(first[number], last[number], evaluate(size, variables))
            for number, size in enumerate(self._sizes, self._inputs)
        ]
        packing = pack(intervals)
        return shared, [shared + offset for offset in packing.offsets], shared + packing.nbytes

    def scratch(self, variables: Mapping[str, int]) -> int:
        """The bytes of what the stages need and of what they hand on."""
        return self._layout(variables)[2]

    def passed(self, part: int) -> int | None:
        """Which argument a result is."""
        number = self._results[part]
        return number if number < self._inputs else None

    def play(
        self, player: Player, params: Places, wanted: Sequence[Operand | None],
        scratch: Operand | None, over: Collection[int] = NOTHING,
    ) -> list[Operand]:
        """Run all stages once."""
        shared, offsets, _ = self._layout(player.variables)
        places: dict[int, Operand] = dict(enumerate(params))
        target: dict[int, Operand] = {}
        for part, number in enumerate(self._results):
            place = wanted[part]
            if place is not None:
                target.setdefault(number, place)
        common = part_of(scratch, 0, shared) if scratch is not None and shared else None
        for stage in self._stages:
            asked = []
            for number in stage.gives:
                found = target.get(number)
                if found is None:
                    at = number - self._inputs
                    assert scratch is not None
                    nbytes = evaluate(self._sizes[at], player.variables)
                    found = part_of(scratch, offsets[at], nbytes)
                asked.append(found)
            taken: list[Any] = [places.get(number) for number in stage.takes]
            made = stage.work.play(player, taken, asked, common)
            places.update(zip(stage.gives, made, strict=True))
        return [places[number] for number in self._results]
